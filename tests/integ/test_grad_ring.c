/*
 * A job that does not hold the gradients of pages with streamed state: these pages are stepped as
 * they are pushed. The bytes are those of a job that holds them, in every placement, with one page
 * buffer, and after deaths at each moment. tests/sim runs such jobs across power cuts.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define PAGE    4096u
#define STAGING 65536u
#define UNITS   4u
#define ELEMS   (6 * PAGE)
#define RANKS   3u
#define PARAMS  (ELEMS * (3 * 2 + 4))

static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "256K",         "--timeout-ms", "120000",       NULL
};

/* One page buffer. */
static const char *const narrow[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "72K",          "--timeout-ms", "120000",       NULL
};

/* A GPU: its tier takes parameters that ask for it, and no state of such a job. */
static const char *const with_gpu[] = { "--host-bytes", "16M",          "--nvme-bytes",
                                        "16M",          "--page-elems", "4096",
                                        "--ring-bytes", "256K",         "--timeout-ms",
                                        "120000",       "--gpu-bytes",  "8M",
                                        "--gpu",        "emulated",     NULL };

static const struct zc_tensor all = { .name = "all", .ndims = 1, .dims = { ELEMS } };

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_BF16, ZC_F32, false, false, &all, 1 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, &all, 1 },
    { 2, "u2", ELEMS, ZC_BF16, ZC_BF16, false, false, &all, 1 },
    { 3, "u3", ELEMS, ZC_BF16, ZC_F32, false, false, &all, 1 },
};

static const struct zc_group groups[] = { { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 } };

/* Host memory in addition to the staging. */
static const struct placement {
    const char *name;
    uint64_t host_bytes;
    bool durable;
    enum zc_place params;
    uint32_t keep; /* percent */
} placements[] = {
    { "all state is streamed", 2 * PARAMS, false, ZC_NVME, 0 },
    { "a part of the state is in memory, with its gradients", 2 * PARAMS + 300 * 1024, false,
      ZC_NVME, 0 },
    { "the same, durable", 2 * PARAMS + 300 * 1024, true, ZC_NVME, 0 },
    { "parameters are streamed, too", PARAMS, false, ZC_NVME, 0 },
    { "only the last page of state is streamed", PARAMS + ELEMS * 52 - PAGE, false, ZC_NVME, 0 },
    { "parameters are on the GPU, new ones in host memory", PARAMS + 100 * 1024, false, ZC_GPU, 0 },
    { "the gradients of half of the pages are held", 2 * PARAMS + 300 * 1024, false, ZC_NVME, 50 },
    { "the same, parameters are streamed", 2 * PARAMS, false, ZC_NVME, 70 },
};

struct job {
    struct zi_daemon d;
    struct zi_rank r[RANKS];
    unsigned world;
    bool commits; /* its steps */
};

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 977) / 7;
}

static float grad(uint64_t element)
{
    return (float)(element % 7) - 3.0f;
}

static struct zc_step step_of(uint64_t number)
{
    return (struct zc_step){ .step = number, .scale = 1, .groups = groups, .ngroups = 1 };
}

static struct zc_job_options options_of(const struct placement *p, unsigned world, bool ring)
{
    return (struct zc_job_options){ .name = "job",
                                    .world = world,
                                    .staging_bytes = STAGING,
                                    .groups = 1,
                                    .keep = true,
                                    .durable = p->durable,
                                    .early = ring,
                                    .grad_ring = ring,
                                    .grad_ring_keep = p->keep,
                                    .tensor_norms = true,
                                    .offload_param = p->params,
                                    .device = p->params == ZC_GPU ? "emulated" : NULL,
                                    .host_bytes_max = world * STAGING + p->host_bytes };
}

static void job_open(struct job *j, const struct placement *p, unsigned world, bool ring,
                     const char *const *with)
{
    struct zc_job_options o = options_of(p, world, ring);

    if (!ring)
        o.host_bytes_max += 4 * PARAMS; /* for its gradients */
    j->world = world;
    zi_start(&j->d, with);
    zi_job(j->r, world, &j->d, &o, units, UNITS);
    assert_true(ring == (j->r->place.grads_ringed > 0));
    assert_int_equal(j->r->place.grads_on_nvme, 0);
    assert_true(j->r->place.host_bytes <= o.host_bytes_max);
    assert_true((p->params == ZC_GPU) == (j->r->place.gpu_params > 0));
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&j->r[r], u, value);
}

static void job_close(struct job *j)
{
    zi_close(j->r, j->world);
    zi_stop(&j->d);
}

static void begin_all(struct job *j, uint64_t number)
{
    struct zc_step step = step_of(number);

    for (unsigned i = 0; i < j->world; i++)
        assert_int_equal(zc_step_begin_wait(j->r[i].c, j->r[i].job.id, &step, 1), 0);
}

