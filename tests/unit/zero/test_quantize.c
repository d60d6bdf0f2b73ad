/*
 * Parameters that travel as int8: the received values are near the stepped ones, within the bound
 * of zk.h; they are the same bits on every rank and in every schedule, with half the bytes of bf16.
 * The stepped values are exact.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/core/zero.h"
#include "fake_client.h"
#include "party.h"

#define STEPS 3u

/* ---- a slice, encoded and decoded */

static const struct dtype {
    enum zb_dtype dtype;
    double unit; /* relative error added by rounding to it */
} dtypes[] = { { ZB_F32, 0x1p-24 }, { ZB_BF16, 0x1p-8 }, { ZB_F16, 0x1p-11 } };

static void from_f32(const struct zk_ops *ops, enum zb_dtype dtype, const float *from, void *to,
                     size_t n)
{
    if (dtype == ZB_F32)
        memcpy(to, from, n * sizeof(*from));
    else
        (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(from, to, n);
}

static void to_f32(const struct zk_ops *ops, enum zb_dtype dtype, const void *from, float *to,
                   size_t n)
{
    if (dtype == ZB_F32)
        memcpy(to, from, n * sizeof(*to));
    else
        (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(from, to, n);
}

/* The largest |got - want| in scales of its group, or a failure: the bound must hold, and a
 * nonfinite value must make its group NaN. */
static double groups_near(const char *name, double unit, const float *want, const float *got,
                          uint64_t n)
{
    double worst = 0, least = unit == 0x1p-11 ? 0x1p-25 : 0; /* fp16 ends at 2^-24 */

    for (uint64_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint64_t end = zb_min_u64(at + ZB_Q8_GROUP, n);
        double most = 0, scale;
        bool finite = true;

        for (uint64_t i = at; i < end; i++) {
            finite = finite && isfinite(want[i]);
            most = fmax(most, fabs(want[i]));
        }
        scale = fmax(most / 127, 0x1p-126);
        for (uint64_t i = at; i < end; i++) {
            double off = fabs((double)got[i] - want[i]);

            if (finite ? !(off <= scale * (0.5 + 0x1p-15) + unit * fabs(got[i]) + least)
                       : !isnan(got[i]))
                fail_msg("%s: element %llu: %a became %a, with a scale of %a", name,
                         (unsigned long long)i, want[i], got[i], scale);
            worst = finite ? fmax(worst, off / scale) : worst;
        }
    }
    return worst;
}

static float draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 11) * 0x1p-53 - 0.5);
}

static void slices_there_and_back(void **state)
{
    static const struct {
        const char *name;
        uint64_t count, slice;
        float size; /* magnitude of the values */
        float odd;  /* one value is this; 0: none */
    } rows[] = {
        { "one block", 4096, 4096, 1, 0 },          { "zeros behind", 8192, 16384, 0.02f, 0 },
        { "nothing of it", 0, 4096, 1, 0 },         { "zeros", 4096, 4096, 0, 0 },
        { "tiny", 4096, 8192, 1e-6f, 0 },           { "an outlier", 4096, 4096, 0.02f, 1000 },
        { "an infinity", 8192, 8192, 1, INFINITY }, { "no number", 4096, 8192, 1, NAN },
    };
    size_t nops;
    const struct zk_ops *const *all = zk_all(&nops);
    float *values = malloc(16384 * sizeof(*values)), *back = malloc(16384 * sizeof(*back));
    void *from = aligned_alloc(64, 65536), *to = aligned_alloc(64, 65536);
    void *wire = aligned_alloc(64, 65536), *wire_ref = aligned_alloc(64, 65536);
    void *to_ref = aligned_alloc(64, 65536);

    (void)state;
    assert_true(values && back && from && to && wire && wire_ref && to_ref);
    for (size_t r = 0; r < ZB_COUNT(rows); r++)
        for (size_t d = 0; d < ZB_COUNT(dtypes); d++)
            for (size_t o = 0; o < nops; o++) {
                uint64_t seed = 11, n = rows[r].count, slice = rows[r].slice;
                enum zb_dtype dtype = dtypes[d].dtype;
                size_t bytes = slice * zb_dtype_bytes(dtype);

                if (!all[o]->supported())
                    continue;
                assert_true(zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, slice) <= 0.51 * 2 * (double)slice);
                memset(values, 0, 16384 * sizeof(*values));
                for (uint64_t i = 0; i < n; i++)
                    values[i] = rows[r].size * draw(&seed);
                if (rows[r].odd != 0)
                    values[300] = rows[r].odd;
                from_f32(all[0], dtype, values, from, slice);
                to_f32(all[0], dtype, from, values, slice);
                memset(wire, 0x5a, zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, slice));
                memset(to, 0x5a, bytes);
                zk_q8_write(all[o], dtype, from, slice, wire);
                zk_q8_read(all[o], dtype, wire, slice, to);
                to_f32(all[0], dtype, to, back, slice);
                (void)groups_near(rows[r].name, dtypes[d].unit, values, back, slice);
                if (o == 0) {
                    memcpy(wire_ref, wire, zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, slice));
                    memcpy(to_ref, to, bytes);
                }
                assert_memory_equal(wire, wire_ref, zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, slice));
                assert_memory_equal(to, to_ref, bytes);
            }
    free(values);
    free(back);
    free(from);
    free(to);
    free(wire);
    free(wire_ref);
    free(to_ref);
}

