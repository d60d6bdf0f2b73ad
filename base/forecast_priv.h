/*
 * forecast_priv.h - the parts of a forecast.
 */
#ifndef ZB_FORECAST_PRIV_H
#define ZB_FORECAST_PRIV_H

#include "base/forecast.h"

/* ---- forecast_rank.c: a rank's own memory */

/** A rank's own copies, its slices in the daemon, the engine's buffers. *ret_slice: elements of
 * the largest slice of a unit. */
void zb_forecast_rank(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *f,
                      uint64_t *ret_slice);
/** Sets f->fits to false if the rank's GPU is too small. */
void zb_forecast_gpu(const struct zb_node *node, struct zb_forecast *f);

/* ---- forecast_gpu.c: the GPU tiers */

/** Whether parameters are on the GPUs. Sets f->gpu[].params, or f->gpu_why if they were requested. */
bool zb_forecast_gpu_params(const struct zb_run *run, const struct zb_node *node,
                            const struct zb_place_job *job, struct zb_forecast *f);
/** Counts the state that goes to each GPU, all that is there, and what the lower tiers have then.
 * 0 or -ENOMEM. */
int zb_forecast_gpu_tiers(const struct zb_run *run, const struct zb_node *node,
                          const struct zb_place_job *job, const struct zb_place *place,
                          struct zb_forecast *f);

/* ---- forecast_fetch.c */

/** Counts the bytes that one step's gathers read, over the ranks of this node. 0 or -ENOMEM. */
int zb_forecast_fetches(const struct zb_run *run, const struct zb_place_job *job,
                        const struct zb_place *place, uint32_t local, uint64_t *ret);

/* ---- forecast_time.c: zb_forecast_time(), and */

/** Sets the tokens that hide the drives' time, and how long the drives last. */
void zb_forecast_wear(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *f);

#endif
