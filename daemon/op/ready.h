/*
 * ready.h - every rank is ready: placement, memory, loading.
 */
#ifndef ZSD_OP_READY_H
#define ZSD_OP_READY_H

#include "daemon/job/job.h"

/** Admission; when there is no room, but bytes are on their way back, it waits for them. */
void zsd_place_again(struct zsd_job *job);
/** What the ranks waited for is over. */
void zsd_ready_resume(struct zsd_job *job);

#endif
