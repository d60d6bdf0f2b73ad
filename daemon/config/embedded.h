/*
 * embedded.h - what an embedded daemon (--embedded) says to the program that started it.
 *
 * One line of JSON on the descriptor of --ready-fd, which is closed then:
 *
 *     {"ready":true,"socket":"...","data":"...","pid":1,"host_bytes":1,"nvme_bytes":1}
 *     {"ready":false,"error":"...","status":3}                     status: as it exits
 *
 * A daemon that dies before it says either closes the descriptor without a line. The log goes to
 * standard error as that of any other.
 *
 * THREADS. The loop's, before the loop runs. ERRORS. None: it is no failure if nobody reads the line.
 */
#ifndef ZSD_EMBEDDED_H
#define ZSD_EMBEDDED_H

#include "daemon/run/daemon.h"

/** The descriptor that a command line names, which the options refused: -1 where it is not that of
 *  an embedded daemon. */
int zsd_embedded_fd(int argc, char **argv);

/** It serves, as daemon->config says. */
void zsd_embedded_ready(const struct zsd *daemon);
/** It does not, and why. fd -1: nobody wants to know. */
void zsd_embedded_refused(int fd, int status, const char *why);

#endif
