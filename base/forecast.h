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
 * Gradients on NVMe are written by the pushes of each micro-step. The pushes of all micro-steps but
 * the first read them before, and so does the step.
 *
 * Reads by fetches of streamed parameters during forward and backward are counted by simulating the
 * gathers of two steps on the places of the ring; the second step counts.
 *
 * Pure; any thread.
 */
#ifndef ZB_FORECAST_H
#define ZB_FORECAST_H

#include "base/late.h"
#include "base/model.h"

#define ZB_PREFETCH_MAX 64u             /* units gathered ahead */
#define ZB_DATA_START   UINT64_C(65536) /* bytes of a data file before the first page */
#define ZB_GPUS_MAX     64u             /* of a node */
#define ZB_DRIVES_MAX   1024u
#define ZB_FLOPS_TOKEN  8.0 /* per parameter: forward 2, backward 4, forward again 2 */

/* Where planes may live: always in host memory, or on NVMe if they do not fit. Parameters also in the
 * GPU tiers: all of them if they fit, else as ZB_OFFLOAD_NVME. An optimizer that is not offloaded
 * keeps all three planes in the ranks' own memory: the daemon has nothing. */
enum zb_offload { ZB_OFFLOAD_NONE, ZB_OFFLOAD_HOST, ZB_OFFLOAD_NVME, ZB_OFFLOAD_GPU };

/* How ranks exchange. A direct exchange sends a slice to each other rank. */
enum zb_comm {
    ZB_COMM_NCCL, /* gathers in a ring; gradients directly, so that they are added in rank order */
    ZB_COMM_HOST, /* both directly, through host memory: MPI, TCP */
    ZB_COMM_RING, /* both in a ring, as other programs do; this engine does not */
};

/* How the ranks of a node gather parameters: by collectives, or each reads all slices where the
 * daemon has them. */
enum zb_node_gather { ZB_GATHER_COMM, ZB_GATHER_HOST, ZB_GATHER_AUTO };

struct zb_run {
    const struct zb_model *model;
    enum zb_mode mode;
    uint32_t ranks, nodes; /* ranks is a multiple of nodes */
    struct zb_layout layout;
    struct zb_layout matrices; /* of units of matrices, which the model names */
    enum zb_offload param;     /* not ZB_OFFLOAD_NONE; ignored if optimizer is */
    enum zb_offload optimizer;
    enum zb_offload grad; /* ZB_OFFLOAD_HOST: if they do not fit in memory, the run is
                                         refused */
    bool durable;
    uint64_t commit_every; /* durable: steps between commits; 0: never */
    bool early;            /* steps begin early, if there is room for it */
    bool grad_ring;        /* and gradients of pages with streamed state are not held, */
    uint32_t ring_keep;    /* but those of so many percent of each shard's pages; */
    bool ring_limits;      /* its steps clip by tensor */
    enum zb_muon_engine muon_engine;
    bool muon; /* Muon steps the matrices that the model knows */
    uint32_t micro_steps, prefetch_units;
    enum zb_comm comm;
    bool gather_alone; /* as ZB_GATHER_HOST; each rank also decides by itself what it gathers */
    enum zb_node_gather node_gather; /* not ZB_GATHER_AUTO, which is the caller's choice */
    bool computes_on; /* ranks compute on the node's GPUs: rank r on GPU r modulo gpus */
    uint64_t tokens;  /* of a rank in a micro-step; 0: unknown */
    double flops;     /* per second, of one rank; 0: unknown */
    double seconds;   /* of a whole step with forward and backward; 0: only the optimizer's time
                       counts */
};

/* A node: budgets in bytes, as in the daemon's options; rates in bytes per second, 0: unknown. */
struct zb_node {
    uint64_t host_bytes, nvme_bytes; /* nvme_bytes: for pages, without ZB_DATA_START */
    uint64_t gpu_bytes;              /* of each rank's GPU; 0: ignored */
    uint64_t gpu_tiers[ZB_GPUS_MAX]; /* free bytes of the daemon's tier on each GPU; 0: no tier */
    uint32_t gpus;                   /* of the node; 0: one. zb_gpu_of() says which a rank has */
    uint32_t drives; /* equal ones; 0: unknown. All other members are of all together */
    uint64_t host_taken, nvme_taken; /* by other jobs */
    uint32_t page_elems;
    uint64_t ring_bytes; /* as the daemon's option; 0: the daemon chooses */
    uint32_t nbuffers;   /* page buffers of a running daemon; 0: from host_bytes */
    uint32_t cores;
    double drive_read, drive_write, memory;
    double link;       /* between host and each GPU, in one direction */
    double gpu_link;   /* from each GPU to others of its node, in one direction */
    double gpu_memory; /* of each GPU */
    double network;    /* from the node to others, in one direction */
    double latency;    /* seconds of each message of a collective */
    double endurance;  /* bytes that may be written to the drives in their life; 0: unknown */
};

