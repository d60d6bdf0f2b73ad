/*
 * Two real daemons as two nodes of one job. A daemon, a trainer or both die at each point between
 * step, prepare, vote and commit, on either node. The job is resumed at the same step on both, with
 * the same result at the end.
 *
 * MODEL. A case is a process of its own with two ranks as threads, rank r on daemon r. The engine's
 * calls pass through here (the linker's --wrap): at its point of the commit of step COMMIT_AT, the
 * victim's rank does what the case requires. Then this process resumes the job, and compares.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/step/step.h"
#include "comm_threads.h"
#include "model.h"
#include "real_daemon.h"

#define NODES      2u
#define UNTIL      6u /* steps of a complete run, every second one committed */
#define COMMIT_AT  4u
#define FREEZE_US  250000u /* for how long the other node goes on */
#define COMMIT_FEW 2u

enum point {
    BEFORE_STEP, /* the step with prepare is about to be requested */
    STEP_SENT,
    PREPARED,    /* its answer has come */
    BEFORE_VOTE, /* the ranks are about to exchange their results */
    VOTED,       /* the prepared version is about to be committed */
    COMMIT_SENT,
    COMMITTED, /* the answer to that has come */
    POINTS,
};

enum act {
    ALL_TRAINERS, /* both die at once */
    ONE_TRAINER,  /* the victim's stops; the other one goes on for a while */
    DAEMON,       /* the victim's */
    NODE,         /* daemon and trainer */
    ACTS,
};

static const char *const point_names[] = { "before the step", "step sent", "prepared",
                                           "before the vote", "voted",     "commit sent",
                                           "committed" };
static const char *const act_names[] = { "all trainers", "one trainer", "daemon", "node" };

static struct {
    bool armed;
    enum point point;
    enum act act;
    uint32_t victim;
    pid_t daemon;
} plan;

#define HOST_ARGS "--host-bytes", "64M", "--log-level", "error"

static struct real_daemon daemons[NODES];

static uint64_t committed(const struct real_daemon *d, const char *job)
{
    struct zc_options options = { .socket = d->socket };
    struct zc_job_row *rows = NULL;
    struct zc_client *c;
    uint64_t at = UINT64_MAX;
    size_t n = 0;

    assert_int_equal(zc_open(&c, &options), 0);
    assert_int_equal(zc_jobs_wait(c, job, &rows, &n), 0);
    if (n == 1 && rows[0].committed)
        at = rows[0].committed_iterations;
    zc_rows_free(rows);
    for (int i = 0; i < 100 && (errno = -zc_job_destroy_wait(c, job)) == EBUSY; i++)
        (void)usleep(10000); /* a rank that is just leaving */
    assert_int_equal(errno, 0);
    zc_close(c);
    return at;
}

/* ---- the points */

static void reach(const struct zc_client *c, enum point point)
{
    if (!plan.armed || point != plan.point || zc_server(c)->pid != (uint64_t)plan.daemon)
        return;
    plan.armed = false;
    if (plan.act == DAEMON || plan.act == NODE)
        (void)kill(plan.daemon, SIGKILL);
    if (plan.act == ONE_TRAINER || plan.act == NODE)
        (void)usleep(FREEZE_US);
    if (plan.act != DAEMON)
        (void)kill(getpid(), SIGKILL);
}

struct wrapped {
    struct zc_client *c;
    enum point point;
    zc_done_fn *done;
    void *arg;
};

static void on_wrapped(void *arg, int rc)
{
    struct wrapped w = *(struct wrapped *)arg;

    free(arg);
    if (rc == 0)
        reach(w.c, w.point);
    w.done(w.arg, rc);
}

static struct wrapped *wrap(struct zc_client *c, enum point point, zc_done_fn *done, void *arg)
{
    struct wrapped *w = malloc(sizeof(*w));

    assert_non_null(w);
    *w = (struct wrapped){ c, point, done, arg };
    return w;
}

int __real_zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step,
                   struct zc_stepped *ret, zc_done_fn *done, void *arg);
int __wrap_zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step,
                   struct zc_stepped *ret, zc_done_fn *done, void *arg);
int __real_zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                     uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg);
int __wrap_zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                     uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg);
int __real_zcz_commit_settle(struct zc_zero *z);
int __wrap_zcz_commit_settle(struct zc_zero *z);

int __wrap_zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step,
                   struct zc_stepped *ret, zc_done_fn *done, void *arg)
{
    struct wrapped *w;
    int rc;

    if (step->step != COMMIT_AT)
        return __real_zc_step(c, job, step, ret, done, arg);
    assert_int_equal(step->commit, ZC_COMMIT_PREPARE);
    reach(c, BEFORE_STEP);
    w = wrap(c, PREPARED, done, arg);
    rc = __real_zc_step(c, job, step, ret, on_wrapped, w);
    if (rc == 0)
        reach(c, STEP_SENT);
    else
        free(w);
    return rc;
}

int __wrap_zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                     uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg)
{
    struct wrapped *w;
    int rc;

    if (iterations != COMMIT_AT || what != ZC_COMMIT_PREPARED)
        return __real_zc_commit(c, job, what, iterations, timeout_ms, ret, done, arg);
    reach(c, VOTED);
    w = wrap(c, COMMITTED, done, arg);
    rc = __real_zc_commit(c, job, what, iterations, timeout_ms, ret, on_wrapped, w);
    if (rc == 0)
        reach(c, COMMIT_SENT);
    else
        free(w);
    return rc;
}

/* The store does not show its rank, but its daemon's instance identifies the victim. */
static uint8_t victim_node[16];

