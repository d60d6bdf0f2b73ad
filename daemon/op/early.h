/*
 * op/early.h - what op/step.c and op/early.c share.
 */
#ifndef ZSD_OP_EARLY_H
#define ZSD_OP_EARLY_H

#include "daemon/job/job.h"
#include "proto/shard.pb-c.h"

/* ---- op/step.c */

/** The scalars of a request, checked: 0 or -EINVAL. */
int zsd_step_scalars(const struct zsd_job *job, double scale, Zp__GroupScalars *const *groups,
                     size_t n, struct zk_params *ret, struct zb_err *err);
/** Makes step.by_group of them; no page operation reads it. */
void zsd_step_prepare(struct zsd_job *job, const struct zk_params *params);
/** So many page operations of a step are in progress at one time. */
uint32_t zsd_step_inflight_max(const struct zsd_core *core);
/** The step runs, and a page that was begun ahead of it is ready now. */
void zsd_step_publish(struct zsd_shard *s, uint32_t page);

/* ---- op/early.c */

/** Checks that a step that is asked for has the values that were said ahead: 0 or -EINVAL. */
int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err);
/** The step that drains need not wait for page operations of ours: there are none, or it goes on
 * with them. */
bool zsd_early_drained(const struct zsd_job *job);
/** The page was begun ahead of this step: it is in s->held, or on its way. */
bool zsd_early_begun(const struct zsd_shard *s, uint32_t page);

#endif
