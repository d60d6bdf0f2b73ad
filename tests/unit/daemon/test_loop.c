#include "tests/ztest.h"

#include "tests/unit/daemon/server_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/run/compute.h"

/* The orderly end; and the return of tasks. test_conn.c tests the turn itself. */

static struct server_fixture x;
static uv_timer_t timer;

static uint64_t now_ms(void)
{
    return zb_now_ns() / 1000000;
}

/** The loop runs this after a delay. */
static void later(uint64_t ms, uv_timer_cb run)
{
    (void)uv_timer_init(&x.daemon.loop->uv, &timer);
    (void)uv_timer_start(&timer, run, ms, 0);
}

static void watch_for(uint64_t stall_ms, uint64_t limit_ms)
{
    struct zb_err err = { 0 };
    const struct zsd_patience patience = { .stall_ms = stall_ms, .limit_ms = limit_ms };

    if (zsd_loop_end_on_signals(&x.daemon, &patience, &err) < 0)
        fail_msg("%s", err.text);
}

static void watch(uint64_t limit_ms)
{
    watch_for(limit_ms, limit_ms);
}

static void nothing_in_progress(void **state)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP };

    for (size_t i = 0; i < ZB_COUNT(signals); i++) {
        uint64_t begin = now_ms();

        if (i > 0)
            (void)sf_setup(state);
        watch(60000);
        assert_int_equal(raise(signals[i]), 0);
        assert_true(zsd_loop_run(&x.daemon));
        assert_true(now_ms() - begin < 1000);
        assert_true(core_double.draining);
        assert_int_equal(core_double.farewells, 1);
        assert_int_equal(sf_files(&x), 0); /* no client finds it any more */
        if (i + 1 < ZB_COUNT(signals))
            (void)sf_teardown(state);
    }
}

static void no_longer_busy(uv_timer_t *t)
{
    (void)t;
    assert_true(core_double.draining);
    assert_int_equal(core_double.farewells, 0); /* not while a step may still finish */
    core_double.busy = 0;
    core_answer(5);
}

/** An operation in progress finishes, and its answer is sent. */
static void an_operation_in_progress(void **state)
{
    int fd = sf_client(&x);
    uint64_t begin = now_ms();

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 8, NULL, 0);
    sf_pump(&x);
    core_double.busy = 1;
    watch(60000);
    assert_int_equal(raise(SIGTERM), 0);
    later(150, no_longer_busy);
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= 150);
    assert_true(now_ms() - begin < 1000);
    assert_int_equal(core_double.farewells, 1);
    assert_int_equal(sf_reply(&x, fd, 8), 0);
    assert_int_equal(close(fd), 0);
}

static void all_is_said(uv_timer_t *t)
{
    (void)t;
    assert_int_equal(core_double.farewells, 1);
    core_double.busy = 0;
}

/** Jobs that end have work of their own, and clients to tell. */
static void the_farewell(void **state)
{
    int fd = sf_client(&x);
    uint64_t begin = now_ms();

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 9, NULL, 0); /* it waits for something that will not come */
    sf_pump(&x);
    core_double.farewell_busy = 2;
    watch(60000);
    assert_int_equal(raise(SIGTERM), 0);
    later(ZSD_SEND_MS + 200, all_is_said); /* the time limit for answers does not end it */
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= ZSD_SEND_MS + 200);
    assert_int_equal(core_double.farewells, 1);
    assert_int_equal(sf_reply(&x, fd, 9), 0);
    assert_int_equal(close(fd), 0);
}

static void an_operation_that_never_ends(void **state)
{
    int fd = sf_client(&x);
    uint64_t begin = now_ms();

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 9, NULL, 0);
    sf_pump(&x);
    core_double.busy = 3;
    watch(200);
    assert_int_equal(raise(SIGTERM), 0);
    assert_false(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= 200);
    assert_true(now_ms() - begin < 2000);
    assert_int_equal(core_double.farewells, 1); /* told before the loop stops */
    assert_int_equal(sf_reply(&x, fd, 9), 0);
    assert_int_equal(close(fd), 0);
}

