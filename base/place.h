/*
 * place.h - admission and placement, as arithmetic: where every byte of a job will live on a node,
 * and which budget would suffice. The daemon's admission and `zctl plan` call the same functions.
 *
 * MODEL. Every state page is used once per step. So keeping the pages that fit and streaming the
 * rest has the hit rate of the best possible cache, whatever the order. The job's host bytes are
 * assigned once, by value per byte: parameters first, then gradients, then state.
 *
 *     needed      gradients; all parameters, or a ring for those that are streamed; state that
 *                 must be in memory
 *     parameters  the longest prefix of shards, in order of registration, that can be resident
 *                 while the ring for the others still fits
 *     state       page by page, in order of registration, as long as bytes are left
 *
 * Later the daemon moves only state, as other jobs free memory or need it (daemon/plan/replan.c).
 *
 * GRADIENTS ON NVME, as a last resort: if gradients do not fit even with all state and parameters
 * streamed, parameters and state keep their minimum. Gradients stay in memory page by page, in
 * order of registration, as long as bytes are left; a remainder smaller than a page goes to state.
 * Each push writes the other pages of gradients; the next push that adds, and the step, read them.
 * In a step of m micro-steps, a byte of memory saves this I/O:
 *
 *     parameters  2 m + 1 read (forward, backward; the step), 1 written; less where the ring hits
 *     gradients   m read, m written
 *     state       1 read, 1 written
 *
 * So by bytes alone, memory for gradients is worth a little less than memory for parameters. But it
 * saves m writes instead of one. Writes wear the drive and are slower than reads, and a push waits
 * for them, whereas gathers are read ahead. So gradients move to NVMe last, and only if parameters
 * and state may live there too: a job that requires memory for one of them is refused.
 *
 * A RING OF GRADIENTS (grad_ring) instead of memory for all of them: if steps begin early, a page
 * whose state is streamed can be stepped as its gradient is pushed. Then the gradient is only in a
 * page buffer, never in host memory or on NVMe. New parameters of such a page wait for the step. If
 * its parameters are resident, they need memory `aside`, as much as the parameters. So a resident
 * page of state also takes its gradient, less what it no longer needs aside. A job that has this
 * ring puts nothing on NVMe instead of gradients.
 *
 * With limits of norms (ring_limits) a page cannot be stepped before its whole unit is there. So there
 * is a `room` for such gradients of two units: as much as the two largest need. Two units always fit,
 * one from each end. Steps without limits hold all gradients: on NVMe, in places for them. Units of
 * which some rank has no part are held in memory: they are small, and ranks that skip them do not push
 * in the same order as the others.
 *
 * THE RING of streamed parameters has, for each rank and each size of shard, as many places as
 * there are such shards, but at most ZB_RING_PINS. So a rank can pin any ZB_RING_PINS shards at the
 * same time, and nothing fragments.
 *
 * ON THE DATA FILE a job needs, for each size of page, one place for each streamed page, and a
 * spare one for each page that can be in flight at one time (page buffers), because pages are
 * always written to free places. Gradients need nothing else, since they are not saved. A job that
 * begins its steps early has a spare place for every streamed page that is not frozen: until the
 * step, the old and the new page both exist. A durable job needs two places for every page, for the
 * committed version and the next one; but one for a frozen page, which does not change.
 *
 * Pure functions without a daemon. Any thread.
 */
#ifndef ZB_PLACE_H
#define ZB_PLACE_H

#include "base/plan.h"

/* Streamed shards of one size that a rank can pin at the same time. */
#define ZB_RING_PINS       3u
#define ZB_SHARDS_MAX      (1u << 20) /* of one job, on a node */
#define ZB_BUFFERS_DEFAULT 32u
#define ZB_BUFFERS_MAX     1024u

/* ---- pages */

static inline uint32_t zb_pages(uint64_t count, uint32_t page_elems)
{
    return (uint32_t)((count + page_elems - 1) / page_elems);
}

/** Bytes of one plane of a page with this many elements, a multiple of the block. */
static inline uint64_t zb_layout_page(const struct zb_layout *layout, enum zb_plane plane,
                                      uint64_t elems)
{
    return zb_page_bytes(layout->block_bytes[plane], elems);
}

