/*
 * Parameters in the daemon's GPU memory, mapped by this process: they must be those of the same
 * training in a daemon without a GPU, which runs first. Further tests: clients that keep that
 * memory mapped, jobs that cannot have it, and a device that fails at each of its works.
 *
 * On the emulated GPU, or on the one that ZSHARD_GPU names; the latter without the tests in which a
 * device fails, or in which a forked process uses it.
 */
#include "tests/integ/gpu_map.h"
#include "tests/integ/saved.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "kernels/gpu.h"

#define STEPS    22u
#define OPTIONS  24
#define EMULATED "emulated:16M:::4K"

static struct sv_dump want[STEPS + 1]; /* after each step */
static uint64_t state_bytes;           /* bytes of the job's optimizer state */
static struct zk_gpu *device;          /* this process's device */

static bool emulated(void)
{
    const char *name = getenv("ZSHARD_GPU");

    return !name || !*name || strcmp(name, "emulated") == 0;
}

static const char *gpu_name(void)
{
    return emulated() ? EMULATED : getenv("ZSHARD_GPU");
}

/* Enough for all of a job's state, too. A real GPU allocates memory in units of 2 MiB. */
static uint64_t gpu_size(void)
{
    return UINT64_C(1) << (emulated() ? 23 : 26);
}

static const char *gpu_id(void)
{
    return zk_gpu_info(device)->id;
}

/* gpu NULL: without a GPU. */
static const char *const *options_with(const char *gpu, const char *gpu_bytes, const char *nvme)
{
    static const char *options[OPTIONS];
    unsigned n = 0;

    for (; sv_options[n]; n++)
        options[n] = n == SV_OPTION_NVME && nvme ? nvme : sv_options[n];
    assert_true(n + 5 <= OPTIONS);
    if (gpu) {
        options[n++] = "--gpu-bytes";
        options[n++] = gpu_bytes;
        options[n++] = "--gpu";
        options[n++] = gpu;
    }
    options[n] = NULL;
    return options;
}

static const char *const *options_usual(void)
{
    return options_with(gpu_name(), emulated() ? "8M" : "64M", NULL);
}

/* From here on, jobs ask for the GPU, as ranks with this device. */
static void asks(enum zc_place param, const char *id)
{
    sv_param = param;
    sv_device = id;
}

/* ---- mapped memory */

