/*
 * comm_tcp.c - collectives over TCP, between ranks started by torchrun or a launcher that sets the
 * same environment. MPI is not needed.
 *
 * MODEL. There is a connection for each pair of ranks (tcp_mesh.c). For each peer, a collective is
 * one message out and one in: a header that names it, and a slice. All ranks start the same
 * collectives in the same order, so the messages of a connection arrive in that order, too. Each
 * peer has two cursors on the list of operations, one for what is being sent and one for what is
 * being received. A slice is received directly where it belongs. Data for an operation that this
 * rank has not started yet stays in the socket.
 *
 * GROUPS of ranks (split()) are comms of their own over the same connections. A message names its
 * group by a number that is the same on all members. Two ranks start the collectives of all their
 * common groups in the same order, so a cursor skips those that its peer is not in.
 *
 * INVARIANT. An operation leaves the list when all its messages are complete. So no cursor points
 * to a freed operation.
 *
 * PROGRESS is made inside start and test; in between, only the sockets' buffers fill and drain.
 * Bytes are sent unchanged, so results are bit for bit those of MPI.
 *
 * NAMES. A header has the name of the collective. So a rank detects before it receives a slice
 * whether its peer makes a different call (-EINVAL). It does not close its connections before its
 * own header is sent to every peer (tcp_farewell()), so both sides detect it. A rank that finds a
 * connection closed first looks for such a header on its other connections.
 *
 * ERRORS are final. The message names the connection that failed. Ranks that wait for this one find
 * their connections closed.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "base/fork.h"
#include "base/util.h"
#include "client/zero/comm/comm_priv.h"
#include "client/zero/comm/tcp_mesh.h"

#define TCP_MAGIC UINT32_C(0x7a733343)
#define TCP_FAREWELL_NS \
    UINT64_C(1000000000) /* how long headers may take to leave after a failure */

enum tcp_kind { TCP_ALL_GATHER = 1, TCP_EXCHANGE = 2 };

struct tcp_header {
    uint32_t magic;
    uint16_t kind, group;
    uint64_t number; /* of the collective in its group, from 0 */
    uint64_t slice_bytes;
    uint64_t name; /* zc_comm_ops.name_next */
};

struct tcp_group {
    struct zc_comm base;
    struct tcp_comm *t;
    uint16_t id;      /* 0: all ranks */
    uint32_t *places; /* [all ranks]: the rank's number in this group, or NOWHERE */
    uint64_t started;
    uint64_t name; /* of the next collective */
};

#define NOWHERE UINT32_MAX

struct zc_comm_op {
    struct zb_list node;  /* in ops */
    struct zb_list alive; /* in all */
    struct tcp_header header;
    struct tcp_group *group;
    const char *send;
    char *recv;
    uint32_t left;  /* messages that are not complete */
    uint64_t place; /* number among all operations that this rank has started */
};

/* Position in one direction of a connection: `at` bytes of message `op` (header and slice) are
 * done. op NULL: no message is left. */
struct tcp_cursor {
    struct zc_comm_op *op;
    size_t at;
};

struct tcp_peer {
    struct tcp_cursor out, in;
    struct tcp_header arriving;
};

struct tcp_comm {
    struct zb_fork fork;
    struct tcp_group all_ranks;
    struct zc_tcp_mesh mesh;
    struct tcp_peer *peers; /* [mesh.world]; this rank's own is not used */
    struct zb_list ops;     /* not complete, in the order of their start */
    struct zb_list all;     /* these, and complete ones until they are tested: close frees them */
    uint32_t splits;
    uint64_t started;
    bool differs; /* the failure is that another rank makes a different call, */
    struct zc_comm_other other;
    uint64_t other_place; /* in the place of this collective */
    int broken;           /* the code of the first failure */
    struct zb_err err;
};

static struct tcp_group *group_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct tcp_group, base);
}

static struct tcp_comm *tcp_of(struct zc_comm *comm)
{
    return group_of(comm)->t;
}

/* In a child process, right after fork(): the child's copies would keep connections open after the
 * rank's death. */
