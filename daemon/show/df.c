/*
 * df.c - use of the data files by job: `zctl df`.
 *
 * MODEL. One run at a time; it answers all requests that arrive before it ends:
 *
 *     WAIT ---> COPY ---> COUNT ---> KEPT     the newest result stays for further pages of its list
 *
 *     WAIT    limits the loop time that runs take: DF_REST
 *     COPY    the loop copies metadata, over several turns (survey.h)
 *     COUNT   a compute thread counts the copy
 *
 * Runs are not part of the queue of changes. So they do not use the catalog, which a change may be using
 * on another thread.
 */
#include "daemon/show/df.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/run/turn.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "daemon/show/survey.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define DF_ROWS     200u /* of one reply: below 64 KiB with the longest names */
#define DF_KEPT_NS  UINT64_C(10000000000)
#define DF_REST     16u /* the pause after a copy, as a multiple of the time that it took */
#define DF_REST_MIN UINT64_C(1000000)

struct df_asker {
    struct zsd_req *req;
    uint64_t cursor;
    struct zb_list node;
};

struct zsd_df_run {
    struct zsd_core *core;
    bool runs;
    struct zb_list askers;
    struct zsd_task task;
    struct zsd_timed timed;
    struct zsd_work work; /* the next part of the copy */
    uint64_t took_ns;     /* by the parts so far */
    struct zb_err err;
    struct zsd_survey s; /* after the run: only jobs and sums */
    uint64_t over_ns;    /* when the last run ended */
    uint64_t rest_ns;    /* no copy begins before this time */
};

/* ---- the answer */

/* One row for each job that the client may see, by number; then one row for everything else: places
 * of no job, and of jobs that it may not see. */
static void df_answer(const struct zsd_df_run *d, struct zsd_req *req, uint64_t cursor)
{
    Zp__DfRow rows[DF_ROWS], *list[DF_ROWS], *other;
    Zp__DfReply reply = ZP__DF_REPLY__INIT;
    const struct zsd_survey *s = &d->s;
    bool full = false;

    other = &rows[DF_ROWS - 1];
    zp__df_row__init(other);
    other->working = s->other_working;
    other->reserved = s->other_reserved;
    for (size_t i = 0; i < s->njobs; i++) {
        const struct zsd_survey_job *j = &s->jobs[i];
        bool seen = req->conn && zsd_may(req->conn, j->uid);
        Zp__DfRow *row = other;

        if (seen && (j->number < cursor || full))
            continue;
        if (seen && reply.n_rows == DF_ROWS - 1) {
            reply.cursor = j->number;
            full = true;
            continue;
        }
        if (seen) {
            row = list[reply.n_rows] = &rows[reply.n_rows];
            reply.n_rows++;
            zp__df_row__init(row);
            row->job = zp_str(j->name);
            row->uid = j->uid;
        }
        row->committed += j->committed;
        row->prepared += j->prepared;
        row->snapshots += j->snapshots;
        row->working += j->working;
        row->reserved += j->reserved;
        row->shared += j->shared;
    }
    if (!full)
        list[reply.n_rows++] = other;
    reply.total = s->total_bytes;
    reply.meta = s->total_bytes - s->map_bytes;
    reply.free = s->free_bytes;
    reply.catalog_bytes = d->core->store->catalog_bytes;
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}

/* ---- a run */

static void df_over(struct zsd_df_run *d)
{
    d->runs = false;
    d->over_ns = zb_now_ns();
    zsd_survey_trim(&d->s);
    for (struct zb_list *node; (node = zb_list_pop_front(&d->askers)) != NULL;) {
        struct df_asker *a = zb_container_of(node, struct df_asker, node);

        if (a->req->conn)
            zsd_limit_give(&a->req->conn->quota, ZSD_LIMIT_SCANS, 1);
        if (d->err.code != 0)
            zsd_reply_err(a->req, &d->err);
        else
            df_answer(d, a->req, a->cursor);
        free(a);
    }
}

