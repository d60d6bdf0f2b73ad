/*
 * forecast.h - predicts what a run needs on a node, and how long its steps take. `zctl plan`
 * prints it, and `zbench plan` compares it with measurements. docs/PLANNING.md explains the
 * formulas.
 *
 * MODEL. The prediction is for the node with the most bytes: the one with the first ranks. Its
 * bytes come from the code that decides admission (place.h); the bytes of a step follow from the
 * placement, and its time from the bytes:
 *
 *     drive    read / drive_read + written / drive_write
 *     kernel   (2 p + 2 k + g) bytes a parameter / memory bandwidth, and checksums of what is
 *              streamed
 *     step     the larger of both: they overlap
 *
 * Gradients on NVMe are written by the pushes of each micro-step, read by all but the first
 * before, and by the step.
 *
 * What fetches of streamed parameters read during forward and backward is counted by walking
 * through the gathers of two steps with the places of the ring; the second step counts.
 *
 * Pure; any thread.
 */
#ifndef ZB_FORECAST_H
#define ZB_FORECAST_H

#include "base/model.h"

#define ZB_PREFETCH_MAX 64u             /* units gathered ahead */
#define ZB_DATA_START   UINT64_C(65536) /* bytes of a data file before the first page */

/* Where planes may live: resident in host memory always, or on NVMe where they must. */
enum zb_offload { ZB_OFFLOAD_NONE, ZB_OFFLOAD_HOST, ZB_OFFLOAD_NVME };

struct zb_run {
    const struct zb_model *model;
    enum zb_mode mode;
    uint32_t ranks, nodes; /* ranks is a multiple of nodes */
    struct zb_layout layout;
    enum zb_offload param, optimizer; /* not ZB_OFFLOAD_NONE */
    enum zb_offload grad;             /* ZB_OFFLOAD_HOST: in memory, or it does not fit */
    bool durable;
    uint64_t commit_every; /* durable: 0 never */
    bool early;            /* its steps begin early, if there is room for that */
    uint32_t micro_steps, prefetch_units;
    double flops;   /* of a rank, a second; 0: not known */
    double seconds; /* of a whole step with its computing; 0: as long as the optimizer takes */
};

/* A node: budgets in bytes as the daemon has them, rates in bytes a second, 0: not known. */
struct zb_node {
    uint64_t host_bytes, nvme_bytes; /* nvme_bytes: for pages, without ZB_DATA_START */
    uint64_t gpu_bytes;              /* of each rank's GPU; 0: ignored */
    uint64_t gpu_tier_bytes;         /* of the daemon's GPU tier, for this job; 0: there is none */
    uint64_t host_taken, nvme_taken; /* by other jobs */
    uint32_t page_elems;
    uint64_t ring_bytes; /* as the daemon's option; 0: it chooses */
    uint32_t nbuffers;   /* page buffers of a daemon that runs; 0: from host_bytes */
    uint32_t cores;
    double drive_read, drive_write, memory;
    double endurance; /* bytes that the drives may be written; 0: not known */
};

enum zb_bound { ZB_BOUND_UNKNOWN, ZB_BOUND_READ, ZB_BOUND_WRITE, ZB_BOUND_KERNEL, ZB_BOUND_CRC };

struct zb_forecast {
    bool fits;
    struct zb_err why; /* does not fit, because */
    uint64_t params;   /* of the model */
    uint32_t local;    /* ranks of this node */

    /* of one rank, by plane: its own copies, and its part of the daemon's planes */
    uint64_t own[ZB_PLANES], kept[ZB_PLANES];
    double field;                      /* the textbook's bytes for the same mode */
    uint64_t gather_bytes, grad_bytes; /* of the engine, at most: units as they are computed with,
                                          and gradients */

    /* host memory of the daemon, for this job; buffers are everybody's */
    uint64_t host_param, host_ring, host_grad, host_state, host_staging, host_buffers;
    uint64_t host_used;                          /* of the budget, with other jobs */
    uint64_t host_least;                         /* the smallest budget that would work */
    uint64_t host_least_grads;                   /* that holds all gradients */
    uint64_t nvme_param, nvme_state, nvme_spare; /* places: one version, and the others */
    uint64_t nvme_grad;                          /* gradients that do not fit into memory */
    uint64_t nvme_used, nvme_least;              /* nvme_least: the size of a data file */
    uint64_t gpu_state; /* of the state, what the GPU tier has from the third step on,
                           in addition to its place below */
    uint64_t gpu_used;  /* and takes of the tier for it */
    uint32_t nbuffers;
    bool early; /* it was wished, and there is room */

    /* bytes of one step of this node's shards */
    uint64_t step_read, step_written; /* by the step itself, not committing */
    uint64_t fetch_read;              /* by fetches of streamed parameters between two steps */
    uint64_t push_read, push_written; /* by pushes of gradients that live on NVMe */
    uint64_t commit_written;          /* by a committing step, in addition to step_written */
    double commit_share;              /* steps that commit */
    uint64_t kernel_bytes, crc_bytes; /* through memory; through checksums */

    double drive_seconds, kernel_seconds, step_seconds; /* 0: not known */
    enum zb_bound bound;
    double hide_tokens;     /* a step, over all ranks, that hide all storage traffic; 0: unknown */
    double written_day;     /* bytes, if steps follow each other */
    double endurance_years; /* 0: unknown, or nothing is written */
};

const char *zb_bound_name(enum zb_bound bound);

/** 0, and ret->fits is whether it fits; -EINVAL, with a message: the run makes no sense;
 * -ENOMEM.
 */
int zb_forecast(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *ret,
                struct zb_err *err);

/** The bandwidth-bound half alone, for bytes that are known: sets drive_seconds, kernel_seconds,
 * step_seconds and bound from the others. */
void zb_forecast_time(const struct zb_node *node, struct zb_forecast *f);

#endif
