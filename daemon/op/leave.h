/*
 * leave.h - the daemon ends, and with it every job.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_LEAVE_H
#define ZSD_OP_LEAVE_H

#include "daemon/run/core.h"

/** Ends every job: its ranks are told that the daemon ends. */
void zsd_jobs_end_all(struct zsd_core *core);
/** Frees every job: all have ended, and nothing is in flight. */
void zsd_jobs_forget_all(struct zsd_core *core);

#endif
