/*
 * resume.h - checks and preparations before a load: op/resume.c has the model. If there is no
 * memory to begin one of these, the job fails, and done() is not called.
 */
#ifndef ZSD_OP_RESUME_H
#define ZSD_OP_RESUME_H

#include "daemon/job/walk.h"

/** Compares the shards of a job that is PLACING with a version, which is held meanwhile. done gets
 * -EINVAL if the shards and the version do not have the same elements. */
void zsd_resume_check(struct zsd_job *job, struct zsd_version *v, zsd_walked *done);
/** Releases the extents and rows of all shards of a job that is LOADING, so that v can be loaded.
 * done gets -ENOSPC if the job is cut differently from v, and there is no room for both. */
void zsd_resume_rewind(struct zsd_job *job, struct zsd_version *v, zsd_walked *done);

#endif
