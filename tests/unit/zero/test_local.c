/*
 * The engine of a single rank, with its slices in the process: numbers compared with plain loops,
 * accumulation, clipping, skipping, the order of calls.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/core/zero.h"
#include "model.h"

static struct zc_comm *self;

static int setup(void **state)
{
    char text[256];

    (void)state;
    return zc_comm_open(&self, "self", text, sizeof(text));
}

static int teardown(void **state)
{
    (void)state;
    zc_comm_close(self, true);
    return 0;
}

static struct run run_new(enum zc_dtype dtype)
{
    struct run r = { .dtype = dtype, .steps = 4 };

    zc_zero_defaults(&r.options);
    r.options.comm = self;
    r.options.groups = 2;
    r.options.weight_decay[0] = 0.1;
    r.options.eps = 1e-3; /* so that a gradient that happens to be nearly 0 causes no large step */
    return r;
}

static void assert_ran(const struct run *r)
{
    if (r->rc != 0)
        fail_msg("run ended with %d: %s", r->rc, r->error);
}

/* ---- numbers */

static void against_plain_loops(void **state)
{
    static const double clips[] = { 0, 0.5, 1e9 };

    (void)state;
    for (size_t c = 0; c < ZB_COUNT(clips); c++) {
        struct run r = run_new(ZC_F32);
        struct model_values want;
        double norms[MODEL_STEPS_MAX];

        r.options.clip = clips[c];
        run_train(&r);
        assert_ran(&r);
        model_reference(&r, &want, norms);
        assert_values_near("plain loops", &want, &r.values, 1e-5);
        for (uint32_t s = 0; s < r.steps; s++) {
            double clip = clips[c] > 0 ? fmin(1, clips[c] / (norms[s] + 1e-6)) : 1;

            assert_true(fabs(r.norms[s] - norms[s]) <= 1e-6 * norms[s]);
            assert_true(fabs(r.clips[s] - clip) <= 1e-6);
            assert_true(norms[s] > 1); /* so that 0.5 clips */
        }
        assert_int_equal(r.last.iterations, r.steps);
        assert_int_equal(r.last.applied, r.steps);
        model_values_done(&want);
        run_done(&r);
    }
}

static void micro_steps_are_one_batch(void **state)
{
    struct run whole = run_new(ZC_F32);

    (void)state;
    whole.options.clip = 1;
    run_train(&whole);
    assert_ran(&whole);
    for (uint32_t micro = 2; micro <= 4; micro++) {
        struct run parts = run_new(ZC_F32);

        parts.options.clip = 1;
        parts.options.micro_steps = micro;
        run_train(&parts);
        assert_ran(&parts);
        assert_values_near("micro-steps", &whole.values, &parts.values, 1e-5);
        assert_true(fabs(whole.norms[3] - parts.norms[3]) < 1e-6 * whole.norms[3]);
        run_done(&parts);
    }
    run_done(&whole);
}

/* Summed here, or by the trainer within each unit: the same additions, with one push a step. */
static void accumulated_here_is_one_batch(void **state)
{
    static const enum zc_dtype dtypes[] = { ZC_F32, ZC_BF16 };

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct run whole = run_new(dtypes[i % 2]), reduced = whole, local = whole, vertical;

        reduced.options.clip = local.options.clip = whole.options.clip = 1;
        reduced.options.micro_steps = local.options.micro_steps = 2 + i / 2;
        reduced.poison_step = local.poison_step = whole.poison_step = i == 3 ? 2 : 0;
        whole.options.prefetch_units = local.options.prefetch_units = i;
        vertical = local;
        local.options.accumulate_local = true;
        vertical.options.vertical = true;
        run_train(&whole);
        run_train(&reduced);
        run_train(&local);
        run_train(&vertical);
        assert_ran(&whole);
        assert_ran(&reduced);
        assert_ran(&local);
        assert_ran(&vertical);
        assert_runs_same("vertical", &local, &vertical);
        assert_values_near("one batch", &whole.values, &local.values, i % 2 ? 0.02 : 1e-5);
        assert_true(local.skipped[1] == (i == 3));
        assert_int_equal(local.stats.pushed_bytes, whole.stats.pushed_bytes);
        assert_int_equal(vertical.stats.pushed_bytes, whole.stats.pushed_bytes);
        assert_int_equal(vertical.stats.fetched_bytes, whole.stats.fetched_bytes);
        assert_int_equal(reduced.stats.pushed_bytes,
                         whole.stats.pushed_bytes * reduced.options.micro_steps);
        run_done(&whole);
        run_done(&reduced);
        run_done(&local);
        run_done(&vertical);
    }
}

