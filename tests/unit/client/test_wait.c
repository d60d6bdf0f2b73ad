/* The blocking forms with a daemon that is slow, stopped, or answers other requests. */
#include "tests/ztest.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/util.h"
#include "tests/unit/client/session.h"

/* Short, but longer than a busy machine delays a thread. Upper bounds on times below only
 * distinguish "in time" from "never". */
#define QUIET_MS 1500u
#define NEVER_MS 30000u

static struct session quiet_session_of(fake_fn *fn, unsigned quiet_ms)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };
    struct session x = { .f = calloc(1, sizeof(*x.f)) };

    assert_non_null(x.f);
    x.f->hang_up_at = FAKE_ANY_FRAME;
    x.f->fn = fn;
    fake_start(x.f);
    assert_int_equal(
        zc_open(&x.c, &(struct zc_options){ .socket = x.f->path, .quiet_timeout_ms = quiet_ms }),
        0);
    assert_int_equal(zc_job_open_wait(x.c, &o, &x.job), 0);
    return x;
}

static struct session quiet_session(fake_fn *fn)
{
    return quiet_session_of(fn, QUIET_MS);
}

static uint64_t since_ms(uint64_t begun_ns)
{
    return (zb_now_ns() - begun_ns) / 1000000;
}

/** Stops answering. */
static bool silent_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)f;
    (void)body;
    return frame->method != ZP_HELLO && frame->method != ZP_JOB_OPEN;
}

static void a_daemon_that_stopped(void **state)
{
    struct session x = quiet_session(silent_fn);
    struct outcome o = { .c = x.c };
    struct zc_stepped stepped;
    uint64_t begun = zb_now_ns();

    (void)state;
    assert_int_equal(zc_ping(x.c, outcome_done, &o), 0);
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 0, &stepped), -ETIMEDOUT);
    assert_true(since_ms(begun) >= QUIET_MS && since_ms(begun) < NEVER_MS);
    assert_non_null(strstr(zc_error(x.c), "sent nothing for 1.5 s"));
    assert_int_equal(fake_count(x.f, ZP_PING), 2); /* ours, and the check for life */
    assert_int_equal(o.runs, 1);
    assert_int_equal(o.rc, -ETIMEDOUT);
    /* Closing is the only call that still works. */
    assert_int_equal(zc_ping_wait(x.c), -ENOTCONN);
    assert_non_null(strstr(zc_error(x.c), "sent nothing"));
    assert_int_equal(zc_poll(x.c, -1), -ENOTCONN);
    assert_int_equal(zc_events(x.c), 0);
    session_close(&x);
}

/** Answers pings, and a skip after three times the quiet time. */
static bool slow_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static struct zp_frame skip;
    static uint64_t due_ns;

    if (frame->method == ZP_SKIP) {
        skip = *frame;
        due_ns = zb_now_ns() + 3 * QUIET_MS * UINT64_C(1000000);
        return true;
    }
    if (frame->method == ZP_PING && due_ns > 0 && zb_now_ns() >= due_ns) {
        due_ns = 0;
        fake_reply(f, &skip, NULL, -1);
    }
    (void)body;
    return false;
}

static void a_daemon_that_is_slow(void **state)
{
    struct session x = quiet_session(slow_fn);
    struct zc_stepped stepped;
    uint64_t begun = zb_now_ns();

    (void)state;
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 0, &stepped), 0);
    assert_true(since_ms(begun) >= 3 * QUIET_MS);
    assert_true(fake_count(x.f, ZP_PING) >= 3);
    assert_int_equal(zc_ping_wait(x.c), 0);
    session_close(&x);
}

/** Is alive, but forgets a request: the request's own deadline limits it. */
static bool forgets_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)f;
    (void)body;
    return frame->method == ZP_SKIP;
}

