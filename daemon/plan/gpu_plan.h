/*
 * gpu_plan.h - which optimizer state lives on the GPU: plan/gpu_plan.c has the model.
 */
#ifndef ZSD_GPU_PLAN_H
#define ZSD_GPU_PLAN_H

#include "daemon/job/shard.h"
#include "daemon/plan/gpu_params.h"

/* What of its state lives on the GPU: plan/gpu_plan.c. */
struct zsd_job_gpu {
    struct zb_gpu_run *runs;  /* all of its state, from the end; NULL: it was never planned */
    struct zk_gpu_mem **mems; /* [nruns] */
    uint32_t nruns;
    uint32_t to, made;   /* the first so many: wanted, and allocated */
    uint64_t held_bytes; /* booked, with what is being given back */
    bool busy;           /* a task makes memory, or gives it back */
    bool refused;        /* there was no memory, or no places below: it was logged */
    bool pinned;         /* its host memory is, as far as the driver did that */
};

/** The core begins: the tier's account. */
void zsd_gpu_begin(struct zsd_core *core);
/** Where a page of state is on the device; its run is allocated. */
void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page);
/** The job has ended and nothing uses its state: the memory goes back (any thread), */
void zsd_gpu_drop(struct zsd_job *job);
/** and then its account (loop). */
void zsd_gpu_unplace(struct zsd_job *job);
/** The tier's budget comes down to what was set, as far as memory has come back. */
void zsd_gpu_settle(struct zsd_core *core);
/** Sets it, as zsd_host_set(); -EINVAL: there is no such tier, -EIO: the device has failed. */
int zsd_gpu_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Bytes of state that shall leave the GPU, and have not. */
uint64_t zsd_gpu_leaving(const struct zsd_job *job);
/** Its gradients are pinned as they are made: copies may use them at once. */
static inline bool zsd_gpu_pins_early(const struct zsd_job *job)
{
    return job->params->bytes > 0 && job->early_room;
}
/** They are, and its parameters in host memory; err, with a code: not all of it. */
void zsd_gpu_pinned(struct zsd_job *job, const struct zb_err *err);
/** The device failed, as a task found: soon, jobs with bytes on it end. */
void zsd_gpu_fail(struct zsd_core *core, const struct zb_err *err);
/** Bytes as the device gives them. */
uint64_t zsd_gpu_units(const struct zsd_core *core, uint64_t bytes);

/** Divides the GPU tier, and lets every job do what it can at once. */
void zsd_gpu_plan(struct zsd_core *core);
/** All pages of this shard are stepped: from this page on its state is on the GPU. */
uint32_t zsd_gpu_stepped(const struct zsd_shard *s);
/** A step is over. */
void zsd_gpu_step_over(struct zsd_job *job);

#endif
