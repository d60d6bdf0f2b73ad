/*
 * resume.c - resumes a kept job: takes it over, and chooses the step to continue from.
 *
 *     the first rank of each node takes the job over ---> all ranks learn each node's epoch and
 *     points, and choose ---> the other ranks attach with that epoch ---> join, place: ready at
 *     that step ---> a prepared step is committed or dropped
 *
 * CHOICE. Every node has up to three points: the newest whole step in memory, one that is prepared,
 * one that is committed. The job resumes from the newest step that all nodes have, at any of these
 * points.
 *
 * PREPARED. If every node has prepared or committed a step, some node may have committed it
 * already, so nodes that only prepared it commit it now. Any other prepared step was committed
 * nowhere, because the ranks had not agreed on it, and is dropped. Both follow from the points
 * alone. So an interrupted start can be repeated, with the same result.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/step/step.h"

/* durable: a step that is only in memory does not count. */
static bool stand_has(const struct zcz_stand *s, uint64_t iterations, bool durable)
{
    for (uint32_t i = 0; i < s->npoints; i++)
        if (s->points[i].iterations == iterations &&
            (!durable || s->points[i].kind != ZC_POINT_MEMORY))
            return true;
    return false;
}

static bool all_have(const struct zcz_stand *stands, uint32_t n, uint64_t iterations, bool durable)
{
    for (uint32_t k = 0; k < n; k++)
        if (!stand_has(&stands[k], iterations, durable))
            return false;
    return true;
}

int zcz_resume_choose(const struct zcz_stand *stands, uint32_t n, uint64_t *ret_at)
{
    int rc = -ENOENT;

    for (uint32_t i = 0; i < stands[0].npoints; i++) {
        uint64_t at = stands[0].points[i].iterations;

        if ((rc < 0 || at > *ret_at) && all_have(stands, n, at, false)) {
            *ret_at = at;
            rc = 0;
        }
    }
    return rc;
}

enum zc_commit zcz_resume_fate(const struct zcz_stand *stands, uint32_t n, uint64_t iterations)
{
    return all_have(stands, n, iterations, true) ? ZC_COMMIT_PREPARED : ZC_COMMIT_DROP;
}

/* "node 0 has step 8 (memory), step 4 (committed); node 1 has nothing" */
static void stands_describe(const struct zcz_stand *stands, uint32_t n, char *text, size_t bytes)
{
    static const char *const kinds[] = { "?", "memory", "prepared", "committed" };
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t k = 0; k < n && at < bytes; k++) {
        const struct zcz_stand *s = &stands[k];

        at += (size_t)snprintf(text + at, bytes - at, "%snode %u has%s", k ? "; " : "", k,
                               s->npoints == 0 ? " nothing" : "");
        for (uint32_t i = 0; i < s->npoints && at < bytes; i++)
            at += (size_t)snprintf(
                text + at, bytes - at, "%s step %llu (%s)", i ? "," : "",
                (unsigned long long)s->points[i].iterations,
                kinds[s->points[i].kind <= ZC_POINT_COMMITTED ? s->points[i].kind : 0]);
    }
}

struct attached {
    bool first; /* the first rank of its node, whose stand counts */
    struct zcz_stand stand;
};

/* All ranks know all nodes, and make the same decision. */
static int resume_decide(struct zc_zero *z, const struct zcz_stand *stands, uint32_t n)
{
    const struct zcz_store *s = z->store;
    char text[160];

    if (zcz_resume_choose(stands, n, &z->store->resume_at) < 0) {
        stands_describe(stands, n, text, sizeof(text));
        return zcz_fail(z, -ENOENT, "job '%s' has no step to resume from: %s", z->job, text);
    }
    zcz_commit_known(z, all_have(stands, n, z->store->resume_at, true));
    z->steps->resume_prepared = ZC_COMMIT_NO;
    for (uint32_t i = 0; s->node_rank == 0 && i < s->npoints; i++)
        if (s->points[i].kind == ZC_POINT_PREPARED) {
            z->steps->resume_prepared_at = s->points[i].iterations;
            z->steps->resume_prepared = zcz_resume_fate(stands, n, z->steps->resume_prepared_at);
        }
    return 0;
}

