/*
 * Engines of several ranks, as threads, with both stores: the same numbers whatever the division,
 * the store, the delays; and every failure ends in time, with an error message.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "comm_threads.h"
#include "fake_client.h"
#include "model.h"
#include "party.h"

/* TSan is slow, and its findings do not depend on which call fails. */
#if defined(__SANITIZE_THREAD__)
#define CALLS_SKIPPED (ztest_is_long() ? 6u : 40u)
#else
#define CALLS_SKIPPED (4 * (ztest_stride(2) - 1))
#endif

/* ---- numbers */

static void every_division_trains_the_same(void **state)
{
    static const enum zc_dtype dtypes[] = { ZC_F32, ZC_BF16 };

    (void)state;
    for (size_t d = 0; d < ZB_COUNT(dtypes); d++) {
        struct party alone;

        party_new(&alone, 1, dtypes[d], 1, 0);
        party_run(&alone);
        party_assert_ran(&alone);
        for (uint32_t world = 2; world <= 4; world++) {
            struct party p;

            party_new(&p, world, dtypes[d], world, 0);
            party_run(&p);
            party_assert_ran(&p);
            /* bf16 rounds each rank's part, so results differ in the last of 8 bits */
            assert_values_near("division", &alone.runs[0].values, &p.runs[0].values,
                               dtypes[d] == ZC_F32 ? 1e-5 : 0.02);
            for (uint32_t s = 0; s < 4; s++)
                assert_true(fabs(alone.runs[0].norms[s] - p.runs[0].norms[s]) <=
                            (dtypes[d] == ZC_F32 ? 1e-6 : 1e-2) * alone.runs[0].norms[s]);
            party_done(&p);
        }
        party_done(&alone);
    }
}

/* Powers of two: fp32 rounds the same. */
static void a_loss_scale_changes_no_bit(void **state)
{
    static const struct zc_loss_scale scales[] = {
        { .fixed = 1024 },
        { .dynamic = true, .power = 16, .window = 1, .hysteresis = 1, .min = 1 },
        { .dynamic = true, .power = 0, .window = 1000, .hysteresis = 2, .min = 0.5 },
    };

    (void)state;
    for (uint32_t world = 1; world <= 3; world++) {
        struct party plain;

        party_new(&plain, world, ZC_F32, 1, 0);
        party_run(&plain);
        party_assert_ran(&plain);
        assert_true(plain.runs[0].scales[3] == 1 && plain.runs[0].clips[0] < 1);
        for (size_t i = 0; i < ZB_COUNT(scales); i++) {
            struct party p;

            party_new(&p, world, ZC_F32, 1, 0);
            for (uint32_t r = 0; r < world; r++)
                p.runs[r].options.loss_scale = scales[i];
            party_run(&p);
            party_assert_ran(&p);
            assert_runs_same("scaled", &plain.runs[0], &p.runs[0]);
            assert_true(p.runs[0].scales[3] == (i == 0 ? 1024 : i == 1 ? 0x1p18 : 1));
            party_done(&p);
        }
        party_done(&plain);
    }
}

/* fp16 overflows by itself: 2^20 times a gradient of about 1 exceeds fp16. The last rank gets one
 * more overflow. */
static void overflows_skip_and_scale(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 3; world++) {
        struct party p;
        double scale = 0x1p20;
        uint32_t skips = 0;

        party_new(&p, world, ZC_F16, 1, 0);
        for (uint32_t r = 0; r < world; r++) {
            p.runs[r].steps = 13;
            p.runs[r].poison_step = 11;
            p.runs[r].options.loss_scale = (struct zc_loss_scale){
                .dynamic = true, .power = 20, .window = 1000, .hysteresis = 1, .min = 1
            };
        }
        party_run(&p);
        party_assert_ran(&p);
        for (uint32_t s = 0; s < 13; s++) {
            const struct run *r = &p.runs[0];

            if (r->scales[s] != scale || (s == 10 && !r->skipped[s]) ||
                (s != 10 && s > skips && r->skipped[s])) /* the fp16 overflows come first */
                fail_msg("%u ranks, step %u: scale %g, not %g; skipped %d", world, s, r->scales[s],
                         scale, r->skipped[s]);
            assert_true(r->skipped[s] == isnan(r->norms[s]));
            skips += r->skipped[s];
            scale = r->skipped[s] ? scale / 2 : scale;
        }
        assert_true(skips >= 4 && skips <= 8); /* from 2^20 down, until 65504 is not exceeded */
        assert_int_equal(p.runs[0].last.applied, 13 - skips);
        assert_true(p.runs[0].next_scale == scale);
        party_done(&p);
    }
}

