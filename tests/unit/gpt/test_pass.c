/*
 * test_pass.c - compares the passes on every device that opens with those on the processor: loss
 * and every gradient, for two micro-batches in a row. fp32 to rounding; bf16 to the limit of its
 * roundings, with bf16 weights for both.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "examples/gpt/dev/pass.h"
#include "examples/gpt/model/elem.h"
#include "kernels/gpu.h"
#include "tests/unit/gpt/dev_fixture.h"
#include "tests/unit/gpt/fake_stash.h"

#define UNITS_MAX 12

/* A unit's weights and gradients, on the processor and on the device. */
struct unit {
    float *weights, *grads, *got;
    struct zk_gpu_mem *mem;
    void *dev_weights;
    float *dev_grads;
};

static const struct setting {
    const char *name;
    struct gpt_shape shape; /* layers, heads, width, seq, vocab, split */
    uint32_t sequences;
} settings[] = {
    { "small", { 2, 2, 16, 8, 40, false }, 3 },
    { "one of everything", { 1, 1, 1, 1, 2, false }, 1 },
    { "odd", { 2, 3, 21, 7, 33, true }, 2 },
    { "wide", { 1, 4, 320, 40, 260, false }, 2 },
    { "deep", { 5, 1, 8, 5, 11, false }, 1 },
};

static void units_new(struct fixture *x, const struct gpt *model, enum gpt_dtype_dev dtype,
                      struct unit *units)
{
    for (uint32_t u = 0; u < model->nunits; u++) {
        struct unit *t = &units[u];
        uint64_t n = model->units[u].elems, e = gpt_dev_bytes(dtype);
        uint16_t *half = calloc(n, 2);
        char *dev;

        t->weights = calloc(n, 4);
        t->grads = calloc(n, 4);
        t->got = calloc(n, 4);
        assert_true(half && t->weights && t->grads && t->got);
        gpt_init_range(model, 3, u, 0, n, t->weights);
        for (uint64_t i = 0; i < n; i++) { /* larger, and no zeros */
            t->weights[i] = 2 * t->weights[i] + 0.01f * ((float)(i % 7) - 3);
            t->grads[i] = 0.001f * (float)(i % 5); /* existing gradients are added to */
            half[i] = dtype == GPT_DEV_FP16 ? gpt_elem_to_fp16(t->weights[i])
                                            : gpt_elem_to_bf16(t->weights[i]);
            if (dtype != GPT_DEV_F32)
                t->weights[i] = dtype == GPT_DEV_FP16 ? gpt_elem_of_fp16(half[i])
                                                      : gpt_elem_of_bf16(half[i]);
        }
        good(x, zk_gpu_alloc(x->gpu, n * (e + 4) + 256, 0, &t->mem, &x->err));
        dev = zk_gpu_addr(t->mem);
        t->dev_weights = dev;
        t->dev_grads = (float *)(void *)(dev + (n * e + 63) / 64 * 64);
        good(x,
             zk_gpu_copy(x->stream, ZK_GPU_TO_DEVICE, t->dev_weights,
                         dtype != GPT_DEV_F32 ? (void *)half : (void *)t->weights, n * e, &x->err));
        good(x, zk_gpu_copy(x->stream, ZK_GPU_TO_DEVICE, t->dev_grads, t->grads, n * 4, &x->err));
        good(x, zk_gpu_stream_sync(x->stream, &x->err));
        free(half);
    }
}

static void units_done(const struct gpt *model, struct unit *units)
{
    for (uint32_t u = 0; u < model->nunits; u++) {
        free(units[u].weights);
        free(units[u].grads);
        free(units[u].got);
        zk_gpu_free(units[u].mem);
    }
}

static void tokens_draw(const struct setting *s, uint32_t micro, uint32_t *tokens)
{
    uint32_t state = 9 + micro;

    for (uint32_t i = 0; i < s->sequences * (s->shape.seq + 1); i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (state >> 16) % s->shape.vocab;
    }
}

