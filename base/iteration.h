/*
 * iteration.h - how long an iteration takes: computing, links, collectives and the optimizer. It
 * uses the bytes of a forecast (forecast.h). docs/PLANNING.md has each formula; `zctl plan` prints
 * the terms.
 *
 * MODEL. A rank has one GPU. A pass gathers units and, backward, reduces their gradients. These
 * resources work beside each other; each is busy for its bytes divided by its rate:
 *
 *     compute      2 P T / F forward, 6 P T / F backward, which repeats the forward pass
 *     collectives  one after the other, as the engine runs them: each the larger of what a rank
 *                  sends to GPUs of its node and what its node sends to others, and a latency for
 *                  each message of a rank
 *     up, down     between host memory and the GPU
 *     memory       the host's, if ranks exchange through it
 *
 * A pass takes as long as the busiest of them, and the gather of the first unit or the reduction of
 * the last one, which nothing hides. Without prefetching, gathers are added. What the optimizer
 * takes longer than the passes that hide it is added, and no iteration is shorter than its drives
 * need.
 *
 * Rates are inputs and are reached in full. Slower ranks, shared switches, and the processors that a
 * GPU lends to collectives are not in the model. Pure; any thread.
 */
#ifndef ZB_ITERATION_H
#define ZB_ITERATION_H

#include "base/forecast.h"

/* Of one pass of one micro-step, in seconds. */
struct zb_pass {
    double compute, gather, reduce; /* gather and reduce: of the collectives */
    double up, down, memory;
    double first; /* the gather or reduction that nothing hides */
    double seconds;
};

enum zb_part {
    ZB_PART_COMPUTE,
    ZB_PART_GPU_LINK,
    ZB_PART_NETWORK,
    ZB_PART_LATENCY,
    ZB_PART_LINK,
    ZB_PART_MEMORY,
    ZB_PART_OPTIMIZER,
    ZB_PART_DRIVES,
    ZB_PARTS,
};

struct zb_iteration {
    struct zb_pass forward, backward; /* of the first micro-step */
    double optimizer, exposed;        /* its time, and what of it nothing hides */
    double drives;                    /* all that they read and write in a step */
    double parts[ZB_PARTS];           /* each resource, over the whole iteration */
    enum zb_part bound;               /* the largest of them */
    double seconds;
    double flops;  /* operations per second of a rank that an iteration reaches */
    double tokens; /* per second, over all ranks */
    /* bytes of an iteration: sent by a rank to GPUs of its node, by a node to others, and between
     * the host and the GPU of a rank */
    double gpu_link_bytes, network_bytes, up_bytes, down_bytes;
};

const char *zb_part_name(enum zb_part part); /* "gpu-link" */
const char *zb_comm_name(enum zb_comm comm); /* "nccl" */

/** 0; -EINVAL, with a message: a rate that this run needs is not known, or the run makes no
 * sense. f is the forecast of the same run and node, and fits. */
int zb_iterate(const struct zb_run *run, const struct zb_node *node, const struct zb_forecast *f,
               struct zb_iteration *ret, struct zb_err *err);

#endif
