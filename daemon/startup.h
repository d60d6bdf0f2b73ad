/*
 * startup.h - the daemon's start as rows of steps, and its end as the same rows from the last.
 */
#ifndef ZSD_STARTUP_H
#define ZSD_STARTUP_H

#include "base/err.h"
#include "daemon/run/daemon.h"

/**
 * Brings up everything that daemon->config asks for. The caller zeroed the rest of *daemon.
 *
 * @return 0: it serves as soon as the loop runs; a negative errno, and everything is down again:
 *         err has the sentence. -EBUSY and -EADDRINUSE: another daemon has the data or the socket
 */
int zsd_startup(struct zsd *daemon, struct zb_err *err);

/** Takes down whatever is up: connections end first, then the core, which finishes what it must. */
void zsd_shutdown(struct zsd *daemon);

#endif