static void a_request_that_is_forgotten(void **state)
{
    struct session x = quiet_session(forgets_fn);
    struct zc_stepped stepped;
    uint64_t begun = zb_now_ns();

    (void)state;
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 300, &stepped), -ETIMEDOUT);
    assert_true(since_ms(begun) >= 300 + QUIET_MS && since_ms(begun) < NEVER_MS);
    assert_non_null(strstr(zc_error(x.c), "the answer did not come for 1.8 s"));
    assert_int_equal(zc_ping_wait(x.c), -ENOTCONN);
    session_close(&x);
}

/** The daemon's own -ETIMEDOUT is an answer: the handle goes on. */
static bool late_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_SKIP)
        return false;
    fake_refuse(f, frame, -ETIMEDOUT, "rank 1 did not ask for step 3");
    return true;
}

static void a_deadline_that_the_daemon_keeps(void **state)
{
    struct session x = quiet_session(late_fn);
    struct zc_stepped stepped;

    (void)state;
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 300, &stepped), -ETIMEDOUT);
    assert_string_equal(zc_error(x.c), "rank 1 did not ask for step 3");
    assert_int_equal(zc_ping_wait(x.c), 0);
    session_close(&x);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/** Answers a skip late, as if it took long. */
static bool thinks_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_SKIP)
        return false;
    for (uint64_t until = zb_now_ns() + UINT64_C(300000000); zb_now_ns() < until;)
        (void)poll(NULL, 0, 10);
    fake_reply(f, frame, NULL, -1);
    return true;
}

/** Signals do not end a blocking form. */
static void signals(void **state)
{
    struct session x = quiet_session_of(thinks_fn, NEVER_MS);
    struct sigaction act = { .sa_handler = on_alarm };
    struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct zc_stepped stepped;

    (void)state;
    assert_int_equal(sigaction(SIGALRM, &act, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 0, &stepped), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    session_close(&x);
}

/** The socket is full and not read: the queue is limited, and so is a blocking form. */
static bool deaf_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)f;
    (void)body;
    if (frame->method == ZP_NOTE_PUT)
        (void)poll(NULL, 0, 1500);
    return false;
}

static void a_daemon_that_does_not_read(void **state)
{
    static uint8_t note[32768];
    struct session x = quiet_session(deaf_fn);
    struct outcome o = { .c = x.c };
    unsigned n = 0;
    int rc;

    (void)state;
    while ((rc = zc_note_put(x.c, FAKE_JOB, false, note, sizeof(note), outcome_done, &o)) == 0)
        n++;
    assert_int_equal(rc, -ENOBUFS);
    assert_non_null(strstr(zc_error(x.c), "does not read"));
    assert_true(n > 200 && n < 300); /* 8 MiB, and what the socket holds */
    assert_int_equal(zc_events(x.c), POLLIN | POLLOUT);
    zc_close(x.c);
    assert_int_equal(o.runs, n);
    assert_int_equal(o.rc, -ECANCELED);
    x.c = NULL;
    session_close(&x);
}

/** Receives nothing more, but does not hang up for a while. */
static bool half_closed_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_PING)
        return false;
    assert_int_equal(shutdown(zp_stream_fd(f->s), SHUT_RD), 0);
    fake_reply(f, frame, NULL, -1);
    (void)poll(NULL, 0, 1500);
    return true;
}

static void a_daemon_that_receives_no_more(void **state)
{
    struct session x = quiet_session(half_closed_fn);
    uint64_t begun = zb_now_ns();

    (void)state;
    assert_int_equal(zc_ping_wait(x.c), 0);
    assert_int_equal(zc_norms_wait(x.c, FAKE_JOB, 1, &(struct zc_norm){ 0 }), -ENOTCONN);
    assert_non_null(strstr(zc_error(x.c), "no longer receives"));
    assert_true(since_ms(begun) < NEVER_MS);
    session_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_daemon_that_stopped),
        cmocka_unit_test(a_daemon_that_is_slow),
        cmocka_unit_test(a_request_that_is_forgotten),
        cmocka_unit_test(a_deadline_that_the_daemon_keeps),
        cmocka_unit_test(signals),
        cmocka_unit_test(a_daemon_that_does_not_read),
        cmocka_unit_test(a_daemon_that_receives_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
