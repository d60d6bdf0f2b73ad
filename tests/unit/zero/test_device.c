/*
 * The engine on a device, with both stores (fake_client.h), on the emulated GPU. That one is late,
 * and ends any process that uses its memory wrongly or reads what has not happened yet
 * (kernels/gpu.h). The trainer's numbers must be those of a run without a device, bit for bit. If
 * the device fails, the run ends in time, with an error message.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "client/zero/core/zero.h"
#include "comm_threads.h"
#include "fake_client.h"
#include "kernels/gpu.h"
#include "kernels/gpu/gpu_priv.h"
#include "model.h"

#define RANKS_MAX 3

struct party {
    uint32_t world;
    struct comm_group *group;
    struct run runs[RANKS_MAX];
    char sockets[RANKS_MAX][16];
};

struct setting {
    const char *name;
    uint32_t world;
    enum zc_dtype dtype;
    enum zc_zero_offload offload;
    bool ring; /* of the fake daemon: three pins a rank, so prefetches wait for uploads */
    uint32_t prefetch, micro_steps;
    const char *device;
};

/* How gradients of micro-steps are summed; or how parameters travel; or how frozen units are kept;
 * or stage 1 without offload. */
enum way { REDUCED, LOCAL, VERTICAL, QUANTIZED, IN_CODES, WAYS, WHOLE = WAYS };

/* aborts: when one rank fails, the collectives of the others end. */
static void party_run_as(struct party *p, const struct setting *s, const char *device, bool aborts,
                         enum way way)
{
    struct fake_config fake = { .page_elems = ZB_BLOCK_ELEMS, .ring = s->ring, .delay_max = 3 };

    memset(p, 0, sizeof(*p));
    fake_reset(&fake);
    p->world = s->world;
    p->group = comm_group_new(s->world, 7, 3);
    for (uint32_t r = 0; r < s->world; r++) {
        struct run *run = &p->runs[r];

        run->dtype = s->dtype;
        run->steps = 3;
        run->abort = aborts ? p->group : NULL;
        zc_zero_defaults(&run->options);
        run->options.comm = comm_group_rank(p->group, r);
        run->options.groups = 2;
        run->options.weight_decay[0] = 0.1;
        run->options.eps = 1e-3;
        run->options.clip = 1;
        run->options.stage = way == WHOLE ? ZC_STAGE_1 : ZC_STAGE_3;
        run->options.micro_steps = s->micro_steps;
        run->options.accumulate_local = way == LOCAL;
        run->options.vertical = way == VERTICAL;
        run->options.quantize_gather = way == QUANTIZED;
        run->quantized = way == IN_CODES;
        run->options.prefetch_units = s->prefetch;
        run->options.timeout_ms = 100000;
        run->options.offload_param = run->options.offload_optimizer = s->offload;
        run->options.device = device;
        (void)snprintf(p->sockets[r], sizeof(p->sockets[r]), "rank %u", r);
        run->options.socket = p->sockets[r];
    }
    run_threads(p->runs, p->world);
}

static void party_run(struct party *p, const struct setting *s, const char *device, bool aborts)
{
    party_run_as(p, s, device, aborts, REDUCED);
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
    fake_end();
}

/* false: this optional device does not exist here; a message says so. */
static bool device_there(const char *name)
{
    struct zb_err err = { 0 };
    struct zk_gpu *gpu = NULL;
    int rc = zk_gpu_open(name, 0, &gpu, &err);

    zk_gpu_close(gpu);
    if (rc == -ENODEV && ztest_device_optional(name)) {
        print_message("%s is skipped: %s\n", name, err.text);
        return false;
    }
    assert_int_equal(rc, 0);
    return true;
}

static void assert_no_bit_changes(const struct setting *s, enum way way)
{
    struct party host, device;

    party_run_as(&host, s, NULL, false, way);
    party_run_as(&device, s, s->device, false, way);
    for (uint32_t r = 0; r < s->world; r++) {
        if (host.runs[r].rc != 0 || device.runs[r].rc != 0)
            fail_msg("%s, rank %u: %s; %s", s->name, r, host.runs[r].error, device.runs[r].error);
        assert_runs_same(s->name, &host.runs[r], &device.runs[r]);
        assert_int_equal(host.runs[r].stats.device_bytes, 0);
        assert_true(device.runs[r].stats.device_bytes > 0);
        if (s->world == 1 && s->offload == ZC_ZERO_NONE) { /* everything is on the device */
            assert_int_equal(device.runs[r].stats.gpu_bytes, host.runs[r].stats.host_bytes);
            assert_int_equal(device.runs[r].stats.host_bytes, 0);
        }
    }
    party_done(&host);
    party_done(&device);
}