/* ---- gathered units */

struct rank {
    struct zc_comm *comm;
    enum zc_dtype dtype;
    uint32_t group_ranks;
    float *gathered[MODEL_UNITS], *exact[MODEL_UNITS];
    int rc;
    char error[256];
};

#define TRY(call)            \
    do {                     \
        int try_rc = (call); \
        if (try_rc != 0)     \
            return try_rc;   \
    } while (0)

static int rank_train(struct rank *r, struct zc_zero *z)
{
    struct zc_zero_stepped stepped;
    const void *params;
    float *grad;

    for (uint32_t step = 1; step <= 2; step++) {
        for (uint32_t u = 0; u < MODEL_UNITS; u++) {
            if (model_units[u].frozen)
                continue;
            TRY(zc_zero_gather(z, u, &params));
            TRY(zc_zero_grad(z, u, &grad));
            for (uint64_t i = 0; i < model_units[u].elems; i++)
                grad[i] = (float)(i % 17) - 8 + (float)r->comm->rank;
            TRY(zc_zero_release(z, u));
            TRY(zc_zero_reduce(z, u));
        }
        TRY(zc_zero_step(z, 0.01 * step, &stepped));
    }
    return 0;
}

static int rank_look(struct rank *r, struct zc_zero *z)
{
    const struct zk_ops *ref = zk_all(&(size_t){ 0 })[0];

    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        uint64_t n = model_units[u].elems;
        const void *params;

        TRY(zc_zero_gather(z, u, &params));
        to_f32(ref, (enum zb_dtype)r->dtype, params, r->gathered[u], n);
        TRY(zc_zero_release(z, u));
        TRY(zc_zero_read(z, u, ZC_PARAM, 0, n, r->exact[u]));
    }
    return 0;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero_options o;
    struct zc_zero *z = NULL;

    zc_zero_defaults(&o);
    o.comm = r->comm;
    o.groups = 2;
    o.group_ranks = r->group_ranks;
    o.timeout_ms = 20000;
    o.quantize_gather = true;
    r->rc = zc_zero_open(&z, &o);
    if (r->rc == 0)
        r->rc = model_declare(z, r->dtype, true);
    if (r->rc == 0)
        r->rc = zc_zero_start(z, model_init_fn, NULL);
    if (r->rc == 0)
        r->rc = rank_train(r, z);
    if (r->rc == 0)
        r->rc = rank_look(r, z);
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    zc_zero_close(z, r->rc == 0);
    return NULL;
}

/* The error of one unit, relative to its root mean square. Printed only; docs/ENGINE.md has that of
 * a model.
 */
static double relative_error(const float *want, const float *got, uint64_t n)
{
    double off = 0, all = 0;

    for (uint64_t i = 0; i < n; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    return all > 0 ? sqrt(off / all) : 0;
}

static void ranks_look(struct rank *ranks, uint32_t world, size_t dtype)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        const struct model_unit *def = &model_units[u];
        double worst, error;

        for (uint32_t r = 1; r < world; r++)
            assert_memory_equal(ranks[0].gathered[u], ranks[r].gathered[u],
                                def->elems * sizeof(float));
        if (def->frozen || ranks[0].group_ranks == 1) { /* codes already, or not quantized */
            assert_memory_equal(ranks[0].gathered[u], ranks[0].exact[u],
                                def->elems * sizeof(float));
            continue;
        }
        worst = groups_near(def->name, dtypes[dtype].unit, ranks[0].exact[u], ranks[0].gathered[u],
                            def->elems);
        error = relative_error(ranks[0].exact[u], ranks[0].gathered[u], def->elems);
        if (def->elems > ZB_Q8_GROUP)
            assert_true(worst > 0.3 && error > 1e-4 && error < 1e-2);
        if (u == 0)
            print_message("%s, %u ranks: off by %.3g of a scale at most, %.3g of the whole\n",
                          zb_dtype_name(dtypes[dtype].dtype), world, worst, error);
    }
}

