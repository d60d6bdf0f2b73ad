/*
 * Jobs that are resumed where they are; and ranks that fork, as data loaders do. A child keeps
 * nothing of its parent's; and if one still holds the socket, the daemon notices the parent's
 * death.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/zc_zero.h"

#define PAGE 4096u

static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "0", "--page-elems",
    "4096",         "--timeout-ms", "120000",       NULL
};

static const struct zc_unit unit = {
    .name = "u", .elems = 4 * PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
};

static void join(struct zi_rank *r, const struct zi_daemon *d, struct zc_job_options *o)
{
    assert_int_equal(zi_open(r, d, o), 0);
    zi_define(r, &unit, 1, 2);
    assert_int_equal(zi_ready(r, 1), 0);
}

/* Rank 1, with a child that has a copy of its socket; the test kills the rank. */
static void rank_with_a_child(const struct zi_daemon *d, struct zc_job_options o, bool hides,
                              volatile pid_t *child)
{
    struct zi_rank r;
    pid_t pid;

    o.rank = 1;
    join(&r, d, &o);
    if (hides)
        (void)dup(zc_fd(r.c)); /* a copy that the library does not know of */
    pid = fork();
    if (pid == 0)
        for (;;)
            (void)pause();
    *child = pid;
    for (;;)
        (void)pause();
}

static void killed(bool keep, bool hides)
{
    struct zi_daemon d = { 0 };
    struct zc_job_options o = {
        .name = "job", .world = 2, .staging_bytes = 65536, .groups = 1, .keep = keep
    };
    volatile pid_t *child =
        mmap(NULL, sizeof(*child), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct zi_rank r;
    uint64_t begun, host;
    pid_t pid;
    int status;

    assert_true(child != MAP_FAILED);
    zi_start(&d, options);
    host = zi_used(&d, "host");
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        rank_with_a_child(&d, o, hides, child);
    join(&r, &d, &o);
    for (unsigned waited = 0; *child == 0; waited++) {
        assert_true(waited < 3000);
        zi_pump(&r, 1, 10);
    }
    begun = zb_now_ns();
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    while (r.peer_lost == 0) {
        zi_pump(&r, 1, 10);
        assert_true(zb_now_ns() - begun < UINT64_C(1000000000) * ZI_WAIT_MS / 1000);
    }
    print_message("the peer heard of it after %llu ms\n",
                  (unsigned long long)((zb_now_ns() - begun) / 1000000));
    assert_int_equal(r.event_code, -EOWNERDEAD);
    assert_int_equal(kill(*child, 0), 0); /* the child lives */
    zc_close(r.c);
    if (keep) { /* the rank's place is free */
        o.attach = true;
        o.rank = 1;
        assert_int_equal(zi_open(&r, &d, &o), 0);
        zi_close(&r, 1);
    } else {
        (void)zi_await_used(&d, host, 0);
    }
    assert_int_equal(kill(*child, SIGKILL), 0);
    assert_int_equal(munmap((void *)(uintptr_t)child, sizeof(*child)), 0);
    zi_stop(&d);
}

static void a_rank_with_a_child_is_killed(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 4; n++)
        killed(n & 1, n & 2);
}

/* ---- in the child */

#define CHECK(what)                                                  \
    do {                                                             \
        if (!(what)) {                                               \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            _exit(1);                                                \
        }                                                            \
    } while (0)

