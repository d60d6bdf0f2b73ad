/*
 * loop.h - the loop thread's loop: what runs in a turn, and in which order.
 *
 *     poll       sockets, the compute pool and the engine: requests, finished tasks, finished I/O
 *     prepare    zsd_core_turn(): what became runnable; the engine is kicked once
 *                zsd_server_turn(): answers are sent; connections that had to wait continue
 *
 * Either may leave work for the next turn: then the next poll does not wait. Every
 * ZSD_TICK_MS zsd_core_tick() runs, but only while something is in progress: an idle daemon sleeps.
 */
#ifndef ZSD_LOOP_H
#define ZSD_LOOP_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/run/daemon.h"

#define ZSD_TICK_MS        20u
#define ZSD_SEND_MS        1000u
#define ZSD_LINGER_FIRST_S 30u
#define ZSD_REAP_MAX       64u /* completions of one kind in one turn */

/** Needs compute and engine. 0 or a negative errno: err has the sentence; daemon->loop may be half
 *  built then. */
int zsd_loop_new(struct zsd *daemon, struct zb_err *err);
/** For the server: needs zsd_loop_new(). */
struct uv_loop_s *zsd_loop_uv(const struct zsd *daemon);
/** Waits until every handle is closed; the server has closed its own before. NULL loop: fine. */
void zsd_loop_free(struct zsd *daemon);

/**
 * From now on SIGTERM, SIGINT, SIGHUP and SIGQUIT end the loop in good order: nobody is accepted any more,
 * the core refuses new work and finishes what is in progress, for at most drain_ms, and answers are
 * sent, for at most ZSD_SEND_MS more. A second signal ends it at once.
 *
 * @return 0 or a negative errno: err has the sentence
 */
int zsd_loop_end_on_signals(struct zsd *daemon, uint32_t drain_ms, struct zb_err *err);

/**
 * From now on the loop also ends when nobody uses it: linger_s seconds after the last client has
 * left, linger_kept_s while there is a job (which then is a kept one), and not before what is in
 * progress is finished. The first client has ZSD_LINGER_FIRST_S at least. After
 * zsd_loop_end_on_signals().
 */
void zsd_loop_end_unused(struct zsd *daemon);

/** Runs until a signal, or that nobody uses it, ends it. False: operations were still in progress. */
bool zsd_loop_run(struct zsd *daemon);

#endif