static void tcp_forked(struct zb_fork *f)
{
    static const struct zb_err why = {
        .code = -EPERM,
        .text = "this comm belongs to the process that opened it, and this is a child process"
    };
    struct tcp_comm *t = zb_container_of(f, struct tcp_comm, fork);

    zc_tcp_mesh_shut(&t->mesh);
    t->broken = why.code;
    t->err = why;
}

static int tcp_fail(struct tcp_comm *t, uint32_t peer, int rc, const char *what)
{
    t->broken = zb_fail(&t->err, rc, "rank %u (%s): %s", peer, t->mesh.names[peer], what);
    return t->broken;
}

/* Returns the slice of an operation that is sent to this peer. */
static const char *slice_out(const struct zc_comm_op *op, uint32_t peer)
{
    uint32_t place = op->group->places[peer];

    return op->send + (op->header.kind == TCP_EXCHANGE ? place * op->header.slice_bytes : 0);
}

/* Moves a cursor to the next message after one is complete. */
static void cursor_next(struct tcp_comm *t, struct tcp_cursor *c, uint32_t peer)
{
    struct zc_comm_op *op = c->op;

    *c = (struct tcp_cursor){ .op = NULL };
    for (struct zb_list *at = op->node.next; at != &t->ops && !c->op; at = at->next) {
        struct zc_comm_op *next = zb_container_of(at, struct zc_comm_op, node);

        if (next->group->places[peer] != NOWHERE)
            c->op = next;
    }
    if (--op->left == 0)
        zb_list_remove(&op->node);
}

/* Converts the result of a socket call: the number of bytes; 0: it would block; or an error. */
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
            cursor_next(t, c, peer);
    }
    return 0;
}

/* Fails: the peer makes a different call than this rank. */
static int header_differs(struct tcp_comm *t, uint32_t peer)
{
    const struct tcp_header *want = &t->peers[peer].in.op->header, *is = &t->peers[peer].arriving;
    char text[200];

    t->differs = true;
    t->other_place = t->peers[peer].in.op->place;
    t->other = (struct zc_comm_other){ .rank = peer, .mine = want->name, .theirs = is->name };
    (void)snprintf(
        text, sizeof(text),
        "its collective %llu is %s of %llu bytes, this rank's is %s of %llu: the ranks do not make "
        "the same calls",
        (unsigned long long)is->number, is->kind == TCP_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)is->slice_bytes,
        want->kind == TCP_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)want->slice_bytes);
    return tcp_fail(t, peer, -EINVAL, text);
}

static int header_check(struct tcp_comm *t, uint32_t peer)
{
    const struct tcp_header *want = &t->peers[peer].in.op->header, *is = &t->peers[peer].arriving;

    if (memcmp(want, is, sizeof(*is)) == 0)
        return 0;
    return is->magic == TCP_MAGIC
               ? header_differs(t, peer)
               : tcp_fail(t, peer, -EPROTO, "it sent something that is not a collective");
}

static int peer_receive(struct tcp_comm *t, uint32_t peer)
{
    struct tcp_peer *p = &t->peers[peer];
    struct tcp_cursor *c = &p->in;

    while (c->op) {
        size_t header = sizeof(p->arriving), slice = c->op->header.slice_bytes;
        bool in_header = c->at < header;
        char *to = in_header ? (char *)&p->arriving + c->at
                             : c->op->recv + c->op->group->places[peer] * slice + (c->at - header);
        size_t want = (in_header ? header : header + slice) - c->at;
        ssize_t n = tcp_moved(t, peer, recv(t->mesh.fds[peer], to, want, 0), false);

        if (n <= 0)
            return (int)n;
        c->at += (size_t)n;
        if (c->at == header && header_check(t, peer) < 0)
            return t->broken;
        if (c->at == header + slice)
            cursor_next(t, c, peer);
    }
    return 0;
}

static void nap(void)
{
    struct timespec t = { .tv_nsec = 100000 };

    (void)nanosleep(&t, NULL);
}

/* This rank has failed because another makes different calls. The others detect that from the
 * header of this rank's collective, so it must reach them. */
