/*
 * restart.c - a planned restart: who is told and waited for, and the request that asks for one.
 */
#include "daemon/op/restart.h"

#include <errno.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/op/requests.h"
#include "daemon/os/notify.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define RESTART_ROWS 200u

/* Whether the ranks of the job are told, and waited for. */
static bool restart_of(const struct zsd_job *job)
{
    unsigned attached = 0;

    if (!job->durable || (job->state != ZSD_READY && job->state != ZSD_STEPPING))
        return false;
    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->returns)
            return false;
        attached += m->conn != NULL;
    }
    return attached > 0;
}

/* What a restart means for the job; *ret_why: the reason, or "". */
static const char *restart_fate(const struct zsd_job *job, const char **ret_why)
{
    *ret_why = "";
    if (restart_of(job))
        return "continues";
    if (job->state != ZSD_READY && job->state != ZSD_STEPPING)
        *ret_why = "its ranks are still starting";
    else if (!job->durable)
        *ret_why = "it is not durable";
    if (**ret_why)
        return "ends";
    *ret_why = zsd_job_attached(job) == 0 ? "it has no ranks"
                                          : "its ranks do not wait for the next daemon";
    return "saved";
}

void zsd_restart_tell(struct zsd_core *core)
{
    const char *fate, *reason;
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ECONNRESET, "the daemon is about to restart");
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (restart_of(job)) {
            zsd_job_tell(job, ZP_EVENT_RESTART, 0, &why);
        } else if (job->state != ZSD_ENDED && zsd_job_attached(job) > 0) {
            fate = restart_fate(job, &reason);
            zb_log(ZB_LOG_WARN, "run-ends", "job=\"%s\" uid=%u fate=%s why=\"%s\"", job->name,
                   (unsigned)job->uid, fate, reason);
        }
    }
}

const struct zsd_job *zsd_restart_waits(const struct zsd_core *core)
{
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (restart_of(job))
            return job;
    }
    return NULL;
}

/* ---- by request */

static void restart_row(const struct zsd_job *job, Zp__RestartRow *row)
{
    const char *why;

    zp__restart_row__init(row);
    row->job = zp_str(job->name);
    row->uid = job->uid;
    row->attached = zsd_job_attached(job);
    row->fate = zp_str(restart_fate(job, &why));
    row->why = zp_str(why);
}

/* The job with the smallest number, from `number` on, that ranks may still use; NULL: none. */
static const struct zsd_job *restart_next(const struct zsd_core *core, uint64_t number)
{
    const struct zsd_job *found = NULL;

    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state != ZSD_ENDED && job->number >= number &&
            (!found || job->number < found->number))
            found = job;
    }
    return found;
}

/* Asks the loop for the end. False: it is refused. */
static bool restart_start(struct zsd_req *req)
{
    struct zsd *daemon = req->daemon;

    if (!daemon->restart && daemon->core->leaving) {
        zsd_refuse(req, -EBUSY, "the daemon is already ending");
        return false;
    }
    if (!zsd_notify_managed() || daemon->config.embedded) { /* it may inherit the variable */
        zsd_refuse(req, -EBUSY,
                   "no service manager would start this daemon again: end process %ld with "
                   "SIGTERM, and start it",
                   (long)getpid());
        return false;
    }
    if (!daemon->restart)
        zb_log(ZB_LOG_INFO, "restart", "by=%u", (unsigned)req->conn->uid);
    daemon->restart = true;
    return true;
}

ZSD_REQUEST(zsd_restart, RestartRequest)
{
    Zp__RestartRow rows[RESTART_ROWS], *list[RESTART_ROWS];
    Zp__RestartReply reply = ZP__RESTART_REPLY__INIT;
    const struct zsd_job *job;

    if (!zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may restart the daemon");
        return;
    }
    if (q->start && !restart_start(req))
        return;
    for (uint64_t at = q->cursor; (job = restart_next(req->daemon->core, at)) != NULL;
         at = job->number + 1) {
        if (reply.n_rows == RESTART_ROWS) {
            reply.cursor = job->number;
            break;
        }
        list[reply.n_rows] = &rows[reply.n_rows];
        restart_row(job, &rows[reply.n_rows++]);
    }
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}
