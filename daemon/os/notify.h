/*
 * notify.h - notifies a service manager: sd_notify(3), without its library.
 */
#ifndef ZSD_NOTIFY_H
#define ZSD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/** Sends `state` ("READY=1") to $NOTIFY_SOCKET. 0, also if that is not set; or a negative errno.
 * Callers only log it, because only the manager depends on the message. */
int zsd_notify(const char *state);
/** As above, for what may be lost: never waits for the manager. -EAGAIN: it was not sent. */
int zsd_notify_try(const char *state);
/** Whether a service manager has started this process. */
bool zsd_notify_managed(void);

/** The interval in which the manager wants to be told "WATCHDOG=1", in microseconds; 0: it does
 * not. A variable for another process does not count: an embedded daemon inherits those of a
 * trainer that is a service. */
uint64_t zsd_notify_watchdog_us(void);

#endif
