/*
 * Steps of Muon that begin before their barrier: the bytes are those of steps that do not, in every placement, for
 * each momentum, for any number of ranks and micro-steps, with and without limits of norms; and after deaths, skips and
 * failures at each moment. Nothing waits for itself in the least memory, and others are served meanwhile. test_placement
 * does this with random jobs.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define PAGE    4096u
#define STAGING 65536u
#define UNITS   4u
#define TENSORS (2 * UNITS)
#define ELEMS   (6 * PAGE)
#define RANKS   3u
#define PLENTY  (UINT64_C(8) << 20)

static const char *const options[] = {
    "--host-bytes", "32M",          "--nvme-bytes", "32M", "--page-elems", "4096", "--ring-bytes",
    "256K",         "--timeout-ms", "120000",       NULL
};

/* One page buffer, and a drive so slow that pages are in flight for a while. */
static const char *const slow[] = { "--host-bytes", "32M",          "--nvme-bytes",
                                    "32M",          "--page-elems", "4096",
                                    "--ring-bytes", "72K",          "--timeout-ms",
                                    "120000",       "--io",         "fixed",
                                    "--fixed-rate", "2M",           NULL };

/* Of 2.5 and 3.5 pages: both have elements of the third one. */
static const struct zc_tensor pair[] = {
    { .name = "a", .ndims = 2, .dims = { 80, 128 }, .muon = true },
    { .name = "b", .first = 80 * 128, .ndims = 2, .dims = { 112, 128 }, .muon = true },
};
static const struct zc_tensor vectors[] = {
    { .name = "a", .ndims = 1, .dims = { ELEMS / 2 - 128 } },
    { .name = "b", .first = ELEMS / 2 - 128, .ndims = 1, .dims = { ELEMS / 2 + 128 } },
};
/* The vector has a page of its own, and a part of a page of the matrix. */
static const struct zc_tensor mixed[] = {
    { .name = "a", .ndims = 2, .dims = { 144, 128 }, .muon = true },
    { .name = "b", .first = 144 * 128, .ndims = 1, .dims = { ELEMS - 144 * 128 } },
};
static const struct zc_tensor apart[] = {
    { .name = "a", .ndims = 2, .dims = { 96, 128 }, .muon = true },
    { .name = "b", .first = 96 * 128, .ndims = 2, .dims = { 96, 128 }, .muon = true },
};

static const struct zc_unit units[UNITS] = {
    { 0, "pair", ELEMS, ZC_BF16, ZC_F32, false, false, pair, 2 },
    { 1, "vectors", ELEMS, ZC_BF16, ZC_F32, false, false, vectors, 2 },
    { 2, "mixed", ELEMS, ZC_BF16, ZC_F32, false, false, mixed, 2 },
    { 3, "apart", ELEMS, ZC_F32, ZC_F32, false, false, apart, 2 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .momentum = 0.9, .nesterov = true }
};

static const double limits[TENSORS] = { 0, 3, 1e9, 0.25, 7, 0, 1, 2 };

struct how {
    uint64_t host_bytes; /* in addition to the least */
    enum zc_moments moments;
    unsigned world, micros;
    bool early, durable, limited;
    bool spills; /* gradients may go to NVMe: with resident parameters nothing begins early then */
    const char *const *with;
};

struct job {
    struct zi_daemon d;
    struct zi_rank r[RANKS];
    struct how how;
    struct zc_job_options o;
};

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 977) / 7;
}

static float grad(uint64_t element)
{
    return (float)(element * 2654435761u % 1009) - 504.0f;
}

static float bad(uint64_t element)
{
    return element == 5 ? INFINITY : grad(element);
}

/* ---- the job */

/* The smallest limit of the job, as a refusal names it. */
static uint64_t least_of(struct job *j, const struct zc_unit *of, unsigned n)
{
    static const char mark[] = "the smallest host_bytes_max that would work is ";
    const char *at;

    j->o.host_bytes_max = j->how.world * STAGING + 4096;
    for (unsigned r = 0; r < j->how.world; r++) {
        j->o.rank = r;
        if (zi_open(&j->r[r], &j->d, &j->o) < 0)
            fail_msg("open: %s", zc_error(j->r[r].c));
        zi_define(&j->r[r], of, n, j->how.world);
    }
    assert_int_equal(zi_ready(j->r, j->how.world), -ENOSPC);
    at = strstr(j->r[0].event_text, mark);
    assert_non_null(at);
    zi_close(j->r, j->how.world);
    return strtoull(at + strlen(mark), NULL, 10);
}

