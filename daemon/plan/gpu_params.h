/*
 * gpu_params.h - parameters on the GPU: plan/gpu_params.c has the model.
 */
#ifndef ZSD_GPU_PARAMS_H
#define ZSD_GPU_PARAMS_H

#include "daemon/job/shard.h"

struct zk_gpu_mem;
struct zk_gpu_strand;

/* Its parameters on the GPU, all of them or none: plan/gpu_params.c. */
struct zsd_job_params {
    bool asked;             /* requested by its ranks; not saved: each attach sets it */
    bool barred;            /* a rank cannot access our device */
    char why[192];          /* why they are in the arena, although requested; else "" */
    uint64_t bytes;         /* of all of them, if they are on the GPU; else 0 */
    uint64_t booked;        /* as the device allocates memory */
    uint64_t tag;           /* of mem: unique, also if the job is loaded again */
    struct zk_gpu_mem *mem; /* shards have the same offsets in it as in the arena */
    bool held;              /* freed, but a process still maps it */
};

/** Whether its parameters are on the GPU: decided when it was placed. */
static inline bool zsd_params_there(const struct zsd_job *job)
{
    return job->params->bytes > 0;
}
/** Where a page of them is on the device. */
void *zsd_params_at(const struct zsd_shard *s, uint32_t page);
/** A rank requests them, with the id of its device. If it cannot access ours, they are not placed
 * there. */
void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device);
/** Records that they will not be on the GPU, because of `why`. */
void zsd_params_bar(struct zsd_job *job, const char *why);
/** Whether a rank with this device ("": none) can access the parameters where they are. */
bool zsd_params_seen(const struct zsd_job *job, const char *device);
/** Whether this many bytes of parameters can be on the GPU. If not, job->params->why has the
 * reason.
 */
bool zsd_params_fit(struct zsd_job *job, uint64_t bytes);
/** Whether they do not fit yet, but will when GPU memory that is being freed is free: then
 * placement may wait. */
bool zsd_params_wait(struct zsd_job *job);
/** Books them. */
void zsd_params_book(struct zsd_job *job, uint64_t bytes);
/** Allocates their memory, as zeros. Any thread. 0; -ENOMEM, -EIO: err. */
int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, struct zb_err *err);
/** Frees that memory, after the job has ended. Any thread. */
void zsd_params_drop(struct zsd_job *job);
/** Returns its bytes to the account, after zsd_params_drop(): at once, or when the last process has
 * unmapped it. Loop thread. */
void zsd_params_unplace(struct zsd_job *job);
/** Name of the job whose freed memory is still mapped, for people. NULL: not known. */
const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag);
/** Its holders, as "pid,pid"; as snprintf(). */
size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size);
void zsd_strands_free(struct zsd_core *core);

/** A rank asks for the memory of its parameters: a request. */
zsd_handler zsd_gpu_share;

#endif