static void assert_all_failed(const char *name, const struct party *p, double within_s);

static void an_overflow_at_the_least_scale(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 3; world++) {
        struct party p;

        party_new(&p, world, ZC_F32, 1, 0);
        for (uint32_t r = 0; r < world; r++) {
            p.runs[r].poison_step = 2;
            p.runs[r].poison_more = 1u << 4;
            p.runs[r].options.loss_scale = (struct zc_loss_scale){
                .dynamic = true, .power = 1, .window = 1000, .hysteresis = 1, .min = 1
            };
        }
        party_run(&p);
        assert_all_failed("the least scale", &p, 1.0);
        for (uint32_t r = 0; r < world; r++) {
            assert_int_equal(p.runs[r].rc, -ERANGE);
            if (!strstr(p.runs[r].error, "step 4: a gradient is not finite, and the loss scale is "
                                         "1, its minimum"))
                fail_msg("rank %u: %s", r, p.runs[r].error);
            assert_int_equal(p.runs[r].last.iterations, 3);
        }
        party_done(&p);
    }
}

static void delays_change_nothing(void **state)
{
    struct party base;

    (void)state;
    party_new(&base, 3, ZC_BF16, 1, 0);
    party_run(&base);
    party_assert_ran(&base);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct party p;

        party_new(&p, 3, ZC_BF16, seed, 12);
        for (uint32_t r = 0; r < 3; r++)
            p.runs[r].options.prefetch_units = (uint32_t)seed - 1;
        party_run(&p);
        party_assert_ran(&p);
        assert_runs_same("delays", &base.runs[0], &p.runs[0]);
        party_done(&p);
    }
    party_done(&base);
}

/* Only the store differs: no bit may change. */
static void stores_agree(void **state)
{
    static const struct {
        const char *name;
        struct fake_config fake;
        uint32_t world, micro, prefetch;
        enum zc_dtype dtype;
        uint64_t poison;
        bool evaluate;
    } cases[] = {
        { "alone", { .page_elems = 4096 }, 1, 1, 1, ZC_F32, 0, false },
        { "alone, ring", { .page_elems = 4096, .ring = true }, 1, 2, 2, ZC_BF16, 0, true },
        { "alone, ring, far ahead",
          { .page_elems = 8192, .ring = true, .seed = 5, .delay_max = 5 },
          1,
          1,
          6,
          ZC_BF16,
          2,
          false },
        { "alone, ring, all at once",
          { .page_elems = 4096, .ring = true },
          1,
          2,
          9,
          ZC_F32,
          0,
          false },
        { "two", { .page_elems = 4096, .ring = true }, 2, 1, 1, ZC_F32, 0, false },
        { "two, late",
          { .page_elems = 4096, .seed = 7, .delay_max = 20 },
          2,
          3,
          2,
          ZC_BF16,
          3,
          true },
        { "three",
          { .page_elems = 8192, .ring = true, .seed = 9, .delay_max = 6 },
          3,
          2,
          4,
          ZC_BF16,
          0,
          true },
        { "four, one shard a call",
          { .page_elems = 262144, .shards_max = 1, .seed = 3, .delay_max = 3 },
          4,
          1,
          0,
          ZC_F32,
          1,
          false },
        { "four on two nodes", { .page_elems = 4096, .nodes = 2 }, 4, 1, 1, ZC_BF16, 0, false },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party none, daemon;

        for (int k = 0; k < 2; k++) {
            struct party *p = k == 0 ? &none : &daemon;

            party_new(p, cases[i].world, cases[i].dtype, i, k == 0 ? 0 : 10);
            for (uint32_t r = 0; r < p->world; r++) {
                p->runs[r].options.micro_steps = cases[i].micro;
                p->runs[r].options.prefetch_units = cases[i].prefetch;
                p->runs[r].poison_step = cases[i].poison;
                p->runs[r].evaluate = cases[i].evaluate;
            }
        }
        party_run(&none);
        party_assert_ran(&none);
        fake_reset(&cases[i].fake);
        party_offload(&daemon, ZC_ZERO_NVME);
        party_run(&daemon);
        party_assert_ran(&daemon);
        assert_runs_same(cases[i].name, &none.runs[0], &daemon.runs[0]);
        assert_int_equal(none.runs[0].stats.pushed_bytes, daemon.runs[0].stats.pushed_bytes);
        assert_int_equal(daemon.runs[0].stats.nvme_read_bytes, 4);
        assert_int_equal(daemon.runs[0].stats.nvme_written_bytes, 8);
        assert_int_equal(daemon.runs[0].stats.nvme_bytes, 2000);
        assert_int_equal(fake_handles(), 0);
        if (cases[i].fake.ring)
            assert_true(fake_pins_most() <= ZC_PINS_MIN);
        fake_end();
        party_done(&none);
        party_done(&daemon);
    }
}