static void job_open(struct job *j, const struct how *how)
{
    uint64_t idle_host, idle_nvme;

    j->how = *how;
    j->o = (struct zc_job_options){ .name = "job",
                                    .world = how->world,
                                    .staging_bytes = STAGING,
                                    .groups = 1,
                                    .keep = true,
                                    .durable = how->durable,
                                    .early = how->early,
                                    .optimizer = ZC_MUON,
                                    .moments = how->moments,
                                    .tensor_norms = true,
                                    .offload_grad = how->spills ? ZC_NVME : ZC_HOST,
                                    .offload_param = ZC_NVME };
    zi_start(&j->d, how->with ? how->with : options);
    idle_host = zi_used(&j->d, "host");
    idle_nvme = zi_used(&j->d, "nvme");
    j->o.host_bytes_max = least_of(j, units, UNITS) + how->host_bytes;
    (void)zi_await_used(&j->d, idle_host, idle_nvme);
    zi_job(j->r, how->world, &j->d, &j->o, units, UNITS);
    assert_int_equal(j->r->place.early, how->early);
    for (unsigned r = 0; r < how->world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&j->r[r], u, value);
}

static void job_close(struct job *j)
{
    zi_close(j->r, j->how.world);
    zi_stop(&j->d);
}

static uint64_t bytes_of(struct job *j)
{
    return zi_bytes(j->r, j->how.world, units, UNITS);
}

static struct zc_step step_of(const struct job *j, uint64_t number)
{
    return (struct zc_step){
        .step = number, .scale = 0.5, .groups = groups, .ngroups = 1, .limits = j->how.limited
    };
}

static void begin_all(struct job *j, uint64_t number)
{
    struct zc_step step = step_of(j, number);

    for (unsigned i = 0; i < j->how.world; i++) {
        struct zi_rank *r = &j->r[i];

        if (j->how.limited)
            assert_int_equal(zc_step_tensors_wait(r->c, r->job.id, number, true, limits, TENSORS),
                             0);
        assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, j->how.micros), 0);
    }
}

/* One rank's slice of a unit; all micro-steps, each of which adds the same. */
static void push(struct job *j, unsigned rank, unsigned u, uint64_t step,
                 float (*g)(uint64_t element))
{
    struct zi_rank *r = &j->r[rank];
    float *staged = r->job.staging;

    for (uint32_t micro = 0; micro < j->how.micros; micro++)
        for (uint64_t at = 0, n; at < r->ranges[u].count; at += n) {
            struct zc_push p = { .shard = r->shards[u],
                                 .step = step,
                                 .micro = micro,
                                 .add = micro > 0,
                                 .dtype = ZC_F32,
                                 .first = at,
                                 .staged = staged };

            n = zb_min_u64(r->ranges[u].count - at, STAGING / sizeof(float));
            p.count = n;
            for (uint64_t i = 0; i < n; i++)
                staged[i] = g(r->ranges[u].first + at + i);
            if (zc_push_wait(r->c, &p) < 0)
                fail_msg("push: %s", zc_error(r->c));
        }
}

/* In the order of a backward pass. */
static void push_units(struct job *j, uint64_t step)
{
    for (unsigned u = UNITS; u-- > 0;)
        for (unsigned i = 0; i < j->how.world; i++)
            push(j, i, u, step, grad);
}

/* The factors of all tensors, from the sums of all ranks. */
static void factors_send(struct job *j, uint64_t number)
{
    struct zc_norm merged[TENSORS] = { 0 };
    double factors[TENSORS];

    for (unsigned i = 0; i < j->how.world; i++) {
        uint8_t sums[TENSORS][ZC_NORM_BYTES];

        assert_int_equal(zc_tensor_norms_wait(j->r[i].c, j->r[i].job.id, number, TENSORS, sums[0]),
                         0);
        for (unsigned t = 0; t < TENSORS; t++) {
            struct zc_norm one = { 0 };

            memcpy(one.sum_of_squares, sums[t], sizeof(sums[t]));
            zc_norm_merge(&merged[t], &one);
        }
    }
    for (unsigned t = 0; t < TENSORS; t++)
        factors[t] = zc_limit_factor(limits[t], 0.5 * zc_norm_value(&merged[t]));
    for (unsigned i = 0; i < j->how.world; i++)
        assert_int_equal(
            zc_step_tensors_wait(j->r[i].c, j->r[i].job.id, number, false, factors, TENSORS), 0);
}

