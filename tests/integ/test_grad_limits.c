/*
 * A ring of gradients whose steps limit the norms of tensors: gradients that are not held are collected
 * in rooms for whole units. The bytes are those of a job that holds its gradients, in every placement, for
 * any number of ranks, with other nodes, and after deaths at each moment; steps without an announcement
 * are among them. Nothing waits for itself. tests/sim runs it across power cuts and failures of pages.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/util.h"

#define PAGE    4096u
#define STAGING 65536u
#define UNITS   5u
#define TENSORS (2 * UNITS)
#define ELEMS   (6 * PAGE)
#define RANKS   3u
#define PARAMS  (ELEMS * (4 * 2 + 4))

static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "256K",         "--timeout-ms", "120000",       NULL
};

/* One page buffer. */
static const char *const narrow[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "72K",          "--timeout-ms", "120000",       NULL
};

static const struct zc_tensor two[] = {
    { .name = "a", .ndims = 1, .dims = { ELEMS / 2 - 128 } },
    { .name = "b", .first = ELEMS / 2 - 128, .ndims = 1, .dims = { ELEMS / 2 + 128 } },
};

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_BF16, ZC_F32, false, false, two, 2 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, two, 2 },
    { 2, "u2", ELEMS, ZC_BF16, ZC_F32, false, false, two, 2 },
    { 3, "u3", ELEMS, ZC_BF16, ZC_F32, false, false, two, 2 },
    { 4, "u4", ELEMS, ZC_BF16, ZC_F32, false, false, two, 2 },
};

static const struct zc_group groups[] = { { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 } };

static const double limits[TENSORS] = { 0, 3, 1e9, 0.25, 7, 0, 1, 2, 3, 1e9 };

/* Host memory in addition to the staging. */
static const struct placement {
    const char *name;
    uint64_t host_bytes;
    bool durable;
    uint32_t keep; /* percent */
} placements[] = {
    { "all state is streamed", 2 * PARAMS + 8 * ELEMS, false, 0 },
    { "a part of the state is in memory", 2 * PARAMS + 8 * ELEMS + 300 * 1024, false, 0 },
    { "the same, durable", 2 * PARAMS + 8 * ELEMS + 300 * 1024, true, 0 },
    { "parameters are streamed, too", PARAMS + 8 * ELEMS, false, 0 },
    { "the gradients of half of the pages are held", 2 * PARAMS + 300 * 1024, false, 50 },
};

struct job {
    struct zi_daemon d;
    struct zi_rank r[RANKS];
    unsigned world;
    bool commits, nodes; /* nodes: another node has shards with the same gradients */
};

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 977) / 7;
}

static float grad(uint64_t element)
{
    return (float)(element % 7) - 3.0f;
}

static float bad(uint64_t element)
{
    return element == ELEMS - 1 ? INFINITY : 1.0f;
}

static struct zc_step step_of(uint64_t number)
{
    return (struct zc_step){
        .step = number, .scale = 0.5, .groups = groups, .ngroups = 1, .limits = true
    };
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
                                    .grad_ring_limits = ring,
                                    .grad_ring_keep = p->keep,
                                    .tensor_norms = true,
                                    .offload_param = ZC_NVME,
                                    .host_bytes_max = world * STAGING + p->host_bytes +
                                                      (ring ? 0 : 4 * PARAMS) };
}

static void job_open(struct job *j, const struct placement *p, unsigned world, bool ring,
                     const char *const *with)
{
    struct zc_job_options o = options_of(p, world, ring);

    j->world = world;
    zi_start(&j->d, with);
    zi_job(j->r, world, &j->d, &o, units, UNITS);
    assert_true(ring == (j->r->place.grads_ringed > 0));
    assert_int_equal(j->r->place.grads_on_nvme, j->r->place.grads_ringed);
    assert_true(j->r->place.host_bytes <= o.host_bytes_max);
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&j->r[r], u, value);
}

static void job_close(struct job *j)
{
    zi_close(j->r, j->world);
    zi_stop(&j->d);
}

static void begin_one(struct zi_rank *r, uint64_t number, bool nodes)
{
    struct zc_step step = step_of(number);

    step.sums = nodes;
    assert_int_equal(zc_step_tensors_wait(r->c, r->job.id, number, true, limits, TENSORS), 0);
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 1), 0);
}

