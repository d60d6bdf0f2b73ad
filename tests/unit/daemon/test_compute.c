#include "tests/ztest.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "base/util.h"
#include "daemon/os/cpus.h"
#include "daemon/run/compute.h"

/* ---- CPU lists */

static const struct {
    const char *name, *list;
    int rc;
} list_cases[] = {
    { "nothing", NULL, 0 },
    { "empty", "", 0 },
    { "a huge range", "0-1023", 0 },
    { "several", "0-5,0,7-7,1000", 0 },
    { "a word", "all", -EINVAL },
    { "an end without a beginning", "-3", -EINVAL },
    { "a beginning without an end", "3-", -EINVAL },
    { "backwards", "3-1", -EINVAL },
    { "backwards behind one that is fine", "0-1023,3-1", -EINVAL },
    { "a comma at the end", "0,", -EINVAL },
    { "a comma at the beginning", ",0", -EINVAL },
    { "two commas", "0,,1", -EINVAL },
    { "blank", "0, 1", -EINVAL },
    { "a number too large", "1024", -EINVAL },
    { "a number that overflows", "0-99999999999999999999", -EINVAL },
    { "strides, which we do not know", "0-7:2", -EINVAL },
    { "none that we may use", "1023", -EINVAL },
};

static void cpu_lists(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(list_cases); i++) {
        struct zb_err err = { 0 };
        int rc = zsd_cpus_check(list_cases[i].list, &err);

        if (rc != list_cases[i].rc || (rc < 0) != (err.text[0] != '\0'))
            fail_msg("%s: got %d, '%s'", list_cases[i].name, rc, err.text);
        if (rc < 0) {
            struct zsd_compute *c = (void *)&err;

            assert_int_equal(zsd_compute_new(&c, 1, list_cases[i].list, NULL), rc);
            assert_ptr_equal(c, &err); /* unchanged */
        }
    }
}

/* ---- tasks */

struct job {
    struct zsd_task task;
    struct zsd_compute *pool;
    unsigned index;
    unsigned runs, dones;
    pthread_t worker;
    int cpus;         /* number of CPUs that the worker may use */
    struct job *then; /* done() posts it */
};

static atomic_uint runs_begun;
static unsigned dones;

static void job_run(struct zsd_task *task)
{
    struct job *j = zb_container_of(task, struct job, task);
    cpu_set_t set;

    j->runs++;
    j->worker = pthread_self();
    j->index = atomic_fetch_add(&runs_begun, 1);
    (void)sched_getaffinity(0, sizeof(set), &set);
    j->cpus = CPU_COUNT(&set);
}

static void job_done(struct zsd_task *task)
{
    struct job *j = zb_container_of(task, struct job, task);

    j->dones++;
    dones++;
    if (j->then)
        zsd_compute_post(j->pool, &j->then->task);
}

static void job_init(struct job *j, struct zsd_compute *pool)
{
    *j = (struct job){ .task = { .run = job_run, .done = job_done }, .pool = pool };
}

static struct zsd_compute *pool_new(unsigned threads, const char *cpus)
{
    struct zsd_compute *c = NULL;
    struct zb_err err = { 0 };

    atomic_store(&runs_begun, 0);
    dones = 0;
    if (zsd_compute_new(&c, threads, cpus, &err) < 0)
        fail_msg("%s", err.text);
    return c;
}

/** Waits, drains and reaps like the loop. False when nothing came within two seconds. */
static bool pool_wait(struct zsd_compute *c, unsigned max)
{
    struct pollfd p = { .fd = zsd_compute_wake_fd(c), .events = POLLIN };
    eventfd_t n;

    if (poll(&p, 1, 2000) != 1)
        return false;
    assert_int_equal(eventfd_read(p.fd, &n), 0);
    assert_true(zsd_compute_reap(c, max) <= max);
    return true;
}

/** No wake-up is set. */
static bool pool_quiet(struct zsd_compute *c)
{
    struct pollfd p = { .fd = zsd_compute_wake_fd(c), .events = POLLIN };

    return poll(&p, 1, 0) == 0;
}

#define JOBS 500u

static struct job jobs[JOBS];

static void post_all(struct zsd_compute *c)
{
    for (unsigned i = 0; i < JOBS; i++) {
        job_init(&jobs[i], c);
        zsd_compute_post(c, &jobs[i].task);
    }
}

static void each_once(void)
{
    for (unsigned i = 0; i < JOBS; i++)
        if (jobs[i].runs != 1 || jobs[i].dones != 1)
            fail_msg("task %u: %u runs, %u dones", i, jobs[i].runs, jobs[i].dones);
}

static void every_task_once(void **state)
{
    struct zsd_compute *c = pool_new(4, NULL);

    (void)state;
    assert_int_equal(zsd_compute_threads(c), 4);
    assert_true(pool_quiet(c));
    post_all(c);
    while (dones < JOBS)
        assert_true(pool_wait(c, UINT_MAX));
    each_once();
    for (unsigned i = 0; i < JOBS; i++)
        assert_false(pthread_equal(jobs[i].worker, pthread_self()));
    zsd_compute_free(c);
}