/* The weights and gradients of a block: on the processor, or on the device. */
static struct gpt_block_weights block_weights(const struct gpt *model, struct unit *units,
                                              uint32_t layer, bool dev)
{
    struct gpt_block_weights w = { { NULL } };

    for (uint32_t part = 0; part < model->parts; part++) {
        struct unit *u = &units[gpt_unit_block(model, layer) + part];

        w.at[part] = dev ? u->dev_weights : u->weights;
    }
    return w;
}

static struct gpt_block_grads block_grads(const struct gpt *model, struct unit *units,
                                          uint32_t layer, bool dev)
{
    struct gpt_block_grads g = { { NULL } };

    for (uint32_t part = 0; part < model->parts; part++) {
        struct unit *u = &units[gpt_unit_block(model, layer) + part];

        g.at[part] = dev ? u->dev_grads : u->grads;
    }
    return g;
}

static void dev_forward(struct gpt_dev_run *run, const struct gpt *model, struct unit *units,
                        uint32_t layer)
{
    const struct gpt_block_weights w = block_weights(model, units, layer, true);

    gpt_dev_block_forward(run, layer, &w);
}

static void dev_backward(struct gpt_dev_run *run, const struct gpt *model, struct unit *units,
                         uint32_t layer, bool frozen)
{
    const struct gpt_block_weights w = block_weights(model, units, layer, true);
    const struct gpt_block_grads g = block_grads(model, units, layer, true);

    gpt_dev_block_backward(run, layer, &w, frozen ? &(struct gpt_block_grads){ { NULL } } : &g);
}

static double host_micro(struct gpt_run *run, const struct gpt *model, struct unit *units,
                         const uint32_t *tokens)
{
    uint32_t last = gpt_unit_ln_f(model);
    double loss;

    gpt_run_tokens(run, tokens);
    gpt_embed_forward(run, units[0].weights);
    for (uint32_t l = 0; l < model->shape.layers; l++) {
        const struct gpt_block_weights w = block_weights(model, units, l, false);

        gpt_block_forward(run, l, &w);
    }
    loss = gpt_head(run, units[last].weights, units[0].weights, units[last].grads, units[0].grads);
    for (uint32_t l = model->shape.layers; l-- > 0;) {
        const struct gpt_block_weights w = block_weights(model, units, l, false);
        const struct gpt_block_grads g = block_grads(model, units, l, false);

        gpt_block_backward(run, l, &w, &g);
    }
    gpt_embed_backward(run, units[0].grads);
    return loss;
}

/* The first `frozen` blocks are not trained. */
static void dev_micro(struct gpt_dev_run *run, const struct gpt *model, struct unit *units,
                      const uint32_t *tokens, uint32_t frozen)
{
    uint32_t last = gpt_unit_ln_f(model);

    gpt_dev_tokens(run, tokens);
    gpt_dev_embed_forward(run, units[0].dev_weights);
    for (uint32_t l = 0; l < model->shape.layers; l++)
        dev_forward(run, model, units, l);
    gpt_dev_head(run, units[last].dev_weights, units[0].dev_weights, units[last].dev_grads,
                 units[0].dev_grads);
    for (uint32_t l = model->shape.layers; l-- > 0;)
        dev_backward(run, model, units, l, l < frozen);
    gpt_dev_embed_backward(run, units[0].dev_grads);
}

/* The gradient of each tensor, as a vector: |got - want| <= bound * |want| + least. */
static void grads_check(struct fixture *x, const char *name, const struct gpt *model,
                        struct unit *units, double bound, double least)
{
    for (uint32_t u = 0; u < model->nunits; u++) {
        good(x, zk_gpu_copy(x->stream, ZK_GPU_TO_HOST, units[u].got, units[u].dev_grads,
                            model->units[u].elems * 4, &x->err));
        good(x, zk_gpu_stream_sync(x->stream, &x->err));
        for (uint32_t k = 0; k < model->units[u].ntensors; k++) {
            const struct gpt_tensor *t = &model->units[u].tensors[k];
            double off = 0, size = 0;

            for (uint64_t i = t->first; i < t->first + t->elems; i++) {
                double want = (double)units[u].grads[i], got = (double)units[u].got[i];

                off += (got - want) * (got - want);
                size += want * want;
            }
            if (!(sqrt(off) <= bound * sqrt(size) + least * sqrt((double)t->elems)))
                fail_msg("%s, %s: the gradient of %s is off by %g of %g", x->name, name, t->name,
                         sqrt(off), sqrt(size));
        }
    }
}

