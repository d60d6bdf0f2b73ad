/*
 * muon_gpu.h - memory of a GPU that orthogonalizes the matrices of a job: plan/muon_gpu.c has the model.
 */
#ifndef ZSD_PLAN_MUON_GPU_H
#define ZSD_PLAN_MUON_GPU_H

#include "daemon/job/job.h"

/** Whether the GPU is there, and has room for what the matrices need. 0; -ENODEV, -EIO, -EDQUOT, or
 * -ENOSPC with the numbers. Loop thread, like the next two. */
int zsd_muon_fits(struct zsd_job *job, const struct zb_muon_needs *needs, struct zb_err *err);
/** Books the memory. */
void zsd_muon_book(struct zsd_job *job);
/** Returns it to the account, after zsd_muon_drop(). */
void zsd_muon_unbook(struct zsd_job *job);
/** Allocates it, and pins the matrices, which begin at `memory`. *ret stays NULL for any other job. Any thread. 0;
 * -ENODEV no cuBLASLt, -ENOSPC, -ENOMEM, -EIO. */
int zsd_muon_make(const struct zsd_job *job, uint8_t *memory, struct zk_gpu_ortho **ret,
                  struct zb_err *err);
/** Frees it, and the job's memory for matrices, after the job has ended. Any thread. */
void zsd_muon_drop(struct zsd_job *job);

#endif
