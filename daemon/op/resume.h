/*
 * resume.h - what comes before a load: op/resume.c has the model. Without memory to begin, the job
 * fails, and done() is not called.
 */
#ifndef ZSD_OP_RESUME_H
#define ZSD_OP_RESUME_H

#include "daemon/job/walk.h"

/** Compares the shards of a job that is PLACING with a version, which it holds meanwhile. done gets
 * -EINVAL when the shards are not the elements that the version has. */
void zsd_resume_check(struct zsd_job *job, struct zsd_version *v, zsd_walked *done);
/** A job in memory that is LOADING lets go of all that its shards have on the data files, to load v.
 * done gets -ENOSPC when it is cut in another way than v, and there is no room beside it. */
void zsd_resume_rewind(struct zsd_job *job, struct zsd_version *v, zsd_walked *done);

#endif