/* For any number of ranks and any placement: gradients summed by the engine in this process, or by
 * the trainer within each unit, give the same bits, with one exchange a step. */
static void accumulated_before_the_exchange(void **state)
{
    static const struct {
        const char *name;
        struct fake_config fake;
        uint32_t world, micro, prefetch;
        enum zc_dtype dtype;
        uint64_t poison;
    } cases[] = {
        { "alone", { .page_elems = 4096, .ring = true }, 1, 4, 1, ZC_BF16, 0 },
        { "two", { .page_elems = 4096, .seed = 7, .delay_max = 9 }, 2, 3, 2, ZC_F32, 2 },
        { "three",
          { .page_elems = 8192, .ring = true, .seed = 9, .delay_max = 6 },
          3,
          4,
          4,
          ZC_BF16,
          3 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party ways[4], each; /* vertical or not, with the daemon or without */

        fake_reset(&cases[i].fake);
        for (uint32_t k = 0; k <= ZB_COUNT(ways); k++) {
            struct party *p = k < ZB_COUNT(ways) ? &ways[k] : &each;

            party_new(p, cases[i].world, cases[i].dtype, i, k % 2 == 0 ? 0 : 10);
            for (uint32_t r = 0; r < p->world; r++) {
                p->runs[r].options.micro_steps = cases[i].micro;
                p->runs[r].options.prefetch_units = k / 2 == 0 ? cases[i].prefetch : 0;
                p->runs[r].options.vertical = p == &ways[1] || p == &ways[3];
                p->runs[r].options.accumulate_local = p == &ways[0] || p == &ways[2];
                p->runs[r].poison_step = cases[i].poison;
            }
            if (k == 1 || k == 2)
                party_offload(p, ZC_ZERO_NVME);
            party_run(p);
            party_assert_ran(p);
        }
        for (uint32_t k = 1; k < ZB_COUNT(ways); k++)
            assert_runs_same(cases[i].name, &ways[0].runs[0], &ways[k].runs[0]);
        assert_values_near(cases[i].name, &each.runs[0].values, &ways[0].runs[0].values,
                           cases[i].dtype == ZC_F32 ? 1e-5 : 0.02);
        for (uint32_t k = 0; k < ZB_COUNT(ways); k++)
            assert_int_equal(ways[k].runs[0].stats.pushed_bytes * cases[i].micro,
                             each.runs[0].stats.pushed_bytes);
        assert_true(cases[i].world == 1 ||
                    ways[0].runs[0].stats.comm_bytes < each.runs[0].stats.comm_bytes);
        assert_true(ways[1].runs[0].stats.fetched_bytes * 2 < ways[0].runs[0].stats.fetched_bytes);
        assert_int_equal(fake_handles(), 0);
        fake_end();
        for (uint32_t k = 0; k < ZB_COUNT(ways); k++)
            party_done(&ways[k]);
        party_done(&each);
    }
}

/* A single rank reads the daemon's memory: no buffers, until there are not enough pins. */
static void alone_nothing_is_copied(void **state)
{
    static const struct fake_config configs[] = { { .page_elems = 4096 },
                                                  { .page_elems = 4096, .ring = true } };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(configs); i++) {
        struct party p;

        fake_reset(&configs[i]);
        party_new(&p, 1, ZC_F32, 1, 0);
        party_offload(&p, ZC_ZERO_HOST);
        party_run(&p);
        party_assert_ran(&p);
        assert_int_equal(p.runs[0].stats.gather_buffer_bytes, 0);
        fake_end();
        party_done(&p);
    }
}

static void memory_follows_what_is_gathered(void **state)
{
    struct party p;
    uint64_t params = 0, largest = 6 * 4096 * 4;

    (void)state;
    party_new(&p, 2, ZC_F32, 1, 0);
    party_run(&p);
    party_assert_ran(&p);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        params += zb_padded_elems(model_units[u].elems) * 4;
    assert_true(p.runs[0].stats.gather_buffer_bytes <= params);
    assert_true(p.runs[0].stats.gather_buffer_bytes >= largest);
    assert_true(p.runs[0].stats.host_bytes < 4 * params * 3 / 4);
    assert_true(p.runs[0].stats.comm_bytes > 0);
    party_done(&p);
}

