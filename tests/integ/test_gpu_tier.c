/*
 * The GPU tier, on the emulated GPU: optimizer state moves between NVMe, host memory and the GPU
 * with the steps, and is stepped where it is. Whatever moves, a job has the same bytes as one whose
 * state never moved: the same training runs first in a daemon without a GPU. Then the GPU fails at
 * each of its works in turn.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"

#define STEPS    14u
#define PLENTY   (UINT64_C(32) << 20)
#define GPU      "8M"
#define GPU_SIZE (UINT64_C(8) << 20)
#define OPTIONS  24

static struct sv_dump want[STEPS + 1]; /* after each step */

/* The options of every test here, with this GPU. */
static const char *const *options_with(const char *gpu, const char *nvme)
{
    static const char *options[OPTIONS];
    unsigned n = 0;

    for (; sv_options[n]; n++)
        options[n] = n == SV_OPTION_NVME && nvme ? nvme : sv_options[n];
    assert_true(n + 5 <= OPTIONS);
    options[n++] = "--gpu-bytes";
    options[n++] = GPU;
    options[n++] = "--gpu";
    options[n++] = gpu;
    options[n] = NULL;
    return options;
}

#define EMULATED "emulated:16M:::4K"

/* ---- checks */

static uint64_t on_gpu(struct zc_client *c)
{
    uint64_t gpu, nvme;

    zi_where(c, sv_name, &gpu, &nvme);
    /* allocated before the state comes, freed after it has left */
    assert_true(zi_job_row(c, sv_name).gpu_bytes >= gpu);
    return gpu;
}

/* ---- training */

static void step(struct zi_rank *ranks, uint64_t number, enum zc_commit commit)
{
    sv_step(ranks, 2, number, commit);
    sv_dump_same("a step", &want[number], ranks, 2);
}

/* Steps until all of its state is on the GPU; returns the number of the last step. */
static uint64_t steps_until_up(struct zc_client *c, struct zi_rank *ranks, uint64_t number,
                               uint64_t all)
{
    for (unsigned i = 0; on_gpu(c) < all; i++) {
        assert_true(number < STEPS && i < 4);
        (void)poll(NULL, 0, 50); /* a thread allocates memory: not every step finds it ready */
        number++;
        step(ranks, number, number % 2 ? ZC_COMMIT_NO : ZC_COMMIT_STEP);
    }
    return number;
}

static void begin(struct zi_rank *ranks, struct zi_daemon *d, const struct zc_job_options *o,
                  const char *gpu, const char *nvme)
{
    struct zc_job_options job = *o;

    job.world = 2;
    zi_start(d, options_with(gpu, nvme));
    zi_job(ranks, 2, d, &job, sv_units, SV_UNITS);
    sv_fill(ranks, 2);
}

static uint64_t state_bytes; /* of the job */

