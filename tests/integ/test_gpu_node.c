/*
 * A node of eight GPUs, emulated: state and parameters of each rank are on its own GPU, and on no
 * other. Whatever is where, a job has the same bytes as one whose state never moved (saved.h): the
 * same training runs first in a daemon without a GPU. Then one of the GPUs fails, and the others do
 * not notice.
 */
#include "tests/integ/gpu_map.h"
#include "tests/integ/saved.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/gpu.h"

#define STEPS    8u
#define GPUS     8u
#define OPTIONS  24
#define EMULATED "emulated*8:16M:::4K"

static struct sv_dump want[STEPS + 1]; /* after each step */
static uint64_t state_bytes;           /* of the job */

static const char *const *options_with(const char *gpu)
{
    static const char *options[OPTIONS];
    unsigned n = 0;

    for (; sv_options[n]; n++)
        options[n] = sv_options[n];
    assert_true(n + 5 <= OPTIONS);
    options[n++] = "--gpu-bytes";
    options[n++] = "8M";
    options[n++] = "--gpu";
    options[n++] = gpu;
    options[n] = NULL;
    return options;
}

/* ---- ranks, each on a GPU of its own choice */

/* The id of a device, as a rank that computes there says it. */
static const char *id_of(unsigned g)
{
    static char ids[GPUS + 1][24];

    (void)snprintf(ids[g], sizeof(ids[g]), g > 0 ? "emulated-%u" : "emulated", g);
    return ids[g];
}

/* gpus[r]: the device of rank r; NULL: they say none. */
static void node_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
                      const unsigned *gpus, bool attach)
{
    struct zc_job_options o = sv_job(0);

    o.world = world;
    o.attach = attach;
    for (o.rank = 0; o.rank < world; o.rank++) {
        o.takeover = attach && o.rank == 0;
        o.epoch = attach && o.rank > 0 ? ranks[0].job.epoch : 0;
        o.device = gpus ? id_of(gpus[o.rank]) : NULL;
        if (zi_open(&ranks[o.rank], d, &o) < 0)
            fail_msg("rank %u: %s", o.rank, zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], sv_units, SV_UNITS, world);
    }
    assert_int_equal(zi_ready(ranks, world), 0);
    if (!attach)
        sv_fill(ranks, world);
}

static struct zc_tier_row tier(struct zc_client *c, unsigned g)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "gpu%u", g);
    return zi_tier(c, name);
}

/* Bytes of parameters on all GPUs. */
static uint64_t params_on_all(struct zc_client *c)
{
    uint64_t bytes = 0;

    for (unsigned g = 0; g < GPUS; g++)
        bytes += tier(c, g).params;
    return bytes;
}

/* Each GPU has what the shards of its ranks have there, no more and no less; and none has more than
 * its budget (zi_tier() checks that). Returns the bytes on all. */
static uint64_t each_on_its_own(struct zc_client *c, unsigned world, const unsigned *gpus)
{
    struct zc_shard_row *rows = NULL;
    uint64_t on[GPUS] = { 0 }, all = 0;
    size_t n = 0;

    assert_int_equal(zc_list_wait(c, sv_name, &rows, &n), 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(rows[i].rank < world);
        on[gpus[rows[i].rank]] += rows[i].bytes - rows[i].host_bytes - rows[i].nvme_bytes;
    }
    zc_rows_free(rows);
    for (unsigned g = 0; g < GPUS; g++) {
        const struct zc_tier_row row = tier(c, g);

        if (row.state + row.params != on[g])
            fail_msg("gpu%u has %llu and %llu bytes, its ranks %llu", g,
                     (unsigned long long)row.state, (unsigned long long)row.params,
                     (unsigned long long)on[g]);
        all += on[g];
    }
    return all;
}

static void step(struct zi_rank *ranks, unsigned world, uint64_t number, enum zc_commit commit)
{
    sv_step(ranks, world, number, commit);
    sv_dump_same("a step", &want[number], ranks, world);
}

/* Steps until that much is on the GPUs; returns the number of the last step. */
static uint64_t steps_until_up(struct zc_client *c, struct zi_rank *ranks, unsigned world,
                               uint64_t number, uint64_t bytes)
{
    uint64_t gpu, nvme;

    for (unsigned i = 0;; i++) {
        zi_where(c, sv_name, &gpu, &nvme);
        if (gpu == bytes)
            return number;
        assert_true(gpu < bytes && number < STEPS && i < 5);
        (void)poll(NULL, 0, 50); /* threads allocate memory: not every step finds it ready */
        number++;
        step(ranks, world, number, number % 2 ? ZC_COMMIT_NO : ZC_COMMIT_STEP);
    }
}

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

