/*
 * Counters have names, gauges are integrals, and a page operation is in one stage at a time.
 */
#include "tests/ztest.h"

#include <string.h>

#include "daemon/run/stats.h"

static void names(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZSD_STATS_COUNT; i++) {
        assert_true(strlen(zsd_stats_names[i]) > 0 && strlen(zsd_stats_names[i]) < 64);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(zsd_stats_names[i], zsd_stats_names[k]);
    }
}

static void gauge(void **state)
{
    struct zsd_gauge g = { 0 };

    (void)state;
    zsd_gauge_inc(&g, 1000); /* the value was 0 before: the time since 0 does not count */
    zsd_gauge_inc(&g, 1010);
    zsd_gauge_dec(&g, 1030);
    zsd_gauge_dec(&g, 1035);
    zsd_gauge_at(&g, 2000);
    assert_int_equal(g.now, 0);
    assert_int_equal(g.area_ns, 10 + 2 * 20 + 5);
    assert_int_equal(g.busy_ns, 35);
    zsd_gauge_set(&g, 3, 2000);
    zsd_gauge_at(&g, 1500); /* a time in the past */
    zsd_gauge_at(&g, 2001);
    assert_int_equal(g.area_ns, 55 + 3);
    assert_int_equal(g.busy_ns, 36);
}

/* Three operations: the stages add up to their total time, and only the drive is waited for when
 * none is computed or on the GPU. */
static void stages(void **state)
{
    struct zsd_job_stats s = { 0 };
    uint64_t area = 0;

    (void)state;
    zsd_stage_move(&s, ZSD_STAGE_NONE, ZSD_STAGE_BUFFER, 100); /* a */
    zsd_stage_move(&s, ZSD_STAGE_BUFFER, ZSD_STAGE_READ, 110);
    zsd_stage_move(&s, ZSD_STAGE_NONE, ZSD_STAGE_BUFFER, 115); /* b */
    zsd_stage_move(&s, ZSD_STAGE_READ, ZSD_STAGE_COMPUTE, 130);
    zsd_stage_move(&s, ZSD_STAGE_COMPUTE, ZSD_STAGE_WRITE, 137);
    zsd_stage_move(&s, ZSD_STAGE_WRITE, ZSD_STAGE_NONE, 150);
    zsd_stage_move(&s, ZSD_STAGE_BUFFER, ZSD_STAGE_COMPUTE, 160);
    zsd_stage_move(&s, ZSD_STAGE_COMPUTE, ZSD_STAGE_NONE, 165);
    zsd_stage_move(&s, ZSD_STAGE_NONE, ZSD_STAGE_READ, 200); /* c */
    zsd_stage_move(&s, ZSD_STAGE_READ, ZSD_STAGE_GPU, 204);
    zsd_stage_move(&s, ZSD_STAGE_GPU, ZSD_STAGE_WRITE, 211);
    zsd_stage_move(&s, ZSD_STAGE_WRITE, ZSD_STAGE_NONE, 213);
    zsd_job_stats_at(&s, 900);
    for (unsigned i = 0; i < ZSD_STAGES; i++) {
        assert_int_equal(s.stages[i].now, 0);
        area += s.stages[i].area_ns;
    }
    assert_int_equal(area, 50 + 50 + 13);
    assert_int_equal(s.stages[ZSD_STAGE_GPU].area_ns, 7);
    assert_int_equal(s.stages[ZSD_STAGE_BUFFER].area_ns, 10 + 45);
    assert_int_equal(s.stages[ZSD_STAGE_NONE].area_ns, 0);
    assert_int_equal(s.drive_only.busy_ns, 20 + 13 + 4 + 2);
}

static void waits(void **state)
{
    struct zsd_job_stats s = { 0 };

    (void)state;
    zsd_wait_move(&s, ZSD_WAIT_NONE, ZSD_WAIT_FETCH_ROOM, 10);
    zsd_wait_move(&s, ZSD_WAIT_FETCH_ROOM, ZSD_WAIT_FETCH_DRIVE, 25);
    zsd_wait_move(&s, ZSD_WAIT_FETCH_DRIVE, ZSD_WAIT_NONE, 40);
    zsd_job_stats_at(&s, 90);
    assert_int_equal(s.waits[ZSD_WAIT_FETCH_ROOM].area_ns, 15);
    assert_int_equal(s.waits[ZSD_WAIT_FETCH_DRIVE].area_ns, 15);
    for (unsigned i = 0; i < ZSD_WAITS; i++)
        assert_int_equal(s.waits[i].now, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(gauge),
        cmocka_unit_test(stages),
        cmocka_unit_test(waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