static void wait_for(pid_t pid)
{
    int status;

    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void handles(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c, *other;
    pid_t pid;

    (void)state;
    zi_start(&d, options);
    c = zi_client(&d);
    other = zi_client(&d);
    pid = fork();
    if (pid == 0) {
        struct zc_options o = { .socket = d.socket };
        struct zc_client *own = NULL;

        CHECK(zc_fd(c) == -1 && zc_fd(other) == -1 && zc_events(c) == 0);
        CHECK(zc_ping_wait(c) == -EPERM && strstr(zc_error(c), "is a child process"));
        CHECK(zc_poll(other, 0) == -EPERM);
        zc_close(c);
        CHECK(zc_open(&own, &o) == 0 && zc_ping_wait(own) == 0); /* the child's own client works */
        zc_close(own);
        zc_close(other);
        _exit(0);
    }
    wait_for(pid);
    assert_int_equal(zc_ping_wait(c), 0);
    zc_close(other);
    assert_int_equal(zc_ping_wait(c), 0);
    zc_close(c);
    zi_stop(&d);
}

static int zeros(void *arg, uint32_t u, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    (void)u;
    (void)first;
    memset(out, 0, count * sizeof(*out));
    return 0;
}

/* An engine over each store; it goes on in the parent. */
static void engines(void **state)
{
    static const struct zc_tensor whole = { .name = "t", .ndims = 1, .dims = { 4 * PAGE } };
    struct zc_unit trained = unit;
    struct zi_daemon d = { 0 };

    (void)state;
    trained.tensors = &whole;
    trained.ntensors = 1;
    zi_start(&d, options);
    for (unsigned n = 0; n < 2; n++) {
        struct zc_zero_options o;
        struct zc_comm *comm;
        struct zc_zero *z;
        const void *params;
        pid_t pid;

        assert_int_equal(zc_comm_open(&comm, "self", NULL, 0), 0);
        zc_zero_defaults(&o);
        o.comm = comm;
        o.socket = d.socket;
        o.offload_optimizer = o.offload_param = n == 0 ? ZC_ZERO_NONE : ZC_ZERO_HOST;
        assert_int_equal(zc_zero_open(&z, &o), 0);
        assert_int_equal(zc_zero_add_unit(z, &trained), 0);
        assert_int_equal(zc_zero_start(z, zeros, NULL), 0);
        pid = fork();
        if (pid == 0) {
            CHECK(zc_zero_gather(z, 0, &params) == -EPERM);
            CHECK(strstr(zc_zero_error(z), "is a child process"));
            CHECK(zc_zero_poll(z) == -EPERM);
            zc_zero_close(z, true);
            zc_comm_close(comm, true);
            _exit(0);
        }
        wait_for(pid);
        assert_int_equal(zc_zero_gather(z, 0, &params), 0);
        assert_int_equal(zc_zero_release(z, 0), 0);
        zc_zero_close(z, true);
        zc_comm_close(comm, true);
    }
    zi_stop(&d);
}

/* ---- jobs that are resumed where they are */

static uint64_t begin_or_resume(const struct zi_daemon *d, const char *job)
{
    static const struct zc_tensor whole = { .name = "t", .ndims = 1, .dims = { 4 * PAGE } };
    struct zc_unit trained = unit;
    struct zc_zero_options o;
    struct zc_zero_stepped stepped;
    struct zc_comm *comm;
    struct zc_zero *z;
    uint64_t iterations, applied;
    float *grad;
    int rc;

    trained.tensors = &whole;
    trained.ntensors = 1;
    assert_int_equal(zc_comm_open(&comm, "self", NULL, 0), 0);
    zc_zero_defaults(&o);
    o.comm = comm;
    o.socket = d->socket;
    o.job = job;
    o.keep = o.resume_if_there = true;
    o.offload_optimizer = o.offload_param = ZC_ZERO_HOST;
    assert_int_equal(zc_zero_open(&z, &o), 0);
    assert_int_equal(zc_zero_add_unit(z, &trained), 0);
    rc = zc_zero_start(z, zeros, NULL);
    if (rc < 0)
        fail_msg("start: %d %s", rc, zc_zero_error(z));
    assert_int_equal(zc_zero_progress(z, &iterations, &applied), 0);
    assert_int_equal(zc_zero_grad(z, 0, &grad), 0);
    assert_int_equal(zc_zero_reduce(z, 0), 0);
    assert_int_equal(zc_zero_step(z, 0.1, &stepped), 0);
    assert_int_equal(stepped.iterations, iterations + 1);
    assert_false(zc_zero_failed(z));
    zc_zero_close(z, true);
    zc_comm_close(comm, true);
    return iterations;
}

static void begun_or_resumed(void **state)
{
    struct zi_daemon d = { 0 };

    (void)state;
    zi_start(&d, options);
    for (uint64_t life = 0; life < 3; life++)
        assert_int_equal(begin_or_resume(&d, "one"), life);
    assert_int_equal(begin_or_resume(&d, "two"), 0);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_rank_with_a_child_is_killed, zi_teardown),
        cmocka_unit_test_teardown(handles, zi_teardown),
        cmocka_unit_test_teardown(engines, zi_teardown),
        cmocka_unit_test_teardown(begun_or_resumed, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