/* ---- engines driven by hand */

#define SMALL_UNITS 4u

struct hand {
    struct zc_zero *z;
    struct zc_zero_options options;
    enum zc_dtype dtype;
    float grad;   /* of unit 0's only element */
    double value; /* for zc_zero_sum() */
    struct zc_zero_stepped stepped;
};

static int zeros(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    (void)unit;
    (void)first;
    memset(out, 0, count * sizeof(*out));
    return 0;
}

static void hand_open(struct hand *h, struct zc_comm *comm, enum zc_dtype dtype)
{
    zc_zero_defaults(&h->options);
    h->options.comm = comm;
    h->options.socket = "rank 0";
    h->dtype = dtype;
}

static int hand_start(struct hand *h)
{
    static const struct zc_tensor one = { .name = "t" };
    int rc = zc_zero_open(&h->z, &h->options);

    for (uint32_t u = 0; u < SMALL_UNITS && rc == 0; u++)
        rc = zc_zero_add_unit(h->z, &(struct zc_unit){ .index = u,
                                                       .name = "u",
                                                       .elems = 1,
                                                       .dtype = h->dtype,
                                                       .tensors = &one,
                                                       .ntensors = 1 });
    return rc < 0 ? rc : zc_zero_start(h->z, zeros, NULL);
}

/* Gathers 0 .. 3, 3 .. 0, and reduces; pins_at[i] is the number of pins at gather i. */
static void hand_micro(struct hand *h, uint32_t *pins_at)
{
    for (uint32_t i = 0; i < 2 * SMALL_UNITS; i++) {
        uint32_t u = i < SMALL_UNITS ? i : 2 * SMALL_UNITS - 1 - i;
        const void *params;
        float *grad;

        assert_int_equal(zc_zero_gather(h->z, u, &params), 0);
        for (int k = 0; k < 20; k++)
            assert_int_equal(zc_zero_poll(h->z), 0);
        if (pins_at)
            pins_at[i] = fake_pins();
        assert_int_equal(zc_zero_release(h->z, u), 0);
        if (i < SMALL_UNITS)
            continue;
        assert_int_equal(zc_zero_grad(h->z, u, &grad), 0);
        grad[0] += u == 0 ? h->grad : 0;
        assert_int_equal(zc_zero_reduce(h->z, u), 0);
    }
}

static void what_comes_next_is_fetched_ahead(void **state)
{
    static const struct fake_config config = { .page_elems = 4096 };

    (void)state;
    for (uint32_t ahead = 0; ahead <= 2; ahead++) {
        struct comm_group *g = comm_group_new(1, 1, 0);
        struct hand h = { 0 };
        uint32_t pins[2 * SMALL_UNITS];

        fake_reset(&config);
        hand_open(&h, comm_group_rank(g, 0), ZC_F32);
        h.options.offload_param = h.options.offload_optimizer = ZC_ZERO_HOST;
        h.options.prefetch_units = ahead;
        h.options.micro_steps = 2;
        assert_int_equal(hand_start(&h), 0);
        hand_micro(&h, pins); /* the order is not known yet */
        for (uint32_t i = 0; i < 2 * SMALL_UNITS; i++)
            assert_int_equal(pins[i], 1);
        for (int k = 0; k < 20; k++)
            assert_int_equal(zc_zero_poll(h.z), 0);
        assert_int_equal(fake_pins(), ahead); /* for the second micro-step */
        hand_micro(&h, pins);
        assert_int_equal(pins[0], 1 + ahead);
        assert_int_equal(pins[1], 1 + ahead);
        if (ahead == 2) /* at unit 3 the next two are 3, which is held, and 2 */
            assert_int_equal(pins[3], 2);
        assert_int_equal(pins[7], 1); /* the step is next: nothing is fetched ahead */
        assert_int_equal(fake_pins(), 0);
        assert_int_equal(zc_zero_step(h.z, 1, &h.stepped), 0);
        for (int k = 0; k < 20; k++)
            assert_int_equal(zc_zero_poll(h.z), 0);
        assert_int_equal(fake_pins(), ahead);
        zc_zero_close(h.z, true);
        fake_end();
        comm_group_free(g);
    }
}

static void *hand_add(void *arg)
{
    struct hand *h = arg;

    if (hand_start(h) == 0) {
        hand_micro(h, NULL);
        (void)zc_zero_sum(h->z, &h->value, 1);
        (void)zc_zero_step(h->z, 1, &h->stepped);
    }
    zc_zero_close(h->z, true);
    return NULL;
}