static void tcp_farewell(struct tcp_comm *t)
{
    uint64_t until = zb_now_ns() + TCP_FAREWELL_NS;
    int broken = t->broken;
    bool left = true;

    while (left && zb_now_ns() < until) {
        left = false;
        for (uint32_t p = 0; p < t->mesh.world; p++) {
            const struct tcp_cursor *c = &t->peers[p].out;

            if (p != t->mesh.rank && c->op && peer_send(t, p) == 0 && c->op)
                left = left || c->op->place < t->other_place ||
                       (c->op->place == t->other_place && c->at < sizeof(c->op->header));
        }
        if (left)
            nap();
    }
    t->broken = broken;
}

/* `lost` has closed its connection, perhaps because some rank makes different calls. That rank's
 * header would tell. */
static void tcp_look_for_other(struct tcp_comm *t, uint32_t lost)
{
    struct zb_err err = t->err;
    int broken = t->broken;

    t->err.code = 0;
    for (uint32_t p = 0; p < t->mesh.world && !t->differs; p++)
        if (p != t->mesh.rank && p != lost)
            (void)peer_receive(t, p);
    if (!t->differs) {
        t->err = err;
        t->broken = broken;
    }
}

/* Sends and receives what the sockets allow now. Each rank begins with the rank after it, so that
 * not all talk to the same one. */
static int tcp_turn(struct tcp_comm *t)
{
    bool well = t->broken == 0;

    for (uint32_t i = 1; i < t->mesh.world && t->broken == 0; i++) {
        uint32_t peer = (t->mesh.rank + i) % t->mesh.world;
        int rc = peer_receive(t, peer);

        if (rc == 0)
            rc = peer_send(t, peer);
        if (rc == -EOWNERDEAD)
            tcp_look_for_other(t, peer);
    }
    if (well && t->differs)
        tcp_farewell(t);
    return t->broken;
}

