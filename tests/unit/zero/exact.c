#include "exact.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/comm/comm_priv.h"
#include "client/zero/core/zero.h"
#include "comm_threads.h"
#include "tests/ztest.h"

#define BLOCK 4096u

/* Every rank of eight has elements of the first unit; of the second five have, of the third one. */
static const struct {
    const char *name;
    uint64_t elems;
} units[EX_UNITS] = {
    { "wide", 16 * BLOCK - 5 },
    { "odd", 9 * BLOCK + 1 },
    { "small", 7 },
};

/* A whole number from -most to most that depends only on the other arguments. */
static int draw(uint64_t a, uint64_t b, uint64_t c, int most)
{
    uint64_t state = (a + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (b << 20) ^ (c << 52);

    return (int)(ztest_random(&state) % (2u * (unsigned)most + 1)) - most;
}

static float initial(uint32_t unit, uint64_t elem)
{
    return (float)draw(unit, elem, 1, 1000) / 512;
}

static float target(uint32_t unit, uint64_t elem)
{
    return (float)draw(unit, elem, 2, 1000) / 512;
}

static int init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = initial(unit, first + i);
    return 0;
}

/* ---- one rank */

#define TRY(call)            \
    do {                     \
        int try_rc = (call); \
        if (try_rc != 0)     \
            return try_rc;   \
    } while (0)