/* A gradient right after a step waits for it here, because the store is busy. */
static void gradients_wait_for_the_step(void **state)
{
    static const struct fake_config config = { .page_elems = 4096, .seed = 1, .delay_max = 9 };
    struct comm_group *g = comm_group_new(1, 1, 0);
    struct zc_zero_stats stats;
    struct hand h = { 0 };

    (void)state;
    fake_reset(&config);
    hand_open(&h, comm_group_rank(g, 0), ZC_F32);
    h.options.offload_param = h.options.offload_optimizer = ZC_ZERO_HOST;
    assert_int_equal(hand_start(&h), 0);
    for (uint32_t step = 1; step <= 5; step++) {
        for (uint32_t u = 0; u < SMALL_UNITS; u++) {
            float *grad;

            assert_int_equal(zc_zero_grad(h.z, u, &grad), 0);
            grad[0] = 1;
            assert_int_equal(zc_zero_reduce(h.z, u), 0);
        }
        assert_int_equal(zc_zero_step(h.z, 1, &h.stepped), 0);
        assert_int_equal(h.stepped.iterations, step);
        assert_true(h.stepped.grad_norm == 2);
        if (step % 2 == 0) { /* and so do the statistics */
            assert_int_equal(zc_zero_stats(h.z, &stats), 0);
            assert_int_equal(stats.nvme_read_bytes, step);
        }
    }
    zc_zero_close(h.z, true);
    fake_end();
    comm_group_free(g);
}

/* It takes longer than the timeout, but the daemon keeps answering, so the step is waited for. */
static void a_long_step_is_no_timeout(void **state)
{
    struct fake_config config = { .page_elems = 4096, .step_ms = 250 };
    struct comm_group *g = comm_group_new(1, 1, 0);
    struct hand h = { 0 };
    const void *params;

    (void)state;
    fake_reset(&config);
    hand_open(&h, comm_group_rank(g, 0), ZC_F32);
    h.options.offload_param = h.options.offload_optimizer = ZC_ZERO_HOST;
    h.options.timeout_ms = 100;
    assert_int_equal(hand_start(&h), 0);
    hand_micro(&h, NULL);
    assert_int_equal(zc_zero_step(h.z, 1, &h.stepped), 0);
    assert_int_equal(zc_zero_gather(h.z, SMALL_UNITS - 1, &params), 0);
    assert_int_equal(zc_zero_release(h.z, SMALL_UNITS - 1), 0);
    zc_zero_close(h.z, true);
    fake_end();
    comm_group_free(g);
}

/* Another order of additions, or another rounding, gives another result. */
static void sums_are_in_rank_order(void **state)
{
    static const struct {
        enum zc_dtype dtype;
        float grads[3];
        double want;
    } cases[] = {
        { ZC_F32, { 1e8f, 1, -1e8f }, 0 },
        { ZC_F32, { 1e8f, -1e8f, 1 }, 1 },
        { ZC_F32, { 1 + 0x1p-23f, 0, 0 }, 1 + 0x1p-23 },
        { ZC_BF16, { 1 + 0x1p-8f, 0, 0 }, 1 },                           /* a tie, to even */
        { ZC_BF16, { 1 + 3 * 0x1p-8f, 0, 0 }, 1 + 0x1p-6 },              /* another */
        { ZC_BF16, { 1 + 0x1p-7f, 0x1p-12f, 0 }, 1 + 0x1p-7 + 0x1p-12 }, /* added in fp32 */
        { ZC_BF16, { 0x1p25f, 1, -0x1p25f }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct comm_group *g = comm_group_new(3, 1, 2);
        struct hand hands[3] = { { 0 } };
        pthread_t threads[3];

        for (uint32_t r = 0; r < 3; r++) {
            hand_open(&hands[r], comm_group_rank(g, r), cases[i].dtype);
            hands[r].grad = cases[i].grads[r];
            hands[r].value = r == 0 ? 1e17 : r == 1 ? 1 : -1e17;
            assert_int_equal(pthread_create(&threads[r], NULL, hand_add, &hands[r]), 0);
        }
        for (uint32_t r = 0; r < 3; r++)
            pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(hands[r].stepped.applied, 1);
            assert_true(hands[r].value == 0);
            if (hands[r].stepped.grad_norm != cases[i].want * (1.0 / 3))
                fail_msg("case %zu: norm %.17g", i, hands[r].stepped.grad_norm * 3);
        }
        comm_group_free(g);
    }
}