static int setup(void **state)
{
    (void)state;
    state_bytes = sv_want(want, STEPS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sv_want_free(want, STEPS);
    return 0;
}

/* ---- the tests */

/* All state goes up to the GPU, and its host memory is freed; then down to NVMe, to host memory,
 * and up again. */
static void up_and_down(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    struct zc_tier_row gpu;
    uint64_t k, low, nvme, up;

    (void)state;
    begin(ranks, &d, &o, EMULATED, NULL);
    c = zi_client(&d);
    gpu = zi_tier(c, "gpu");
    assert_int_equal(gpu.state, 0);
    assert_int_equal(gpu.stranded, 0);
    assert_int_equal(gpu.device_free, (UINT64_C(16) << 20) - gpu.rings);
    assert_int_equal(gpu.target, GPU_SIZE);
    step(ranks, 1, ZC_COMMIT_NO);
    assert_int_equal(zi_tier(c, "host").state, state_bytes);
    k = steps_until_up(c, ranks, 1, state_bytes);
    assert_int_equal(zi_tier(c, "gpu").state, state_bytes);
    assert_true(on_gpu(c) == state_bytes);
    zi_await_target(c, "host");
    assert_int_equal(zi_tier(c, "host").state, 0);
    zi_fsck_online(c);
    step(ranks, ++k, ZC_COMMIT_NO);
    step(ranks, ++k, ZC_COMMIT_STEP);

    /* no room in host memory, and then none on the GPU: the state goes to NVMe */
    assert_int_equal(zc_tier_set_wait(c, "host", zi_least(c, "host")), 0);
    low = zi_least(c, "gpu");
    assert_int_equal(low, zi_tier(c, "gpu").rings);
    assert_int_equal(zc_tier_set_wait(c, "gpu", low - 1), -ENOSPC);
    assert_int_equal(zc_tier_set_wait(c, "gpu", UINT64_C(17) << 20), -ENOSPC);
    assert_int_equal(zi_tier(c, "gpu").target, GPU_SIZE);
    assert_int_equal(zc_tier_set_wait(c, "gpu", low), 0);
    assert_int_equal(zi_tier(c, "gpu").moving, state_bytes);
    sv_dump_same("nothing has moved yet", &want[k], ranks, 2);
    step(ranks, ++k, ZC_COMMIT_NO);
    zi_await_target(c, "gpu");
    zi_where(c, sv_name, &up, &nvme);
    assert_true(up == 0 && nvme == state_bytes);
    zi_fsck_online(c);

    /* half of it goes up, from NVMe; then some into host memory, so that it is in all three */
    assert_int_equal(zc_tier_set_wait(c, "gpu", low + state_bytes / 2), 0);
    (void)poll(NULL, 0, 50);
    step(ranks, ++k, ZC_COMMIT_STEP);
    step(ranks, ++k, ZC_COMMIT_NO);
    assert_true(on_gpu(c) > 0 && on_gpu(c) <= state_bytes / 2);
    assert_int_equal(zc_tier_set_wait(c, "host", zi_least(c, "host") + state_bytes / 4), 0);
    (void)poll(NULL, 0, 50);
    step(ranks, ++k, ZC_COMMIT_NO);
    step(ranks, ++k, ZC_COMMIT_STEP);
    assert_true(zi_tier(c, "host").state > 0);
    zi_where(c, sv_name, &up, &nvme);
    assert_true(up > 0 && nvme > 0 && up + nvme < state_bytes);
    zi_fsck_online(c);

    /* from the GPU into host memory, as much as is available by then */
    assert_int_equal(zc_tier_set_wait(c, "host", PLENTY), 0);
    assert_int_equal(zc_tier_set_wait(c, "gpu", low), 0);
    step(ranks, ++k, ZC_COMMIT_NO);
    zi_await_target(c, "gpu");
    assert_int_equal(on_gpu(c), 0);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* The daemon is killed: the last commit, whose state was on the GPU, is loaded again, with and
 * without a GPU. */
static void killed(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t k;

    (void)state;
    begin(ranks, &d, &o, EMULATED, NULL);
    c = zi_client(&d);
    step(ranks, 1, ZC_COMMIT_NO);
    k = steps_until_up(c, ranks, 1, state_bytes);
    step(ranks, ++k, ZC_COMMIT_STEP);
    step(ranks, k + 1, ZC_COMMIT_NO);
    zi_kill(&d);
    zc_close(c);
    sv_hang_up(ranks, 2);
    assert_int_equal(zi_fsck(&d), 0);
    zi_start_again(&d, sv_options);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, k);
    sv_dump_same("after the kill", &want[k], ranks, 2);
    step(ranks, ++k, ZC_COMMIT_STEP);
    zi_close(ranks, 2);
    zi_end(&d); /* this commits */
    zi_start_again(&d, options_with(EMULATED, NULL));
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, k);
    c = zi_client(&d);
    k = steps_until_up(c, ranks, k, state_bytes);
    sv_hang_up(ranks, 2); /* its ranks die: the daemon keeps the job, and commits it at the end */
    assert_int_equal(on_gpu(c), state_bytes);
    zc_close(c);
    zi_end(&d);
    zi_start_again(&d, sv_options);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, k);
    sv_dump_same("after the end", &want[k], ranks, 2);
    zi_close(ranks, 2);
    zi_stop(&d);
}

