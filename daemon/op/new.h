/*
 * new.h - creates and frees the struct of a job in memory.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_NEW_H
#define ZSD_OP_NEW_H

#include "daemon/plan/gpu_params.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

/* 0: the client does not send this field. */
static inline enum zb_moments zsd_open_moments(const Zp__JobOpen *q)
{
    return q->moments == 0 ? ZB_MOMENTS_F32 : (enum zb_moments)q->moments;
}

/* Whether parameters are requested on the GPU. If they cannot be there, ZP_NVME applies. */
static inline bool zsd_open_asks_gpu(const Zp__JobOpen *q)
{
    return q->offload_param == ZP_GPU;
}

static inline enum zp_offload zsd_open_param(const struct zsd_core *core, const Zp__JobOpen *q)
{
    if (!core->disk->extents) /* without a data file everything is in memory */
        return ZP_HOST;
    return zsd_open_asks_gpu(q) ? ZP_NVME : q->offload_param;
}

static inline enum zp_offload zsd_open_optimizer(const struct zsd_core *core, const Zp__JobOpen *q)
{
    return core->disk->extents ? q->offload_optimizer : ZP_HOST;
}

/** Whether this rank of the job can access its parameters, wherever they are. */
static inline bool zsd_open_sees(const struct zsd_job *job, const Zp__JobOpen *q)
{
    return !zsd_params_there(job) ||
           (zsd_open_asks_gpu(q) && zsd_params_seen(job, q->rank, q->device));
}

/** The number of a new job: the next one that no job has. After the last one they begin anew. */
uint32_t zsd_job_number(struct zsd_core *core);
/** A new job, as this rank opens it. NULL: no memory. */
struct zsd_job *zsd_job_new(struct zsd_core *core, const Zp__JobOpen *q, uid_t uid);
/** An incarnation of a saved job: it is DEFINING like a new one, but its units are known. NULL: no
 * memory. */
struct zsd_job *zsd_job_again(struct zsd_core *core, const Zp__JobOpen *q, struct zsd_saved *saved);
/** Detaches the saved job from this incarnation, so that another one can be made. */
void zsd_job_let_go(struct zsd_job *job);
/** Frees the struct. Nothing may be in flight or placed, and no rank may be left. */
void zsd_job_free(struct zsd_job *job);

#endif