/** Bytes of one plane of a shard, cut into pages. */
static inline uint64_t zb_layout_bytes(const struct zb_layout *layout, enum zb_plane plane,
                                       uint32_t page_elems, uint64_t count)
{
    return zb_plane_bytes(layout->block_bytes[plane], page_elems, count);
}

/* ---- places of pages on the data file: the number for each size */

struct zb_need {
    uint64_t bytes;
    uint64_t count;
};

struct zb_needs {
    struct zb_need *needs; /* by bytes, ascending */
    uint32_t n;
    size_t room;
};

/** Room for n sizes: 0 or -ENOMEM. */
int zb_needs_reserve(struct zb_needs *p, uint32_t n);
/** 0 or -ENOMEM. bytes is a multiple of ZB_PAGE_ALIGN. */
int zb_needs_add(struct zb_needs *p, uint64_t bytes, uint64_t count);
/** Adds all needs of `other`, `times` times: 0 or -ENOMEM. */
int zb_needs_sum(struct zb_needs *p, const struct zb_needs *other, uint64_t times);
/** Subtracts `other`, which must be contained in p. */
void zb_needs_take(struct zb_needs *p, const struct zb_needs *other);
/** Adds the pages from number `from` to the end, of one plane of a shard of `count` elements,
 * `times` times. */
int zb_needs_pages(struct zb_needs *p, const struct zb_layout *layout, enum zb_plane plane,
                   uint64_t count, uint32_t page_elems, uint32_t from, uint64_t times);
/** Adds the spare places for the streamed pages of one plane: one for each page that buffers can
 * hold, and at least one for each of `early`. Call it once per plane: a buffer holds a page of
 * both planes, and these may have the same size. */
int zb_needs_spares(struct zb_needs *p, const struct zb_needs *streamed,
                    const struct zb_needs *early, uint32_t nbuffers);
uint64_t zb_needs_bytes(const struct zb_needs *p);
void zb_needs_done(struct zb_needs *p);

/* ---- page buffers: streamed data passes through them; part of the host budget */

/** Bytes of one page buffer: all planes of one page of any layout. */
uint64_t zb_buffer_bytes(uint32_t page_elems);
/** Number of page buffers under a budget: as requested (ring_bytes > 0), else a sixteenth of the
 * budget, from one to ZB_BUFFERS_DEFAULT. */
uint32_t zb_buffers(uint64_t host_bytes, uint64_t ring_bytes, uint64_t buffer_bytes);
/** The smallest budget that leaves `bytes` after its page buffers. */
uint64_t zb_buffers_least(uint64_t bytes, uint64_t ring_bytes, uint64_t buffer_bytes);

/* ---- placement */

/** A shard as input of placement. */
struct zb_place_shard {
    const struct zb_layout *layout;
    uint64_t count; /* elements; a multiple of the block */
    uint32_t rank;
    uint32_t unit; /* its number in the model, or in the job */
    bool few;      /* not all ranks have a part of this unit: zb_place_few() */
};

/** Sets `few` of all shards of a job with these ranks on the node. 0 or -ENOMEM. */
int zb_place_few(struct zb_place_shard *shards, uint32_t n, uint32_t nranks);

struct zb_place_job {
    const struct zb_place_shard *shards; /* in order of registration */
    uint32_t nshards;
    uint32_t page_elems;
    uint32_t nbuffers; /* page buffers of the daemon */
    /* planes that must be in memory: offload to host, or no data file. If parameters or state must
     * be, gradients must be too */
    bool params_resident, grads_resident, state_resident;
    bool params_on_gpu; /* parameters take no host memory and no ring */
    bool early;         /* its steps may begin early */
    /* gradients of pages with streamed state are not held; needs `early`, and no plane but parameters
     * that must be in memory. But the gradients of so many percent of each shard's pages are held, in
     * addition to those with state in memory */
    bool grad_ring;
    uint32_t ring_keep;
    bool ring_limits; /* of grad_ring: its steps have limits of norms */
    bool durable;
    /* durable: places for each trainable page, in addition to those counted already: 2 for a new
     * job */
    unsigned times;
    uint64_t host_bytes; /* available to the job for its planes and its ring */
};

/** The placement. The caller zeroes it, except for `nvme`, which may have places counted already.
 */
