/*
 * stream.c - frames and descriptors over a non-blocking Unix stream socket.
 *
 * MODEL, receiving. `in` holds bytes in_head .. in_tail; in_at is the position of in_head in the
 * stream of all received bytes. A frame is handed out in place, and the next call of
 * zp_stream_next() or zp_stream_read() drops it. The kernel delivers the descriptors of one
 * sendmsg() with its first byte and ends the receive after its last, so the descriptors of one
 * recvmsg() are one batch and belong to one frame: the one that begins in the bytes of that
 * receive.
 *
 * MODEL, sending. `out` holds the bytes of whole frames, out_head .. out_tail. A frame that carries
 * descriptors has a struct out_batch with the place of its first byte; one sendmsg() begins there,
 * and none runs across it.
 *
 * INVARIANTS
 *     I1  zp_stream_read() receives only while no whole frame lies in `in`. So there is always room
 *         (a frame fits), and at most one batch is held before a receive and two after it.
 *     I2  A batch that no frame can claim any more is an error as soon as zp_stream_next() sees it,
 *         before the frame that it came with is handed out.
 *     I3  Every descriptor that arrived was handed out, or is in a batch and closed by
 *         zp_stream_free(), or was closed when it was refused.
 */
#include "proto/stream.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"

#define IN_BYTES      (ZP_HEADER_BYTES + ZP_BODY_MAX)
#define OUT_FIRST     4096u             /* bytes of the first `out`; it doubles */
#define RECV_FDS      (ZP_FDS_MAX + 2u) /* room for more than allowed, to detect an excess */
#define BATCHES       2u                /* I1 */
#define CMSG_BYTES(n) CMSG_SPACE(sizeof(int) * (n))

/* There is no padding in which the kernel could put another descriptor. */
_Static_assert(CMSG_BYTES(RECV_FDS) == CMSG_LEN(sizeof(int) * RECV_FDS), "RECV_FDS is even");

struct in_batch {
    uint64_t from, to; /* the receive that it came with: positions as in_at */
    unsigned n;
    int fds[ZP_FDS_MAX];
};

struct out_batch {
    struct zb_list node;
    uint64_t at; /* position of the frame's first byte, as out_at */
    unsigned n;
    int fds[ZP_FDS_MAX];
};

struct zp_stream {
    int fd;

    uint8_t *in;
    size_t in_head, in_tail;
    size_t in_taken; /* bytes of the frame that was returned last, still at in_head */
    uint64_t in_at;
    struct in_batch batches[BATCHES]; /* oldest first */
    unsigned nbatches;

    uint8_t *out;
    size_t out_size, out_head, out_tail;
    uint64_t out_at; /* position of out_head in the stream of all sent bytes */
    struct zb_list out_batches;
    unsigned out_fds;  /* in out_batches */
    unsigned sent_fds; /* sent since the peer was last seen to have read everything */
};

static void close_fds(int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        zb_close_fd(&fds[i]);
}

int zp_stream_new(struct zp_stream **ret, int fd)
{
    struct zp_stream *s = calloc(1, sizeof(*s));
    int flags;

    if (!s)
        return -ENOMEM;
    s->in = malloc(IN_BYTES);
    if (!s->in) {
        free(s);
        return -ENOMEM;
    }
    flags = fcntl(fd, F_GETFL);
    (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    s->fd = fd;
    zb_list_init(&s->out_batches);
    *ret = s;
    return 0;
}

static void out_batch_free(struct out_batch *b)
{
    zb_list_remove(&b->node);
    close_fds(b->fds, b->n);
    free(b);
}

void zp_stream_free(struct zp_stream *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < s->nbatches; i++)
        close_fds(s->batches[i].fds, s->batches[i].n);
    zb_list_each(node, &s->out_batches)
        out_batch_free(zb_container_of(node, struct out_batch, node));
    zb_close_fd(&s->fd);
    free(s->in);
    free(s->out);
    free(s);
}

void zp_stream_shut(struct zp_stream *s)
{
    for (unsigned i = 0; i < s->nbatches; i++)
        close_fds(s->batches[i].fds, s->batches[i].n);
    zb_list_each(node, &s->out_batches)
    {
        struct out_batch *b = zb_container_of(node, struct out_batch, node);

        close_fds(b->fds, b->n);
    }
    zb_close_fd(&s->fd);
}

int zp_stream_fd(const struct zp_stream *s)
{
    return s->fd;
}

/* ---- receiving */

static void in_drop_taken(struct zp_stream *s)
{
    s->in_head += s->in_taken;
    s->in_at += s->in_taken;
    s->in_taken = 0;
    if (s->in_head == s->in_tail)
        s->in_head = s->in_tail = 0;
}

/** Collects the descriptors of one receive: returns their number; those that do not fit into fds
 * were closed. */
static unsigned cmsg_take(struct msghdr *msg, int fds[RECV_FDS])
{
    unsigned n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
            assert(n < RECV_FDS); /* the kernel respects the room it was given */
            fds[n++] = fd;
        }
    }
    return n;
}

