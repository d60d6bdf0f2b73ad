/*
 * op/abandon.c - drops the gradients of a step, which then begins anew.
 *
 * Like a skip, but nothing is counted: `iterations`, notes and commits do not change. Early steps
 * (op/early.c) are undone. One rank asks for all ranks of the node. They have agreed on it, so none
 * of them pushes meanwhile.
 */
#include <errno.h>

#include "daemon/op/early.h"
#include "daemon/op/member.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "proto/shard.pb-c.h"

static int abandon_check(const struct zsd_job *job, uint64_t step, struct zb_err *err)
{
    if (job->state != ZSD_READY || job->step->asked)
        return zb_fail(err, -EBUSY,
                       "job '%s' is not ready, or is stepping: nothing can be abandoned",
                       job->name);
    if (step != job->iterations + 1)
        return zb_fail(err, -EINVAL, "step %llu of job '%s' is abandoned: step %llu comes next",
                       (unsigned long long)step, job->name,
                       (unsigned long long)job->iterations + 1);
    if (job->grads_busy > 0 || !zb_list_empty(&job->pushes))
        return zb_fail(err, -EBUSY,
                       "step %llu of job '%s' cannot be abandoned: a push or a read of a gradient "
                       "is in progress",
                       (unsigned long long)step, job->name);
    return 0;
}

ZSD_REQUEST(zsd_abandon, Abandon)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };

    if (!m)
        return;
    if (abandon_check(m->job, q->step, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    zsd_early_drop(m->job);
    zsd_grads_reset(m->job);
    zsd_reply(req, NULL, -1);
}
