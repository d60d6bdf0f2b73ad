/*
 * Turns of the loop: what a turn runs and what it leaves to the next one, counters, deadlines.
 */
#include "tests/unit/daemon/core_fixture.h"

/* ---- deferred work */

struct job_of_works {
    struct zsd_work work;
    struct zsd_core *core;
    unsigned again;  /* how often it defers itself again */
    unsigned weight; /* the work that it counts as */
    unsigned ran, order;
};

static unsigned runs; /* of all works */

static void on_work(struct zsd_work *work)
{
    struct job_of_works *w = zb_container_of(work, struct job_of_works, work);

    w->ran++;
    w->order = ++runs;
    zsd_turn_count(w->core, w->weight);
    if (w->again-- > 0)
        zsd_defer(w->core, work);
}

static struct job_of_works work_of(struct world *w, unsigned again, unsigned weight)
{
    return (struct job_of_works){
        .work = { .run = on_work }, .core = w->daemon.core, .again = again, .weight = weight
    };
}

static void itself(void **state)
{
    struct world w;
    struct job_of_works job;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    job = work_of(&w, 3, 0);
    zsd_defer(w.daemon.core, &job.work);
    for (unsigned turn = 1; turn <= 4; turn++) {
        assert_int_equal(zsd_core_turn(&w.daemon), turn < 4); /* the loop must not wait */
        assert_int_equal(job.ran, turn);
    }
    assert_false(zsd_core_turn(&w.daemon));
    world_close(&w);
}

/* Works that defer each other let the loop run in between. */
static void ping_work(struct zsd_work *work);

static struct zsd_work ping_pong[2] = { { .run = ping_work }, { .run = ping_work } };
static struct zsd_core *ping_core;
static unsigned pings;

static void ping_work(struct zsd_work *work)
{
    if (++pings < 100)
        zsd_defer(ping_core, &ping_pong[work == &ping_pong[0]]);
}

static void each_other(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    ping_core = w.daemon.core;
    zsd_defer(ping_core, &ping_pong[0]);
    assert_true(zsd_core_turn(&w.daemon));
    assert_int_equal(pings, 1);
    world_settle(&w);
    assert_int_equal(pings, 100);
    world_close(&w);
}

/* Works that exceed a turn run in the next one, before later ones. */
static void bounded(void **state)
{
    struct world w;
    struct job_of_works jobs[4];

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    w.daemon.stats.turn_max_work = 0;
    for (unsigned i = 0; i < 4; i++) {
        jobs[i] = work_of(&w, i == 0, ZSD_TURN_WORK / 2 - 1);
        zsd_defer(w.daemon.core, &jobs[i].work);
    }
    runs = 0;
    assert_true(zsd_core_turn(&w.daemon));
    assert_int_equal(runs, 2);
    assert_int_equal(w.daemon.stats.turn_max_work, ZSD_TURN_WORK);
    assert_true(zsd_core_turn(&w.daemon));
    assert_int_equal(runs, 4);
    assert_int_equal(jobs[3].order, 4); /* it waited longer than the first one's second run */
    assert_false(zsd_core_turn(&w.daemon));
    assert_int_equal(jobs[0].ran, 2);
    assert_int_equal(w.daemon.stats.turn_max_work, ZSD_TURN_WORK);
    world_close(&w);
}

/* Requests get half a turn; works get the rest, however many requests come. */
static void requests_leave_room(void **state)
{
    struct world w;
    struct job_of_works job;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    job = work_of(&w, 0, 1);
    assert_false(zsd_turn_full(&w.daemon));
    zsd_turn_count(w.daemon.core, ZSD_TURN_WORK / 2);
    assert_true(zsd_turn_full(&w.daemon));
    assert_int_equal(zsd_turn_left(w.daemon.core), ZSD_TURN_WORK / 2 - ZSD_TURN_WORKS);
    zsd_defer(w.daemon.core, &job.work);
    assert_false(zsd_core_turn(&w.daemon));
    assert_int_equal(job.ran, 1);
    assert_false(zsd_turn_full(&w.daemon));
    world_close(&w);
}

