/*
 * gpu_plan.h - which optimizer state is on the GPU: plan/gpu_plan.c has the model.
 */
#ifndef ZSD_GPU_PLAN_H
#define ZSD_GPU_PLAN_H

#include "daemon/job/shard.h"
#include "daemon/plan/gpu_params.h"

/* The part of a job's state on the GPU: plan/gpu_plan.c. */
struct zsd_job_gpu {
    struct zb_gpu_run *runs;  /* all of its state, from the end; NULL: never planned */
    struct zk_gpu_mem **mems; /* [nruns] */
    uint32_t nruns;
    uint32_t to, made;   /* number of runs, from the first: wanted, and allocated */
    uint64_t held_bytes; /* booked, including memory that is being freed */
    bool busy;           /* a task allocates or frees memory */
    bool refused;        /* there was no memory, or no place in a lower tier, and that was logged */
    bool pinned;         /* its host memory is pinned, as far as the driver allowed it */
};

/** At the start of the core: sets up the tier's account. */
void zsd_gpu_begin(struct zsd_core *core);
/** The address of a page of state on the device. Its run must be allocated. */
void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page);
/** Frees the memory, after the job has ended and nothing uses its state. Any thread. */
void zsd_gpu_drop(struct zsd_job *job);
/** Returns its bytes to the account, after zsd_gpu_drop(). Loop thread. */
void zsd_gpu_unplace(struct zsd_job *job);
/** Moves the tier's budget to its target. If that is lower, as far as memory was freed. */
void zsd_gpu_settle(struct zsd_core *core);
/** Sets the tier's budget, as zsd_host_set(); also -EINVAL: there is no such tier, -EIO: the device
 * has failed. */
int zsd_gpu_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Bytes of state that still have to leave the GPU. */
uint64_t zsd_gpu_leaving(const struct zsd_job *job);
/** Whether the job's gradients are pinned when they are allocated, so that copies may use them at
 * once. */
static inline bool zsd_gpu_pins_early(const struct zsd_job *job)
{
    return job->params->bytes > 0 && job->early_room;
}
/** Call when the job's gradients, and its parameters in host memory, are pinned. err with a code:
 * not all of them. */
void zsd_gpu_pinned(struct zsd_job *job, const struct zb_err *err);
/** Call when a task found that the device failed: ends jobs with bytes on it. */
void zsd_gpu_fail(struct zsd_core *core, const struct zb_err *err);
/** Rounds bytes up to the allocation unit of the device. */
uint64_t zsd_gpu_units(const struct zsd_core *core, uint64_t bytes);

/** Divides the GPU tier, and applies to every job what is possible at once. */
void zsd_gpu_plan(struct zsd_core *core);
/** Call when all pages of this shard are stepped. Returns the first page whose state is on the
 * GPU. */
uint32_t zsd_gpu_stepped(const struct zsd_shard *s);
/** Call at the end of a step. */
void zsd_gpu_step_over(struct zsd_job *job);

#endif