static void a_device_changes_no_bit(void **state)
{
    static const struct setting settings[] = {
        { "alone", 1, ZC_F32, ZC_ZERO_NONE, false, 1, 1, "emulated" },
        { "alone, late", 1, ZC_BF16, ZC_ZERO_NONE, false, 1, 2, "emulated:256M:300" },
        { "alone, streamed", 1, ZC_BF16, ZC_ZERO_NVME, true, 4, 1, "emulated:256M:300" },
        { "two", 2, ZC_BF16, ZC_ZERO_NONE, false, 2, 2, "emulated:256M:100" },
        { "two, streamed", 2, ZC_F32, ZC_ZERO_NVME, true, 2, 2, "emulated:256M:200" },
        { "three, nothing ahead", 3, ZC_BF16, ZC_ZERO_HOST, false, 0, 1, "emulated:256M:50" },
        { "three, fp16", 3, ZC_F16, ZC_ZERO_NONE, false, 1, 1, "emulated" },
        { "CUDA, alone", 1, ZC_BF16, ZC_ZERO_NONE, false, 1, 2, "cuda" },
        { "CUDA, alone, streamed", 1, ZC_F32, ZC_ZERO_NVME, true, 4, 1, "cuda" },
        { "CUDA, two, streamed", 2, ZC_BF16, ZC_ZERO_NVME, true, 2, 2, "cuda" },
        { "CUDA, three, fp16", 3, ZC_F16, ZC_ZERO_NONE, false, 1, 1, "cuda" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        const struct setting *s = &settings[i];

        if (!device_there(s->device))
            continue;
        for (enum way way = 0; way < (s->micro_steps > 1 ? WAYS : 1); way++)
            assert_no_bit_changes(s, way);
    }
}

/* Units are 80 KB at most; memory is allocated in multiples of the device's granularity. */
static void what_is_no_device_is_refused(void **state)
{
    static const struct {
        const char *device;
        int rc;
        const char *says;
    } cases[] = {
        { "abacus", -EINVAL, "abacus" },
        { "emulated:lots", -EINVAL, "emulated:lots" },
        { "cuda:99", -ENODEV, "no GPU" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct setting s = { "", 2, ZC_F32, ZC_ZERO_NONE, false, 1, 1, NULL };
        struct party p;

        party_run(&p, &s, cases[i].device, false);
        for (uint32_t r = 0; r < s.world; r++)
            if (p.runs[r].rc != cases[i].rc || !strstr(p.runs[r].error, cases[i].says))
                fail_msg("%s: %d %s", cases[i].device, p.runs[r].rc, p.runs[r].error);
        party_done(&p);
    }
}

static void a_full_device_is_said(void **state)
{
    struct setting s = { "full", 1, ZC_F32, ZC_ZERO_NONE, false, 1, 1, NULL };
    uint32_t refused = 0;

    (void)state;
    for (uint32_t mib = 2; mib <= 32; mib += 2) {
        char device[32];
        struct party p;

        (void)snprintf(device, sizeof(device), "emulated:%uM", mib);
        party_run(&p, &s, device, false);
        if (p.runs[0].rc != 0) {
            refused++;
            if (p.runs[0].rc != -ENOSPC || !strstr(p.runs[0].error, "no memory") ||
                !strstr(p.runs[0].error, "of GPU memory are needed, "))
                fail_msg("%s: %d %s", device, p.runs[0].rc, p.runs[0].error);
        }
        party_done(&p);
    }
    assert_in_range(refused, 1, 15);
}

/* The same for whole parameters and gradients on the device; each rank reports its own error. */
static void a_device_full_of_whole_planes_is_said(void **state)
{
    static const char *const parts[] = { "to gather", "for the gradient of" };
    const struct setting s = { "whole", 2, ZC_F32, ZC_ZERO_NONE, false, 0, 1, NULL };
    uint32_t seen[2] = { 0, 0 };

    (void)state;
    for (uint32_t mib = 2; mib <= 48; mib += 2) {
        char device[32];
        struct party p;

        (void)snprintf(device, sizeof(device), "emulated:%uM", mib);
        party_run_as(&p, &s, device, true, WHOLE);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t k = 0; k < 2; k++)
                if (strstr(p.runs[r].error, "no memory") && strstr(p.runs[r].error, parts[k])) {
                    seen[k]++;
                    if (p.runs[r].rc != -ENOSPC ||
                        !strstr(p.runs[r].error, "of GPU memory are needed, "))
                        fail_msg("%s: %d %s", device, p.runs[r].rc, p.runs[r].error);
                }
        party_done(&p);
    }
    assert_true(seen[0] > 0 && seen[1] > 0);
}

/* The device fails at its nth work, for each n that a run reaches. */
static void fails_everywhere(const struct setting *s)
{
    uint32_t failed = 0, n = 0;
    int rc = -EIO;

    while (rc != 0) {
        char device[40];
        struct party p;

        assert_true(n < 20000);
        (void)snprintf(device, sizeof(device), "emulated:256M:0:%u", n);
        party_run(&p, s, device, true);
        rc = p.runs[0].rc;
        /* without an error message, the trainer's own work failed */
        if (rc != 0 && strstr(p.runs[0].error, "device '")) {
            failed++;
            assert_true(rc == -EIO || rc == -ENOMEM || rc == -ENOSPC);
        }
        party_done(&p);
        n = n < 40 ? n + 1 : n + 1 + n / 8;
    }
    assert_true(failed > 10);
}

static void a_device_that_fails_ends_the_run(void **state)
{
    (void)state;
    fails_everywhere(&(struct setting){ "streamed", 2, ZC_BF16, ZC_ZERO_NVME, true, 2, 1, NULL });
    fails_everywhere(&(struct setting){ "resident", 1, ZC_BF16, ZC_ZERO_NONE, false, 2, 1, NULL });
}

/* A trainer that is far ahead of its stream: the memory that it reads there was released long ago,
 * and must not contain another unit yet. */
static void read_what_was_released(struct zk_gpu_stream *trainers)
{
    struct zc_comm *comm;
    struct zc_zero_options options;
    struct zk_gpu_stream *stream;
    float *seen[MODEL_UNITS], small[16];
    const void *params = NULL;
    struct zc_zero *z;

    assert_int_equal(zc_comm_open(&comm, "self", NULL, 0), 0);
    zc_zero_defaults(&options);
    options.comm = comm;
    options.groups = 2;
    options.device = "emulated:256M:500";
    options.stream = trainers ? zk_gpu_stream_native(trainers) : NULL;
    assert_int_equal(zc_zero_open(&z, &options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    stream = zc_zero_stream(z);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        size_t bytes = model_units[u].elems * sizeof(float);

        seen[u] = malloc(bytes);
        assert_non_null(seen[u]);
        assert_int_equal(zc_zero_gather(z, u, &params), 0);
        for (int i = 0; i < 20; i++)
            assert_int_equal(zk_gpu_copy(stream, ZK_GPU_TO_HOST, small, params, 4, NULL), 0);
        assert_int_equal(zk_gpu_copy(stream, ZK_GPU_TO_HOST, seen[u], params, bytes, NULL), 0);
        assert_int_equal(zc_zero_release(z, u), 0);
    }
    assert_int_equal(zk_gpu_stream_sync(stream, NULL), 0);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        for (uint64_t i = 0; i < model_units[u].elems; i++)
            if (seen[u][i] != model_init(u, i))
                fail_msg("unit %u, element %llu is another's", u, (unsigned long long)i);
        free(seen[u]);
    }
    zc_zero_close(z, true);
    zc_comm_close(comm, true);
}

static void what_was_released_may_still_be_read(void **state)
{
    struct zk_gpu_stream *s;
    struct zk_gpu *gpu;

    (void)state;
    read_what_was_released(NULL);
    assert_int_equal(zk_gpu_open("emulated:256M:500", 0, &gpu, NULL), 0);
    assert_int_equal(zk_gpu_stream_new(gpu, &s, NULL), 0);
    read_what_was_released(s);
    zk_gpu_stream_free(s);
    zk_gpu_close(gpu);
}

/* Nothing is offloaded: parameters returned to the trainer keep their values for queued reads,
 * although the step that changes them has returned. */
static void a_step_waits_for_what_reads(void **state)
{
    struct zc_comm *comm;
    struct zc_zero_options options;
    struct zc_zero_stepped stepped;
    const uint64_t elems = model_units[0].elems;
    struct zk_gpu_stream *stream;
    const void *params = NULL;
    struct zc_zero *z;
    float *seen = malloc(elems * sizeof(*seen)), small[16], *grad;

    (void)state;
    assert_non_null(seen);
    assert_int_equal(zc_comm_open(&comm, "self", NULL, 0), 0);
    zc_zero_defaults(&options);
    options.comm = comm;
    options.groups = 2;
    options.weight_decay[0] = options.weight_decay[1] = 0.5;
    options.device = "emulated:256M:500";
    assert_int_equal(zc_zero_open(&z, &options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    stream = zc_zero_stream(z);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        if (!z->units[u].def.frozen) {
            assert_int_equal(zc_zero_grad(z, u, &grad), 0);
            assert_int_equal(zc_zero_reduce(z, u), 0);
        }
    assert_int_equal(zc_zero_gather(z, 0, &params), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(zk_gpu_copy(stream, ZK_GPU_TO_HOST, small, params, 4, NULL), 0);
    assert_int_equal(zk_gpu_copy(stream, ZK_GPU_TO_HOST, seen, params, elems * sizeof(*seen), NULL),
                     0);
    assert_int_equal(zc_zero_release(z, 0), 0);
    assert_int_equal(zc_zero_step(z, 0.1, &stepped), 0);
    assert_int_equal(zk_gpu_stream_sync(stream, NULL), 0);
    for (uint64_t i = 0; i < elems; i++)
        if (seen[i] != model_init(0, i))
            fail_msg("element %llu was stepped before it was read", (unsigned long long)i);
    assert_int_equal(zc_zero_read(z, 0, ZC_PARAM, 0, elems, seen), 0);
    assert_true(seen[0] != model_init(0, 0)); /* else the test would see nothing */
    free(seen);
    zc_zero_close(z, true);
    zc_comm_close(comm, true);
}

/* Otherwise a download would block the trainer until the device has done everything before it. */
static void where_gradients_land_is_pinned(void **state)
{
    struct fake_config fake = { .page_elems = ZB_BLOCK_ELEMS };
    struct zk_gpu_usage usage;
    struct zc_zero_options options;
    struct zc_comm *comm;
    struct zc_zero *z;
    float *grad;

    (void)state;
    fake_reset(&fake);
    assert_int_equal(zc_comm_open(&comm, "self", NULL, 0), 0);
    zc_zero_defaults(&options);
    options.comm = comm;
    options.groups = 2;
    options.device = "emulated";
    options.socket = "rank 0";
    options.offload_param = options.offload_optimizer = ZC_ZERO_HOST;
    assert_int_equal(zc_zero_open(&z, &options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    assert_int_equal(zk_gpu_usage(z->device.gpu, &usage, NULL), 0);
    assert_int_equal(usage.pinned_bytes, 0);
    assert_int_equal(zc_zero_grad(z, 0, &grad), 0);
    assert_int_equal(zc_zero_reduce(z, 0), 0);
    assert_int_equal(zk_gpu_usage(z->device.gpu, &usage, NULL), 0);
    assert_true(usage.pinned_bytes >= model_units[0].elems * sizeof(float));
    zc_zero_close(z, false); /* asserts that nothing is pinned */
    zc_comm_close(comm, false);
    fake_end();
}

/* ---- memory of the caller */

struct memory {
    pthread_mutex_t lock; /* ranks are threads */
    struct zk_gpu_mem *mem[4096];
    unsigned n, live, most, left; /* left: allocations until there is no room */
};

static void *memory_alloc(void *arg, size_t bytes, void *stream)
{
    struct zk_gpu_stream *s = stream; /* a stream of the emulated device */
    struct memory *m = arg;
    struct zk_gpu_mem *mem = NULL;

    assert_non_null(s);
    (void)pthread_mutex_lock(&m->lock);
    if (m->left > 0 && m->n < ZB_COUNT(m->mem) && zk_gpu_alloc(s->gpu, bytes, 0, &mem, NULL) == 0) {
        m->left--;
        m->mem[m->n++] = mem;
        m->live++;
        m->most = m->live > m->most ? m->live : m->most;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return mem ? zk_gpu_addr(mem) : NULL;
}

static void memory_free(void *arg, void *at, size_t bytes, void *stream)
{
    struct memory *m = arg;
    unsigned found = 0;

    (void)stream;
    assert_true(bytes > 0);
    (void)pthread_mutex_lock(&m->lock);
    for (unsigned i = 0; i < m->n; i++)
        if (m->mem[i] && zk_gpu_addr(m->mem[i]) == at) {
            zk_gpu_free(m->mem[i]);
            m->mem[i] = NULL;
            found++;
        }
    m->live -= found;
    (void)pthread_mutex_unlock(&m->lock);
    assert_true(found >= 1);
}

static void run_on(struct run *r, struct comm_group *g, void *stream)
{
    memset(r, 0, sizeof(*r));
    r->dtype = ZC_BF16;
    r->steps = 3;
    zc_zero_defaults(&r->options);
    r->options.comm = comm_group_rank(g, 0);
    r->options.groups = 2;
    r->options.device = "emulated";
    r->options.stream = stream;
    run_train(r);
}

/* The same bits on a stream of the trainer's, which outlives the engine. */
static void stream_of_the_trainers(void **state)
{
    struct comm_group *g = comm_group_new(1, 1, 0);
    struct run engines, trainers;
    struct zc_zero_options o;
    struct zk_gpu_stream *s;
    struct zk_gpu_mem *mem;
    struct zc_zero *z;
    struct zk_gpu *gpu;

    (void)state;
    assert_int_equal(zk_gpu_open("emulated", 0, &gpu, NULL), 0);
    assert_int_equal(zk_gpu_stream_new(gpu, &s, NULL), 0);
    run_on(&engines, g, NULL);
    assert_int_equal(engines.rc, 0);
    run_on(&trainers, g, zk_gpu_stream_native(s));
    if (trainers.rc != 0)
        fail_msg("%d %s", trainers.rc, trainers.error);
    assert_runs_same("the trainer's stream", &engines, &trainers);
    run_done(&engines);
    run_done(&trainers);
    zc_zero_defaults(&o);
    o.comm = comm_group_rank(g, 0);
    o.stream = zk_gpu_stream_native(s);
    assert_int_equal(zc_zero_open(&z, &o), -EINVAL);
    assert_non_null(strstr(zc_zero_error(z), "no device"));
    zc_zero_close(z, false);
    o.device = "emulated";
    assert_int_equal(zc_zero_open(&z, &o), 0);
    assert_ptr_equal(zc_zero_stream(z), o.stream);
    zc_zero_close(z, true);
    assert_int_equal(zk_gpu_alloc(gpu, 4096, 0, &mem, NULL), 0);
    assert_int_equal(zk_gpu_fill(s, zk_gpu_addr(mem), 1, 4096, NULL), 0);
    assert_int_equal(zk_gpu_stream_sync(s, NULL), 0);
    zk_gpu_free(mem);
    zk_gpu_stream_free(s);
    zk_gpu_close(gpu);
    comm_group_free(g);
}

static void run_in(struct run *r, struct comm_group *g, struct memory *m)
{
    memset(r, 0, sizeof(*r));
    r->dtype = ZC_BF16;
    r->steps = 3;
    zc_zero_defaults(&r->options);
    r->options.comm = comm_group_rank(g, 0);
    r->options.groups = 2;
    r->options.eps = 1e-3;
    r->options.device = "emulated";
    if (m) {
        r->options.alloc = memory_alloc;
        r->options.free = memory_free;
        r->options.memory_arg = m;
    }
    run_train(r);
}

/* The same bits with the caller's memory, all of which is freed; and lack of memory is reported. */
static void memory_of_the_callers(void **state)
{
    struct comm_group *g = comm_group_new(1, 1, 0);
    struct memory *m = calloc(1, sizeof(*m));
    struct run drivers, callers;
    struct zc_zero_options o;
    struct zc_zero *z;

    (void)state;
    assert_non_null(m);
    assert_int_equal(pthread_mutex_init(&m->lock, NULL), 0);
    m->left = UINT32_MAX;
    run_in(&drivers, g, NULL);
    assert_int_equal(drivers.rc, 0);
    run_in(&callers, g, m);
    if (callers.rc != 0)
        fail_msg("%d %s", callers.rc, callers.error);
    assert_runs_same("the caller's memory", &drivers, &callers);
    assert_true(m->n > 0 && m->live == 0);
    run_done(&callers);
    m->left = 2;
    run_in(&callers, g, m);
    assert_int_equal(callers.rc, -ENOSPC);
    assert_non_null(strstr(callers.error, "the caller's alloc has no"));
    assert_int_equal(m->live, 0);
    run_done(&callers);
    run_done(&drivers);
    zc_zero_defaults(&o);
    o.comm = comm_group_rank(g, 0);
    o.device = "emulated";
    o.alloc = memory_alloc;
    assert_int_equal(zc_zero_open(&z, &o), -EINVAL);
    zc_zero_close(z, false);
    comm_group_free(g);
    assert_int_equal(pthread_mutex_destroy(&m->lock), 0);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_changes_no_bit),
        cmocka_unit_test(memory_of_the_callers),
        cmocka_unit_test(stream_of_the_trainers),
        cmocka_unit_test(what_was_released_may_still_be_read),
        cmocka_unit_test(a_step_waits_for_what_reads),
        cmocka_unit_test(where_gradients_land_is_pinned),
        cmocka_unit_test(what_is_no_device_is_refused),
        cmocka_unit_test(a_full_device_is_said),
        cmocka_unit_test(a_device_full_of_whole_planes_is_said),
        cmocka_unit_test(a_device_that_fails_ends_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
