/*
 * Elements of a unit between steps: read on one rank or all, in any dtype, and written, with every
 * store; and reduced gradients.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/pass/pass.h"
#include "fake_client.h"
#include "kernels/zk.h"
#include "model.h"
#include "party.h"

#define UNIT 0u

struct place {
    const char *name;
    enum zc_zero_offload offload;
    enum zc_zero_stage stage;
    bool alone;
    const char *device;
    enum zc_dtype dtype;
};

static const struct place places[] = {
    { "none", ZC_ZERO_NONE, ZC_STAGE_3, false, NULL, ZC_BF16 },
    { "whole", ZC_ZERO_NONE, ZC_STAGE_1, false, NULL, ZC_F32 },
    { "ddp", ZC_ZERO_NONE, ZC_STAGE_DDP, false, NULL, ZC_F16 },
    { "daemon", ZC_ZERO_NVME, ZC_STAGE_3, false, NULL, ZC_BF16 },
    { "alone", ZC_ZERO_NVME, ZC_STAGE_3, true, NULL, ZC_BF16 },
    { "alone, fp32", ZC_ZERO_NVME, ZC_STAGE_3, true, NULL, ZC_F32 },
    { "device", ZC_ZERO_NONE, ZC_STAGE_3, false, "emulated", ZC_BF16 },
};

struct rank {
    struct zc_zero_options options;
    enum zc_dtype dtype;
    pthread_t thread;
    int rc;
    char error[512];
};

#define TRY(call)                                                             \
    do {                                                                      \
        int try_rc = (call);                                                  \
        if (try_rc != 0) {                                                    \
            (void)fprintf(stderr, "%s: %d at %d\n", #call, try_rc, __LINE__); \
            return try_rc;                                                    \
        }                                                                     \
    } while (0)

#define SAME(condition) TRY((condition) ? 0 : -EILSEQ)

static const struct zk_ops *ops(void)
{
    const struct zk_ops *ret = NULL;

    return zk_select(NULL, &ret, NULL) == 0 ? ret : NULL;
}

/* Not on a device: there the trainer's stream would have to add them. */
static int gradients(struct rank *r, struct zc_zero *z, uint32_t n)
{
    for (uint32_t u = MODEL_UNITS; u-- > 0;) {
        float *grad;

        if (model_units[u].frozen)
            continue;
        TRY(zc_zero_grad(z, u, &grad));
        for (uint64_t i = 0; i < model_units[u].elems && !r->options.device; i++)
            grad[i] += (float)(i % 8) * 0.125f;
        TRY(zc_zero_reduce(z, u));
    }
    (void)n;
    return 0;
}