static void push_all(struct job *j, uint64_t step)
{
    for (unsigned i = 0; i < j->world; i++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_push_all(&j->r[i], u, step, grad);
}

static uint64_t bytes_of_all(struct job *j)
{
    return zi_bytes(j->r, j->world, units, UNITS);
}

static void step_all(struct job *j, uint64_t number, bool skip)
{
    struct zc_step step = step_of(number);
    struct zc_stepped stepped[RANKS];
    struct zi_call calls[RANKS];
    const char *text;

    step.commit = j->commits ? ZC_COMMIT_STEP : ZC_COMMIT_NO;
    zi_step_ask(j->r, j->world, &step, skip, stepped, calls);
    if (zi_await_all(j->r, j->world, calls, &text) != 0)
        fail_msg("step %u: %s", (unsigned)number, text);
}

/* ---- bits */

/* A step, a skipped one, and two more; the same with and without the ring. */
static uint64_t run(const struct placement *p, unsigned world, bool ring, const char *const *with)
{
    struct job j = { 0 };
    uint64_t before, sum;

    job_open(&j, p, world, ring, with);
    for (uint64_t number = 1; number <= 4; number++) {
        struct zc_norm norm;

        before = bytes_of_all(&j);
        if (ring)
            begin_all(&j, number);
        push_all(&j, number);
        if (bytes_of_all(&j) != before)
            fail_msg("a step is visible that has not been");
        assert_int_equal(zc_norms_wait(j.r->c, j.r->job.id, number, &norm), 0);
        assert_int_equal(norm.nonfinite, 0);
        step_all(&j, number, number == 2);
        assert_int_equal(bytes_of_all(&j) == before, number == 2);
    }
    if (ring) {
        assert_true(p->params != ZC_GPU || zi_tier(j.r->c, "gpu").state == 0);
        assert_true(zi_counter(j.r->c, "pages_early") > 0);
        assert_true(zi_counter(j.r->c, "pages_undone") > 0);
    }
    sum = bytes_of_all(&j);
    job_close(&j);
    return sum;
}

static void it_changes_no_bit(void **state)
{
    (void)state;
    for (unsigned world = 1; world <= RANKS; world++) {
        uint64_t held = run(&placements[0], world, false, options);

        for (size_t i = 0; i < ZB_COUNT(placements); i++)
            if (world == 2 || i < 2)
                if (run(&placements[i], world, true,
                        placements[i].params == ZC_GPU ? with_gpu
                        : i == 1                       ? narrow
                                                       : options) != held)
                    fail_msg("%u ranks, %s: other bytes", world, placements[i].name);
    }
}

/* ---- waiting */

static void it_waits_for_all_ranks(void **state)
{
    struct job j = { 0 };
    struct zc_step step = step_of(1);
    struct zi_call call;

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    step.limits = true;
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 1), -EINVAL);
    step.limits = false;
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 2), -EINVAL);
    assert_int_equal(zi_push_try(&j.r[0], 0, 1, grad), -EINVAL); /* not begun by this rank */
    assert_int_equal(zc_read_wait(j.r->c, j.r->shards[0], ZC_GRAD, 0, PAGE, j.r->job.staging),
                     -ENOTSUP);
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 1), 0);
    zi_push_begin(&j.r[0], 0, 1, 0, PAGE, grad, &call);
    zi_pump(j.r, 2, 100);
    assert_false(call.over);
    assert_int_equal(zc_step_begin_wait(j.r[1].c, j.r[1].job.id, &step, 1), 0);
    assert_int_equal(zi_await(j.r, 2, &call), 0);
    job_close(&j);
}

/* Ranks push in opposite orders, page by page, with one page buffer. */
static void orders_differ(void **state)
{
    struct job j = { 0 };

    (void)state;
    job_open(&j, &placements[0], 2, true, narrow);
    begin_all(&j, 1);
    for (unsigned i = 0; i < UNITS; i++)
        for (uint64_t first = 0; first < ELEMS / 2; first += PAGE) {
            struct zi_call calls[2];
            const char *text;

            zi_push_begin(&j.r[0], i, 1, first, PAGE, grad, &calls[0]);
            zi_push_begin(&j.r[1], UNITS - 1 - i, 1, first, PAGE, grad, &calls[1]);
            assert_int_equal(zi_await_all(j.r, 2, calls, &text), 0);
        }
    step_all(&j, 1, false);
    job_close(&j);
}

/* A rank that has not begun the step asks to skip it: pushes that wait for that rank are discarded.
 * Another job is not affected while they wait. */
static void it_is_skipped_while_pushes_wait(void **state)
{
    struct job j = { 0 };
    struct zc_step step = step_of(1);
    struct zi_rank other = { 0 };
    struct zc_job_options o = options_of(&placements[0], 1, true);
    struct zc_stepped stepped;
    struct zi_call call;
    uint64_t before;

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    before = bytes_of_all(&j);
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 1), 0);
    zi_push_begin(&j.r[0], 0, 1, 0, PAGE, grad, &call);
    zi_pump(j.r, 2, 20);
    o.name = "other";
    zi_job(&other, 1, &j.d, &o, units, UNITS);
    for (unsigned u = 0; u < UNITS; u++)
        zi_write_all(&other, u, value);
    assert_int_equal(zc_step_begin_wait(other.c, other.job.id, &step, 1), 0);
    for (unsigned u = 0; u < UNITS; u++)
        zi_push_all(&other, u, 1, grad);
    assert_int_equal(zc_step_wait(other.c, other.job.id, &step, &stepped), 0);
    zi_close(&other, 1);
    assert_false(call.over);
    step_all(&j, 1, true);
    assert_int_equal(zi_await(j.r, 2, &call), 0);
    assert_true(bytes_of_all(&j) == before);
    begin_all(&j, 2);
    push_all(&j, 2);
    step_all(&j, 2, false);
    job_close(&j);
}

