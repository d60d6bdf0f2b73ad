/*
 * host.h - the accounts of the host tier: plan/host.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_HOST_H
#define ZSD_HOST_H

#include "daemon/job/job.h"

/** Free bytes of the host tier, without those that requests other than `but` wait for, and those
 * reserved for ranks that have left (zsd_replan_away()). */
uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but);
/** Moves the host tier's budget to its target. If that is lower, as far as memory was freed. */
void zsd_host_settle(struct zsd_core *core);
/** Whether the wanted memory is free, or nothing is wanted. */
bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want);
/** Bytes that requests other than `but` wait for. */
uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but);
/** Bytes of staging reserved for ranks that have left a kept job, and may return. */
uint64_t zsd_replan_away(const struct zsd_job *job);
/** The same of all jobs. */
uint64_t zsd_host_away(const struct zsd_core *core);

#endif
