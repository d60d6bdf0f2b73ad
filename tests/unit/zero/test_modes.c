/*
 * The modes of the engine: every stage, every schedule and every placement gives the same bits.
 * Bytes of each rank, and bytes sent, agree with the formulas in the literature.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/forecast.h"
#include "base/model.h"
#include "base/util.h"
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "fake_client.h"
#include "party.h"

#define STEPS 3u

/* Each mode is run only with every Nth number of ranks: sanitizers do not look for wrong bits. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERY 4u
#else
#define EVERY 2u
#endif

/* The settings of a row. */
struct mode {
    const char *name;
    enum zc_zero_stage stage;
    enum zc_zero_offload offload; /* of the optimizer, */
    enum zc_zero_offload params;  /* and of parameters */
    bool keep, waits;
    uint64_t persist, live, reuse, prefetch, reduce;
    uint32_t prefetch_units;
};

static const struct mode modes[] = {
    { "ddp", ZC_STAGE_DDP, .prefetch_units = 1 },
    { "ddp, no overlap", ZC_STAGE_DDP, .waits = true },
    { "zero1", ZC_STAGE_1, .prefetch_units = 1 },
    { "zero1, nothing ahead", ZC_STAGE_1, .waits = true },
    { "zero1, host", ZC_STAGE_1, ZC_ZERO_HOST, .prefetch_units = 2 },
    { "zero2", ZC_STAGE_2, .prefetch_units = 1 },
    { "zero2, nothing ahead", ZC_STAGE_2, .prefetch_units = 0 },
    { "zero2, host", ZC_STAGE_2, ZC_ZERO_HOST, .prefetch_units = 1 },
    { "zero2, nvme", ZC_STAGE_2, ZC_ZERO_NVME, .prefetch_units = 3, .reduce = 1000 },
    { "zero3, no prefetch", ZC_STAGE_3, .prefetch_units = 0 },
    { "zero3, far ahead", ZC_STAGE_3, .prefetch_units = 64 },
    { "zero3, ahead by elements", ZC_STAGE_3, .prefetch = 30000 },
    { "zero3, a ceiling", ZC_STAGE_3, .prefetch_units = 8, .live = 45000 },
    { "zero3, a ceiling below all", ZC_STAGE_3, .prefetch_units = 2, .live = 1 },
    { "zero3, small units stay", ZC_STAGE_3, .prefetch_units = 1, .persist = 2000 },
    { "zero3, reuse", ZC_STAGE_3, .prefetch_units = 1, .reuse = 60000 },
    { "zero3, reuse under a ceiling", ZC_STAGE_3, .reuse = 1000000, .live = 50000 },
    { "zero3, optimizer host", ZC_STAGE_3, ZC_ZERO_HOST, .prefetch_units = 1 },
    { "zero3, both host", ZC_STAGE_3, ZC_ZERO_HOST, ZC_ZERO_HOST, .prefetch_units = 1 },
    { "zero3, both nvme", ZC_STAGE_3, ZC_ZERO_NVME, ZC_ZERO_NVME, .reduce = 1, .reuse = 100000 },
    { "fsdp, kept", ZC_STAGE_3, .keep = true },
    { "fsdp, kept, ahead", ZC_STAGE_3, .prefetch_units = 1, .keep = true },
    { "fsdp, kept under a ceiling", ZC_STAGE_3, .keep = true, .live = 60000 },
};

static void mode_set(struct party *p, const struct mode *m, uint32_t micro_steps)
{
    for (uint32_t r = 0; r < p->world; r++) {
        struct zc_zero_options *o = &p->runs[r].options;

        o->stage = m->stage;
        o->offload_optimizer = m->offload;
        o->offload_param = m->params;
        o->keep_gathered = m->keep;
        o->reduce_waits = m->waits;
        o->persist_elems = m->persist;
        o->live_elems = m->live;
        o->reuse_elems = m->reuse;
        o->prefetch_elems = m->prefetch;
        o->prefetch_units = m->prefetch_units;
        o->reduce_elems = m->reduce;
        o->micro_steps = micro_steps;
    }
}

