/*
 * notify.h - tells a service manager how we are: sd_notify(3), without its library.
 */
#ifndef ZSD_NOTIFY_H
#define ZSD_NOTIFY_H

/** Sends `state` ("READY=1") to $NOTIFY_SOCKET. 0, also when there is none; or a negative errno:
 *  nobody depends on it but the manager, so callers only log it. */
int zsd_notify(const char *state);

#endif