static void bf16_learns_too(void **state)
{
    struct run f32 = run_new(ZC_F32), bf16 = run_new(ZC_BF16), again = run_new(ZC_BF16);

    (void)state;
    run_train(&f32);
    run_train(&bf16);
    run_train(&again);
    assert_ran(&f32);
    assert_ran(&bf16);
    assert_runs_same("twice", &bf16, &again);
    /* gradients rounded to 8 bits: masters agree to a few of these roundings */
    assert_values_near("bf16", &f32.values, &bf16.values, 0.02);
    run_done(&f32);
    run_done(&bf16);
    run_done(&again);
}

static void kernels_agree(void **state)
{
    static const char *const names[] = { "ref", "avx2", "avx512" };
    struct run best = run_new(ZC_BF16);

    (void)state;
    run_train(&best);
    assert_ran(&best);
    for (size_t i = 0; i < ZB_COUNT(names); i++) {
        struct run r = run_new(ZC_BF16);

        r.options.kernels = names[i];
        run_train(&r);
        if (r.rc == -ENOTSUP || (r.rc == -ENOENT && i > 0)) {
            print_message("%s: %s\n", names[i], r.error);
        } else {
            assert_ran(&r);
            assert_runs_same(names[i], &best, &r);
        }
        run_done(&r);
    }
    run_done(&best);
}

static void an_infinity_skips(void **state)
{
    struct run r = run_new(ZC_F32), shorter = run_new(ZC_F32);

    (void)state;
    r.poison_step = 4;
    run_train(&r);
    assert_ran(&r);
    assert_true(r.skipped[3] && isnan(r.norms[3]) && r.clips[3] == 1);
    assert_false(r.skipped[2]);
    assert_int_equal(r.last.iterations, 4);
    assert_int_equal(r.last.applied, 3);
    shorter.steps = 3;
    run_train(&shorter);
    assert_ran(&shorter);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        assert_memory_equal(r.values.master[u], shorter.values.master[u],
                            model_units[u].elems * sizeof(float));
    run_done(&r);
    run_done(&shorter);

    r = run_new(ZC_F32); /* training goes on */
    r.poison_step = 2;
    run_train(&r);
    assert_ran(&r);
    assert_true(r.skipped[1] && !r.skipped[2] && isfinite(r.norms[2]));
    assert_int_equal(r.last.applied, 3);
    run_done(&r);
}

static void what_is_frozen_stays(void **state)
{
    struct run r = run_new(ZC_F32);

    (void)state;
    run_train(&r);
    assert_ran(&r);
    for (uint64_t i = 0; i < model_units[3].elems; i++)
        assert_true(r.values.master[3][i] == model_init(3, i));
    for (uint64_t i = 5001; i < 5100; i++) /* the hole and the frozen tensor */
        assert_true(r.values.master[1][i] == model_init(1, i));
    assert_true(r.values.master[1][5100] != model_init(1, 5100));
    run_done(&r);
}

static void prefetch_changes_nothing(void **state)
{
    struct run base = run_new(ZC_F32);

    (void)state;
    run_train(&base);
    assert_ran(&base);
    for (uint32_t ahead = 0; ahead <= 8; ahead += 2) {
        struct run r = run_new(ZC_F32);

        r.options.prefetch_units = ahead;
        r.evaluate = true;
        run_train(&r);
        assert_ran(&r);
        assert_runs_same("prefetch", &base, &r);
        assert_int_equal(r.stats.gather_buffer_bytes, 0); /* a single rank uses the planes */
        run_done(&r);
    }
    run_done(&base);
}

