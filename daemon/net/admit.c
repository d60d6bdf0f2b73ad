/*
 * admit.c - admission of a new connection, and the pidfd of its process.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/net/conn_priv.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

int zsd_link_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t len = sizeof(pidfd);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
        return pidfd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1; /* before Linux 6.5 */
}

int zsd_link_admit(struct zsd_link *l)
{
    struct zsd *daemon = l->server->daemon;
    struct zb_err err = { 0 };

    if (zsd_quota_join(daemon, &l->conn.quota, ZSD_LEVEL_CONN, l->conn.uid) < 0)
        return -ENOMEM;
    if (zsd_limit_take(&l->conn.quota, ZSD_LIMIT_CLIENTS, 1, &err) == 0) {
        l->conn.kept_place = daemon->clients >= daemon->config.clients_max;
        return 0;
    }
    l->refusal = malloc(sizeof(err));
    if (!l->refusal)
        return -ENOMEM;
    *l->refusal = err;
    return 0;
}
