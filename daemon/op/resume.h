/*
 * resume.h - what comes before a load: op/resume.c has the model.
 */
#ifndef ZSD_OP_RESUME_H
#define ZSD_OP_RESUME_H

#include "daemon/job/job.h"

/* What hears the end of either: later, never from inside. err NULL: all is well. The job may have
 * ended meanwhile (its state says so). Without memory to begin the job fails, and nobody hears. */
typedef void zsd_resumed(struct zsd_job *job, const struct zb_err *err);

/** Compares the shards of a job that is PLACING with a version, which it holds meanwhile. done gets
 * -EINVAL when the shards are not the elements that the version has. */
void zsd_resume_check(struct zsd_job *job, struct zsd_version *v, zsd_resumed *done);
/** A job in memory that is LOADING lets go of all that its shards have on the data files, to load v.
 * done gets -ENOSPC when it is cut in another way than v, and there is no room beside it. */
void zsd_resume_rewind(struct zsd_job *job, struct zsd_version *v, zsd_resumed *done);

#endif
