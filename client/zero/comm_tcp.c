/*
 * comm_tcp.c - collectives over TCP, between ranks that torchrun, or whatever sets the same
 * environment, has started: no MPI is needed.
 *
 * MODEL. A connection from each rank to each (tcp_mesh.c). A collective is, for each peer, one
 * message out and one in: a header that names it, and a slice. All ranks start the same collectives
 * in the same order, so messages of a connection come in that order too: each peer has a cursor of
 * what is being sent to it and one of what is being received from it, which walk the list of
 * operations, and a slice is read straight to where it belongs. What arrives for an operation that
 * this rank has not started yet stays in the socket.
 *
 * INVARIANT. An operation leaves the list when all its messages are through; so no cursor points at
 * one that was freed.
 *
 * PROGRESS is made inside start and test; between them the sockets' buffers are all there is. Bytes
 * are copied as they are, so ranks are bit for bit those of MPI.
 *
 * ERRORS are final: the connection that failed is named, and whoever waits for this rank finds its
 * connections closed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/util.h"
#include "client/zero/comm_priv.h"
#include "client/zero/tcp_mesh.h"

#define TCP_MAGIC UINT32_C(0x7a733243)

enum tcp_kind { TCP_ALL_GATHER = 1, TCP_EXCHANGE = 2 };

struct tcp_header {
    uint32_t magic, kind;
    uint64_t number; /* of the collective, from 0 */
    uint64_t slice_bytes;
};

struct zc_comm_op {
    struct zb_list node;  /* in ops */
    struct zb_list alive; /* in all */
    struct tcp_header header;
    const char *send;
    char *recv;
    uint32_t left; /* messages that are not through */
};

/* Where one direction of one connection is: in message `op` (NULL: behind the last one), `at` bytes
 * of header and slice are through. */
struct tcp_cursor {
    struct zc_comm_op *op;
    size_t at;
};

struct tcp_peer {
    struct tcp_cursor out, in;
    struct tcp_header arriving;
};

struct tcp_comm {
    struct zc_comm base;
    struct zc_tcp_mesh mesh;
    struct tcp_peer *peers; /* [world]; its own is not used */
    struct zb_list ops;     /* not all through, in the order of their start */
    struct zb_list all;     /* and those that are, until their test: what close frees */
    uint64_t started;
    int broken; /* the code of the first failure */
    struct zb_err err;
};

static struct tcp_comm *tcp_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct tcp_comm, base);
}

static int tcp_fail(struct tcp_comm *t, uint32_t peer, int rc, const char *what)
{
    t->broken = zb_fail(&t->err, rc, "rank %u (%s): %s", peer, t->mesh.names[peer], what);
    return t->broken;
}

/* The slice of an operation that goes to this peer. */
static const char *slice_out(const struct zc_comm_op *op, uint32_t peer)
{
    return op->send + (op->header.kind == TCP_EXCHANGE ? peer * op->header.slice_bytes : 0);
}

/* One message is through. */
static void cursor_next(struct tcp_comm *t, struct tcp_cursor *c)
{
    struct zc_comm_op *op = c->op;
    struct zb_list *next = op->node.next;

    *c = (struct tcp_cursor){ .op = next == &t->ops
                                        ? NULL
                                        : zb_container_of(next, struct zc_comm_op, node) };
    if (--op->left == 0)
        zb_list_remove(&op->node);
}

/* Bytes that a socket took or gave; 0: it would block; or an error. */
static ssize_t tcp_moved(struct tcp_comm *t, uint32_t peer, ssize_t n, bool out)
{
    char text[128];

    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n == 0 || errno == ECONNRESET || errno == EPIPE)
        return tcp_fail(t, peer, -EOWNERDEAD, "it has closed the connection");
    (void)snprintf(text, sizeof(text), "%s: %s", out ? "sending" : "receiving", strerror(errno));
    return tcp_fail(t, peer, -errno, text);
}

static int peer_send(struct tcp_comm *t, uint32_t peer)
{
    struct tcp_cursor *c = &t->peers[peer].out;

    while (c->op) {
        size_t header = sizeof(c->op->header), total = header + c->op->header.slice_bytes;
        size_t in_slice = c->at > header ? c->at - header : 0;
        struct iovec part[2] = {
            { (char *)&c->op->header + c->at, header - c->at },
            { (char *)(uintptr_t)slice_out(c->op, peer) + in_slice, total - header - in_slice },
        };
        bool headless = c->at >= header;
        struct msghdr m = { .msg_iov = headless ? &part[1] : part, .msg_iovlen = headless ? 1 : 2 };
        ssize_t n = tcp_moved(t, peer, sendmsg(t->mesh.fds[peer], &m, MSG_NOSIGNAL), true);

        if (n <= 0)
            return (int)n;
        c->at += (size_t)n;
        if (c->at == total)
            cursor_next(t, c);
    }
    return 0;
}

static int header_check(struct tcp_comm *t, uint32_t peer)
{
    const struct tcp_header *want = &t->peers[peer].in.op->header, *is = &t->peers[peer].arriving;
    char text[200];

    if (memcmp(want, is, sizeof(*is)) == 0)
        return 0;
    if (is->magic != TCP_MAGIC)
        return tcp_fail(t, peer, -EPROTO, "what it sent is no collective");
    (void)snprintf(
        text, sizeof(text),
        "its collective %llu is %s of %llu bytes, ours %s of %llu: the ranks do not make "
        "the same calls",
        (unsigned long long)is->number, is->kind == TCP_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)is->slice_bytes,
        want->kind == TCP_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)want->slice_bytes);
    return tcp_fail(t, peer, -EPROTO, text);
}