/* ---- kept jobs */

static void a_kept_job_goes_on(void **state)
{
    static const struct fake_config config = { .page_elems = 4096, .seed = 3, .delay_max = 4 };
    struct party whole, first, second;

    (void)state;
    party_new(&whole, 2, ZC_BF16, 1, 0);
    party_run(&whole);
    party_assert_ran(&whole);
    fake_reset(&config);
    for (int dirty = 0; dirty < 2; dirty++) {
        party_new(&first, 2, ZC_BF16, 2, 0);
        party_new(&second, 2, ZC_BF16, 3, 0);
        party_offload(&first, ZC_ZERO_HOST);
        party_offload(&second, ZC_ZERO_HOST);
        for (uint32_t r = 0; r < 2; r++) {
            first.runs[r].options.keep = second.runs[r].options.keep = true;
            first.runs[r].options.job = second.runs[r].options.job = "kept";
            first.runs[r].steps = dirty ? 4 : 3;
            first.runs[r].stop_after = dirty ? 3 : 0; /* dies in the middle of an iteration */
            second.runs[r].options.resume = true;
            second.runs[r].steps = 1;
        }
        party_run(&first);
        if (!dirty)
            party_assert_ran(&first);
        party_run(&second);
        party_assert_ran(&second);
        assert_int_equal(second.runs[0].last.iterations, 4);
        for (uint32_t u = 0; u < MODEL_UNITS; u++)
            assert_memory_equal(whole.runs[0].values.master[u], second.runs[0].values.master[u],
                                model_units[u].elems * sizeof(float));
        fake_end();
        party_done(&first);
        party_done(&second);
    }
    party_done(&whole);
}

/* ---- failures */

/* Every rank ended with a failure, soon after the first one. */
static void assert_all_failed(const char *name, const struct party *p, double within_s)
{
    double first = INFINITY;

    for (uint32_t r = 0; r < p->world; r++)
        first = fmin(first, p->runs[r].ended_s);
    for (uint32_t r = 0; r < p->world; r++) {
        if (p->runs[r].rc >= 0 || !p->runs[r].error[0])
            fail_msg("%s: rank %u ended with %d, '%s'", name, r, p->runs[r].rc, p->runs[r].error);
        if (p->runs[r].ended_s - first > within_s)
            fail_msg("%s: rank %u ended %.3f s behind the first, with %d: %s", name, r,
                     p->runs[r].ended_s - first, p->runs[r].rc, p->runs[r].error);
    }
}

static const struct {
    const char *name;
    enum fake_fault fault;
    int rc;
    bool recovers;
} faults[] = {
    { "refused at once", FAKE_START, -EINVAL, false },
    { "no room for the call", FAKE_NOBUFS, 0, true },
    { "ends badly", FAKE_DONE, -EIO, false },
    { "corrupt", FAKE_DONE, -EBADMSG, false },
    { "hangs up", FAKE_HANGUP, 0, false },
    { "the job fails", FAKE_JOB, -EIO, false },
    { "lies", FAKE_LIES, -EIO, false },
};

/* The nth call of rank 1 fails in this way. */
static enum fake_when fail_nth(size_t f, uint32_t nth, struct party *ret)
{
    struct fake_config config = { .page_elems = 4096,
                                  .seed = nth,
                                  .delay_max = 2,
                                  .fault = faults[f].fault,
                                  .rank = 1,
                                  .nth = nth,
                                  .rc = faults[f].rc };

    fake_reset(&config);
    party_new(ret, 2, ZC_BF16, nth, 2);
    party_offload(ret, ZC_ZERO_HOST);
    for (uint32_t r = 0; r < 2; r++) {
        ret->runs[r].steps = 2;
        ret->runs[r].poison_step = 2;
        ret->runs[r].options.micro_steps = 2;
    }
    party_run(ret);
    return fake_faulted();
}

static void assert_fault_was_noticed(size_t f, const struct party *p)
{
    assert_all_failed(faults[f].name, p, 1.0);
    if (faults[f].fault == FAKE_HANGUP) {
        assert_int_equal(p->runs[1].rc, -ENOTCONN);
        if (p->runs[0].rc != -EOWNERDEAD) /* the job was not there yet to tell it */
            assert_non_null(strstr(p->runs[0].error, "rank 1: "));
    }
    if (faults[f].fault == FAKE_JOB && p->runs[0].rc != faults[f].rc)
        fail_msg("the job failed, and rank 0: %s", p->runs[0].error);
}

