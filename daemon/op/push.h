/*
 * push.h - incoming gradients: op/push.c has the model.
 */
#ifndef ZSD_OP_PUSH_H
#define ZSD_OP_PUSH_H

#include "daemon/job/shard.h"

void zsd_push_cancel(struct zsd_job *job, const struct zb_err *why);
/** Begins the pushes of a job that no longer have to wait. */
void zsd_pushes_resume(struct zsd_job *job);
/** Pushes that wait for a ring of gradients fail, because their step is dropped. */
void zsd_pushes_drop(struct zsd_job *job);
void zsd_push_resume(struct zsd_shard *s); /* call when its gradient is no longer in use */

#endif