static void again(uv_timer_t *t)
{
    (void)t;
    (void)raise(SIGINT);
}

static void a_second_signal(void **state)
{
    uint64_t begin = now_ms();

    (void)state;
    core_double.busy = 1;
    watch(60000);
    assert_int_equal(raise(SIGTERM), 0);
    later(50, again);
    assert_false(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin < 1000);
    assert_int_equal(core_double.farewells, 1);
}

/** Its answers are waited for, but not for ever. */
static void a_client_that_never_reads(void **state)
{
    int fd = sf_client(&x);
    uint64_t begin = now_ms();

    (void)state;
    core_double.list_bytes = 60000;
    for (uint64_t tag = 0; tag < 20; tag++)
        sf_send(fd, ZP_REQUEST, ZP_LIST, tag, NULL, 0);
    sf_pump(&x);
    assert_true(zsd_server_unsent(&x.daemon) > 0);
    watch(60000);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= ZSD_SEND_MS);
    assert_true(now_ms() - begin < ZSD_SEND_MS + 1000);
    assert_int_equal(close(fd), 0);
}

/** The limit is that of the whole end, the sending of answers included. */
static void a_short_time_for_all(void **state)
{
    int fd = sf_client(&x);
    uint64_t begin = now_ms();

    (void)state;
    core_double.list_bytes = 60000;
    for (uint64_t tag = 0; tag < 20; tag++)
        sf_send(fd, ZP_REQUEST, ZP_LIST, tag, NULL, 0);
    sf_pump(&x);
    watch(100);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin < 900);
    assert_int_equal(close(fd), 0);
}

static void the_manager_is_told(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[32] = "";

    (void)state;
    (void)strcpy(a.sun_path, x.dir);
    (void)strcat(a.sun_path, "/n");
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", a.sun_path, 1), 0);
    watch(60000);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(zsd_loop_run(&x.daemon));
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    assert_int_equal(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 10);
    assert_string_equal(text, "STOPPING=1");
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(a.sun_path), 0);
}

/* ---- an end that takes long */

static struct zsd_task slow_task;
static uint64_t slow_until;
static unsigned slow_done;

static void slow_run(struct zsd_task *task)
{
    (void)task;
    (void)usleep(50000);
}

/* One operation after the other finishes, until slow_until. */
static void slow_next(struct zsd_task *task)
{
    slow_done++;
    if (now_ms() < slow_until)
        zsd_compute_post(x.daemon.compute, task);
    else
        core_double.busy = 0;
}

static void slow_begin(uint64_t ms)
{
    slow_task = (struct zsd_task){ .run = slow_run, .done = slow_next };
    slow_until = now_ms() + ms;
    slow_done = 0;
    core_double.busy = 1;
    zsd_compute_post(x.daemon.compute, &slow_task);
}

/** As long as operations finish, the end is waited for. */
static void slow_but_moving(void **state)
{
    uint64_t begin = now_ms();

    (void)state;
    watch_for(400, 0);
    slow_begin(900);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= 900);
    assert_true(slow_done > 3);
}

/** The limit of all of it holds, even so. */
static void moving_for_too_long(void **state)
{
    uint64_t begin = now_ms();

    (void)state;
    watch_for(60000, 300);
    slow_begin(1000);
    assert_int_equal(raise(SIGTERM), 0);
    assert_false(zsd_loop_run(&x.daemon));
    assert_true(now_ms() - begin >= 300);
    assert_true(now_ms() - begin < 1000);
    while (core_double.busy > 0) /* the task is in this file's memory */
        (void)zsd_compute_reap(x.daemon.compute, 1);
}

