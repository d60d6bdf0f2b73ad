/*
 * host.h - the accounts of the host tier: plan/host.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_HOST_H
#define ZSD_HOST_H

#include "daemon/job/job.h"

/** Bytes of the host tier that are free: nobody but `but` waits for them, and they are not kept for
 *  ranks that have left (zsd_replan_away()). What a job takes comes out of these. */
uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but);
/** The host tier's budget becomes what was set. Where that is lower, it comes down as far as memory has
 * come back. */
void zsd_host_settle(struct zsd_core *core);
/** It is free now; or nothing is wanted. */
bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want);
/** Bytes that others wait for. */
uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but);
/** Staging of ranks that have left a kept job, and may come back: no other job gets it. */
uint64_t zsd_replan_away(const struct zsd_job *job);
/** The same of all jobs. */
uint64_t zsd_host_away(const struct zsd_core *core);

#endif