/* State that must be in memory keeps its place there, with and without an NVMe tier. */
static void bound_to_memory(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct zc_job_options o = sv_job(0);
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct zc_client *c;
        uint64_t k;

        (void)state;
        o.offload_optimizer = ZC_HOST;
        o.keep = o.durable = false;
        begin(ranks, &d, &o, EMULATED, i == 0 ? NULL : "0");
        c = zi_client(&d);
        for (k = 1; k < 3; k++)
            step(ranks, k, ZC_COMMIT_NO);
        for (unsigned n = 0; on_gpu(c) < state_bytes; n++) {
            assert_true(n < 4);
            (void)poll(NULL, 0, 50);
            step(ranks, k++, ZC_COMMIT_NO);
        }
        assert_int_equal(zi_tier(c, "host").state, state_bytes);
        step(ranks, k++, ZC_COMMIT_NO);
        assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu")), 0);
        step(ranks, k++, ZC_COMMIT_NO);
        zi_await_target(c, "gpu");
        assert_int_equal(on_gpu(c), 0);
        step(ranks, k++, ZC_COMMIT_NO);
        zi_close(ranks, 2);
        zc_close(c);
        zi_stop(&d);
    }
}

static void says(struct zc_client *c, const char *part)
{
    struct zc_tier_row gpu = zi_tier(c, "gpu");

    if (!strstr(gpu.detail, part))
        fail_msg("'%s' is not in '%s'", part, gpu.detail);
}

/* Host memory that pages are copied through is pinned: page buffers from the start, a job's memory
 * from when its first state goes up until the job ends. If it cannot be pinned, that is reported,
 * and the results are the same. */
static void host_memory_is_pinned(void **state)
{
    static const struct {
        const char *name;
        bool buffers, job; /* whether they are pinned */
    } rows[] = {
        { EMULATED, true, true },
        { "emulated:16M:::4K:1280K", true, false },
        { "emulated:16M:::4K:4K", false, false },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zc_job_options o = sv_job(0);
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct zc_client *c;
        char buffers[64], none[64];
        uint64_t k;

        o.keep = o.durable = false;
        o.world = 2;
        zi_start(&d, options_with(rows[i].name, NULL));
        c = zi_client(&d);
        (void)snprintf(none, sizeof(none), " %s of host memory pinned", zb_size_text(0).s);
        (void)snprintf(buffers, sizeof(buffers), " %s of host memory pinned",
                       zb_size_text(zi_tier(c, "host").rings).s);
        says(c, rows[i].buffers ? buffers : none);
        zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
        sv_fill(ranks, 2);
        step(ranks, 1, ZC_COMMIT_NO);
        for (k = 2; on_gpu(c) < state_bytes; k++) {
            assert_true(k < STEPS);
            (void)poll(NULL, 0, 50);
            step(ranks, k, ZC_COMMIT_NO);
        }
        step(ranks, k, ZC_COMMIT_NO);
        assert_int_equal(!strstr(zi_tier(c, "gpu").detail, "; not all of it: "), rows[i].job);
        assert_int_equal(!strstr(zi_tier(c, "gpu").detail, rows[i].buffers ? buffers : none),
                         rows[i].job);
        zi_close(ranks, 2);
        for (unsigned waited = 0; zi_tier(c, "host").state > 0 || zi_tier(c, "gpu").state > 0;
             waited++) {
            assert_true(waited < ZI_WAIT_MS / 10);
            (void)poll(NULL, 0, 10);
        }
        says(c, rows[i].buffers ? buffers : none);
        zc_close(c);
        zi_stop(&d);
    }
}