static void every_rank_gets_the_same_near_values(void **state)
{
    static const struct {
        uint32_t world, group_ranks;
    } rows[] = { { 2, 0 }, { 3, 0 }, { 4, 2 }, { 2, 1 } };

    (void)state;
    for (size_t row = 0; row < ZB_COUNT(rows); row++)
        for (size_t d = 0; d < ZB_COUNT(dtypes); d++) {
            uint32_t world = rows[row].world;
            struct comm_group *group = comm_group_new(world, row + 1, 2);
            struct rank ranks[4];
            pthread_t threads[4];

            for (uint32_t r = 0; r < world; r++) {
                ranks[r] = (struct rank){ .comm = comm_group_rank(group, r),
                                          .dtype = (enum zc_dtype)dtypes[d].dtype,
                                          .group_ranks = rows[row].group_ranks };
                for (uint32_t u = 0; u < MODEL_UNITS; u++) {
                    ranks[r].gathered[u] = malloc(MODEL_ELEMS * sizeof(float));
                    ranks[r].exact[u] = malloc(MODEL_ELEMS * sizeof(float));
                    assert_true(ranks[r].gathered[u] && ranks[r].exact[u]);
                }
                assert_int_equal(pthread_create(&threads[r], NULL, rank_run, &ranks[r]), 0);
            }
            for (uint32_t r = 0; r < world; r++)
                (void)pthread_join(threads[r], NULL);
            for (uint32_t r = 0; r < world; r++)
                if (ranks[r].rc != 0)
                    fail_msg("row %zu, rank %u: %d %s", row, r, ranks[r].rc, ranks[r].error);
            ranks_look(ranks, world, d);
            for (uint32_t r = 0; r < world; r++)
                for (uint32_t u = 0; u < MODEL_UNITS; u++) {
                    free(ranks[r].gathered[u]);
                    free(ranks[r].exact[u]);
                }
            comm_group_free(group);
        }
}

/* ---- training */

struct mode {
    const char *name;
    bool exact;    /* without quantization */
    bool in_codes; /* frozen units are kept in codes */
    enum zc_zero_offload offload;
    uint32_t prefetch_units, overlap;
    bool keep;
    uint64_t persist, live, reuse;
};

static void mode_run(struct party *p, const struct mode *m, uint32_t world, enum zc_dtype dtype,
                     uint32_t delay)
{
    const struct fake_config fake = { .page_elems = 4096, .seed = 3, .delay_max = delay };

    fake_reset(&fake);
    party_new(p, world, dtype, world + 7, delay);
    party_offload(p, m->offload);
    for (uint32_t r = 0; r < world; r++) {
        struct zc_zero_options *o = &p->runs[r].options;

        p->runs[r].steps = STEPS;
        p->runs[r].quantized = m->in_codes;
        o->quantize_gather = !m->exact;
        o->prefetch_units = m->prefetch_units;
        o->overlap = m->overlap;
        o->keep_gathered = m->keep;
        o->persist_elems = m->persist;
        o->live_elems = m->live;
        o->reuse_elems = m->reuse;
        o->micro_steps = 2;
    }
    party_run(p);
    party_assert_ran(p);
    fake_end();
}

static const struct mode exact = { "exact", .exact = true, .prefetch_units = 1 };