static void mode_party(struct party *p, const struct mode *m, uint32_t world, enum zc_dtype dtype,
                       uint32_t micro_steps, uint32_t delay)
{
    const struct fake_config fake = { .page_elems = 4096, .seed = 3, .delay_max = delay / 4 };

    fake_reset(&fake);
    party_new(p, world, dtype, world + 7 * micro_steps, delay);
    mode_set(p, m, micro_steps);
    for (uint32_t r = 0; r < world; r++)
        p->runs[r].steps = STEPS;
}

static void mode_run(struct party *p)
{
    party_run(p);
    party_assert_ran(p);
    fake_end();
}

static void every_mode_trains_the_same(void **state)
{
    static const struct mode zero3 = { "zero3", ZC_STAGE_3, .prefetch_units = 1 };

    (void)state;
    for (uint32_t world = 1; world <= 4; world++) {
        enum zc_dtype dtype = world % 2 ? ZC_F32 : ZC_BF16;
        uint32_t micro_steps = 1 + world / 2 % 2;
        struct party want;

        mode_party(&want, &zero3, world, dtype, micro_steps, 0);
        mode_run(&want);
        for (size_t m = world % EVERY; m < ZB_COUNT(modes); m += EVERY) {
            struct party p;

            mode_party(&p, &modes[m], world, dtype, micro_steps, 2);
            mode_run(&p);
            assert_runs_same(modes[m].name, &want.runs[0], &p.runs[0]);
            party_done(&p);
        }
        party_done(&want);
    }
}

/* A nonfinite gradient on one rank makes all ranks skip the step; and an evaluation between steps,
 * which gathers but does not reduce, has no effect. */
static void skips_and_evaluations(void **state)
{
    static const struct mode zero3 = { "zero3", ZC_STAGE_3, .prefetch_units = 1 };
    struct party want;

    (void)state;
    for (size_t m = 0; m <= ZB_COUNT(modes); m += m == 0 ? 1 : 3) {
        struct party p;

        mode_party(&p, m == 0 ? &zero3 : &modes[m - 1], 3, ZC_F32, 2, 1);
        for (uint32_t r = 0; r < 3; r++) {
            p.runs[r].poison_step = 2;
            p.runs[r].poison_unit = 1;
            p.runs[r].evaluate = true;
        }
        mode_run(&p);
        assert_true(p.runs[0].skipped[1]);
        if (m == 0) {
            want = p;
            continue;
        }
        assert_runs_same(modes[m - 1].name, &want.runs[0], &p.runs[0]);
        party_done(&p);
    }
    party_done(&want);
}

/* Micro-steps that are summed in the trainer, or within each unit, before they are reduced: the
 * same bits in every mode, too. */
static void accumulated_before_the_exchange(void **state)
{
    static const struct mode zero3 = { "zero3", ZC_STAGE_3, .prefetch_units = 1 };

    (void)state;
    for (enum zc_dtype dtype = ZC_F32; dtype <= ZC_BF16; dtype++) {
        struct party want;

        for (size_t m = 0; m <= ZB_COUNT(modes); m += m == 0 ? dtype - ZC_F32 + 1 : EVERY) {
            bool vertical = m / 2 % 2 == (dtype == ZC_F32);
            struct party p;

            mode_party(&p, m == 0 ? &zero3 : &modes[m - 1], 2, dtype, 3, 2);
            for (uint32_t r = 0; r < 2; r++) {
                p.runs[r].options.vertical = vertical && m > 0;
                p.runs[r].options.accumulate_local = !p.runs[r].options.vertical;
            }
            mode_run(&p);
            if (m == 0) {
                want = p;
                continue;
            }
            assert_runs_same(modes[m - 1].name, &want.runs[0], &p.runs[0]);
            party_done(&p);
        }
        party_done(&want);
    }
}

/* ---- groups */

static void groups_train_nearly_the_same(void **state)
{
    (void)state;
    for (enum zc_dtype dtype = ZC_F32; dtype <= ZC_BF16; dtype++) {
        static const struct mode zero3 = { "zero3", ZC_STAGE_3, .prefetch_units = 1 };
        struct party want;

        mode_party(&want, &zero3, 4, dtype, 2, 0);
        mode_run(&want);
        for (size_t m = 8; m < ZB_COUNT(modes); m += dtype == ZC_F32 ? 1 : 3) {
            struct party p;

            if (modes[m].offload != ZC_ZERO_NONE)
                continue; /* a job for each group: test_daemon.c */
            mode_party(&p, &modes[m], 4, dtype, 2, 2);
            for (uint32_t r = 0; r < 4; r++)
                p.runs[r].options.group_ranks = 2;
            mode_run(&p); /* replicas have the same bits */
            assert_values_near(modes[m].name, &want.runs[0].values, &p.runs[0].values,
                               dtype == ZC_F32 ? 1e-5 : 0.02);
            party_done(&p);
        }
        party_done(&want);
    }
}

