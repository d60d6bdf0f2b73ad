/*
 * ortho_gpu.h - the part of op/ortho.h that orthogonalizes on a GPU: op/ortho_gpu.c has the model. Loop thread.
 */
#ifndef ZSD_OP_ORTHO_GPU_H
#define ZSD_OP_ORTHO_GPU_H

#include "daemon/op/ortho.h"
#include "daemon/run/compute.h"

struct zsd_ortho_gpu {
    struct zsd_job *job;
    struct zb_list *waiting;  /* struct zsd_ortho, the oldest first */
    struct zsd_ortho *matrix; /* on the GPU; NULL: none */
    struct zsd_task task;
    int rc; /* of the task */
    struct zb_err err;
};

/** Whether the job's matrices are orthogonalized on a GPU. */
static inline bool zsd_ortho_on_gpu(const struct zsd_job *job)
{
    return job->muon_gpu.ortho != NULL;
}
void zsd_ortho_gpu_init(struct zsd_ortho_gpu *g, struct zsd_job *job, struct zb_list *waiting);
/** Begins with the oldest matrix that waits, if none is on the GPU. */
void zsd_ortho_gpu_pump(struct zsd_ortho_gpu *g);
/** Ends the matrix on the GPU when the device is done with it, if there is one: done() follows. */
void zsd_ortho_gpu_stop(struct zsd_ortho_gpu *g);

#endif
