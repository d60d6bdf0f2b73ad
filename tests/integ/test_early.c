/*
 * Steps that begin before their barrier, requested through the library: refusals, undone steps, and
 * that neither changes any data. tests/sim compares early steps with plain steps and plain arrays,
 * also across power cuts; test_training.py does so in training runs.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define PAGE    4096u
#define STAGING 65536u
#define UNITS   4u
#define ELEMS   (6 * PAGE)

static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "256K",         "--timeout-ms", "120000",       NULL
};

/* A device that lends the memory of its pages instead of copying them. */
static const char *const lending[] = { "--host-bytes", "16M",          "--nvme-bytes",
                                       "16M",          "--page-elems", "4096",
                                       "--ring-bytes", "256K",         "--timeout-ms",
                                       "120000",       "--io",         "fixed",
                                       "--fixed-rate", "1G",           NULL };

static const struct zc_tensor all = { .name = "all", .ndims = 1, .dims = { ELEMS } };

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_BF16, ZC_F32, false, false, &all, 1 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, &all, 1 },
    { 2, "u2", ELEMS, ZC_BF16, ZC_BF16, false, false, &all, 1 },
    { 3, "u3", ELEMS, ZC_BF16, ZC_F32, false, false, &all, 1 },
};

static const struct zc_group groups[] = { { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 } };

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 977) / 7;
}

static float grad(uint64_t element)
{
    return (float)(element % 7) - 3.0f;
}

static float grad_with_a_hole(uint64_t element)
{
    return element == 5 ? NAN : grad(element);
}

static struct zc_step step_of(uint64_t number)
{
    return (struct zc_step){ .step = number, .scale = 1, .groups = groups, .ngroups = 1 };
}

/* Parameters are in memory; all state is streamed. */
static void job_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, bool early)
{
    struct zc_job_options o = { .name = "job",
                                .staging_bytes = STAGING,
                                .groups = 1,
                                .keep = true,
                                .early = early,
                                .tensor_norms = true,
                                .host_bytes_max = world * STAGING +
                                                  ELEMS * (3 * 2 + 4 + 3 * 4 + 2) };

    zi_job(ranks, world, d, &o, units, UNITS);
    assert_int_equal(ranks->place.early, early);
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&ranks[r], u, value);
}

static void push_all(struct zi_rank *r, uint64_t step, float (*g)(uint64_t element))
{
    for (unsigned u = 0; u < UNITS; u++)
        zi_push_all(r, u, step, g);
}

/* Waits until this many pages have been stepped early, in all. */
static void await_early(struct zc_client *c, uint64_t pages)
{
    uint64_t begin_ns = zb_now_ns();

    while (zi_counter(c, "pages_early") < pages && (zb_now_ns() - begin_ns) / 1000000 < ZI_WAIT_MS)
        (void)usleep(1000);
    assert_int_equal(zi_counter(c, "pages_early"), pages);
}

static uint64_t bytes_of(struct zi_rank *r)
{
    return zi_bytes(r, 1, units, UNITS);
}

static void step_both(struct zi_rank *r, unsigned world, uint64_t number, bool skip, double scale)
{
    struct zc_step step = step_of(number);
    struct zc_stepped stepped[2];
    struct zi_call calls[2];
    const char *text;

    step.scale = scale;
    zi_step_ask(r, world, &step, skip, stepped, calls);
    if (zi_await_all(r, world, calls, &text) != 0)
        fail_msg("step %u: %s", (unsigned)number, text);
}

/* Two ranks make a step, a step that is skipped because a value of one rank is not finite, and a
 * step. */
static uint64_t run(bool early, const char *const *with)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    uint64_t before[2], sum;

    zi_start(&d, with);
    job_open(r, 2, &d, early);
    for (uint64_t number = 1; number <= 3; number++) {
        struct zc_step step = step_of(number);
        struct zc_norm norms[2];
        bool skip = number == 2;

        for (unsigned i = 0; i < 2; i++) {
            before[i] = bytes_of(&r[i]);
            if (early)
                assert_int_equal(zc_step_begin_wait(r[i].c, r[i].job.id, &step, 1), 0);
        }
        push_all(&r[0], number, skip ? grad_with_a_hole : grad);
        push_all(&r[1], number, grad);
        if (early)
            await_early(r->c, number * UNITS * 6);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(zc_norms_wait(r[i].c, r[i].job.id, number, &norms[i]), 0);
            assert_int_equal(norms[i].nonfinite, skip && i == 0 ? UNITS : 0);
            if (bytes_of(&r[i]) != before[i])
                fail_msg("rank %u sees a step that has not been", i);
        }
        step_both(r, 2, number, skip, 1);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(bytes_of(&r[i]) == before[i], skip);
    }
    if (early)
        assert_int_equal(zi_counter(r->c, "pages_undone"), UNITS * 6);
    sum = bytes_of(&r[0]) ^ bytes_of(&r[1]) << 1;
    zi_close(r, 2);
    zi_stop(&d);
    return sum;
}

