/*
 * leave.c - ranks leave: by request (job-close, job-destroy), with their connection, or with the
 * daemon. end.c ends their jobs.
 */
#include "daemon/op/leave.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/op/classes.h"
#include "daemon/op/end.h"
#include "daemon/op/new.h"
#include "daemon/op/opens.h"
#include "daemon/op/reader.h"
#include "daemon/op/requests.h"
#include "daemon/op/snapshot.h"
#include "daemon/plan/planner.h"
#include "daemon/store/store.h"
#include "proto/shard.pb-c.h"

/* ---- with the daemon */

/* The reason that ranks get is the end of the daemon, so that none takes a peer for dead. */
static void job_end_with_daemon(struct zsd_job *job)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zsd_job_end(job, &why);
}

void zsd_jobs_end_all(struct zsd_core *core)
{
    struct zb_err why = { 0 };

    zsd_opens_refuse(core);
    zsd_reader_waits_refuse(core);
    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    if (core->store)
        zb_list_each(pos, &core->store->saved)
            zsd_snap_cancel(zb_container_of(pos, struct zsd_saved, node), &why);
    zb_list_each(pos, &core->jobs->list)
    {
        job_end_with_daemon(zb_container_of(pos, struct zsd_job, node));
    }
}

void zsd_jobs_forget_all(struct zsd_core *core)
{
    while (!zb_list_empty(&core->jobs->list)) {
        struct zsd_job *job = zb_container_of(core->jobs->list.next, struct zsd_job, node);

        assert(job->inflight == 0 && !job->placed);
        zb_list_each(pos, &job->members)
        {
            struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

            if (m->conn)
                m->conn->member = NULL;
            zb_list_remove(&m->node);
            zsd_arena_close(&m->staging);
            zsd_unit_free(m->defining);
            zsd_note_done(&m->note);
            zsd_note_done(&m->job_note);
            zsd_classes_put(m->classes);
            free(m);
        }
        zsd_job_free(job);
    }
}

/* ---- with the connection */

bool zsd_core_others(const struct zsd *daemon, const struct zsd_conn *conn)
{
    const struct zsd_member *member = conn ? conn->member : NULL;

    return daemon->core->job_holds > (member ? member->job->inflight : 0);
}

void zsd_core_gone(struct zsd_conn *conn)
{
    struct zsd_member *m = conn->member;
    struct zsd_job *job;
    struct zb_err why = { 0 };

    zsd_opens_gone(conn);
    zsd_reader_gone(conn);
    if (!m)
        return;
    job = m->job;
    (void)zb_fail(&why, -EOWNERDEAD, "rank %u of job '%s' (process %d) died or disconnected",
                  m->rank, job->name, (int)conn->pid);
    zsd_job_hold(job);
    if (job->core->draining) { /* the rank left because the daemon ends */
        why = (struct zb_err){ 0 };
        (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
        if (!job->durable || job->state < ZSD_READY) /* else it is saved first */
            zsd_job_end(job, &why);
    } else if (job->state != ZSD_ENDED) {
        uint32_t rank = m->rank;

        if (!job->keep || job->state < ZSD_READY) {
            zsd_job_quit(job, ZP_EVENT_PEER_LOST, rank, &why);
        } else if (!m->open_req) { /* kept: the other ranks are told, the state stays */
            zb_log(ZB_LOG_WARN, "rank-lost", "job=\"%s\" uid=%u rank=%u", job->name,
                   (unsigned)job->uid, rank);
            zsd_job_tell(job, ZP_EVENT_PEER_LOST, rank, &why);
        }
    }
    if (conn->member) /* else it was detached when the job ended */
        zsd_member_detach(m, &why);
    zsd_job_unhold(job);
}

/* ---- by request */

ZSD_REQUEST(zsd_job_close, JobRef)
{
    struct zsd_member *m = req->conn->member;
    struct zb_err why = { 0 };
    struct zsd_job *job;
    bool last, stays;

    if (!m || m->job->number != q->job) {
        zsd_refuse(req, -ENOENT, "job %llu is not the one that this connection has opened",
                   (unsigned long long)q->job);
        return;
    }
    job = m->job;
    if (m->open_req) {
        zsd_refuse(req, -EBUSY, "rank %u of job '%s' is still being opened", m->rank, job->name);
        return;
    }
    zsd_job_hold(job);
    last = zsd_job_attached(job) == 1;
    stays = job->keep || (job->image && job->core->leaving); /* until it is saved */
    if (!stays && job->state != ZSD_DEFINING) /* while DEFINING, the rank may open it again */
        job->left++;
    (void)zb_fail(&why, -ECANCELED, "rank %u left job '%s'", m->rank, job->name);
    if (last && job->state != ZSD_ENDED && (!stays || job->state == ZSD_DEFINING))
        zsd_job_end(job, &why);
    zsd_member_detach(m, &why);
    zsd_reply(req, NULL, -1);
    zsd_job_unhold(job);
}

ZSD_REQUEST(zsd_job_share, JobShare)
{
    struct zsd_named named;
    struct zb_err err = { 0 };
    struct zsd_job *job;

    if (zsd_job_named(req, q->owner, q->name, &named, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    job = zsd_job_by_name(req->daemon->core, named.uid, q->name);
    if (!job || !zsd_may(req->conn, job->uid)) { /* the same for another user's job */
        zsd_refuse(req, -ENOENT, "there is no job '%s' in memory", q->name);
        return;
    }
    if (q->share > ZSD_SHARE_MAX) {
        zsd_refuse(req, -EINVAL, "a share of %u: must be 1 to %u", q->share, ZSD_SHARE_MAX);
        return;
    }
    job->payer.share = q->share == 0 ? ZSD_SHARE_DEFAULT : q->share;
    zb_log(ZB_LOG_INFO, "job-share", "job=\"%s\" uid=%u share=%u by=%u", job->name,
           (unsigned)job->uid, job->payer.share, (unsigned)req->conn->uid);
    zsd_replan(job->core);
    zsd_reply(req, NULL, -1);
}

ZSD_REQUEST(zsd_job_destroy, JobName)
{
    struct zsd_core *core = req->daemon->core;
    struct zb_err why = { 0 };
    struct zsd_saved *saved;
    struct zsd_named named;
    struct zsd_job *job;

    if (zsd_job_named(req, q->owner, q->name, &named, &why) < 0) {
        zsd_reply_err(req, &why);
        return;
    }
    job = zsd_job_by_name(core, named.uid, q->name);
    saved = zsd_saved_by_name(core, named.uid, q->name);
    if (job && !saved && job->saved && job->saved->gone)
        job = NULL; /* destroyed, and about to end */
    if ((!job && !saved) || !zsd_may(req->conn, saved ? saved->uid : job->uid)) {
        zsd_refuse(req, -ENOENT, "there is no job '%s'",
                   q->name); /* the same for another user's job */
        return;
    }
    if (!saved && job->saved && job->commit) /* its first commit may still succeed */
        saved = job->saved;
    if (saved && (!job || zsd_job_attached(job) == 0)) {
        zsd_saved_destroy(req, saved);
        return;
    }
    if (zsd_job_attached(job) > 0) {
        zsd_refuse(req, -EBUSY, "job '%s' has %u ranks attached", q->name, zsd_job_attached(job));
        return;
    }
    (void)zb_fail(&why, -ECANCELED, "job '%s' was destroyed by user %u", q->name,
                  (unsigned)req->conn->uid);
    zsd_job_end(job, &why);
    zsd_reply(req, NULL, -1);
}