static void df_on_task(struct zsd_task *task)
{
    struct zsd_df_run *d = zb_container_of(task, struct zsd_df_run, task);

    d->core->in_progress--;
    df_over(d);
}

static void df_count(struct zsd_task *task)
{
    struct zsd_df_run *d = zb_container_of(task, struct zsd_df_run, task);

    if (zsd_survey_sort(&d->s) < 0 || zsd_survey_df(&d->s) < 0)
        (void)zb_fail(&d->err, -ENOMEM, "counting the stored pages: %m");
}

static void df_copy_part(struct zsd_work *work)
{
    struct zsd_df_run *d = zb_container_of(work, struct zsd_df_run, work);
    uint64_t from_ns = zb_now_ns();
    int rc = zsd_survey_take(d->core, &d->s, &d->err);

    if (rc < 0) {
        d->core->in_progress--;
        df_over(d);
        return;
    }
    d->took_ns += zb_now_ns() - from_ns;
    if (rc == 1) {
        zsd_defer(d->core, work);
        return;
    }
    d->rest_ns = zb_now_ns() + DF_REST * d->took_ns;
    d->task = (struct zsd_task){ .run = df_count, .done = df_on_task, .slow = true };
    zsd_compute_post(d->core->daemon->compute, &d->task);
}

static void df_copy(struct zsd_timed *timed)
{
    struct zsd_df_run *d = zb_container_of(timed, struct zsd_df_run, timed);

    zsd_survey_done(&d->s); /* of the previous run */
    d->s.what = ZSD_SURVEY_DF;
    d->took_ns = 0;
    d->core->in_progress++;
    zsd_defer(d->core, &d->work);
}

static void df_begin(struct zsd_df_run *d)
{
    uint64_t now_ns = zb_now_ns();

    d->runs = true;
    d->err = (struct zb_err){ 0 };
    if (d->rest_ns < now_ns + DF_REST_MIN || d->core->draining)
        df_copy(&d->timed);
    else
        zsd_timed_arm(d->core, &d->timed, (uint32_t)((d->rest_ns - now_ns) / 1000000), df_copy);
}

static struct zsd_df_run *df_run(struct zsd_core *core)
{
    struct zsd_df_run *d = core->scans->df;

    if (d)
        return d;
    d = core->scans->df = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    d->core = core;
    zb_list_init(&d->askers);
    zb_list_init(&d->timed.node);
    d->work.run = df_copy_part;
    return d;
}

void zsd_df_free(struct zsd_core *core)
{
    struct zsd_df_run *d = core->scans->df;

    if (!d)
        return;
    if (d->runs) { /* in WAIT */
        zsd_timed_disarm(&d->timed);
        (void)zb_fail(&d->err, -ENOTCONN, "the daemon is ending");
        df_over(d);
    }
    zsd_survey_done(&d->s);
    free(d);
    core->scans->df = NULL;
}

ZSD_REQUEST(zsd_df, DfRequest)
{
    struct zsd_df_run *d;
    struct df_asker *a;
    struct zb_err err = { 0 };

    if (!req->daemon->core->store) {
        zsd_refuse(req, -ENOENT, "this daemon saves nothing: it has no data directory that stays");
        return;
    }
    d = df_run(req->daemon->core);
    if (d && !d->runs && q->cursor > 0 && d->over_ns > 0 && d->err.code == 0 &&
        zb_now_ns() - d->over_ns < DF_KEPT_NS) {
        df_answer(d, req, q->cursor);
        return;
    }
    if (zsd_limit_take(&req->conn->quota, ZSD_LIMIT_SCANS, 1, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    a = d ? calloc(1, sizeof(*a)) : NULL;
    if (!a) {
        zsd_limit_give(&req->conn->quota, ZSD_LIMIT_SCANS, 1);
        zsd_refuse(req, -ENOMEM, "df");
        return;
    }
    a->req = req;
    a->cursor = q->cursor;
    zb_list_init(&a->node);
    zb_list_push_back(&d->askers, &a->node);
    if (!d->runs)
        df_begin(d);
}