/* A permutation, so that a rank's number is not that of its GPU; several ranks on one; and fewer. */
static const struct {
    unsigned world;
    bool said;
    unsigned gpus[GPUS];
} rows[] = {
    { 8, true, { 3, 0, 7, 1, 6, 2, 5, 4 } },
    { 8, false, { 0, 1, 2, 3, 4, 5, 6, 7 } }, /* by place */
    { 2, false, { 0, 4 } },
    { 2, true, { 6, 6 } },
    { 4, true, { 5, 5, 2, 5 } },
};

static void state_of_each(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        const unsigned *gpus = rows[i].gpus, world = rows[i].world;
        struct zi_rank ranks[GPUS];
        struct zi_daemon d = { 0 };
        struct zc_client *c;
        uint64_t k;

        zi_start(&d, options_with(EMULATED));
        c = zi_client(&d);
        node_open(ranks, world, &d, rows[i].said ? gpus : NULL, false);
        step(ranks, world, 1, ZC_COMMIT_NO);
        k = steps_until_up(c, ranks, world, 1, state_bytes);
        assert_int_equal(each_on_its_own(c, world, gpus), state_bytes);
        step(ranks, world, ++k, ZC_COMMIT_STEP);
        zi_fsck_online(c);
        zi_close(ranks, world);
        zc_close(c);
        zi_stop(&d);
    }
}

/* A budget is that of one GPU: its state leaves, and that of the others stays. */
static void budgets(void **state)
{
    const unsigned gpus[] = { 0, 1, 2, 3 };
    struct zi_rank ranks[4];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t k, was[GPUS];

    (void)state;
    zi_start(&d, options_with(EMULATED));
    c = zi_client(&d);
    assert_int_equal(zc_tier_set_wait(c, "gpu", UINT64_C(4) << 20), -EINVAL);
    assert_non_null(strstr(zc_error(c), "gpu0 to gpu7"));
    assert_int_equal(zc_tier_set_wait(c, "gpu8", UINT64_C(4) << 20), -EINVAL);
    node_open(ranks, 4, &d, gpus, false);
    step(ranks, 4, 1, ZC_COMMIT_NO);
    k = steps_until_up(c, ranks, 4, 1, state_bytes);
    for (unsigned g = 0; g < GPUS; g++)
        was[g] = tier(c, g).state;
    assert_true(was[2] > 0);
    assert_int_equal(zc_tier_set_wait(c, "gpu2", zi_least(c, "gpu2")), 0);
    step(ranks, 4, ++k, ZC_COMMIT_STEP);
    zi_await_target(c, "gpu2");
    for (unsigned g = 0; g < GPUS; g++)
        assert_int_equal(tier(c, g).state, g == 2 ? 0 : was[g]);
    assert_int_equal(each_on_its_own(c, 4, gpus), state_bytes - was[2]);
    assert_int_equal(zc_tier_set_wait(c, "gpu2", UINT64_C(8) << 20), 0);
    k = steps_until_up(c, ranks, 4, k, state_bytes);
    zi_close(ranks, 4);
    zc_close(c);
    zi_stop(&d);
}

/* Maps the memory of a rank's own GPU, and compares its shards there with the values. */
static void mapped_same(struct zi_rank *r, unsigned g, struct sv_dump *was, uint64_t version)
{
    struct zk_gpu_stream *stream = NULL;
    struct zk_gpu *device = NULL;
    struct zk_gpu_mem *mem;
    struct zb_err err = { 0 };
    char name[32];

    (void)snprintf(name, sizeof(name), "emulated@%u:16M:::4K", g);
    assert_int_equal(zk_gpu_open(name, 0, &device, &err), 0);
    assert_string_equal(zk_gpu_info(device)->id, id_of(g));
    assert_int_equal(zk_gpu_stream_new(device, &stream, &err), 0);
    mem = gpu_map(device, r);
    for (unsigned u = 0; u < SV_UNITS; u++) {
        size_t size = sv_units[u].dtype == ZC_F32 ? 4 : 2;
        struct zc_view view;
        char *bytes;

        if (!r->shards[u])
            continue;
        if (zc_fetch_wait(r->c, &r->shards[u], 1, version, ZI_FETCH_MS, &view) < 0)
            fail_msg("fetch: %s", zc_error(r->c));
        bytes = malloc(view.bytes);
        assert_non_null(bytes);
        assert_int_equal(zk_gpu_copy(stream, ZK_GPU_TO_HOST, bytes,
                                     (char *)zk_gpu_addr(mem) + view.offset, view.bytes, &err),
                         0);
        assert_int_equal(zk_gpu_stream_sync(stream, &err), 0);
        if (memcmp(bytes, (char *)was->values[u][0] + r->ranges[u].first * size, view.bytes) != 0)
            fail_msg("unit %u differs on gpu%u", u, g);
        free(bytes);
        assert_int_equal(zc_release(r->c, &r->shards[u], 1), 0);
    }
    zk_gpu_free(mem);
    zk_gpu_stream_free(stream);
    zk_gpu_close(device);
}

