#include "daemon/os/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"

static int notify_send(const char *state, int flags)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    size_t len = path ? strlen(path) : 0;
    int fd, rc = 0;

    if (len == 0)
        return 0;
    if ((path[0] != '/' && path[0] != '@') || len >= sizeof(a.sun_path))
        return -EINVAL;
    memcpy(a.sun_path, path, len);
    if (path[0] == '@')
        a.sun_path[0] = '\0'; /* the abstract name space */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | flags, (const struct sockaddr *)&a,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
        rc = -errno;
    zb_close_fd(&fd);
    return rc;
}

bool zsd_notify_managed(void)
{
    const char *path = getenv("NOTIFY_SOCKET");

    return path && *path;
}

int zsd_notify(const char *state)
{
    return notify_send(state, 0);
}

int zsd_notify_try(const char *state)
{
    return notify_send(state, MSG_DONTWAIT);
}

/** A positive number in the environment; 0: there is none. */
static uint64_t notify_variable(const char *name)
{
    const char *text = getenv(name);
    char *end;
    uint64_t n;

    if (!text || *text < '0' || *text > '9')
        return 0;
    n = strtoull(text, &end, 10);
    return *end == '\0' ? n : 0;
}

uint64_t zsd_notify_watchdog_us(void)
{
    if (getenv("WATCHDOG_PID") && notify_variable("WATCHDOG_PID") != (uint64_t)getpid())
        return 0;
    return notify_variable("WATCHDOG_USEC");
}
