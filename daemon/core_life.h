/*
 * core_life.h - the core as the loop and the start see it.
 *
 * Loop thread only.
 */
#ifndef ZSD_CORE_LIFE_H
#define ZSD_CORE_LIFE_H

#include "daemon/run/core.h"

/** Needs daemon->config, kernels, compute and engine. 0; -ENOMEM, -ENOSPC (host_bytes is too small
 * for the smallest ring): err has the sentence. */
int zsd_core_new(struct zsd *daemon, struct zb_err *err);
/** Ends every job. Compute and engine must be idle or still running (it drains them). NULL core:
 * fine. */
void zsd_core_free(struct zsd *daemon);

/** Once a turn, before the loop waits: resumes whoever became runnable, then kicks the engine. True:
 * more became runnable meanwhile, so the loop must not wait. */
bool zsd_core_turn(struct zsd *daemon);
/** About every 20 ms: requests past their deadline are answered. */
void zsd_core_tick(struct zsd *daemon, uint64_t now_ns);
/** Runs what is in progress to its end. Blocks: only where no loop runs. */
void zsd_core_settle(struct zsd *daemon);
/** Operations in progress, and deferred work: an orderly end waits for 0. */
unsigned zsd_core_busy(const struct zsd *daemon);
/** Jobs in memory. Those without a client are kept ones, or end. */
unsigned zsd_core_jobs(const struct zsd *daemon);
/** Does something wait for zsd_core_tick(): an operation, or a scrub, which goes at a rate and
 * which no end waits for. */
bool zsd_core_ticks(const struct zsd *daemon);
/** SIGTERM: from now on, new jobs and new steps are refused (-ECANCELED); running ones finish. */
void zsd_core_drain(struct zsd *daemon);
/** Nothing runs any more: steps that still wait are given up, and what durable jobs have beyond
 * their last commit is committed. */
void zsd_core_last(struct zsd *daemon);
/** The end is near: every job ends, and its ranks are told that it is the daemon that goes, before
 * their connections close and each would take the other for dead. */
void zsd_core_farewell(struct zsd *daemon);

#endif