static void params_of_each(void **state)
{
    const unsigned *gpus = rows[0].gpus, others[] = { 0, 1, 2, 3, 4, 5, 6, 8 };
    struct zi_rank ranks[GPUS];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    struct zc_view view;
    uint64_t k, params;

    (void)state;
    sv_param = ZC_GPU;
    zi_start(&d, options_with(EMULATED));
    c = zi_client(&d);
    node_open(ranks, GPUS, &d, gpus, false);
    params = params_on_all(c);
    assert_true(params > 0);
    for (unsigned r = 0; r < GPUS; r++)
        assert_int_equal(ranks[r].place.gpu_params, tier(c, gpus[r]).params);
    assert_int_equal(each_on_its_own(c, GPUS, gpus), params);
    step(ranks, GPUS, 1, ZC_COMMIT_NO);
    k = steps_until_up(c, ranks, GPUS, 1, state_bytes + params);
    assert_int_equal(each_on_its_own(c, GPUS, gpus), state_bytes + params);
    for (unsigned r = 0; r < GPUS; r++)
        mapped_same(&ranks[r], gpus[r], &want[k], k);
    /* a rank maps the memory of its own GPU alone */
    assert_int_equal(zc_fetch_wait(ranks[0].c, &ranks[1].shards[1], 1, 0, ZI_FETCH_MS, &view),
                     -ENOTSUP);
    assert_non_null(strstr(zc_error(ranks[0].c), "rank 0 is not on"));
    step(ranks, GPUS, ++k, ZC_COMMIT_STEP);
    sv_hang_up(ranks, GPUS);
    zc_close(c);
    zi_end(&d);

    /* a restart: the same places */
    zi_start_again(&d, options_with(EMULATED));
    c = zi_client(&d);
    node_open(ranks, GPUS, &d, gpus, true);
    assert_true(ranks[0].place.iterations == k && params_on_all(c) == params);
    assert_int_equal(each_on_its_own(c, GPUS, gpus), params);
    for (unsigned r = 0; r < GPUS; r++)
        mapped_same(&ranks[r], gpus[r], &want[k], k);
    step(ranks, GPUS, ++k, ZC_COMMIT_STEP);
    sv_hang_up(ranks, GPUS);

    /* on other GPUs: the job is loaded again for them; then on one that the daemon does not have */
    node_open(ranks, 4, &d, rows[4].gpus, true);
    assert_true(ranks[0].place.iterations == k && ranks[0].place.gpu_params > 0);
    assert_int_equal(each_on_its_own(c, 4, rows[4].gpus), params_on_all(c));
    sv_dump_same("on four", &want[k], ranks, 4);
    step(ranks, 4, ++k, ZC_COMMIT_STEP);
    sv_hang_up(ranks, 4);
    node_open(ranks, GPUS, &d, others, true);
    assert_true(ranks[0].place.iterations == k && ranks[0].place.gpu_params == 0);
    assert_non_null(strstr(ranks[0].place.gpu_why, "rank 7 is not on a GPU of the daemon"));
    sv_dump_same("elsewhere", &want[k], ranks, GPUS);
    zi_close(ranks, GPUS);
    zc_close(c);
    zi_stop(&d);
    sv_param = 0;
}

/* ---- a device fails */

