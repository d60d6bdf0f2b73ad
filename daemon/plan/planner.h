/*
 * planner.h - what the plans of all jobs share: who waits for memory, and what the tiers still have
 * to do for them.
 *
 * Loop thread only.
 */
#ifndef ZSD_PLANNER_H
#define ZSD_PLANNER_H

#include "daemon/run/turn.h"

struct zsd_planner {
    struct zsd_core *core;
    uint32_t closing;           /* tasks that give memory back */
    struct zsd_work replan;     /* plan/replan.c */
    struct zb_list wants;       /* struct zsd_want, in the order in which they came */
    struct zsd_work gpu_failed; /* plan/gpu_plan.c */
    struct zb_list strands;     /* GPU memory given back, and mapped still: plan/gpu_params.c */
    struct zsd_timed strands_timed;
    bool strands_looked_at;
    uint64_t params_tag; /* of the newest job with parameters on the GPU */
};

static inline void zsd_planner_init(struct zsd_planner *planner, struct zsd_core *core)
{
    planner->core = core;
    zb_list_init(&planner->wants);
    zb_list_init(&planner->strands);
}

#endif