static int in_hold(struct zp_stream *s, const struct msghdr *msg, int *fds, unsigned n,
                   size_t received, struct zb_err *err)
{
    uint64_t from = s->in_at + (s->in_tail - s->in_head);
    struct in_batch *b;
    const char *why = NULL;

    if (msg->msg_flags & MSG_CTRUNC)
        why = "more than fit, or than this process may open";
    else if (n > ZP_FDS_MAX)
        why = "more than a frame may carry";
    else if (n > 0 && s->nbatches == BATCHES)
        why = "and they were not announced";
    if (why) {
        close_fds(fds, n);
        return zb_fail(err, -EPROTO, "%u descriptors arrived, %s", n, why);
    }
    if (n == 0)
        return 0;
    b = &s->batches[s->nbatches++];
    *b = (struct in_batch){ .from = from, .to = from + received, .n = n };
    memcpy(b->fds, fds, n * sizeof(fds[0]));
    return 0;
}

/** A temporary lack of resources: the peer is not gone. */
static bool later(int code)
{
    return code == ENOBUFS || code == ENOMEM || code == ETOOMANYREFS;
}

int zp_stream_read(struct zp_stream *s, struct zb_err *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_BYTES(RECV_FDS)];
    } control;
    struct zp_frame frame;
    struct iovec iov;
    struct msghdr msg;
    int fds[RECV_FDS];
    ssize_t n;
    int rc;

    in_drop_taken(s);
    if (zp_frame_next(s->in + s->in_head, s->in_tail - s->in_head, &frame) != 0)
        return 0; /* I1; zp_stream_next() returns it, or reports what is wrong */
    if (s->in_head > 0) {
        memmove(s->in, s->in + s->in_head, s->in_tail - s->in_head);
        s->in_tail -= s->in_head;
        s->in_head = 0;
    }
    iov = (struct iovec){ s->in + s->in_tail, IN_BYTES - s->in_tail };
    msg = (struct msghdr){ .msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof(control.bytes) };
    do
        n = recvmsg(s->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || later(errno)))
        return -EAGAIN;
    if (n < 0)
        return zb_fail(err, -ECONNRESET, "receive: %s", strerror(errno));
    rc = in_hold(s, &msg, fds, cmsg_take(&msg, fds), (size_t)n, err);
    if (rc < 0)
        return rc;
    if (n == 0)
        return zb_fail(err, -ECONNRESET, "the peer closed the connection%s",
                       s->in_tail > 0 ? " in the middle of a frame" : "");
    s->in_tail += (size_t)n;
    return 0;
}

static void in_batch_drop(struct zp_stream *s)
{
    s->nbatches--;
    memmove(&s->batches[0], &s->batches[1], s->nbatches * sizeof(s->batches[0]));
}

/** I2. frame: the next one, which begins at in_at; NULL: it has not arrived completely. If it
 * announces descriptors, the first batch is compared with them later. */
static int in_check_batches(const struct zp_stream *s, const struct zp_frame *frame,
                            struct zb_err *err)
{
    uint64_t end = frame ? s->in_at + ZP_HEADER_BYTES + frame->body_bytes : s->in_at;

    for (unsigned i = frame && frame->fds > 0; i < s->nbatches; i++) {
        const struct in_batch *b = &s->batches[i];

        if (frame ? b->to <= end : b->from > s->in_at)
            return zb_fail(err, -EPROTO, "%u descriptors arrived that no frame announced", b->n);
    }
    return 0;
}

int zp_stream_next(struct zp_stream *s, struct zp_frame *ret, const uint8_t **ret_body,
                   int fds[ZP_FDS_MAX], struct zb_err *err)
{
    struct in_batch *b = &s->batches[0];
    struct zp_frame frame;
    int rc, found;

    in_drop_taken(s);
    found = zp_frame_next(s->in + s->in_head, s->in_tail - s->in_head, &frame);
    if (found == -EMSGSIZE)
        return zb_fail(err, found, "a frame's body is longer than %u bytes", ZP_BODY_MAX);
    if (found < 0)
        return zb_fail(err, found, "what arrived is not a frame");
    rc = in_check_batches(s, found ? &frame : NULL, err);
    if (rc < 0 || found == 0)
        return rc;
    if (frame.fds > 0) {
        unsigned n = s->nbatches > 0 && b->from <= s->in_at ? b->n : 0;

        if (n != frame.fds)
            return zb_fail(err, -EPROTO, "a frame announces %u descriptors, and %u came with it",
                           frame.fds, n);
        memcpy(fds, b->fds, n * sizeof(fds[0]));
        in_batch_drop(s);
    }
    *ret = frame;
    *ret_body = s->in + s->in_head + ZP_HEADER_BYTES;
    s->in_taken = ZP_HEADER_BYTES + frame.body_bytes;
    return 1;
}