static void one_worker_keeps_the_order(void **state)
{
    struct zsd_compute *c = pool_new(1, NULL);

    (void)state;
    post_all(c);
    while (dones < JOBS)
        assert_true(pool_wait(c, UINT_MAX));
    for (unsigned i = 0; i < JOBS; i++)
        assert_int_equal(jobs[i].index, i);
    zsd_compute_free(c);
}

static void reap_stops_at_its_limit(void **state)
{
    struct zsd_compute *c = pool_new(2, NULL);
    unsigned turns = 0;

    (void)state;
    post_all(c);
    while (dones < JOBS) {
        unsigned before = dones;

        assert_true(pool_wait(c, 3)); /* it is set again as long as something is left */
        assert_true(dones - before <= 3);
        turns++;
    }
    assert_true(turns >= JOBS / 3);
    each_once();
    assert_int_equal(zsd_compute_reap(c, 3), 0);
    zsd_compute_free(c);
}

static void reap_at_its_limit_and_nothing_left(void **state)
{
    struct zsd_compute *c = pool_new(1, NULL);
    struct job j;

    (void)state;
    job_init(&j, c);
    zsd_compute_post(c, &j.task);
    assert_true(pool_wait(c, 1));
    assert_int_equal(j.dones, 1);
    assert_true(pool_quiet(c));
    zsd_compute_free(c);
}

static void free_runs_what_is_queued(void **state)
{
    struct zsd_compute *c = pool_new(2, NULL);

    (void)state;
    post_all(c);
    zsd_compute_free(c);
    each_once();
    assert_int_equal(dones, JOBS);
}

static void free_runs_what_done_posts(void **state)
{
    struct zsd_compute *c = pool_new(2, NULL);

    (void)state;
    for (unsigned i = 0; i < JOBS; i++) {
        job_init(&jobs[i], c);
        jobs[i].then = i + 1 < JOBS ? &jobs[i + 1] : NULL;
    }
    zsd_compute_post(c, &jobs[0].task);
    zsd_compute_free(c);
    each_once();
}

static void free_of_nothing(void **state)
{
    (void)state;
    zsd_compute_free(NULL);
    zsd_compute_free(pool_new(1, NULL));
}

static void workers_keep_to_the_list(void **state)
{
    cpu_set_t ours;
    char list[16];
    int cpu = 0;
    struct zsd_compute *c;
    struct job j;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(ours), &ours), 0);
    while (!CPU_ISSET(cpu, &ours))
        cpu++;
    (void)snprintf(list, sizeof(list), "%d", cpu);
    c = pool_new(0, list);
    assert_int_equal(zsd_compute_threads(c), 1); /* one for each CPU of the list */
    job_init(&j, c);
    zsd_compute_post(c, &j.task);
    assert_true(pool_wait(c, 1));
    assert_int_equal(j.cpus, 1);
    zsd_compute_free(c);

    c = pool_new(0, "");
    assert_int_equal(zsd_compute_threads(c), CPU_COUNT(&ours));
    zsd_compute_free(c);
}

/* ---- jobs that share a pool */

/** Blocks a worker until it is opened. */
struct gate {
    struct zsd_task task;
    int open_fd, there_fd;
    cpu_set_t cpus; /* CPUs that its worker may use */
};

static void gate_run(struct zsd_task *task)
{
    struct gate *g = zb_container_of(task, struct gate, task);
    eventfd_t n;

    (void)sched_getaffinity(0, sizeof(g->cpus), &g->cpus);
    (void)eventfd_write(g->there_fd, 1);
    (void)eventfd_read(g->open_fd, &n);
}

static void gate_done(struct zsd_task *task)
{
    (void)task;
    dones++;
}

/** Posts it, and waits until a worker is blocked by it. */
static void gate_close(struct gate *g, struct zsd_compute *c, bool slow)
{
    eventfd_t n;

    *g = (struct gate){ .task = { .run = gate_run, .done = gate_done, .slow = slow },
                        .open_fd = eventfd(0, EFD_CLOEXEC),
                        .there_fd = eventfd(0, EFD_CLOEXEC) };
    zsd_compute_post(c, &g->task);
    assert_int_equal(eventfd_read(g->there_fd, &n), 0);
}

static void gate_open(struct gate *g)
{
    (void)eventfd_write(g->open_fd, 1);
}

static void gate_end(struct gate *g)
{
    zb_close_fd(&g->open_fd);
    zb_close_fd(&g->there_fd);
}

/** Two jobs that keep one worker busy: bytes are divided by share, and the tasks of each run in
 * order. */
