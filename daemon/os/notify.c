#include "daemon/os/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/util.h"

int zsd_notify(const char *state)
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
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&a,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
        rc = -errno;
    zb_close_fd(&fd);
    return rc;
}
