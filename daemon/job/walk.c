/*
 * walk.c - see walk.h.
 */
#include "daemon/job/walk.h"

#include "daemon/run/turn.h"

static void walk_on_work(struct zsd_work *work)
{
    struct zsd_walk *walk = zb_container_of(work, struct zsd_walk, work);
    struct zsd_job *job = walk->job;

    if (job->state != ZSD_ENDED && !walk->part(walk)) {
        zsd_defer(job->core, work);
        return;
    }
    if (walk->done)
        walk->done(job, walk->err.code != 0 ? &walk->err : NULL);
    walk->over(walk);
    zsd_job_unhold(job);
}

void zsd_walk_start(struct zsd_walk *walk, struct zsd_job *job)
{
    walk->job = job;
    walk->work.run = walk_on_work;
    zsd_job_hold(job);
    zsd_defer(job->core, &walk->work);
}
