/*
 * late.h - which optimizer's layout a unit has: that of its tensors, or one that is chosen only after memory was placed;
 * and what orthogonalizes the matrices of Muon.
 *
 * Pure functions; any thread.
 */
#ifndef ZB_LATE_H
#define ZB_LATE_H

#include "base/plan.h"

/** What orthogonalizes the matrices of a job with Muon: a part of the job's identity, because its bits differ
 * (docs/decisions/0029-muon-on-the-gpu.md). The numbers are stored. */
enum zb_muon_engine {
    ZB_MUON_CPU,      /* compute threads of the daemon, in fp32 */
    ZB_MUON_GPU,      /* a GPU of the daemon, in fp32 */
    ZB_MUON_GPU_BF16, /* the same with factors rounded to bf16 */
    ZB_MUON_ENGINE_END
};

/** "cpu", "gpu", "gpu-bf16"; NULL for anything else. */
const char *zb_muon_engine_name(enum zb_muon_engine engine);

/** The optimizer whose layout a unit has, if Muon steps `muon` of its `trained` tensors. In a job with Muon that
 * is Muon's, which has one moment, if it steps all of them; else AdamW's, also for its matrices. */
static inline enum zb_optimizer zb_unit_optimizer(enum zb_optimizer job, uint64_t trained,
                                                  uint64_t muon)
{
    return job == ZB_MUON && muon < trained ? ZB_ADAMW : job;
}

/** Whether state of this layout, not stepped yet, can be stepped by another optimizer without
 * moving: one with as many moments, or, if they are fp32, with fewer. Then the unused moments
 * stay zero, and only layout->optimizer changes. 0: it can; -EINVAL: unknown optimizer; -ENOTSUP:
 * it cannot. */
int zb_layout_steps_with(const struct zb_layout *layout, enum zb_optimizer optimizer,
                         enum zb_moments moments, struct zb_err *err);

/** The optimizer that such state was placed for, as far as its bytes depend on it: layout->optimizer, or one
 * with as many moments as the state has. */
enum zb_optimizer zb_layout_placed_for(const struct zb_layout *layout);

#endif
