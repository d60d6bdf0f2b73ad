/*
 * compute_inline.c - the compute pool (daemon/run/compute.h) without threads: a task runs when
 * zsd_compute_reap() takes it. So the core runs in one thread, and a run repeats exactly.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "daemon/run/compute.h"
#include "kernels/zk.h"

#define INLINE_THREADS 2u /* the number that it reports */

struct zsd_compute {
    struct zb_list todo;
};

int zsd_compute_new(struct zsd_compute **ret, unsigned threads, const char *cpus,
                    struct zb_err *err)
{
    struct zsd_compute *c = calloc(1, sizeof(*c));

    (void)threads;
    (void)cpus;
    if (!c)
        return zb_fail(err, -ENOMEM, "a compute pool: %m");
    zk_thread_init();
    zb_list_init(&c->todo);
    *ret = c;
    return 0;
}

void zsd_compute_free(struct zsd_compute *c)
{
    if (c)
        (void)zsd_compute_reap(c, UINT_MAX);
    free(c);
}

void zsd_compute_post(struct zsd_compute *c, struct zsd_task *task)
{
    zb_list_push_back(&c->todo, &task->turn.node);
}

unsigned zsd_compute_reap(struct zsd_compute *c, unsigned max)
{
    struct zb_list *node;
    unsigned n = 0;

    for (; n < max && (node = zb_list_pop_front(&c->todo)) != NULL; n++) {
        struct zsd_task *task = zb_container_of(node, struct zsd_task, turn.node);

        task->run(task);
        task->done(task);
    }
    return n;
}

int zsd_compute_wake_fd(const struct zsd_compute *c)
{
    (void)c;
    return -1;
}

unsigned zsd_compute_threads(const struct zsd_compute *c)
{
    (void)c;
    return INLINE_THREADS;
}

void zsd_compute_load(struct zsd_compute *c, struct zsd_gauge *ret_waiting,
                      struct zsd_gauge *ret_busy)
{
    (void)c;
    *ret_waiting = *ret_busy = (struct zsd_gauge){ 0 };
}
