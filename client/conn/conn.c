/*
 * conn.c - the connection: connecting, receiving, losing it.
 *
 * MODEL. One receive per turn: all available bytes are read, every whole frame is handled, and
 * callbacks run in the order of the frames. Requests that callbacks start are queued, and sent when
 * all callbacks have run.
 *
 * THE END is detected while receiving, never while sending, so that the daemon's last messages are
 * read first. If sending fails, `deaf` is set, and the next receive finds the end or makes it one.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/conn/conn.h"
#include "proto/socket.h"

#define NS_PER_MS        UINT64_C(1000000)
#define CONNECT_PAUSE_MS 5

/* ---- connecting */

/* Connects to one address; waits while its backlog is full: that daemon is alive, but busy. Returns
 * the socket, or a negative errno: -ETIMEDOUT if it stays full. */
static int conn_try(const struct sockaddr_un *address, uint64_t until_ns)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -errno : 0;

    while (rc == 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
        rc = -errno;
        if (rc == -EAGAIN && zb_now_ns() >= until_ns)
            rc = -ETIMEDOUT;
        if (rc == -EAGAIN)
            (void)poll(NULL, 0, CONNECT_PAUSE_MS);
        if (rc == -EAGAIN || rc == -EINTR)
            rc = 0;
    }
    if (rc < 0 && fd >= 0)
        (void)close(fd);
    return rc < 0 ? rc : fd;
}

/* Whether no daemon listens there. It may be about to start. */
static bool conn_absent(int rc)
{
    return rc == -ENOENT || rc == -ECONNREFUSED || rc == -ENOTDIR;
}

/* Connects to the first of n addresses at which a daemon listens, and waits for one until wait_ns.
 * Returns the socket, or what the first address failed with that is more than an absence, with its
 * place in *ret_at. */
static int conn_connect(const struct sockaddr_un *addresses, unsigned n, uint64_t until_ns,
                        uint64_t wait_ns, unsigned *ret_at)
{
    for (;;) {
        int first = 0;

        for (unsigned i = 0; i < n; i++) {
            int rc = conn_try(&addresses[i], until_ns);

            if (rc >= 0)
                return rc;
            if (first == 0 || (conn_absent(first) && !conn_absent(rc))) {
                first = rc;
                *ret_at = i;
            }
        }
        if (!conn_absent(first) || zb_now_ns() >= wait_ns)
            return first;
        (void)poll(NULL, 0, CONNECT_PAUSE_MS);
    }
}

/* The message of a failure; it names each path that was tried. */
static int conn_refused(struct zc_client *c, const struct sockaddr_un *addresses, unsigned n,
                        unsigned at, int rc)
{
    const char *path = addresses[at].sun_path;

    if (rc == -ETIMEDOUT)
        return zc_fail(c, rc, "the daemon at '%s' accepts no connection", path);
    if (rc == -EACCES || rc == -EPERM)
        return zc_fail(c, -EPERM, "not allowed to connect to '%s': zctl doctor says why", path);
    if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS)
        return zc_fail(c, rc, "a socket: %s", strerror(-rc));
    if (n == 1 || !conn_absent(rc))
        return zc_fail(c, -ENOTCONN, "no daemon answers at '%s': %s", path, strerror(-rc));
    return zc_fail(c, -ENOTCONN, "no daemon answers at '%s' or '%s'", addresses[0].sun_path,
                   addresses[1].sun_path);
}

int zc_conn_open(struct zc_client *c, const char *path, uint64_t until_ns, uint64_t wait_ns)
{
    struct sockaddr_un addresses[ZP_SOCKETS_MAX];
    struct zb_err err = { 0 };
    unsigned at = 0;
    int n = zp_socket_addresses(path, addresses, &err), fd;

    if (n < 0)
        return zc_fail(c, -EINVAL, "%s", err.text);
    fd = conn_connect(addresses, (unsigned)n, until_ns, wait_ns, &at);
    if (fd < 0)
        return conn_refused(c, addresses, (unsigned)n, at, fd);
    if (zp_stream_new(&c->stream, fd) < 0) {
        (void)close(fd);
        return zc_fail(c, -ENOMEM, "a connection: %m");
    }
    c->state = ZC_OPEN;
    c->heard_ns = zb_now_ns();
    return 0;
}

/* ---- losing the connection */

unsigned zc_conn_lose(struct zc_client *c, const struct zb_err *why)
{
    assert(c->state == ZC_OPEN && why->code < 0);
    c->state = ZC_LOST;
    c->lost = *why;
    if (why->code != -EPROTO && why->code != -ECANCELED)
        c->lost.code = -ENOTCONN; /* for later calls */
    return zc_calls_end(c, false, why);
}

/* ---- receiving */