static int elems_of(struct rank *r, struct zc_zero *z)
{
    const uint32_t rank = r->options.comm->rank, world = r->options.comm->world;
    const uint64_t n = model_units[UNIT].elems, first = n / 3 + 1, count = n / 2;
    float *before = calloc(n, 4), *after = calloc(n, 4), *m = calloc(n, 4), *old_m = calloc(n, 4);
    float *given = calloc(n, 4);
    uint16_t *half = calloc(n, 2), *expected = calloc(n, 2);
    struct zc_zero_stepped stepped;
    int root = (int)world - 1;
    const void *params;

    assert_true(before && after && m && old_m && given && half && expected);
    TRY(gradients(r, z, 0));
    TRY(zc_zero_read_on(z, -1, UNIT, ZC_GRAD, 0, n, ZC_F32, m));
    for (uint64_t i = 0; i < n && !r->options.device; i++) /* elements of no tensor are masked */
        SAME(m[i] == (float)(i % 8) * 0.125f * (float)world || m[i] == 0);
    SAME(r->options.device || m[1] == 0.125f * (float)world);
    TRY(zc_zero_step(z, 0.1, &stepped));
    SAME(zc_zero_read_on(z, -1, UNIT, ZC_GRAD, 0, n, ZC_F32, m) == -EBUSY);

    /* reading on one rank, and in other dtypes */
    TRY(zc_zero_read(z, UNIT, ZC_MASTER, 0, n, before));
    TRY(zc_zero_read(z, UNIT, ZC_EXP_AVG, 0, n, old_m));
    memset(after, 0xff, n * 4);
    TRY(zc_zero_read_on(z, root, UNIT, ZC_MASTER, first, count, ZC_F32,
                        (int)rank == root ? after : NULL));
    SAME((int)rank != root || memcmp(after, before + first, count * 4) == 0);
    TRY(zc_zero_read_on(z, -1, UNIT, ZC_MASTER, first, count, ZC_BF16, half));
    ops()->f32_to_bf16(before + first, expected, count);
    SAME(memcmp(half, expected, count * 2) == 0);
    TRY(zc_zero_read_on(z, 0, UNIT, ZC_EXP_AVG, 0, n, ZC_F16, half));
    ops()->f32_to_f16(old_m, expected, n);
    SAME(rank != 0 || memcmp(half, expected, n * 2) == 0);

    /* writing a part, on one rank */
    for (uint64_t i = 0; i < count; i++)
        given[i] = (float)i * 0.0625f - 3;
    TRY(zc_zero_gather(z, UNIT, &params));
    SAME(zc_zero_write_on(z, root, UNIT, ZC_MASTER, first, count, ZC_F32, given) == -EBUSY);
    TRY(zc_zero_release(z, UNIT));
    TRY(zc_zero_write_on(z, root, UNIT, ZC_MASTER, first, count, ZC_F32,
                         (int)rank == root ? given : NULL));
    memcpy(before + first, given, count * 4);
    TRY(zc_zero_read(z, UNIT, ZC_MASTER, 0, n, after));
    SAME(memcmp(after, before, n * 4) == 0);
    TRY(zc_zero_read(z, UNIT, ZC_EXP_AVG, 0, n, m));
    SAME(memcmp(m, old_m, n * 4) == 0);
    TRY(zc_zero_gather(z, UNIT, &params));
    if (!r->options.device &&
        r->dtype == ZC_BF16) { /* halves of masters, rounded like parameters */
        ops()->bf16_to_f32(params, m, n);
        for (uint64_t i = 0; i < n; i++)
            SAME(m[i] - before[i] <= 4 && before[i] - m[i] <= 4);
        TRY(zc_zero_read_on(z, -1, UNIT, ZC_PARAM, 0, n, ZC_BF16, half));
        SAME(memcmp(half, params, n * 2) == 0);
    } else if (!r->options.device && r->dtype == ZC_F32) {
        SAME(memcmp(params, before, n * 4) == 0);
    }
    TRY(zc_zero_release(z, UNIT));

    /* ... by all ranks, to a moment, in bf16 */
    ops()->f32_to_bf16(given, expected, count);
    TRY(zc_zero_write_on(z, -1, UNIT, ZC_EXP_AVG, first, count, ZC_BF16, expected));
    ops()->bf16_to_f32(expected, given, count);
    memcpy(old_m + first, given, count * 4);
    TRY(zc_zero_read(z, UNIT, ZC_EXP_AVG, 0, n, m));
    SAME(memcmp(m, old_m, n * 4) == 0);
    TRY(zc_zero_read(z, UNIT, ZC_MASTER, 0, n, after));
    SAME(memcmp(after, before, n * 4) == 0);

    SAME(zc_zero_write_on(z, -1, UNIT, ZC_GRAD, 0, 1, ZC_F32, given) == -EINVAL);
    SAME(zc_zero_write_on(z, -1, UNIT, ZC_MASTER, 0, n + 1, ZC_F32, given) == -EINVAL);
    SAME(zc_zero_write_on(z, 77, UNIT, ZC_MASTER, 0, 1, ZC_F32, given) == -EINVAL);
    SAME(zc_zero_read_on(z, -1, UNIT, ZC_MASTER, 0, 1, (enum zc_dtype)9, given) == -EINVAL);
    TRY(gradients(r, z, 1)); /* training continues */
    TRY(zc_zero_step(z, 0.1, &stepped));
    free(before);
    free(after);
    free(m);
    free(old_m);
    free(given);
    free(half);
    free(expected);
    return 0;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero *z;

    r->rc = zc_zero_open(&z, &r->options);
    if (r->rc == 0)
        r->rc = model_declare(z, r->dtype, false);
    if (r->rc == 0)
        r->rc = zc_zero_start(z, model_init_fn, NULL);
    if (r->rc == 0)
        r->rc = elems_of(r, z);
    (void)snprintf(r->error, sizeof(r->error), "%d: %s", r->rc, zc_zero_error(z));
    zc_zero_close(z, r->rc == 0);
    return NULL;
}