/* For bf16: 2^-8 for each of 18 L + 2 roundings, as a root of squares, with no reduction for
 * averages; for fp16 2^-11. */
static double bound_of(const struct gpt_shape *s, enum gpt_dtype_dev dtype)
{
    return dtype == GPT_DEV_F32
               ? 1e-5
               : (dtype == GPT_DEV_BF16 ? 0x1p-8 : 0x1p-11) * sqrt(18.0 * s->layers + 2);
}

/* Sequences of a setting, with the usual recomputation of a device. */
static struct gpt_hold hold_of(uint32_t sequences)
{
    return (struct gpt_hold){ .sequences = sequences, .recompute = true };
}

static void passes_on(struct fixture *x, const struct setting *s, enum gpt_dtype_dev dtype)
{
    const struct gpt_hold hold = hold_of(s->sequences);
    struct unit units[UNITS_MAX];
    struct gpt model;
    struct zb_err err = { 0 };
    struct gpt_run *host = NULL;
    struct gpt_dev_run *dev = NULL;
    uint32_t *tokens = calloc((size_t)s->sequences * (s->shape.seq + 1), sizeof(*tokens));
    double want = 0, got = 0, bound = bound_of(&s->shape, dtype);

    assert_non_null(tokens);
    assert_int_equal(gpt_init(&model, &s->shape, &err), 0);
    assert_true(model.nunits <= UNITS_MAX);
    units_new(x, &model, dtype, units);
    assert_int_equal(gpt_run_new(&host, &model, &hold, &err), 0);
    if (gpt_dev_run_new(&dev, x->dev, &model, &hold, dtype, &err) != 0)
        fail_msg("%s, %s: %s", x->name, s->name, err.text);
    assert_true(gpt_dev_allocated(x->dev) >= gpt_dev_run_bytes(&model, &hold, dtype));
    if (dtype == GPT_DEV_FP16) { /* the gradients of both are scaled by 256 */
        gpt_run_scale(host, 256);
        gpt_dev_run_scale(dev, 256);
    }
    for (uint32_t micro = 0; micro < 3; micro++) { /* more than there are host buffers */
        tokens_draw(s, micro, tokens);
        want += host_micro(host, &model, units, tokens);
        dev_micro(dev, &model, units, tokens, 0);
    }
    if (gpt_dev_loss(dev, &got, &err) != 0)
        fail_msg("%s, %s: %s", x->name, s->name, err.text);
    if (!(fabs(got - want) <= bound * fabs(want)))
        fail_msg("%s, %s: the loss is %.9g, not %.9g", x->name, s->name, got, want);
    /* Weights are larger here than in a model, and branches larger than the stream: 4 times
     * that. */
    grads_check(x, s->name, &model, units, 4 * bound,
                dtype == GPT_DEV_BF16   ? 1e-3
                : dtype == GPT_DEV_FP16 ? 256 * 1e-4
                                        : 1e-6);

    dev_micro(dev, &model, units, tokens, 0); /* a loss is reported once */
    if (gpt_dev_loss(dev, &got, &err) != 0)
        fail_msg("%s, %s: %s", x->name, s->name, err.text);
    if (!(fabs(got - host_micro(host, &model, units, tokens)) <= bound * fabs(want)))
        fail_msg("%s, %s: the last loss is %.9g", x->name, s->name, got);
    gpt_run_free(host);
    units_done(&model, units);
    gpt_done(&model);
    free(tokens);
    gpt_dev_close(x->dev);
    x->dev = NULL;
    gpt_dev_run_free(dev);
}