static void statistics_add_up(void **state)
{
    struct run r = run_new(ZC_F32);
    uint64_t params = 0, trained = 0;

    (void)state;
    r.steps = 3;
    run_train(&r);
    assert_ran(&r);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        uint64_t padded = zb_div_up(model_units[u].elems, 4096) * 4096;

        params += padded;
        trained += model_units[u].frozen ? 0 : padded;
    }
    assert_int_equal(r.stats.host_bytes, 4 * params + (4 + 8) * trained);
    assert_int_equal(r.stats.pushed_bytes, 3 * 4 * trained);
    assert_true(r.stats.fetched_bytes >= 3 * 4 * params);
    assert_int_equal(r.stats.comm_bytes, 0);
    assert_int_equal(r.stats.nvme_bytes + r.stats.gpu_bytes + r.stats.nvme_read_bytes, 0);
    assert_true(r.stats.grad_buffer_bytes >= 20481 * 4);
    run_done(&r);
}

/* ---- the order of calls */

struct fixture {
    struct zc_zero *z;
    struct zc_zero_options options;
};

/* How the gradients of two micro-steps become one. */
enum ways { REDUCED, LOCAL, VERTICAL };

static struct zc_tensor whole = { .name = "t", .ndims = 1, .dims = { 100 } };

static void fixture_open_as(struct fixture *x, enum ways way)
{
    memset(x, 0, sizeof(*x));
    zc_zero_defaults(&x->options);
    x->options.comm = self;
    x->options.micro_steps = 2;
    x->options.accumulate_local = way == LOCAL;
    x->options.vertical = way == VERTICAL;
    assert_int_equal(zc_zero_open(&x->z, &x->options), 0);
    for (uint32_t i = 0; i < 3; i++) {
        struct zc_unit unit = { .index = i,
                                .name = "u",
                                .elems = 100,
                                .dtype = ZC_F32,
                                .frozen = i == 2,
                                .tensors = &whole,
                                .ntensors = 1 };

        assert_int_equal(zc_zero_add_unit(x->z, &unit), 0);
    }
}

static void fixture_open(struct fixture *x)
{
    fixture_open_as(x, REDUCED);
}

static int ones(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    int *rc = arg;

    (void)unit;
    (void)first;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 1;
    return rc ? *rc : 0;
}

static void refused(struct zc_zero *z, int got, int want, const char *part)
{
    if (got != want || !strstr(zc_zero_error(z), part))
        fail_msg("got %d and '%s', not %d and '...%s...'", got, zc_zero_error(z), want, part);
}