int __wrap_zcz_commit_settle(struct zc_zero *z)
{
    if (plan.armed && plan.point == BEFORE_VOTE && z->steps->unsettled == ZC_COMMIT_PREPARE &&
        z->iterations == COMMIT_AT && memcmp(z->store->node, victim_node, 16) == 0) {
        struct zc_options options = { .socket = daemons[plan.victim].socket };
        struct zc_client *c;

        assert_int_equal(zc_open(&c, &options), 0);
        reach(c, BEFORE_VOTE);
        zc_close(c);
    }
    return __real_zcz_commit_settle(z);
}

/* ---- runs */

struct party {
    struct comm_group *group;
    struct run runs[NODES];
};

static void party_new(struct party *p, const char *job, bool resume)
{
    memset(p, 0, sizeof(*p));
    p->group = comm_group_new(NODES, 1, 2);
    for (uint32_t r = 0; r < NODES; r++) {
        struct run *run = &p->runs[r];

        run->dtype = ZC_BF16;
        run->until = UNTIL;
        run->abort = p->group; /* like a launcher */
        zc_zero_defaults(&run->options);
        run->options.comm = comm_group_rank(p->group, r);
        run->options.groups = 2;
        run->options.weight_decay[0] = 0.1;
        run->options.clip = 1;
        run->options.timeout_ms = 120000;
        if (!job)
            continue;
        run->options.socket = daemons[r].socket;
        run->options.job = job;
        run->options.offload_param = run->options.offload_optimizer = ZC_ZERO_NVME;
        run->options.keep = run->options.durable = true;
        run->options.resume = resume;
        run->options.commit_every = COMMIT_FEW;
    }
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < NODES; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
}

static struct party whole;

static void assert_whole(const char *name, const struct party *p)
{
    for (uint32_t r = 0; r < NODES; r++)
        if (p->runs[r].rc != 0)
            fail_msg("%s: rank 0 ended with %d: %s; rank 1 with %d: %s", name, p->runs[0].rc,
                     p->runs[0].error, p->runs[1].rc, p->runs[1].error);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        size_t bytes = model_units[u].elems * sizeof(float);

        if (memcmp(whole.runs[0].values.master[u], p->runs[0].values.master[u], bytes) != 0 ||
            memcmp(whole.runs[0].values.m[u], p->runs[0].values.m[u], bytes) != 0 ||
            memcmp(whole.runs[0].values.v[u], p->runs[0].values.v[u], bytes) != 0)
            fail_msg("%s: unit %u differs from the uninterrupted run", name, u);
    }
}

/* The run that dies, in a process of its own. */
static void run_and_die(const char *job)
{
    struct zc_options options = { .socket = daemons[plan.victim].socket };
    struct zc_client *c;
    struct party p;

    assert_int_equal(zc_open(&c, &options), 0);
    memcpy(victim_node, zc_server(c)->instance, sizeof(victim_node));
    zc_close(c);
    plan.daemon = daemons[plan.victim].pid;
    plan.armed = true;
    party_new(&p, job, false);
    run_threads(p.runs, NODES);
    _exit(plan.armed ? 99 : p.runs[0].rc != 0 && p.runs[1].rc != 0 ? 1 : 2);
}

static void one_case(const char *name, const char *job)
{
    uint32_t v = plan.victim;
    struct party p;
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        run_and_die(job);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (plan.act == DAEMON ? !WIFEXITED(status) || WEXITSTATUS(status) == 99
                           : !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("%s: the run ended with %#x", name, (unsigned)status);
    if (plan.act == DAEMON || plan.act == NODE) {
        assert_int_equal(waitpid(daemons[v].pid, NULL, 0), daemons[v].pid);
        real_daemon_again(&daemons[v], HOST_ARGS);
    }
    party_new(&p, job, true);
    run_threads(p.runs, NODES);
    assert_whole(name, &p);
    if (p.runs[0].begun_at != p.runs[1].begun_at || p.runs[0].begun_at < COMMIT_FEW ||
        (plan.point >= COMMITTED && p.runs[0].begun_at < COMMIT_AT))
        fail_msg("%s: the nodes went on behind steps %llu and %llu", name,
                 (unsigned long long)p.runs[0].begun_at, (unsigned long long)p.runs[1].begun_at);
    print_message("%s: behind step %llu\n", name, (unsigned long long)p.runs[0].begun_at);
    for (uint32_t n = 0; n < NODES; n++)
        assert_int_equal(committed(&daemons[n], job), UNTIL);
    party_done(&p);
}

static void deaths(void **state)
{
    uint32_t number = 0;

    (void)state;
    for (plan.point = 0; plan.point < POINTS; plan.point++)
        for (plan.act = 0; plan.act < ACTS; plan.act++)
            for (plan.victim = 0; plan.victim < NODES; plan.victim++) {
                char name[96], job[16];

                (void)snprintf(name, sizeof(name), "%s, %s of node %u", point_names[plan.point],
                               act_names[plan.act], plan.victim);
                (void)snprintf(job, sizeof(job), "job-%u", number++);
                one_case(name, job);
            }
}

static int setup(void **state)
{
    if (real_daemon_setup(state) < 0)
        return -1;
    for (uint32_t n = 0; n < NODES; n++)
        real_daemon_start(&daemons[n], HOST_ARGS);
    party_new(&whole, NULL, false);
    run_threads(whole.runs, NODES);
    return whole.runs[0].rc;
}

static int teardown(void **state)
{
    party_done(&whole);
    for (uint32_t n = 0; n < NODES; n++)
        real_daemon_stop(&daemons[n]);
    return real_daemon_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(deaths) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