static int peer_receive(struct tcp_comm *t, uint32_t peer)
{
    struct tcp_peer *p = &t->peers[peer];
    struct tcp_cursor *c = &p->in;

    while (c->op) {
        size_t header = sizeof(p->arriving), slice = c->op->header.slice_bytes;
        bool in_header = c->at < header;
        char *to = in_header ? (char *)&p->arriving + c->at
                             : c->op->recv + peer * slice + (c->at - header);
        size_t want = (in_header ? header : header + slice) - c->at;
        ssize_t n = tcp_moved(t, peer, recv(t->mesh.fds[peer], to, want, 0), false);

        if (n <= 0)
            return (int)n;
        c->at += (size_t)n;
        if (c->at == header && header_check(t, peer) < 0)
            return t->broken;
        if (c->at == header + slice)
            cursor_next(t, c);
    }
    return 0;
}

/* Moves what the sockets take and give now. Each rank begins behind itself, so that not all talk to
 * one. */
static int tcp_turn(struct tcp_comm *t)
{
    for (uint32_t i = 1; i < t->base.world && t->broken == 0; i++) {
        uint32_t peer = (t->base.rank + i) % t->base.world;
        int rc = peer_receive(t, peer);

        if (rc == 0)
            (void)peer_send(t, peer);
    }
    return t->broken;
}

static int tcp_start(struct zc_comm *comm, enum tcp_kind kind, const void *send, void *recv,
                     size_t slice_bytes, struct zc_comm_op **ret)
{
    struct tcp_comm *t = tcp_of(comm);
    struct zc_comm_op *op = malloc(sizeof(*op));
    char *own = (char *)recv + slice_bytes * comm->rank;

    if (!op)
        return t->broken = zb_fail(&t->err, -ENOMEM, "no memory for a collective");
    *op = (struct zc_comm_op){
        .header = { .magic = TCP_MAGIC,
                    .kind = kind,
                    .number = t->started++,
                    .slice_bytes = slice_bytes },
        .send = send,
        .recv = recv,
        .left = 2 * (comm->world - 1),
    };
    zb_list_init(&op->node);
    zb_list_push_back(&t->all, &op->alive);
    if (slice_out(op, comm->rank) != own)
        memcpy(own, slice_out(op, comm->rank), slice_bytes);
    if (op->left > 0)
        zb_list_push_back(&t->ops, &op->node);
    for (uint32_t p = 0; p < comm->world; p++) {
        if (p == comm->rank)
            continue;
        if (!t->peers[p].out.op)
            t->peers[p].out.op = op;
        if (!t->peers[p].in.op)
            t->peers[p].in.op = op;
    }
    *ret = op;
    return tcp_turn(t);
}

static int tcp_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret)
{
    return tcp_start(comm, TCP_ALL_GATHER, send, recv, slice_bytes, ret);
}

static int tcp_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                        struct zc_comm_op **ret)
{
    return tcp_start(comm, TCP_EXCHANGE, send, recv, slice_bytes, ret);
}

static int tcp_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct tcp_comm *t = tcp_of(comm);
    int rc = op->left > 0 ? tcp_turn(t) : 0;

    *ret_done = rc == 0 && op->left == 0;
    if (*ret_done) {
        zb_list_remove(&op->alive);
        free(op);
    }
    return rc;
}

static const char *tcp_error(struct zc_comm *comm)
{
    return tcp_of(comm)->err.text;
}

static void tcp_close(struct zc_comm *comm, bool clean)
{
    struct tcp_comm *t = tcp_of(comm);

    (void)clean; /* what was sent arrives, or its peer is gone: nothing is waited for either way */
    zb_list_each(pos, &t->all) free(zb_container_of(pos, struct zc_comm_op, alive));
    zc_tcp_mesh_close(&t->mesh);
    free(t->peers);
    free(t);
}

static const struct zc_comm_ops tcp_ops = {
    .name = "tcp",
    .all_gather = tcp_all_gather,
    .exchange = tcp_exchange,
    .test = tcp_test,
    .close = tcp_close,
    .error = tcp_error,
};

int zc_tcp_open(struct zc_comm **ret, struct zb_err *err)
{
    struct tcp_comm *t = calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return zb_fail(err, -ENOMEM, "no memory for a comm");
    zb_list_init(&t->ops);
    zb_list_init(&t->all);
    rc = zc_tcp_meet(&t->mesh, err);
    if (rc == 0 && !(t->peers = calloc(t->mesh.world, sizeof(*t->peers))))
        rc = zb_fail(err, -ENOMEM, "no memory for %u ranks", t->mesh.world);
    if (rc < 0) {
        zc_tcp_mesh_close(&t->mesh);
        free(t);
        return rc;
    }
    t->base = (struct zc_comm){ .ops = &tcp_ops, .rank = t->mesh.rank, .world = t->mesh.world };
    *ret = &t->base;
    return 0;
}