static void peek(const struct zk_gpu_mem *mem, uint64_t at, void *to, uint64_t bytes)
{
    struct zk_gpu_stream *stream = NULL;
    struct zb_err err = { 0 };
    int rc = zk_gpu_stream_new(device, &stream, &err);

    if (rc == 0)
        rc = zk_gpu_copy(stream, ZK_GPU_TO_HOST, to, (const char *)zk_gpu_addr(mem) + at, bytes,
                         &err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(stream, &err);
    zk_gpu_stream_free(stream);
    if (rc < 0)
        fail_msg("copy: %s", err.text);
}

/* Fetches every shard as rank 0, on the device, and compares it with the values that were read. */
static void fetched_same(const char *when, struct sv_dump *was, struct zi_rank *ranks,
                         const struct zk_gpu_mem *mem, uint64_t version)
{
    for (unsigned r = 0; r < 2; r++)
        for (unsigned u = 0; u < SV_UNITS; u++) {
            size_t size = sv_units[u].dtype == ZC_F32 ? 4 : 2;
            struct zc_view view;
            char *bytes;

            if (!ranks[r].shards[u])
                continue;
            if (zc_fetch_wait(ranks[0].c, &ranks[r].shards[u], 1, version, ZI_FETCH_MS, &view) < 0)
                fail_msg("%s: fetch: %s", when, zc_error(ranks[0].c));
            assert_true(!view.data && view.bytes == ranks[r].ranges[u].count * size);
            bytes = malloc(view.bytes);
            assert_non_null(bytes);
            peek(mem, view.offset, bytes, view.bytes);
            if (memcmp(bytes, (char *)was->values[u][0] + ranks[r].ranges[u].first * size,
                       view.bytes) != 0)
                fail_msg("%s: unit %u of rank %u differs on the device", when, u, r);
            free(bytes);
            assert_int_equal(zc_release(ranks[0].c, &ranks[r].shards[u], 1), 0);
        }
}

static void step(struct zi_rank *ranks, const struct zk_gpu_mem *mem, uint64_t number,
                 enum zc_commit commit)
{
    sv_step(ranks, 2, number, commit);
    sv_dump_same("a step", &want[number], ranks, 2);
    if (mem)
        fetched_same("a step", &want[number], ranks, mem, number);
}

/* ---- comparing */

static void await_params(struct zc_client *c, uint64_t bytes)
{
    for (unsigned waited = 0; zi_tier(c, "gpu").params != bytes; waited++) {
        if (waited >= ZI_WAIT_MS / 10)
            fail_msg("%llu bytes of parameters on the GPU, and not %llu",
                     (unsigned long long)zi_tier(c, "gpu").params, (unsigned long long)bytes);
        (void)poll(NULL, 0, 10);
    }
}

static void await_state(struct zc_client *c, struct zi_rank *ranks, const struct zk_gpu_mem *mem,
                        uint64_t *k, uint64_t bytes)
{
    for (unsigned i = 0; zi_tier(c, "gpu").state < bytes; i++) {
        assert_true(i < 4);
        (void)poll(NULL, 0, 50);
        ++*k;
        step(ranks, mem, *k, *k % 2 ? ZC_COMMIT_NO : ZC_COMMIT_STEP);
    }
}

static int setup(void **state)
{
    struct zb_err err = { 0 };

    (void)state;
    if (zk_gpu_open(gpu_name(), 0, &device, &err) < 0)
        fail_msg("%s", err.text);
    state_bytes = sv_want(want, STEPS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sv_want_free(want, STEPS);
    zk_gpu_close(device);
    return 0;
}

/* ---- the tests */

/* Commits the present state, without a step. */
static void commit(struct zi_rank *ranks, uint64_t k)
{
    struct zi_call call = ZI_CALL(&ranks[0]);
    struct zc_point point;

    assert_int_equal(
        zc_commit(ranks[0].c, ranks[0].job.id, ZC_COMMIT_STEP, k, 120000, &point, zi_done, &call),
        0);
    if (zi_await(ranks, 2, &call) < 0)
        fail_msg("commit: %s", call.text);
}

/* Wherever the state is, and while it moves, the parameters are on the GPU and have the expected
 * values. */
static void trained_there(void **state)
{
    (void)state;
    asks(ZC_GPU, gpu_id());
    for (unsigned place = 0; place < SV_PLACES; place++) {
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct zk_gpu_mem *mem;
        struct zc_client *c;
        uint64_t k = 1, params;

        zi_start(&d, options_usual());
        sv_open(ranks, 2, &d, place);
        params = ranks[1].place.gpu_params;
        assert_true(params > 0 && ranks[0].place.gpu_params == params);
        assert_true(!ranks[0].place.arena && ranks[0].place.ring_bytes == 0);
        assert_string_equal(ranks[0].place.gpu_why, "");
        c = zi_client(&d);
        assert_true(zi_tier(c, "gpu").params >= params);
        assert_int_equal(zi_tier(c, "host").params, 0);
        mem = gpu_map(device, &ranks[0]);
        sv_dump_same("at first", &want[0], ranks, 2);
        fetched_same("at first", &want[0], ranks, mem, 0);
        step(ranks, mem, k, ZC_COMMIT_NO);
        step(ranks, mem, ++k, ZC_COMMIT_STEP);
        await_state(c, ranks, mem, &k, state_bytes);
        step(ranks, mem, ++k, ZC_COMMIT_STEP);
        step(ranks, mem, ++k, ZC_COMMIT_NO);
        /* the state leaves the GPU, the parameters stay */
        assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu")), 0);
        assert_true(zi_least(c, "gpu") >= params);
        step(ranks, mem, ++k, ZC_COMMIT_NO);
        zi_await_target(c, "gpu");
        assert_int_equal(zi_tier(c, "gpu").state, 0);
        step(ranks, mem, ++k, ZC_COMMIT_NO);
        step(ranks, mem, ++k, ZC_COMMIT_STEP);
        zi_fsck_online(c);
        /* the state returns, and is committed on request */
        assert_int_equal(zc_tier_set_wait(c, "gpu", gpu_size()), 0);
        step(ranks, mem, ++k, ZC_COMMIT_NO);
        await_state(c, ranks, mem, &k, state_bytes);
        if (place % 2 == 0)
            step(ranks, mem, ++k, ZC_COMMIT_STEP);
        else
            commit(ranks, k);
        zi_fsck_online(c);
        zk_gpu_free(mem);
        zc_close(c);
        zi_kill(&d);
        sv_hang_up(ranks, 2);
        assert_int_equal(zi_fsck(&d), 0);

        /* the commit is loaded again: onto the GPU, and without one */
        zi_start_again(&d, options_usual());
        assert_int_equal(sv_attach(ranks, 2, &d, place, true, NULL), 0);
        assert_true(ranks[0].place.iterations == k && ranks[0].place.gpu_params == params);
        mem = gpu_map(device, &ranks[0]);
        sv_dump_same("loaded", &want[k], ranks, 2);
        fetched_same("loaded", &want[k], ranks, mem, k);
        step(ranks, mem, ++k, ZC_COMMIT_STEP);
        zk_gpu_free(mem);
        sv_hang_up(ranks, 2);
        zi_end(&d);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(ranks, 2, &d, place, true, NULL), 0);
        assert_true(ranks[0].place.iterations == k && ranks[0].place.gpu_params == 0);
        assert_non_null(strstr(ranks[0].place.gpu_why, "no GPU tier"));
        sv_dump_same("without", &want[k], ranks, 2);
        step(ranks, NULL, ++k, ZC_COMMIT_STEP);
        zi_close(ranks, 2);
        zi_stop(&d);
    }
    asks(0, NULL);
}

static struct zc_job_options fleeting(const char *name);

/* A daemon without data files: everything is in host memory or on the GPU. */
static void without_data_files(void **state)
{
    struct zc_job_options o;
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zk_gpu_mem *mem;
    struct zc_client *c;
    uint64_t k = 1;

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_with(gpu_name(), emulated() ? "8M" : "64M", "0"));
    o = fleeting("job");
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    assert_true(ranks[0].place.gpu_params > 0);
    sv_fill(ranks, 2);
    c = zi_client(&d);
    mem = gpu_map(device, &ranks[0]);
    step(ranks, mem, k, ZC_COMMIT_NO);
    for (unsigned i = 0; zi_tier(c, "gpu").state < state_bytes; i++) {
        assert_true(i < 4);
        (void)poll(NULL, 0, 50);
        step(ranks, mem, ++k, ZC_COMMIT_NO);
    }
    step(ranks, mem, ++k, ZC_COMMIT_NO);
    assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu")), 0);
    step(ranks, mem, ++k, ZC_COMMIT_NO);
    zi_await_target(c, "gpu");
    step(ranks, mem, ++k, ZC_COMMIT_NO);
    zk_gpu_free(mem);
    zi_close(ranks, 2);
    await_params(c, 0);
    assert_int_equal(zi_tier(c, "gpu").used, zi_tier(c, "gpu").rings);
    zc_close(c);
    zi_stop(&d);
    asks(0, NULL);
}

