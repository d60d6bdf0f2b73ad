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

/** Computes what the job's matrices need. Zeros for any other optimizer. 0 or -ENOMEM. */
int zsd_muon_size(const struct zsd_job *job, struct zb_muon_needs *ret);
/** Whether planes of the job may be streamed. */
bool zsd_muon_streams(const struct zsd_job *job);
/** Whether the job has all elements of all matrices on this node. 0 or -ENOTSUP. */
int zsd_muon_whole(const struct zsd_job *job, struct zb_err *err);
/** Elements of the matrices of these units. */
uint64_t zsd_muon_elems(struct zsd_unit *const *units, uint32_t nunits);
/** Page buffers that may be in use for the job at one time, if it has this room: the daemon's, and its own. */
uint32_t zsd_muon_buffers(const struct zsd_job *job, const struct zb_muon_room *room);

#endif