static int step_try(struct job *j, uint64_t number, bool skip, const char **ret_text)
{
    struct zc_step step = step_of(j, number);
    struct zc_stepped stepped[RANKS];
    struct zi_call calls[RANKS];

    if (j->how.limited && !skip)
        factors_send(j, number);
    step.limits = false;
    step.factors = j->how.limited;
    step.commit = j->how.durable ? ZC_COMMIT_STEP : ZC_COMMIT_NO;
    zi_step_ask(j->r, j->how.world, &step, skip, stepped, calls);
    return zi_await_all(j->r, j->how.world, calls, ret_text);
}

static void step_all(struct job *j, uint64_t number, bool skip)
{
    const char *text = NULL;

    if (step_try(j, number, skip, &text) != 0)
        fail_msg("step %u: %s", (unsigned)number, text);
}

static uint64_t pages_of(const struct job *j)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < j->how.world; i++)
        for (unsigned u = 0; u < UNITS; u++)
            n += zb_div_up(j->r[i].ranges[u].count, PAGE);
    return n;
}

/* Waits until so many pages have been stepped early, in all. */
static void await_early(struct job *j, uint64_t pages)
{
    uint64_t begin_ns = zb_now_ns();

    while (zi_counter(j->r->c, "pages_early") < pages && zb_now_ns() - begin_ns < ZI_SOON_NS / 4)
        zi_pump(j->r, j->how.world, 1);
    assert_int_equal(zi_counter(j->r->c, "pages_early"), pages);
}

/* ---- bits */

/* A step, one that is skipped while its pages are in flight, and two more. */
static uint64_t run(const struct how *how)
{
    struct job j = { 0 };
    uint64_t before, sum;

    job_open(&j, how);
    for (uint64_t number = 1; number <= 4; number++) {
        uint64_t early = how->early ? zi_counter(j.r->c, "pages_early") : 0;
        bool skips = number == 2;

        before = bytes_of(&j);
        if (how->early)
            begin_all(&j, number);
        push_units(&j, number);
        if (how->early && how->host_bytes == 0 && !how->spills && !skips) /* all is streamed */
            await_early(&j, early + pages_of(&j));
        if (!skips && bytes_of(&j) != before)
            fail_msg("a step is visible that has not been");
        step_all(&j, number, skips);
        assert_int_equal(bytes_of(&j) == before, skips);
    }
    if (how->early && !how->spills)
        assert_true(zi_counter(j.r->c, "pages_early") > 0);
    sum = bytes_of(&j);
    job_close(&j);
    return sum;
}

static void it_changes_no_bit(void **state)
{
    static const uint64_t more[] = { 0, 100 << 10, 250 << 10 };
    static const enum zc_moments moments[] = { ZC_MOMENTS_F32, ZC_MOMENTS_BF16, ZC_MOMENTS_Q8 };

    (void)state;
    for (unsigned n = 0; n < 6; n++) {
        struct how how = { .moments = moments[n % 3],
                           .world = 1 + n % RANKS,
                           .micros = n % 2 ? 4 : 1,
                           .limited = n >= 3,
                           .host_bytes = PLENTY };
        uint64_t plain = run(&how);

        how.early = true;
        how.spills = n == 2;
        for (size_t i = 0; i < ZB_COUNT(more); i++) {
            how.host_bytes = more[i];
            how.durable = i == 1;
            how.with = n == 4 && i == 0 ? slow : NULL;
            if (run(&how) != plain)
                fail_msg(
                    "moments %d, %u ranks, %u micro-steps, limits %d, %llu bytes more: other bytes",
                    (int)how.moments, how.world, how.micros, (int)how.limited,
                    (unsigned long long)more[i]);
        }
    }
}

/* The units whose gradients came last are stepped first, each as a whole. Not those that some rank has not pushed. */
static void a_unit_waits_for_its_ranks(void **state)
{
    const struct how how = { .moments = ZC_MOMENTS_F32, .world = 2, .micros = 1, .early = true };
    struct job j = { 0 };

    (void)state;
    job_open(&j, &how);
    begin_all(&j, 1);
    for (unsigned u = UNITS; u-- > 0;)
        push(&j, 0, u, 1, grad);
    await_early(&j, 3); /* the vectors of that rank */
    zi_pump(j.r, 2, 50);
    await_early(&j, 3);
    push(&j, 1, 3, 1, grad);
    await_early(&j, 3 + 6);
    for (unsigned u = 0; u < 3; u++)
        push(&j, 1, u, 1, grad);
    await_early(&j, 4 * 6);
    step_all(&j, 1, false);
    job_close(&j);
}

