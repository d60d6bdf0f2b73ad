/*
 * op/commit.c - commits of a job: its state becomes a durable version.
 *
 * MODEL. A job has at most one struct zsd_commit_op at a time, started by a step (op/step.c) or by
 * a request:
 *
 *     SAVE ---> BUILD ---> CHANGE ---> over
 *
 *     SAVE    writes the pages whose bytes are not on the data file. A step that commits has
 *             already written those that it changed
 *     BUILD   makes a row for each shard, in parts. A shard that has not changed since its last row
 *             keeps that row
 *     CHANGE  the delta of the saved job (store/delta.h): flush, catalog, slot
 *
 * Fetches, pins and pushes continue meanwhile: they change no page that is saved. Writes are
 * refused, and a step waits.
 *
 * PREPARED. prepare keeps the new version in addition to the committed one until the ranks of all
 * nodes have voted. Then it is committed or dropped. The next step waits for that, so there are
 * never more than two versions.
 */
#include "daemon/op/commit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/requests.h"
#include "daemon/op/snapshot.h"
#include "daemon/page/pageop.h"
#include "daemon/run/turn.h"
#include "daemon/store/delta.h"
#include "daemon/store/rows.h"
#include "daemon/store/store.h"
#include "proto/shard.pb-c.h"

#define PROGRESS_MAX (UINT64_C(1) << 62) /* counts that begin here never overflow */

enum commit_state { COMMIT_SAVE, COMMIT_BUILD, COMMIT_CHANGE, COMMIT_OVER };

struct zsd_commit_op {
    struct zsd_job *job;
    enum zsd_commit_what what;
    enum commit_state state;
    struct zb_err err; /* the first failure */
    uint64_t began_ns;
    uint32_t next_shard, next_page, inflight;
    uint32_t next_unit, nrows; /* the unit whose shards are next; rows in `fresh` so far */
    struct zb_sorted_pos next_of_unit;
    struct zsd_row *row; /* the next shard's, incomplete: */
    uint32_t row_pages;  /* it has pages [0, row_pages) */
    struct zsd_version *fresh;
    struct zsd_delta delta;
    struct zsd_work work;
    void (*done)(struct zsd_job *job, const struct zb_err *err);
};

/* A request that waits for a commit of its job. */
struct commit_wait {
    struct zsd_delta delta; /* of resolve and drop */
    struct zsd_req *req;
    enum zsd_commit_what what;
    uint64_t iterations;
};

static void commit_run(struct zsd_commit_op *op);

/* ---- SAVE */

static bool commit_page_dirty(const struct zsd_shard *s, uint32_t page)
{
    for (enum zsd_saved_plane i = 0; i < ZSD_SAVED_PLANES; i++) {
        const struct zsd_plane *p = &s->planes[zsd_plane_of(i)];

        if (p->extents && p->extents[page].at == ZB_NO_PLACE)
            return true;
    }
    return false;
}

static void commit_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct zsd_commit_op *op = owner;

    (void)spec;
    if (err)
        (void)zb_fail(&op->err, err->code, "%s", err->text);
    op->inflight--;
    commit_run(op);
}

/* Starts to save pages: as many as may be in progress, and as the turn has room for. True: all are
 * saved, or the commit has failed. */
static bool commit_save(struct zsd_commit_op *op)
{
    struct zsd_job *job = op->job;
    uint32_t max = 2 * zsd_compute_threads(job->core->daemon->compute) + job->core->disk->nbuffers;

    while (op->next_shard < job->nshards && op->err.code == 0 && op->inflight < max) {
        struct zsd_shard *s = job->shards[op->next_shard];
        struct zsd_page_spec spec = { .kind = ZSD_PAGE_SAVE,
                                      .shard = s,
                                      .page = op->next_page,
                                      .save_err = &op->err,
                                      .done = commit_on_page,
                                      .owner = op };

        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, &op->work);
            return false;
        }
        zsd_turn_count(job->core, 1);
        if (s->row || op->next_page == s->npages) {
            op->next_shard++;
            op->next_page = 0;
            continue;
        }
        if (commit_page_dirty(s, op->next_page)) {
            if (zsd_pageop_start(&spec) < 0) {
                (void)zb_fail(&op->err, -ENOMEM, "a commit of job '%s': %m", job->name);
                break;
            }
            op->inflight++;
        }
        op->next_page++;
    }
    return op->inflight == 0 && (op->next_shard == job->nshards || op->err.code != 0);
}

