/*
 * core_life.h - creates, runs and ends the core: the interface for the loop and the start.
 *
 * Loop thread only.
 */
#ifndef ZSD_CORE_LIFE_H
#define ZSD_CORE_LIFE_H

#include "daemon/run/core.h"

/** Needs daemon->config, kernels, compute and engine. 0; -ENOMEM, -ENOSPC (host_bytes is too small
 * for the smallest ring): err has the message. */
int zsd_core_new(struct zsd *daemon, struct zb_err *err);
/** Ends every job, and drains compute and engine, which must be idle or running. NULL core:
 * fine. */
void zsd_core_free(struct zsd *daemon);

/** Once per turn, before the loop waits: runs deferred work, then kicks the engine. True: more was
 * deferred meanwhile, so the loop must not wait. */
bool zsd_core_turn(struct zsd *daemon);
/** About every 20 ms: requests past their deadline are answered. */
void zsd_core_tick(struct zsd *daemon, uint64_t now_ns);
/** Runs operations in progress to their end. Blocks: only without a loop. */
void zsd_core_settle(struct zsd *daemon);
/** Operations in progress, and deferred work: an orderly end waits for 0. */
unsigned zsd_core_busy(const struct zsd *daemon);
/** Number of jobs in memory. Those without a client are kept, or are ending. */
unsigned zsd_core_jobs(const struct zsd *daemon);
/** Whether something needs zsd_core_tick(): an operation in progress; a scrub, which an orderly end
 * does not wait for; GPU memory that is still mapped. */
bool zsd_core_ticks(const struct zsd *daemon);
/** The first stage of an orderly end: new jobs are refused (-ECANCELED), and ranks that attach again
 * after a restart are told. */
void zsd_core_leave(struct zsd *daemon);
/** Whether such ranks are still attached. */
bool zsd_core_waits(const struct zsd *daemon);
/** The second stage: from now on, new steps are refused, too; running ones finish. */
void zsd_core_drain(struct zsd *daemon);
/** Call when no operation is in progress: cancels waiting steps, and commits the newest steps of
 * durable jobs. */
void zsd_core_last(struct zsd *daemon);
/** What an orderly end waits for, in a few words: at most `size` bytes with the terminating 0. */
void zsd_core_ending_text(const struct zsd *daemon, char *ret, size_t size);
/** Ends every job before the connections close: its ranks are told that the daemon ends. Otherwise
 * they would consider each other dead. */
void zsd_core_farewell(struct zsd *daemon);

#endif
