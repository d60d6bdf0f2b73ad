/*
 * loop.h - the loop of the loop thread, and the order of work in a turn.
 *
 *     poll       sockets, the compute pool and the engine: requests, finished tasks, finished I/O
 *     prepare    zsd_core_turn(): runs deferred work; kicks the engine once
 *                zsd_server_turn(): answers are sent; connections that had to wait continue
 *
 * Either may leave work for the next turn: then the next poll does not wait. zsd_core_tick() runs
 * every ZSD_TICK_MS, but only while something is in progress: an idle daemon sleeps.
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

/** Needs compute and engine. 0; or a negative errno: err has the message, and daemon->loop may be
 * half built. */
int zsd_loop_new(struct zsd *daemon, struct zb_err *err);
/** The loop of libuv, for the server. Needs zsd_loop_new(). */
struct uv_loop_s *zsd_loop_uv(const struct zsd *daemon);
/** Waits until every handle is closed. Close the server first. NULL loop: fine. */
void zsd_loop_free(struct zsd *daemon);

/** How long an orderly end may take. */
struct zsd_patience {
    uint64_t wait_ms;  /* for ranks that attach again after a restart; before the others */
    uint64_t stall_ms; /* without any operation that finishes */
    uint64_t limit_ms; /* in all, without wait_ms; 0: no limit */
};

/**
 * From now on SIGHUP reloads the configuration, if it has a file (reload/reload.h), unless the daemon
 * is embedded. SIGTERM, SIGINT, SIGQUIT, and SIGHUP of others begin an orderly end: no connection
 * is accepted; the core rejects new work and finishes operations in progress; answers are sent, for
 * at most ZSD_SEND_MS more. The service manager is told about once a second that more time is
 * needed. A second signal, or the end of patience, ends the loop at once.
 *
 * @return 0 or a negative errno: err has the message
 */
int zsd_loop_end_on_signals(struct zsd *daemon, const struct zsd_patience *patience,
                            struct zb_err *err);

/**
 * From now on the loop also ends when it is unused: linger_s seconds after the last client has
 * left, or linger_kept_s if a (kept) job is in memory, but not before operations in progress are
 * finished. The first client may take at least ZSD_LINGER_FIRST_S to connect. Call after
 * zsd_loop_end_on_signals().
 */
void zsd_loop_end_unused(struct zsd *daemon);

/** From now on the loop reports to the service manager that it turns, if the manager wants that
 * ($WATCHDOG_USEC, $WATCHDOG_PID). */
void zsd_loop_watchdog(struct zsd *daemon);

/** Runs until a signal, or lack of use, ends the loop. False: operations were still in progress, so
 * zsd_shutdown() would wait for them. */
bool zsd_loop_run(struct zsd *daemon);

#endif