/* From the very first call to the last. */
static void every_call_fails_in_turn(void **state)
{
    (void)state;
    for (size_t f = 0; f < ZB_COUNT(faults); f++) {
        enum fake_when when = FAKE_AT_START;
        uint32_t nth = 0;

        while (when != FAKE_NOT_YET) {
            struct party p;

            /* every call of the start, then every third one; but few calls can lie, so all of
             * those */
            nth += (nth < 40 || faults[f].fault == FAKE_LIES ? 1 : 3) + CALLS_SKIPPED;
            when = fail_nth(f, nth, &p);
            if (when == FAKE_NOT_YET || (when == FAKE_AT_WORK && faults[f].recovers))
                party_assert_ran(&p);
            else if (when != FAKE_AT_END && !(faults[f].recovers && p.runs[1].rc == 0))
                assert_fault_was_noticed(f, &p);
            fake_end();
            party_done(&p);
        }
        print_message("%s: %u calls\n", faults[f].name, nth - 1);
        assert_true(nth > 50);
    }
}

static void a_call_that_never_ends(void **state)
{
    (void)state;
    for (uint32_t nth = 1; nth < 72; nth += 14) {
        struct fake_config config = {
            .page_elems = 4096, .fault = FAKE_NEVER, .rank = 1, .nth = nth
        };
        struct party p;

        fake_reset(&config);
        party_new(&p, 2, ZC_F32, nth, 0);
        party_offload(&p, ZC_ZERO_HOST);
        p.runs[0].options.timeout_ms = 3000; /* so that rank 1 notices first */
        p.runs[1].options.timeout_ms = 100;
        party_run(&p);
        assert_true(fake_faulted());
        assert_all_failed("never", &p, 1.0);
        assert_int_equal(p.runs[1].rc, -ETIMEDOUT);
        assert_non_null(strstr(p.runs[1].error, "nothing moved for"));
        if (p.runs[0].rc != -ETIMEDOUT || !strstr(p.runs[0].error, "rank 1: ")) {
            assert_int_equal(p.runs[0].rc, -EOWNERDEAD);
            assert_non_null(strstr(p.runs[0].error, "rank 1 of job"));
        }
        fake_end();
        party_done(&p);
    }
}

/* Without a daemon to tell them, the others give up at their timeout. */
static void a_peer_that_stops(void **state)
{
    (void)state;
    for (uint32_t after = 1; after <= 3; after++) {
        struct party p;

        party_new(&p, 3, ZC_F32, after, 3);
        for (uint32_t r = 0; r < 3; r++)
            p.runs[r].options.timeout_ms = 200;
        p.runs[2].stop_after = after;
        party_run(&p);
        assert_int_equal(p.runs[2].rc, -EINTR);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(p.runs[r].rc, -ETIMEDOUT);
            assert_non_null(strstr(p.runs[r].error, "waits for another rank"));
            assert_true(p.runs[r].ended_s - p.runs[2].ended_s > 0.15);
            assert_true(p.runs[r].ended_s - p.runs[2].ended_s < 2);
        }
        party_done(&p);
    }
}

/* With one, they are told. */
static void a_peer_that_stops_is_told(void **state)
{
    static const struct fake_config config = { .page_elems = 4096 };
    struct party p;

    (void)state;
    fake_reset(&config);
    party_new(&p, 3, ZC_F32, 1, 3);
    party_offload(&p, ZC_ZERO_HOST);
    p.runs[2].stop_after = 2;
    party_run(&p);
    assert_int_equal(p.runs[2].rc, -EINTR);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(p.runs[r].rc, -EOWNERDEAD);
        if (!strstr(p.runs[r].error, "rank 2 of job"))
            fail_msg("rank %u: %s", r, p.runs[r].error);
        assert_true(p.runs[r].ended_s - p.runs[2].ended_s < 1);
    }
    fake_end();
    party_done(&p);
}

/* A daemon that is killed disconnects its ranks one by one: even a rank whose peer has left already
 * reports that the daemon is gone. */
static void a_daemon_that_dies_slowly(void **state)
{
    static const struct fake_config config = { .page_elems = 4096, .dies_ms = 200 };
    struct party p;

    (void)state;
    fake_reset(&config);
    party_new(&p, 2, ZC_F32, 1, 3);
    party_offload(&p, ZC_ZERO_HOST);
    comm_group_break(p.group, 1, 30, -EOWNERDEAD);
    party_run(&p);
    for (uint32_t r = 0; r < 2; r++)
        if (p.runs[r].rc != -ENOTCONN)
            fail_msg("rank %u: %d, %s", r, p.runs[r].rc, p.runs[r].error);
    fake_end();
    party_done(&p);
}

