/*
 * planner.h - shared by the plans of all jobs: requests that wait for memory, pending replanning,
 * and GPU memory that is still mapped.
 *
 * Loop thread only.
 */
#ifndef ZSD_PLANNER_H
#define ZSD_PLANNER_H

#include "daemon/run/turn.h"

struct zsd_planner {
    struct zsd_core *core;
    uint32_t closing;           /* running tasks that free memory */
    struct zsd_work replan;     /* plan/replan.c */
    struct zb_list wants;       /* struct zsd_want, in order of arrival */
    struct zsd_work gpu_failed; /* plan/gpu_plan.c */
    struct zb_list strands;     /* GPU memory that was freed, but is still mapped: gpu_params.c */
    struct zsd_timed strands_timed;
    bool strands_looked_at; /* a task is checking them */
    uint64_t params_tag;    /* of the newest job with parameters on the GPU */
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

/** Call when free memory, or the need for it, has changed: defers a new division of the memory for
 * state. */
static inline void zsd_replan(struct zsd_core *core)
{
    zsd_defer(core, &core->planner->replan);
}

#endif
