/*
 * gpu_tier.h - the devices of the GPU tiers: their opening, their memory, and operations on pages
 * that are on a device, as a whole or in part. plan/gpu_plan.c decides which optimizer state is
 * there and when it moves, plan/gpu_params.c which parameters are there.
 *
 * MODEL. Each device (kernels/gpu.h) is a tier of its own, with an account (account.h), and with a
 * small pool of threads that use it (compute.h). daemon->gpus and core->tiers.gpus have the same
 * numbers. Nothing of one device is used by another, so that a device that is slow or fails holds
 * up no other.
 *
 * Copies of
 * memory that is not pinned block in the call, so the loop makes none of them. Each thread has a
 * lane: a stream, and device memory for the parameters and the gradient of one page and for the
 * tables of a step. A task issues its operations on the device, waits for them, and returns to the
 * loop like any other task. So each lane has one task at a time: while one page is stepped, others
 * are copied up and down.
 *
 * A thread waits for the device; the loop does not wait for an event from it. After a failure of
 * the device an event may never come, but a thread that waits gets the error.
 *
 * ERRORS. A device that fails (-EIO, -EFAULT) has failed permanently. The task has the error
 * message.
 */
#ifndef ZSD_GPU_TIER_H
#define ZSD_GPU_TIER_H

#include "daemon/run/compute.h"
#include "daemon/run/daemon.h"
#include "kernels/gpu.h"

struct zsd_gpu;

/** Operations on a page. */
enum zsd_gpu_what {
    ZSD_GPU_STEP, /* copies missing planes up, steps the page, copies parameters down */
    ZSD_GPU_DOWN, /* copies planes to host memory */
    ZSD_GPU_UP    /* copies planes from host memory */
};

struct zsd_gpu_work {
    struct zsd_task task; /* the caller sets done */
    struct zsd_gpu *gpu;
    enum zsd_gpu_what what;
    const struct zb_layout *layout;
    struct zk_page page;       /* host memory of planes that are copied, or not on the device */
    void *there[ZB_PLANES];    /* the plane on the device; NULL: not there. Never the gradient */
    uint32_t bytes[ZB_PLANES]; /* of the page's planes */
    /* UP: the planes to copy (comes). DOWN: likewise (goes). STEP, for planes on the device: those
     * to copy up before the step, and down after it */
    bool comes[ZB_PLANES], goes[ZB_PLANES];
    const struct zk_segment *segments;
    uint32_t nsegments, ngroups; /* ngroups: at most ZP_CLASSES_MAX */
    const struct zk_scalars *by_group;
    int rc; /* result: 0; or an error, and the contents of the page are undefined */
    struct zb_err err;
};

/** Whether the budgets are one for all, or one for each of so many GPUs: 0 or -EINVAL. */
int zsd_gpu_budgets_fit(const struct zsd_config *config, unsigned gpus, struct zb_err *err);
/** A step of the start (startup.c): opens the devices config->gpu, each with its budget
 * (zsd_gpu_budget(); none: no tier, daemon->ngpus stays 0). 0; -ENODEV: no such device or driver,
 * -EINVAL, -ENOSPC, -ENOMEM, -EIO: err. */
int zsd_gpu_open(struct zsd *daemon, struct zb_err *err);
/** Closes them. All memory allocated from the devices must have been freed. */
void zsd_gpu_close(struct zsd *daemon);

/** The device with this id, by its number in daemon->gpus; ZSD_NO_GPU: there is none. */
uint32_t zsd_gpu_find(const struct zsd *daemon, const char *id);
/** The tier with this name: likewise. With one device, both "gpu" and "gpu0" are its names. */
uint32_t zsd_gpu_named(const struct zsd *daemon, const char *name);
#define ZSD_NO_GPU UINT32_MAX

struct zk_gpu *zsd_gpu_device(struct zsd_gpu *g);
/** The NUMA node that is near the device; ZSD_NEAR_NONE: not known. */
int zsd_gpu_node(const struct zsd *daemon, uint32_t g);
/** The name of its tier, for people and in requests: "gpu" if it is the only one, else "gpuN". */
const char *zsd_gpu_name(const struct zsd_gpu *g);
/** Its threads. NULL: it is not open yet. */
struct zsd_compute *zsd_gpu_threads(const struct zsd_gpu *g);
/** Bytes of device memory that the tier uses itself, for lanes. */
uint64_t zsd_gpu_own_bytes(const struct zsd_gpu *g);
unsigned zsd_gpu_lanes(const struct zsd_gpu *g);
/**
 * Pins host memory for copies of one device, in whole pages: then copies run in parallel, and their
 * calls do not block. This may take half a second per GiB. No copy of this device may use the
 * memory meanwhile. Any thread.
 *
 * @return 0; else err has the reason why some of it is not pinned: operations have the same result,
 *         but are slower
 */
int zsd_gpu_pin(struct zsd_gpu *g, void *memory, uint64_t bytes, struct zb_err *err);
/** Unpins the parts that any device has pinned. Call before the memory is returned to the system. */
void zsd_gpu_unpin(const struct zsd *daemon, void *memory, uint64_t bytes);
/** Starts an operation on a device; its done() runs on the loop. */
void zsd_gpu_start(struct zsd_gpu *g, struct zsd_gpu_work *work);

#endif
