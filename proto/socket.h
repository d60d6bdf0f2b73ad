/*
 * socket.h - where the socket is: one rule for the daemon, the library, zctl and Python.
 *
 * RULE. The path that is given; else $ZSHARD_SOCKET; else $XDG_RUNTIME_DIR/zshard.sock; else
 * /run/zshard/zshard.sock. An empty variable counts as unset. The daemon serves the first of these.
 * A client without a path tries the last two one after the other, so that a login session, which
 * has a runtime directory, finds the service of the machine.
 */
#ifndef ZP_SOCKET_H
#define ZP_SOCKET_H

#include <sys/un.h>

#include "base/err.h"

#define ZP_SOCKETS_MAX 2u

/**
 * Fills the address that a daemon serves. path: NULL if none is given.
 *
 * @return 0; -ENAMETOOLONG longer than the path of a Unix socket may be, -EINVAL empty: err has the
 *         text
 */
int zp_socket_address(const char *path, struct sockaddr_un *ret, struct zb_err *err);

/**
 * Fills the addresses that a client tries, in their order.
 *
 * @return their number, 1 or 2; errors as above
 */
int zp_socket_addresses(const char *path, struct sockaddr_un ret[ZP_SOCKETS_MAX],
                        struct zb_err *err);

#endif