static void passes_are_the_processors(void **state)
{
    static const char *const names[] = { "emulated:64M", "emulated:64M:20", "cuda" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(names) * ZB_COUNT(settings) * 3; i++) {
        struct fixture x;

        if (!fixture_open(&x, names[i / 3 / ZB_COUNT(settings)]))
            break;
        passes_on(&x, &settings[i / 3 % ZB_COUNT(settings)], (enum gpt_dtype_dev)(i % 3));
        fixture_close(&x);
    }
}

/* Passes of `micros` micro-batches, each pass for all of them before the next pass. */
static void dev_vertical(struct gpt_dev_run *run, const struct gpt *model, struct unit *units,
                         const struct setting *s, uint32_t micros, uint32_t *tokens)
{
#define EACH(call)                          \
    for (uint32_t m = 0; m < micros; m++) { \
        gpt_dev_micro(run, m);              \
        call;                               \
    }
    uint32_t last = gpt_unit_ln_f(model);

    EACH(tokens_draw(s, m, tokens); gpt_dev_tokens(run, tokens));
    EACH(gpt_dev_embed_forward(run, units[0].dev_weights));
    for (uint32_t l = 0; l < model->shape.layers; l++)
        EACH(dev_forward(run, model, units, l));
    EACH(gpt_dev_head(run, units[last].dev_weights, units[0].dev_weights, units[last].dev_grads,
                      units[0].dev_grads));
    for (uint32_t l = model->shape.layers; l-- > 0;)
        EACH(dev_backward(run, model, units, l, false));
    EACH(gpt_dev_embed_backward(run, units[0].dev_grads));
#undef EACH
}

/* A slow link: each copy that leaves the device waits for this many other copies of its size. */
static unsigned copies_ahead;

void __real_gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                                unsigned before, unsigned after);

void __wrap_gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                                unsigned before, unsigned after);

void __wrap_gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                                unsigned before, unsigned after)
{
    for (unsigned i = 0; i <= copies_ahead; i++)
        __real_gpt_dev_down_beside(d, host, dev, bytes, before, after);
}

/* The results of one order of micro-batches and one way of keeping activations. */
struct made {
    float *grads[UNITS_MAX];
    double loss;
    uint64_t bytes;
};

enum kept { ALL, INPUTS, STASHED };

static void made_by(const char *name, const struct setting *s, bool bf16, bool vertical,
                    enum kept kept, uint32_t frozen, struct gpt *model, struct made *ret)
{
    struct gpt_hold hold = { .sequences = s->sequences,
                             .micros = vertical ? 3 : 1,
                             .recompute = kept != ALL };
    struct gpt_stash_options stash = { .job = "t" };
    uint32_t *tokens = calloc((size_t)s->sequences * (s->shape.seq + 1), sizeof(*tokens));
    struct gpt_dev_run *run = NULL;
    struct unit units[UNITS_MAX];
    struct zb_err err = { 0 };
    struct fixture x;

    assert_non_null(tokens);
    assert_true(fixture_open(&x, name));
    assert_int_equal(gpt_init(model, &s->shape, &err), 0);
    units_new(&x, model, bf16, units);
    stash.entries = gpt_hold_entries(model, &hold);
    stash.entry_bytes = gpt_hold_entry_bytes(model, &hold);
    if (kept == STASHED)
        assert_int_equal(gpt_stash_open(&hold.stash, &stash, &err), 0);
    assert_int_equal(gpt_dev_run_new(&run, x.dev, model, &hold, bf16, &err), 0);
    for (uint32_t time = 0; time < 3; time++) /* more than there are host buffers */
        for (uint32_t m = 0; m < (vertical ? 1 : 3); m++) {
            if (vertical) {
                dev_vertical(run, model, units, s, 3, tokens);
                continue;
            }
            tokens_draw(s, m, tokens);
            dev_micro(run, model, units, tokens, frozen);
        }
    if (gpt_dev_loss(run, &ret->loss, &err) != 0)
        fail_msg("%s", err.text);
    ret->bytes = gpt_dev_run_bytes(model, &hold, bf16);
    for (uint32_t u = 0; u < model->nunits; u++) {
        good(&x, zk_gpu_copy(x.stream, ZK_GPU_TO_HOST, units[u].got, units[u].dev_grads,
                             model->units[u].elems * 4, &x.err));
        good(&x, zk_gpu_stream_sync(x.stream, &x.err));
        ret->grads[u] = units[u].got;
        units[u].got = NULL;
    }
    units_done(model, units);
    free(tokens);
    gpt_dev_close(x.dev);
    x.dev = NULL;
    gpt_dev_run_free(run);
    gpt_stash_close(hold.stash);
    fixture_close(&x);
}