static void begin_all(struct job *j, uint64_t number)
{
    for (unsigned i = 0; i < j->world; i++)
        begin_one(&j->r[i], number, j->nodes);
}

/* Unit by unit, as ranks push that reduce together. */
static void push_units(struct job *j, unsigned from, uint64_t step)
{
    for (unsigned u = from; u < UNITS; u++)
        for (unsigned i = 0; i < j->world; i++)
            zi_push_all(&j->r[i], u, step, grad);
}

static uint64_t bytes_of_all(struct job *j)
{
    return zi_bytes(j->r, j->world, units, UNITS);
}

/* The sums of tensors [first, first + n) over all ranks, and over the other node. */
static void sums_of(struct job *j, uint64_t number, uint32_t first, uint32_t n, struct zc_norm *ret)
{
    for (unsigned i = 0; i < j->world; i++) {
        uint8_t sums[TENSORS][ZC_NORM_BYTES];

        assert_int_equal(zc_unit_norms_wait(j->r[i].c, j->r[i].job.id, number, first, n, sums[0]),
                         0);
        for (unsigned t = 0; t < n; t++) {
            struct zc_norm one = { 0 };

            memcpy(one.sum_of_squares, sums[t], sizeof(sums[t]));
            for (unsigned node = 0; node <= j->nodes; node++)
                zc_norm_merge(&ret[t], &one);
        }
    }
}

/* Sends the sums of a unit over both nodes, as one rank does when all ranks have pushed their parts. */
static void sums_send(struct job *j, uint64_t number, unsigned unit)
{
    struct zc_norm merged[2] = { 0 };
    uint8_t sums[2][ZC_NORM_BYTES];

    sums_of(j, number, 2 * unit, 2, merged);
    for (unsigned t = 0; t < 2; t++)
        memcpy(sums[t], merged[t].sum_of_squares, sizeof(sums[t]));
    assert_int_equal(zc_unit_sums_wait(j->r->c, j->r->job.id, number, unit, sums[0], 2), 0);
}

/* The factors of all tensors, from the sums of all ranks. */
static void factors_send(struct job *j, uint64_t number)
{
    struct zc_norm merged[TENSORS] = { 0 };
    double factors[TENSORS];

    sums_of(j, number, 0, TENSORS, merged);
    for (unsigned t = 0; t < TENSORS; t++)
        factors[t] = zc_limit_factor(limits[t], 0.5 * zc_norm_value(&merged[t]));
    for (unsigned t = 0; t < TENSORS; t++)
        if (!(factors[t] > 0)) /* its norm is not finite */
            factors[t] = 1;
    for (unsigned i = 0; i < j->world; i++)
        assert_int_equal(
            zc_step_tensors_wait(j->r[i].c, j->r[i].job.id, number, false, factors, TENSORS), 0);
}

/* Without limits: a step of the warm-up. */
static int step_try(struct job *j, uint64_t number, bool skip, bool limited, const char **ret_text)
{
    struct zc_step step = step_of(number);
    struct zc_stepped stepped[RANKS];
    struct zi_call calls[RANKS];

    if (limited && !skip)
        factors_send(j, number);
    step.limits = false;
    step.factors = limited;
    step.commit = j->commits ? ZC_COMMIT_STEP : ZC_COMMIT_NO;
    zi_step_ask(j->r, j->world, &step, skip, stepped, calls);
    return zi_await_all(j->r, j->world, calls, ret_text);
}

static void step_all(struct job *j, uint64_t number, bool skip, bool limited)
{
    const char *text = NULL;

    if (step_try(j, number, skip, limited, &text) != 0)
        fail_msg("step %u: %s", (unsigned)number, text);
}

/* ---- bits */