/* Two jobs share the GPU; when one ends, the other gets all of it. */
static void shared(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank a[2], b[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t k = 1, low;

    (void)state;
    begin(a, &d, &o, EMULATED, "48M");
    c = zi_client(&d);
    low = zi_least(c, "gpu");
    sv_name = "b";
    sv_open(b, 2, &d, 0);
    sv_name = "job";
    assert_int_equal(zc_tier_set_wait(c, "gpu", low + state_bytes), 0);
    for (; k <= 4; k++) {
        step(a, k, ZC_COMMIT_NO);
        step(b, k, ZC_COMMIT_STEP);
        (void)poll(NULL, 0, 50);
    }
    assert_true(on_gpu(c) > 0 && on_gpu(c) < state_bytes);
    sv_name = "b";
    assert_true(on_gpu(c) > 0 && on_gpu(c) < state_bytes);
    sv_name = "job";
    zi_close(b, 2);
    assert_int_equal(zc_job_destroy_wait(c, "b"), 0);
    (void)steps_until_up(c, a, k - 1, state_bytes);
    zi_close(a, 2);
    assert_int_equal(zc_job_destroy_wait(c, "job"), 0);
    for (unsigned waited = 0; zi_tier(c, "gpu").state > 0; waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        (void)poll(NULL, 0, 10);
    }
    assert_int_equal(zi_tier(c, "gpu").device_free, (UINT64_C(16) << 20) - zi_tier(c, "gpu").rings);
    zc_close(c);
    zi_stop(&d);
}

/* Values that are written while the state is on the GPU go there: here each first moment becomes
 * the second. */
static void values_are_written(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    begin(ranks, &d, &o, EMULATED, NULL);
    c = zi_client(&d);
    step(ranks, 1, ZC_COMMIT_NO);
    (void)steps_until_up(c, ranks, 1, state_bytes);
    for (unsigned r = 0; r < 2; r++)
        for (unsigned u = 0; u < SV_UNITS; u++) {
            uint64_t shard = ranks[r].shards[u], count = ranks[r].ranges[u].count;
            void *staged = ranks[r].job.staging;
            float *was;

            if (!shard || sv_units[u].frozen)
                continue;
            was = malloc(count * sizeof(float));
            assert_non_null(was);
            assert_int_equal(zc_read_wait(ranks[r].c, shard, ZC_EXP_AVG_SQ, 0, count, staged), 0);
            memcpy(was, staged, count * sizeof(float));
            assert_int_equal(zc_write_wait(ranks[r].c, shard, ZC_EXP_AVG, 0, count, staged), 0);
            for (enum zc_what what = ZC_EXP_AVG; what <= ZC_EXP_AVG_SQ; what++) {
                memset(staged, 0, count * sizeof(float));
                assert_int_equal(zc_read_wait(ranks[r].c, shard, what, 0, count, staged), 0);
                assert_memory_equal(staged, was, count * sizeof(float));
            }
            free(was);
        }
    assert_int_equal(on_gpu(c), state_bytes);
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

/* ---- the device fails */

/* Makes one step; false: it failed, with the error message of one of the ranks. */
static bool step_try(struct zi_rank *ranks, uint64_t number, char *text, size_t size)
{
    struct zc_step step = { .step = number,
                            .scale = 1,
                            .groups = sv_groups,
                            .ngroups = 1,
                            .commit = ZC_COMMIT_STEP,
                            .timeout_ms = 120000 };
    struct zc_stepped stepped[2];
    struct zi_call calls[2];
    const char *why;
    int rc;

    sv_push(ranks, 2, number);
    zi_step_ask(ranks, 2, &step, false, stepped, calls);
    rc = zi_await_all(ranks, 2, calls, &why);
    if (rc < 0)
        (void)snprintf(text, size, "%s", why);
    assert_true(rc == 0 || rc == -EIO);
    return rc == 0;
}

/* The device fails at this work: the job resumes from its last commit, and trains on without the
 * GPU.
 */
static void fail_at(unsigned works)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    char gpu[64], text[512] = "";
    uint64_t k = 1;
    bool failed = false;

    (void)snprintf(gpu, sizeof(gpu), "emulated:16M::%u:4K", works);
    begin(ranks, &d, &o, gpu, NULL);
    c = zi_client(&d);
    for (; k <= 5 && !failed; k += !failed) {
        failed = !step_try(ranks, k, text, sizeof(text));
        if (k == 1)
            (void)poll(NULL, 0, 20); /* its state goes up with the next step */
    }
    if (!failed) { /* or a failure that lost no data */
        sv_hang_up(ranks, 2);
        zc_close(c);
        zi_end(&d);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 5);
        sv_dump_same("in the end", &want[5], ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        return;
    }
    if (!strstr(text, "GPU"))
        fail_msg("the message does not name the GPU: %s", text);
    assert_non_null(strstr(zi_tier(c, "gpu").detail, "failed: "));
    sv_hang_up(ranks, 2);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, k - 1);
    sv_dump_same("from the commit", &want[k - 1], ranks, 2);
    for (; k <= 6; k++)
        step(ranks, k, ZC_COMMIT_STEP);
    assert_int_equal(on_gpu(c), 0);
    assert_int_equal(zc_tier_set_wait(c, "gpu", GPU_SIZE), -EIO);
    zi_fsck_online(c);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

static void the_device_fails(void **state)
{
    const char *text = getenv("ZSHARD_STRIDE");
    unsigned stride = text && *text ? (unsigned)strtoul(text, NULL, 10) : 11, works = 4;
    unsigned most = 4 + 24 + 5 * 16 * 8; /* lanes, runs, and works of pages */

    (void)state;
    for (; works < most; works += stride)
        fail_at(works);
}

/* A job that does not step is told, too; one without data on the GPU does not notice. */
static void others_hear(void **state)
{
    struct zc_job_options o = sv_job(0);
    struct zi_rank a[2], b[2], e;
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    char text[512] = "";
    uint64_t k = 1, ka;

    (void)state;
    begin(b, &d, &o, "emulated:16M::1100:4K", "48M");
    c = zi_client(&d);
    for (; k <= 2; k++)
        step(b, k, ZC_COMMIT_STEP);
    k = steps_until_up(c, b, 2, state_bytes);
    step(b, ++k, ZC_COMMIT_STEP);
    o.name = "e";
    o.world = 1;
    o.keep = o.durable = false;
    zi_job(&e, 1, &d, &o, sv_units, SV_UNITS);
    sv_fill(&e, 1);
    sv_step(&e, 1, 1, ZC_COMMIT_NO); /* its state is not there before its second step */
    sv_name = "a";
    sv_open(a, 2, &d, 0);
    sv_name = "job";
    for (ka = 1; ka <= STEPS && step_try(a, ka, text, sizeof(text)); ka++)
        ;
    assert_true(ka <= STEPS);
    for (unsigned waited = 0; b[0].job_failed == 0 || b[1].job_failed == 0; waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        zi_pump(b, 2, 10);
    }
    if (!strstr(b[0].event_text, "was on the GPU") || b[0].event_code != -EIO)
        fail_msg("%d, %s", b[0].event_code, b[0].event_text);
    sv_step(&e, 1, 2, ZC_COMMIT_NO);
    sv_dump_same("who had nothing there", &want[2], &e, 1);
    assert_int_equal(e.job_failed, 0);
    sv_hang_up(a, 2);
    sv_hang_up(b, 2);
    assert_int_equal(sv_attach(b, 2, &d, 0, true, NULL), 0);
    assert_int_equal(b[0].place.iterations, k);
    sv_dump_same("from the commit", &want[k], b, 2);
    zi_close(b, 2);
    zi_close(&e, 1);
    zc_close(c);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(up_and_down, zi_teardown),
        cmocka_unit_test_teardown(killed, zi_teardown),
        cmocka_unit_test_teardown(bound_to_memory, zi_teardown),
        cmocka_unit_test_teardown(host_memory_is_pinned, zi_teardown),
        cmocka_unit_test_teardown(shared, zi_teardown),
        cmocka_unit_test_teardown(values_are_written, zi_teardown),
        cmocka_unit_test_teardown(others_hear, zi_teardown),
        cmocka_unit_test_teardown(the_device_fails, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
