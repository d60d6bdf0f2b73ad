#include "proto/socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define SOCKET_FILE   "zshard.sock"
#define SOCKET_SYSTEM "/run/zshard/" SOCKET_FILE

/** An empty variable counts as unset. */
static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

int zp_socket_address(const char *path, struct sockaddr_un *ret, struct zb_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const char *dir = NULL;
    int len;

    if (path && !*path)
        return zb_fail(err, -EINVAL, "the path of the socket is empty");
    if (!path)
        path = env("ZSHARD_SOCKET");
    if (!path)
        dir = env("XDG_RUNTIME_DIR");
    if (!path && !dir)
        path = SOCKET_SYSTEM;
    if (path)
        len = snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    else
        len = snprintf(a.sun_path, sizeof(a.sun_path), "%s/" SOCKET_FILE, dir);
    if (len < 0 || (size_t)len >= sizeof(a.sun_path))
        return zb_fail(
            err, -ENAMETOOLONG,
            "the socket's path is %d bytes long, and a Unix socket's may be %zu: '%s...'", len,
            sizeof(a.sun_path) - 1, a.sun_path);
    *ret = a;
    return 0;
}