/* A step of the warm-up, one with limits, a skipped one, and two more. */
static uint64_t run(const struct placement *p, unsigned world, bool ring, const char *const *with)
{
    struct job j = { 0 };
    uint64_t before, sum, early = 0;

    job_open(&j, p, world, ring, with);
    for (uint64_t number = 1; number <= 5; number++) {
        bool warm = number == 1 || number == 4, skips = number == 3;

        before = bytes_of_all(&j);
        if (ring && !warm)
            begin_all(&j, number);
        push_units(&j, 0, number);
        if (bytes_of_all(&j) != before)
            fail_msg("a step is visible that has not been");
        step_all(&j, number, skips, !warm);
        assert_int_equal(bytes_of_all(&j) == before, skips);
        if (ring && warm)
            assert_int_equal(zi_counter(j.r->c, "pages_early"), early);
        early = zi_counter(j.r->c, "pages_early");
    }
    assert_int_equal(early > 0, ring);
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
                if (run(&placements[i], world, true, i == 1 ? narrow : options) != held)
                    fail_msg("%u ranks, %s: other bytes", world, placements[i].name);
    }
}

/* ---- waiting */

/* Pushes the rest of a unit, of which the first rank pushes page by page. */
static void push_rest(struct job *j, unsigned unit, uint64_t step)
{
    for (uint64_t first = PAGE; first < ELEMS / 2; first += PAGE) {
        struct zi_call call;

        zi_push_begin(&j->r[0], unit, step, first, PAGE, grad, &call);
        assert_int_equal(zi_await(j->r, 2, &call), 0);
    }
    zi_push_all(&j->r[1], unit, step, grad);
}

/* Two units have rooms; the push of a third one waits until the other rank has pushed the first. A push
 * that would wait for its own rank is refused, and can be made later. */
static void it_waits_in_order(void **state)
{
    struct job j = { 0 };
    struct zi_call call;

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    begin_all(&j, 1);
    zi_push_all(&j.r[0], 0, 1, grad);
    zi_push_all(&j.r[0], 1, 1, grad);
    zi_push_begin(&j.r[0], 2, 1, 0, PAGE, grad, &call);
    zi_pump(j.r, 2, 50);
    assert_false(call.over);
    for (unsigned u = 2; u < UNITS; u++) /* before 0 and 1 */
        assert_int_equal(zi_push_try(&j.r[1], u, 1, grad), -EDEADLK);
    zi_push_all(&j.r[1], 1, 1, grad);
    assert_int_equal(zi_push_try(&j.r[1], 3, 1, grad), -EDEADLK); /* 0, and 2, which waits */
    zi_push_all(&j.r[1], 0, 1, grad);
    assert_int_equal(zi_await(j.r, 2, &call), 0);
    push_rest(&j, 2, 1);
    push_units(&j, 3, 1);
    step_all(&j, 1, false, true);
    job_close(&j);
}

/* Other nodes have shards of the units: a unit has its room until their sums came. Units may get them in any
 * order, or, the last ones, not at all. */
static void it_waits_for_other_nodes(void **state)
{
    struct job j = { .nodes = true };
    struct zi_call call;
    uint64_t want;

    (void)state;
    job_open(&j, &placements[0], 2, false, options);
    push_units(&j, 0, 1);
    step_all(&j, 1, false, true);
    want = bytes_of_all(&j);
    job_close(&j);
    for (unsigned first = 0; first < 2; first++) {
        job_open(&j, &placements[0], 2, true, first ? narrow : options);
        begin_all(&j, 1);
        for (unsigned i = 0; i < 2; i++)
            for (unsigned u = 0; u < 2; u++)
                zi_push_all(&j.r[i], u, 1, grad);
        zi_push_begin(&j.r[0], 2, 1, 0, PAGE, grad, &call);
        zi_pump(j.r, 2, 50);
        assert_false(call.over);
        assert_int_equal(zi_push_try(&j.r[1], 3, 1, grad), -EDEADLK); /* 2 */
        assert_int_equal(zi_counter(j.r->c, "pages_early"), 0);
        sums_send(&j, 1, first);
        assert_int_equal(zi_await(j.r, 2, &call), 0);
        push_rest(&j, 2, 1);
        sums_send(&j, 1, 1 - first);
        sums_send(&j, 1, 2);
        push_units(&j, 3, 1);
        step_all(&j, 1, false, true);
        assert_true(bytes_of_all(&j) == want);
        job_close(&j);
    }
}

