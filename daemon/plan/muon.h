/*
 * muon.h - memory of a job with Muon, in addition to its planes: plan/muon.c has the model. Loop thread.
 */
#ifndef ZSD_PLAN_MUON_H
#define ZSD_PLAN_MUON_H

#include "daemon/job/shard.h"

/** Whether Muon steps this tensor. */
static inline bool zsd_tensor_muon(const struct zsd_unit *unit, uint32_t tensor)
{
    return !unit->layout.frozen && unit->tensors[tensor].muon;
}

/** Computes how much the job needs. Zeros for any other optimizer. */
void zsd_muon_size(struct zsd_job *job);
/** Whether the job has all elements of all matrices on this node. 0 or -ENOTSUP. */
int zsd_muon_whole(const struct zsd_job *job, struct zb_err *err);
/** Whether the GPU that orthogonalizes the job's matrices is there, and has room. 0; -ENODEV, -EIO, -EDQUOT, or
 * -ENOSPC with the numbers. */
int zsd_muon_fits(struct zsd_job *job, struct zb_err *err);
/** Books the memory of that GPU. */
void zsd_muon_book(struct zsd_job *job);
/** Returns it to the account, after zsd_muon_drop(). */
void zsd_muon_unbook(struct zsd_job *job);
/** Allocates it: *ret stays NULL for any other job. Any thread. 0; -ENODEV no cuBLASLt, -ENOSPC, -ENOMEM, -EIO. */
int zsd_muon_make(const struct zsd_job *job, uint8_t *memory, struct zk_gpu_ortho **ret,
                  struct zb_err *err);
/** Frees it, after the job has ended. Any thread. */
void zsd_muon_drop(struct zsd_job *job);
/** Elements of the matrices of these units. */
uint64_t zsd_muon_elems(struct zsd_unit *const *units, uint32_t nunits);
/** Page buffers that may be in use for the job at one time: the daemon's, or the job's own. */
uint32_t zsd_muon_buffers(const struct zsd_job *job);

#endif