/* ---- BUILD */

static struct zsd_row *commit_row_new(struct zsd_shard *s)
{
    struct zsd_core *core = s->job->core;
    struct zsd_row *r =
        zsd_row_new(s->unit->index, &s->unit->layout, s->first, s->count, core->page_elems);

    if (!r)
        return NULL;
    r->rank = s->rank;
    r->id = core->store->next_id++;
    return r;
}

/* Adds the next pages to the row, as many as the turn has room for. True: the row is complete. */
static bool commit_row_pages(struct zsd_commit_op *op, struct zsd_shard *s)
{
    struct zsd_core *core = s->job->core;
    struct zsd_row *r = op->row;
    uint32_t from = op->row_pages,
             to = from + (uint32_t)zb_min_u64(zsd_turn_left(core), r->npages - from);

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        const struct zsd_plane *plane = &s->planes[zsd_plane_of(p)];
        struct zsd_row_plane *row = &r->planes[p];

        if (row->block_bytes == 0)
            continue;
        assert(row->crcs_per_page == plane->crcs_per_page);
        for (uint32_t i = from; i < to; i++) {
            assert(plane->extents[i].at != ZB_NO_PLACE); /* SAVE has written it */
            zsd_extent_ref(core, plane->extents[i].at);
            row->extents[i] = plane->extents[i];
        }
        memcpy(row->crcs + (size_t)from * row->crcs_per_page,
               plane->crcs + (size_t)from * row->crcs_per_page,
               (size_t)(to - from) * row->crcs_per_page * sizeof(*row->crcs));
    }
    zsd_turn_count(core, to - from);
    op->row_pages = to;
    return to == r->npages;
}

static int commit_version(struct zsd_commit_op *op)
{
    struct zsd_job *job = op->job;
    struct zsd_version *v = zsd_version_new(job->saved, job->world, job->nshards);
    int rc = v ? zsd_note_copy(&v->job_note, &job->note) : -ENOMEM;

    op->fresh = v;
    for (uint32_t i = 0; i < job->world && rc == 0; i++)
        rc = zsd_note_copy(&v->notes[i], &job->notes[i]);
    if (rc < 0)
        return zb_fail(&op->err, rc, "a commit of job '%s': %m", job->name);
    v->iterations = job->iterations;
    v->applied = job->applied;
    return 0;
}

/* Adds the row of the next shard. 1: done; 0: continues in the next turn; -ENOMEM. */
static int commit_shard(struct zsd_commit_op *op, struct zsd_shard *s)
{
    struct zsd_core *core = op->job->core;

    if (zsd_turn_left(core) == 0)
        return 0;
    zsd_turn_count(core, 1);
    if (!s->row) {
        if (!op->row) {
            op->row = commit_row_new(s);
            op->row_pages = 0;
        }
        if (!op->row)
            return -ENOMEM;
        if (!commit_row_pages(op, s))
            return 0;
        zsd_rows_add(core->store, op->row); /* the row is complete */
        s->row = op->row;
        op->row = NULL;
    }
    if (zsd_version_put(op->fresh, op->nrows, s->row) < 0)
        return -ENOMEM;
    op->nrows++;
    return 1;
}

/* Adds rows to the version. True: it has all rows, or the commit has failed. */
static bool commit_build(struct zsd_commit_op *op)
{
    struct zsd_job *job = op->job;
    struct zsd_shard *s;

    if (!op->fresh && commit_version(op) < 0)
        return true;
    for (; op->next_unit < job->nunits; op->next_unit++) {
        const struct zb_sorted *shards = &job->units[op->next_unit]->shards;

        while ((s = zb_sorted_get(shards, op->next_of_unit)) != NULL) {
            int rc = commit_shard(op, s);

            if (rc < 0)
                (void)zb_fail(&op->err, rc, "a commit of job '%s': %m", job->name);
            if (rc <= 0)
                return rc < 0;
            op->next_of_unit = zb_sorted_next(shards, op->next_of_unit);
        }
        op->next_of_unit = (struct zb_sorted_pos){ 0 };
    }
    return true;
}

