/*
 * wake.c - wakes the requests of a job when something that they wait for may have changed.
 *
 * These may wait: fills, for room in the ring; ranks that attach, for the end of a step or a
 * commit; ranks that are ready; a step that drains; and opens, for the last writes or the step of
 * ranks that left. Each checks whether it can continue, and does nothing if it cannot. So one event
 * serves all of them.
 */
#include "daemon/op/wake.h"

#include "daemon/op/fetch.h"
#include "daemon/op/opens.h"
#include "daemon/op/ready.h"
#include "daemon/op/step.h"

/* Answers ranks that attached during the step or commit. */
static void wake_opens(struct zsd_job *job)
{
    if (job->state == ZSD_STEPPING || job->commit)
        return;
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->open_req && m->staging.fd >= 0)
            zsd_open_answer(m);
    }
}

void zsd_wake_on_work(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_job, wake);

    if (job->state == ZSD_ENDED)
        return;
    zsd_fill_resume(job);
    wake_opens(job);
    zsd_ready_resume(job);
    zsd_step_resume(job);
    if (!zb_list_empty(&job->core->ops->opens) || !zb_list_empty(&job->core->ops->reader_waits))
        zsd_room_changed(job->core);
}
