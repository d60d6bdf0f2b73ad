#include "daemon/op/restart.h"

#include <errno.h>

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

void zsd_restart_tell(struct zsd_core *core)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ECONNRESET, "the daemon is about to restart");
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (restart_of(job))
            zsd_job_tell(job, ZP_EVENT_RESTART, 0, &why);
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