/* No bit changes, except in the embedding's gradient, where another order of additions rounds
 * differently. */
static void what_is_kept_changes_nothing(void **state)
{
    static const struct setting deep = { "deep, wide", { 5, 2, 16, 8, 40, false }, 3 }, *s = &deep;
    const uint64_t n = 3 * 8, c = 16, layers = 5;

    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const uint64_t e = bf16 ? 2 : 4;
        struct made base, other;
        struct gpt model;

        made_by("emulated:64M:20", s, bf16, false, INPUTS, 0, &model, &base);
        for (int i = 0; i < 6; i++) {
            enum kept kept = (enum kept)(i / 2);
            bool vertical = i & 1;
            uint64_t micros = vertical ? 3 : 1;

            gpt_done(&model);
            made_by(i < 4 ? "emulated:64M" : "emulated:64M:200", s, bf16, vertical, kept, 0, &model,
                    &other);
            assert_true(base.loss == other.loss);
            for (uint32_t u = 0; u < model.nunits; u++) {
                if (u > 0 || !vertical)
                    assert_memory_equal(base.grads[u], other.grads[u], model.units[u].elems * 4);
                free(other.grads[u]);
            }
            if (kept == STASHED) { /* three on the device, and none for each layer */
                assert_true(other.bytes < base.bytes || vertical);
                assert_true(fake_stash.ahead > 5);
                assert_true(fake_stash.taken - fake_stash.ahead <= 3); /* the first of each walk */
            }
            if (kept == ALL) /* the insides of every block, and the head's own */
                assert_true(other.bytes - base.bytes >=
                            (micros * layers - 1) * (n * c * (4 + 14 * e) + 16 * n));
        }
        for (uint32_t u = 0; u < model.nunits; u++)
            free(base.grads[u]);
        gpt_done(&model);
    }
}

/* Copies are slower than passes: a pass must not overwrite data before its copy has ended. */
static void a_window_stays_until_it_is_copied(void **state)
{
    static const struct setting deep = { "deep, a slow link", { 5, 1, 8, 4, 11, false }, 1 };

    (void)state;
    for (int vertical = 0; vertical < 2; vertical++) {
        struct made base, other;
        struct gpt model;

        made_by("emulated:64M", &deep, false, vertical, INPUTS, 0, &model, &base);
        gpt_done(&model);
        copies_ahead = 200;
        made_by("emulated:64M:100", &deep, false, vertical, STASHED, 0, &model, &other);
        copies_ahead = 0;
        assert_true(base.loss == other.loss);
        for (uint32_t u = 0; u < model.nunits; u++) {
            assert_memory_equal(base.grads[u], other.grads[u], model.units[u].elems * 4);
            free(base.grads[u]);
            free(other.grads[u]);
        }
        gpt_done(&model);
    }
}