static int tcp_start(struct zc_comm *comm, enum tcp_kind kind, const void *send, void *recv,
                     size_t slice_bytes, struct zc_comm_op **ret)
{
    struct tcp_group *g = group_of(comm);
    struct tcp_comm *t = g->t;
    struct zc_comm_op *op = t->broken ? NULL : malloc(sizeof(*op));
    char *own = (char *)recv + slice_bytes * comm->rank;

    if (t->broken)
        return t->broken;
    if (!op)
        return t->broken = zb_fail(&t->err, -ENOMEM, "no memory for a collective");
    *op = (struct zc_comm_op){
        .header = { .magic = TCP_MAGIC,
                    .kind = (uint16_t)kind,
                    .group = g->id,
                    .number = g->started++,
                    .slice_bytes = slice_bytes,
                    .name = g->name },
        .group = g,
        .send = send,
        .recv = recv,
        .left = 2 * (comm->world - 1),
        .place = t->started++,
    };
    g->name = 0;
    zb_list_init(&op->node);
    zb_list_push_back(&t->all, &op->alive);
    if (slice_out(op, t->mesh.rank) != own)
        memcpy(own, slice_out(op, t->mesh.rank), slice_bytes);
    if (op->left > 0)
        zb_list_push_back(&t->ops, &op->node);
    for (uint32_t p = 0; p < t->mesh.world; p++) {
        if (p == t->mesh.rank || g->places[p] == NOWHERE)
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

static void tcp_name_next(struct zc_comm *comm, uint64_t name)
{
    group_of(comm)->name = name;
}

static bool tcp_other(struct zc_comm *comm, struct zc_comm_other *ret)
{
    *ret = tcp_of(comm)->other;
    return tcp_of(comm)->differs;
}

static void tcp_close(struct zc_comm *comm, bool clean)
{
    struct tcp_group *g = group_of(comm);
    struct tcp_comm *t = g->t;

    (void)clean; /* sent data arrives, or the peer is gone: nothing to wait for */
    free(g->places);
    if (g != &t->all_ranks) {
        free(g);
        return;
    }
    zb_fork_forget(&t->fork);
    zb_list_each(pos, &t->all) free(zb_container_of(pos, struct zc_comm_op, alive));
    zc_tcp_mesh_close(&t->mesh);
    free(t->peers);
    free(t);
}

/* Returns the first rank with which the last collective is not complete. */
static uint32_t tcp_missing(const struct tcp_comm *t)
{
    uint32_t p = 0;

    while (p < t->mesh.world && !t->peers[p].in.op && !t->peers[p].out.op)
        p++;
    assert(p < t->mesh.world);
    return p;
}

/* Waits for the collective that was started last, for as long as ranks wait for each other. */
static int tcp_wait(struct zc_comm *comm, struct zc_comm_op *op, const char *what)
{
    struct tcp_comm *t = tcp_of(comm);
    uint64_t until = zb_now_ns() + t->mesh.patience_s * UINT64_C(1000000000);
    bool done = false;
    int rc = tcp_test(comm, op, &done);

    while (rc == 0 && !done) {
        if (zb_now_ns() >= until) {
            char text[128];

            (void)snprintf(text, sizeof(text), "it did not connect to %s within %llu s", what,
                           (unsigned long long)t->mesh.patience_s);
            return tcp_fail(t, tcp_missing(t), -ETIMEDOUT, text);
        }
        nap();
        rc = tcp_test(comm, op, &done);
    }
    return rc;
}

/* The number of a group is the same on its members, and differs from the numbers of all other
 * groups that a member is in, because all ranks split equally often. */
static int tcp_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct tcp_group *whole = group_of(comm), *g = calloc(1, sizeof(*g));
    struct tcp_comm *t = whole->t;
    uint32_t *colours = calloc(comm->world, sizeof(*colours));
    struct zc_comm_op *op;
    int rc = 0;

    if (g)
        g->places = malloc(t->mesh.world * sizeof(*g->places));
    if (!g || !g->places || !colours)
        rc = t->broken = zb_fail(&t->err, -ENOMEM, "no memory for a group of ranks");
    if (rc == 0)
        rc = tcp_all_gather(comm, &colour, colours, sizeof(colour), &op);
    if (rc == 0)
        rc = tcp_wait(comm, op, "the split into groups");
    if (rc == 0) {
        *g = (struct tcp_group){
            .base.ops = comm->ops, .t = t, .id = (uint16_t)++t->splits, .places = g->places
        };
        for (uint32_t r = 0; r < t->mesh.world; r++) {
            bool in = whole->places[r] != NOWHERE && colours[whole->places[r]] == colour;

            if (r == t->mesh.rank)
                g->base.rank = g->base.world;
            g->places[r] = in ? g->base.world++ : NOWHERE;
        }
        *ret = &g->base;
    } else if (g) {
        free(g->places);
        free(g);
    }
    free(colours);
    return rc;
}

static const struct zc_comm_ops tcp_ops = {
    .name = "tcp",
    .all_gather = tcp_all_gather,
    .exchange = tcp_exchange,
    .test = tcp_test,
    .close = tcp_close,
    .error = tcp_error,
    .split = tcp_split,
    .name_next = tcp_name_next,
    .other = tcp_other,
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
    if (rc == 0) {
        t->peers = calloc(t->mesh.world, sizeof(*t->peers));
        t->all_ranks.places = malloc(t->mesh.world * sizeof(*t->all_ranks.places));
        if (!t->peers || !t->all_ranks.places)
            rc = zb_fail(err, -ENOMEM, "no memory for %u ranks", t->mesh.world);
    }
    if (rc < 0) {
        zc_tcp_mesh_close(&t->mesh);
        free(t->peers);
        free(t->all_ranks.places);
        free(t);
        return rc;
    }
    t->all_ranks.t = t;
    t->all_ranks.base =
        (struct zc_comm){ .ops = &tcp_ops, .rank = t->mesh.rank, .world = t->mesh.world };
    for (uint32_t r = 0; r < t->mesh.world; r++)
        t->all_ranks.places[r] = r;
    zb_fork_watch(&t->fork, tcp_forked);
    *ret = &t->all_ranks.base;
    return 0;
}