/* Steps that begin early copy parameters up from the job's memory, even if its state is never on
 * the GPU: that memory is pinned when the job is ready. */
static void pinned_for_early_steps(void **state)
{
    struct zc_job_options o;
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_tier_row before, gpu;
    struct zc_client *c;

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    c = zi_client(&d);
    o = fleeting("job");
    zi_job(ranks, 1, &d, &o, sv_units, SV_UNITS);
    gpu = zi_tier(c, "gpu");
    zi_close(ranks, 1);
    await_params(c, 0);
    assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu") + gpu.params), 0);
    before = zi_tier(c, "gpu");
    o = sv_job(1);
    o.early = true;
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    assert_true(ranks[0].place.early && ranks[0].place.gpu_params > 0);
    gpu = zi_tier(c, "gpu");
    assert_int_equal(gpu.state, 0);
    assert_string_not_equal(gpu.detail, before.detail); /* the row names the pinned memory */
    zc_close(c);
    zi_close(ranks, 2);
    zi_stop(&d);
    asks(0, NULL);
}

/* Another world: shards are assembled from the saved ones, and copied up. */
static void cut_anew(void **state)
{
    struct zi_rank ranks[3];
    struct zi_daemon d = { 0 };

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    sv_open(ranks, 2, &d, 0);
    sv_step(ranks, 2, 1, ZC_COMMIT_STEP);
    sv_step(ranks, 2, 2, ZC_COMMIT_NO);
    sv_hang_up(ranks, 2);
    assert_int_equal(sv_attach(ranks, 3, &d, 0, true, NULL), 0);
    assert_true(ranks[0].place.gpu_params > 0 && ranks[0].place.iterations == 2);
    sv_dump_same("three ranks", &want[2], ranks, 3);
    sv_step(ranks, 3, 3, ZC_COMMIT_STEP);
    sv_dump_same("three ranks", &want[3], ranks, 3);
    zi_close(ranks, 3);
    zi_stop(&d);
    asks(0, NULL);
}

/* A reader of the snapshot gets the values that were committed then. */
static void read_same(struct zc_client *c, const struct zc_snapshot_row *snapshot)
{
    const struct sv_dump *was = &want[snapshot->iterations];
    uint64_t count = sv_units[0].elems;
    struct zc_reader reader;

    if (zc_reader_open_wait(c, snapshot->job, snapshot->name, UINT64_C(1) << 20, &reader) < 0)
        fail_msg("reader: %s", zc_error(c));
    for (unsigned w = 0; w < 2; w++) {
        static const enum zc_what whats[] = { ZC_PARAM, ZC_MASTER };
        size_t size = whats[w] == ZC_PARAM && sv_units[0].dtype != ZC_F32 ? 2 : 4;

        if (zc_reader_read_wait(c, reader.id, 0, whats[w], 0, count, reader.staging) < 0)
            fail_msg("read: %s", zc_error(c));
        if (memcmp(reader.staging, was->values[0][w], count * size) != 0)
            fail_msg("what was read of step %llu differs",
                     (unsigned long long)snapshot->iterations);
    }
    assert_int_equal(zc_reader_close_wait(c, reader.id), 0);
}