static void nobody_sees_it_before_the_step(void **state)
{
    uint64_t plain = run(false, options);

    (void)state;
    assert_true(run(true, options) == plain);
    assert_true(run(true, lending) == plain);
}

/* A step that times out because a rank did not ask for it continues later with what was made early.
 * A step that only one rank has begun early is like any other. */
static void a_step_is_given_up(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_step step = step_of(1), hasty = step_of(1);
    struct zc_stepped stepped;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    hasty.timeout_ms = 50;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zc_step_begin_wait(r[i].c, r[i].job.id, &step, 1), 0);
    push_all(&r[0], 1, grad);
    push_all(&r[1], 1, grad);
    await_early(r->c, UNITS * 6);
    assert_int_equal(zc_step_wait(r[0].c, r[0].job.id, &hasty, &stepped), -ETIMEDOUT);
    assert_int_equal(zi_counter(r->c, "pages_undone"), 0);
    step_both(r, 2, 1, false, 1);
    step = step_of(2);
    assert_int_equal(zc_step_begin_wait(r[1].c, r[1].job.id, &step, 1), 0);
    push_all(&r[0], 2, grad);
    push_all(&r[1], 2, grad);
    step_both(r, 2, 2, false, 1);
    assert_int_equal(zi_counter(r->c, "pages_early"), UNITS * 6);
    zi_close(r, 2);
    zi_stop(&d);
}

/* ---- limits of norms */

static const double limits_set[UNITS] = { 0, 3, 1e9, 0.25 };

/* The sums of all tensors (one for each unit), of both ranks; with `nodes`, of another node that has as
 * much. */
static void sums_of(struct zi_rank *r, bool nodes, struct zc_norm *ret)
{
    for (unsigned i = 0; i < 2; i++) {
        uint8_t sums[UNITS][ZC_NORM_BYTES];

        assert_int_equal(zc_tensor_norms_wait(r[i].c, r[i].job.id, 1, UNITS, sums[0]), 0);
        for (unsigned u = 0; u < UNITS; u++) {
            struct zc_norm one = { 0 };

            memcpy(one.sum_of_squares, sums[u], sizeof(sums[u]));
            zc_norm_merge(&ret[u], &one);
            if (nodes)
                zc_norm_merge(&ret[u], &one);
        }
    }
}

/* Both ranks begin a step with limits; `nodes`: of units that another node has shards of. */
static void begin_limited(struct zi_rank *r, struct zc_step *step, bool nodes)
{
    step->limits = true;
    step->sums = nodes;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(zc_step_tensors_wait(r[i].c, r[i].job.id, 1, true, limits_set, UNITS), 0);
        assert_int_equal(zc_step_begin_wait(r[i].c, r[i].job.id, step, 1), 0);
    }
}

/* A step whose norms are limited; the same with and without early steps. */
static uint64_t run_limited(bool early, bool nodes)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_step step = step_of(1);
    struct zc_norm sums[UNITS] = { 0 };
    struct zc_stepped stepped[2];
    struct zi_call calls[2];
    double factors[UNITS];
    const char *text;
    uint64_t sum;

    step.scale = 0.5;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    if (early)
        begin_limited(r, &step, nodes);
    push_all(&r[0], 1, grad);
    assert_int_equal(zi_counter(r->c, "pages_early"), 0); /* no unit is complete */
    push_all(&r[1], 1, grad);
    sums_of(r, nodes, sums);
    if (early && nodes)
        assert_int_equal(zi_counter(r->c, "pages_early"), 0); /* no sum over all nodes is known */
    for (unsigned u = 0; u < UNITS; u++) {
        factors[u] = zc_limit_factor(limits_set[u], 0.5 * zc_norm_value(&sums[u]));
        if (early && nodes)
            assert_int_equal(
                zc_unit_sums_wait(r[u % 2].c, r[u % 2].job.id, 1, u, sums[u].sum_of_squares, 1), 0);
    }
    if (early)
        await_early(r->c, UNITS * 6);
    assert_true(factors[0] == 1 && factors[1] < 1 && factors[2] == 1 && factors[3] < factors[1]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zc_step_tensors_wait(r[i].c, r[i].job.id, 1, false, factors, UNITS), 0);
    step.factors = true;
    zi_step_ask(r, 2, &step, false, stepped, calls);
    if (zi_await_all(r, 2, calls, &text) != 0)
        fail_msg("%s", text);
    assert_int_equal(zi_counter(r->c, "pages_undone"), 0);
    sum = bytes_of(&r[0]) ^ bytes_of(&r[1]) << 1;
    zi_close(r, 2);
    zi_stop(&d);
    return sum;
}