/* ---- bytes */

/* Declares the units of an engine, without starting it. */
static uint64_t padded(uint64_t elems, uint32_t world)
{
    uint64_t slice = (elems + world - 1) / world;

    return (slice + ZB_BLOCK_ELEMS - 1) / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS * world;
}

/* The literature's formula for units that are whole blocks for every number of ranks. */
static void bytes_are_those_of_the_formulas(void **state)
{
    static const uint32_t worlds[] = { 1, 2, 4, 8 };
    static const struct {
        enum zc_dtype dtype;
        uint32_t p, g, k;
    } layouts[] = { { ZC_F32, 4, 4, 8 }, { ZC_BF16, 2, 4, 10 } };
    static const uint64_t elems[] = { 8 * 1024, 8 * 5 * 1024, 8 * 1024 + 1 };

    (void)state;
    for (size_t w = 0; w < ZB_COUNT(worlds); w++)
        for (size_t l = 0; l < ZB_COUNT(layouts); l++)
            for (enum zc_zero_stage stage = ZC_STAGE_DDP; stage <= ZC_STAGE_3; stage++) {
                struct comm_group *group = comm_group_new(1, 1, 0);
                struct zcz_pass pass = { 0 };
                struct zc_zero z = { .world = worlds[w], .pass = &pass };
                uint64_t params = 0;
                struct zc_zero_bytes got;

                /* by arithmetic: other ranks are not needed */
                zc_zero_defaults(&z.options);
                z.options.stage = stage;
                z.rank = worlds[w] > 2 ? 1 : 0;
                z.comm = comm_group_rank(group, 0);
                assert_int_equal(zcz_split(&z), 0);
                for (uint32_t i = 0; i < ZB_COUNT(elems); i++) {
                    uint64_t one[] = { elems[i] };
                    struct zc_tensor t = { .name = "t", .ndims = 1, .dims = { one[0] } };
                    struct zc_unit unit = { .index = i,
                                            .name = "u",
                                            .elems = elems[i],
                                            .dtype = layouts[l].dtype,
                                            .tensors = &t,
                                            .ntensors = 1 };

                    assert_int_equal(zc_zero_add_unit(&z, &unit), 0);
                    params += padded(elems[i], stage == ZC_STAGE_DDP ? 1 : worlds[w]);
                }
                zc_zero_bytes(&z, &got);
                {
                    uint64_t n = worlds[w], p = layouts[l].p, g = layouts[l].g, k = layouts[l].k;
                    uint64_t cut_p = stage == ZC_STAGE_3 ? n : 1,
                             cut_g = stage >= ZC_STAGE_2 ? n : 1,
                             cut_k = stage >= ZC_STAGE_1 ? n : 1;

                    assert_int_equal(got.param, p * params / cut_p);
                    assert_int_equal(got.grad, g * params / cut_g);
                    assert_int_equal(got.state, k * params / cut_k);
                    assert_int_equal(got.daemon_param + got.daemon_grad + got.daemon_state, 0);
                }
                zcz_units_done(&z);
                comm_group_free(group);
            }
}

/* Counted bytes must be the allocated ones. */
static void what_is_counted_is_allocated(void **state)
{
    (void)state;
    for (enum zc_zero_stage stage = ZC_STAGE_DDP; stage <= ZC_STAGE_3; stage++)
        for (uint32_t micro = 1; micro <= 2; micro++) {
            const struct mode m = { "bytes", stage, .prefetch_units = 1 };
            struct party p;

            mode_party(&p, &m, 2, ZC_F32, micro, 0);
            mode_run(&p);
            for (uint32_t r = 0; r < 2; r++) {
                const struct zc_zero_bytes *b = &p.runs[r].bytes;

                assert_int_equal(b->param + b->grad + b->state, p.runs[r].stats.host_bytes);
            }
            party_done(&p);
        }
}

