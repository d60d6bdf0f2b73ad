/*
 * compute.c - the compute pool.
 *
 * MODEL. One mutex guards three lists: `line`, the fair queue of the workers (fair.h); `slow`, the
 * list of the workers for slow tasks; and `finished`, which the loop thread empties. A worker that
 * puts a task into an empty `finished` writes the eventfd. A reap that stops at its limit and
 * leaves tasks in `finished` writes it again. So the eventfd is readable whenever `finished` is not
 * empty, unless a reap is about to check it.
 *
 * INVARIANTS
 *     C1  A task is in exactly one place: in line or slow, with a worker, or in finished.
 *     C2  `pending` counts posted tasks whose done() has not begun; loop thread only.
 *     C3  done() runs without the mutex, because it may post tasks.
 */
#include "daemon/run/compute.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/os/cpus.h"
#include "kernels/zk.h"

struct zsd_compute {
    pthread_mutex_t lock;
    pthread_cond_t work;            /* line is not empty, or stop */
    pthread_cond_t slow_work;       /* slow is not empty, or stop */
    struct zsd_fair line;           /* under lock, and so are its flows */
    struct zsd_flow nobody;         /* the flow of tasks without a payer */
    struct zb_list slow, finished;  /* under lock */
    bool stop;                      /* under lock */
    struct zsd_gauge waiting, busy; /* under lock: tasks in line, and with a worker of `all` */
    int wake_fd;
    unsigned nsets; /* of CPUs: each worker stays on one set */
    cpu_set_t *sets;
    unsigned pending; /* C2 */
    struct crew {
        unsigned threads; /* that were started */
        pthread_t *thread;
    } all, slowly;
};

/* ---- workers */

static void compute_finish(struct zsd_compute *c, struct zsd_task *task, bool slow)
{
    uint64_t now_ns = zb_now_ns();
    bool first;

    pthread_mutex_lock(&c->lock);
    if (!slow)
        zsd_gauge_dec(&c->busy, now_ns);
    first = zb_list_empty(&c->finished);
    zb_list_push_back(&c->finished, &task->turn.node);
    pthread_mutex_unlock(&c->lock);
    if (first)
        (void)eventfd_write(c->wake_fd, 1); /* fails only after 2^64 - 2 of these */
}

/** The next task; NULL: stop was set, and no task is left. */
static struct zsd_task *compute_next(struct zsd_compute *c)
{
    struct zsd_turn *turn;

    pthread_mutex_lock(&c->lock);
    while ((turn = zsd_fair_next(&c->line)) == NULL && !c->stop)
        pthread_cond_wait(&c->work, &c->lock);
    if (turn) {
        uint64_t now_ns = zb_now_ns();

        zsd_fair_take(&c->line, turn); /* after this its flow may be freed */
        zsd_gauge_dec(&c->waiting, now_ns);
        zsd_gauge_inc(&c->busy, now_ns);
    }
    pthread_mutex_unlock(&c->lock);
    return turn ? zb_container_of(turn, struct zsd_task, turn) : NULL;
}

static struct zsd_task *compute_next_slow(struct zsd_compute *c)
{
    struct zb_list *node;