/* The daemon ends while a push waits. */
static void the_daemon_ends(void **state)
{
    struct job j = { 0 };
    struct zc_step step = step_of(1);
    struct zi_call call;

    (void)state;
    job_open(&j, &placements[2], 2, true, options);
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 1), 0);
    zi_push_begin(&j.r[0], 0, 1, 0, PAGE, grad, &call);
    zi_pump(j.r, 2, 20);
    zi_term(&j.d);
    zi_ended(&j.d);
    for (unsigned i = 0; i < 2; i++)
        zc_close(j.r[i].c);
    zi_clean(&j.d);
}

/* ---- deaths */

enum moment {
    PUSH_WAITS,  /* for the announcement of the other rank */
    HALF_PUSHED, /* some pages are held, others in flight, others not begun */
    ALL_PUSHED,
    ONE_ASKED, /* for the step */
    MOMENTS
};

static void until(struct job *j, enum moment moment, struct zi_call *call)
{
    struct zc_step step = step_of(2);
    static struct zc_stepped stepped;

    assert_int_equal(zc_step_begin_wait(j->r->c, j->r->job.id, &step, 1), 0);
    zi_push_begin(&j->r[0], UNITS - 1, 2, 0, PAGE, grad, call);
    zi_pump(j->r, 2, 20); /* it is on its way */
    if (moment == PUSH_WAITS)
        return;
    assert_int_equal(zc_step_begin_wait(j->r[1].c, j->r[1].job.id, &step, 1), 0);
    if (moment == HALF_PUSHED) {
        zi_push_all(&j->r[1], 3, 2, grad);
        return;
    }
    assert_int_equal(zi_await(j->r, 2, call), 0);
    for (uint64_t first = PAGE; first < ELEMS / 2; first += PAGE) {
        zi_push_begin(&j->r[0], UNITS - 1, 2, first, PAGE, grad, call);
        assert_int_equal(zi_await(j->r, 2, call), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        for (unsigned u = 0; u < UNITS - 1 + i; u++)
            zi_push_all(&j->r[i], u, 2, grad);
    if (moment != ONE_ASKED)
        return;
    *call = ZI_CALL(j->r);
    assert_int_equal(zc_step(j->r->c, j->r->job.id, &step, &stepped, zi_done, call), 0);
    zi_pump(j->r, 2, 20);
}

/* The second rank dies at this moment of step 2, or both, or the daemon does. The step in progress is
 * lost, and nothing else; if the daemon dies, what was not committed. */
static void death(enum moment moment, enum zi_dies dies, uint64_t want)
{
    const struct placement *p = &placements[dies == ZI_DAEMON ? 2 : 1];
    struct zc_job_options o = options_of(p, 2, true);
    struct zi_call call;
    struct job j = { 0 };
    uint64_t before;

    job_open(&j, p, 2, true, options);
    begin_all(&j, 1);
    push_all(&j, 1);
    j.commits = p->durable;
    step_all(&j, 1, false);
    j.commits = false;
    before = bytes_of_all(&j);
    until(&j, moment, &call);
    zi_death(&j.d, j.r, &o, units, UNITS, dies, options);
    if (bytes_of_all(&j) != before)
        fail_msg("moment %d, %d: other bytes after the death", (int)moment, (int)dies);
    begin_all(&j, 2);
    push_all(&j, 2);
    step_all(&j, 2, false);
    if (bytes_of_all(&j) != want)
        fail_msg("moment %d, %d: other bytes after the step", (int)moment, (int)dies);
    job_close(&j);
}

static void deaths(void **state)
{
    struct job j = { 0 };
    uint64_t want;

    (void)state;
    job_open(&j, &placements[1], 2, true, options);
    for (uint64_t number = 1; number <= 2; number++) {
        begin_all(&j, number);
        push_all(&j, number);
        step_all(&j, number, false);
    }
    want = bytes_of_all(&j);
    job_close(&j);
    for (enum moment m = 0; m < MOMENTS; m++)
        for (enum zi_dies dies = 0; dies < ZI_DIES; dies++)
            death(m, dies, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(it_changes_no_bit, zi_teardown),
        cmocka_unit_test_teardown(it_waits_for_all_ranks, zi_teardown),
        cmocka_unit_test_teardown(orders_differ, zi_teardown),
        cmocka_unit_test_teardown(it_is_skipped_while_pushes_wait, zi_teardown),
        cmocka_unit_test_teardown(the_daemon_ends, zi_teardown),
        cmocka_unit_test_teardown(deaths, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