/* Gradients were discarded, because a rank has asked to skip the step: other nodes do not get their sums. */
static void it_has_no_sums_of_what_is_lost(void **state)
{
    struct job j = { .nodes = true };
    uint8_t sums[2][ZC_NORM_BYTES];
    struct zc_stepped stepped[2];
    struct zc_step step = step_of(1);
    struct zi_call calls[2];

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    begin_all(&j, 1);
    zi_push_all(&j.r[1], 0, 1, grad);
    assert_int_equal(zc_unit_norms_wait(j.r[1].c, j.r[1].job.id, 1, 0, 2, sums[0]), 0);
    zi_step_ask(j.r, 1, &step, true, stepped, calls);
    zi_pump(j.r, 1, 20);
    zi_push_all(&j.r[1], 1, 1, grad);
    assert_int_equal(zc_unit_norms_wait(j.r[1].c, j.r[1].job.id, 1, 2, 2, sums[0]), -ECANCELED);
    zi_step_ask(&j.r[1], 1, &step, true, &stepped[1], &calls[1]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zi_await(j.r, 2, &calls[i]), 0);
    job_close(&j);
}

/* What is pushed before the step is begun is held, and the step cannot be begun then. */
static void it_begins_first(void **state)
{
    struct job j = { 0 };
    struct zc_step step = step_of(1);
    struct zc_job_options o = options_of(&placements[0], 2, true);
    struct zi_rank other;

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    zi_push_all(&j.r[0], 0, 1, grad);
    assert_int_equal(zc_step_tensors_wait(j.r->c, j.r->job.id, 1, true, limits, TENSORS), 0);
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 1), -EINVAL);
    step_all(&j, 1, true, false);
    begin_one(&j.r[0], 2, false);
    step.step = 2;
    assert_int_equal(zc_step_begin_wait(j.r->c, j.r->job.id, &step, 2), -EINVAL); /* micro-steps */
    assert_int_equal(zi_push_try(&j.r[1], 0, 2, grad), -EINVAL); /* it has not begun the step */
    begin_one(&j.r[1], 2, false);
    push_units(&j, 0, 2);
    step_all(&j, 2, false, true);
    o.name = "other";
    o.tensor_norms = false;
    assert_int_equal(zi_open(&other, &j.d, &o), -EINVAL);
    zc_close(other.c);
    job_close(&j);
}

/* A unit's gradient is not finite: what is pushed is discarded, the step fails, or it is skipped. */
static void it_is_not_finite(void **state)
{
    struct job j = { 0 };
    const char *text = NULL;
    struct zc_norm norm;
    uint64_t before;

    (void)state;
    job_open(&j, &placements[0], 2, true, options);
    before = bytes_of_all(&j);
    for (uint64_t number = 1; number <= 2; number++) {
        begin_all(&j, number);
        for (unsigned u = 0; u < UNITS; u++)
            for (unsigned i = 0; i < 2; i++)
                zi_push_all(&j.r[i], u, number, u == 1 ? bad : grad);
        assert_int_equal(zc_norms_wait(j.r[1].c, j.r[1].job.id, number, &norm), 0);
        assert_int_equal(norm.nonfinite, 1);
        if (number == 1) {
            assert_int_equal(step_try(&j, number, false, true, &text), -EDOM);
            begin_all(&j, number); /* again */
            push_units(&j, 0, number);
        }
        step_all(&j, number, number == 2, true);
        assert_true(bytes_of_all(&j) != before);
    }
    job_close(&j);
}

/* The same when nothing else is in progress: a push that waits for the unit's room is answered. */
static void it_is_not_finite_and_a_push_waits(void **state)
{
    (void)state;
    for (unsigned nodes = 0; nodes < 2; nodes++) {
        struct job j = { .nodes = nodes };
        struct zi_call call;

        job_open(&j, &placements[0], 2, true, options);
        begin_all(&j, 1);
        zi_push_all(&j.r[0], 0, 1, bad);
        zi_push_all(&j.r[0], 1, 1, grad);
        if (nodes)
            zi_push_all(&j.r[1], 0, 1, bad);
        zi_push_begin(&j.r[0], 2, 1, 0, PAGE, grad, &call);
        zi_pump(j.r, 2, 50);
        assert_false(call.over);
        if (nodes)
            sums_send(&j, 1, 0);
        else
            zi_push_all(&j.r[1], 0, 1, bad);
        assert_int_equal(zi_await(j.r, 2, &call), 0);
        step_all(&j, 1, true, false);
        job_close(&j);
    }
}