static void calls_at_the_wrong_time(void **state)
{
    struct fixture x;
    struct zc_zero_stepped stepped;
    struct zc_zero_stats stats;
    const void *params;
    float *grad, *same, out[200];
    double sum[2] = { 1, 2 };

    (void)state;
    fixture_open(&x);
    refused(x.z, zc_zero_gather(x.z, 0, &params), -EBUSY, "has not started");
    refused(x.z, zc_zero_release(x.z, 0), -EBUSY, "has not started");
    refused(x.z, zc_zero_grad(x.z, 0, &grad), -EBUSY, "has not started");
    refused(x.z, zc_zero_reduce(x.z, 0), -EBUSY, "has not started");
    refused(x.z, zc_zero_step(x.z, 1, &stepped), -EBUSY, "has not started");
    refused(x.z, zc_zero_sum(x.z, sum, 2), -EBUSY, "has not started");
    refused(x.z, zc_zero_stats(x.z, &stats), -EBUSY, "has not started");
    refused(x.z, zc_zero_read(x.z, 0, ZC_PARAM, 0, 1, out), -EBUSY, "has not started");
    assert_int_equal(zc_zero_poll(x.z), 0);
    refused(x.z, zc_zero_start(x.z, NULL, NULL), -EINVAL, "function that gives");
    assert_int_equal(zc_zero_start(x.z, ones, NULL), 0);
    refused(x.z, zc_zero_start(x.z, ones, NULL), -EBUSY, "started already");
    refused(x.z, zc_zero_add_unit(x.z, &(struct zc_unit){ .index = 3 }), -EBUSY,
            "before the start");

    refused(x.z, zc_zero_gather(x.z, 3, &params), -EINVAL, "unit 3 does not exist: there are 3");
    refused(x.z, zc_zero_release(x.z, 0), -EINVAL, "was not gathered");
    refused(x.z, zc_zero_reduce(x.z, 0), -EINVAL, "zc_zero_grad() was not called");
    refused(x.z, zc_zero_grad(x.z, 2, &grad), -EINVAL, "frozen");
    refused(x.z, zc_zero_reduce(x.z, 2), -EINVAL, "frozen");
    refused(x.z, zc_zero_step(x.z, 1, &stepped), -EBUSY, "0 of 2 micro-steps");

    assert_int_equal(zc_zero_gather(x.z, 0, &params), 0); /* gathers nest */
    assert_int_equal(zc_zero_gather(x.z, 0, &params), 0);
    assert_true(((const float *)params)[99] == 1);
    assert_int_equal(zc_zero_release(x.z, 0), 0);
    assert_true(((const float *)params)[99] == 1);

    for (uint32_t micro = 0; micro < 2; micro++) {
        assert_int_equal(zc_zero_grad(x.z, 0, &grad), 0);
        assert_int_equal(zc_zero_grad(x.z, 0, &same), 0);
        assert_ptr_equal(grad, same);
        assert_true(grad[0] == 0);
        grad[0] = 3;
        assert_int_equal(zc_zero_reduce(x.z, 0), 0);
        if (micro == 0) {
            refused(x.z, zc_zero_grad(x.z, 0, &grad), -EBUSY, "1 of 2 units");
            refused(x.z, zc_zero_reduce(x.z, 0), -EBUSY, "1 of 2 units");
        }
        assert_int_equal(zc_zero_grad(x.z, 1, &grad), 0);
        assert_int_equal(zc_zero_reduce(x.z, 1), 0);
    }
    refused(x.z, zc_zero_grad(x.z, 0, &grad), -EBUSY, "zc_zero_step() comes");
    refused(x.z, zc_zero_step(x.z, 1, &stepped), -EBUSY, "is gathered");
    assert_int_equal(zc_zero_release(x.z, 0), 0);
    refused(x.z, zc_zero_step(x.z, NAN, &stepped), -EINVAL, "group 0: adamw with lr nan");
    refused(x.z, zc_zero_step(x.z, -1, &stepped), -EINVAL, "group 0: adamw with lr -1: from 0 to");
    refused(x.z, zc_zero_step(x.z, 1e39, &stepped), -EINVAL, "group 0: adamw with lr 1e+39");
    refused(x.z, zc_zero_announce(x.z, -1), -EINVAL, "group 0: adamw with lr -1");
    assert_int_equal(zc_zero_step(x.z, 0.5, &stepped), 0);
    assert_true(stepped.grad_norm == 3); /* (3 + 3) / 2 */
    assert_int_equal(stepped.iterations, 1);

    refused(x.z, zc_zero_read(x.z, 0, ZC_PARAM, 50, 51, out), -EINVAL, "which has 100");
    refused(x.z, zc_zero_read(x.z, 0, ZC_GRAD, 0, 1, out), -EINVAL, "kind 5");
    refused(x.z, zc_zero_read(x.z, 2, ZC_EXP_AVG, 0, 1, out), -EINVAL, "kind 3");
    assert_int_equal(zc_zero_read(x.z, 0, ZC_MASTER, 0, 0, out), 0);
    assert_int_equal(zc_zero_read(x.z, 0, ZC_PARAM, 0, 100, out), 0);
    assert_true(fabs(out[0] - 0.5) < 1e-6 && out[1] == 1);
    refused(x.z, zc_zero_sum(x.z, sum, 4097), -EINVAL, "at most 4096");
    assert_int_equal(zc_zero_sum(x.z, sum, 2), 0);
    assert_true(sum[0] == 1 && sum[1] == 2);
    assert_int_equal(zc_zero_sum(x.z, sum, 0), 0);
    zc_zero_close(x.z, true);
    zc_zero_close(NULL, true);
}