/* ---- CHANGE */

static int commit_plan(struct zsd_delta *d, struct zb_err *err)
{
    struct zsd_commit_op *op = zb_container_of(d, struct zsd_commit_op, delta);

    if (d->saved->gone) /* destroyed while pages were saved and rows built */
        return zb_fail(err, -ECANCELED, "job '%s' was destroyed", d->saved->name);
    if (d->prepared)
        return zb_fail(err, -EBUSY,
                       "job '%s' has step %llu prepared, which must be committed or dropped first",
                       d->saved->name, (unsigned long long)d->prepared->iterations);
    if (op->what == ZSD_PREPARE)
        d->prepared = op->fresh;
    else
        d->committed = op->fresh;
    return 0;
}

static void commit_on_delta(struct zsd_delta *d, const struct zb_err *err)
{
    struct zsd_commit_op *op = zb_container_of(d, struct zsd_commit_op, delta);

    if (err)
        op->err = *err;
    commit_run(op);
}

static void commit_over(struct zsd_commit_op *op)
{
    struct zsd_job *job = op->job;
    struct zb_err err = op->err;
    bool committed = err.code == 0 && op->what == ZSD_COMMIT;

    if (err.code != 0)
        zb_log(ZB_LOG_WARN, "commit-failed", "job=\"%s\" uid=%u iterations=%llu why=\"%s\"",
               job->name, (unsigned)job->uid, (unsigned long long)job->iterations, err.text);
    else
        zb_log(ZB_LOG_DEBUG, op->what == ZSD_PREPARE ? "prepare" : "commit",
               "job=\"%s\" uid=%u iterations=%llu applied=%llu", job->name, (unsigned)job->uid,
               (unsigned long long)job->iterations, (unsigned long long)job->applied);
    zsd_commit_count(job, op->began_ns, err.code != 0 ? &err : NULL);
    job->commit = NULL;
    job->prepares = op->what == ZSD_PREPARE;
    if (err.code == 0)
        job->rewritten = false; /* writes are refused during a commit */
    zsd_version_unref(op->fresh);
    op->done(job, err.code != 0 ? &err : NULL);
    free(op);
    if (committed)
        zsd_snap_next(job->saved);
    zsd_job_committed(job);
    zsd_job_unhold(job);
}

static void commit_run(struct zsd_commit_op *op)
{
    for (;;) {
        switch (op->state) {
        case COMMIT_SAVE:
            if (!commit_save(op))
                return;
            zb_list_remove(&op->work.node); /* no page is left for the next turn */
            op->state = op->err.code != 0 ? COMMIT_OVER : COMMIT_BUILD;
            break;
        case COMMIT_BUILD:
            if (!commit_build(op)) {
                zsd_defer(op->job->core, &op->work);
                return;
            }
            op->state = op->err.code != 0 ? COMMIT_OVER : COMMIT_CHANGE;
            break;
        case COMMIT_CHANGE:
            op->state = COMMIT_OVER;
            op->delta = (struct zsd_delta){ .saved = op->job->saved,
                                            .change.sync = true,
                                            .plan = commit_plan,
                                            .done = commit_on_delta };
            zsd_delta_start(&op->delta);
            return;
        case COMMIT_OVER:
            commit_over(op);
            return;
        }
    }
}

static void commit_on_work(struct zsd_work *work)
{
    commit_run(zb_container_of(work, struct zsd_commit_op, work));
}

/* ---- starting */

int zsd_commit_check(const struct zsd_job *job, struct zb_err *err)
{
    const struct zsd_store *store = job->core->store;

    if (!job->durable)
        return zb_fail(err, -EINVAL, "job '%s' is not durable: it was opened without", job->name);
    if (store->poisoned.code != 0)
        return zb_fail(err, store->poisoned.code, "%s", store->poisoned.text);
    if (!zsd_job_live(job)) /* a skip is allowed without them */
        return zb_fail(err, -EAGAIN, "job '%s' has no initial values yet", job->name);
    if (job->saved->prepared)
        return zb_fail(err, -EBUSY,
                       "job '%s' has step %llu prepared, which must be committed or dropped first",
                       job->name, (unsigned long long)job->saved->prepared->iterations);
    if (zsd_saved_room(job->saved, err) < 0)
        return err->code;
    return 0;
}