/* ---- deaths */

enum moment {
    ANNOUNCED,
    HALF_PUSHED, /* no unit with matrices is complete */
    IN_FLIGHT,   /* pages wait for their matrices, or are read and written */
    STEPPED,     /* all of them early */
    ASKED,       /* the step runs */
    MOMENTS
};

static void until(struct job *j, enum moment moment, struct zc_stepped *stepped,
                  struct zi_call *calls)
{
    struct zc_step step = step_of(j, 2);

    begin_all(j, 2);
    for (unsigned u = UNITS; u-- > 0 && moment > ANNOUNCED;)
        for (unsigned i = 0; i < (moment == HALF_PUSHED ? 1 : 2); i++)
            push(j, i, u, 2, grad);
    if (moment == STEPPED)
        await_early(j, 2 * pages_of(j));
    if (moment == ASKED)
        zi_step_ask(j->r, 2, &step, false, stepped, calls);
    if (moment == ASKED)
        zi_pump(j->r, 2, 20);
}

/* The second rank dies at this moment of step 2, or both, or the daemon does. The step in progress is lost, unless it
 * runs, and nothing else; if the daemon dies, what was not committed. */
static void death(enum moment moment, enum zi_dies dies, uint64_t want)
{
    const struct how how = { .moments = ZC_MOMENTS_F32,
                             .world = 2,
                             .micros = 1,
                             .early = true,
                             .durable = dies == ZI_DAEMON,
                             .with =
                                 dies != ZI_DAEMON && /* whose job is durable: not on that drive */
                                         (moment == IN_FLIGHT || moment == ASKED)
                                     ? slow
                                     : NULL };
    bool stepped = moment == ASKED && dies != ZI_DAEMON;
    struct zc_stepped replies[RANKS];
    struct zi_call calls[RANKS];
    struct job j = { 0 };
    uint64_t before;

    job_open(&j, &how);
    begin_all(&j, 1);
    push_units(&j, 1);
    await_early(&j, pages_of(&j));
    step_all(&j, 1, false);
    before = bytes_of(&j);
    until(&j, moment, replies, calls);
    zi_death(&j.d, j.r, &j.o, units, UNITS, dies, options);
    if (!stepped && bytes_of(&j) != before)
        fail_msg("moment %d, %d: other bytes after the death", (int)moment, (int)dies);
    if (!stepped) {
        begin_all(&j, 2);
        push_units(&j, 2);
        step_all(&j, 2, false);
    }
    if (bytes_of(&j) != want)
        fail_msg("moment %d, %d: other bytes after the step", (int)moment, (int)dies);
    job_close(&j);
}

static uint64_t two_steps(bool early)
{
    const struct how how = { .moments = ZC_MOMENTS_F32, .world = 2, .micros = 1, .early = early };
    struct job j = { 0 };
    uint64_t want;

    job_open(&j, &how);
    for (uint64_t number = 1; number <= 2; number++) {
        push_units(&j, number);
        step_all(&j, number, false);
    }
    want = bytes_of(&j);
    job_close(&j);
    return want;
}

static void deaths(void **state)
{
    uint64_t want = two_steps(false);

    (void)state;
    for (enum moment m = 0; m < MOMENTS; m++)
        for (enum zi_dies dies = 0; dies < ZI_DIES; dies++)
            death(m, dies, want);
}

/* ---- steps that do not come */

/* A step is given up, skipped, or abandoned while its pages are in flight, and made then, or again. */
static void it_is_dropped(void **state)
{
    const struct how how = {
        .moments = ZC_MOMENTS_F32, .world = 2, .micros = 1, .early = true, .with = slow
    };
    uint64_t want = two_steps(false), before;
    struct zc_stepped stepped;
    struct job j = { 0 };
    struct zc_step hasty;

    (void)state;
    job_open(&j, &how);
    begin_all(&j, 1);
    push_units(&j, 1);
    hasty = step_of(&j, 1);
    hasty.timeout_ms = 1;
    assert_int_equal(zc_step_wait(j.r->c, j.r->job.id, &hasty, &stepped), -ETIMEDOUT);
    assert_int_equal(zi_counter(j.r->c, "pages_undone"), 0);
    step_all(&j, 1, false); /* with what was begun */
    before = bytes_of(&j);
    begin_all(&j, 2);
    push_units(&j, 2);
    assert_int_equal(zc_abandon_wait(j.r->c, j.r->job.id, 2), 0);
    assert_int_equal(bytes_of(&j), before);
    begin_all(&j, 2);
    push_units(&j, 2);
    step_all(&j, 2, false);
    assert_int_equal(bytes_of(&j), want);
    begin_all(&j, 3);
    for (unsigned u = UNITS; u-- > 0;)
        for (unsigned i = 0; i < 2; i++)
            push(&j, i, u, 3, bad);
    step_all(&j, 3, true);
    assert_int_equal(bytes_of(&j), want);
    job_close(&j);
}