/* The initial gradient, refusals, and the result, in each way. */
static void each_way_of_accumulation(void **state)
{
    static const enum ways ways[] = { REDUCED, LOCAL, VERTICAL, LOCAL };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(ways); i++) {
        struct zc_zero_stepped stepped;
        struct fixture x;
        float *grad;

        fixture_open_as(&x, ways[i]);
        assert_int_equal(zc_zero_start(x.z, ones, NULL), 0);
        for (uint32_t step = 1; step <= 2; step++) {
            for (uint32_t micro = 0; micro < (ways[i] == VERTICAL ? 1 : 2); micro++)
                for (uint32_t u = 0; u < 2; u++) {
                    refused(x.z, zc_zero_reduce(x.z, u), -EINVAL, "zc_zero_grad() was not called");
                    assert_int_equal(zc_zero_grad(x.z, u, &grad), 0);
                    assert_true(grad[u] == (ways[i] == LOCAL && micro == 1 ? 3 : 0));
                    refused(x.z, zc_zero_step(x.z, 1, &stepped), -EBUSY,
                            ways[i] == VERTICAL ? "of 1 micro-steps" : "of 2 micro-steps");
                    grad[u] += micro == 1 && u == 1 ? 5 : 3;
                    assert_int_equal(zc_zero_reduce(x.z, u), 0);
                }
            refused(x.z, zc_zero_grad(x.z, 0, &grad), -EBUSY,
                    ways[i] == VERTICAL ? "all 1 micro-steps" : "all 2 micro-steps");
            assert_int_equal(zc_zero_step(x.z, 1, &stepped), 0);
            /* (3 + 3) / 2 and (3 + 5) / 2; or, with vertical order, 3 / 2 of each */
            assert_true(stepped.grad_norm == (ways[i] == VERTICAL ? sqrt(18) / 2 : 5));
        }
        zc_zero_close(x.z, true);
    }
}

static const struct {
    const char *part;
    struct zc_unit unit;
    struct zc_tensor tensor, second;
} units_refused[] = {
    { "where unit 0 comes next",
      { .index = 1, .name = "u", .elems = 1, .dtype = ZC_F32 },
      { 0 },
      { 0 } },
    { "has no name", { .name = "", .elems = 1, .dtype = ZC_F32 }, { 0 }, { 0 } },
    { "0 elements", { .name = "u", .dtype = ZC_F32 }, { 0 }, { 0 } },
    { "elements: from 1 to",
      { .name = "u", .elems = UINT64_C(1) << 41, .dtype = ZC_F32 },
      { 0 },
      { 0 } },
    { "has no tensors", { .name = "u", .elems = 9, .dtype = ZC_F32 }, { 0 }, { 0 } },
    { "dtype number 7", { .name = "u", .elems = 1, .dtype = 7 }, { 0 }, { 0 } },
    { "is not inside",
      { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 1 },
      { .name = "t", .first = 1, .ndims = 1, .dims = { 9 } },
      { 0 } },
    { "is not inside",
      { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 1 },
      { .name = "t", .ndims = 2, .dims = { UINT64_MAX, 2 } },
      { 0 } },
    { "is not inside",
      { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 1 },
      { .name = "t", .ndims = 9, .dims = { 1 } },
      { 0 } },
    { "is not inside", { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 1 }, { 0 }, { 0 } },
    { "in group 1 of 1",
      { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 1 },
      { .name = "t", .ndims = 1, .dims = { 9 }, .group = 1 },
      { 0 } },
    { "begins before the last one ended",
      { .name = "u", .elems = 9, .dtype = ZC_F32, .ntensors = 2 },
      { .name = "t", .ndims = 1, .dims = { 5 } },
      { .name = "s", .first = 4, .ndims = 1, .dims = { 5 } } },
};

