/*
 * comm_ops.c - collectives of the caller (zc_comm_from_ops()), whose functions run on a thread of
 * the library, so that they may block.
 *
 * MODEL. The engine's comm queues collectives. The thread takes them from the queue in order, and
 * completes each before the next: it calls start, and then test until the collective is done
 * (without test, it is done when start returns). So collectives of all groups of ranks are made in
 * one order, which is the same on all ranks. The engine's test only checks whether the thread has
 * completed the collective.
 *
 * CLOSE. If clean, the queue is empty; the thread closes the caller's backend and is joined.
 * Otherwise the thread may be blocked in the caller's function forever. It is detached, and closes
 * and frees everything when the function returns. Groups (split()) share the thread, and are freed
 * with it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fork.h"
#include "base/util.h"
#include "client/zero/comm/comm_priv.h"

#define TEST_NAP_NS 100000

enum ops_kind { OPS_GATHER, OPS_EXCHANGE, OPS_SPLIT };

struct ops_worker;

/** The engine's comm: one for all ranks, and one for each group. */
struct ops_comm {
    struct zc_comm base;   /* the engine's */
    struct zc_comm *inner; /* passed to the caller's functions */
    struct ops_worker *worker;
    struct zb_list node; /* in worker->parts, except the first */
};

struct zc_comm_op {
    struct zb_list node;  /* in worker->queue */
    struct zb_list alive; /* in worker->ops, until it is tested or the worker ends */
    enum ops_kind kind;
    struct ops_comm *comm;
    const void *send;
    void *recv;
    size_t slice_bytes;
    uint32_t colour;
    struct zc_comm *part; /* OPS_SPLIT: the result */
    bool done;
    int rc;
};

struct ops_worker {
    struct zb_fork fork;
    struct ops_comm first;
    struct zc_comm inner; /* of `first` */
    pthread_t thread;
    pthread_mutex_t lock; /* protects all fields below, and each op */
    pthread_cond_t wake;
    struct zb_list queue, ops, parts;
    bool stop, clean;
    bool forked; /* in a child process: there is no thread */
    int broken;
    char text[256];
};

static struct ops_comm *ops_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct ops_comm, base);
}

/* ---- on the thread */

static void nap(void)
{
    struct timespec t = { .tv_nsec = TEST_NAP_NS };

    (void)nanosleep(&t, NULL);
}

static bool worker_stops(struct ops_worker *w)
{
    bool stop;

    (void)pthread_mutex_lock(&w->lock);
    stop = w->stop && !w->clean;
    (void)pthread_mutex_unlock(&w->lock);
    return stop;
}

static int run_collective(struct ops_worker *w, struct zc_comm_op *op)
{
    struct zc_comm *inner = op->comm->inner;
    struct zc_comm_op *theirs = NULL;
    bool done = inner->ops->test == NULL;
    int rc = op->kind == OPS_GATHER
                 ? inner->ops->all_gather(inner, op->send, op->recv, op->slice_bytes, &theirs)
                 : inner->ops->exchange(inner, op->send, op->recv, op->slice_bytes, &theirs);

    while (rc == 0 && !done) {
        rc = inner->ops->test(inner, theirs, &done);
        if (rc == 0 && !done && worker_stops(w))
            return -ECANCELED;
        if (rc == 0 && !done)
            nap();
    }
    return rc;
}

static void worker_run(struct ops_worker *w, struct zc_comm_op *op)
{
    struct zc_comm *inner = op->comm->inner;
    const char *text = NULL;
    int rc = op->kind == OPS_SPLIT ? inner->ops->split(inner, op->colour, &op->part)
                                   : run_collective(w, op);

    if (rc > 0) /* not an error code */
        rc = -EINVAL;
    if (rc < 0 && inner->ops->error)
        text = inner->ops->error(inner);
    (void)pthread_mutex_lock(&w->lock);
    if (rc < 0 && w->broken == 0) {
        w->broken = rc;
        (void)snprintf(w->text, sizeof(w->text), "%s", text ? text : strerror(-rc));
    }
    op->rc = rc;
    op->done = true;
    (void)pthread_mutex_unlock(&w->lock);
}

static void worker_free(struct ops_worker *w)
{
    struct zb_list *node;

    while ((node = zb_list_pop_front(&w->parts)) != NULL)
        free(zb_container_of(node, struct ops_comm, node));
    while ((node = zb_list_pop_front(&w->ops)) != NULL)
        free(zb_container_of(node, struct zc_comm_op, alive));
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->wake);
    free(w);
}

static void *worker_main(void *arg)
{
    struct ops_worker *w = arg;
    bool clean;

    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        struct zb_list *node;

        while (!w->stop && zb_list_empty(&w->queue))
            (void)pthread_cond_wait(&w->wake, &w->lock);
        if (w->stop)
            break;
        node = zb_list_pop_front(&w->queue);
        (void)pthread_mutex_unlock(&w->lock);
        worker_run(w, zb_container_of(node, struct zc_comm_op, node));
        (void)pthread_mutex_lock(&w->lock);
    }
    clean = w->clean;
    (void)pthread_mutex_unlock(&w->lock);
    zb_list_each(pos, &w->parts)
    {
        struct zc_comm *part = zb_container_of(pos, struct ops_comm, node)->inner;

        if (part->ops->close)
            part->ops->close(part, clean);
    }
    if (w->inner.ops->close)
        w->inner.ops->close(&w->inner, clean);
    if (!clean) /* no other thread joins this one */
        worker_free(w);
    return NULL;
}

/* ---- on the engine's thread */

static struct zc_comm_op *op_new(struct ops_comm *c, enum ops_kind kind)
{
    struct zc_comm_op *op = calloc(1, sizeof(*op));