/* The first rank pushes until it has to wait. Its shards 0 and 1 of these placements hold their
 * gradients, but those of the other rank do not. */
static void wait_for_room(struct job *j, uint64_t step, struct zi_call *call)
{
    zi_push_all(&j->r[0], 0, step, grad);
    zi_push_all(&j->r[0], 1, step, grad);
    zi_push_begin(&j->r[0], 2, step, 0, ELEMS / 2, grad, call);
    zi_pump(j->r, 2, 20);
}

/* A rank asks to skip the step, or the daemon ends, while a push waits for a room. */
static void it_ends_while_pushes_wait(void **state)
{
    struct job j = { 0 };
    struct zi_call call;
    uint64_t before;

    (void)state;
    for (unsigned ends = 0; ends < 2; ends++) {
        job_open(&j, &placements[2], 2, true, options);
        before = bytes_of_all(&j);
        begin_all(&j, 1);
        wait_for_room(&j, 1, &call);
        assert_false(call.over);
        if (ends) {
            zi_term(&j.d);
            zi_ended(&j.d);
            for (unsigned i = 0; i < 2; i++)
                zc_close(j.r[i].c);
            zi_clean(&j.d);
            continue;
        }
        step_all(&j, 1, true, false);
        assert_int_equal(zi_await(j.r, 2, &call), 0);
        assert_true(bytes_of_all(&j) == before);
        begin_all(&j, 2);
        push_units(&j, 0, 2);
        step_all(&j, 2, false, true);
        job_close(&j);
    }
}

/* ---- deaths */

enum moment {
    WARM,       /* a step that is not announced: gradients are on NVMe */
    ROOM_WAITS, /* a push waits for a room */
    SUMS_WAIT,  /* a push waits for a room, whose unit waits for sums of another node */
    HALF_PUSHED,
    ALL_PUSHED,
    MOMENTS
};

static void until(struct job *j, enum moment moment, struct zi_call *call)
{
    j->nodes = moment == SUMS_WAIT;
    if (moment != WARM)
        begin_all(j, 2);
    j->nodes = false; /* in the next steps there is none */
    for (unsigned u = 0; u < 2 && moment == SUMS_WAIT; u++)
        zi_push_all(&j->r[1], u, 2, grad);
    if (moment == ALL_PUSHED) {
        push_units(j, 0, 2);
        return;
    }
    wait_for_room(j, 2, call);
    assert_int_equal(call->over, moment == WARM);
    if (moment == HALF_PUSHED)
        zi_push_all(&j->r[1], 0, 2, grad);
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
    push_units(&j, 0, 1);
    j.commits = p->durable;
    step_all(&j, 1, false, true);
    j.commits = false;
    before = bytes_of_all(&j);
    until(&j, moment, &call);
    zi_death(&j.d, j.r, &o, units, UNITS, dies, options);
    if (bytes_of_all(&j) != before)
        fail_msg("moment %d, %d: other bytes after the death", (int)moment, (int)dies);
    begin_all(&j, 2);
    push_units(&j, 0, 2);
    step_all(&j, 2, false, true);
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
        push_units(&j, 0, number);
        step_all(&j, number, false, true);
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
        cmocka_unit_test_teardown(it_waits_in_order, zi_teardown),
        cmocka_unit_test_teardown(it_waits_for_other_nodes, zi_teardown),
        cmocka_unit_test_teardown(it_has_no_sums_of_what_is_lost, zi_teardown),
        cmocka_unit_test_teardown(it_begins_first, zi_teardown),
        cmocka_unit_test_teardown(it_is_not_finite, zi_teardown),
        cmocka_unit_test_teardown(it_is_not_finite_and_a_push_waits, zi_teardown),
        cmocka_unit_test_teardown(it_ends_while_pushes_wait, zi_teardown),
        cmocka_unit_test_teardown(deaths, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
