#include "tests/ztest.h"

#include "tests/unit/daemon/server_fixture.h"

#include <poll.h>
#include <unistd.h>

#include "proto/shard.pb-c.h"

#define FAR_NS  UINT64_C(60000000000)
#define FRAMES  20u
#define WAIT_MS 5000u

static struct server_fixture x;

static struct zsd_link *newest(void)
{
    return zb_container_of(x.daemon.server->links.prev, struct zsd_link, node);
}

/** The process of this link has used its part of the loop's time; other jobs work. */
static void use_up(const struct zsd_link *l)
{
    core_double.others = true;
    x.daemon.server->ready_ns[zsd_link_place(l)] = zb_now_ns() + FAR_NS;
}

static void turns(unsigned n)
{
    while (n-- > 0)
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
}

/** The loop may wait: no event is left, and no turn has to follow. */
static void assert_quiet(void)
{
    struct pollfd p = { .fd = uv_backend_fd(&x.daemon.loop->uv), .events = POLLIN };

    assert_int_not_equal(uv_backend_timeout(&x.daemon.loop->uv), 0);
    assert_int_equal(poll(&p, 1, 0), 0);
}

static void wait_for_requests(uint64_t wanted)
{
    uint64_t end_ns = zb_now_ns() + WAIT_MS * UINT64_C(1000000);

    while (x.daemon.stats.requests < wanted && zb_now_ns() < end_ns)
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    assert_int_equal(x.daemon.stats.requests, wanted);
}

/* ---- links */

/** Frames of a process that rests are not handled; those of another process are. When nobody else
 * works, or when its time has come, they are, in order. */
static void rests_while_others_work(void **state)
{
    int slow = sf_client(&x), fast;
    uint64_t before;
    struct zp_frame frame;

    (void)state;
    newest()->conn.pid = 1; /* another process */
    fast = sf_client(&x);
    for (unsigned way = 0; way < 2; way++) {
        struct zsd_link *l = newest();

        use_up(l);
        before = x.daemon.stats.requests;
        for (unsigned i = 0; i < FRAMES; i++)
            sf_send(fast, ZP_REQUEST, ZP_PING, i, NULL, 0);
        turns(5);
        assert_int_equal(x.daemon.stats.requests, before);
        assert_quiet();
        sf_alive(&x, slow);
        assert_int_equal(x.daemon.stats.requests, ++before);
        if (way == 0)
            core_double.others = false;
        else
            x.daemon.server->ready_ns[zsd_link_place(l)] = 0;
        wait_for_requests(before + FRAMES);
        sf_pump(&x);
        for (unsigned i = 0; i < FRAMES; i++) {
            assert_int_equal(sf_receive(fast, &frame, NULL, 0), 1);
            assert_int_equal(frame.tag, i);
        }
        assert_true(zb_list_empty(&x.daemon.server->resting));
    }
    assert_int_equal(close(fast), 0);
    assert_int_equal(close(slow), 0);
}

/** A link that rests still gets the answers to what it has asked. */
static void answers_are_sent(void **state)
{
    int fd = sf_client(&x);
    struct zp_frame frame;
    uint64_t before;

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_pump(&x);
    before = x.daemon.stats.requests;
    use_up(newest());
    sf_send(fd, ZP_REQUEST, ZP_PING, 2, NULL, 0);
    turns(3);
    core_answer(1);
    turns(3);
    assert_int_equal(sf_receive(fd, &frame, NULL, 0), 1);
    assert_int_equal(frame.tag, 1);
    assert_int_equal(sf_receive(fd, &frame, NULL, 0), 0);
    assert_quiet();
    core_double.others = false;
    wait_for_requests(before + 1);
    assert_int_equal(sf_reply(&x, fd, 2), 0);
    assert_int_equal(close(fd), 0);
}

/** A client that hangs up while it rests: its frames are handled first, and the loop waits. (Requests
 * are dropped when their answers cannot be sent.) */
static void hangs_up(void **state)
{
    int fd = sf_client(&x);
    uint64_t before;

    (void)state;
    use_up(newest());
    before = x.daemon.stats.requests;
    for (unsigned i = 0; i < FRAMES; i++)
        sf_send(fd, ZP_ONEWAY, ZP_RELEASE, i, NULL, 0);
    turns(3);
    assert_int_equal(close(fd), 0);
    turns(3);
    assert_int_equal(x.daemon.clients, 1);
    assert_quiet();
    core_double.others = false;
    wait_for_requests(before + FRAMES);
    assert_true(sf_pump_until(&x, &x.daemon.clients, 0));
}

/** The server ends while a link rests. */
static void ends_while_it_rests(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    use_up(newest());
    sf_send(fd, ZP_REQUEST, ZP_PING, 1, NULL, 0);
    turns(3);
    assert_false(zb_list_empty(&x.daemon.server->resting));
    zsd_server_close(&x.daemon);
    turns(3);
    assert_int_equal(close(fd), 0);
}

/* ---- accepting */

static void accepting_rests(void **state)
{
    int fds[2];

    (void)state;
    core_double.others = true;
    x.daemon.server->accept_ready_ns = zb_now_ns() + FAR_NS;
    fds[0] = sf_connect(&x);
    turns(3);
    assert_int_equal(x.daemon.clients, 0);
    assert_quiet();
    core_double.others = false;
    assert_true(sf_pump_until(&x, &x.daemon.clients, 1));
    fds[1] = sf_connect(&x);
    assert_true(sf_pump_until(&x, &x.daemon.clients, 2));
    assert_int_equal(close(fds[0]), 0);
    assert_int_equal(close(fds[1]), 0);
    assert_true(sf_pump_until(&x, &x.daemon.clients, 0));
}

/* ---- the account */

static void charges(void **state)
{
    static const uint64_t ahead = ZSD_PACE_AHEAD_NS, took = 10000;
    const struct {
        int64_t before; /* the ready time, from the beginning */
        int64_t least;  /* from there, too */
    } cases[] = {
        { -(int64_t)FAR_NS, (int64_t)(took * ZSD_PACE - ahead) }, /* quiet for long: a burst */
        { -1000, (int64_t)(took * ZSD_PACE) - 1000 },
        { 500000, (int64_t)(took * ZSD_PACE) + 500000 },
        { (int64_t)FAR_NS, (int64_t)ahead }, /* never more than that */
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        uint64_t begin = zb_now_ns() - took, ready = begin + (uint64_t)cases[i].before, passed;

        zsd_pace_charge(&ready, begin);
        passed = zb_now_ns() - begin;
        assert_true((int64_t)(ready - begin) >= cases[i].least);
        assert_true((int64_t)(ready - begin) <=
                    cases[i].least + (int64_t)((passed - took) * ZSD_PACE + passed));
    }
}

#define TEST(name) cmocka_unit_test_prestate_setup_teardown(name, sf_setup, sf_teardown, &x)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rests_while_others_work), TEST(answers_are_sent), TEST(hangs_up),
        TEST(ends_while_it_rests),     TEST(accepting_rests),  cmocka_unit_test(charges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