static void collectives_that_break(void **state)
{
    (void)state;
    for (uint32_t nth = 1; nth <= 60; nth = 3 * nth) {
        struct party p;

        party_new(&p, 2, ZC_F32, nth, 2);
        p.runs[0].options.timeout_ms = 100;
        comm_group_break(p.group, 1, nth, -EIO);
        party_run(&p);
        assert_int_equal(p.runs[1].rc, -EIO);
        assert_non_null(strstr(p.runs[1].error, "the test broke it"));
        assert_int_equal(p.runs[0].rc, -ETIMEDOUT);
        party_done(&p);
    }
}

/* One rank is refused: all are told the reason, at once. */
static void one_refused_all_refused(void **state)
{
    static const struct fake_config config = { .page_elems = 4096 };
    struct party p;

    (void)state;
    fake_reset(&config);
    for (int i = 0; i < 7; i++) {
        const char *part = NULL;
        int want = -EINVAL;

        party_new(&p, 3, ZC_F32, 1, 0);
        party_offload(&p, ZC_ZERO_HOST);
        switch (i) {
        case 0:
            p.runs[1].options.micro_steps = 0;
            p.runs[1].options.vertical = true;
            part = "vertical: a unit's micro-steps";
            break;
        case 1:
            p.runs[1].options.socket = "refuse";
            want = -ENOTCONN;
            part = "nobody answers";
            break;
        case 2:
            p.runs[1].options.clip = 2;
            part = "rank 1 and rank 0 have different values: the kind of optimizer";
            break;
        case 3:
            p.runs[1].options.job = "another";
            part = "rank 1 and rank 0 have different values";
            break;
        case 4:
            p.runs[2].dtype = ZC_BF16;
            part = "the units: rank 2 and rank 0 have different values: their models differ";
            break;
        case 5:
            p.runs[1].options.kernels = "abacus";
            want = -ENOENT;
            part = "abacus";
            break;
        case 6:
            p.runs[1].options.loss_scale.fixed = 2;
            part = "rank 1 and rank 0 have different values";
            break;
        }
        party_run(&p);
        assert_all_failed(part, &p, 0.5);
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(p.runs[r].rc, want);
            if (!strstr(p.runs[r].error, part))
                fail_msg("rank %u: %s", r, p.runs[r].error);
        }
        fake_end();
        party_done(&p);
    }
}

/* A close that is not clean waits for nothing. */
static void a_dirty_end_is_quick(void **state)
{
    static const struct fake_config config = { .page_elems = 4096 };
    struct party p;

    (void)state;
    for (int i = 0; i < 2; i++) {
        fake_reset(&config);
        party_new(&p, 2, ZC_F32, 1, 0);
        if (i == 1)
            party_offload(&p, ZC_ZERO_HOST);
        p.runs[0].dirty_end = p.runs[1].dirty_end = true;
        p.runs[0].no_values = p.runs[1].no_values = true;
        party_run(&p);
        for (uint32_t r = 0; r < 2; r++)
            assert_true(p.runs[r].rc == 0 || p.runs[r].rc == -EOWNERDEAD);
        assert_int_equal(fake_handles(), 0);
        fake_end();
        party_done(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_division_trains_the_same),
        cmocka_unit_test(a_loss_scale_changes_no_bit),
        cmocka_unit_test(overflows_skip_and_scale),
        cmocka_unit_test(an_overflow_at_the_least_scale),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(stores_agree),
        cmocka_unit_test(accumulated_before_the_exchange),
        cmocka_unit_test(alone_nothing_is_copied),
        cmocka_unit_test(memory_follows_what_is_gathered),
        cmocka_unit_test(what_comes_next_is_fetched_ahead),
        cmocka_unit_test(gradients_wait_for_the_step),
        cmocka_unit_test(a_long_step_is_no_timeout),
        cmocka_unit_test(sums_are_in_rank_order),
        cmocka_unit_test(a_kept_job_goes_on),
        cmocka_unit_test(every_call_fails_in_turn),
        cmocka_unit_test(a_call_that_never_ends),
        cmocka_unit_test(a_peer_that_stops),
        cmocka_unit_test(a_peer_that_stops_is_told),
        cmocka_unit_test(a_daemon_that_dies_slowly),
        cmocka_unit_test(collectives_that_break),
        cmocka_unit_test(one_refused_all_refused),
        cmocka_unit_test(a_dirty_end_is_quick),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