/* Frozen blocks get no gradient, and no other gradient changes. */
static void frozen_blocks(void **state)
{
    const struct setting s = { "frozen", { 3, 2, 16, 8, 40, false }, 3 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct made all, none, upper;
        struct gpt model;

        made_by("emulated:64M", &s, i & 1, false, i & 2 ? INPUTS : ALL, 0, &model, &all);
        gpt_done(&model);
        made_by("emulated:64M", &s, i & 1, false, i & 2 ? INPUTS : ALL, 3, &model, &none);
        gpt_done(&model);
        made_by("emulated:64M", &s, i & 1, false, i & 2 ? INPUTS : ALL, 2, &model, &upper);
        assert_true(all.loss == upper.loss);
        for (uint32_t u = 0; u < model.nunits; u++) {
            const struct made *same = u == 1 || u == 2 ? &none : &all; /* frozen, or trained */

            assert_memory_equal(same->grads[u], upper.grads[u], model.units[u].elems * 4);
            if (u >= 1 && u <= 3)
                assert_memory_not_equal(all.grads[u], none.grads[u], model.units[u].elems * 4);
            free(all.grads[u]);
            free(none.grads[u]);
            free(upper.grads[u]);
        }
        gpt_done(&model);
    }
}

/* For each layer: its residual stream. */
static void memory_grows_by_the_stream(void **state)
{
    struct gpt_shape shape = { 2, 4, 64, 32, 100, false };
    const struct gpt_hold hold = hold_of(3), too_many = hold_of(UINT32_MAX);
    struct zb_err err = { 0 };
    uint64_t before = 0;

    (void)state;
    for (shape.layers = 1; shape.layers <= 8; shape.layers++) {
        struct gpt model;
        uint64_t bytes;

        assert_int_equal(gpt_init(&model, &shape, &err), 0);
        bytes = gpt_dev_run_bytes(&model, &hold, true);
        if (shape.layers > 1)
            assert_int_equal(bytes - before, 3 * 32 * 64 * 4);
        before = bytes;
        assert_true(gpt_dev_run_bytes(&model, &too_many, true) == UINT64_MAX);
        gpt_done(&model);
    }
}

static void too_much_is_said(void **state)
{
    struct gpt_shape shape = { 2, 4, 64, 4096, 100, false };
    const struct gpt_hold hold = hold_of(8);
    struct gpt_dev_run *run = NULL;
    struct zb_err err = { 0 };
    struct fixture x;
    struct gpt model;

    (void)state;
    assert_true(fixture_open(&x, "emulated:64M"));
    assert_int_equal(gpt_init(&model, &shape, &err), 0);
    assert_int_equal(gpt_dev_run_new(&run, x.dev, &model, &hold, false, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "activations take"));
    assert_null(run);
    gpt_done(&model);
    fixture_close(&x);
}

static bool give_up(void *arg)
{
    return --*(int *)arg > 0;
}

/* A device that never finishes: a waiting thread can give up. */
static void a_wait_can_be_given_up(void **state)
{
    struct gpt_shape shape = { 1, 1, 8, 4, 10, false };
    const struct gpt_hold hold = hold_of(1);
    struct gpt_dev_run *run = NULL;
    struct zb_err err = { 0 };
    struct fixture x;
    struct gpt model;
    double loss = 5;
    int ticks = 3;

    (void)state;
    assert_true(fixture_open(&x, "emulated:64M:200000"));
    assert_int_equal(gpt_init(&model, &shape, &err), 0);
    assert_int_equal(gpt_dev_run_new(&run, x.dev, &model, &hold, false, &err), 0);
    gpt_dev_run_on_tick(run, give_up, &ticks);
    assert_int_equal(gpt_dev_loss(run, &loss, &err), -ECANCELED);
    assert_int_equal(err.code, 0);
    assert_true(loss == 5);
    gpt_done(&model);
    fixture_close(&x);
    gpt_dev_run_free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_the_processors),
        cmocka_unit_test(what_is_kept_changes_nothing),
        cmocka_unit_test(a_window_stays_until_it_is_copied),
        cmocka_unit_test(frozen_blocks),
        cmocka_unit_test(memory_grows_by_the_stream),
        cmocka_unit_test(too_much_is_said),
        cmocka_unit_test(a_wait_can_be_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
