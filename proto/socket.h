/*
 * socket.h - the path of the socket: the same rule for the daemon, the library and zctl.
 */
#ifndef ZP_SOCKET_H
#define ZP_SOCKET_H

#include <sys/un.h>

#include "base/err.h"

/**
 * Fills an address from `path`, or, when path is NULL, from $ZSHARD_SOCKET, else
 * $XDG_RUNTIME_DIR/zshard.sock, else /run/zshard/zshard.sock.
 *
 * @return 0; -ENAMETOOLONG longer than the path of a Unix socket may be, -EINVAL empty: err has the
 *         text
 */
int zp_socket_address(const char *path, struct sockaddr_un *ret, struct zb_err *err);

#endif
