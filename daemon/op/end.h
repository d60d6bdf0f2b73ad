/*
 * end.h - ranks leave, jobs end: op/end.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_END_H
#define ZSD_OP_END_H

#include "daemon/job/job.h"

/** Refuses what a member waits for, if it does. */
void zsd_member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why);
/** The connection lets go of its rank: pins and staging return at once. */
void zsd_member_detach(struct zsd_member *m, const struct zb_err *why);
void zsd_staging_put(struct zsd_member *m); /* undoes a staging_users++ */

/** Ends a job: everyone is told `why`, and it vanishes when nothing is in flight. */
void zsd_job_end(struct zsd_job *job, const struct zb_err *why);
void zsd_jobs_end_all(struct zsd_core *core);
void zsd_jobs_forget_all(struct zsd_core *core);
/** Frees what the job has, when it has ended and nothing is in flight; the struct too, when no rank
 * is left. */
void zsd_job_forget_if_over(struct zsd_job *job);
/** What zsd_job_fail() and the last zsd_job_unhold() of a job that has ended defer. */
void zsd_over_on_work(struct zsd_work *work);

#endif