static void sums_over_nodes_are_checked(void **state)
{
    const uint8_t sums[2 * ZC_NORM_BYTES] = { 0 };
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_step step = step_of(1);
    uint8_t norm[ZC_NORM_BYTES];
    uint64_t job;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    job = r->job.id;
    assert_true(zc_server(r->c)->sums);
    step.sums = true;
    assert_int_equal(zc_step_begin_wait(r->c, job, &step, 1), -EINVAL); /* no limits */
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, 0, sums, 1), -EINVAL);
    zi_push_all(&r[0], 0, 1, grad);
    assert_int_equal(zc_unit_norms_wait(r->c, job, 1, 0, 1, norm), 0); /* others may be missing */
    assert_int_equal(zc_unit_norms_wait(r->c, job, 1, UNITS, 1, norm), -EINVAL);
    begin_limited(r, &step, true);
    step.sums = false;
    assert_int_equal(zc_step_begin_wait(r->c, job, &step, 1), -EINVAL); /* others said so */
    assert_int_equal(zc_unit_sums_wait(r->c, job, 2, 0, sums, 1), -EINVAL);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 0, 0, sums, 1), -EEXIST);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, UNITS, sums, 1), -EINVAL);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, 0, sums, 0), -EINVAL);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, 0, sums, 2), -EINVAL);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, 0, sums, 1), 0);
    assert_int_equal(zc_unit_sums_wait(r->c, job, 1, 0, sums, 1), -EINVAL); /* again */
    assert_int_equal(zi_counter(r->c, "pages_early"), 0); /* the other rank has not pushed */
    zi_close(r, 2);
    zi_stop(&d);
}

static void limits_change_no_bit(void **state)
{
    (void)state;
    for (int nodes = 0; nodes < 2; nodes++)
        assert_true(run_limited(true, nodes) == run_limited(false, nodes));
}

static void limits_are_checked(void **state)
{
    static const double limits[UNITS + 1] = { 1, 1, 1, 1, 1 }, ones[UNITS] = { 1, 1, 1, 1 };
    static const double negative[UNITS] = { 1, -1, 1, 1 }, others[UNITS] = { 1, 1, 1, 2 };
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_step step = step_of(1);
    struct zc_stepped stepped;
    uint8_t sums[UNITS + 1][ZC_NORM_BYTES];
    uint64_t job;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    job = r->job.id;
    step.limits = step.factors = true;
    assert_int_equal(zc_step_begin_wait(r->c, job, &step, 1), -EINVAL); /* not sent */
    assert_int_equal(zc_step_wait(r->c, job, &step, &stepped), -EINVAL);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 2, true, limits, UNITS), -EINVAL);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, limits, UNITS + 1), -EINVAL);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, negative, UNITS), -EINVAL);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, limits, UNITS - 1), 0);
    assert_int_equal(zc_step_begin_wait(r->c, job, &step, 1), -EINVAL); /* not all */
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, others, UNITS), 0);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, limits, UNITS), 0); /* instead */
    assert_int_equal(zc_step_tensors_wait(r[1].c, job, 1, true, others, UNITS), -EINVAL);
    assert_int_equal(zc_step_tensors_wait(r[1].c, job, 1, true, limits, UNITS), 0);
    assert_int_equal(zc_tensor_norms_wait(r->c, job, 1, UNITS + 1, sums[0]), -EINVAL);
    assert_int_equal(zc_tensor_norms_wait(r->c, job, 2, UNITS, sums[0]), -EINVAL);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zc_step_begin_wait(r[i].c, job, &step, 1), 0);
    assert_int_equal(zc_step_tensors_wait(r->c, job, 1, true, limits, UNITS), -EBUSY);
    push_all(&r[0], 1, grad);
    push_all(&r[1], 1, grad);
    await_early(r->c, UNITS * 6);
    for (unsigned i = 0; i < 2; i++) /* the limits gave other factors */
        assert_int_equal(zc_step_tensors_wait(r[i].c, job, 1, false, ones, UNITS), 0);
    assert_int_equal(zc_step_wait(r->c, job, &step, &stepped), -EINVAL);
    step.factors = false;
    assert_int_equal(zc_step_wait(r->c, job, &step, &stepped), -EINVAL);
    step_both(r, 2, 1, true, 1);
    assert_int_equal(zi_counter(r->c, "pages_undone"), UNITS * 6);
    zi_close(r, 2);
    zi_stop(&d);
}