static size_t elem_bytes(const struct ex_rank *r)
{
    return r->dtype == ZC_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Gathers a unit, and reads it into `ret` as fp32. */
static int unit_read(struct ex_rank *r, struct zc_zero *z, uint32_t u, float *ret)
{
    size_t bytes = units[u].elems * elem_bytes(r);
    uint16_t *bits = (uint16_t *)(void *)ret;
    const void *params;

    TRY(zc_zero_gather(z, u, &params));
    if (z->device.compute) {
        TRY(zk_gpu_copy(z->device.compute, ZK_GPU_TO_HOST, ret, params, bytes, NULL));
        TRY(zk_gpu_stream_sync(z->device.compute, NULL));
    } else {
        memcpy(ret, params, bytes);
    }
    for (uint64_t i = units[u].elems; r->dtype != ZC_F32 && i-- > 0;) {
        uint32_t wide = (uint32_t)bits[i] << 16;

        memcpy(&ret[i], &wide, sizeof(wide));
    }
    return 0;
}

static int forward(struct ex_rank *r, struct zc_zero *z, uint64_t step, float *memory)
{
    double sum = 0;

    for (uint32_t u = 0; u < EX_UNITS; u++) {
        TRY(unit_read(r, z, u, memory));
        for (uint64_t i = 0; i < units[u].elems; i++)
            sum += ((double)memory[i] - target(u, i)) * ((double)memory[i] - target(u, i));
        TRY(zc_zero_release(z, u));
    }
    r->losses[step - 1] = sum;
    return 0;
}

/* The gradient of this rank's samples, in place of the parameters. */
static void gradient(const struct ex_rank *r, uint32_t u, uint64_t step, float *memory)
{
    uint32_t n = EX_SAMPLES / r->comm->world, first = r->comm->rank * n;

    for (uint64_t i = 0; i < units[u].elems; i++) {
        int sum = memory[i] > target(u, i) ? 5 * (int)n : -5 * (int)n;

        for (uint32_t s = first; s < first + n; s++)
            sum += draw(u, i, 3 + s + EX_SAMPLES * step, 8);
        memory[i] = (float)sum / (float)(16 * n);
    }
}

static int backward(struct ex_rank *r, struct zc_zero *z, uint64_t step, float *memory)
{
    for (uint32_t u = EX_UNITS; u-- > 0;) {
        size_t bytes = units[u].elems * sizeof(float);
        float *grad;

        TRY(unit_read(r, z, u, memory));
        TRY(zc_zero_grad(z, u, &grad));
        gradient(r, u, step, memory);
        if (z->device.compute) {
            TRY(zk_gpu_copy(z->device.compute, ZK_GPU_TO_DEVICE, grad, memory, bytes, NULL));
            TRY(zk_gpu_stream_sync(z->device.compute, NULL));
        } else {
            memcpy(grad, memory, bytes);
        }
        TRY(zc_zero_release(z, u));
        TRY(zc_zero_reduce(z, u));
    }
    return 0;
}

static int count(struct ex_rank *r, struct zc_zero *z, uint64_t step)
{
    struct zc_zero_stats stats;

    TRY(zc_zero_stats(z, &stats));
    r->counted[step - 1] = (struct ex_count){ .up = stats.gather_up_bytes,
                                              .down = stats.gather_down_bytes,
                                              .sent = stats.comm_gather_bytes,
                                              .fetched = stats.fetched_bytes };
    return 0;
}

uint64_t ex_elems(uint32_t unit)
{
    return units[unit].elems;
}

static int train(struct ex_rank *r, struct zc_zero *z, float *memory)
{
    uint64_t applied;

    TRY(zc_zero_progress(z, &r->begun, &applied));
    for (uint64_t step = r->begun + 1; step <= r->until; step++) {
        struct zc_zero_stepped stepped;

        if (r->before_step && r->comm->rank == 0)
            r->before_step(step);
        TRY(forward(r, z, step, memory));
        if (r->options.clip == 0)
            TRY(zc_zero_announce(z, 0.125));
        TRY(backward(r, z, step, memory));
        TRY(zc_zero_step(z, 0.125, &stepped));
        r->norms[step - 1] = stepped.grad_norm;
        if (r->counts)
            TRY(count(r, z, step));
    }
    return 0;
}

static int rank_all(struct ex_rank *r, struct zc_zero **ret, float *memory)
{
    static const enum zc_what whats[] = { ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
    struct zc_zero_stats stats;

    TRY(zc_zero_open(ret, &r->options));
    for (uint32_t u = 0; u < EX_UNITS; u++) {
        struct zc_tensor tensor = { .name = "w", .ndims = 1, .dims = { units[u].elems } };
        struct zc_unit unit = { .index = u,
                                .name = units[u].name,
                                .elems = units[u].elems,
                                .dtype = r->dtype,
                                .tensors = &tensor,
                                .ntensors = 1 };

        TRY(zc_zero_add_unit(*ret, &unit));
    }
    TRY(zc_zero_start(*ret, init_fn, NULL));
    TRY(train(r, *ret, memory));
    for (uint32_t u = 0; u < EX_UNITS; u++)
        for (size_t w = 0; w < ZB_COUNT(whats); w++)
            TRY(zc_zero_read(*ret, u, whats[w], 0, units[u].elems, r->values[u][w]));
    TRY(zc_zero_stats(*ret, &stats));
    r->gpu_params = stats.gpu_params_bytes;
    (void)snprintf(r->gpu_why, sizeof(r->gpu_why), "%s", stats.gpu_why);
    return 0;
}

static void *rank_run(void *arg)
{
    float *memory = malloc(units[0].elems * sizeof(float));
    struct ex_rank *r = arg;
    struct zc_zero *z = NULL;
    struct zb_err err = { 0 };

    assert_non_null(memory);
    r->rc = r->nccl ? zc_nccl_open(&r->comm, r->comm, &err) : 0;
    (void)snprintf(r->error, sizeof(r->error), "%s", err.text);
    if (r->rc == 0) {
        r->options.comm = r->comm;
        r->rc = rank_all(r, &z, memory);
        (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
        if (r->rc != 0)
            comm_group_abort(r->group);
        zc_zero_close(z, r->rc == 0);
        if (r->nccl)
            zc_comm_close(r->comm, r->rc == 0);
    }
    free(memory);
    return NULL;
}

/* ---- all ranks of a run */

void ex_new(struct ex_party *p, uint32_t world, const struct ex_setting *s, const char *socket,
            enum ex_where where)
{
    memset(p, 0, sizeof(*p));
    p->world = world;
    p->group = comm_group_new(world, 5, 2);
    for (uint32_t i = 0; i < world; i++) {
        struct ex_rank *r = &p->ranks[i];
        struct zc_zero_options *o = &r->options;

        r->group = p->group;
        r->comm = comm_group_rank(p->group, i);
        r->dtype = s->dtype;
        r->until = EX_STEPS;
        r->nccl = world > 1 && where != EX_ON_HOST;
        (void)snprintf(r->device, sizeof(r->device), EX_DEVICE, where == EX_ON_ITS_OWN ? i : 0);
        zc_zero_defaults(o);
        o->weight_decay[0] = 0.125;
        o->clip = s->clip;
        o->timeout_ms = 100000;
        o->device = where == EX_ON_HOST ? NULL : r->device;
        o->socket = socket;
        o->job = EX_JOB;
        o->keep = o->durable = socket != NULL;
        o->commit_every = socket ? 2 : 0;
        if (socket) {
            o->offload_param = where == EX_ON_HOST ? ZC_ZERO_HOST : ZC_ZERO_GPU;
            o->offload_optimizer = ZC_ZERO_NVME;
        }
        for (uint32_t u = 0; u < EX_UNITS; u++)
            for (uint32_t w = 0; w < 3; w++) {
                r->values[u][w] = calloc(units[u].elems, sizeof(float));
                assert_non_null(r->values[u][w]);
            }
    }
}

void ex_done(struct ex_party *p)
{
    for (uint32_t i = 0; i < p->world; i++)
        for (uint32_t u = 0; u < EX_UNITS; u++)
            for (uint32_t w = 0; w < 3; w++)
                free(p->ranks[i].values[u][w]);
    comm_group_free(p->group);
}

void ex_run(struct ex_party *p)
{
    for (uint32_t i = 0; i < p->world; i++)
        assert_int_equal(pthread_create(&p->ranks[i].thread, NULL, rank_run, &p->ranks[i]), 0);
    for (uint32_t i = 0; i < p->world; i++)
        (void)pthread_join(p->ranks[i].thread, NULL);
}

void ex_assert_ran(const char *what, const struct ex_party *p)
{
    for (uint32_t i = 0; i < p->world; i++)
        if (p->ranks[i].rc != 0)
            fail_msg("%s, rank %u of %u: %d, %s", what, i, p->world, p->ranks[i].rc,
                     p->ranks[i].error);
}

void ex_assert_same(const char *what, const struct ex_party *want, const struct ex_party *p)
{
    const struct ex_rank *a = &want->ranks[0];

    ex_assert_ran(what, p);
    for (uint32_t i = 0; i < p->world; i++) {
        const struct ex_rank *b = &p->ranks[i];

        for (uint64_t k = b->begun; k < b->until; k++)
            if (memcmp(&a->losses[k], &b->losses[k], sizeof(double)) != 0 ||
                memcmp(&a->norms[k], &b->norms[k], sizeof(double)) != 0)
                fail_msg("%s, rank %u of %u, step %llu: loss %.17g, norm %.17g; not %.17g, %.17g",
                         what, i, p->world, (unsigned long long)k + 1, b->losses[k], b->norms[k],
                         a->losses[k], a->norms[k]);
        for (uint32_t u = 0; u < EX_UNITS && b->until == a->until; u++)
            for (uint32_t w = 0; w < 3; w++)
                if (memcmp(a->values[u][w], b->values[u][w], units[u].elems * sizeof(float)) != 0)
                    fail_msg("%s, rank %u of %u: values %u of unit '%s' differ", what, i, p->world,
                             w, units[u].name);
    }
}
