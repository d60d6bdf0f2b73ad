/*
 * slow_comm.c - a backend of collectives that reports their completion later.
 *
 * MODEL. The link is busy until free_ns. A new collective uses it from then on, or from now if it
 * is idle, for as long as its bytes take. test() calls the inner backend, and reports completion
 * only after that time. So the bytes are real, and the link makes progress as hardware does,
 * without being polled.
 *
 * Each rank has its own link, which a collective uses from the time that this rank starts it. A
 * collective ends with its last rank, since the inner backend waits for all ranks.
 */
#include "bench/slow_comm.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

struct slow_comm {
    struct zc_comm base;
    struct zc_comm *inner;
    uint64_t rate, latency_ns;
    uint64_t free_ns; /* when the link is idle again */
};

struct zc_comm_op {
    struct zc_comm_op *inner; /* NULL: complete, but the link is still busy */
    uint64_t end_ns;
};

static struct slow_comm *slow_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct slow_comm, base);
}

typedef int slow_start_fn(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret);

static int slow_start(struct slow_comm *s, slow_start_fn *start, const void *send, void *recv,
                      size_t slice_bytes, struct zc_comm_op **ret)
{
    double bytes = (double)(s->base.world - 1) * (double)slice_bytes;
    struct zc_comm_op *op = calloc(1, sizeof(*op));
    int rc = op ? start(s->inner, send, recv, slice_bytes, &op->inner) : -ENOMEM;

    if (rc < 0) {
        free(op);
        return rc;
    }
    s->free_ns = zb_max_u64(s->free_ns, zb_now_ns()) + s->latency_ns +
                 (uint64_t)(bytes * 1e9 / (double)s->rate);
    op->end_ns = s->free_ns;
    *ret = op;
    return 0;
}

static int slow_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                           struct zc_comm_op **ret)
{
    struct slow_comm *s = slow_of(comm);

    return slow_start(s, s->inner->ops->all_gather, send, recv, slice_bytes, ret);
}

static int slow_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                         struct zc_comm_op **ret)
{
    struct slow_comm *s = slow_of(comm);

    return slow_start(s, s->inner->ops->exchange, send, recv, slice_bytes, ret);
}

static int slow_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct slow_comm *s = slow_of(comm);
    bool done = true;
    int rc = op->inner ? s->inner->ops->test(s->inner, op->inner, &done) : 0;

    if (rc < 0)
        return rc;
    if (done)
        op->inner = NULL;
    *ret_done = done && zb_now_ns() >= op->end_ns;
    if (*ret_done)
        free(op);
    return 0;
}

static void slow_close(struct zc_comm *comm, bool clean)
{
    struct slow_comm *s = slow_of(comm);

    zc_comm_close(s->inner, clean);
    free(s);
}

static const char *slow_error(struct zc_comm *comm)
{
    struct zc_comm *inner = slow_of(comm)->inner;

    return inner->ops->error ? inner->ops->error(inner) : "";
}

static void slow_name_next(struct zc_comm *comm, uint64_t name)
{
    struct zc_comm *inner = slow_of(comm)->inner;

    if (inner->ops->name_next)
        inner->ops->name_next(inner, name);
}

static bool slow_other(struct zc_comm *comm, struct zc_comm_other *ret)
{
    struct zc_comm *inner = slow_of(comm)->inner;

    return inner->ops->other && inner->ops->other(inner, ret);
}

static const struct zc_comm_ops slow_ops = {
    .name = "slow",
    .all_gather = slow_all_gather,
    .exchange = slow_exchange,
    .test = slow_test,
    .close = slow_close,
    .error = slow_error,
    .name_next = slow_name_next,
    .other = slow_other,
};

struct zc_comm *zbench_slow_comm(struct zc_comm *inner, uint64_t rate, uint64_t latency_ns)
{
    struct slow_comm *s = malloc(sizeof(*s));

    if (!s)
        return NULL;
    *s = (struct slow_comm){ .base = { .ops = &slow_ops, inner->rank, inner->world },
                             .inner = inner,
                             .rate = rate,
                             .latency_ns = latency_ns };
    return &s->base;
}