    if (op) {
        zb_list_init(&op->node);
        op->kind = kind;
        op->comm = c;
    }
    return op;
}

static int op_queue(struct ops_comm *c, struct zc_comm_op *op)
{
    struct ops_worker *w = c->worker;
    int rc;

    if (!op)
        return -ENOMEM;
    if (w->forked) {
        free(op);
        return -EPERM;
    }
    (void)pthread_mutex_lock(&w->lock);
    rc = w->broken;
    if (rc == 0) {
        zb_list_push_back(&w->queue, &op->node);
        zb_list_push_back(&w->ops, &op->alive);
        (void)pthread_cond_signal(&w->wake);
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (rc < 0)
        free(op);
    return rc;
}

static int ops_start(struct zc_comm *comm, enum ops_kind kind, const void *send, void *recv,
                     size_t slice_bytes, struct zc_comm_op **ret)
{
    struct ops_comm *c = ops_of(comm);
    struct zc_comm_op *op = op_new(c, kind);
    int rc;

    if (op) {
        op->send = send;
        op->recv = recv;
        op->slice_bytes = slice_bytes;
    }
    rc = op_queue(c, op);
    *ret = rc == 0 ? op : NULL;
    return rc;
}

static int ops_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret)
{
    return ops_start(comm, OPS_GATHER, send, recv, slice_bytes, ret);
}

static int ops_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                        struct zc_comm_op **ret)
{
    return ops_start(comm, OPS_EXCHANGE, send, recv, slice_bytes, ret);
}

static int ops_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct ops_worker *w = ops_of(comm)->worker;
    int rc;

    *ret_done = false;
    if (w->forked)
        return -EPERM;
    (void)pthread_mutex_lock(&w->lock);
    rc = op->done ? op->rc : w->broken;
    *ret_done = rc == 0 && op->done;
    if (*ret_done)
        zb_list_remove(&op->alive);
    (void)pthread_mutex_unlock(&w->lock);
    if (*ret_done)
        free(op);
    return rc;
}

static const char *ops_error(struct zc_comm *comm)
{
    struct ops_worker *w = ops_of(comm)->worker;

    return w->forked
               ? "this comm belongs to the process that created it, and this is a child process"
               : w->text;
}

static int ops_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct ops_comm *c = ops_of(comm), *part = calloc(1, sizeof(*part));
    struct zc_comm_op *op = op_new(c, OPS_SPLIT);
    bool done = false;
    int rc;

    if (!part || !op) {
        free(part);
        free(op);
        return -ENOMEM;
    }
    op->colour = colour;
    rc = op_queue(c, op);
    while (rc == 0 && !done) {
        struct ops_worker *w = c->worker;

        nap();
        (void)pthread_mutex_lock(&w->lock);
        done = op->done;
        rc = done ? op->rc : w->broken;
        if (rc == 0 && done)
            zb_list_remove(&op->alive);
        (void)pthread_mutex_unlock(&w->lock);
    }
    if (rc < 0) { /* an op that failed is freed with the worker, if at all */
        free(part);
        return rc;
    }
    part->inner = op->part;
    part->worker = c->worker;
    part->base =
        (struct zc_comm){ .ops = comm->ops, .rank = op->part->rank, .world = op->part->world };
    free(op);
    zb_list_push_back(&c->worker->parts, &part->node);
    *ret = &part->base;
    return 0;
}

static void ops_close(struct zc_comm *comm, bool clean)
{
    struct ops_comm *c = ops_of(comm);
    struct ops_worker *w = c->worker;

    if (c != &w->first || w->forked) /* groups end with the whole; a child has no thread */
        return;
    zb_fork_forget(&w->fork);
    (void)pthread_mutex_lock(&w->lock);
    w->clean = clean && w->broken == 0;
    clean = w->clean;
    w->stop = true;
    (void)pthread_cond_signal(&w->wake);
    if (!clean)
        (void)pthread_detach(w->thread);
    (void)pthread_mutex_unlock(&w->lock);
    if (clean) {
        (void)pthread_join(w->thread, NULL);
        worker_free(w);
    }
}

static const struct zc_comm_ops ops_alone = {
    .name = "ops",
    .all_gather = ops_all_gather,
    .exchange = ops_exchange,
    .test = ops_test,
    .close = ops_close,
    .error = ops_error,
};

static const struct zc_comm_ops ops_split_too = {
    .name = "ops",
    .all_gather = ops_all_gather,
    .exchange = ops_exchange,
    .test = ops_test,
    .close = ops_close,
    .error = ops_error,
    .split = ops_split,
};

static void ops_forked(struct zb_fork *f)
{
    zb_container_of(f, struct ops_worker, fork)->forked = true;
}

int zc_comm_from_ops(struct zc_comm **ret, const struct zc_comm_ops *ops, void *arg, uint32_t rank,
                     uint32_t world)
{
    struct ops_worker *w;
    int rc;

    *ret = NULL;
    if (!ops || !ops->all_gather || !ops->exchange || world < 1 || rank >= world)
        return -EINVAL;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    zb_list_init(&w->queue);
    zb_list_init(&w->ops);
    zb_list_init(&w->parts);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->wake, NULL);
    w->inner = (struct zc_comm){ .ops = ops, .rank = rank, .world = world, .arg = arg };
    w->first = (struct ops_comm){
        .base = { .ops = ops->split ? &ops_split_too : &ops_alone, .rank = rank, .world = world },
        .inner = &w->inner,
        .worker = w,
    };
    zb_list_init(&w->first.node);
    rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc != 0) {
        worker_free(w);
        return -rc;
    }
    zb_fork_watch(&w->fork, ops_forked);
    *ret = &w->first.base;
    return 0;
}