static void units_that_are_none(void **state)
{
    struct zc_zero_options options;
    struct zc_unit listless = { .name = "u", .elems = 1, .dtype = ZC_F32, .ntensors = 1 };
    struct zc_zero *z;

    (void)state;
    zc_zero_defaults(&options);
    options.comm = self;
    assert_int_equal(zc_zero_open(&z, &options), 0);
    refused(z, zc_zero_start(z, ones, NULL), -EINVAL, "needs units");
    for (size_t i = 0; i < ZB_COUNT(units_refused); i++) {
        struct zc_tensor tensors[2] = { units_refused[i].tensor, units_refused[i].second };
        struct zc_unit unit = units_refused[i].unit;

        unit.tensors = tensors;
        refused(z, zc_zero_add_unit(z, &unit), -EINVAL, units_refused[i].part);
    }
    refused(z, zc_zero_add_unit(z, &listless), -EINVAL, "`tensors` is NULL");
    zc_zero_close(z, true);
}

static void an_all_frozen_model_does_not_step(void **state)
{
    struct zc_zero_options options;
    struct zc_unit unit = { .name = "u", .elems = 5, .dtype = ZC_BF16, .frozen = true };
    struct zc_zero_stepped stepped;
    struct zc_zero *z;
    float out[5];

    (void)state;
    zc_zero_defaults(&options);
    options.comm = self;
    assert_int_equal(zc_zero_open(&z, &options), 0);
    assert_int_equal(zc_zero_add_unit(z, &unit), 0);
    assert_int_equal(zc_zero_start(z, ones, NULL), 0);
    refused(z, zc_zero_step(z, 1, &stepped), -EINVAL, "every unit is frozen");
    refused(z, zc_zero_read(z, 0, ZC_MASTER, 0, 5, out), -EINVAL, "kind 2");
    assert_int_equal(zc_zero_read(z, 0, ZC_PARAM, 0, 5, out), 0);
    assert_true(out[4] == 1);
    zc_zero_close(z, true);
}

static void options_that_are_wrong(void **state)
{
    struct zc_comm broken = { .ops = self->ops, .rank = 1, .world = 1 };

    (void)state;
    for (int i = 0;; i++) {
        struct zc_zero_options o;
        const char *part = NULL;
        int want = -EINVAL;
        char name[80] = "";
        struct zc_zero *z;

        zc_zero_defaults(&o);
        o.comm = self;
        switch (i) {
        case 0:
            o.comm = NULL;
            part = "needs a comm";
            break;
        case 1:
            o.comm = &broken;
            part = "needs a comm";
            break;
        case 2:
            o.offload_param = ZC_ZERO_NVME;
            part = "offloaded with the optimizer state";
            break;
        case 3:
            o.offload_optimizer = 7;
            part = "none, host, nvme";
            break;
        case 4:
            o.resume = true;
            part = "resume needs";
            break;
        case 5:
            o.micro_steps = 0;
            o.vertical = true;
            part = "as many as come";
            break;
        case 6:
            o.clip = NAN;
            part = "clip nan";
            break;
        case 7:
            o.clip = -1;
            part = "clip -1";
            break;
        case 8:
            o.beta2 = 1;
            part = "betas";
            break;
        case 9:
            o.beta1 = -0.1;
            part = "betas";
            break;
        case 10:
            o.eps = -1;
            part = "eps";
            break;
        case 11:
            o.groups = 0;
            part = "0 parameter groups";
            break;
        case 12:
            o.groups = 65;
            part = "65 parameter groups";
            break;
        case 13:
            o.weight_decay[0] = INFINITY;
            part = "weight decay";
            break;
        case 18:
            o.weight_decay[0] = -1;
            part = "group 0: adamw with weight decay -1: from 0 to 1e+06";
            break;
        case 19:
            o.eps = 1e39;
            part = "eps 1e+39";
            break;
        case 14:
            o.prefetch_units = 65;
            part = "at most 64";
            break;
        case 15:
            memset(name, 'x', 70);
            o.job = name;
            part = "at most 63";
            break;
        case 16:
            o.kernels = "abacus";
            want = -ENOENT;
            part = "abacus";
            break;
        case 17:
            o.offload_param = o.offload_optimizer = ZC_ZERO_HOST;
            o.socket = "/nowhere/zshard.sock";
            want = -ENOTCONN;
            part = "/nowhere/zshard.sock";
            break;
        default:
            return;
        }
        assert_int_equal(zc_zero_open(&z, &o), want);
        refused(z, zc_zero_poll(z), want, part); /* all further calls fail */
        refused(z, zc_zero_start(z, ones, NULL), want, part);
        zc_zero_close(z, true);
    }
}

