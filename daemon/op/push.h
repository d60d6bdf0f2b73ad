/*
 * push.h - gradients in: op/push.c has the model.
 */
#ifndef ZSD_OP_PUSH_H
#define ZSD_OP_PUSH_H

#include "daemon/job/shard.h"

void zsd_push_cancel(struct zsd_job *job, const struct zb_err *why);
void zsd_push_resume(struct zsd_shard *s); /* its gradient is not read any more */

/** Nothing of a gradient has come for the next step, or is on its way. */
static inline bool zsd_grad_absent(const struct zsd_shard *s)
{
    return s->grad_next == 0 && s->micro == 0 && s->grad_rc == 0 && s->pushing == 0 &&
           zb_list_empty(&s->push_waiters);
}

#endif
