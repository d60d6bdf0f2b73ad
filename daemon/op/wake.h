/*
 * wake.h - wakes the requests that wait for a job: each checks again whether it can continue.
 */
#ifndef ZSD_OP_WAKE_H
#define ZSD_OP_WAKE_H

#include "daemon/run/core.h"

/** Deferred by zsd_job_idle(), zsd_unpin(), zsd_job_committed() and zsd_job_stepped(). */
void zsd_wake_on_work(struct zsd_work *work);

#endif
