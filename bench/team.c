#include "bench/team.h"

#include <errno.h>

#include "base/util.h"
#include "kernels/zk.h"

static void *team_worker(void *arg)
{
    struct zbench_team *t = arg;

    zk_thread_init();
    for (;;) {
        uint64_t i;

        (void)pthread_barrier_wait(&t->begin);
        if (t->stop)
            return NULL;
        while ((i = atomic_fetch_add(&t->next, 1)) < t->pieces)
            t->work(t->bench, i);
        (void)pthread_barrier_wait(&t->end);
    }
}

double zbench_team_run(struct zbench_team *t, zbench_work_fn *work, uint64_t pieces)
{
    uint64_t begin_ns;

    t->work = work;
    t->pieces = pieces;
    atomic_store(&t->next, 0);
    begin_ns = zb_now_ns();
    (void)pthread_barrier_wait(&t->begin);
    (void)pthread_barrier_wait(&t->end);
    return (double)(zb_now_ns() - begin_ns) / 1e9;
}

int zbench_team_start(struct zbench_team *t, unsigned size, void *bench, struct zb_err *err)
{
    t->size = size;
    t->bench = bench;
    if (pthread_barrier_init(&t->begin, NULL, size + 1) != 0 ||
        pthread_barrier_init(&t->end, NULL, size + 1) != 0)
        return zb_fail(err, -EAGAIN, "barriers of %u threads: %m", size);
    t->barriers = true;
    for (; t->count < size; t->count++) {
        int rc = pthread_create(&t->threads[t->count], NULL, team_worker, t);

        if (rc != 0) /* threads already started wait until the process ends */
            return zb_fail(err, -rc, "thread %u of %u: %m", t->count, size);
    }
    return 0;
}

void zbench_team_end(struct zbench_team *t)
{
    if (!t->barriers || t->count < t->size)
        return;
    t->stop = true;
    (void)pthread_barrier_wait(&t->begin);
    for (unsigned i = 0; i < t->count; i++)
        (void)pthread_join(t->threads[i], NULL);
    (void)pthread_barrier_destroy(&t->begin);
    (void)pthread_barrier_destroy(&t->end);
}