/** The manager hears about once a second what the end waits for, and that it takes longer. */
static void more_time_is_asked_for(void **state)
{
    static const char want[] = "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=Stopping: busy with 1";
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[128] = "";

    (void)state;
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/n", x.dir);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", a.sun_path, 1), 0);
    watch_for(60000, 0);
    slow_begin(1300);
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(zsd_loop_run(&x.daemon));
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    assert_int_equal(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 10);
    memset(text, 0, sizeof(text));
    assert_int_equal(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(a.sun_path), 0);
}

/* ---- the watchdog of the service manager */

static void end_it(uv_timer_t *t)
{
    (void)t;
    uv_stop(&x.daemon.loop->uv);
}

static void watchdog_set(const char *usec, int pid)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", (int)getpid() + pid);
    assert_int_equal(usec ? setenv("WATCHDOG_USEC", usec, 1) : unsetenv("WATCHDOG_USEC"), 0);
    assert_int_equal(pid >= 0 ? setenv("WATCHDOG_PID", text, 1) : unsetenv("WATCHDOG_PID"), 0);
}

/** The manager's interval, for one process: how often it is told within 300 ms. Its queue holds ten
 * messages or more, and when it is full, the loop turns all the same. */
static void the_watchdog(void **state)
{
    static const struct {
        const char *usec;
        int pid; /* relative to ours; -1: not set */
        unsigned least, most;
    } rows[] = { { "200000", -1, 4, 7 }, { "200000", 0, 4, 7 }, { "200000", 1, 0, 0 },
                 { "4000000", 0, 1, 1 }, { "1", 0, 10, 301 },   { NULL, -1, 0, 0 },
                 { "0", -1, 0, 0 },      { "", -1, 0, 0 },      { "-1", -1, 0, 0 },
                 { "1s", -1, 0, 0 } };

    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        unsigned n = 0;
        char text[32];

        if (i > 0)
            (void)sf_setup(state);
        (void)snprintf(a.sun_path, sizeof(a.sun_path), "%.90s/n", x.dir);
        assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
        assert_int_equal(setenv("NOTIFY_SOCKET", a.sun_path, 1), 0);
        watchdog_set(rows[i].usec, rows[i].pid);
        zsd_loop_watchdog(&x.daemon);
        later(300, end_it);
        (void)zsd_loop_run(&x.daemon);
        for (; recv(fd, text, sizeof(text), MSG_DONTWAIT) == 10; n++)
            assert_memory_equal(text, "WATCHDOG=1", 10);
        if (n < rows[i].least || n > rows[i].most)
            fail_msg("row %zu: told %u times", i, n);
        watchdog_set(NULL, -1);
        assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(unlink(a.sun_path), 0);
        if (i + 1 < ZB_COUNT(rows))
            (void)sf_teardown(state);
    }
}

/* ---- ranks that attach again */

static void all_have_left(uv_timer_t *t)
{
    (void)t;
    assert_true(core_double.leaving);
    assert_false(core_double.draining); /* steps are still made */
    core_double.waits = false;
}

/** They are told, and the core drains when they have left; or when they take too long. */
static void ranks_that_return(void **state)
{
    static const struct {
        uint64_t wait_ms, least_ms;
        uv_timer_cb later;
    } rows[] = { { 60000, 150, all_have_left }, { 200, 200, NULL } };

    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        const struct zsd_patience patience = { .wait_ms = rows[i].wait_ms, .stall_ms = 60000 };
        uint64_t begin = now_ms();
        struct zb_err err = { 0 };

        if (i > 0)
            (void)sf_setup(state);
        core_double.waits = true;
        assert_int_equal(zsd_loop_end_on_signals(&x.daemon, &patience, &err), 0);
        assert_int_equal(raise(SIGTERM), 0);
        if (rows[i].later)
            later(150, rows[i].later);
        assert_true(zsd_loop_run(&x.daemon));
        assert_true(now_ms() - begin >= rows[i].least_ms);
        assert_true(now_ms() - begin < 2000);
        assert_true(core_double.draining);
        if (i + 1 < ZB_COUNT(rows))
            (void)sf_teardown(state);
    }
}

