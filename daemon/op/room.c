/*
 * room.c - frees the memory of saved jobs without attached ranks when an open (open.c) or a
 * placement (ready.c) finds no room: one at a time, each commits its state and ends.
 */
#include "daemon/op/room.h"

#include <errno.h>

#include "daemon/op/commit.h"
#include "daemon/op/end.h"
#include "daemon/op/opens.h"
#include "daemon/plan/planner.h"

/* Whether memory is being freed already. */
static bool core_closing(const struct zsd_core *core)
{
    if (core->planner->closing > 0)
        return true;
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_ENDED && (job->placed || job->inflight > 0))
            return true;
    }
    return false;
}

/* If the job is saved, it ends, and the next open makes it again. Otherwise it stays as it is, and
 * opens that wait for it fail. */
static void retire_done(struct zsd_job *job, const struct zb_err *err)
{
    struct zb_err why = { 0 };

    job->retiring = false;
    if (!err) {
        (void)zb_fail(&why, -ECANCELED, "job '%s' gives its memory back: it is saved", job->name);
        zsd_job_end(job, &why);
        return;
    }
    job->stays = true;
    zsd_room_changed(job->core);
    zsd_opens_fail(job, err);
}

void zsd_job_retire(struct zsd_job *job)
{
    const struct zsd_version *p = job->saved->prepared;

    job->retiring = true;
    if (zsd_commit_has(job) || (p && p->iterations == job->iterations) || !zsd_job_live(job))
        retire_done(job, NULL);
    else
        zsd_commit_start(job, job->prepares ? ZSD_PREPARE : ZSD_COMMIT, NULL, retire_done);
}

/* Whether no rank is attached, and the state of the job is saved, or can be. */
static bool job_idle(const struct zsd_job *job)
{
    return job->durable && job->state == ZSD_READY && zsd_job_attached(job) == 0 && !job->commit &&
           job->active == 0 && !job->retiring && !job->stays;
}

bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks)
{
    if (core_closing(core))
        return true;
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->retiring)
            return true;
        if (job != lacks && job_idle(job)) {
            zb_log(ZB_LOG_INFO, "job-gives-room", "job=\"%s\" uid=%u iterations=%llu", job->name,
                   (unsigned)job->uid, (unsigned long long)job->iterations);
            zsd_job_retire(job);
            return true;
        }
    }
    return false;
}