/* The daemon is told to end while pages wait for their matrices. */
static void the_daemon_ends(void **state)
{
    const struct how how = {
        .moments = ZC_MOMENTS_F32, .world = 2, .micros = 1, .early = true, .with = slow
    };
    struct job j = { 0 };

    (void)state;
    job_open(&j, &how);
    begin_all(&j, 1);
    push_units(&j, 1);
    zi_term(&j.d);
    zi_ended(&j.d);
    for (unsigned i = 0; i < 2; i++)
        zc_close(j.r[i].c);
    zi_clean(&j.d);
}

/* All of the data file is overwritten, so a page fails: the step fails, and can be skipped. */
static void a_page_fails(void **state)
{
    const struct how how = { .moments = ZC_MOMENTS_F32, .world = 2, .micros = 1, .early = true };
    static uint8_t garbage[1 << 20];
    const char *text = NULL;
    struct job j = { 0 };
    char path[128];
    int fd;

    (void)state;
    job_open(&j, &how);
    (void)snprintf(path, sizeof(path), "%s/pages.zsd", j.d.data);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    memset(garbage, 0x5a, sizeof(garbage));
    for (off_t at = ZI_DATA_START; at < (off_t)(4 << 20); at += (off_t)sizeof(garbage))
        assert_int_equal(pwrite(fd, garbage, sizeof(garbage), at), sizeof(garbage));
    (void)close(fd);
    begin_all(&j, 1);
    push_units(&j, 1);
    while (zi_counter(j.r->c, "pages_corrupt") == 0) /* a page that fails later ends the job */
        zi_pump(j.r, 2, 1);
    assert_int_equal(step_try(&j, 1, false, &text), -EBADMSG);
    begin_all(&j, 1);
    push_units(&j, 1);
    step_all(&j, 1, true);
    job_close(&j);
}

/* ---- others meanwhile */

static const struct zc_tensor large = {
    .name = "m", .ndims = 2, .dims = { 768, 1024 }, .muon = true
};
static const struct zc_unit large_units[] = {
    { 0, "large", 768 * 1024, ZC_BF16, ZC_F32, false, false, &large, 1 },
};

/* While a large matrix is orthogonalized early, another job is served: it fetches, pushes and steps. */
static void others_are_served(void **state)
{
    struct how how = { .moments = ZC_MOMENTS_F32, .world = 1, .micros = 1 };
    struct zc_stepped stepped;
    struct job j = { 0 }, more = { .how = how };
    struct zi_rank *r = more.r;
    struct zc_step step;
    unsigned served = 0;

    (void)state;
    job_open(&j, &how);
    step = step_of(&j, 1);
    more.d = j.d;
    more.o = j.o;
    more.o.name = "large";
    more.o.early = true;
    more.o.host_bytes_max = least_of(&more, large_units, 1);
    zi_job(r, 1, &j.d, &more.o, large_units, 1);
    assert_true(r->place.early);
    zi_write_all(r, 0, value);
    assert_int_equal(zc_step_begin_wait(r->c, r->job.id, &step, 1), 0);
    zi_push_all(r, 0, 1, grad);
    while (zi_counter(r->c, "pages_early") == 0 && served < 1000) {
        push_units(&j, served + 1);
        step_all(&j, served + 1, false);
        served++;
    }
    assert_true(served > 0 && served < 1000);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &step, &stepped), 0);
    zi_close(r, 1);
    job_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(it_changes_no_bit, zi_teardown),
        cmocka_unit_test_teardown(a_unit_waits_for_its_ranks, zi_teardown),
        cmocka_unit_test_teardown(deaths, zi_teardown),
        cmocka_unit_test_teardown(it_is_dropped, zi_teardown),
        cmocka_unit_test_teardown(the_daemon_ends, zi_teardown),
        cmocka_unit_test_teardown(a_page_fails, zi_teardown),
        cmocka_unit_test_teardown(others_are_served, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
