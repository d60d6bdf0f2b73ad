#include "bench/link.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define BURST_PART   400u /* the bucket, or longest burst, holds this part of a second */
#define BURST_MIN    65536u

#define SOCKET_BYTES "4096 4194304 8388608" /* minimum, default, maximum; in this namespace only */

static int file_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        (void)close(fd);
    return written ? 0 : -EPERM;
}

/* Enters a user namespace as its root, for a user who is not root. */
static int link_user(struct zb_err *err)
{
    char map[32];

    (void)snprintf(map, sizeof(map), "0 %u 1", (unsigned)geteuid());
    if (unshare(CLONE_NEWUSER) < 0)
        return zb_fail(err, -errno, "a user namespace: %m");
    return file_write("/proc/self/uid_map", map) < 0
               ? zb_fail(err, -EPERM, "root of a user namespace: %m")
               : 0;
}

static int link_run(const char *command, struct zb_err *err)
{
    int status = system(command); /* NOLINT: our own command */

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return zb_fail(err, -ENOTSUP, "no link could be made (ip and tc of iproute2, veth, tbf): %s",
                   command);
}

/* Sets up one end: its address and its bucket. Socket buffers hold a whole slice, so that the link
 * is busy while its ranks sleep; if that cannot be set, they have the system's size. */
static int link_end(const struct zbench_link *l, unsigned number, struct zb_err *err)
{
    char command[512];

    (void)file_write("/proc/sys/net/ipv4/tcp_wmem", SOCKET_BYTES);
    (void)file_write("/proc/sys/net/ipv4/tcp_rmem", SOCKET_BYTES);

    (void)snprintf(command, sizeof(command),
                   "exec 2>/dev/null; PATH=$PATH:/usr/sbin:/sbin; ip addr add 192.0.2.%u/30 dev "
                   "zb%u && ip link set zb%u up && tc qdisc add dev zb%u root tbf rate %llubit "
                   "burst %llub latency 400ms",
                   number, number, number, number, (unsigned long long)l->rate * 8,
                   (unsigned long long)zb_max_u64(l->rate / BURST_PART, BURST_MIN));
    return link_run(command, err);
}

int zbench_link_enter(struct zbench_link *l, struct zb_err *err)
{
    int rc = geteuid() == 0 ? 0 : link_user(err);

    if (rc < 0)
        return rc;
    if (unshare(CLONE_NEWNET) < 0)
        return zb_fail(err, -errno, "a network namespace: %m");
    if (pipe2(l->ready, O_CLOEXEC) < 0 || pipe2(l->made, O_CLOEXEC) < 0)
        return zb_fail(err, -errno, "a pipe: %m");
    return 0;
}

static bool byte_comes(int fd)
{
    char byte;
    ssize_t n;

    do
        n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

int zbench_link_child(struct zbench_link *l, struct zb_err *err)
{
    (void)close(l->ready[0]);
    (void)close(l->made[1]);
    if (unshare(CLONE_NEWNET) < 0)
        return zb_fail(err, -errno, "a network namespace: %m");
    if (write(l->ready[1], "", 1) != 1 || !byte_comes(l->made[0]))
        return zb_fail(err, -EPIPE, "the link was not made");
    return link_end(l, 2, err);
}

int zbench_link_parent(struct zbench_link *l, pid_t child, struct zb_err *err)
{
    char command[256];
    int rc;

    (void)close(l->ready[1]);
    (void)close(l->made[0]);
    if (!byte_comes(l->ready[0]))
        return zb_fail(err, -ENOTSUP, "no second network namespace");
    (void)snprintf(command, sizeof(command),
                   "exec 2>/dev/null; PATH=$PATH:/usr/sbin:/sbin; ip link add zb1 type veth peer "
                   "name zb2 netns %d",
                   (int)child);
    rc = link_run(command, err);
    if (rc == 0)
        rc = link_end(l, 1, err);
    if (rc == 0 && write(l->made[1], "", 1) != 1)
        rc = zb_fail(err, -EPIPE, "the other end of the link is gone");
    (void)close(l->ready[0]);
    (void)close(l->made[1]);
    return rc;
}