/* Bytes that a rank sends in steps of two micro-steps, when no unit stays gathered. */
static void wire_bytes_are_those_of_the_formulas(void **state)
{
    uint64_t all = 0, trained = 0, steps = STEPS;
    uint32_t world = 2;

    (void)state;
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        all += 4 * padded(model_units[u].elems, world) / world;
        trained += model_units[u].frozen ? 0 : 4 * padded(model_units[u].elems, world) / world;
    }
    for (size_t m = 0; m < ZB_COUNT(modes); m++) {
        struct party p;
        const struct zc_zero_stats *s;

        mode_party(&p, &modes[m], world, ZC_F32, 2, 0);
        mode_run(&p);
        s = &p.runs[0].stats;
        if (modes[m].stage == ZC_STAGE_DDP) { /* all-reduce: each slice is sent twice */
            assert_int_equal(s->comm_across_bytes, steps * 2 * 2 * trained);
            assert_int_equal(s->comm_gather_bytes + s->comm_reduce_bytes, 0);
        } else {
            assert_int_equal(s->comm_across_bytes, 0);
            assert_int_equal(s->comm_reduce_bytes, steps * 2 * trained);
        }
        if (strstr(modes[m].name, "nothing ahead"))
            assert_int_equal(s->comm_gather_bytes, steps * all); /* once in a step */
        if (strcmp(modes[m].name, "fsdp, kept") == 0)
            assert_int_equal(s->comm_gather_bytes, steps * 2 * all); /* once in a micro-step */
        if (strcmp(modes[m].name, "zero3, no prefetch") == 0)
            assert_true(s->comm_gather_bytes > steps * 2 * 1.5 * all);
        party_done(&p);
    }
}

/* zctl plan's forecast for a job with the daemon. */
static uint64_t forecast_of(enum zb_mode mode, enum zc_dtype dtype, uint32_t world)
{
    struct zb_node node = { .host_bytes = UINT64_C(1) << 40, .page_elems = 4096 };
    struct zb_model m = { 0 };
    struct zb_run run = { .model = &m,
                          .mode = mode,
                          .ranks = world,
                          .nodes = 1,
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1 };
    struct zb_forecast f;

    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        if (!model_units[u].frozen)
            assert_int_equal(zb_model_add(&m, padded(model_units[u].elems, world), NULL), 0);
    assert_int_equal(zb_model_order(&m, NULL), 0);
    assert_int_equal(zb_layout_of((enum zb_dtype)dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false,
                                  &run.layout, NULL),
                     0);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    zb_model_done(&m);
    return f.grad_bytes;
}

/* In addition to whole gradients, which count as states. In halves of the largest unit's gradient,
 * in fp32. Units differ here, so the pool also has idle buffers of other sizes. */
static void gradient_buffers_are_those_of_the_forecast(void **state)
{
    static const struct {
        struct mode mode;
        enum zb_mode forecast; /* for offloaded states, and for DDP */
        uint64_t most[2];      /* fp32, bf16 */
    } cases[] = {
        { { "ddp", ZC_STAGE_DDP, .prefetch_units = 1 }, ZB_DDP, { 10, 10 } },
        { { "zero1, slices in them", ZC_STAGE_1, .prefetch_units = 1 }, ZB_MODES, { 4, 2 } },
        { { "zero1, host", ZC_STAGE_1, ZC_ZERO_HOST, .prefetch_units = 1 }, ZB_ZERO1, { 4, 0 } },
        { { "zero2, host", ZC_STAGE_2, ZC_ZERO_HOST, .prefetch_units = 1 }, ZB_ZERO2, { 10, 6 } },
        { { "zero3, host", ZC_STAGE_3, ZC_ZERO_HOST, .prefetch_units = 1 }, ZB_ZERO3, { 10, 6 } },
    };
    static const enum zc_dtype dtypes[] = { ZC_F32, ZC_BF16 };
    const uint64_t idle = 2 * (ZCZ_REDUCES_MAX + 1);
    uint64_t half = 0;
    uint32_t world = 2;

    (void)state;
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        if (!model_units[u].frozen)
            half = zb_max_u64(half, padded(model_units[u].elems, world) * 2);
    for (size_t c = 0; c < ZB_COUNT(cases); c++)
        for (size_t d = 0; d < ZB_COUNT(dtypes); d++) {
            uint64_t most = cases[c].most[d] * half, used = 0;
            struct party p;

            mode_party(&p, &cases[c].mode, world, dtypes[d], 1, 2);
            mode_run(&p);
            for (uint32_t r = 0; r < world; r++)
                used = zb_max_u64(used, p.runs[r].stats.grad_buffer_bytes);
            if (used > (most ? most + idle * half : 0) || (used == 0) != (most == 0))
                fail_msg("%s, %u bits: %llu bytes, and not up to %llu", cases[c].mode.name,
                         d ? 16 : 32, (unsigned long long)used, (unsigned long long)most);
            if (cases[c].forecast != ZB_MODES)
                assert_int_equal(forecast_of(cases[c].forecast, dtypes[d], world), most);
            party_done(&p);
        }
}

