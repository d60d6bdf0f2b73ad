/*
 * loop.h - the loop thread's loop: what runs in a turn, and in which order.
 *
 *     poll       sockets, the compute pool and the engine: requests, finished tasks, finished I/O
 *     prepare    zsd_core_turn(): what became runnable; the engine is kicked once
 *                zsd_server_turn(): answers are sent; connections that had to wait go on
 *
 * The second may make work for the first: then the next poll does not wait. Every
 * ZSD_TICK_MS zsd_core_tick() runs, but only while something is in progress: an idle daemon sleeps.
 */
#ifndef ZSD_LOOP_H
#define ZSD_LOOP_H

#include "base/err.h"
#include "daemon/daemon.h"

#define ZSD_TICK_MS  20u
#define ZSD_REAP_MAX 64u /* completions of one kind in one turn */

/** Needs compute and engine. 0 or a negative errno: err has the sentence; daemon->loop may be half
 *  built then. */
int zsd_loop_new(struct zsd *daemon, struct zb_err *err);
/** Waits until every handle is closed; the server has closed its own before. NULL loop: fine. */
void zsd_loop_free(struct zsd *daemon);

/** Runs until zsd_loop_stop(). */
void zsd_loop_run(struct zsd *daemon);
void zsd_loop_stop(struct zsd *daemon);

#endif
