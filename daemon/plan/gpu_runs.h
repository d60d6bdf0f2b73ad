/*
 * gpu_runs.h - the GPU of each rank, and the runs of a job's state on each GPU: plan/gpu_runs.c has
 * the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_GPU_RUNS_H
#define ZSD_GPU_RUNS_H

#include "base/place.h"
#include "daemon/job/shard.h"

struct zk_gpu_mem;

/* The part of a job's state on one GPU: plan/gpu_plan.c. */
struct zsd_job_gpu {
    struct zb_gpu_run *runs;  /* all of the state of this GPU's ranks, from the end; NULL: never
                                 planned */
    struct zk_gpu_mem **mems; /* [nruns] */
    uint32_t nruns;
    uint32_t to, made;   /* number of runs, from the first: wanted, and allocated */
    uint64_t held_bytes; /* booked, including memory that is being freed */
    bool busy;           /* a task allocates or frees memory */
    bool refused;        /* there was no memory, or no place in a lower tier, and that was logged */
    bool pinned; /* the job's host memory is pinned for it, as far as the driver allowed it */
};

/** Chooses the GPU of each rank. Call before the job is placed, when all ranks are attached. */
void zsd_gpu_bind(struct zsd_job *job);
/** Rounds bytes up to the allocation unit of a device. */
uint64_t zsd_gpu_units(const struct zsd_core *core, uint32_t g, uint64_t bytes);

/** Cuts the job's state into runs, once. 0 or -ENOMEM. */
int zsd_gpu_runs_make(struct zsd_job *job);
/** What the runs [from, to) take on the device. */
uint64_t zsd_gpu_runs_bytes(const struct zsd_job *job, uint32_t g, uint32_t from, uint32_t to);
/** The first page of shard i, which is of that GPU, that is inside the first n runs. */
uint32_t zsd_gpu_runs_page(const struct zsd_job *job, uint32_t g, uint32_t n, uint32_t i);
/** The number of runs that are in use, or will be after the next step (G2). */
uint32_t zsd_gpu_runs_used(const struct zsd_job *job, uint32_t g);
/** The address of a page of state on the device. Its run must be allocated. */
void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page);

/** At the start of the core: sets up the accounts of the tiers. */
void zsd_gpu_begin(struct zsd_core *core);
/** Moves the budget of a tier to its target. If that is lower, as far as memory was freed. */
void zsd_gpu_settle(struct zsd_core *core, uint32_t g);
/** Books state on a device, and unbooks it. */
void zsd_gpu_book(struct zsd_job *job, uint32_t g, uint64_t bytes);
void zsd_gpu_unbook(struct zsd_job *job, uint32_t g, uint64_t bytes);
/** Bytes of state that still have to leave a GPU. */
uint64_t zsd_gpu_leaving(const struct zsd_job *job, uint32_t g);
/** Bytes of state that are booked on all GPUs. */
uint64_t zsd_gpu_held(const struct zsd_job *job);
/** Frees the memory, after the job has ended and nothing uses its state. Any thread. */
void zsd_gpu_drop(struct zsd_job *job);
/** Returns its bytes to the accounts, after zsd_gpu_drop(). */
void zsd_gpu_unplace(struct zsd_job *job);

#endif
