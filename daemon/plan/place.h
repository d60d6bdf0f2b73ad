/*
 * place.h - admission and placement of a job: where every byte of it is.
 *
 * Loop thread only.
 */
#ifndef ZSD_PLACE_H
#define ZSD_PLACE_H

#include "daemon/job/shard.h"

/** The end of zsd_place(). 0: everything is booked. -ENOSPC: err has the numbers and the smallest
 * budget that would work; -EDQUOT: a limit of the user; -ENOMEM. On failure nothing is booked. */
typedef void zsd_placed(struct zsd_job *job, int rc, const struct zb_err *err);
/** Admission and layout, when all ranks are ready: decides the place of every page, and books it.
 * With spill, gradients that do not fit go to NVMe, if the job allows it. Takes several turns if
 * the job has many shards, and holds it; else done is called from this call. If the job ends
 * meanwhile, done is not called. */
void zsd_place(struct zsd_job *job, bool spill, zsd_placed *done);
/** Books a rank's staging: 0, or -ENOSPC with the numbers. */
int zsd_place_staging(struct zsd_job *job, uint64_t bytes, struct zb_err *err);
/** Whether the job's own limit allows that staging, so that waiting for memory helps. *ret_lacks:
 * bytes that others must free, in addition to the memory reserved for ranks of the job. 0: only
 * readers, which may use the reserved memory, have to close. */
bool zsd_place_staging_fits(const struct zsd_job *job, uint64_t bytes, uint64_t *ret_lacks);
void zsd_unplace_staging(struct zsd_job *job, uint64_t bytes);
/** Unbooks everything that zsd_place() booked, except the needs of the saved job. plan/tables.h
 * frees the places and tables of the shards. */
void zsd_unplace(struct zsd_job *job);
/** Bytes of NVMe that are booked for the job, by use. */
const struct zsd_account *zsd_job_nvme(const struct zsd_job *job);

/** Bytes of all planes of the shard: in memory (without the ring), on NVMe, and on the GPU. */
void zsd_shard_bytes(const struct zsd_shard *s, uint64_t *ret_host, uint64_t *ret_nvme,
                     uint64_t *ret_gpu);

#endif
