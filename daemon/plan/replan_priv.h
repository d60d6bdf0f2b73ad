/*
 * replan_priv.h - what plan/replan.c decides of the memory of a job's state, and
 * plan/replan_memory.c does.
 */
#ifndef ZSD_REPLAN_PRIV_H
#define ZSD_REPLAN_PRIV_H

#include "daemon/plan/replan.h"

/* Its pages that host memory may have: the others are on the GPU, or will be (plan/gpu_plan.c). */
static inline uint32_t zsd_state_cap(const struct zsd_shard *s)
{
    return zsd_state_moves(s->job) ? s->gpu_next : s->npages;
}

/* All that is booked, but what the GPU has. */
static inline uint32_t zsd_state_most(const struct zsd_shard *s)
{
    return (uint32_t)zb_min_u64(s->state_booked, zsd_state_cap(s));
}

/** What a step leaves where is what is wanted, as far as its memory is there (R2). */
void zsd_replan_take(struct zsd_job *job);
/** What nobody wants or uses any more goes back. */
void zsd_replan_release(struct zsd_job *job);
/** It has no ranks: memory that no step has used yet goes back. */
void zsd_replan_unused(struct zsd_job *job);
/** Takes at most so many bytes more. */
void zsd_replan_grow(struct zsd_job *job, uint64_t most);

#endif