static void a_limit_of_memory(void **state)
{
    static const struct mode ddp = { "ddp", ZC_STAGE_DDP, .prefetch_units = 0 },
                             zero3 = { "zero3", ZC_STAGE_3, .prefetch_units = 0 };
    struct party p;
    uint64_t limit;

    (void)state;
    mode_party(&p, &ddp, 4, ZC_F32, 1, 0);
    mode_run(&p);
    limit = p.runs[0].bytes.param + p.runs[0].bytes.grad + p.runs[0].bytes.state;
    party_done(&p);
    mode_party(&p, &ddp, 4, ZC_F32, 1, 0);
    for (uint32_t r = 0; r < 4; r++)
        p.runs[r].options.memory_bytes = limit;
    party_run(&p);
    for (uint32_t r = 0; r < 4; r++) {
        char number[32];

        assert_int_equal(p.runs[r].rc, -ENOSPC);
        (void)snprintf(number, sizeof(number), "the limit is %llu", (unsigned long long)limit);
        assert_non_null(strstr(p.runs[r].error, number));
        assert_non_null(strstr(p.runs[r].error, "stage 0 over 4 ranks"));
    }
    party_done(&p);
    mode_party(&p, &zero3, 4, ZC_F32, 1, 0);
    for (uint32_t r = 0; r < 4; r++)
        p.runs[r].options.memory_bytes = limit;
    mode_run(&p);
    limit = p.runs[0].bytes.param + p.runs[0].bytes.grad + p.runs[0].bytes.state;
    party_done(&p);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) /* all gradients, and nothing in addition */
        limit += model_units[u].frozen ? 0 : padded(model_units[u].elems, 4) * sizeof(float);
    for (int local = 0; local < 2; local++) {
        mode_party(&p, &zero3, 4, ZC_F32, 3, 0);
        for (uint32_t r = 0; r < 4; r++) {
            p.runs[r].options.memory_bytes = limit;
            p.runs[r].options.accumulate_local = local;
        }
        party_run(&p);
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(p.runs[r].rc, local ? -ENOSPC : 0);
        fake_end();
        party_done(&p);
    }
}

/* ---- order */

struct jump {
    struct zc_comm *comm;
    int rc;
    char error[256];
};

static int ones(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    (void)unit;
    (void)first;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 1;
    return 0;
}

static int jump_micro(struct zc_zero *z, const uint32_t *order, uint32_t n, bool reduce)
{
    const void *params;
    float *grad;
    int rc = 0;

    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = zc_zero_gather(z, order[i], &params);
        if (rc == 0)
            rc = zc_zero_release(z, order[i]);
    }
    for (uint32_t u = 0; u < 8 && rc == 0 && reduce; u++) {
        rc = zc_zero_grad(z, u, &grad);
        if (rc == 0)
            rc = zc_zero_reduce(z, u);
    }
    return rc;
}

