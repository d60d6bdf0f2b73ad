/*
 * notify.h - notifies a service manager: sd_notify(3), without its library.
 */
#ifndef ZSD_NOTIFY_H
#define ZSD_NOTIFY_H

/** Sends `state` ("READY=1") to $NOTIFY_SOCKET. 0, also when there is none; or a negative errno,
 * which
 *  callers only log, because only the manager depends on it. */
int zsd_notify(const char *state);

#endif