static void values_that_do_not_come(void **state)
{
    static const struct {
        int says, means;
    } cases[] = { { -EIO, -EIO }, { 1, -EINVAL } };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct fixture x;
        int says = cases[i].says;

        fixture_open(&x);
        refused(x.z, zc_zero_start(x.z, ones, &says), cases[i].means, "no initial values");
        refused(x.z, zc_zero_poll(x.z), cases[i].means, "no initial values");
        zc_zero_close(x.z, true);
    }
}

/* ---- buffers */

static void buffers_are_kept_for_the_next(void **state)
{
    struct zcz_buf *a, *b, *c[8];
    struct zcz_pool p;
    const void *was;

    (void)state;
    zcz_pool_init(&p, 2, NULL);
    a = zcz_buf_get(&p, 10000);
    assert_int_equal(a->bytes, 12288);
    assert_int_equal((uintptr_t)a->data % 4096, 0);
    was = a->data;
    zcz_buf_put(&p, a);
    a = zcz_buf_get(&p, 12000);
    assert_ptr_equal(a->data, was);
    zcz_buf_put(&p, a);
    b = zcz_buf_get(&p, 4096); /* less than half of that buffer: it is not used */
    assert_ptr_not_equal(b->data, was);
    zcz_buf_put(&p, b);
    assert_int_equal(p.bytes, 16384);
    for (size_t i = 0; i < 8; i++)
        c[i] = zcz_buf_get(&p, (i + 5) * 16384);
    for (size_t i = 0; i < 8; i++)
        zcz_buf_put(&p, c[i]);
    assert_int_equal(p.bytes, (11 + 12) * 16384); /* the last two */
    assert_true(p.bytes_most > p.bytes);
    zcz_buf_put(&p, NULL);
    zcz_pool_done(&p, false);
    assert_int_equal(p.bytes, 0);
}

/* ---- backends */

static void backends_that_are_none(void **state)
{
    struct zc_comm *comm;
    char text[256] = "";

    (void)state;
    assert_int_equal(zc_comm_open(&comm, "pigeon", text, sizeof(text)), -ENOENT);
    assert_non_null(strstr(text, "pigeon"));
    assert_null(comm);
    assert_int_equal(zc_comm_open(&comm, "pigeon", NULL, 0), -ENOENT);
    assert_int_equal(setenv("ZSHARD_PLUGINS", "/nowhere", 1), 0);
    assert_int_equal(zc_comm_open(&comm, "mpi", text, sizeof(text)), -ENOTSUP);
    assert_non_null(strstr(text, "/nowhere/zc_comm_mpi.so"));
    assert_int_equal(unsetenv("ZSHARD_PLUGINS"), 0);
    assert_int_equal(unsetenv("OMPI_COMM_WORLD_SIZE"), 0);
    assert_int_equal(zc_comm_open(&comm, "auto", text, sizeof(text)), 0);
    assert_string_equal(comm->ops->name, "self");
    zc_comm_close(comm, true);
    zc_comm_close(NULL, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_plain_loops),
        cmocka_unit_test(micro_steps_are_one_batch),
        cmocka_unit_test(accumulated_here_is_one_batch),
        cmocka_unit_test(bf16_learns_too),
        cmocka_unit_test(kernels_agree),
        cmocka_unit_test(an_infinity_skips),
        cmocka_unit_test(what_is_frozen_stays),
        cmocka_unit_test(prefetch_changes_nothing),
        cmocka_unit_test(statistics_add_up),
        cmocka_unit_test(calls_at_the_wrong_time),
        cmocka_unit_test(each_way_of_accumulation),
        cmocka_unit_test(units_that_are_none),
        cmocka_unit_test(an_all_frozen_model_does_not_step),
        cmocka_unit_test(options_that_are_wrong),
        cmocka_unit_test(values_that_do_not_come),
        cmocka_unit_test(buffers_are_kept_for_the_next),
        cmocka_unit_test(backends_that_are_none),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
