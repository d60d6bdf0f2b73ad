/*
 * opens.c - job-opens that wait, each with its own copy of the request; and the answer to a rank
 * that has opened its job. open.c says why they wait, and tries them again.
 */
#include "daemon/op/opens.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/new.h"
#include "daemon/plan/replan.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

static void open_expire(struct zsd_timed *timed)
{
    struct zsd_open_wait *w = zb_container_of(timed, struct zsd_open_wait, timed);

    switch (w->cause) {
    case ZSD_OPEN_JOB:
        zsd_refuse(
            w->req, -ETIMEDOUT,
            "rank %u waits for job '%s', whose previous ranks, commit or removal have not finished",
            w->q.rank, w->name);
        break;
    case ZSD_OPEN_ROOM:
        zsd_refuse(w->req, -ETIMEDOUT,
                   "rank %u waits for room that other jobs have to give back: %s", w->q.rank,
                   w->lacks.text);
        break;
    case ZSD_OPEN_MEMORY:
        zsd_refuse(w->req, -ETIMEDOUT, "job '%s' waits for %s of host memory for staging, which %s",
                   w->name, zb_size_text(w->staging_bytes).s,
                   w->want.bytes > 0 ? "other jobs have to give back with their next steps"
                                     : "readers of saved jobs have");
        break;
    }
    zsd_open_wait_free(w->conn->daemon->core, w);
}

struct zsd_open_wait *zsd_open_park(struct zsd_core *core, struct zsd_req *req,
                                    const Zp__JobOpen *q, enum zsd_open_cause cause,
                                    uint64_t deadline_ns)
{
    struct zsd_open_wait *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->cause = cause;
    w->req = req;
    w->conn = req->conn;
    w->q = *q;
    (void)snprintf(w->name, sizeof(w->name), "%s", q->name);
    w->q.name = w->name;
    (void)snprintf(w->device, sizeof(w->device), "%s", q->device);
    w->q.device = w->device;
    zb_list_push_back(&core->ops->opens, &w->node);
    if (deadline_ns > 0) /* it has waited before */
        zsd_timed_arm_at(core, &w->timed, deadline_ns, open_expire);
    else
        zsd_timed_arm(core, &w->timed, 0, open_expire);
    return w;
}

void zsd_open_wait_free(struct zsd_core *core, struct zsd_open_wait *w)
{
    zb_list_remove(&w->node);
    zsd_timed_disarm(&w->timed);
    zsd_want_end(core, &w->want);
    free(w);
}

bool zsd_open_want(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q, uint64_t lacks,
                   uint64_t deadline_ns)
{
    struct zsd_open_wait *w = zsd_open_park(core, req, q, ZSD_OPEN_MEMORY, deadline_ns);

    if (!w)
        return false;
    w->staging_bytes = zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN);
    if (lacks > 0 && !zsd_want_begin(core, &w->want, lacks)) {
        zsd_open_wait_free(core, w);
        return false;
    }
    return true;
}

bool zsd_open_parked(const struct zsd_conn *conn)
{
    zb_list_each(pos, &conn->daemon->core->ops->opens)
    {
        if (zb_container_of(pos, struct zsd_open_wait, node)->conn == conn)
            return true;
    }
    return false;
}

void zsd_opens_gone(struct zsd_conn *conn)
{
    zb_list_each(pos, &conn->daemon->core->ops->opens)
    {
        struct zsd_open_wait *w = zb_container_of(pos, struct zsd_open_wait, node);

        if (w->conn != conn)
            continue;
        zsd_refuse(w->req, -ENOTCONN, "the client has gone");
        zsd_open_wait_free(conn->daemon->core, w);
    }
}

void zsd_opens_refuse(struct zsd_core *core)
{
    for (struct zb_list *node; (node = zb_list_pop_front(&core->ops->opens)) != NULL;) {
        struct zsd_open_wait *w = zb_container_of(node, struct zsd_open_wait, node);

        zsd_refuse(w->req, -ENOTCONN, "the daemon is ending");
        zsd_open_wait_free(core, w);
    }
}

void zsd_opens_fail(struct zsd_job *job, const struct zb_err *err)
{
    zb_list_each(pos, &job->core->ops->opens)
    {
        struct zsd_open_wait *w = zb_container_of(pos, struct zsd_open_wait, node);

        if (w->conn->uid != job->uid || strcmp(w->name, job->name) != 0 ||
            (w->q.world == job->world && zsd_open_sees(job, &w->q)))
            continue; /* it can attach to the job as it is */
        zsd_reply_err(w->req, err);
        zsd_open_wait_free(job->core, w);
    }
}

/* ---- the answer */

static void open_point(Zp__Point *points, Zp__Point **list, size_t *n, enum zp_point_kind kind,
                       uint64_t iterations, uint64_t applied)
{
    zp__point__init(&points[*n]);
    points[*n].kind = kind;
    points[*n].iterations = iterations;
    points[*n].applied = applied;
    list[*n] = &points[*n];
    (*n)++;
}

void zsd_open_answer(struct zsd_member *m)
{
    struct zsd_job *job = m->job;
    Zp__JobOpenReply reply = ZP__JOB_OPEN_REPLY__INIT;
    const struct zsd_saved *saved = job->saved ? job->saved : job->image;
    Zp__Point points[3], *list[3];
    struct zsd_req *req = m->open_req;

    m->open_req = NULL;
    if (job->state == ZSD_READY)
        job->regained = true;
    reply.job = job->number;
    reply.iterations = job->iterations;
    reply.applied = job->applied;
    reply.staging_bytes = m->staging.bytes;
    reply.epoch = job->epoch;
    reply.world = job->world;
    if (job->state >= ZSD_READY && zsd_job_live(job))
        open_point(points, list, &reply.n_points, ZP_POINT_MEMORY, job->iterations, job->applied);
    if (saved && saved->prepared)
        open_point(points, list, &reply.n_points, ZP_POINT_PREPARED, saved->prepared->iterations,
                   saved->prepared->applied);
    if (saved && saved->committed) {
        open_point(points, list, &reply.n_points, ZP_POINT_COMMITTED, saved->committed->iterations,
                   saved->committed->applied);
        if (job->again)
            reply.world = saved->committed->world;
    }
    reply.points = list;
    zsd_reply(req, &reply.base, m->staging.fd);
}