/* During a step: its state is moved from or to the GPU, saved data is snapshot, read and scrubbed,
 * and the memory is shared once more. */
static void amid_steps(void **state)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zk_gpu_mem *mem;
    struct zc_client *c;

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_with(emulated() ? "emulated:16M:300::4K" : gpu_name(),
                              emulated() ? "8M" : "64M", "96M"));
    sv_open(ranks, 2, &d, 1);
    c = zi_client(&d);
    mem = gpu_map(device, &ranks[0]);
    step(ranks, mem, 1, ZC_COMMIT_STEP);
    for (uint64_t k = 2; k <= STEPS; k++) {
        struct zc_step step = { .step = k,
                                .scale = 1,
                                .groups = sv_groups,
                                .ngroups = 1,
                                .commit = k % 3 ? ZC_COMMIT_STEP : ZC_COMMIT_NO,
                                .timeout_ms = 120000 };
        struct zc_snapshot take = { .job = sv_name, .retain = 2 };
        struct zc_snapshot_row snapshot;
        struct zc_stepped stepped[2];
        struct zi_call calls[2];
        struct zc_scrub scrub;
        struct zc_message *bad = NULL;
        size_t nbad;
        int rc;

        sv_push(ranks, 2, k);
        for (unsigned r = 0; r < 2; r++) {
            calls[r] = ZI_CALL(&ranks[r]);
            assert_int_equal(
                zc_step(ranks[r].c, ranks[r].job.id, &step, &stepped[r], zi_done, &calls[r]), 0);
            assert_true(zc_poll(ranks[r].c, 0) >= 0);
        }
        if (k % 2)
            assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu")), 0);
        rc = zc_snapshot_wait(c, &take, &snapshot);
        if (rc < 0 && rc != -EEXIST)
            fail_msg("snapshot: %s", zc_error(c));
        if (rc == 0)
            read_same(c, &snapshot);
        rc = zc_scrub_wait(c, ZC_SCRUB_START, UINT64_C(1) << 40, &scrub, &bad, &nbad);
        assert_true(rc == 0 || rc == -EBUSY);
        zc_rows_free(bad);
        zk_gpu_free(gpu_map(device, &ranks[1]));
        if (k % 4 == 1)
            assert_int_equal(zc_tier_set_wait(c, "gpu", gpu_size()), 0);
        for (unsigned r = 0; r < 2; r++) {
            if (zi_await(ranks, 2, &calls[r]) < 0)
                fail_msg("step %llu: %s", (unsigned long long)k, calls[r].text);
            if (stepped[r].commit_code != 0)
                fail_msg("commit of step %llu: %s", (unsigned long long)k, stepped[r].commit_text);
        }
        sv_dump_same("amid", &want[k], ranks, 2);
        fetched_same("amid", &want[k], ranks, mem, k);
        zi_fsck_online(c);
        if (k % 4 == 3)
            assert_int_equal(zc_tier_set_wait(c, "gpu", gpu_size()), 0);
    }
    zk_gpu_free(mem);
    zc_close(c);
    zi_close(ranks, 2);
    zi_stop(&d);
    asks(0, NULL);
}

/* Reasons for parameters not to be on the GPU: they are elsewhere then, and the job trains as
 * usual. gpu NULL: the daemon has none. room: what the tier has in addition to its own needs; 0:
 * the usual size. */
static void not_there(const char *gpu, uint64_t room, const char *id, const char *why)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };

    asks(ZC_GPU, id);
    zi_start(&d, options_with(gpu, emulated() ? "8M" : "64M", NULL));
    if (room > 0) {
        struct zc_client *c = zi_client(&d);

        assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu") + room), 0);
        zc_close(c);
    }
    sv_open(ranks, 2, &d, 0);
    assert_int_equal(ranks[0].place.gpu_params, 0);
    if (!strstr(ranks[0].place.gpu_why, why))
        fail_msg("'%s' does not say '%s'", ranks[0].place.gpu_why, why);
    assert_non_null(zi_log_line(&d, "params-not-on-gpu"));
    assert_non_null(ranks[0].place.arena);
    {
        struct zc_gpu_memory memory;

        assert_int_equal(zc_gpu_share_wait(ranks[0].c, ranks[0].job.id, &memory), -ENOENT);
    }
    for (uint64_t k = 1; k <= 3; k++)
        step(ranks, NULL, k, ZC_COMMIT_STEP);
    zi_close(ranks, 2);
    zi_stop(&d);
    asks(0, NULL);
}