static void every_schedule_trains_the_same(void **state)
{
    static const struct mode modes[] = {
        { "usual", .prefetch_units = 1 },
        { "nothing ahead", .prefetch_units = 0 },
        { "far ahead", .prefetch_units = 64 },
        { "kept", .keep = true },
        { "small ones stay, reuse, a ceiling", .persist = 2000, .reuse = 60000, .live = 50000 },
        { "host", .offload = ZC_ZERO_HOST, .prefetch_units = 2 },
        { "nvme, overlapped", .offload = ZC_ZERO_NVME, .prefetch_units = 1,
          .overlap = ZC_ZERO_OVERLAP },
    };

    (void)state;
    for (enum zc_dtype dtype = ZC_F32; dtype <= ZC_BF16; dtype++) {
        uint32_t world = dtype == ZC_F32 ? 3 : 2;
        struct party plain, want;
        size_t differ = 0;

        mode_run(&plain, &exact, world, dtype, 0);
        mode_run(&want, &modes[0], world, dtype, 0);
        assert_values_near("quantized", &plain.runs[0].values, &want.runs[0].values, 0.03);
        for (uint32_t u = 0; u < MODEL_UNITS; u++)
            differ += memcmp(plain.runs[0].values.master[u], want.runs[0].values.master[u],
                             model_units[u].elems * sizeof(float)) != 0;
        assert_true(differ > 0);
        for (size_t m = 0; m < ZB_COUNT(modes); m++) {
            struct party p;

            mode_run(&p, &modes[m], world, dtype, 3);
            assert_runs_same(modes[m].name, &want.runs[0], &p.runs[0]);
            party_done(&p);
        }
        party_done(&plain);
        party_done(&want);
    }
}

/* A single rank sends nothing. */
static void one_rank_is_exact(void **state)
{
    static const struct mode quantized = { "quantized", .prefetch_units = 1 };
    struct party a, b;

    (void)state;
    mode_run(&a, &exact, 1, ZC_BF16, 0);
    mode_run(&b, &quantized, 1, ZC_BF16, 0);
    assert_runs_same("alone", &a.runs[0], &b.runs[0]);
    party_done(&a);
    party_done(&b);
}

/* 1 + 1/64 bytes for each parameter, instead of bf16's two; frozen units still take two. */
static void half_the_bytes_of_bf16(void **state)
{
    static const struct mode plain = { "exact", .exact = true, .keep = true };
    static const struct mode quantized = { "quantized", .keep = true };

    (void)state;
    for (uint32_t world = 2; world <= 4; world++) {
        uint64_t trained = 0, frozen = 0, times = STEPS * 2;
        struct party a, b;
        double share;

        mode_run(&a, &plain, world, ZC_BF16, 1);
        mode_run(&b, &quantized, world, ZC_BF16, 1);
        for (uint32_t u = 0; u < MODEL_UNITS; u++) {
            uint64_t slice, first, count;

            zb_slice(model_units[u].elems, world, 0, &slice, &first, &count);
            *(model_units[u].frozen ? &frozen : &trained) += slice * (world - 1);
        }
        assert_int_equal(a.runs[0].stats.comm_gather_bytes, times * 2 * (trained + frozen));
        assert_int_equal(b.runs[0].stats.comm_gather_bytes,
                         times * (trained + trained / 64 + 2 * frozen));
        share = (double)(b.runs[0].stats.comm_gather_bytes - times * 2 * frozen) /
                (double)(times * 2 * trained);
        assert_true(share <= 0.55);
        assert_int_equal(a.runs[0].stats.comm_reduce_bytes, b.runs[0].stats.comm_reduce_bytes);
        party_done(&a);
        party_done(&b);
    }
}

/* ---- frozen parameters, kept in codes */

#define MODEL_TABLE 3 /* the frozen unit */

/* The frozen unit must read as what the kernels make of its initial values; the other units as
 * without codes. */
static void assert_in_codes(const struct run *plain, const struct run *coded)
{
    const struct zk_ops *ref = zk_all(&(size_t){ 0 })[0];
    enum zb_dtype dtype = (enum zb_dtype)coded->dtype;
    uint64_t n = zb_padded_elems(model_units[MODEL_TABLE].elems);
    float *values = calloc(n, sizeof(float));
    void *codes = calloc(n, 2), *param = calloc(n, sizeof(float));

    assert_true(values && codes && param && model_units[MODEL_TABLE].frozen);
    (void)model_init_fn(NULL, MODEL_TABLE, 0, model_units[MODEL_TABLE].elems, values);
    zk_q8_write(ref, ZB_F32, values, n, codes);
    zk_q8_read(ref, dtype, codes, n, param);
    to_f32(ref, dtype, param, values, n);
    assert_memory_equal(coded->values.master[MODEL_TABLE], values,
                        model_units[MODEL_TABLE].elems * sizeof(float));
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        bool same = memcmp(plain->values.master[u], coded->values.master[u],
                           model_units[u].elems * sizeof(float)) == 0;

        assert_true(same == (u != MODEL_TABLE));
    }
    assert_true(plain->losses[0] != coded->losses[0]);
    free(values);
    free(codes);
    free(param);
}

