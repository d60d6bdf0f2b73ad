/*
 * end.h - jobs end: op/end.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_END_H
#define ZSD_OP_END_H

#include "daemon/job/job.h"

/** Detaches the rank from its connection. Its pins are dropped at once; its staging is freed when
 * nothing uses it. */
void zsd_member_detach(struct zsd_member *m, const struct zb_err *why);
/** Ends a job: all ranks get `why`, and it is freed when nothing is in flight. */
void zsd_job_end(struct zsd_job *job, const struct zb_err *why);
/** The same, with an event (enum zp_event) about `rank`. */
void zsd_job_quit(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why);
/** Call when the job may be over. If it has ended and nothing is in flight, frees its memory; then,
 * if no rank is left, the struct. */
void zsd_job_forget_if_over(struct zsd_job *job);
/** Deferred by zsd_job_fail(), and by the last zsd_job_unhold() of a job that has ended. */
void zsd_over_on_work(struct zsd_work *work);

#endif