static void *jump_run(void *arg)
{
    static const uint32_t usual[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    static const uint32_t other[] = { 0, 4, 1, 5, 2, 6, 3, 7, 0, 3, 1, 6, 2, 5, 0 };
    struct jump *j = arg;
    struct zc_zero_options o;
    struct zc_zero *z = NULL;
    struct zc_zero_stepped stepped;
    struct zc_tensor t = { .name = "t", .ndims = 1, .dims = { 3000 } };

    zc_zero_defaults(&o);
    o.comm = j->comm;
    o.prefetch_units = 2;
    o.timeout_ms = 20000;
    j->rc = zc_zero_open(&z, &o);
    for (uint32_t u = 0; u < 8 && j->rc == 0; u++) {
        struct zc_unit unit = {
            .index = u, .name = "u", .elems = 3000, .dtype = ZC_F32, .tensors = &t, .ntensors = 1
        };

        j->rc = zc_zero_add_unit(z, &unit);
    }
    if (j->rc == 0)
        j->rc = zc_zero_start(z, ones, NULL);
    for (uint32_t s = 0; s < 6 && j->rc == 0; s++) {
        j->rc = jump_micro(z, usual, ZB_COUNT(usual), true);
        if (j->rc == 0)
            j->rc = zc_zero_step(z, 0.01, &stepped);
        if (j->rc == 0)
            j->rc = jump_micro(z, other, ZB_COUNT(other), false);
    }
    (void)snprintf(j->error, sizeof(j->error), "%s", zc_zero_error(z));
    zc_zero_close(z, j->rc == 0);
    return NULL;
}

/* A gather ahead was given up before it ended, and the unit is wanted again at once; on some ranks
 * the gather had ended. All ranks must start the same collectives. */
static void what_was_given_up_is_wanted(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (ztest_is_long() ? 20 : 4); seed++) {
        struct comm_group *group = comm_group_new(3, seed, 60);
        struct jump jumps[3] = { { .rc = 0 } };
        pthread_t threads[3];

        for (uint32_t r = 0; r < 3; r++) {
            jumps[r].comm = comm_group_rank(group, r);
            assert_int_equal(pthread_create(&threads[r], NULL, jump_run, &jumps[r]), 0);
        }
        for (uint32_t r = 0; r < 3; r++)
            (void)pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < 3; r++)
            if (jumps[r].rc != 0)
                fail_msg("seed %u, rank %u: %d %s", (unsigned)seed, r, jumps[r].rc, jumps[r].error);
        comm_group_free(group);
    }
}

/* ---- refusals */

static void modes_that_are_wrong(void **state)
{
    static const struct {
        struct zc_zero_options o;
        const char *part;
    } rows[] = {
        { { .stage = 4 }, "stage 4: from 0 to 3" },
        { { .stage = ZC_STAGE_DDP, .offload_optimizer = ZC_ZERO_HOST },
          "stage 0 keeps all model states" },
        { { .stage = ZC_STAGE_2, .offload_optimizer = ZC_ZERO_HOST, .offload_param = ZC_ZERO_HOST },
          "only stage 3 offloads them" },
        { { .stage = ZC_STAGE_1, .keep_gathered = true }, "keeps all parameters gathered" },
        { { .stage = ZC_STAGE_2, .live_elems = 1 }, "keeps all parameters gathered" },
        { { .stage = ZC_STAGE_3, .group_ranks = 2 }, "groups of 2 ranks" },
        { { .stage = ZC_STAGE_1, .group_ranks = 1 }, "groups of 1 ranks" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct comm_group *group = comm_group_new(1, 1, 0);
        struct zc_zero_options o;
        struct zc_zero *z;

        zc_zero_defaults(&o);
        o.comm = comm_group_rank(group, 0);
        o.stage = rows[i].o.stage;
        o.offload_optimizer = rows[i].o.offload_optimizer;
        o.offload_param = rows[i].o.offload_param;
        o.keep_gathered = rows[i].o.keep_gathered;
        o.live_elems = rows[i].o.live_elems;
        o.group_ranks = rows[i].o.group_ranks;
        assert_int_equal(zc_zero_open(&z, &o), -EINVAL);
        if (!strstr(zc_zero_error(z), rows[i].part))
            fail_msg("row %zu: '%s'", i, zc_zero_error(z));
        zc_zero_close(z, false);
        comm_group_free(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_trains_the_same),
        cmocka_unit_test(skips_and_evaluations),
        cmocka_unit_test(accumulated_before_the_exchange),
        cmocka_unit_test(groups_train_nearly_the_same),
        cmocka_unit_test(bytes_are_those_of_the_formulas),
        cmocka_unit_test(what_is_counted_is_allocated),
        cmocka_unit_test(wire_bytes_are_those_of_the_formulas),
        cmocka_unit_test(gradient_buffers_are_those_of_the_forecast),
        cmocka_unit_test(a_limit_of_memory),
        cmocka_unit_test(what_was_given_up_is_wanted),
        cmocka_unit_test(modes_that_are_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
