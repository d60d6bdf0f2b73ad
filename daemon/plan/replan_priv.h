/*
 * replan_priv.h - memory of a job's state: decided by plan/replan.c, done by plan/replan_memory.c.
 */
#ifndef ZSD_REPLAN_PRIV_H
#define ZSD_REPLAN_PRIV_H

#include "daemon/plan/replan.h"

/* Number of its pages that may be in host memory: the others are on the GPU, or will be. */
static inline uint32_t zsd_state_cap(const struct zsd_shard *s)
{
    return zsd_state_moves(s->job) ? s->gpu_next : s->npages;
}

/* Number of its booked pages, without those of the GPU. */
static inline uint32_t zsd_state_most(const struct zsd_shard *s)
{
    return (uint32_t)zb_min_u64(s->state_booked, zsd_state_cap(s));
}

/** Sets the places after the next step to the wanted ones, as far as memory is allocated (R2). */
void zsd_replan_take(struct zsd_job *job);
/** Frees memory that is no longer wanted or used. */
void zsd_replan_release(struct zsd_job *job);
/** Frees memory that no step has used yet, when the job has no ranks. */
void zsd_replan_unused(struct zsd_job *job);
/** Takes at most `most` more bytes. */
void zsd_replan_grow(struct zsd_job *job, uint64_t most);

#endif
