/*
 * tcp_socket.c - non-blocking sockets with a deadline, and their addresses.
 */
#include "client/zero/comm/tcp_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"

int zc_tcp_ready(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = events };
        uint64_t now = zb_now_ns();
        int n;

        if (now >= deadline_ns)
            return -ETIMEDOUT;
        n = poll(&p, 1, (int)zb_min_u64((deadline_ns - now) / 1000000 + 1, INT_MAX));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

int zc_tcp_move(int fd, void *data, size_t bytes, bool out, uint64_t deadline_ns)
{
    char *at = data;

    while (bytes > 0) {
        ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        int rc = 0;

        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0) {
            return -ECONNRESET;
        } else if (errno == EAGAIN) {
            rc = zc_tcp_ready(fd, out ? POLLOUT : POLLIN, deadline_ns);
        } else if (errno != EINTR) {
            rc = -errno;
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

void zc_tcp_address_name(const union zc_tcp_socket_address *a, char out[ZC_TCP_NAME_BYTES])
{
    char text[INET6_ADDRSTRLEN] = "?";
    bool v6 = a->any.sa_family == AF_INET6;

    (void)inet_ntop(a->any.sa_family, v6 ? (const void *)&a->v6.sin6_addr : &a->v4.sin_addr, text,
                    sizeof(text));
    (void)snprintf(out, ZC_TCP_NAME_BYTES, v6 ? "[%s]:%u" : "%s:%u", text,
                   (unsigned)ntohs(v6 ? a->v6.sin6_port : a->v4.sin_port));
}

bool zc_tcp_address_loopback(const union zc_tcp_socket_address *a)
{
    return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr)
                                        : ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
}

void zc_tcp_address_set_port(union zc_tcp_socket_address *a, uint32_t port)
{
    if (a->any.sa_family == AF_INET6)
        a->v6.sin6_port = htons((uint16_t)port);
    else
        a->v4.sin_port = htons((uint16_t)port);
}

static uint32_t address_port(const union zc_tcp_socket_address *a)
{
    return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

static socklen_t address_bytes(const union zc_tcp_socket_address *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

void zc_tcp_address_pack(const union zc_tcp_socket_address *a, uint32_t port,
                         struct zc_tcp_address *out)
{
    *out = (struct zc_tcp_address){ .family = a->any.sa_family, .port = (uint16_t)port };
    if (a->any.sa_family == AF_INET6) {
        memcpy(out->bytes, &a->v6.sin6_addr, 16);
        out->scope = a->v6.sin6_scope_id;
    } else {
        memcpy(out->bytes, &a->v4.sin_addr, 4);
    }
}

void zc_tcp_address_unpack(const struct zc_tcp_address *a, union zc_tcp_socket_address *out)
{
    memset(out, 0, sizeof(*out));
    out->any.sa_family = a->family;
    if (a->family == AF_INET6) {
        memcpy(&out->v6.sin6_addr, a->bytes, 16);
        out->v6.sin6_scope_id = a->scope;
    } else {
        memcpy(&out->v4.sin_addr, a->bytes, 4);
    }
    zc_tcp_address_set_port(out, a->port);
}

static int socket_new(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    return fd < 0 ? -errno : fd;
}

void zc_tcp_nap(void)
{
    struct timespec t = { .tv_nsec = 50000000 };

    (void)nanosleep(&t, NULL);
}

/* TCP can connect a socket to itself: if nothing listens at a port, and the socket gets that port
 * as its own. */
static bool connected_to_itself(int fd)
{
    union zc_tcp_socket_address here = { 0 }, there = { 0 };
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);

    return getsockname(fd, &here.any, &here_bytes) == 0 &&
           getpeername(fd, &there.any, &there_bytes) == 0 && here_bytes == there_bytes &&
           memcmp(&here, &there, here_bytes) == 0;
}

int zc_tcp_connect(const union zc_tcp_socket_address *to, uint64_t deadline_ns)
{
    for (;;) {
        int fd = socket_new(to->any.sa_family), rc = 0;
        socklen_t bytes = sizeof(rc);

        if (fd < 0)
            return fd;
        if (connect(fd, &to->any, address_bytes(to)) < 0)
            rc = -errno;
        if (rc == -EINPROGRESS) {
            rc = zc_tcp_ready(fd, POLLOUT, deadline_ns);
            if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &rc, &bytes) < 0)
                rc = errno;
            rc = rc > 0 ? -rc : rc;
        }
        if (rc == 0 && connected_to_itself(fd))
            rc = -ECONNREFUSED;
        if (rc == 0)
            return fd;
        (void)close(fd);
        if (zb_now_ns() >= deadline_ns)
            return rc;
        if (rc != -ECONNREFUSED && rc != -ETIMEDOUT && rc != -EHOSTUNREACH && rc != -ENETUNREACH &&
            rc != -EINTR)
            return rc;
        zc_tcp_nap();
    }
}

int zc_tcp_listen(int family, const union zc_tcp_socket_address *at, uint32_t *ret_port)
{
    union zc_tcp_socket_address a = { .any.sa_family = (sa_family_t)family };
    socklen_t bytes = sizeof(a);
    int on = 1, rc = 0, fd = socket_new(family);

    if (fd < 0)
        return fd;
    if (at)
        a = *at;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &a.any, address_bytes(&a)) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, &a.any, &bytes) < 0) {
        rc = -errno;
        (void)close(fd);
        return rc;
    }
    *ret_port = address_port(&a);
    return fd;
}

void zc_tcp_settle(int fd)
{
    int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* detects a dead machine */
}