bool zsd_commit_has(const struct zsd_job *job)
{
    const struct zsd_version *c = job->saved ? job->saved->committed : NULL;

    return c && c->iterations == job->iterations && !job->rewritten;
}

const struct zsd_row *zsd_commit_row(const struct zsd_job *job, uint32_t *ret_pages)
{
    *ret_pages = job->commit ? job->commit->row_pages : 0;
    return job->commit ? job->commit->row : NULL;
}

void zsd_commit_start(struct zsd_job *job, enum zsd_commit_what what, const struct zb_err *save_err,
                      void (*done)(struct zsd_job *job, const struct zb_err *err))
{
    struct zsd_commit_op *op = calloc(1, sizeof(*op));
    struct zb_err err = { 0 };

    assert(!job->commit && (what == ZSD_COMMIT || what == ZSD_PREPARE));
    if (save_err && save_err->code != 0)
        err = *save_err;
    else if (!op)
        (void)zb_fail(&err, -ENOMEM, "a commit of job '%s': %m", job->name);
    else
        (void)zsd_commit_check(job, &err);
    if (err.code != 0) {
        free(op);
        zsd_commit_count(job, 0, &err);
        done(job, &err);
        return;
    }
    op->job = job;
    op->what = what;
    op->began_ns = zb_now_ns();
    op->done = done;
    op->work.run = commit_on_work;
    zb_list_init(&op->work.node);
    job->commit = op;
    zsd_job_hold(job);
    zsd_defer(job->core, &op->work);
}

static void commit_last_done(struct zsd_job *job, const struct zb_err *err)
{
    (void)job;
    (void)err; /* it is logged */
}

uint32_t zsd_commit_progress(const struct zsd_job *job)
{
    return job->commit ? job->commit->next_shard : 0;
}

void zsd_commit_last(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    if (!job->durable || job->state != ZSD_READY || job->commit || !zsd_job_live(job) ||
        zsd_job_writing(job) || zsd_commit_has(job) || zsd_commit_check(job, &err) < 0)
        return;
    zsd_commit_start(job, job->prepares ? ZSD_PREPARE : ZSD_COMMIT, NULL, commit_last_done);
}

/* ---- requests */

static void commit_reply(struct zsd_req *req, const struct zsd_version *v, const struct zb_err *err)
{
    Zp__CommitReply reply = ZP__COMMIT_REPLY__INIT;

    if (err) {
        zsd_reply_err(req, err);
        return;
    }
    reply.iterations = v ? v->iterations : 0;
    reply.applied = v ? v->applied : 0;
    zsd_reply(req, &reply.base, -1);
}

static void commit_asked_done(struct zsd_job *job, const struct zb_err *err)
{
    struct zsd_req *req = job->commit_req;

    job->commit_req = NULL;
    commit_reply(req,
                 job->saved ? job->saved->prepared ? job->saved->prepared : job->saved->committed
                            : NULL,
                 err);
}

static int resolve_plan(struct zsd_delta *d, struct zb_err *err)
{
    const struct commit_wait *w = zb_container_of(d, struct commit_wait, delta);

    if (!d->prepared && w->what == ZSD_RESOLVE && d->committed &&
        d->committed->iterations == w->iterations)
        return 0; /* done by an earlier change, whose client may have died since */
    if (!d->prepared || d->prepared->iterations != w->iterations)
        return zb_fail(err, -ENOENT, "job '%s' has nothing prepared", d->saved->name);
    if (w->what == ZSD_RESOLVE)
        d->committed = d->prepared;
    d->prepared = NULL;
    d->destroy = d->stays = !d->committed; /* there was never a commit */
    return 0;
}

/* Not in resolve_done(): the next commit may be requested before that. */
static void resolve_applied(struct zsd_delta *d)
{
    const struct commit_wait *w = zb_container_of(d, struct commit_wait, delta);
    struct zsd_saved *saved = d->saved;

    if (w->what == ZSD_RESOLVE)
        zsd_snap_next(saved); /* snapshots of this commit */
    else if (saved->job)
        saved->job->rewritten = true; /* the dropped version may have saved writes */
}

