/*
 * engine_threads.c - the plain backend: threads that call pread, pwrite and fdatasync. It runs
 * everywhere, so it is a main path and not an emergency.
 *
 * MODEL. A request moves along four lists, and is on one of them or with a thread:
 *
 *     fresh ---kick---> queue ---> a thread ---> finished ---reap---> reaped ---> engine.c
 *
 * Urgent requests have a queue of their own, which threads look at first.
 *
 * INVARIANTS
 *     P1  The fresh and reaped ones belong to the caller and need no lock; the queues and finished
 * are used under the lock only. The lock is never held across a system call that moves bytes, so
 * the caller never waits for a device. P2  reap takes all of finished at once. So a thread that
 * finds it empty is the first since then, and it alone has to wake the caller.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "nvme/engine_priv.h"

struct pool {
    struct zn_engine *e;
    struct zb_list fresh_urgent, fresh, reaped; /* P1 */
    unsigned nfresh;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct zb_list urgent, queue, finished;
    unsigned idle; /* threads waiting for work */
    bool stop;
    unsigned started;
    pthread_t thread[];
};

/* Appends all of `from` to `to`. */
static void pool_move(struct zb_list *to, struct zb_list *from)
{
    if (zb_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    zb_list_init(from);
}

static int pool_transfer(const struct pool *p, const struct zn_io *io)
{
    ssize_t n = 0;

    switch (io->op) {
    case ZN_READ:
        n = pread(p->e->file.fd, zn_io_at(io), (size_t)io->res, (off_t)zn_io_off(io));
        break;
    case ZN_WRITE:
    case ZN_SLOT: /* comes as a write */
        n = pwrite(p->e->file.fd, zn_io_at(io), (size_t)io->res, (off_t)zn_io_off(io));
        break;
    case ZN_FLUSH:
        n = fdatasync(p->e->file.fd);
        break;
    case ZN_DISCARD: /* discard.c */
    case ZN_ALLOCATE:
        break;
    }
    return n < 0 ? -errno : (int)n;
}

static void *pool_thread(void *arg)
{
    struct pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct zb_list *node = zb_list_pop_front(&p->urgent);
        bool first;

        if (!node)
            node = zb_list_pop_front(&p->queue);
        if (node) {
            struct zn_io *io = zb_container_of(node, struct zn_io, node);

            pthread_mutex_unlock(&p->lock);
            io->res = pool_transfer(p, io);
            pthread_mutex_lock(&p->lock);
            first = zb_list_empty(&p->finished);
            zb_list_push_back(&p->finished, node);
            if (first) /* P2 */
                zn_wake(p->e);
        } else if (p->stop) {
            break;
        } else {
            p->idle++;
            pthread_cond_wait(&p->work, &p->lock);
            p->idle--;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts threads with all signals blocked: the program handles signals. */
static int pool_spawn(struct pool *p, unsigned count)
{
    sigset_t all, old;
    int rc = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (rc == 0 && p->started < count) {
        rc = -pthread_create(&p->thread[p->started], NULL, pool_thread, p);
        if (rc == 0) {
            char name[16];

            (void)snprintf(name, sizeof(name), "zn-io-%u", p->started);
            (void)pthread_setname_np(p->thread[p->started++], name);
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static int pool_start(struct zn_engine *e, struct zb_err *err)
{
    struct pool *p = calloc(1, sizeof(*p) + e->threads * sizeof(p->thread[0]));
    int rc;

    if (!p)
        return zb_fail(err, -ENOMEM, "I/O threads: %m");
    e->impl = p;
    p->e = e;
    zb_list_init(&p->fresh_urgent);
    zb_list_init(&p->fresh);
    zb_list_init(&p->reaped);
    zb_list_init(&p->urgent);
    zb_list_init(&p->queue);
    zb_list_init(&p->finished);
    pthread_mutex_init(&p->lock, NULL); /* these two cannot fail on Linux */
    pthread_cond_init(&p->work, NULL);
    rc = pool_spawn(p, e->threads);
    return rc < 0 ? zb_fail(err, rc, "start I/O thread %u of %u: %m", p->started + 1, e->threads)
                  : 0;
}

static void pool_submit(struct zn_engine *e, struct zn_io *io)
{
    struct pool *p = e->impl;

    zb_list_push_back(io->urgent ? &p->fresh_urgent : &p->fresh, &io->node);
    p->nfresh++;
}

static int pool_kick(struct zn_engine *e)
{
    struct pool *p = e->impl;
    unsigned wake;

    if (p->nfresh == 0)
        return 0;
    pthread_mutex_lock(&p->lock);
    wake = p->nfresh < p->idle ? p->nfresh : p->idle;
    pool_move(&p->urgent, &p->fresh_urgent);
    pool_move(&p->queue, &p->fresh);
    p->nfresh = 0;
    pthread_mutex_unlock(&p->lock);
    while (wake-- > 0)
        pthread_cond_signal(&p->work);
    return 0;
}

static struct zn_io *pool_reap(struct zn_engine *e)
{
    struct pool *p = e->impl;
    struct zb_list *node;

    if (zb_list_empty(&p->reaped)) {
        pthread_mutex_lock(&p->lock);
        pool_move(&p->reaped, &p->finished);
        pthread_mutex_unlock(&p->lock);
    }
    node = zb_list_pop_front(&p->reaped);
    return node ? zb_container_of(node, struct zn_io, node) : NULL;
}

static void pool_close(struct zn_engine *e)
{
    struct pool *p = e->impl;

    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->started; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
    e->impl = NULL;
}

const struct zn_ops zn_threads_ops = {
    .name = "threads",
    .start = pool_start,
    .submit = pool_submit,
    .kick = pool_kick,
    .reap = pool_reap,
    .close = pool_close,
};
