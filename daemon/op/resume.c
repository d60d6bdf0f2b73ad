/*
 * resume.c - checks and preparations before a load (op/load.c): compares a job that attaches with a
 * version; releases the extents of a job in memory that resumes from another of its points.
 *
 * MODEL. Each is a walk (job/walk.h) over every shard of the job, and over the rows of the version
 * or the pages of the shard. The job is PLACING or LOADING, so nothing else changes its shards. If
 * it ends during the walk, the remaining extents are released with its tables (plan/tables.h).
 *
 *     zsd_resume_check()   for each unit: counts the elements of its rows, then those of its
 *                          shards, and finds the rows that hold each shard
 *     zsd_resume_rewind()  for each shard: releases the extents of its pages, then its row. At the
 *                          end, if the job is cut differently from the version, reserves room to
 *                          write it anew in addition to the version
 */
#include "daemon/op/resume.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/job/shard.h"
#include "daemon/run/turn.h"

struct resume_op {
    struct zsd_walk walk;
    struct zsd_version *version;
    /* check: */
    uint32_t unit, row;      /* the next ones */
    struct zb_sorted_pos at; /* of the next shard of the unit */
    uint64_t covered;        /* elements of that shard found in rows so far */
    uint64_t have, want;     /* elements of the unit: saved, and registered */
    /* rewind: */
    uint32_t shard, page; /* the next ones */
    bool differs;         /* a shard is cut differently from the rows of the version */
};

/* Counts one more item for the turn. False: the turn has no room for it. */
static bool resume_look(const struct resume_op *op)
{
    if (zsd_turn_left(op->walk.job->core) == 0)
        return false;
    zsd_turn_count(op->walk.job->core, 1);
    return true;
}

static void resume_over(struct zsd_walk *walk)
{
    struct resume_op *op = zb_container_of(walk, struct resume_op, walk);

    zsd_version_unref(op->version);
    free(op);
}

static struct resume_op *resume_new(struct zsd_job *job, struct zsd_version *v, zsd_walked *done,
                                    bool (*part)(struct zsd_walk *walk))
{
    struct resume_op *op = calloc(1, sizeof(*op));
    struct zb_err err = { 0 };

    if (!op) {
        (void)zb_fail(&err, -ENOMEM, "loading job '%s': %m", job->name);
        zsd_job_fail(job, &err);
        return NULL;
    }
    op->version = zsd_version_ref(v);
    op->walk = (struct zsd_walk){ .part = part, .over = resume_over, .done = done };
    zsd_walk_start(&op->walk, job);
    return op;
}

/* ---- check */

/* Begins the next unit, if there is one. */
static void check_unit_begin(struct resume_op *op)
{
    op->have = op->want = op->covered = 0;
    if (op->unit < op->walk.job->nunits)
        op->at = zb_sorted_at(&op->walk.job->units[op->unit]->shards, 0);
}

/* Finds the rows that hold the next shard. 1: all of it was saved; 0: continues in the next turn;
 * -EINVAL. */
static int check_shard(struct resume_op *op, const struct zsd_shard *s)
{
    const struct zsd_version *v = op->version;

    while (op->covered < s->count) {
        uint64_t elem = s->first + op->covered;
        uint32_t k;

        if (!resume_look(op))
            return 0;
        k = zsd_version_find(v, op->unit, elem);
        if (k == v->nrows)
            return zb_fail(&op->walk.err, -EINVAL,
                           "unit '%s' of job '%s': element %llu is registered, and was not saved",
                           s->unit->name, op->walk.job->name, (unsigned long long)elem);
        op->covered = v->rows[k]->first + v->rows[k]->count - s->first;
    }
    op->want += s->count;
    op->covered = 0;
    return 1;
}

/* Checks the next unit. Returns as above. */
static int check_unit(struct resume_op *op)
{
    const struct zsd_unit *unit = op->walk.job->units[op->unit];
    const struct zsd_version *v = op->version;
    const struct zsd_shard *s;

    for (; op->row < v->nrows && v->rows[op->row]->unit == op->unit; op->row++) {
        if (!resume_look(op))
            return 0;
        op->have += v->rows[op->row]->count;
    }
    while ((s = zb_sorted_get(&unit->shards, op->at)) != NULL) {
        int rc = check_shard(op, s);

        if (rc <= 0)
            return rc;
        op->at = zb_sorted_next(&unit->shards, op->at);
    }
    if (op->have != op->want)
        return zb_fail(&op->walk.err, -EINVAL,
                       "unit '%s' of job '%s': %llu elements are registered, and %llu were saved",
                       unit->name, op->walk.job->name, (unsigned long long)op->want,
                       (unsigned long long)op->have);
    return 1;
}

static bool check_part(struct zsd_walk *walk)
{
    struct resume_op *op = zb_container_of(walk, struct resume_op, walk);
    int rc = 1;

    while (op->unit < op->walk.job->nunits && resume_look(op) && (rc = check_unit(op)) > 0) {
        op->unit++;
        check_unit_begin(op);
    }
    return rc < 0 || op->unit == op->walk.job->nunits;
}

void zsd_resume_check(struct zsd_job *job, struct zsd_version *v, zsd_walked *done)
{
    struct resume_op *op = resume_new(job, v, done, check_part);

    if (op)
        check_unit_begin(op);
}

/* ---- rewind */

static bool rewind_fits(const struct zsd_version *v, const struct zsd_shard *s)
{
    uint32_t i = zsd_version_find(v, s->unit->index, s->first);

    return i < v->nrows && zsd_row_fits(v->rows[i], s);
}

static bool rewind_part(struct zsd_walk *walk)
{
    struct resume_op *op = zb_container_of(walk, struct resume_op, walk);
    struct zsd_job *job = op->walk.job;

    while (op->shard < job->nshards) {
        struct zsd_shard *s = job->shards[op->shard];
        uint64_t left = zsd_turn_left(job->core), before = left;

        if (left == 0 || !zsd_shard_forget(s, &op->page, &left)) {
            zsd_turn_count(job->core, before - left);
            return false;
        }
        zsd_turn_count(job->core, zb_max_u64(before - left, 1)); /* it may have no extents */
        op->differs = op->differs || !rewind_fits(op->version, s);
        op->shard++;
        op->page = 0;
    }
    zsd_saved_planned(job->saved);
    if (op->differs) /* the load writes pages anew, in addition to the version */
        (void)zsd_saved_reserve(job->saved, &op->walk.err);
    return true;
}

void zsd_resume_rewind(struct zsd_job *job, struct zsd_version *v, zsd_walked *done)
{
    zsd_saved_planned(job->saved);
    (void)resume_new(job, v, done, rewind_part);
}
