/*
 * gpu_params.h - parameters on the GPU: plan/gpu_params.c has the model.
 */
#ifndef ZSD_GPU_PARAMS_H
#define ZSD_GPU_PARAMS_H

#include "daemon/job/shard.h"

struct zk_gpu_mem;
struct zk_gpu_strand;

/* A job's parameters on the GPU, all of them or none: plan/gpu_params.c. */
struct zsd_job_params {
    bool asked;             /* requested by its ranks; not saved: each attach sets it */
    bool barred;            /* they must not be there, for example if a rank cannot access it */
    char why[192];          /* why they are in the arena, although requested; else "" */
    uint64_t bytes;         /* of all of them, if they are on the GPU; else 0 */
    uint64_t booked;        /* the same, rounded up to the allocation unit of the device */
    uint64_t tag;           /* of mem: unique, also if the job is loaded again */
    struct zk_gpu_mem *mem; /* shards have the same offsets in it as in the arena */
    bool held;              /* freed, but a process still maps it */
};

/** Whether the job's parameters are on the GPU: decided when it was placed. */
static inline bool zsd_params_there(const struct zsd_job *job)
{
    return job->params->bytes > 0;
}
/** The address of a page of parameters on the device. */
void *zsd_params_at(const struct zsd_shard *s, uint32_t page);
/** Call when a rank requests parameters on the GPU, with the id of its device. If the rank cannot
 * access the daemon's device, they are not placed there. */
void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device);
/** Records that the parameters will not be on the GPU, because of `why`. */
void zsd_params_bar(struct zsd_job *job, const char *why);
/** Whether a rank with this device ("": none) can access the parameters where they are. */
bool zsd_params_seen(const struct zsd_job *job, const char *device);
/** Whether this many bytes of parameters fit on the GPU. If they were requested and do not fit,
 * job->params->why has the reason. */
bool zsd_params_fit(struct zsd_job *job, uint64_t bytes);
/** Whether the parameters do not fit now, but will when GPU memory that is being freed is
 * available: then placement may wait. */
bool zsd_params_wait(struct zsd_job *job);
/** Books this many bytes of parameters; 0: they are not on the GPU, which is logged if
 * requested. */
void zsd_params_book(struct zsd_job *job, uint64_t bytes);
/** Allocates zeroed memory for the parameters. Any thread. 0; -ENOMEM, -EIO, -ENOTSUPP: err. */
int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, struct zb_err *err);
/** Frees that memory, after the job has ended. Any thread. */
void zsd_params_drop(struct zsd_job *job);
/** Returns the bytes to the account, after zsd_params_drop(): at once, or when the last process has
 * unmapped the memory. Loop thread. */
void zsd_params_unplace(struct zsd_job *job);
/** Name of the job with this tag, for messages about memory that is still mapped. NULL: unknown. */
const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag);
/** Formats the holders of a strand, as "pid,pid". Returns a length, as snprintf() does. */
size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size);
void zsd_strands_free(struct zsd_core *core);

/** Handler of a rank's request for access to the memory of its parameters. */
zsd_handler zsd_gpu_share;

#endif
