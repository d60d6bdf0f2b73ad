/*
 * gpu_params.h - parameters that live on the GPU: plan/gpu_params.c has the model.
 */
#ifndef ZSD_GPU_PARAMS_H
#define ZSD_GPU_PARAMS_H

#include "daemon/job/shard.h"

struct zk_gpu_mem;
struct zk_gpu_strand;

/* Its parameters on the GPU, all of them or none: plan/gpu_params.c. */
struct zsd_job_params {
    bool asked;             /* its ranks asked for that; not saved: each attach says it */
    bool barred;            /* one of them does not see our device */
    char why[192];          /* asked for, and they are in the arena: why; "" */
    uint64_t bytes;         /* of all of them, where they are there; else 0 */
    uint64_t booked;        /* as the device gives memory */
    uint64_t tag;           /* of mem: no other job's ever has it, nor this one's made again */
    struct zk_gpu_mem *mem; /* shards lie in it as they would in the arena */
    bool held;              /* given back, and somebody has it mapped still */
};

/** Its parameters live on the GPU: decided when it was placed. */
static inline bool zsd_params_there(const struct zsd_job *job)
{
    return job->params->bytes > 0;
}
/** Where a page of them is on the device. */
void *zsd_params_at(const struct zsd_shard *s, uint32_t page);
/** A rank that asks for them, with its device's id: where it cannot see them there, they will not
 * be. */
void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device);
/** They will not be on the GPU, because of `why`. */
void zsd_params_bar(struct zsd_job *job, const char *why);
/** A rank with this device ("": none) can see the parameters where they are. */
bool zsd_params_seen(const struct zsd_job *job, const char *device);
/** So many bytes of parameters: can they be on the GPU? Else job->params->why says why not. */
bool zsd_params_fit(struct zsd_job *job, uint64_t bytes);
/** They do not fit, and will with memory of the GPU that is on its way back: whoever places the job
 * may wait. */
bool zsd_params_wait(struct zsd_job *job);
/** They will be there: the account. */
void zsd_params_book(struct zsd_job *job, uint64_t bytes);
/** Their memory is made, as zeros (any thread): 0; -ENOMEM, -EIO: err. */
int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, struct zb_err *err);
/** The job has ended: it goes back (any thread), */
void zsd_params_drop(struct zsd_job *job);
/** and then its account (loop): at once, or when the last who has it mapped lets go. */
void zsd_params_unplace(struct zsd_job *job);
/** For people, of memory that was given back and is held: whose it was. NULL: it is not known. */
const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag);
/** Its holders, as "pid,pid"; as snprintf(). */
size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size);
void zsd_strands_free(struct zsd_core *core);

/** A rank asks for the memory of its parameters: a request. */
zsd_handler zsd_gpu_share;

#endif