struct zb_place {
    uint32_t params_resident; /* shards [0, n) keep their parameters in memory */
    uint32_t *state_resident; /* [nshards]: pages of each with state in memory */
    uint32_t *grads_resident; /* [nshards]: pages of each with the gradient in memory */
    uint64_t param_bytes, ring_bytes, grad_bytes, state_bytes; /* of host memory */
    uint64_t grads_ringed; /* bytes of gradients that are not held */
    uint64_t aside_bytes;  /* of grad_bytes: new parameters of pages without a gradient in memory */
    uint64_t room_bytes;   /* of grad_bytes: gradients of two units, if steps have limits */
    struct zb_needs nvme;  /* places of pages */
    uint64_t nvme_param, nvme_state;   /* of them, one version of the pages that live or are saved
                                          there */
    uint64_t nvme_grad;                /* of them, gradients: one place for each page */
    uint64_t least_params, least_host; /* the least host bytes of any placement: for parameters or
                                          their ring; in all */
    uint64_t least_grads;              /* least_host with all gradients in memory */
};

/** 0; -ENOSPC: host_bytes is less than least_host. Then least_host and least_params are set, and
 * grad_bytes is the part of least_host for gradients. -ENOMEM. The caller checks whether `nvme`
 * fits, and calls zb_place_done() in every case. */
int zb_place(const struct zb_place_job *job, struct zb_place *ret);
/** The same job when pages from[i] on of each shard's state are on GPUs: host memory has no copy of
 * them, the data files keep places for them, and other state takes the host memory. `ret` is zeroed;
 * it has what differs from `before`. 0 or -ENOMEM. */
int zb_place_moved(const struct zb_place_job *job, const struct zb_place *before,
                   const uint32_t *from, struct zb_place *ret);
void zb_place_done(struct zb_place *place);

/* ---- the GPU tiers: parameters that a job has there, and the part of its state that its first steps
 * move there */

/** Pages of a job's state that move to the GPU and back together: one allocation there. */
struct zb_gpu_run {
    uint64_t from, bytes; /* in the bytes of all the job's state, in order of registration */
    uint64_t param_bytes; /* parameters of these pages */
    uint32_t shard, page; /* of its first page */
};

/** Cuts the state into runs, from its end; the GPU holds the first runs, as many as fit. `unit` is
 * the granularity of device memory. Returns the number of runs; runs NULL: only counts. */
uint32_t zb_gpu_runs(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                     uint64_t unit, struct zb_gpu_run *runs);

/** The GPUs of a node. Shards of a rank are on the rank's GPU and on no other. */
struct zb_gpus {
    uint32_t n, nranks; /* ranks of the node */
    bool
        computed_on; /* rank r computes on GPU r modulo n; otherwise the daemon gives it one by place */
    uint64_t unit;           /* granularity of device memory */
    const uint64_t *budgets; /* [n]: free bytes of each tier */
};

/** What one GPU has of a job. */
struct zb_gpu_share {
    uint64_t params, params_used; /* bytes of parameters; device memory that they take */
    uint64_t state, state_used;   /* the same of state */
    uint64_t stepped;             /* bytes of parameters whose state is there, wherever they are */
};

/** The GPU of a rank of the node. */
static inline uint32_t zb_gpu_of(const struct zb_gpus *gpus, uint32_t rank)
{
    return gpus->computed_on ? rank % gpus->n : (uint32_t)((uint64_t)rank * gpus->n / gpus->nranks);
}

/**
 * Places a job's parameters on its ranks' GPUs: sets ret[g].params and params_used.
 *
 * @param ret  [gpus->n], zeroed
 * @return the first GPU on which they do not fit, or gpus->n: they fit
 */
uint32_t zb_gpu_params(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                       const struct zb_gpus *gpus, struct zb_gpu_share *ret);
/**
 * Divides a job's state among GPUs: each holds the first runs of its ranks' shards, as many as fit
 * besides the parameters that ret has.
 *
 * @param ret   [gpus->n]
 * @param from  [nshards]: set to the first page of each shard's state that is on its GPU
 * @return 0 or -ENOMEM
 */
int zb_gpu_divide(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                  const struct zb_gpus *gpus, struct zb_gpu_share *ret, uint32_t *from);

/** Device memory that a run takes. */
static inline uint64_t zb_gpu_run_taken(const struct zb_gpu_run *run, uint64_t unit)
{
    return (run->bytes + unit - 1) / unit * unit;
}

#endif