/* ---- an unused daemon */

static int used_fd;

static void leave(uv_timer_t *t)
{
    (void)t;
    assert_false(core_double.draining);
    assert_int_equal(close(used_fd), 0);
}

/** Runs the loop with a client that leaves after 1.2 s: milliseconds from then to the end. */
static uint64_t run_unused(uint32_t linger_s, uint32_t kept_s, unsigned jobs)
{
    uint64_t begin = now_ms();

    x.daemon.config.linger_s = linger_s;
    x.daemon.config.linger_kept_s = kept_s;
    core_double.jobs = jobs;
    watch(60000);
    zsd_loop_end_unused(&x.daemon);
    used_fd = sf_client(&x);
    later(1200, leave);
    assert_true(zsd_loop_run(&x.daemon));
    assert_true(core_double.draining);
    assert_int_equal(core_double.farewells, 1);
    return now_ms() - begin - 1200;
}

/** It does not end while a client is there, however short the time is; then soon. */
static void unused(void **state)
{
    (void)state;
    (void)run_unused(0, 0, 0);
}

static void unused_for_a_second(void **state)
{
    (void)state;
    assert_true(run_unused(1, 2, 0) >= 1000);
}

static void unused_with_a_kept_job(void **state)
{
    (void)state;
    assert_true(run_unused(0, 2, 1) >= 2000);
}

static void finish(uv_timer_t *t)
{
    (void)t;
    assert_false(core_double.draining);
    core_double.busy = 0;
}

static void leave_work(uv_timer_t *t)
{
    leave(t);
    later(700, finish);
}

/** For example a commit that no client waits for. */
static void unused_and_busy(void **state)
{
    (void)state;
    core_double.busy = 1;
    watch(60000);
    zsd_loop_end_unused(&x.daemon);
    x.daemon.config.linger_s = x.daemon.config.linger_kept_s = 0;
    used_fd = sf_client(&x);
    later(100, leave_work);
    assert_true(zsd_loop_run(&x.daemon));
    assert_int_equal(core_double.busy, 0);
    assert_int_equal(core_double.farewells, 1);
}

/* ---- tasks */

#define TASKS 300u

static struct zsd_task tasks[TASKS];
static unsigned tasks_done;

static void task_run(struct zsd_task *task)
{
    (void)task;
}

static void task_done(struct zsd_task *task)
{
    (void)task;
    tasks_done++;
}

/** More than one turn can reap: all return, and each turn has its limit. */
static void tasks_come_back(void **state)
{
    (void)state;
    tasks_done = 0;
    for (unsigned i = 0; i < TASKS; i++) {
        tasks[i] = (struct zsd_task){ .run = task_run, .done = task_done };
        zsd_compute_post(x.daemon.compute, &tasks[i]);
    }
    (void)usleep(50000); /* most of them are finished: a turn still reaps no more */
    (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    assert_true(tasks_done <= ZSD_REAP_MAX);
    assert_true(sf_pump_until(&x, &tasks_done, TASKS));
}

#define TEST(name) cmocka_unit_test_prestate_setup_teardown(name, sf_setup, sf_teardown, &x)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_in_progress),  TEST(an_operation_in_progress),
        TEST(the_farewell),         TEST(an_operation_that_never_ends),
        TEST(a_second_signal),      TEST(a_client_that_never_reads),
        TEST(a_short_time_for_all), TEST(the_manager_is_told),
        TEST(ranks_that_return),    TEST(slow_but_moving),
        TEST(moving_for_too_long),  TEST(more_time_is_asked_for),
        TEST(the_watchdog),         TEST(unused),
        TEST(unused_for_a_second),  TEST(unused_with_a_kept_job),
        TEST(unused_and_busy),      TEST(tasks_come_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
