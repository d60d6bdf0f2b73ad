/*
 * startup.h - the daemon's start as a table of steps, and its end as the same steps in reverse.
 */
#ifndef ZSD_STARTUP_H
#define ZSD_STARTUP_H

#include "base/err.h"
#include "daemon/run/daemon.h"

/**
 * Starts everything that daemon->config requires. The rest of *daemon must be zero.
 *
 * @return 0: it serves as soon as the loop runs; or a negative errno: all steps were undone, and
 *         err has the message. -EBUSY and -EADDRINUSE: another daemon has the data or the socket
 */
int zsd_startup(struct zsd *daemon, struct zb_err *err);

/** Undoes the steps: connections end first, then the core, which finishes its operations. */
void zsd_shutdown(struct zsd *daemon);

/** After a forced end: removes the socket and a temporary data directory, and exits the process.
 * Operations in progress are lost, as in a crash. */
_Noreturn void zsd_shutdown_now(struct zsd *daemon, int status);

#endif
