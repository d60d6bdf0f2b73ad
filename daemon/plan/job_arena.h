/*
 * job_arena.h - allocates and frees the memory of jobs and ranks, on a compute thread.
 *
 * Loop thread only.
 */
#ifndef ZSD_JOB_ARENA_H
#define ZSD_JOB_ARENA_H

#include "daemon/job/job.h"
#include "daemon/plan/replan.h"

enum zsd_arena_what { ZSD_STAGING_OPEN, ZSD_STAGING_CLOSE, ZSD_ARENA_OPEN, ZSD_ARENA_CLOSE };

struct zsd_arena_task {
    struct zsd_task task;
    enum zsd_arena_what what;
    void (*opened)(
        struct zsd_arena_task *t); /* OPEN kinds: memory was allocated, or err has the reason */
    struct zsd_job *job;
    struct zsd_member *member; /* ZSD_STAGING_OPEN */
    uint64_t bytes;
    struct zsd_arena arena;
    uint8_t *memory, *muon;      /* muon: job->muon_at */
    struct zk_gpu_ortho *on_gpu; /* job->muon_gpu.ortho */
    uint64_t memory_bytes;
    struct zsd_range *ranges; /* ZSD_ARENA_OPEN: usable parts of the memory */
    uint32_t nranges;
    /* ZSD_ARENA_OPEN: allocates the pages now, because the job is loaded: the first transfer into
     * a piece of memory pins its pages, on the loop thread. Else the first step allocates them. */
    bool touch;
    struct zk_gpu_mem *params[ZSD_GPUS_MAX]; /* ZSD_ARENA_OPEN of a job with parameters on GPUs */
    struct zb_err gpu_err; /* why these could not be made; then nothing else is allocated */
    uint32_t gpu;          /* of gpu_err, of pin_err */
    struct zb_err pin_err; /* why some of its memory could not be pinned for a GPU */
    /* OPEN kinds: placed near GPUs, and refused; the last refusal and its node */
    uint64_t near_bytes, refused_bytes;
    int near_rc, near_node;
    struct zb_err err;
};

/** NULL: no memory. */
struct zsd_arena_task *zsd_arena_task_new(struct zsd_job *job, enum zsd_arena_what what,
                                          void (*opened)(struct zsd_arena_task *t));
void zsd_arena_task_start(struct zsd_arena_task *t);
void zsd_arena_task_free(struct zsd_arena_task *t);
/** Frees memory on a compute thread; or here, if there is no memory for the task. */
void zsd_arena_end(struct zsd_job *job, enum zsd_arena_what what, struct zsd_arena arena,
                   uint8_t *memory, uint64_t memory_bytes, uint64_t booked);
/** Frees the memory of a placed job, then calls zsd_unplace(). */
void zsd_job_arena_end(struct zsd_job *job);

#endif