static void elements_are_read_and_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= 3; world++) {
            struct fake_config fake = { .page_elems = 4096, .ring = true, .delay_max = 2 };
            const struct place *place = &places[i];
            struct rank ranks[PARTY_MAX];
            struct party p;

            if (place->device && world > 1)
                continue;
            fake_reset(&fake);
            party_new(&p, world, place->dtype, world, 2);
            for (uint32_t r = 0; r < world; r++) {
                struct zc_zero_options *o = &p.runs[r].options;

                o->offload_optimizer = place->offload;
                o->offload_param = place->stage == ZC_STAGE_3 ? place->offload : ZC_ZERO_NONE;
                o->stage = place->stage;
                o->gather_alone = place->alone;
                o->device = place->device;
                ranks[r] = (struct rank){ .options = *o, .dtype = place->dtype };
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_run, &ranks[r]), 0);
            }
            for (uint32_t r = 0; r < world; r++)
                assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
            for (uint32_t r = 0; r < world; r++)
                if (ranks[r].rc != 0)
                    fail_msg("%s, rank %u of %u: %s", place->name, r, world, ranks[r].error);
            fake_end();
            party_done(&p);
        }
}

/* Gradients added from the trainer's memory are the same as those that it adds itself. */
static void gradients_are_added(void **state)
{
    const uint64_t n = model_units[UNIT].elems, first = 3, count = n - 5;
    float *wide = calloc(n, 4), *grad, *expected = calloc(n, 4);
    uint16_t *half = calloc(n, 2);
    struct zc_zero *z;
    struct party p;

    (void)state;
    assert_true(wide && expected && half);
    party_new(&p, 1, ZC_F32, 1, 0);
    assert_int_equal(zc_zero_open(&z, &p.runs[0].options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    for (uint64_t i = 0; i < n; i++)
        wide[i] = (float)i * 0.37f - 11;
    ops()->f32_to_bf16(wide, half, n);
    assert_int_equal(zc_zero_grad_add(z, UNIT, first, count, ZC_BF16, half), 0);
    ops()->bf16_to_f32(half, wide, n);
    for (uint64_t i = 0; i < count; i++)
        expected[first + i] += wide[i];
    assert_int_equal(zc_zero_grad_add(z, UNIT, 0, n, ZC_F32, wide), 0);
    for (uint64_t i = 0; i < n; i++)
        expected[i] += wide[i];
    ops()->f32_to_f16(wide, half, n);
    assert_int_equal(zc_zero_grad_add(z, UNIT, 0, n, ZC_F16, half), 0);
    ops()->f16_to_f32(half, wide, n);
    for (uint64_t i = 0; i < n; i++)
        expected[i] += wide[i];
    assert_int_equal(zc_zero_grad(z, UNIT, &grad), 0);
    assert_memory_equal(grad, expected, n * 4);
    assert_int_equal(zc_zero_prefetch(z, UNIT), 0);
    assert_int_equal(z->pass->units[UNIT].holds, 0);
    assert_int_not_equal(z->pass->units[UNIT].state, ZCZ_IDLE);
    assert_int_equal(zc_zero_gather_into(z, UNIT, expected), 0);
    for (uint64_t i = 0; i < n; i++)
        assert_true(expected[i] == model_init(UNIT, i));
    assert_int_equal(zc_zero_release(z, UNIT), 0);
    assert_int_equal(zc_zero_grad_add(z, UNIT, 1, n, ZC_F32, wide), -EINVAL);
    assert_int_equal(zc_zero_grad_add(z, UNIT, 0, 1, (enum zc_dtype)9, wide), -EINVAL);
    zc_zero_close(z, true);
    party_done(&p);
    free(wide);
    free(expected);
    free(half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_read_and_written),
        cmocka_unit_test(gradients_are_added),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
