#include "tests/ztest.h"

#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/daemon/server_fixture.h"

/*
 * Requests that take as long as slow_request_ms are logged, with who asked.
 */

static struct server_fixture x;
static char line[ZB_LOG_MAX]; /* the last one; "": none */
static unsigned lines;

static const char *no_id(const char *event)
{
    (void)event;
    return NULL;
}

static void on_line(const struct zb_log_line *l)
{
    lines++;
    (void)snprintf(line, sizeof(line), "%.*s", (int)l->used, l->text);
}

static const struct zb_log_program program = {
    .name = "test", .prefix = "TEST_", .id_of = no_id, .on_line = on_line
};

static int setup(void **state)
{
    (void)state;
    sf_open(&x);
    sf_listen(&x);
    zb_log_set_level(ZB_LOG_WARN);
    lines = 0;
    return zb_log_set_format(ZB_LOG_TEXT, &program, NULL);
}

static int teardown(void **state)
{
    (void)state;
    sf_close(&x);
    return 0;
}

/** A fetch that is answered after `ms`. */
static void fetch(int fd, uint64_t ms, bool waits)
{
    static uint64_t tag = 100;
    struct zb_err err = { 0 };
    struct zsd_req *req;

    sf_send(fd, ZP_REQUEST, ZP_FETCH, ++tag, NULL, 0);
    sf_pump(&x);
    req = core_double.held[core_double.first];
    req->since_ns -= ms * 1000000;
    if (waits)
        assert_int_equal(zsd_req_waits(req, &err), 0);
    core_answer(10);
    assert_int_equal(sf_reply(&x, fd, tag), 0);
}

static void slow_requests(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    fetch(fd, 3600000, false); /* off */
    assert_int_equal(lines, 0);
    x.daemon.config.slow_request_ms = 60000;
    fetch(fd, 1000, false);
    fetch(fd, 3600000, true); /* for a later request of its own client */
    assert_int_equal(lines, 0);
    fetch(fd, 60000, false);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(line, "warn slow-request pid="));
    assert_non_null(strstr(line, " program=\"test\" method=fetch ms=60"));
    assert_non_null(strstr(line, " code=0"));
    assert_null(strstr(line, "job="));
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
}

/** A client has 16 lines at once; then the rest is counted. The log names its job. */
static void at_a_limited_rate(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    x.daemon.config.slow_request_ms = 1;
    fetch(fd, 1, false);
    assert_int_equal(lines, 1);
    zb_list_each(pos, &x.daemon.server->links)
    {
        struct zsd_link *l = zb_container_of(pos, struct zsd_link, node);

        (void)snprintf(l->conn.job, sizeof(l->conn.job), "j-1");
    }
    fetch(fd, 1, false);
    assert_int_equal(lines, 2);
    assert_non_null(strstr(line, " job=\"j-1\" method=fetch "));
    for (unsigned i = 0; i < 98; i++)
        fetch(fd, 1, false);
    assert_in_range(lines, 16, 99);
    assert_int_equal(lines + x.daemon.stats.log_lines_dropped, 100);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slow_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(at_a_limited_rate, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