/* ---- sending */

size_t zp_stream_pending(const struct zp_stream *s)
{
    return s->out_tail - s->out_head;
}

unsigned zp_stream_fds(struct zp_stream *s)
{
    int unread = 1;

    if (s->sent_fds > 0 && ioctl(s->fd, SIOCOUTQ, &unread) == 0 && unread == 0)
        s->sent_fds = 0;
    return s->out_fds + s->sent_fds;
}

/** Makes room for `bytes` after out_tail. */
static int out_reserve(struct zp_stream *s, size_t bytes)
{
    size_t waiting = zp_stream_pending(s);
    size_t size = s->out_size ? s->out_size : OUT_FIRST;
    uint8_t *p;

    if (bytes > ZP_STREAM_OUT_MAX - waiting)
        return -ENOBUFS;
    if (s->out_head > 0 && s->out_tail + bytes > s->out_size) {
        memmove(s->out, s->out + s->out_head, waiting);
        s->out_head = 0;
        s->out_tail = waiting;
    }
    while (size < waiting + bytes)
        size *= 2;
    if (size == s->out_size)
        return 0;
    p = realloc(s->out, size);
    if (!p)
        return -ENOMEM;
    s->out = p;
    s->out_size = size;
    return 0;
}

static int out_batch_new(struct out_batch **ret, uint64_t at, const int *fds, unsigned n)
{
    struct out_batch *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    zb_list_init(&b->node);
    b->at = at;
    for (; b->n < n; b->n++) {
        b->fds[b->n] = fcntl(fds[b->n], F_DUPFD_CLOEXEC, 0);
        if (b->fds[b->n] < 0) {
            out_batch_free(b);
            return -EMFILE;
        }
    }
    *ret = b;
    return 0;
}

int zp_stream_send(struct zp_stream *s, struct zp_frame frame, const ProtobufCMessage *message,
                   const char *text, const int *fds, unsigned nfds)
{
    size_t body = message ? protobuf_c_message_get_packed_size(message) : text ? strlen(text) : 0;
    struct out_batch *batch = NULL;
    uint8_t *p;
    int rc;

    assert(!(message && text) && nfds <= ZP_FDS_MAX);
    if (body > ZP_BODY_MAX)
        return -EMSGSIZE;
    rc = out_reserve(s, ZP_HEADER_BYTES + body);
    if (rc == 0 && nfds > 0)
        rc = out_batch_new(&batch, s->out_at + zp_stream_pending(s), fds, nfds);
    if (rc < 0)
        return rc;
    frame.body_bytes = (uint32_t)body;
    frame.fds = (uint8_t)nfds;
    p = s->out + s->out_tail;
    zp_frame_put(&frame, p);
    if (message)
        (void)protobuf_c_message_pack(message, p + ZP_HEADER_BYTES);
    else if (text)
        memcpy(p + ZP_HEADER_BYTES, text, body);
    s->out_tail += ZP_HEADER_BYTES + body;
    if (batch) {
        zb_list_push_back(&s->out_batches, &batch->node);
        s->out_fds += nfds;
    }
    return 0;
}

static struct out_batch *out_first(const struct zp_stream *s)
{
    return zb_list_empty(&s->out_batches)
               ? NULL
               : zb_container_of(s->out_batches.next, struct out_batch, node);
}

/** One sendmsg(): bytes up to the next frame with descriptors; with its descriptors, if such a
 * frame begins here. */
static ssize_t out_send(struct zp_stream *s)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_BYTES(ZP_FDS_MAX)];
    } control = { .bytes = { 0 } };
    struct out_batch *b = out_first(s), *stop = b;
    struct iovec iov = { s->out + s->out_head, zp_stream_pending(s) };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
    ssize_t n;

    if (b && b->at == s->out_at) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_BYTES(b->n);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(int) * b->n);
        memcpy(CMSG_DATA(&control.align), b->fds, sizeof(int) * b->n);
        stop = b->node.next == &s->out_batches
                   ? NULL
                   : zb_container_of(b->node.next, struct out_batch, node);
    }
    if (stop)
        iov.iov_len = (size_t)(stop->at - s->out_at);
    do
        n = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0 && msg.msg_control) {
        s->out_fds -= b->n;
        s->sent_fds += b->n;
        out_batch_free(b);
    }
    return n;
}

int zp_stream_write(struct zp_stream *s)
{
    while (zp_stream_pending(s) > 0) {
        ssize_t n = out_send(s);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0 && later(errno))
            return 1;
        if (n < 0)
            return errno == EPIPE ? -EPIPE : -ECONNRESET;
        s->out_head += (size_t)n;
        s->out_at += (uint64_t)n;
    }
    s->out_head = s->out_tail = 0;
    if (s->out_size > IN_BYTES) { /* grown for a slow peer: not kept */
        free(s->out);
        s->out = NULL;
        s->out_size = 0;
    }
    return 0;
}
