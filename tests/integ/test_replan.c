/*
 * Optimizer state moves between host memory and NVMe with the steps: when a budget changes, and
 * when a job ends. Whatever moves, a job has the same bytes as one whose state never moved: the
 * same training runs first in an undisturbed daemon.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define STEPS  10u
#define PLENTY (UINT64_C(32) << 20)

static struct sv_dump want[STEPS + 1]; /* after each step */

/* ---- checks */

/* Bytes of the job's planes on the data file. */
static uint64_t streamed(struct zc_client *c, const char *name)
{
    uint64_t gpu, nvme;

    zi_where(c, name, &gpu, &nvme);
    return nvme;
}

/* Waits until this much state is booked. */
static void await_state(struct zc_client *c, uint64_t bytes)
{
    for (unsigned waited = 0; zi_tier(c, "host").state != bytes; waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        (void)poll(NULL, 0, 10);
    }
}

static int tier_set(struct zc_client *c, uint64_t bytes)
{
    return zc_tier_set_wait(c, "host", bytes);
}

/* ---- training */

static void step(struct zi_rank *ranks, uint64_t number, enum zc_commit commit)
{
    sv_step(ranks, 2, number, commit);
    sv_dump_same("a step", &want[number], ranks, 2);
}

/* Steps until nothing of the job is streamed, with time for wanted memory to be allocated; returns
 * the number of the last step. */
static uint64_t steps_until_resident(struct zc_client *c, struct zi_rank *ranks, uint64_t number)
{
    for (unsigned i = 0; streamed(c, sv_name) > 0; i++) {
        assert_true(number < STEPS && i < 4);
        (void)poll(NULL, 0, 50); /* a thread allocates memory: not every step finds it ready */
        number++;
        step(ranks, number, number % 2 ? ZC_COMMIT_NO : ZC_COMMIT_STEP);
    }
    return number;
}