static void jobs_have_their_shares(void **state)
{
    struct zsd_compute *c = pool_new(1, NULL);
    struct zsd_payer payers[2];
    unsigned of[2] = { 0, 0 };
    struct gate g;

    (void)state;
    zsd_payer_init(&payers[0], 300);
    zsd_payer_init(&payers[1], 100);
    gate_close(&g, c, false);
    for (unsigned i = 0; i < 400; i++) {
        job_init(&jobs[i], c);
        jobs[i].task.payer = &payers[i / 200];
        jobs[i].task.bytes = ZB_MIB;
        zsd_compute_post(c, &jobs[i].task);
    }
    gate_open(&g);
    while (dones < 401)
        assert_true(pool_wait(c, UINT_MAX));
    for (unsigned i = 0; i < 400; i++) {
        of[i / 200] += jobs[i].index < 200;
        if (i % 200 > 0 && jobs[i].index < jobs[i - 1].index)
            fail_msg("task %u ran before the one that came before it", i);
    }
    assert_in_range(of[0], 148, 152);
    assert_in_range(of[1], 48, 52);
    zsd_compute_free(c);
    gate_end(&g);
}

static void urgent_tasks_first(void **state)
{
    struct zsd_compute *c = pool_new(1, NULL);
    struct zsd_payer payer;
    struct gate g;

    (void)state;
    zsd_payer_init(&payer, 0);
    gate_close(&g, c, false);
    for (unsigned i = 0; i < 10; i++) {
        job_init(&jobs[i], c);
        jobs[i].task.payer = &payer;
        jobs[i].task.urgent = i >= 8;
        zsd_compute_post(c, &jobs[i].task);
    }
    gate_open(&g);
    while (dones < 11)
        assert_true(pool_wait(c, UINT_MAX));
    assert_int_equal(jobs[8].index, 0);
    assert_int_equal(jobs[9].index, 1);
    assert_int_equal(jobs[0].index, 2);
    zsd_compute_free(c);
    gate_end(&g);
}

/** However long a slow task takes, the others go on. */
static void slow_tasks_hold_nobody_up(void **state)
{
    struct zsd_compute *c = pool_new(1, NULL);
    struct zb_err err = { 0 };
    struct gate g;

    (void)state;
    assert_int_equal(zsd_compute_slow(c, 1, &err), 0);
    assert_int_equal(zsd_compute_threads(c), 1);
    gate_close(&g, c, true);
    post_all(c);
    while (dones < JOBS)
        assert_true(pool_wait(c, UINT_MAX));
    each_once();
    gate_open(&g);
    while (dones < JOBS + 1)
        assert_true(pool_wait(c, UINT_MAX));
    zsd_compute_free(c);
    gate_end(&g);
}

/** Stopping the pool waits for slow tasks, too; a pool without a thread for them runs them all the
 * same.
 */
static void slow_tasks_run_to_their_end(void **state)
{
    (void)state;
    for (unsigned threads = 0; threads < 3; threads++) {
        struct zsd_compute *c = pool_new(2, NULL);

        if (threads > 0)
            assert_int_equal(zsd_compute_slow(c, threads, NULL), 0);
        for (unsigned i = 0; i < JOBS; i++) {
            job_init(&jobs[i], c);
            jobs[i].task.slow = i % 3 == 0;
            zsd_compute_post(c, &jobs[i].task);
        }
        zsd_compute_free(c);
        each_once();
    }
}

/** With sets of CPUs, as NUMA nodes have them: each worker runs on one set, and a set has as many
 * workers as CPUs. */
static void workers_spread_over_sets(void **state)
{
    struct zsd_compute *c = NULL;
    cpu_set_t sets[2], ours;
    struct gate gates[4];

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(ours), &ours), 0);
    if (CPU_COUNT(&ours) < 2)
        ztest_skip("there is one processor");
    CPU_ZERO(&sets[0]);
    CPU_ZERO(&sets[1]);
    for (int cpu = 0, k = 0; k < 2; cpu++)
        if (CPU_ISSET(cpu, &ours))
            CPU_SET(cpu, &sets[k++]);
    dones = 0;
    assert_int_equal(zsd_compute_new_on(&c, 0, sets, 2, NULL), 0);
    assert_int_equal(zsd_compute_threads(c), 2);
    zsd_compute_free(c);
    assert_int_equal(zsd_compute_new_on(&c, 4, sets, 2, NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        gate_close(&gates[i], c, false);
    for (unsigned k = 0; k < 2; k++) {
        unsigned n = 0;

        for (unsigned i = 0; i < 4; i++)
            n += CPU_EQUAL(&gates[i].cpus, &sets[k]) != 0;
        assert_int_equal(n, 2);
    }
    for (unsigned i = 0; i < 4; i++)
        gate_open(&gates[i]);
    zsd_compute_free(c);
    assert_int_equal(dones, 4);
    for (unsigned i = 0; i < 4; i++)
        gate_end(&gates[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_lists),
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(one_worker_keeps_the_order),
        cmocka_unit_test(reap_stops_at_its_limit),
        cmocka_unit_test(reap_at_its_limit_and_nothing_left),
        cmocka_unit_test(free_runs_what_is_queued),
        cmocka_unit_test(free_runs_what_done_posts),
        cmocka_unit_test(free_of_nothing),
        cmocka_unit_test(workers_keep_to_the_list),
        cmocka_unit_test(jobs_have_their_shares),
        cmocka_unit_test(urgent_tasks_first),
        cmocka_unit_test(slow_tasks_hold_nobody_up),
        cmocka_unit_test(slow_tasks_run_to_their_end),
        cmocka_unit_test(workers_spread_over_sets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