/* Shares what the first rank of each node found. *ret_epoch is this node's epoch. */
static int resume_share(struct zc_zero *z, uint64_t *ret_epoch)
{
    struct zcz_store *s = z->store;
    struct attached mine = { .first = s->node_rank == 0 };
    struct attached *all;
    struct zcz_stand *stands;
    struct zcz_buf *buf;
    uint32_t n = 0;
    int rc;

    mine.stand.epoch = s->epoch;
    mine.stand.npoints = s->npoints;
    memcpy(mine.stand.points, s->points, sizeof(s->points));
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_POINTS, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    *ret_epoch = all[s->node_ranks[0]].stand.epoch;
    stands = calloc(z->nodes, sizeof(*stands));
    for (uint32_t r = 0; r < z->world && stands; r++)
        if (all[r].first)
            stands[n++] = all[r].stand;
    rc = stands ? resume_decide(z, stands, n)
                : zcz_fail(z, -ENOMEM, "no memory for %u nodes", z->nodes);
    free(stands);
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* On a node's first rank: takes the job over if it exists. */
static int resume_look(struct zc_zero *z, bool *ret_there)
{
    struct zcz_store *s = z->store;
    int rc = s->ops->attach(s, 0);

    *ret_there = rc == 0;
    if (rc == -ENOENT && z->options.resume_if_there && !z->options.resume) {
        zcz_forgive(z);
        rc = 0;
    }
    return rc;
}

enum { THERE_NOBODY_ASKED, THERE_NOT, THERE_YES };

/* Checks that either all nodes have the job or none has. */
static int resume_there(struct zc_zero *z, uint8_t mine, bool *ret_there)
{
    const uint8_t *all;
    struct zcz_buf *buf;
    uint32_t with = 0, without = 0, node = 0;
    int rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_ATTACH, 1, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    for (uint32_t r = 0; r < z->world; r++) {
        with += all[r] == THERE_YES;
        without += all[r] == THERE_NOT;
        node = all[r] == THERE_NOT ? r : node;
    }
    zcz_buf_put(&z->small, buf);
    *ret_there = without == 0;
    if (with > 0 && without > 0)
        return zcz_fail(z, -ENOENT,
                        "%u nodes have a job '%s' and %u have none, such as that of rank %u: it "
                        "can neither be resumed nor begun",
                        with, z->job, without, node);
    return 0;
}

int zcz_resume_attach(struct zc_zero *z, bool *ret_there)
{
    struct zcz_store *s = z->store;
    uint64_t epoch = 0;
    uint8_t mine = THERE_NOBODY_ASKED;
    int rc = 0;

    *ret_there = true;
    if (s->node_rank == 0) {
        bool there;

        rc = resume_look(z, &there);
        mine = there ? THERE_YES : THERE_NOT;
    }
    rc = zcz_vote(z, rc, 0, ZCZ_CALL_ATTACH);
    if (rc == 0 && z->options.resume_if_there && !z->options.resume)
        rc = resume_there(z, mine, ret_there);
    if (rc < 0 || !*ret_there)
        return rc;
    rc = resume_share(z, &epoch);
    if (rc < 0)
        return rc;
    return zcz_vote(z, s->node_rank == 0 ? 0 : s->ops->attach(s, epoch), 0, ZCZ_CALL_ATTACH);
}

int zcz_resume_settle(struct zc_zero *z)
{
    int rc;

    if (z->steps->resume_prepared == ZC_COMMIT_NO)
        return 0;
    rc = zcz_commit_resolve(z, z->steps->resume_prepared, z->steps->resume_prepared_at);
    return rc < 0 ? rc : zcz_commit_resolved(z);
}