/* Requests that do more work than a turn may, in each turn, do not keep works from running. */
static void long_requests(void **state)
{
    struct world w;
    struct job_of_works job;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    job = work_of(&w, 2, 100);
    zsd_defer(w.daemon.core, &job.work);
    w.daemon.stats.turn_max_work = 0;
    for (unsigned turn = 1; turn <= 3; turn++) {
        zsd_turn_count(w.daemon.core, 3 * ZSD_TURN_WORK);
        assert_int_equal(zsd_core_turn(&w.daemon), turn < 3);
        assert_int_equal(job.ran, turn);
    }
    assert_int_equal(w.daemon.stats.turn_max_work, 3 * ZSD_TURN_WORK + 101);
    world_close(&w);
}

/* ---- deadlines */

#define MS        UINT64_C(1000000)
#define DEADLINES 5u

static struct zsd_timed deadlines[DEADLINES];
static unsigned expired[DEADLINES], nexpired;
static struct zsd_core *deadlines_core;

static void on_deadline(struct zsd_timed *timed)
{
    unsigned i = (unsigned)(timed - deadlines);

    expired[i]++;
    nexpired++;
    if (i == 0) { /* from inside: another one that is due, and a new one */
        zsd_timed_disarm(&deadlines[1]);
        zsd_timed_arm(deadlines_core, &deadlines[4], 1, on_deadline);
    }
}

/* One is due at once and disarms another, one is due in the next round, one after many. */
static void deadlines_pass(void **state)
{
    static const uint32_t timeouts_ms[DEADLINES - 1] = { 1, 1, 80000, 4 * 3600 * 1000 };
    struct world w;
    uint64_t now_ns;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    deadlines_core = w.daemon.core;
    now_ns = zb_now_ns();
    for (unsigned i = 0; i < DEADLINES - 1; i++)
        zsd_timed_arm(deadlines_core, &deadlines[i], timeouts_ms[i], on_deadline);
    zsd_timed_expire(deadlines_core, now_ns); /* nothing is due */
    assert_int_equal(nexpired, 0);
    zsd_timed_expire(deadlines_core, now_ns + 5000 * MS);
    assert_int_equal(expired[0], 1);
    assert_int_equal(expired[1], 0);
    zsd_timed_expire(deadlines_core, now_ns + 10000 * MS);
    assert_int_equal(expired[4], 1);
    assert_int_equal(nexpired, 2);
    for (unsigned s = 11; s < 80; s++)
        zsd_timed_expire(deadlines_core, now_ns + s * 1000 * MS);
    assert_int_equal(nexpired, 2);
    zsd_timed_expire(deadlines_core, now_ns + 81000 * MS);
    assert_int_equal(expired[2], 1);
    zsd_timed_expire(deadlines_core, now_ns + 3 * 3600 * 1000 * MS);
    assert_int_equal(nexpired, 3);
    assert_false(zsd_wheel_empty(&deadlines_core->wheel));
    zsd_timed_expire(deadlines_core, UINT64_MAX);
    assert_int_equal(expired[3], 1);
    assert_true(zsd_wheel_empty(&deadlines_core->wheel));
    zsd_timed_arm(deadlines_core, &deadlines[0], 1, on_deadline); /* the clock went back */
    zsd_timed_expire(deadlines_core, now_ns + 5000 * MS);
    assert_int_equal(expired[0], 2);
    zsd_timed_disarm(&deadlines[4]);
    world_close(&w);
}

static unsigned nany;

static void on_any(struct zsd_timed *timed)
{
    (void)timed;
    nany++;
}

