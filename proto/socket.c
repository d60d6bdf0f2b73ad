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

/** Fills *ret with the path "DIR/FILE", or FILE if dir is NULL. */
static int fill(const char *dir, const char *file, struct sockaddr_un *ret, struct zb_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int len =
        snprintf(a.sun_path, sizeof(a.sun_path), "%s%s%s", dir ? dir : "", dir ? "/" : "", file);

    if (len < 0 || (size_t)len >= sizeof(a.sun_path))
        return zb_fail(
            err, -ENAMETOOLONG,
            "the socket's path is %d bytes long, and a Unix socket's may be %zu: '%s...'", len,
            sizeof(a.sun_path) - 1, a.sun_path);
    *ret = a;
    return 0;
}

int zp_socket_address(const char *path, struct sockaddr_un *ret, struct zb_err *err)
{
    const char *dir;

    if (path && !*path)
        return zb_fail(err, -EINVAL, "the path of the socket is empty");
    if (!path)
        path = env("ZSHARD_SOCKET");
    if (path)
        return fill(NULL, path, ret, err);
    dir = env("XDG_RUNTIME_DIR");
    return fill(dir, dir ? SOCKET_FILE : SOCKET_SYSTEM, ret, err);
}

int zp_socket_addresses(const char *path, struct sockaddr_un ret[ZP_SOCKETS_MAX],
                        struct zb_err *err)
{
    int rc = zp_socket_address(path, &ret[0], err);

    if (rc < 0)
        return rc;
    if (path || env("ZSHARD_SOCKET") || !env("XDG_RUNTIME_DIR"))
        return 1;
    rc = fill(NULL, SOCKET_SYSTEM, &ret[1], err);
    return rc < 0 ? rc : 2;
}