/* Makes one step of a job that may fail; its rc. */
static int step_try(struct zi_rank *ranks, unsigned world, uint64_t number, char *text, size_t size)
{
    struct zc_step step = { .step = number,
                            .scale = 1,
                            .groups = sv_groups,
                            .ngroups = 1,
                            .commit = ZC_COMMIT_STEP,
                            .timeout_ms = 120000 };
    struct zc_stepped stepped[GPUS];
    struct zi_call calls[GPUS];
    const char *why;
    int rc;

    sv_push(ranks, world, number);
    zi_step_ask(ranks, world, &step, false, stepped, calls);
    rc = zi_await_all(ranks, world, calls, &why);
    if (rc < 0)
        (void)snprintf(text, size, "%s", why);
    return rc;
}

/* gpu5 fails in the middle of a step: job "a", on all, resumes from its commit without it; job "b", on
 * gpu0 and gpu1, trains on. */
static void one_fails(void **state)
{
    const unsigned gpus[] = { 0, 1, 2, 3, 4, 5, 6, 7 }, two[] = { 0, 1 };
    struct zi_rank a[GPUS], b[2];
    struct zi_daemon d = { 0 };
    char text[512] = "";
    struct zc_client *c;
    uint64_t k = 0, kb, gpu, nvme;
    int rc = 0;

    (void)state;
    sv_param = 0;
    zi_start(&d, options_with("emulated*5:16M:::4K,emulated:16M::60:4K,emulated*2:16M:::4K"));
    c = zi_client(&d);
    sv_name = "b";
    node_open(b, 2, &d, two, false);
    step(b, 2, 1, ZC_COMMIT_STEP);
    kb = steps_until_up(c, b, 2, 1, state_bytes);
    sv_name = "job";
    node_open(a, GPUS, &d, gpus, false);
    while (rc == 0) {
        assert_true(k < STEPS);
        (void)poll(NULL, 0, 50);
        rc = step_try(a, GPUS, k + 1, text, sizeof(text));
        k += rc == 0;
    }
    assert_true(rc == -EIO && k > 0);
    if (!strstr(text, "GPU"))
        fail_msg("the message does not name the GPU: %s", text);
    for (unsigned g = 0; g < GPUS; g++)
        assert_true(!strstr(tier(c, g).detail, "failed: ") == (g != 5));
    assert_int_equal(zc_tier_set_wait(c, "gpu5", UINT64_C(8) << 20), -EIO);
    assert_int_equal(zc_tier_set_wait(c, "gpu4", UINT64_C(8) << 20), 0);
    /* the job on the others */
    assert_int_equal(b[0].job_failed + b[1].job_failed, 0);
    sv_name = "b";
    zi_where(c, sv_name, &gpu, &nvme);
    assert_int_equal(gpu, state_bytes);
    step(b, 2, ++kb, ZC_COMMIT_STEP);
    zi_close(b, 2);
    assert_int_equal(zc_job_destroy_wait(c, "b"), 0);
    /* the one that was hit */
    sv_name = "job";
    sv_hang_up(a, GPUS);
    node_open(a, GPUS, &d, gpus, true);
    assert_int_equal(a[0].place.iterations, k);
    sv_dump_same("from the commit", &want[k], a, GPUS);
    while (k < STEPS) {
        step(a, GPUS, ++k, ZC_COMMIT_STEP);
        (void)poll(NULL, 0, 20);
    }
    assert_true(each_on_its_own(c, GPUS, gpus) < state_bytes);
    assert_true(tier(c, 4).state > 0);
    assert_int_equal(tier(c, 5).state, 0);
    zi_fsck_online(c);
    zi_close(a, GPUS);
    zc_close(c);
    zi_stop(&d);
}

/* ---- lists that are refused */

static void refused(void **state)
{
    static const struct {
        const char *gpu;
        int status;
    } lists[] = {
        { "emulated*17", 1 },
        { "emulated*0", 1 },
        { "emulated,", 1 },
        { "emulated@1:16M:::4K,emulated@1:16M:::4K", 1 }, /* twice the same */
        { "emulated*2:16M:::4K,nothing", 1 },
        { "emulated:16M:::4K,emulated:4M:::4K", 1 }, /* less than gpu_bytes */
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lists); i++) {
        struct zi_daemon d = { 0 };
        int status = 0;

        assert_false(zi_start_try(&d, options_with(lists[i].gpu), &status));
        assert_int_equal(status, lists[i].status);
        zi_clean(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(state_of_each, zi_teardown),
        cmocka_unit_test_teardown(budgets, zi_teardown),
        cmocka_unit_test_teardown(params_of_each, zi_teardown),
        cmocka_unit_test_teardown(one_fails, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
