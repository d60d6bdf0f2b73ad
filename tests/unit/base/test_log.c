#include "tests/ztest.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/*
 * A log that is not read: lines are dropped and counted, and nothing waits. If the log waits, this
 * test hangs until its timeout.
 */

static int ours, ends[2];

static int setup(void **state)
{
    (void)state;
    ours = dup(STDERR_FILENO);
    assert_true(ours >= 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 8192) >= 8192);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)dup2(ours, STDERR_FILENO);
    (void)close(ours);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return 0;
}

#define LINES 2000u

static void a_log_that_nobody_reads(void **state)
{
    static char text[65536];
    unsigned whole = 0;
    unsigned long dropped = 0;
    char *at;
    ssize_t n;

    (void)state;
    zb_log_never_wait();
    for (unsigned i = 0; i < LINES; i++)
        zb_log(ZB_LOG_INFO, "tick", "i=%u", i);
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0 && text[n - 1] == '\n'); /* whole lines only */
    text[n] = '\0';
    for (at = text; (at = strstr(at, "info tick i=")) != NULL; at++, whole++) {
        unsigned i = LINES;

        assert_int_equal(sscanf(at, "info tick i=%u", &i), 1);
        assert_int_equal(i, whole); /* the first ones, in order */
    }
    assert_in_range(whole, 1, LINES - 1);
    zb_log(ZB_LOG_INFO, "again", "x=1"); /* it is read again: the count comes first */
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    at = strstr(text, "warn log-dropped lines=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "warn log-dropped lines=%lu", &dropped), 1);
    assert_int_equal(dropped, LINES - whole);
    assert_non_null(strstr(at, "info again x=1"));
    zb_log(ZB_LOG_INFO, "more", "x=2");
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_null(strstr(text, "log-dropped"));
}

static void a_line_is_clean(void **state)
{
    char text[512];
    ssize_t n;

    (void)state;
    zb_log(ZB_LOG_INFO, "name", "a=\"%s\"",
           "x\ny\x7f\x9b"
           "2J");
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "info name a=\"x?y??2J\"\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_log_that_nobody_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_is_clean, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
