/*
 * restart.c - a planned restart: who is told and waited for, and the request that asks for one.
 */
#include "daemon/op/restart.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/op/image.h"
#include "daemon/op/requests.h"
#include "daemon/os/notify.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define RESTART_ROWS 200u

/* Whether ranks are attached, and all of them attach again; the job is whole. */
static bool restart_comes(const struct zsd_job *job)
{
    unsigned attached = 0;

    if (job->state != ZSD_READY && job->state != ZSD_STEPPING)
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

/* Whether the ranks of the job are told, and waited for. */
static bool restart_of(const struct zsd_job *job)
{
    return (job->durable || job->image) && restart_comes(job);
}

/* What a restart means for the job; why->text: the reason, or "". *left: bytes on NVMe that are free
 * for the images of jobs that are not durable. */
static const char *restart_fate(const struct zsd_job *job, uint64_t *left, struct zb_err *why)
{
    if (restart_of(job))
        return "continues";
    if (!zsd_job_live(job) || (job->state != ZSD_READY && job->state != ZSD_STEPPING))
        (void)zb_fail(why, -EAGAIN, "its ranks are still starting");
    else if (zsd_job_attached(job) == 0)
        (void)zb_fail(why, -ENOENT, "it %shas no ranks",
                      job->durable ? "" : "is not durable, and ");
    else if (!restart_comes(job))
        (void)zb_fail(why, -EINVAL, "%s",
                      job->durable ? "its ranks do not wait for the next daemon"
                                   : "it is not durable, and its ranks do not wait");
    else if (zsd_image_fits(job, left, why) == 0)
        return "continues";
    return job->durable && why->code != -EAGAIN ? "saved" : "ends";
}

/* The job with the smallest number, from `number` on, that ranks may still use; NULL: none. */
static struct zsd_job *restart_next(const struct zsd_core *core, uint64_t number)
{
    struct zsd_job *found = NULL;

    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state != ZSD_ENDED && job->number >= number &&
            (!found || job->number < found->number))
            found = job;
    }
    return found;
}

static void restart_tell_job(struct zsd_job *job)
{
    uint64_t left = UINT64_MAX; /* zsd_image_begin() knows better */
    struct zb_err why = { 0 }, event = { 0 };
    const char *fate = restart_fate(job, &left, &why);

    if (strcmp(fate, "continues") == 0 && !job->durable && !job->image &&
        zsd_image_begin(job, &why) < 0)
        fate = "ends";
    if (restart_of(job)) {
        (void)zb_fail(&event, -ECONNRESET, "the daemon is about to restart");
        zsd_job_tell(job, ZP_EVENT_RESTART, 0, &event);
    } else if (zsd_job_attached(job) > 0) {
        zb_log(ZB_LOG_WARN, "run-ends", "job=\"%s\" uid=%u fate=%s why=\"%s\"", job->name,
               (unsigned)job->uid, fate, why.text);
    }
}

void zsd_restart_tell(struct zsd_core *core)
{
    struct zsd_job *job;

    for (uint64_t at = 0; (job = restart_next(core, at)) != NULL; at = (uint64_t)job->number + 1)
        restart_tell_job(job);
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

/* why: until the reply is sent. */
static void restart_row(const struct zsd_job *job, uint64_t *left, struct zb_err *why,
                        Zp__RestartRow *row)
{
    zp__restart_row__init(row);
    row->job = zp_str(job->name);
    row->uid = job->uid;
    row->attached = zsd_job_attached(job);
    row->fate = zp_str(restart_fate(job, left, why));
    row->why = zp_str(why->text);
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
    struct zb_err whys[RESTART_ROWS] = { 0 };
    uint64_t left = zsd_account_free(&req->daemon->core->tiers.nvme);
    const struct zsd_job *job;

    if (!zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may restart the daemon");
        return;
    }
    if (q->start && !restart_start(req))
        return;
    for (uint64_t at = q->cursor; (job = restart_next(req->daemon->core, at)) != NULL;
         at = (uint64_t)job->number + 1) {
        if (reply.n_rows == RESTART_ROWS) {
            reply.cursor = job->number;
            break;
        }
        list[reply.n_rows] = &rows[reply.n_rows];
        restart_row(job, &left, &whys[reply.n_rows], &rows[reply.n_rows]);
        reply.n_rows++;
    }
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}
