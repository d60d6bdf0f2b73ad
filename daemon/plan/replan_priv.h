/*
 * replan_priv.h - what the two halves of re-planning share: plan/replan.c (host memory and NVMe) and
 * plan/gpu_plan.c (the GPU).
 *
 * Loop thread only.
 */
#ifndef ZSD_REPLAN_PRIV_H
#define ZSD_REPLAN_PRIV_H

#include "daemon/store/store.h"

#define ZSD_REPLAN_LEAVE_BE 8u /* who has less than one part of so many too much keeps it */

/** A job in a division: bytes that it can use, and that it gets. */
struct zsd_part {
    struct zsd_job *job;
    uint64_t most, target;
    bool sated;
};

/** Divides by shares: whoever can use no more than its part leaves the rest to the others. */
void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left);
/** It has not stepped for so long that others may have what it could have; or it never has. */
bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns);

/** Of the first n pages of a shard's state. */
uint64_t zsd_state_bytes(const struct zsd_shard *s, uint32_t n);
static inline bool zsd_state_is(const struct zsd_shard *s)
{
    return s->planes[ZB_STATE].block_bytes > 0;
}
/** Promises what is needed for what is planned now. What needs less (`more` is false) never fails,
 * and a change of the saved job that is in progress ends by doing that itself. */
int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err);

/* ---- plan/gpu_plan.c */

/** Divides the GPU tier, and lets every job do what it can at once. */
void zsd_gpu_plan(struct zsd_core *core);
/** All pages of this shard are stepped: from this page on its state is on the GPU. */
uint32_t zsd_gpu_stepped(const struct zsd_shard *s);
/** A step is over. */
void zsd_gpu_step_over(struct zsd_job *job);

#endif
