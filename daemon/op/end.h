/*
 * end.h - jobs end: op/end.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_END_H
#define ZSD_OP_END_H

#include "daemon/job/job.h"

/** Takes the rank from its connection: pins and staging return at once. */
void zsd_member_detach(struct zsd_member *m, const struct zb_err *why);
/** Ends a job: everyone is told `why`, and it vanishes when nothing is in flight. */
void zsd_job_end(struct zsd_job *job, const struct zb_err *why);
/** The same, with an event (enum zp_event) of what became of `rank`. */
void zsd_job_quit(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why);
/** Frees what the job has, when it has ended and nothing is in flight; the struct too, when no rank
 * is left. */
void zsd_job_forget_if_over(struct zsd_job *job);
/** What zsd_job_fail() and the last zsd_job_unhold() of a job that has ended defer. */
void zsd_over_on_work(struct zsd_work *work);

#endif
