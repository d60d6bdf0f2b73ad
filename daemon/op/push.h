/*
 * push.h - incoming gradients: op/push.c has the model.
 */
#ifndef ZSD_OP_PUSH_H
#define ZSD_OP_PUSH_H

#include "daemon/job/shard.h"

void zsd_push_cancel(struct zsd_job *job, const struct zb_err *why);
void zsd_push_resume(struct zsd_shard *s); /* call when its gradient is no longer in use */

#endif
