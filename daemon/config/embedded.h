/*
 * embedded.h - the message of an embedded daemon (--embedded) to the program that started it.
 *
 * One line of JSON on the descriptor of --ready-fd, which is then closed:
 *
 *     {"ready":true,"socket":"...","data":"...","pid":1,"host_bytes":1,"nvme_bytes":1}
 *     {"ready":false,"error":"...","status":3}                     status: its exit status
 *
 * A daemon that dies before that closes the descriptor without a line. The log goes to standard
 * error, as always.
 *
 * THREADS. The loop's, before the loop runs. ERRORS. None: a line that is not read is not a
 * failure.
 */
#ifndef ZSD_EMBEDDED_H
#define ZSD_EMBEDDED_H

#include "daemon/run/daemon.h"

/** The descriptor for the line, from a command line that was rejected. -1: no embedded daemon. */
int zsd_embedded_fd(int argc, char **argv);

/** Reports that the daemon serves, with the values of daemon->config. */
void zsd_embedded_ready(const struct zsd *daemon);
/** Reports that the daemon could not start, and why. fd -1: does nothing. */
void zsd_embedded_refused(int fd, int status, const char *why);

#endif