enum zb_bound { ZB_BOUND_UNKNOWN, ZB_BOUND_READ, ZB_BOUND_WRITE, ZB_BOUND_KERNEL, ZB_BOUND_CRC };

struct zb_forecast {
    bool fits;
    struct zb_err why; /* why it does not fit */
    uint64_t params;   /* of the model */
    uint32_t local;    /* ranks of this node */

    /* of one rank, by plane: its own copies, and its slices in the daemon */
    uint64_t own[ZB_PLANES], kept[ZB_PLANES];
    double field;                      /* the textbook's bytes for the same mode */
    uint64_t gather_bytes, grad_bytes; /* of the engine, at most: gathered units, and gradients */

    /* the daemon's host memory for this job; buffers are shared by all jobs */
    uint64_t host_param, host_ring, host_grad, host_state, host_staging, host_buffers;
    uint64_t host_matrices; /* of Muon, with page buffers of its own */
    uint64_t host_matrices_least,
        host_matrices_most;                      /* the same without room for more, and with it */
    uint64_t host_used;                          /* of the budget, other jobs included */
    uint64_t host_least;                         /* the smallest budget that would work */
    uint64_t host_least_grads;                   /* the smallest that holds all gradients in
                                                    memory */
    uint64_t nvme_param, nvme_state, nvme_spare; /* places: of one version, and all others */
    uint64_t nvme_grad;                          /* gradients that do not fit into memory */
    uint64_t grads_ringed;                       /* gradients that are not held */
    uint64_t grads_aside;                        /* of host_grad: new parameters, instead of them */
    uint64_t grads_room;                         /* of host_grad: those of two units */
    uint64_t nvme_used, nvme_least;              /* nvme_least: the size of a data
                                          file, one on each drive */
    /* on the GPU tiers, all GPUs together: parameters, which are nowhere else; and state from the
     * third step on, in addition to its place in the lower tier */
    uint64_t gpu_params, gpu_state;
    uint64_t gpu_used;     /* device memory that both take, and the next one */
    uint64_t gpu_matrices; /* that orthogonalizes the matrices of Muon, on the first GPU */
    uint32_t gpus;         /* of the node, at least one */
    struct zb_gpu_share gpu[ZB_GPUS_MAX];
    /* host memory and NVMe from the third step on, when state is on the GPU tiers: state that may be
     * on NVMe has no copy in host memory then */
    uint64_t later_host_state, later_host_used;
    uint64_t later_nvme_state, later_nvme_spare, later_nvme_used;
    struct zb_err gpu_why; /* why parameters are not there, although requested; code 0: they are */
    uint32_t nbuffers;
    bool early; /* requested, and there is room */

    /* bytes of one step, for this node's shards */
    uint64_t step_read, step_written; /* by a step that does not commit */
    uint64_t fetch_read;              /* by fetches of streamed parameters between two steps */
    uint64_t push_read, push_written; /* by pushes of gradients that live on NVMe */
    uint64_t commit_written;          /* by a committing step, in addition to step_written */
    double commit_share;              /* the fraction of steps that commit */
    uint64_t kernel_bytes, crc_bytes; /* through memory; through checksums */

    double drive_seconds, kernel_seconds, step_seconds; /* 0: not known */
    enum zb_bound bound;
    double hide_tokens;     /* per step, over all ranks, so that computing hides all storage
                               traffic; 0: unknown */
    double written_day;     /* bytes per day, if steps follow each other without pause */
    double endurance_years; /* 0: unknown, or nothing is written */
};

const char *zb_bound_name(enum zb_bound bound);

/** The layout of a unit. */
static inline const struct zb_layout *zb_run_layout(const struct zb_run *run, uint32_t unit)
{
    return zb_model_matrices(run->model, unit) ? &run->matrices : &run->layout;
}

/** Whether the daemon keeps the ranks' slices: not if nothing is offloaded, nor with ddp. */
static inline bool zb_run_keeps(const struct zb_run *run)
{
    return run->optimizer != ZB_OFFLOAD_NONE && zb_mode_cuts(run->mode, ZB_STATE);
}

/** 0: ret->fits says whether it fits; -EINVAL, with a message: the run makes no sense; -ENOMEM. */
int zb_forecast(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *ret,
                struct zb_err *err);

/** The GPUs of the node, for a run with `local` ranks there. */
struct zb_gpus zb_run_gpus(const struct zb_run *run, const struct zb_node *node, uint32_t local);
/** Whether ranks read slices of other ranks, and whether all `local` ranks of the node are on one
 * GPU. */
bool zb_run_reads(const struct zb_run *run);
bool zb_run_on_one(const struct zb_run *run, const struct zb_node *node, uint32_t local);

/** Only the times, for given bytes: sets drive_seconds, kernel_seconds, step_seconds and bound
 * from the other members. */
void zb_forecast_time(const struct zb_node *node, struct zb_forecast *f);

#endif
