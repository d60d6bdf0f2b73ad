/*
 * gpu_tier.h - the GPU tier's device: opened at the start, its memory, and what is done with pages
 * that live there, as a whole or in part. Which optimizer state does, and when it moves, is
 * plan/gpu_plan.c's; which parameters do, plan/gpu_params.c's.
 *
 * MODEL. One device (kernels/gpu.h) and a few threads that talk to it, a pool of their own
 * (compute.h): copies of memory that is not pinned wait in the call, so nothing of it is done on
 * the loop. Each thread has a lane: a stream, and device memory for the parameters and the gradient
 * of one page and for the tables of a step. A task issues its works and waits for them; it comes
 * back to the loop like any other task. So a task of each lane is under way at one time: while one
 * is stepped, others are copied up and down.
 *
 * A thread waits for the device, instead of the loop for a signal: after the device failed a signal may
 * never come, whereas a thread that waits gets the error.
 *
 * ERRORS. A device that fails (-EIO, -EFAULT) has failed permanently. The task has the error message.
 */
#ifndef ZSD_GPU_TIER_H
#define ZSD_GPU_TIER_H

#include "daemon/run/compute.h"
#include "daemon/run/daemon.h"
#include "kernels/gpu.h"

struct zsd_gpu;

/** What is done with a page. */
enum zsd_gpu_what {
    ZSD_GPU_STEP, /* what is not there comes up, is stepped, and parameters go down */
    ZSD_GPU_DOWN, /* planes of it go to host memory */
    ZSD_GPU_UP    /* and come from there */
};

struct zsd_gpu_work {
    struct zsd_task task; /* done is the caller's */
    struct zsd_gpu *gpu;
    enum zsd_gpu_what what;
    const struct zb_layout *layout;
    struct zk_page page;       /* host memory: of planes that are copied, or not there */
    void *there[ZB_PLANES];    /* on the device; NULL: not there. Never the gradient */
    uint32_t bytes[ZB_PLANES]; /* of the page */
    /* DOWN, UP: which planes are copied. STEP: of those that are there, the state comes up from
     * host memory before, and both go to it behind */
    bool comes[ZB_PLANES], goes[ZB_PLANES];
    const struct zk_segment *segments;
    uint32_t nsegments, ngroups; /* ngroups: at most ZP_CLASSES_MAX */
    const struct zk_scalars *by_group;
    int rc; /* filled: 0, or why nothing of the page can be relied on */
    struct zb_err err;
};

/** A row of the start: config->gpu_bytes of the device config->gpu. 0: no tier, NULL. -ENODEV: no
 * such device or driver, -EINVAL, -ENOSPC, -ENOMEM, -EIO: err. */
int zsd_gpu_open(struct zsd *daemon, struct zb_err *err);
/** All memory that was taken from it was freed. */
void zsd_gpu_close(struct zsd *daemon);

struct zk_gpu *zsd_gpu_device(struct zsd_gpu *g);
/** The tier's own memory: lanes. */
uint64_t zsd_gpu_own_bytes(const struct zsd_gpu *g);
unsigned zsd_gpu_lanes(const struct zsd_gpu *g);
/**
 * Pins host memory that pages are copied from and to, as far as whole pages reach: copies of it run
 * beside others, and need not wait in their calls. May take half a second for each GiB. No copy
 * uses it meanwhile. Any thread.
 *
 * @return 0, also without a tier; else err says why not all of it is pinned: works are the same,
 *         and slower
 */
int zsd_gpu_pin(const struct zsd *daemon, void *memory, uint64_t bytes, struct zb_err *err);
/** What of it is pinned. Memory goes back to the system only then. */
void zsd_gpu_unpin(const struct zsd *daemon, void *memory, uint64_t bytes);
/** Starts it: done comes on the loop. */
void zsd_gpu_start(struct zsd *daemon, struct zsd_gpu_work *work);

#endif
