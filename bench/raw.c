#include "bench/raw.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"

#define RAW_QUEUE_MAX (64u << 10) /* bytes that may wait to be sent */
#define RAW_POLL_MAX  256u

int zbench_raw_open(struct zbench_raw *r, const char *socket_path, bool hello)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc;

    *r = (struct zbench_raw){ .stream = NULL };
    if (fd < 0)
        return -errno;
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    rc = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    if (rc == 0)
        rc = zp_stream_new(&r->stream, fd);
    if (rc < 0) {
        (void)close(fd);
        return rc;
    }
    if (hello) {
        Zp__Hello h = ZP__HELLO__INIT;

        h.version_min = ZP_VERSION_MIN;
        h.version_max = ZP_VERSION_MAX;
        h.program = zp_str("zbench");
        rc = zbench_raw_send(r, ZP_HELLO, &h.base);
    }
    if (rc < 0)
        zbench_raw_close(r);
    return rc;
}

void zbench_raw_close(struct zbench_raw *r)
{
    zp_stream_free(r->stream);
    *r = (struct zbench_raw){ .stream = NULL };
}

int zbench_raw_send(struct zbench_raw *r, unsigned method, const ProtobufCMessage *message)
{
    bool oneway = !zp_method_info(method)->reply;
    struct zp_frame frame = { .method = (uint16_t)method,
                              .kind = oneway ? ZP_ONEWAY : ZP_REQUEST,
                              .tag = oneway ? 0 : r->tag + 1 };
    int rc = 0;

    if (zp_stream_pending(r->stream) > RAW_QUEUE_MAX) {
        rc = zp_stream_write(r->stream);
        if (rc < 0 || zp_stream_pending(r->stream) > RAW_QUEUE_MAX)
            return rc < 0 ? rc : -EAGAIN;
    }
    rc = zp_stream_send(r->stream, frame, message, NULL, NULL, 0);
    if (rc < 0)
        return rc;
    r->tag += !oneway;
    r->unanswered += !oneway;
    rc = zp_stream_write(r->stream);
    return rc < 0 ? rc : 0;
}

int zbench_raw_read(struct zbench_raw *r, unsigned *ret_refused)
{
    struct zb_err err = { 0 };
    int answers = 0, rc = zp_stream_write(r->stream);

    while (rc >= 0) {
        int fds[ZP_FDS_MAX];
        struct zp_frame frame;
        const uint8_t *body;

        while ((rc = zp_stream_next(r->stream, &frame, &body, fds, &err)) == 1) {
            for (unsigned i = 0; i < frame.fds; i++)
                (void)close(fds[i]);
            if (frame.kind != ZP_REPLY)
                continue;
            answers++;
            *ret_refused += frame.code < 0;
            r->unanswered -= r->unanswered > 0;
        }
        if (rc == 0)
            rc = zp_stream_read(r->stream, &err);
    }
    return rc == -EAGAIN ? answers : -ECONNRESET;
}

void zbench_raw_poll(struct zbench_raw *all, unsigned n, bool reads, int timeout_ms)
{
    struct pollfd fds[RAW_POLL_MAX];
    unsigned k = 0;

    for (unsigned i = 0; i < n && k < RAW_POLL_MAX; i++) {
        short events = reads ? POLLIN : 0;

        if (!all[i].stream)
            continue;
        if (zp_stream_pending(all[i].stream) > 0)
            events |= POLLOUT;
        fds[k++] = (struct pollfd){ .fd = zp_stream_fd(all[i].stream), .events = events };
    }
    (void)poll(fds, k, timeout_ms);
}