static void refused(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zc_step step = step_of(1), other = step_of(1);
    struct zc_stepped stepped;

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, true);
    other.scale = 0.5;
    step.step = 2;
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 1), -EINVAL);
    step.step = 1;
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 0), -EINVAL);
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 1), 0);
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 1), 0); /* again */
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &other, 1), -EINVAL);
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 2), -EINVAL);
    assert_int_equal(zc_write_wait(r->c, r->shards[0], ZC_MASTER, 0, PAGE, r->job.staging), -EBUSY);
    push_all(r, 1, grad);
    await_early(r->c, UNITS * 6);
    assert_int_equal(zc_read_wait(r->c, r->shards[0], ZC_GRAD, 0, PAGE, r->job.staging), -EBUSY);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &other, &stepped), -EINVAL);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &step, &stepped), 0); /* nothing was undone */
    assert_int_equal(zi_counter(r->c, "pages_undone"), 0);
    zi_close(r, 1);
    zi_stop(&d);
}

/* A rank dies while there are held pages: the state stays that of the step before. */
static void a_rank_that_dies(void **state)
{
    struct zc_job_options o = { .name = "job",
                                .world = 2,
                                .staging_bytes = STAGING,
                                .groups = 1,
                                .keep = true,
                                .attach = true,
                                .early = true };
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_step step = step_of(1);
    uint64_t before[2];

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    for (unsigned i = 0; i < 2; i++) {
        before[i] = bytes_of(&r[i]);
        assert_int_equal(zc_step_begin_wait(r[i].c, r[i].job.id, &step, 1), 0);
    }
    push_all(&r[0], 1, grad);
    push_all(&r[1], 1, grad);
    zc_close(r[0].c); /* some pages are held, others in flight */
    zc_close(r[1].c);
    for (o.rank = 0; o.rank < 2; o.rank++) {
        int rc;

        while ((rc = zi_open(&r[o.rank], &d, &o)) == -EBUSY) /* it has not noticed the death yet */
            zc_close(r[o.rank].c);
        assert_int_equal(rc, 0);
        zi_define(&r[o.rank], units, UNITS, 2);
    }
    assert_int_equal(zi_ready(r, 2), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_true(bytes_of(&r[i]) == before[i]);
    for (unsigned i = 0; i < 2; i++)
        push_all(&r[i], 1, grad); /* from the beginning */
    step_both(r, 2, 1, false, 1);
    zi_close(r, 2);
    zi_stop(&d);
}

/* A job returns to its commit while there are held pages: their step does not exist any more. */
static void back_to_the_commit(void **state)
{
    struct zc_job_options o = { .name = "job",
                                .world = 1,
                                .staging_bytes = STAGING,
                                .groups = 1,
                                .keep = true,
                                .durable = true };
    struct zi_daemon d = { 0 };
    struct zi_rank r;
    struct zc_stepped stepped;
    struct zc_step step;
    uint64_t committed = 1, nowhere = 99, before = 0;

    (void)state;
    zi_start(&d, options);
    o.early = true;
    o.host_bytes_max = STAGING + ELEMS * (3 * 2 + 4 + 3 * 4 + 2);
    zi_job(&r, 1, &d, &o, units, UNITS);
    for (unsigned u = 0; u < UNITS; u++)
        zi_write_all(&r, u, value);
    for (uint64_t number = 1; number <= 2; number++) {
        step = step_of(number);
        step.commit = number == 1 ? ZC_COMMIT_STEP : ZC_COMMIT_NO;
        push_all(&r, number, grad);
        assert_int_equal(zc_step_wait(r.c, r.job.id, &step, &stepped), 0);
        if (number == 1)
            before = bytes_of(&r);
    }
    zi_close(&r, 1);
    o.attach = true;
    assert_int_equal(zi_open(&r, &d, &o), 0);
    zi_define(&r, units, UNITS, 1);
    assert_int_equal(zc_ready_wait(r.c, r.job.id, &nowhere, ZI_WAIT_MS, &r.place), -ENOENT);
    step = step_of(3);
    assert_int_equal(zc_step_begin_wait(r.c, r.job.id, &step, 1), 0);
    push_all(&r, 3, grad);
    await_early(r.c, UNITS * 6);
    assert_int_equal(zc_ready_wait(r.c, r.job.id, &committed, ZI_WAIT_MS, &r.place), 0);
    assert_int_equal(zi_counter(r.c, "pages_undone"), UNITS * 6);
    assert_true(bytes_of(&r) == before);
    step = step_of(2);
    assert_int_equal(zc_step_wait(r.c, r.job.id, &step, &stepped), -EBUSY); /* no gradient */
    zi_close(&r, 1);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nobody_sees_it_before_the_step, zi_teardown),
        cmocka_unit_test_teardown(a_step_is_given_up, zi_teardown),
        cmocka_unit_test_teardown(limits_change_no_bit, zi_teardown),
        cmocka_unit_test_teardown(limits_are_checked, zi_teardown),
        cmocka_unit_test_teardown(sums_over_nodes_are_checked, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
        cmocka_unit_test_teardown(a_rank_that_dies, zi_teardown),
        cmocka_unit_test_teardown(back_to_the_commit, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
