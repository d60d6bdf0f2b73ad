/*
 * startup.h - the daemon's start as a table of steps, and its end as the same steps in reverse.
 */
#ifndef ZSD_STARTUP_H
#define ZSD_STARTUP_H

#include "base/err.h"
#include "daemon/run/daemon.h"

/**
 * Brings up everything that daemon->config asks for. The caller zeroed the rest of *daemon.
 *
 * @return 0: it serves as soon as the loop runs; a negative errno, and everything is down again:
 *         err has the message. -EBUSY and -EADDRINUSE: another daemon has the data or the socket
 */
int zsd_startup(struct zsd *daemon, struct zb_err *err);

/** Undoes the steps that were made: connections end first, then the core, which finishes its work.
 */
void zsd_shutdown(struct zsd *daemon);

#endif