/* The same, wherever they are kept and however they are gathered. */
static void frozen_units_in_codes(void **state)
{
    static const struct mode modes[] = {
        { "usual", true, true, .prefetch_units = 1 },
        { "and what is gathered", false, true, .prefetch_units = 1 },
        { "nothing ahead", true, true, .prefetch_units = 0 },
        { "kept", true, true, .keep = true },
        { "small ones stay, reuse, a ceiling", true, true, .persist = 2000, .reuse = 60000,
          .live = 50000 },
        { "host", true, true, .offload = ZC_ZERO_HOST, .prefetch_units = 2 },
        { "nvme, overlapped", true, true, .offload = ZC_ZERO_NVME, .prefetch_units = 1,
          .overlap = ZC_ZERO_OVERLAP },
        { "nvme, and what is gathered", false, true, .offload = ZC_ZERO_NVME,
          .prefetch_units = 64 },
    };

    (void)state;
    for (size_t d = 0; d < ZB_COUNT(dtypes); d++)
        for (uint32_t world = 1; world <= 3; world += 2) {
            static const struct mode plain = { "plain", .exact = true, .prefetch_units = 1 };
            enum zc_dtype dtype = (enum zc_dtype)dtypes[d].dtype;
            struct party exact_one, want;

            mode_run(&exact_one, &plain, world, dtype, 0);
            mode_run(&want, &modes[0], world, dtype, 0);
            assert_in_codes(&exact_one.runs[0], &want.runs[0]);
            for (size_t m = 1; m < ZB_COUNT(modes); m++) {
                struct party got;

                if ((m + world + d) % 3 != 0) /* each in some combinations */
                    continue;
                mode_run(&got, &modes[m], world, dtype, 3);
                if (modes[m].exact || world == 1)
                    assert_runs_same(modes[m].name, &want.runs[0], &got.runs[0]);
                else
                    assert_memory_equal(want.runs[0].values.master[MODEL_TABLE],
                                        got.runs[0].values.master[MODEL_TABLE],
                                        model_units[MODEL_TABLE].elems * sizeof(float));
                party_done(&got);
            }
            party_done(&exact_one);
            party_done(&want);
        }
}

/* 1 + 1/64 bytes for each parameter, kept and sent. */
static void bytes_of_what_is_in_codes(void **state)
{
    static const struct mode plain = { "plain", .exact = true, .prefetch_units = 1 };
    static const struct mode coded = { "in codes", .exact = true, .in_codes = true,
                                       .prefetch_units = 1 };
    uint64_t slice, first, count;
    struct party a, b;

    (void)state;
    mode_run(&a, &plain, 2, ZC_BF16, 0);
    mode_run(&b, &coded, 2, ZC_BF16, 0);
    zb_slice(model_units[MODEL_TABLE].elems, 2, 0, &slice, &first, &count);
    assert_int_equal(a.runs[0].bytes.param - b.runs[0].bytes.param,
                     2 * count - zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, count));
    assert_int_equal((a.runs[0].stats.comm_gather_bytes - b.runs[0].stats.comm_gather_bytes) %
                         (2 * slice - zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, slice)),
                     0);
    assert_true(a.runs[0].stats.comm_gather_bytes > b.runs[0].stats.comm_gather_bytes);
    party_done(&a);
    party_done(&b);
}

/* ---- refusals */

static void only_stage_3_has_it(void **state)
{
    (void)state;
    for (enum zc_zero_stage stage = ZC_STAGE_DDP; stage <= ZC_STAGE_3; stage++) {
        struct comm_group *group = comm_group_new(1, 1, 0);
        struct zc_zero_options o;
        struct zc_zero *z;
        int rc;

        zc_zero_defaults(&o);
        o.comm = comm_group_rank(group, 0);
        o.stage = stage;
        o.quantize_gather = true;
        rc = zc_zero_open(&z, &o);
        assert_int_equal(rc, stage == ZC_STAGE_3 ? 0 : -EINVAL);
        if (rc != 0)
            assert_non_null(strstr(zc_zero_error(z), "only stage 3 can gather them quantized"));
        zc_zero_close(z, rc == 0);
        comm_group_free(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_there_and_back),
        cmocka_unit_test(every_rank_gets_the_same_near_values),
        cmocka_unit_test(every_schedule_trains_the_same),
        cmocka_unit_test(one_rank_is_exact),
        cmocka_unit_test(half_the_bytes_of_bf16),
        cmocka_unit_test(frozen_units_in_codes),
        cmocka_unit_test(bytes_of_what_is_in_codes),
        cmocka_unit_test(only_stage_3_has_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
