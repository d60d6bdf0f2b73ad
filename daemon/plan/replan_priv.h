/*
 * replan_priv.h - memory of a job's state: plan/replan.c decides, plan/replan_memory.c allocates
 * and frees.
 */
#ifndef ZSD_REPLAN_PRIV_H
#define ZSD_REPLAN_PRIV_H

#include "daemon/plan/replan.h"

/* Number of the shard's pages whose state may be in host memory. The others are on the GPU, or will
 * be after the next step; or their gradients are not held. */
static inline uint32_t zsd_state_cap(const struct zsd_shard *s)
{
    uint32_t cap = zsd_state_moves(s->job) ? s->gpu_next : s->npages;

    return s->job->grad_ring && s->planes[ZB_GRAD].resident < cap ? s->planes[ZB_GRAD].resident
                                                                  : cap;
}

/* Number of the shard's booked pages, without those of the GPU. */
static inline uint32_t zsd_state_most(const struct zsd_shard *s)
{
    return (uint32_t)zb_min_u64(s->state_booked, zsd_state_cap(s));
}

/** Sets `next` of each shard to the wanted count, as far as memory is allocated (R2). */
void zsd_replan_take(struct zsd_job *job);
/** Frees memory that is neither wanted nor used. */
void zsd_replan_release(struct zsd_job *job);
/** For a job without ranks: frees memory that no step has used yet. */
void zsd_replan_unused(struct zsd_job *job);
/** Books and allocates at most `most` more bytes. */
void zsd_replan_grow(struct zsd_job *job, uint64_t most);

#endif