/* Endless requests do not delay deadlines. */
static void deadlines_in_a_flood(void **state)
{
    struct zsd_timed two[2] = { 0 };
    struct world w;

    (void)state;
    world_open(&w, 64 << 20, "threads", 0);
    nany = 0;
    for (unsigned i = 0; i < 2; i++)
        zsd_timed_arm(w.daemon.core, &two[i], 1, on_any);
    zsd_turn_count(w.daemon.core, ZSD_TURN_WORK / 2);
    assert_true(zsd_turn_full(&w.daemon));
    zsd_timed_expire(w.daemon.core, zb_now_ns() + 5000 * MS);
    assert_int_equal(nany, 2);
    world_close(&w);
}

/* 100,000 that are due at the same time take several turns. */
static void deadlines_in_parts(void **state)
{
    enum { MANY = 100000 };
    struct zsd_timed *many = calloc(MANY, sizeof(*many));
    struct world w;

    (void)state;
    assert_non_null(many);
    world_open(&w, 64 << 20, "threads", 0);
    deadlines_core = w.daemon.core;
    w.daemon.stats.turn_max_work = 0;
    for (unsigned i = 0; i < MANY; i++)
        zsd_timed_arm(w.daemon.core, &many[i], 1000, on_any);
    for (unsigned i = 0; i < 1000 && !zsd_wheel_empty(&w.daemon.core->wheel); i++) {
        zsd_core_tick(&w.daemon, UINT64_MAX);
        (void)zsd_core_turn(&w.daemon);
    }
    assert_true(zsd_wheel_empty(&w.daemon.core->wheel));
    assert_in_range(w.daemon.stats.turn_max_work, 1, ZSD_TURN_WORK);
    free(many);
    world_close(&w);
}

/* ---- how long turns are */

static void quantiles(void **state)
{
    struct zsd_turns t = { 0 };
    struct zsd daemon = { 0 };

    (void)state;
    assert_int_equal(zsd_turns_quantile(&t, 999), 0);
    for (unsigned i = 0; i < ZSD_WALLS; i++)
        assert_int_equal(t.counts[i], 0);
    daemon.turns.work = 17;
    zsd_turn_worked(&daemon);
    assert_int_equal(daemon.stats.turn_max_work, 17);
    zsd_turn_over(&daemon, 0); /* the start: not a turn */
    assert_int_equal(daemon.stats.turns, 0);
    zsd_turn_over(&daemon, UINT64_MAX / 2); /* it waited all the time */
    assert_int_equal(daemon.stats.turns, 1);
    assert_in_range(zsd_turns_quantile(&daemon.turns, 999), 1, 16);
    assert_true(daemon.stats.turn_max_ns > 0);
}

/* Recent maxima are reset each time they are reported. */
static void recent_turns(void **state)
{
    struct zsd daemon = { 0 };
    struct zsd_stats *s = &daemon.stats;

    (void)state;
    zsd_turn_over(&daemon, 0);
    for (unsigned work = 1; work <= 3; work++) {
        daemon.turns.work = 40 / work;
        zsd_turn_worked(&daemon);
        zsd_turn_over(&daemon, 0);
        zsd_turns_tell(&daemon);
        assert_int_equal(s->turn_recent_work, 40 / work);
        assert_int_equal(s->turn_max_work, 40);
        assert_true(s->turn_recent_ns > 0 && s->turn_recent_ns <= s->turn_max_ns);
        assert_true(s->turn_recent_p999_ns > 0 && s->turn_recent_p999_ns <= s->turn_p999_ns);
    }
    zsd_turns_tell(&daemon);
    assert_int_equal(s->turn_recent_work, 0);
    assert_int_equal(s->turn_recent_ns, 0);
    assert_int_equal(s->turn_recent_p999_ns, 0);
    assert_true(s->turn_p999_ns > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(itself),
        cmocka_unit_test(each_other),
        cmocka_unit_test(bounded),
        cmocka_unit_test(requests_leave_room),
        cmocka_unit_test(long_requests),
        cmocka_unit_test(deadlines_pass),
        cmocka_unit_test(deadlines_in_a_flood),
        cmocka_unit_test(deadlines_in_parts),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(recent_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
