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

#define STEPS    14u
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
static void node_begin(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
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
}

/* The same, and writes the initial values. */
static void node_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
                      const unsigned *gpus, bool attach)
{
    node_begin(ranks, world, d, gpus, attach);
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

/* Whether each GPU has what the shards of its ranks have there, no more and no less; and none has more
 * than its budget (zi_tier() checks that). *ret_all: the bytes on all. */
static bool on_their_own(struct zc_client *c, unsigned world, const unsigned *gpus,
                         uint64_t *ret_all, char *text, size_t size)
{
    struct zc_shard_row *rows = NULL;
    uint64_t on[GPUS] = { 0 };
    size_t n = 0;

    *ret_all = 0;
    assert_int_equal(zc_list_wait(c, sv_name, &rows, &n), 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(rows[i].rank < world);
        on[gpus[rows[i].rank]] += rows[i].bytes - rows[i].host_bytes - rows[i].nvme_bytes;
    }
    zc_rows_free(rows);
    for (unsigned g = 0; g < GPUS; g++) {
        const struct zc_tier_row row = tier(c, g);

        *ret_all += on[g];
        if (row.state + row.params != on[g]) {
            (void)snprintf(text, size, "gpu%u has %llu and %llu bytes, its ranks %llu", g,
                           (unsigned long long)row.state, (unsigned long long)row.params,
                           (unsigned long long)on[g]);
            return false;
        }
    }
    return true;
}

static uint64_t each_on_its_own(struct zc_client *c, unsigned world, const unsigned *gpus)
{
    char text[128];
    uint64_t all;

    if (!on_their_own(c, world, gpus, &all, text, sizeof(text)))
        fail_msg("%s", text);
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

/* Job "a" is on all GPUs, "b" on gpu0 and gpu1; "idle" has parameters on gpu5, and makes no step. gpu5
 * fails. */
struct failing {
    struct zi_daemon d;
    struct zc_client *c;
    struct zi_rank a[GPUS], b[2], idle;
    uint64_t a_steps, b_steps; /* made */
    uint64_t b_bytes;          /* on GPUs */
    char text[512];            /* the failure of "a" */
};

static const unsigned all_of_them[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

/* Writes the initial values of "a", and makes steps until one fails: the code. */
static int run_until_it_fails(struct failing *f)
{
    struct zc_stepped stepped[GPUS];
    struct zi_call calls[GPUS];
    const char *why = NULL;
    unsigned rank = 0;
    int rc = 0;

    for (unsigned i = 0; i < GPUS * SV_UNITS && rc == 0; i++) {
        struct zi_rank *r = &f->a[rank = i / SV_UNITS];
        const struct zc_range *range = &r->ranges[i % SV_UNITS];
        float *staged = r->job.staging;

        for (uint64_t e = 0; e < range->count; e++)
            staged[e] = sv_value(range->first + e);
        if (r->shards[i % SV_UNITS])
            rc = zc_write_wait(r->c, r->shards[i % SV_UNITS], ZC_MASTER, 0, range->count, staged);
    }
    while (rc == 0) {
        struct zc_step step = { .step = f->a_steps + 1,
                                .scale = 1,
                                .groups = sv_groups,
                                .ngroups = 1,
                                .commit = ZC_COMMIT_STEP,
                                .timeout_ms = 120000 };

        assert_true(f->a_steps + 6 < STEPS);
        (void)poll(NULL, 0, 50);
        rc = sv_push_try(f->a, GPUS, step.step, &rank);
        if (rc < 0)
            break;
        zi_step_ask(f->a, GPUS, &step, false, stepped, calls);
        rc = zi_await_all(f->a, GPUS, calls, &why);
        f->a_steps += rc == 0;
    }
    (void)snprintf(f->text, sizeof(f->text), "%.500s", why ? why : zc_error(f->a[rank].c));
    return rc;
}

/* The other job has what it had, and trains on. */
static void others_train_on(struct failing *f)
{
    uint64_t gpu, nvme;

    for (unsigned g = 0; g < GPUS; g++)
        assert_true(!strstr(tier(f->c, g).detail, "failed: ") == (g != 5));
    assert_int_equal(zc_tier_set_wait(f->c, "gpu5", UINT64_C(8) << 20), -EIO);
    assert_int_equal(zc_tier_set_wait(f->c, "gpu4", UINT64_C(8) << 20), 0);
    assert_int_equal(f->b[0].job_failed + f->b[1].job_failed, 0);
    sv_name = "b";
    zi_where(f->c, sv_name, &gpu, &nvme);
    assert_int_equal(gpu, f->b_bytes);
    step(f->b, 2, ++f->b_steps, ZC_COMMIT_STEP);
    if (f->b[1].place.gpu_params > 0)
        mapped_same(&f->b[1], 1, &want[f->b_steps], f->b_steps);
    zi_close(f->b, 2);
    assert_int_equal(zc_job_destroy_wait(f->c, "b"), 0);
    sv_name = "job";
}

/* A job whose parameters were there ends, although nothing of it was in progress. */
static void idle_ends(struct failing *f)
{
    for (unsigned i = 0; i < ZI_WAIT_MS / 10 && f->idle.job_failed == 0; i++)
        zi_pump(&f->idle, 1, 10);
    assert_int_equal(f->idle.job_failed, 1);
    assert_int_equal(f->idle.event_code, -EIO);
    if (!strstr(f->idle.event_text, "parameters of job 'idle' were on the GPU") ||
        !strstr(f->idle.event_text, "gpu5") || !strstr(f->idle.event_text, "it had no commit yet"))
        fail_msg("%s", f->idle.event_text);
    sv_hang_up(&f->idle, 1);
}

/* The job that was hit resumes from its commit, without gpu5. Its parameters leave all GPUs. */
static void resumes(struct failing *f)
{
    uint64_t k = f->a_steps, all;
    char text[128] = "";
    bool own;

    node_open(f->a, GPUS, &f->d, all_of_them, true);
    assert_int_equal(f->a[0].place.iterations, k);
    assert_int_equal(params_on_all(f->c), 0);
    assert_true(sv_param != ZC_GPU || strstr(f->a[0].place.gpu_why, "gpu5"));
    sv_dump_same("from the commit", &want[k], f->a, GPUS);
    do { /* until what was allocated has been moved to */
        if (k == STEPS)
            fail_msg("after %llu steps: %s", (unsigned long long)k, text);
        step(f->a, GPUS, ++k, ZC_COMMIT_STEP);
        (void)poll(NULL, 0, 50);
        own = on_their_own(f->c, GPUS, all_of_them, &all, text, sizeof(text));
    } while (!own || all == 0);
    assert_true(all < state_bytes && tier(f->c, 4).state > 0);
    assert_int_equal(tier(f->c, 5).state, 0);
    zi_fsck_online(f->c);
    zi_close(f->a, GPUS);
}

/* gpu5 fails at this work of its own. Returns how many steps "a" had made; its code is -EIO. */
static uint64_t one_fails_at(enum zc_place param, unsigned works)
{
    struct failing f = { .a_steps = 0 };
    char gpu[96];
    int rc;

    sv_param = param;
    (void)snprintf(gpu, sizeof(gpu), "emulated*5:16M:::4K,emulated:16M::%u:4K,emulated*2:16M:::4K",
                   works);
    zi_start(&f.d, options_with(gpu));
    f.c = zi_client(&f.d);
    sv_name = "b";
    node_open(f.b, 2, &f.d, all_of_them, false);
    assert_int_equal(f.b[0].place.gpu_params > 0, param == ZC_GPU);
    step(f.b, 2, 1, ZC_COMMIT_STEP);
    f.b_bytes = state_bytes + params_on_all(f.c);
    f.b_steps = steps_until_up(f.c, f.b, 2, 1, f.b_bytes);
    if (param == ZC_GPU) {
        sv_name = "idle";
        node_open(&f.idle, 1, &f.d, &all_of_them[5], false);
    }
    sv_name = "job";
    node_begin(f.a, GPUS, &f.d, all_of_them, false);
    assert_int_equal(f.a[5].place.gpu_params > 0, param == ZC_GPU);
    rc = run_until_it_fails(&f);
    if (rc != -EIO || !strstr(f.text, "GPU"))
        fail_msg("%u works, after step %llu: %d, %s", works, (unsigned long long)f.a_steps, rc,
                 f.text);
    others_train_on(&f);
    if (param == ZC_GPU)
        idle_ends(&f);
    sv_hang_up(f.a, GPUS);
    if (f.a_steps > 0)
        resumes(&f);
    zc_close(f.c);
    zi_stop(&f.d);
    sv_param = 0;
    return f.a_steps;
}

static void one_fails(void **state)
{
    (void)state;
    assert_true(one_fails_at(0, 60) > 0);
}

/* At any work between the placement of its parameters and the fourth step. */
static void one_fails_with_params(void **state)
{
    const char *text = getenv("ZSHARD_STRIDE");
    unsigned stride = text && *text ? (unsigned)strtoul(text, NULL, 10) : 17;
    bool in_a_step = false;

    (void)state;
    for (unsigned works = 40; works < 95; works += stride)
        in_a_step |= one_fails_at(ZC_GPU, works) > 0;
    assert_true(in_a_step);
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
        cmocka_unit_test_teardown(one_fails_with_params, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