static void resolve_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct commit_wait *w = zb_container_of(d, struct commit_wait, delta);
    struct zsd_saved *saved = d->saved;

    commit_reply(w->req, saved->committed, err);
    if (saved->job && err)
        zsd_commit_count(saved->job, 0, err);
    if (saved->job)
        zsd_job_committed(saved->job);
    free(w);
}

static void commit_resolve(struct zsd_req *req, struct zsd_job *job, enum zsd_commit_what what,
                           uint64_t iterations)
{
    const struct zsd_version *v = job->saved ? job->saved->prepared : NULL;
    const struct zsd_version *c = job->saved ? job->saved->committed : NULL;
    struct commit_wait *w;

    if (what == ZSD_RESOLVE && !v && c && c->iterations == iterations) { /* a repeated request */
        commit_reply(req, c, NULL);
        return;
    }
    if (job->state == ZSD_PLACING || job->state == ZSD_LOADING) { /* perhaps from this version */
        zsd_refuse(req, -EBUSY, "job '%s' is being loaded", job->name);
        return;
    }
    if (!v || v->iterations != iterations) {
        zsd_refuse(req, -ENOENT, "job '%s' has not prepared step %llu", job->name,
                   (unsigned long long)iterations);
        return;
    }
    w = calloc(1, sizeof(*w));
    if (!w) {
        zsd_refuse(req, -ENOMEM, "a commit of job '%s'", job->name);
        return;
    }
    w->req = req;
    w->what = what;
    w->iterations = iterations;
    w->delta = (struct zsd_delta){
        .saved = job->saved, .plan = resolve_plan, .applied = resolve_applied, .done = resolve_done
    };
    zsd_delta_start(&w->delta);
}

ZSD_REQUEST(zsd_commit, Commit)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    if (q->what < ZSD_COMMIT || q->what > ZSD_DROP) {
        zsd_refuse(req, -EINVAL, "commit %u: must be 1 to 4", q->what);
        return;
    }
    if (q->what == ZSD_RESOLVE || q->what == ZSD_DROP) {
        commit_resolve(req, job, q->what, q->iterations);
        return;
    }
    if (q->iterations != job->iterations)
        (void)zb_fail(&err, -EINVAL, "a commit of step %llu of job '%s': its newest step is %llu",
                      (unsigned long long)q->iterations, job->name,
                      (unsigned long long)job->iterations);
    else if (job->state != ZSD_READY || job->commit)
        (void)zb_fail(&err, -EBUSY, "job '%s' is stepping, or being committed", job->name);
    else if (!zsd_job_live(job))
        (void)zb_fail(&err, -EAGAIN, "job '%s' has no initial values yet", job->name);
    else if (zsd_job_writing(job))
        (void)zb_fail(&err, -EBUSY, "initial values of job '%s' are being written", job->name);
    else
        (void)zsd_commit_check(job, &err);
    if (err.code != 0) {
        zsd_commit_count(job, 0, &err);
        zsd_reply_err(req, &err);
        return;
    }
    if (q->what == ZSD_COMMIT && zsd_commit_has(job)) {
        commit_reply(req, job->saved->committed, NULL); /* a repeated request */
        return;
    }
    job->commit_req = req;
    zsd_commit_start(job, q->what, NULL, commit_asked_done);
}

ZSD_REQUEST(zsd_progress, Progress)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    if (q->iterations > PROGRESS_MAX) {
        zsd_refuse(req, -EINVAL, "%llu iterations: at most %llu", (unsigned long long)q->iterations,
                   (unsigned long long)PROGRESS_MAX);
        return;
    }
    if (q->applied > q->iterations) {
        zsd_refuse(req, -EINVAL, "%llu steps applied of %llu", (unsigned long long)q->applied,
                   (unsigned long long)q->iterations);
        return;
    }
    if (job->iterations == q->iterations && job->applied == q->applied) {
        zsd_reply(req, NULL, -1);
        return;
    }
    if (job->state != ZSD_READY || job->commit || job->iterations > 0 || job->pins > 0 ||
        job->early_said > 0) {
        zsd_refuse(req, -EBUSY, "job '%s' has begun already: its progress is %llu", job->name,
                   (unsigned long long)job->iterations);
        return;
    }
    job->iterations = q->iterations;
    job->applied = q->applied;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->version = job->applied;
    zsd_reply(req, NULL, -1);
}
