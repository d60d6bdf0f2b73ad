/*
 * ready.h - every rank is ready: placement, memory, loading.
 */
#ifndef ZSD_OP_READY_H
#define ZSD_OP_READY_H

#include "daemon/job/job.h"

/** Places the job. If there is no room yet but others free memory, it waits; else the job ends. */
void zsd_place_again(struct zsd_job *job);
/** Call when the reason for which ready requests wait may be gone: checks it again. */
void zsd_ready_resume(struct zsd_job *job);

#endif