static int setup(void **state)
{
    (void)state;
    (void)sv_want(want, STEPS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sv_want_free(want, STEPS);
    return 0;
}

/* ---- the tests */

/* Nothing moves before a step; then the state fits exactly; later all of it returns. */
static void down_and_up(void **state)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t all, low;

    (void)state;
    sv_begin(ranks, 2, &d, 0);
    c = zi_client(&d);
    step(ranks, 1, ZC_COMMIT_NO);
    all = zi_tier(c, "host").state;
    assert_true(all > 0 && streamed(c, sv_name) == 0);
    assert_int_equal(zi_job_row(c, sv_name).host_state, all);

    assert_int_equal(zc_tier_set_wait(c, "nvme", PLENTY), -EINVAL);
    assert_int_equal(tier_set(c, UINT64_MAX), -EINVAL);
    low = zi_least(c, "host");
    assert_int_equal(low, zi_tier(c, "host").used - all);
    assert_int_equal(tier_set(c, low - 1), -ENOSPC);
    assert_int_equal(zi_tier(c, "host").target, PLENTY); /* as before */
    assert_int_equal(zi_tier(c, "host").moving, 0);
    assert_int_equal(tier_set(c, low), 0);
    assert_int_equal(zi_tier(c, "host").target, low);
    assert_int_equal(zi_tier(c, "host").moving, all);
    assert_int_equal(zi_tier(c, "host").budget, zi_tier(c, "host").used);
    assert_int_equal(zi_job_row(c, sv_name).host_state_target, 0);
    sv_dump_same("nothing has moved yet", &want[1], ranks, 2);
    assert_int_equal(tier_set(c, low - 1), -ENOSPC);
    assert_int_equal(zi_tier(c, "host").target, low);

    step(ranks, 2, ZC_COMMIT_NO);
    zi_await_target(c, "host");
    assert_int_equal(zi_tier(c, "host").state, 0);
    assert_int_equal(zi_job_row(c, sv_name).host_state, 0);
    assert_int_equal(streamed(c, sv_name), all);
    zi_fsck_online(c);
    step(ranks, 3, ZC_COMMIT_STEP);

    assert_int_equal(tier_set(c, low + all / 2), 0);
    (void)poll(NULL, 0, 50);
    step(ranks, 4, ZC_COMMIT_NO);
    step(ranks, 5, ZC_COMMIT_STEP);
    assert_true(zi_tier(c, "host").state > 0 && zi_tier(c, "host").state <= all / 2);
    assert_true(streamed(c, sv_name) < all);
    zi_fsck_online(c);
    assert_int_equal(tier_set(c, PLENTY), 0);
    (void)steps_until_resident(c, ranks, 5);
    assert_int_equal(zi_tier(c, "host").state, all);
    assert_int_equal(zi_tier(c, "host").budget, PLENTY);
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* Two jobs share what a budget leaves; when one ends, the other gets all of it. */
static void a_job_goes(void **state)
{
    struct zi_rank a[2], b[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t all;

    (void)state;
    sv_begin(a, 2, &d, 0);
    sv_name = "b";
    sv_open(b, 2, &d, 0);
    sv_name = "job";
    c = zi_client(&d);
    all = zi_tier(c, "host").state / 2;
    step(a, 1, ZC_COMMIT_NO);
    step(b, 1, ZC_COMMIT_NO);
    assert_int_equal(tier_set(c, zi_tier(c, "host").used - all), 0);
    assert_true(zi_tier(c, "host").moving >= all);
    step(a, 2, ZC_COMMIT_STEP);
    step(b, 2, ZC_COMMIT_NO);
    zi_await_target(c, "host");
    for (int i = 0; i < 2; i++) { /* each has its half, rounded to pages */
        uint64_t has = zi_job_row(c, i == 0 ? "job" : "b").host_state;

        assert_true(has <= all / 2 && has > 0);
    }
    zi_fsck_online(c);
    zi_close(b, 2);
    assert_int_equal(zc_job_destroy_wait(c, "b"), 0);
    await_state(c, all); /* memory is booked as soon as it is free */
    (void)steps_until_resident(c, a, 2);
    assert_int_equal(zi_tier(c, "host").state, all);
    zi_fsck_online(c);
    zi_close(a, 2);
    zc_close(c);
    zi_stop(&d);
}

/* The daemon is killed when some state has moved: the last commit is loaded again, in the new
 * budget.
 */
static void killed_in_between(void **state)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    sv_begin(ranks, 2, &d, 0);
    c = zi_client(&d);
    step(ranks, 1, ZC_COMMIT_NO);
    assert_int_equal(tier_set(c, zi_least(c, "host")), 0);
    step(ranks, 2, ZC_COMMIT_STEP);
    assert_int_equal(tier_set(c, PLENTY), 0);
    step(ranks, 3, ZC_COMMIT_NO);
    step(ranks, 4, ZC_COMMIT_NO);
    zi_kill(&d);
    zc_close(c);
    sv_hang_up(ranks, 2);
    assert_int_equal(zi_fsck(&d), 0);
    zi_start_again(&d, sv_options);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, 2);
    sv_dump_same("after the kill", &want[2], ranks, 2);
    c = zi_client(&d);
    step(ranks, 3, ZC_COMMIT_NO);

    /* its ranks die while it shrinks: those that attach continue with what is in memory */
    assert_int_equal(tier_set(c, zi_least(c, "host")), 0);
    sv_hang_up(ranks, 2);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, 3);
    step(ranks, 4, ZC_COMMIT_STEP);
    step(ranks, 5, ZC_COMMIT_STEP);
    zi_await_target(c, "host");
    assert_int_equal(zi_tier(c, "host").state, 0);
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* A job that is not durable has places on the data file only for pages that are there. */
static void not_durable(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t nvme;

    (void)state;
    o.keep = o.durable = false;
    o.world = 2;
    zi_start(&d, sv_options);
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    sv_fill(ranks, 2);
    c = zi_client(&d);
    nvme = zi_used(&d, "nvme");
    assert_int_equal(nvme, 0);
    step(ranks, 1, ZC_COMMIT_NO);
    assert_int_equal(tier_set(c, zi_least(c, "host")), 0);
    assert_true(zi_used(&d, "nvme") > 0); /* promised before they are needed */
    step(ranks, 2, ZC_COMMIT_NO);
    zi_await_target(c, "host");
    step(ranks, 3, ZC_COMMIT_NO);
    zi_fsck_online(c);
    assert_int_equal(tier_set(c, PLENTY), 0);
    for (uint64_t k = 4; streamed(c, sv_name) > 0; k++) {
        assert_true(k <= STEPS);
        (void)poll(NULL, 0, 50);
        step(ranks, k, ZC_COMMIT_NO);
    }
    assert_int_equal(zi_used(&d, "nvme"), 0); /* and given back */
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* State that must stay in memory does, and the refusal names the smallest budget that would
 * work. */
static void offloaded_to_host(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    o.offload_optimizer = ZC_HOST;
    o.world = 2;
    zi_start(&d, sv_options);
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    sv_fill(ranks, 2);
    c = zi_client(&d);
    step(ranks, 1, ZC_COMMIT_NO);
    assert_int_equal(zi_least(c, "host"), zi_tier(c, "host").used);
    assert_int_equal(tier_set(c, zi_tier(c, "host").used), 0);
    step(ranks, 2, ZC_COMMIT_STEP);
    assert_int_equal(zi_tier(c, "host").moving, 0);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* ---- a new job, when others have all of the memory */

/* Two ranks have stepped twice; all of their state is in memory, and nothing is free. */
static struct zc_client *begin_full(struct zi_rank *a, struct zi_daemon *d)
{
    struct zc_client *c;

    sv_begin(a, 2, d, 0);
    c = zi_client(d);
    step(a, 1, ZC_COMMIT_NO);
    assert_int_equal(tier_set(c, zi_tier(c, "host").used), 0);
    step(a, 2, ZC_COMMIT_STEP);
    return c;
}

static struct zc_job_options comer(const char *name)
{
    struct zc_job_options o = sv_job(0);

    o.name = name;
    o.world = 1;
    o.staging_bytes = 200 << 10;
    o.keep = o.durable = false;
    return o;
}

static void open_begin(struct zi_rank *b, const struct zi_daemon *d, const struct zc_job_options *o,
                       struct zi_call *call)
{
    *b = (struct zi_rank){ .c = zi_client(d) };
    *call = ZI_CALL(b);
    assert_int_equal(zc_job_open(b->c, o, &b->job, zi_done, call), 0);
    zi_pump(b, 1, 0);
}

/* Waits until state is to move, or none is. */
static void await_moving(struct zc_client *c, bool moves)
{
    for (unsigned waited = 0; waited < ZI_WAIT_MS / 10; waited++) {
        if ((zi_tier(c, "host").moving > 0) == moves)
            return;
        (void)poll(NULL, 0, 10);
    }
    fail_msg("%s", moves ? "nobody gives up state" : "state is still to move");
}

/* A new job waits for the next steps of the others; then both train. */
static void a_job_comes(void **state)
{
    struct zc_job_options o = comer("b");
    struct zi_rank a[2], b;
    struct zi_daemon d = { 0 };
    struct zi_call call;
    struct zc_client *c;
    uint64_t k = 2;

    (void)state;
    c = begin_full(a, &d);
    open_begin(&b, &d, &o, &call);
    await_moving(c, true);
    assert_false(call.over);
    step(a, ++k, ZC_COMMIT_NO);
    assert_int_equal(zi_await(&b, 1, &call), 0);
    zi_define(&b, sv_units, SV_UNITS, 1);
    call = ZI_CALL(&b);
    assert_int_equal(zc_ready(b.c, b.job.id, NULL, 0, &b.place, zi_done, &call), 0);
    zi_pump(&b, 1, 0);
    await_moving(c, true);
    assert_false(call.over);
    assert_string_equal(zi_job_row(c, "b").state, "placing");
    step(a, ++k, ZC_COMMIT_STEP);
    assert_int_equal(zi_await(&b, 1, &call), 0);
    sv_fill(&b, 1);
    for (uint64_t i = 1; i <= 4; i++) {
        sv_step(&b, 1, i, ZC_COMMIT_NO);
        sv_dump_same("who came", &want[i], &b, 1);
        step(a, ++k, i % 2 ? ZC_COMMIT_NO : ZC_COMMIT_STEP);
    }
    zi_fsck_online(c);
    zi_close(&b, 1);
    zi_close(a, 2);
    zc_close(c);
    zi_stop(&d);
}

/* A request that no job can make room for is refused at once, with numbers, and no job gives up
 * anything for it. */
static void nobody_can_give_that(void **state)
{
    static const struct zc_tensor tensor = { "t", 0, 1, { 4 << 20 }, 0, false };
    static const struct zc_unit large = {
        0, "u", 4 << 20, ZC_BF16, ZC_F32, false, false, &tensor, 1
    };
    struct zc_job_options o = comer("b");
    struct zi_rank a[2], b;
    struct zi_daemon d = { 0 };
    struct zi_call call;
    struct zc_client *c;
    uint64_t has;

    (void)state;
    c = begin_full(a, &d);
    has = zi_tier(c, "host").state;
    o.staging_bytes = PLENTY;
    open_begin(&b, &d, &o, &call);
    assert_int_equal(zi_await(&b, 1, &call), -ENOSPC);
    zc_close(b.c);
    assert_int_equal(zi_tier(c, "host").moving, 0);

    o.staging_bytes = 4096;
    open_begin(&b, &d, &o, &call);
    await_moving(c, true);
    step(a, 3, ZC_COMMIT_NO);
    assert_int_equal(zi_await(&b, 1, &call), 0);
    zi_define(&b, &large, 1, 1);
    assert_int_equal(zi_ready(&b, 1), -ENOSPC);
    assert_non_null(strstr(zc_error(b.c), "the smallest host_bytes that would work"));
    assert_int_equal(zi_tier(c, "host").moving, 0);
    zi_close(&b, 1);
    await_state(c, has); /* what was given up for the staging is booked again */
    (void)steps_until_resident(c, a, 3);
    zi_fsck_online(c);
    zi_close(a, 2);
    zc_close(c);
    zi_stop(&d);
}

/* Kept jobs run one after another in memory for one. Each gets the memory of the one before, which
 * is saved, and the budget is unchanged. */
static void one_after_another(void **state)
{
    static const char *const names[] = { "b", "c", "d" };
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c = begin_full(ranks, &d);
    uint64_t full = zi_tier(c, "host").target;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(names); i++) {
        char event[64];

        zi_close(ranks, 2);
        (void)snprintf(event, sizeof(event), "job-gives-room job=\"%s\"", sv_name);
        sv_name = names[i];
        sv_open(ranks, 2, &d, 0);
        assert_non_null(zi_log_line(&d, event));
        step(ranks, 1, ZC_COMMIT_NO);
        step(ranks, 2, ZC_COMMIT_STEP);
        assert_int_equal(zi_tier(c, "host").budget, full);
        assert_true(zi_tier(c, "host").used <= full);
    }
    zi_close(ranks, 2);
    sv_name = "job";
    assert_int_equal(sv_attach(ranks, 2, &d, 0, false, NULL), 0);
    sv_dump_same("it comes back", &want[2], ranks, 2);
    assert_int_equal(zi_tier(c, "host").budget, full);
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* A waiting job dies, or gives up: then nothing moves for it any more. */
static void who_waits_goes(void **state)
{
    struct zc_job_options o = comer("b");
    struct zi_rank a[2], b;
    struct zi_daemon d = { 0 };
    struct zi_call call;
    struct zc_client *c;
    uint64_t has, k;

    (void)state;
    c = begin_full(a, &d);
    has = zi_tier(c, "host").state;
    open_begin(&b, &d, &o, &call);
    await_moving(c, true);
    zc_close(b.c);
    await_moving(c, false);
    sv_dump_same("nothing has moved", &want[2], a, 2);

    open_begin(&b, &d, &o, &call);
    await_moving(c, true);
    step(a, 3, ZC_COMMIT_NO);
    assert_int_equal(zi_await(&b, 1, &call), 0);
    zi_define(&b, sv_units, SV_UNITS, 1);
    call = ZI_CALL(&b);
    assert_int_equal(zc_ready(b.c, b.job.id, NULL, 200, &b.place, zi_done, &call), 0);
    assert_int_equal(zi_await(&b, 1, &call), -ETIMEDOUT);
    assert_non_null(strstr(call.text, "other jobs have to give"));
    await_moving(c, false);
    zc_close(b.c);
    await_state(c, has);
    k = steps_until_resident(c, a, 3); /* booked memory that is not used yet is given up at once */

    open_begin(&b, &d, &o, &call); /* and one that dies while it waits for its place */
    await_moving(c, true);
    step(a, ++k, ZC_COMMIT_NO);
    assert_int_equal(zi_await(&b, 1, &call), 0);
    zi_define(&b, sv_units, SV_UNITS, 1);
    call = ZI_CALL(&b);
    assert_int_equal(zc_ready(b.c, b.job.id, NULL, 0, &b.place, zi_done, &call), 0);
    zi_pump(&b, 1, 0);
    await_moving(c, true);
    zc_close(b.c);
    await_moving(c, false);
    await_state(c, has);
    (void)steps_until_resident(c, a, k);
    zi_fsck_online(c);
    zi_close(a, 2);
    zc_close(c);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(down_and_up, zi_teardown),
        cmocka_unit_test_teardown(a_job_goes, zi_teardown),
        cmocka_unit_test_teardown(killed_in_between, zi_teardown),
        cmocka_unit_test_teardown(not_durable, zi_teardown),
        cmocka_unit_test_teardown(offloaded_to_host, zi_teardown),
        cmocka_unit_test_teardown(a_job_comes, zi_teardown),
        cmocka_unit_test_teardown(nobody_can_give_that, zi_teardown),
        cmocka_unit_test_teardown(who_waits_goes, zi_teardown),
        cmocka_unit_test_teardown(one_after_another, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