    pthread_mutex_lock(&c->lock);
    while ((node = zb_list_pop_front(&c->slow)) == NULL && !c->stop)
        pthread_cond_wait(&c->slow_work, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return node ? zb_container_of(node, struct zsd_task, turn.node) : NULL;
}

static void *compute_worker(void *arg)
{
    struct zsd_compute *c = arg;
    struct zsd_task *task;

    zk_thread_init();
    while ((task = compute_next(c)) != NULL) {
        task->run(task);
        compute_finish(c, task, false);
    }
    return NULL;
}

static void *compute_slow_worker(void *arg)
{
    struct zsd_compute *c = arg;
    struct zsd_task *task;

    zk_thread_init();
    while ((task = compute_next_slow(c)) != NULL) {
        task->run(task);
        compute_finish(c, task, true);
    }
    return NULL;
}

static int crew_start_one(struct zsd_compute *c, struct crew *crew, const pthread_attr_t *attr)
{
    bool slow = crew == &c->slowly;
    char name[16]; /* the kernel's limit */
    int rc = -pthread_create(&crew->thread[crew->threads], attr,
                             slow ? compute_slow_worker : compute_worker, c);

    if (rc == 0) {
        (void)snprintf(name, sizeof(name), "%s-%u", slow ? "slow" : "compute", crew->threads);
        (void)pthread_setname_np(crew->thread[crew->threads], name);
        crew->threads++;
    }
    return rc;
}

/** The CPUs of worker i of n: workers are distributed in proportion to the CPUs of the sets.
 * Workers for slow tasks use all sets. */
static void crew_cpus(const struct zsd_compute *c, const struct crew *crew, unsigned i, unsigned n,
                      cpu_set_t *ret)
{
    unsigned all = 0, at = 0;

    CPU_ZERO(ret);
    for (unsigned k = 0; k < c->nsets; k++) {
        CPU_OR(ret, ret, &c->sets[k]);
        all += (unsigned)CPU_COUNT(&c->sets[k]);
    }
    for (unsigned k = 0; k < c->nsets && crew == &c->all; k++) {
        at += (unsigned)CPU_COUNT(&c->sets[k]);
        if ((uint64_t)i * all < (uint64_t)at * n) {
            *ret = c->sets[k];
            return;
        }
    }
}

/** Starts workers, with all signals blocked: signals are for the loop thread. */
static int crew_start(struct zsd_compute *c, struct crew *crew, unsigned threads)
{
    pthread_attr_t attr;
    sigset_t all, before;
    cpu_set_t cpus;
    int rc = -pthread_attr_init(&attr);

    if (rc < 0)
        return rc;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    while (rc == 0 && crew->threads < threads) {
        crew_cpus(c, crew, crew->threads, threads, &cpus);
        rc = -pthread_attr_setaffinity_np(&attr, sizeof(cpus), &cpus);
        if (rc == 0)
            rc = crew_start_one(c, crew, &attr);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

static int crew_new(struct zsd_compute *c, struct crew *crew, unsigned threads)
{
    crew->thread = calloc(threads, sizeof(crew->thread[0]));
    return crew->thread ? crew_start(c, crew, threads) : -ENOMEM;
}

/** Waits for workers that were told to stop. */
static void crew_join(struct crew *crew)
{
    for (unsigned i = 0; i < crew->threads; i++)
        (void)pthread_join(crew->thread[i], NULL);
    free(crew->thread);
}

/* ---- the pool */

static int compute_build(struct zsd_compute *c, unsigned threads)
{
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c->wake_fd < 0 ? -errno : crew_new(c, &c->all, threads);
}

int zsd_compute_new_on(struct zsd_compute **ret, unsigned threads, const cpu_set_t *sets,
                       unsigned nsets, struct zb_err *err)
{
    struct zsd_compute *c = calloc(1, sizeof(*c));
    unsigned ncpus = 0;
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "a compute pool: %m");
    c->wake_fd = -1;
    zsd_fair_init(&c->line);
    zsd_flow_init(&c->nobody);
    zb_list_init(&c->slow);
    zb_list_init(&c->finished);
    (void)pthread_mutex_init(&c->lock, NULL); /* these cannot fail without attributes */
    (void)pthread_cond_init(&c->work, NULL);
    (void)pthread_cond_init(&c->slow_work, NULL);
    for (unsigned i = 0; i < nsets; i++)
        ncpus += (unsigned)CPU_COUNT(&sets[i]);
    if (threads == 0)
        threads = ncpus;
    c->nsets = nsets;
    c->sets = malloc(nsets * sizeof(sets[0]));
    if (c->sets)
        memcpy(c->sets, sets, nsets * sizeof(sets[0]));
    rc = c->sets ? compute_build(c, threads) : -ENOMEM;
    if (rc < 0) {
        (void)zb_fail(err, rc, "a compute pool of %u threads: %m", threads);
        zsd_compute_free(c);
        return rc;
    }
    *ret = c;
    return 0;
}

int zsd_compute_new(struct zsd_compute **ret, unsigned threads, const char *cpus,
                    struct zb_err *err)
{
    cpu_set_t set;
    int rc = zsd_cpus_resolve(cpus, &set, err);

    return rc < 0 ? rc : zsd_compute_new_on(ret, threads, &set, 1, err);
}

int zsd_compute_slow(struct zsd_compute *c, unsigned threads, struct zb_err *err)
{
    int rc = crew_new(c, &c->slowly, threads);

    return rc < 0 ? zb_fail(err, rc, "%u threads for slow tasks: %m", threads) : 0;
}

/** Waits for all posted tasks, and those that their done() functions post. */
static void compute_drain(struct zsd_compute *c)
{
    struct pollfd p = { .fd = c->wake_fd, .events = POLLIN };
    eventfd_t n;

    while (c->pending > 0) {
        (void)poll(&p, 1, -1);
        (void)eventfd_read(c->wake_fd, &n);
        (void)zsd_compute_reap(c, UINT_MAX);
    }
}

void zsd_compute_free(struct zsd_compute *c)
{
    if (!c)
        return;
    compute_drain(c);
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->slow_work);
    pthread_mutex_unlock(&c->lock);
    crew_join(&c->all);
    crew_join(&c->slowly);
    free(c->sets);
    zb_close_fd(&c->wake_fd);
    (void)pthread_cond_destroy(&c->work);
    (void)pthread_cond_destroy(&c->slow_work);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

void zsd_compute_post(struct zsd_compute *c, struct zsd_task *task)
{
    struct zsd_payer *payer = task->payer;
    uint64_t now_ns = zb_now_ns();

    c->pending++;
    pthread_mutex_lock(&c->lock);
    if (task->slow && c->slowly.threads > 0) {
        zb_list_push_back(&c->slow, &task->turn.node);
        pthread_cond_signal(&c->slow_work);
    } else {
        zsd_gauge_inc(&c->waiting, now_ns);
        zsd_fair_push(&c->line, payer ? &payer->flows[ZSD_LINE_COMPUTE] : &c->nobody, &task->turn,
                      task->bytes, payer ? payer->share : ZSD_SHARE_DEFAULT, task->urgent);
        pthread_cond_signal(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
}

static struct zsd_task *compute_finished(struct zsd_compute *c)
{
    struct zb_list *node;

    pthread_mutex_lock(&c->lock);
    node = zb_list_pop_front(&c->finished);
    pthread_mutex_unlock(&c->lock);
    return node ? zb_container_of(node, struct zsd_task, turn.node) : NULL;
}

unsigned zsd_compute_reap(struct zsd_compute *c, unsigned max)
{
    struct zsd_task *task;
    unsigned n = 0;
    bool more;

    while (n < max && (task = compute_finished(c)) != NULL) {
        n++;
        assert(c->pending > 0);
        c->pending--;
        task->done(task);
    }
    if (n < max)
        return n; /* empty: the next worker that finishes writes the eventfd */
    pthread_mutex_lock(&c->lock);
    more = !zb_list_empty(&c->finished);
    pthread_mutex_unlock(&c->lock);
    if (more)
        (void)eventfd_write(c->wake_fd, 1);
    return n;
}

int zsd_compute_wake_fd(const struct zsd_compute *c)
{
    return c->wake_fd;
}

unsigned zsd_compute_threads(const struct zsd_compute *c)
{
    return c->all.threads;
}

void zsd_compute_load(struct zsd_compute *c, struct zsd_gauge *ret_waiting,
                      struct zsd_gauge *ret_busy)
{
    uint64_t now_ns = zb_now_ns();

    pthread_mutex_lock(&c->lock);
    zsd_gauge_at(&c->waiting, now_ns);
    zsd_gauge_at(&c->busy, now_ns);
    *ret_waiting = c->waiting;
    *ret_busy = c->busy;
    pthread_mutex_unlock(&c->lock);
}