static void elsewhere(void **state)
{
    (void)state;
    not_there(gpu_name(), 65536, gpu_id(), "the smallest gpu_bytes that would work is ");
    not_there(gpu_name(), 0, "cuda-0000", "rank 0 is not on the GPU of the daemon");
    not_there(gpu_name(), 0, NULL, "rank 0 is not on the GPU of the daemon");
    not_there(NULL, 0, gpu_id(), "the daemon has no GPU tier");
    if (emulated())
        not_there("emulated:16M:::4K::0", 0, gpu_id(), "the emulated GPU shares no memory");
}

/* The device has no free memory: the job is placed without it. */
static void no_device_memory(void **state)
{
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    if (!emulated())
        ztest_skip("the emulated GPU alone fails on request");
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_with("emulated:16M::4:4K", "8M", NULL)); /* enough for its lanes only */
    sv_open(ranks, 2, &d, 0);
    assert_int_equal(ranks[0].place.gpu_params, 0);
    assert_true(ranks[0].place.gpu_why[0] != '\0');
    for (uint64_t k = 1; k <= 3; k++)
        step(ranks, NULL, k, ZC_COMMIT_STEP);
    sv_hang_up(ranks, 2);
    zi_end(&d);

    /* the same for a job that is resumed from there, or from its commit */
    zi_start_again(&d, options_usual());
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_true(ranks[0].place.gpu_params > 0);
    step(ranks, NULL, 4, ZC_COMMIT_STEP);
    sv_hang_up(ranks, 2);
    zi_end(&d);
    zi_start_again(&d, options_with("emulated:16M::4:4K", "8M", NULL));
    assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
    assert_int_equal(ranks[0].place.gpu_params, 0);
    sv_dump_same("loaded", &want[4], ranks, 2);
    for (uint64_t k = 5; k <= 6; k++)
        step(ranks, NULL, k, ZC_COMMIT_STEP);
    c = zi_client(&d);
    zi_fsck_online(c);
    assert_int_equal(zi_tier(c, "gpu").params, 0);
    zc_close(c);
    zi_close(ranks, 2);
    zi_stop(&d);
    asks(0, NULL);
}

/* A rank that cannot map them: a durable job is placed again for it, any other job refuses it. */
static void ranks_without(void **state)
{
    struct zc_job_options o;
    struct zi_rank ranks[2], other;
    struct zi_daemon d = { 0 };

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_with(gpu_name(), emulated() ? "8M" : "64M", "64M"));

    o = sv_job(0); /* peers use the same options */
    o.world = 2;
    assert_int_equal(zi_open(&ranks[0], &d, &o), 0);
    o.rank = 1;
    o.offload_param = ZC_NVME;
    assert_int_equal(zi_open(&ranks[1], &d, &o), -EINVAL);
    sv_hang_up(ranks, 2);

    sv_name = "durable";
    sv_open(ranks, 2, &d, 0);
    assert_true(ranks[0].place.gpu_params > 0);
    sv_step(ranks, 2, 1, ZC_COMMIT_NO);
    sv_hang_up(ranks, 2);
    asks(0, NULL);
    assert_int_equal(sv_attach(ranks, 2, &d, 0, false, NULL), 0);
    assert_true(ranks[0].place.gpu_params == 0 && ranks[0].place.iterations == 1);
    sv_dump_same("made again", &want[1], ranks, 2);
    step(ranks, NULL, 2, ZC_COMMIT_STEP);
    zi_close(ranks, 2);

    sv_name = "kept";
    asks(ZC_GPU, gpu_id());
    o = sv_job(0);
    o.durable = false;
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    sv_fill(ranks, 2);
    assert_true(ranks[0].place.gpu_params > 0);
    sv_hang_up(ranks, 2);
    o.attach = true;
    o.world = 2;
    o.offload_param = ZC_NVME;
    o.device = NULL;
    assert_int_equal(zi_open(&other, &d, &o), -ENOTSUP);
    assert_non_null(strstr(zc_error(other.c), "on the GPU"));
    zc_close(other.c);
    o.offload_param = ZC_GPU;
    o.device = gpu_id();
    assert_int_equal(zi_open(&other, &d, &o), 0);
    zc_close(other.c);
    sv_name = "job";
    zi_stop(&d);
    asks(0, NULL);
}

static struct zc_job_options fleeting(const char *name)
{
    struct zc_job_options o = sv_job(0);

    o.name = name;
    o.keep = o.durable = false;
    return o;
}

