/*
 * gpu_params.h - parameters on the GPU: plan/gpu_params.c has the model.
 */
#ifndef ZSD_GPU_PARAMS_H
#define ZSD_GPU_PARAMS_H

#include "daemon/job/shard.h"

struct zk_gpu_mem;

/* A job's parameters on GPUs, all of them or none: plan/gpu_params.c. */
struct zsd_job_params {
    bool asked;     /* requested by its ranks; not saved: each attach sets it */
    bool barred;    /* they must not be there, for example if a rank cannot access them */
    char why[192];  /* why they are in the arena, although requested; else "" */
    uint64_t bytes; /* of all of them, if they are on GPUs; else 0 */
    uint64_t tag;   /* of their memory: unique, also if the job is loaded again */
    /* those of one GPU's ranks */
    struct zsd_params_on {
        uint64_t booked; /* bytes, rounded up to the allocation unit of the device; 0: no rank
                                   of the job has this GPU */
        uint64_t bytes;  /* without rounding; 0: its ranks have none */
        struct zk_gpu_mem *mem; /* a shard's parameters are at arena_at */
        bool held;              /* freed, but a process still maps it */
    } on[ZSD_GPUS_MAX];
};

/** Whether the job's parameters are on GPUs: decided when it was placed. */
static inline bool zsd_params_there(const struct zsd_job *job)
{
    return job->params->bytes > 0;
}
/** The address of a page of parameters on the device. */
void *zsd_params_at(const struct zsd_shard *s, uint32_t page);
/** Bytes of them that a rank maps: of all ranks on its GPU. 0: they are not on GPUs; else at least 1. */
uint64_t zsd_params_seen_bytes(const struct zsd_job *job, uint32_t rank);
/** Bytes that are booked for them on all GPUs. */
uint64_t zsd_params_booked(const struct zsd_job *job);
/** Call when a rank requests parameters on its GPU, with the id of that device. If the daemon does
 * not have it, they are not placed there. */
void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device);
/** Records that the parameters will not be on the GPU, because of `why`. */
void zsd_params_bar(struct zsd_job *job, const char *why);
/** Whether a rank with this device ("": none) can access its parameters where they are. */
bool zsd_params_seen(const struct zsd_job *job, uint32_t rank, const char *device);
/** Why parameters that are on GPUs are lost: the error of a device that failed; NULL: none did. */
const struct zb_err *zsd_params_lost(const struct zsd_job *job);
/** Whether parameters fit on the GPUs: bytes[g] on each. If they were requested and do not fit,
 * job->params->why has the reason. */
bool zsd_params_fit(struct zsd_job *job, const uint64_t *bytes);
/** Whether the parameters do not fit now, but will when GPU memory that is being freed is
 * available: then placement may wait. */
bool zsd_params_wait(struct zsd_job *job);
/** Books bytes[g] of parameters on each GPU; NULL: they are not there, which is logged if
 * requested. */
void zsd_params_book(struct zsd_job *job, const uint64_t *bytes);
/** Allocates zeroed memory for the parameters on each GPU: ret[g]. Any thread. 0; -ENOMEM, -EIO,
 * -ENOTSUPP: err, and *ret_failed is the GPU. */
int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, uint32_t *ret_failed,
                    struct zb_err *err);
/** Frees that memory, after the job has ended. Any thread. */
void zsd_params_drop(struct zsd_job *job);
/** Returns the bytes to the accounts, after zsd_params_drop(): at once, or when the last process has
 * unmapped the memory. Loop thread. */
void zsd_params_unplace(struct zsd_job *job);

/** Handler of a rank's request for access to the memory of its own parameters. */
zsd_handler zsd_gpu_share;

#endif
