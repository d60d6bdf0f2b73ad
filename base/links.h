/*
 * links.h - bytes that the gathers of one step move: over the link of each GPU of a node, between its
 * ranks, and inside GPU memory. `zctl plan` prints them; zc_zero_stats() counts the same.
 *
 * MODEL. A step in the steady state: the order of gathers is known, as from the second step on. A unit
 * is gathered again unless it is in the window of units ahead (client/zero/pass/schedule.c). For one
 * gather of a unit of R slices of S bytes, of which a rank has s:
 *
 *                            host to GPU   GPU to host   inside a GPU   sent by a rank
 *     each reads all slices  all s         0             0              0
 *       ... of one GPU       0             0             all s          0
 *     NCCL                   s             0             0              (R - 1) S
 *       parameters on GPUs   0             0             s              (R - 1) S
 *     in host memory         R S           0             0              (R - 1) S
 *       parameters on GPUs   R S           s             0              (R - 1) S
 *     one rank               s             0             0              0
 *       parameters on GPUs   0             0             s              0
 *
 * Pure; any thread.
 */
#ifndef ZB_LINKS_H
#define ZB_LINKS_H

#include "base/forecast.h"

/* Of one GPU, in a step: all its ranks together. */
struct zb_link {
    uint64_t up, down; /* from host memory to the GPU, and back */
    uint64_t within;   /* copied inside its memory */
    uint64_t sent;     /* to other ranks */
};

struct zb_links {
    uint64_t gathers;   /* of units, by each rank */
    uint64_t fetched;   /* read in the daemon by all ranks */
    struct zb_link all; /* of all GPUs */
    uint64_t memory;    /* through host memory, if GPUs have no link of their own */
    bool on_gpus;       /* parameters are on the GPU tiers */
    struct zb_link gpu[ZB_GPUS_MAX];
};

/** Whether the bytes are known: one node, whose ranks compute on GPUs and gather from the daemon. */
bool zb_links_known(const struct zb_run *run);
/** Counts them; f is the forecast of the same run and node, and fits. 0 or -ENOMEM. */
int zb_links(const struct zb_run *run, const struct zb_node *node, const struct zb_forecast *f,
             struct zb_links *ret);

#endif