/* A rank is killed while it has them mapped: all of their memory becomes free. */
static void killed_with_it(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t device_free;
    int pipes[2], status;
    char byte;
    pid_t child;

    (void)state;
    if (!emulated())
        ztest_skip("the emulated GPU alone fails on request");
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    c = zi_client(&d);
    device_free = zi_tier(c, "gpu").device_free;
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct zc_job_options o = fleeting("job");
        struct zi_rank rank;
        struct zb_err err = { 0 };

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (zk_gpu_open(EMULATED, 0, &device, &err) < 0)
            _exit(2);
        zi_job(&rank, 1, &d, &o, sv_units, SV_UNITS);
        sv_fill(&rank, 1);
        (void)gpu_map(device, &rank);
        (void)write(pipes[1], "m", 1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_true(zi_tier(c, "gpu").params > 0);
    assert_true(zi_tier(c, "gpu").device_free < device_free);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    await_params(c, 0);
    assert_int_equal(zi_tier(c, "gpu").device_free, device_free);
    assert_int_equal(zi_tier(c, "gpu").stranded, 0);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    zc_close(c);
    zi_stop(&d);
    asks(0, NULL);
}

/* The job has ended, but a process (this one) still has its parameters mapped: the memory is
 * counted and reported, and no job gets it until it is unmapped. */
static void stranded(void **state)
{
    struct zc_job_options o;
    struct zi_rank a, b;
    struct zi_daemon d = { 0 };
    struct zk_gpu_mem *mem;
    struct zc_tier_row gpu;
    struct zc_client *c;
    uint64_t params;
    char text[96];

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    c = zi_client(&d);
    o = fleeting("gone");
    zi_job(&a, 1, &d, &o, sv_units, SV_UNITS);
    sv_fill(&a, 1);
    params = zi_tier(c, "gpu").params;
    mem = gpu_map(device, &a);
    zi_close(&a, 1);
    for (unsigned waited = 0; zi_tier(c, "gpu").stranded == 0; waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        (void)poll(NULL, 0, 10);
    }
    gpu = zi_tier(c, "gpu");
    assert_true(gpu.stranded == params && gpu.params == params);
    (void)snprintf(text, sizeof(text), "gone:%llu:%d", (unsigned long long)params, (int)getpid());
    assert_string_equal(gpu.stranded_by, text);
    for (unsigned waited = 0; !zi_log_line(&d, "gpu-stranded"); waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        (void)poll(NULL, 0, 10);
    }
    (void)snprintf(text, sizeof(text), "pids=%d ", (int)getpid());
    assert_non_null(strstr(zi_log_line(&d, "gpu-stranded"), text));

    /* less is left than the next job needs */
    assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu") + params - 4096), 0);
    assert_true(zi_least(c, "gpu") == gpu.rings + params);
    o = fleeting("next");
    zi_job(&b, 1, &d, &o, sv_units, SV_UNITS);
    assert_int_equal(b.place.gpu_params, 0);
    zi_close(&b, 1);
    await_params(c, params);

    zk_gpu_free(mem);
    await_params(c, 0);
    assert_int_equal(zi_tier(c, "gpu").stranded, 0);
    for (unsigned waited = 0; !zi_log_line(&d, "gpu-returned"); waited++) {
        assert_true(waited < ZI_WAIT_MS / 10);
        (void)poll(NULL, 0, 10);
    }
    zi_job(&b, 1, &d, &o, sv_units, SV_UNITS);
    assert_true(b.place.gpu_params > 0);
    mem = gpu_map(device, &b);
    zi_close(&b, 1);
    zc_close(c);
    zi_stop(&d); /* the daemon does not wait for them */
    zk_gpu_free(mem);
    asks(0, NULL);
}

/* Memory that is being released is waited for: a job that follows another has its parameters on the
 * GPU. */
static void one_after_the_other(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    uint64_t params = 0;

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    c = zi_client(&d);
    for (unsigned i = 0; i < 6; i++) {
        struct zc_job_options o = fleeting("job");
        struct zi_rank rank;
        struct zk_gpu_mem *mem;

        zi_job(&rank, 1, &d, &o, sv_units, SV_UNITS);
        assert_true(rank.place.gpu_params > 0);
        sv_fill(&rank, 1);
        mem = gpu_map(device, &rank);
        if (i == 0) {
            params = zi_tier(c, "gpu").params;
            assert_int_equal(zc_tier_set_wait(c, "gpu", zi_least(c, "gpu")), 0);
        }
        assert_int_equal(zi_tier(c, "gpu").params, params);
        zc_close(rank.c); /* hangs up, and unmaps a moment later */
        (void)poll(NULL, 0, (int)i * 10);
        zk_gpu_free(mem);
    }
    zc_close(c);
    zi_stop(&d);
    asks(0, NULL);
}

/* True: a job whose parameters cannot fit even with the memory that is being released was placed
 * without waiting for that. */
static bool placed_at_once(void)
{
    static const struct zc_unit large = {
        .name = "large", .elems = UINT64_C(3) << 20, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = fleeting("gone");
    struct zi_rank a, b;
    struct zi_daemon d = { 0 };
    struct zk_gpu_mem *mem;
    bool waited;

    zi_start(&d, options_with(gpu_name(), "8M", "128M"));
    zi_job(&a, 1, &d, &o, sv_units, SV_UNITS);
    mem = gpu_map(device, &a);
    zi_close(&a, 1);
    o = fleeting("large");
    zi_job(&b, 1, &d, &o, &large, 1);
    waited = zi_log_line(&d, "gpu-stranded") != NULL;
    assert_non_null(strstr(b.place.gpu_why, "the smallest gpu_bytes that would work is "));
    zk_gpu_free(mem);
    zi_close(&b, 1);
    zi_stop(&d);
    return !waited;
}

static void waits_for_no_miracle(void **state)
{
    bool ever = false;

    (void)state;
    asks(ZC_GPU, gpu_id());
    for (unsigned i = 0; i < 5 && !ever; i++) /* a slow machine gets more attempts */
        ever = placed_at_once();
    assert_true(ever);
    asks(0, NULL);
}

static int share(struct zi_rank *r, uint64_t job, struct zc_gpu_memory *ret)
{
    return zc_gpu_share_wait(r->c, job, ret);
}

static void share_close(struct zc_gpu_memory *memory)
{
    (void)close(memory->mem_fd);
    (void)close(memory->mark_fd);
}

/* Requests for the memory at various times, and many of them: released memory is forgotten, and no
 * rank can make the daemon hold more and more of it. */
static void asked_often(void **state)
{
    struct zc_gpu_memory held[256], memory;
    struct zi_rank a, b, early;
    struct zi_daemon d = { 0 };
    struct zc_job_options o;
    unsigned fds, n = 0;
    int rc;

    (void)state;
    asks(ZC_GPU, gpu_id());
    zi_start(&d, options_usual());
    o = fleeting("a");
    zi_job(&a, 1, &d, &o, sv_units, SV_UNITS);
    o = fleeting("b");
    zi_job(&b, 1, &d, &o, sv_units, SV_UNITS);
    sv_fill(&a, 1);
    o = fleeting("early");
    o.world = 2;
    assert_int_equal(zi_open(&early, &d, &o), 0);
    assert_int_equal(share(&early, early.job.id, &memory), -ENOENT);
    assert_int_equal(share(&early, a.job.id, &memory), -ENOENT);
    assert_int_equal(share(&b, a.job.id, &memory), -ENOENT);

    fds = zi_files(&d);
    for (unsigned i = 0; i < 64; i++) {
        assert_int_equal(share(&a, a.job.id, &memory), 0);
        share_close(&memory);
    }
    assert_true(zi_files(&d) < fds + 16); /* it may still be closing those of the last request */

    while (n < ZB_COUNT(held) && (rc = share(&a, a.job.id, &held[n])) == 0)
        n++;
    assert_int_equal(rc, -EBUSY);
    assert_true(n >= 2 && n <= 16);
    assert_int_equal(share(&b, b.job.id, &memory), 0);           /* each job has its own limit */
    assert_true(!emulated() || ftruncate(memory.mem_fd, 0) < 0); /* or the daemon dies */
    share_close(&memory);
    share_close(&held[--n]);
    assert_int_equal(share(&a, a.job.id, &held[n]), 0);
    n++;
    sv_step(&a, 1, 1, ZC_COMMIT_NO);
    while (n > 0)
        share_close(&held[--n]);

    assert_int_equal(zc_job_close_wait(a.c, a.job.id), 0);
    assert_int_equal(share(&a, a.job.id, &memory), -ENOENT);
    zc_close(a.c);
    zc_close(early.c);
    zi_close(&b, 1);
    zi_stop(&d);
    asks(0, NULL);
}

/* ---- the device fails */

/* Writes the parameters, and makes up to five steps: 0, or the error. *k: the last commit. */
static int run_try(struct zi_rank *ranks, struct zi_daemon *d, uint64_t *k, char *text, size_t size)
{
    struct zc_stepped stepped[2];
    struct zi_call calls[2];
    const char *why;
    int rc = 0;

    for (unsigned r = 0; r < 2 && rc == 0; r++)
        for (unsigned u = 0; u < SV_UNITS && rc == 0; u++) {
            uint64_t count = ranks[r].ranges[u].count;
            float *staged = ranks[r].job.staging;

            for (uint64_t i = 0; i < count; i++)
                staged[i] = sv_value(ranks[r].ranges[u].first + i);
            if (ranks[r].shards[u])
                rc = zc_write_wait(ranks[r].c, ranks[r].shards[u], ZC_MASTER, 0, count, staged);
            if (rc < 0)
                (void)snprintf(text, size, "%.500s", zc_error(ranks[r].c));
        }
    *k = 0;
    for (uint64_t number = 1; number <= 5 && rc == 0; number++) {
        struct zc_step step = { .step = number,
                                .scale = 1,
                                .groups = sv_groups,
                                .ngroups = 1,
                                .commit = ZC_COMMIT_STEP,
                                .timeout_ms = 120000 };
        unsigned rank;

        rc = sv_push_try(ranks, 2, number, &rank); /* it may have failed meanwhile */
        if (rc < 0) {
            (void)snprintf(text, size, "%.500s", zc_error(ranks[rank].c));
            break;
        }
        zi_step_ask(ranks, 2, &step, false, stepped, calls);
        rc = zi_await_all(ranks, 2, calls, &why);
        if (rc < 0)
            (void)snprintf(text, size, "%.500s", why);
        if (rc == 0 && stepped[0].commit_code == 0)
            *k = number;
        if (number == 1)
            (void)poll(NULL, 0, 20); /* its state is moved up in the next step */
    }
    (void)d;
    return rc;
}

/* The device fails at this work. The job is placed without it, or ends with an error message that
 * names it; then it resumes from its last commit, as does a job that uses no GPU. */
static bool fail_at(unsigned works)
{
    struct zi_rank ranks[2], e;
    struct zi_daemon d = { 0 };
    struct zc_job_options o;
    char gpu[64], text[512] = "";
    uint64_t k = 0;
    int rc;

    (void)snprintf(gpu, sizeof(gpu), "emulated:16M::%u:4K", works);
    zi_start(&d, options_with(gpu, "8M", "48M"));
    asks(0, NULL);
    o = fleeting("e");
    zi_job(&e, 1, &d, &o, sv_units, SV_UNITS);
    sv_fill(&e, 1);
    asks(ZC_GPU, gpu_id());
    o = sv_job(0);
    o.world = 2;
    zi_job(ranks, 2, &d, &o, sv_units, SV_UNITS);
    rc = run_try(ranks, &d, &k, text, sizeof(text));
    if (rc < 0 && (rc != -EIO || !strstr(text, "GPU")))
        fail_msg("%u works: %d, %s", works, rc, text);
    sv_hang_up(ranks, 2);
    sv_step(&e, 1, 1, ZC_COMMIT_NO);
    sv_dump_same("who has nothing there", &want[1], &e, 1);
    assert_int_equal(e.job_failed, 0);
    zi_close(&e, 1);
    if (rc == 0) { /* it may still fail */
        zi_end(&d);
        zi_start_again(&d, options_with(NULL, NULL, "48M"));
    }
    if (k > 0) {
        assert_int_equal(sv_attach(ranks, 2, &d, 0, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, k);
        assert_int_equal(ranks[0].place.gpu_params, 0);
        sv_dump_same("from the commit", &want[k], ranks, 2);
        step(ranks, NULL, k + 1, ZC_COMMIT_STEP);
        zi_close(ranks, 2);
    }
    zi_stop(&d);
    asks(0, NULL);
    return rc < 0;
}

static void the_device_fails(void **state)
{
    const char *text = getenv("ZSHARD_STRIDE");
    unsigned stride = text && *text ? (unsigned)strtoul(text, NULL, 10) : 23, failed = 0;

    (void)state;
    if (!emulated())
        ztest_skip("the emulated GPU alone fails on request");
    for (unsigned works = 4; works < 1500; works += stride) {
        bool fails = fail_at(works);

        failed += fails;
        if (!fails && works > 1000)
            break;
    }
    assert_true(failed > 0); /* else the campaign tested nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(trained_there, zi_teardown),
        cmocka_unit_test_teardown(without_data_files, zi_teardown),
        cmocka_unit_test_teardown(pinned_for_early_steps, zi_teardown),
        cmocka_unit_test_teardown(cut_anew, zi_teardown),
        cmocka_unit_test_teardown(amid_steps, zi_teardown),
        cmocka_unit_test_teardown(elsewhere, zi_teardown),
        cmocka_unit_test_teardown(no_device_memory, zi_teardown),
        cmocka_unit_test_teardown(ranks_without, zi_teardown),
        cmocka_unit_test_teardown(killed_with_it, zi_teardown),
        cmocka_unit_test_teardown(stranded, zi_teardown),
        cmocka_unit_test_teardown(one_after_the_other, zi_teardown),
        cmocka_unit_test_teardown(waits_for_no_miracle, zi_teardown),
        cmocka_unit_test_teardown(asked_often, zi_teardown),
        cmocka_unit_test_teardown(the_device_fails, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
