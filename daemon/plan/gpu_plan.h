/*
 * gpu_plan.h - which optimizer state is on the GPU: plan/gpu_plan.c has the model.
 */
#ifndef ZSD_GPU_PLAN_H
#define ZSD_GPU_PLAN_H

#include "daemon/plan/gpu_params.h"
#include "daemon/plan/gpu_runs.h"

/** Sets the budget of a tier, as zsd_host_set(); also -EIO: the device has failed. */
int zsd_gpu_set(struct zsd_core *core, uint32_t g, uint64_t bytes, struct zb_err *err);
/** The same for the tiers of all GPUs, or of none, with the budgets of a configuration; also -EINVAL:
 * there is no such tier, or they are of another number of GPUs. With several GPUs, those that have
 * failed are left out. */
int zsd_gpus_set(struct zsd_core *core, const struct zsd_config *config, struct zb_err *err);
/** Whether the job's gradients are pinned when they are allocated, so that copies may use them at
 * once. */
static inline bool zsd_gpu_pins_early(const struct zsd_job *job)
{
    return job->params->bytes > 0 && job->early_room;
}
/** Call when the job's gradients, and its parameters in host memory, are pinned for a GPU. err with a
 * code: not all of them. */
void zsd_gpu_pinned(struct zsd_job *job, uint32_t g, const struct zb_err *err);
/** Call when a task found that a device failed: ends jobs with bytes on it. */
void zsd_gpu_fail(struct zsd_core *core, uint32_t g, const struct zb_err *err);

/** Divides the GPU tiers, and applies to every job what is possible at once. */
void zsd_gpu_plan(struct zsd_core *core);
/** Call when all pages of this shard are stepped. Returns the first page whose state is on the
 * GPU. */
uint32_t zsd_gpu_stepped(const struct zsd_shard *s);
/** Call at the end of a step. */
void zsd_gpu_step_over(struct zsd_job *job);

#endif
