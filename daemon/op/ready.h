/*
 * ready.h - every rank is ready: placement, memory, loading.
 */
#ifndef ZSD_OP_READY_H
#define ZSD_OP_READY_H

#include "daemon/job/job.h"

/** Admission; waits if there is no room yet, but memory is being freed. */
void zsd_place_again(struct zsd_job *job);
/** Resumes ready requests after a wait. */
void zsd_ready_resume(struct zsd_job *job);

#endif
