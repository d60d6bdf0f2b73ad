/*
 * notify.h - notifies a service manager: sd_notify(3), without its library.
 */
#ifndef ZSD_NOTIFY_H
#define ZSD_NOTIFY_H

/** Sends `state` ("READY=1") to $NOTIFY_SOCKET. 0, also if that is not set; or a negative errno.
 * Callers only log it, because only the manager depends on the message. */
int zsd_notify(const char *state);

#endif