static unsigned conn_run_event(struct zc_client *c, const struct zc_event *event)
{
    if (!c->on_event)
        return 0;
    c->running = true;
    c->on_event(c->on_event_arg, event);
    c->running = false;
    return 1;
}

/** Handles an event. Returns the number of callbacks that ran, or -EPROTO. */
static int conn_event(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body,
                      struct zb_err *err)
{
    const ProtobufCMessage *m;
    const Zp__JobEvent *e;
    struct zb_err why = { 0 };
    struct zc_event event;
    unsigned ran;

    if (frame->method < ZP_EVENT_PEER_LOST || frame->method > ZP_EVENT_RESTART)
        return 0; /* from a newer daemon */
    if (zp_decode(c->arena, &zp__job_event__descriptor, body, frame->body_bytes, &m, err) < 0)
        return -EPROTO;
    e = (const Zp__JobEvent *)m;
    if (e->code >= 0)
        return zb_fail(err, -EPROTO, "an event with code %d", e->code);
    /* A copy, since the message is in the handle's arena, and the callback may use the handle. */
    (void)zb_fail(&why, frame->method == ZP_EVENT_PEER_LOST ? -EOWNERDEAD : e->code, "%s", e->text);
    event = (struct zc_event){ .kind = (enum zc_event_kind)frame->method,
                               .job = e->job,
                               .rank = e->rank,
                               .code = why.code,
                               .text = why.text };
    ran = conn_run_event(c, &event);
    if (event.job == c->job && c->job != 0 && event.kind != ZC_EVENT_RESTART)
        ran += zc_calls_end(c, true, &why);
    return (int)ran;
}

/** Handles a frame. Returns the number of callbacks that ran, or -EPROTO. */
static int conn_frame(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body,
                      int *fds, struct zb_err *err)
{
    if (frame->kind == ZP_REPLY)
        return zc_call_reply(c, frame, body, fds, err);
    for (unsigned i = 0; i < frame->fds; i++)
        zb_close_fd(&fds[i]);
    if (frame->kind != ZP_EVENT || frame->fds > 0)
        return zb_fail(err, -EPROTO, "a frame of kind %u with %u descriptors", frame->kind,
                       frame->fds);
    return conn_event(c, frame, body, err);
}

/** Handles every frame that has arrived. Returns the number of callbacks that ran. */
static unsigned conn_frames(struct zc_client *c)
{
    struct zb_err err = { 0 };
    struct zp_frame frame;
    const uint8_t *body;
    int fds[ZP_FDS_MAX], rc;
    unsigned ran = 0;

    while ((rc = zp_stream_next(c->stream, &frame, &body, fds, &err)) == 1) {
        rc = conn_frame(c, &frame, body, fds, &err);
        if (rc < 0)
            break;
        ran += (unsigned)rc;
    }
    if (rc < 0) {
        struct zb_err why = { 0 };

        (void)zb_fail(&why, -EPROTO, "the daemon violates the protocol: %s", err.text);
        ran += zc_conn_lose(c, &why);
    }
    return ran;
}

static unsigned conn_receive(struct zc_client *c)
{
    struct zb_err err = { 0 }, why = { 0 };
    int rc = zp_stream_read(c->stream, &err);

    if (rc == 0) {
        c->heard_ns = zb_now_ns();
        return conn_frames(c);
    }
    if (rc == -EAGAIN && !c->deaf)
        return 0;
    if (rc == -EPROTO)
        (void)zb_fail(&why, -EPROTO, "the daemon violates the protocol: %s", err.text);
    else
        (void)zb_fail(&why, -ENOTCONN, "the daemon is gone: %s",
                      rc == -EAGAIN ? "it no longer receives" : err.text);
    return zc_conn_lose(c, &why);
}

unsigned zc_conn_turn(struct zc_client *c, uint64_t until_ns)
{
    struct pollfd p = { .fd = zp_stream_fd(c->stream), .events = POLLIN };
    uint64_t now = until_ns > 0 ? zb_now_ns() : 0;
    unsigned ran;

    (void)zc_conn_releases(c); /* on failure they stay collected */
    zc_conn_send(c);
    if (now < until_ns && !c->deaf) {
        uint64_t ms = zb_min_u64(zb_div_up(until_ns - now, NS_PER_MS), INT32_MAX);

        if (zp_stream_pending(c->stream) > 0)
            p.events |= POLLOUT;
        if (poll(&p, 1, until_ns == UINT64_MAX ? -1 : (int)ms) <= 0)
            return 0; /* nothing arrived, or a signal */
        if (p.revents & POLLOUT)
            zc_conn_send(c);
        if (!(p.revents & ~POLLOUT))
            return 0;
    }
    ran = conn_receive(c);
    if (c->state == ZC_OPEN)
        zc_conn_send(c);
    return ran;
}
