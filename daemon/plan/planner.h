/*
 * planner.h - what the plans of all jobs share: the queue for memory, and the moves that the tiers
 * still have to make for it.
 *
 * Loop thread only.
 */
#ifndef ZSD_PLANNER_H
#define ZSD_PLANNER_H

#include "daemon/run/turn.h"

struct zsd_planner {
    struct zsd_core *core;
    uint32_t closing;           /* tasks that free memory */
    struct zsd_work replan;     /* plan/replan.c */
    struct zb_list wants;       /* struct zsd_want, in the order in which they came */
    struct zsd_work gpu_failed; /* plan/gpu_plan.c */
    struct zb_list strands;     /* GPU memory that was freed, but is still mapped: gpu_params.c */
    struct zsd_timed strands_timed;
    bool strands_looked_at;
    uint64_t params_tag; /* of the newest job with parameters on the GPU */
};

/** plan/replan.c: the deferred division. */
void zsd_replan_on_work(struct zsd_work *work);

static inline void zsd_planner_init(struct zsd_planner *planner, struct zsd_core *core)
{
    planner->core = core;
    planner->replan.run = zsd_replan_on_work;
    zb_list_init(&planner->wants);
    zb_list_init(&planner->strands);
}

/** Call when free memory, or the need for it, has changed: divides the memory for state again,
 * soon.
 */
static inline void zsd_replan(struct zsd_core *core)
{
    zsd_defer(core, &core->planner->replan);
}

#endif
