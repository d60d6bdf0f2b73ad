/*
 * test_gpt.c - compares the model with a second implementation in double, with plain loops.
 *
 * The gradient of the double model is computed numerically, from four points (error of order h^4,
 * about 1e-9 here), so it shares nothing with the backward pass under test. Tolerances: 2e-6 for a
 * loss; for a gradient 5e-6 of the largest one of its tensor, or of the whole model where the
 * tensor's own is nearly 0 (the bias of the keys has none). The largest errors seen are 2e-7 and
 * 1.2e-6.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/model.h"
#include "examples/gpt/model/gpt.h"

#define UNITS_MAX 12

/* Under sanitizers, very large allocations must fail as they do without them. */
#define SANITIZER_ASKS __attribute__((visibility("default")))
SANITIZER_ASKS const char *__asan_default_options(void);
SANITIZER_ASKS const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* ---- the model in double */

struct ref {
    const struct gpt *model;
    uint32_t sequences;
    const uint32_t *tokens;
    double *w[UNITS_MAX];
};

static void ref_layernorm(const double *x, const double *w, const double *b, double *y, uint32_t c)
{
    double mean = 0, var = 0;

    for (uint32_t i = 0; i < c; i++)
        mean += x[i] / c;
    for (uint32_t i = 0; i < c; i++)
        var += (x[i] - mean) * (x[i] - mean) / c;
    for (uint32_t i = 0; i < c; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * w[i] + b[i];
}

static void ref_linear(const double *x, const double *w, const double *b, double *y, uint32_t in,
                       uint32_t out)
{
    for (uint32_t o = 0; o < out; o++) {
        y[o] = b[o];
        for (uint32_t i = 0; i < in; i++)
            y[o] += x[i] * w[i * out + o];
    }
}

static void ref_attention(const double *qkv, double *y, uint32_t t, uint32_t c, uint32_t heads)
{
    uint32_t hs = c / heads;
    double *p = malloc(t * sizeof(*p));

    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < t; i++) {
            const double *q = qkv + i * 3 * c + h * hs;
            double sum = 0;

            for (uint32_t j = 0; j <= i; j++) {
                double dot = 0;

                for (uint32_t k = 0; k < hs; k++)
                    dot += q[k] * qkv[j * 3 * c + c + h * hs + k];
                sum += p[j] = exp(dot / sqrt(hs));
            }
            for (uint32_t k = 0; k < hs; k++) {
                y[i * c + h * hs + k] = 0;
                for (uint32_t j = 0; j <= i; j++)
                    y[i * c + h * hs + k] += p[j] / sum * qkv[j * 3 * c + 2 * c + h * hs + k];
            }
        }
    free(p);
}

static void ref_block(const struct gpt_unit *u, const double *w, double *x, uint32_t t, uint32_t c,
                      uint32_t heads)
{
    double *a = malloc(4 * t * c * sizeof(*a)), *b = malloc(t * c * sizeof(*b));
    double *y = malloc(4 * c * sizeof(*y));

    for (uint32_t i = 0; i < t; i++) {
        ref_layernorm(x + i * c, w + u->tensors[0].first, w + u->tensors[1].first, y, c);
        ref_linear(y, w + u->tensors[2].first, w + u->tensors[3].first, a + i * 3 * c, c, 3 * c);
    }
    ref_attention(a, b, t, c, heads);
    for (uint32_t i = 0; i < t; i++) {
        ref_linear(b + i * c, w + u->tensors[4].first, w + u->tensors[5].first, y, c, c);
        for (uint32_t k = 0; k < c; k++)
            x[i * c + k] += y[k];
        ref_layernorm(x + i * c, w + u->tensors[6].first, w + u->tensors[7].first, y, c);
        ref_linear(y, w + u->tensors[8].first, w + u->tensors[9].first, a, c, 4 * c);
        for (uint32_t k = 0; k < 4 * c; k++)
            a[k] *= 0.5 * (1 + tanh(sqrt(2 / M_PI) * (a[k] + 0.044715 * a[k] * a[k] * a[k])));
        ref_linear(a, w + u->tensors[10].first, w + u->tensors[11].first, y, 4 * c, c);
        for (uint32_t k = 0; k < c; k++)
            x[i * c + k] += y[k];
    }
    free(a);
    free(b);
    free(y);
}

static double ref_loss(const struct ref *r)
{
    const struct gpt_shape *s = &r->model->shape;
    const double *embed = r->w[0], *ln_f = r->w[s->layers + 1];
    uint32_t c = s->width, t = s->seq;
    double *x = malloc(t * c * sizeof(*x)), *y = malloc(c * sizeof(*y));
    double loss = 0;

    for (uint32_t m = 0; m < r->sequences; m++) {
        const uint32_t *tokens = r->tokens + m * (t + 1);

        for (uint32_t i = 0; i < t; i++)
            for (uint32_t k = 0; k < c; k++)
                x[i * c + k] = embed[tokens[i] * c + k] + embed[(s->vocab + i) * c + k];
        for (uint32_t l = 0; l < s->layers; l++)
            ref_block(&r->model->units[1 + l], r->w[1 + l], x, t, c, s->heads);
        for (uint32_t i = 0; i < t; i++) {
            double sum = 0, target = 0;

            ref_layernorm(x + i * c, ln_f, ln_f + c, y, c);
            for (uint32_t v = 0; v < s->vocab; v++) {
                double logit = 0;

                for (uint32_t k = 0; k < c; k++)
                    logit += y[k] * embed[v * c + k];
                sum += exp(logit);
                if (v == tokens[i + 1])
                    target = logit;
            }
            loss += (log(sum) - target) / t / r->sequences;
        }
    }
    free(x);
    free(y);
    return loss;
}

static double ref_slope(struct ref *r, uint32_t unit, uint64_t i)
{
    double *w = &r->w[unit][i], at = *w, h = 1e-3, f[4];
    static const double steps[4] = { -2, -1, 1, 2 };

    for (int k = 0; k < 4; k++) {
        *w = at + steps[k] * h;
        f[k] = ref_loss(r);
    }
    *w = at;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

/* ---- a model with weights and a batch */

struct fixture {
    struct gpt model;
    struct gpt_run *run;
    uint32_t sequences;
    uint32_t *tokens;
    float *w[UNITS_MAX], *g[UNITS_MAX];
};

static void fixture_open(struct fixture *x, struct gpt_shape shape, uint32_t sequences,
                         uint64_t seed)
{
    struct zb_err err = { 0 };
    size_t ntokens = (size_t)sequences * (shape.seq + 1);

    memset(x, 0, sizeof(*x));
    assert_int_equal(gpt_init(&x->model, &shape, &err), 0);
    assert_int_equal(
        gpt_run_new(&x->run, &x->model, &(struct gpt_hold){ .sequences = sequences }, &err), 0);
    x->sequences = sequences;
    x->tokens = malloc(ntokens * sizeof(*x->tokens));
    for (size_t i = 0; i < ntokens; i++)
        x->tokens[i] = (uint32_t)(ztest_random(&seed) % shape.vocab);
    for (uint32_t u = 0; u < x->model.nunits; u++) {
        uint64_t n = x->model.units[u].elems;

        x->w[u] = malloc(n * sizeof(float));
        x->g[u] = calloc(n, sizeof(float));
        gpt_init_range(&x->model, 1, u, 0, n, x->w[u]);
        for (uint64_t i = 0; i < n; i++) /* no value stays 0 or 1 */
            x->w[u][i] += (float)((double)(int64_t)ztest_random(&seed) * 0x1p-63 * 0.3);
    }
    gpt_run_tokens(x->run, x->tokens);
}

static void fixture_close(struct fixture *x)
{
    for (uint32_t u = 0; u < x->model.nunits; u++) {
        free(x->w[u]);
        free(x->g[u]);
    }
    free(x->tokens);
    gpt_run_free(x->run);
    gpt_done(&x->model);
}

static struct gpt_block_weights weights_of(const struct fixture *x, uint32_t layer)
{
    uint32_t unit = gpt_unit_block(&x->model, layer);

    return (struct gpt_block_weights){ { x->w[unit], x->w[unit + 1] } };
}

static double forward(struct fixture *x, bool backward)
{
    uint32_t layers = x->model.shape.layers, ln_f = gpt_unit_ln_f(&x->model);

    gpt_embed_forward(x->run, x->w[0]);
    for (uint32_t l = 0; l < layers; l++) {
        const struct gpt_block_weights w = weights_of(x, l);

        gpt_block_forward(x->run, l, &w);
    }
    return gpt_head(x->run, x->w[ln_f], x->w[0], backward ? x->g[ln_f] : NULL,
                    backward ? x->g[0] : NULL);
}

/* The first `frozen` blocks are not trained. */
static double forward_backward_over(struct fixture *x, uint32_t frozen)
{
    double loss = forward(x, true);

    for (uint32_t l = x->model.shape.layers; l-- > 0;) {
        const struct gpt_block_weights w = weights_of(x, l);
        uint32_t unit = gpt_unit_block(&x->model, l);
        struct gpt_block_grads g = { { x->g[unit], x->g[unit + 1] } };

        gpt_block_backward(x->run, l, &w, l < frozen ? &(struct gpt_block_grads){ { NULL } } : &g);
    }
    gpt_embed_backward(x->run, x->g[0]);
    return loss;
}

static double forward_backward(struct fixture *x)
{
    return forward_backward_over(x, 0);
}

/* ---- tests */

static const struct {
    const char *name;
    struct gpt_shape shape;
    uint32_t sequences, stride; /* every stride-th gradient is checked */
} gradient_cases[] = {
    { "smallest", { .layers = 1, .heads = 1, .width = 4, .seq = 1, .vocab = 2 }, 1, 1 },
    { "one token", { .layers = 1, .heads = 3, .width = 6, .seq = 1, .vocab = 5 }, 3, 1 },
    { "two layers", { .layers = 2, .heads = 2, .width = 8, .seq = 5, .vocab = 11 }, 2, 1 },
    { "odd width", { .layers = 1, .heads = 3, .width = 21, .seq = 7, .vocab = 13 }, 2, 23 },
    { "more queries than one piece",
      { .layers = 1, .heads = 2, .width = 10, .seq = 70, .vocab = 17 },
      2,
      61 },
};

static void gradients(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(gradient_cases) / sizeof(gradient_cases[0]); k++) {
        const char *name = gradient_cases[k].name;
        struct fixture x;
        struct ref ref;
        double loss, want, all = 0;

        fixture_open(&x, gradient_cases[k].shape, gradient_cases[k].sequences, 99 + k);
        ref = (struct ref){ &x.model, x.sequences, x.tokens, { NULL } };
        for (uint32_t u = 0; u < x.model.nunits; u++) {
            ref.w[u] = malloc(x.model.units[u].elems * sizeof(double));
            for (uint64_t i = 0; i < x.model.units[u].elems; i++)
                ref.w[u][i] = x.w[u][i];
        }
        loss = forward_backward(&x);
        want = ref_loss(&ref);
        if (!(fabs(loss - want) <= 2e-6 * want))
            fail_msg("%s: loss %.9g, want %.9g", name, loss, want);
        for (uint32_t u = 0; u < x.model.nunits; u++)
            for (uint64_t i = 0; i < x.model.units[u].elems; i++)
                all = fmax(all, fabs((double)x.g[u][i]));
        for (uint32_t u = 0; u < x.model.nunits; u++)
            for (uint32_t t = 0; t < x.model.units[u].ntensors; t++) {
                const struct gpt_tensor *tensor = &x.model.units[u].tensors[t];
                double largest = 1e-3 * all;

                for (uint64_t i = 0; i < tensor->elems; i++)
                    largest = fmax(largest, fabs((double)x.g[u][tensor->first + i]));
                for (uint64_t i = 0; i < tensor->elems; i += gradient_cases[k].stride) {
                    double got = x.g[u][tensor->first + i];

                    want = ref_slope(&ref, u, tensor->first + i);
                    if (!(fabs(got - want) <= 5e-6 * largest))
                        fail_msg("%s: gradient %llu of %s is %.9g, want %.9g", name,
                                 (unsigned long long)i, tensor->name, got, want);
                }
            }
        for (uint32_t u = 0; u < x.model.nunits; u++)
            free(ref.w[u]);
        fixture_close(&x);
    }
}

static const struct gpt_shape small = {
    .layers = 2, .heads = 2, .width = 16, .seq = 9, .vocab = 19
};

static void same_bits_again(void **state)
{
    struct fixture x, y;

    (void)state;
    fixture_open(&x, small, 3, 5);
    fixture_open(&y, small, 3, 5);
    (void)forward(&y, false); /* leaves nothing behind that affects the next */
    assert_true(forward_backward(&x) == forward_backward(&y));
    for (uint32_t u = 0; u < x.model.nunits; u++)
        assert_memory_equal(x.g[u], y.g[u], x.model.units[u].elems * sizeof(float));
    fixture_close(&x);
    fixture_close(&y);
}

/* Frozen blocks get no gradient, and no other gradient changes. */
static void frozen_blocks(void **state)
{
    (void)state;
    for (uint32_t frozen = 1; frozen <= small.layers; frozen++) {
        struct fixture x, y;

        fixture_open(&x, small, 3, 5);
        fixture_open(&y, small, 3, 5);
        assert_true(forward_backward(&x) == forward_backward_over(&y, frozen));
        for (uint32_t u = 0; u < x.model.nunits; u++) {
            uint64_t n = x.model.units[u].elems;

            if (u < gpt_unit_block(&x.model, 0) || u >= gpt_unit_block(&x.model, frozen))
                assert_memory_equal(x.g[u], y.g[u], n * sizeof(float));
            else
                for (uint64_t i = 0; i < n; i++)
                    assert_true(y.g[u][i] == 0);
        }
        fixture_close(&x);
        fixture_close(&y);
    }
}

/* The tensor of that name, and the place of its elements in w or g. */
static const float *tensor_at(const struct fixture *x, float *const *units, const char *name,
                              uint64_t *ret_elems)
{
    for (uint32_t u = 0; u < x->model.nunits; u++)
        for (uint32_t k = 0; k < x->model.units[u].ntensors; k++) {
            const struct gpt_tensor *t = &x->model.units[u].tensors[k];

            *ret_elems = t->elems;
            if (strcmp(t->name, name) == 0)
                return units[u] + t->first;
        }
    fail_msg("there is no tensor '%s'", name);
    return NULL;
}

/* Matrices in units of their own are the same model, bit for bit, frozen or not. */
static void split_units(void **state)
{
    struct gpt_shape shape = small;
    struct fixture x, y;

    (void)state;
    fixture_open(&x, shape, 2, 5);
    shape.split = true;
    fixture_open(&y, shape, 2, 5);
    assert_int_equal(y.model.nunits, 2 + 2 * shape.layers);
    assert_int_equal(y.model.params, x.model.params);
    for (uint32_t frozen = 0; frozen < 2; frozen++) {
        for (uint32_t u = 0; u < y.model.nunits; u++)
            for (uint32_t k = 0; k < y.model.units[u].ntensors; k++) {
                const struct gpt_tensor *t = &y.model.units[u].tensors[k];
                uint64_t n;
                const float *w = tensor_at(&x, x.w, t->name, &n);

                assert_int_equal(n, t->elems);
                memcpy(y.w[u] + t->first, w, n * sizeof(float));
            }
        memcpy(y.tokens, x.tokens, 2 * ((size_t)shape.seq + 1) * sizeof(*x.tokens));
        gpt_run_tokens(x.run, x.tokens);
        gpt_run_tokens(y.run, y.tokens);
        assert_true(forward_backward_over(&x, frozen) == forward_backward_over(&y, frozen));
        for (uint32_t u = 0; u < y.model.nunits; u++)
            for (uint32_t k = 0; k < y.model.units[u].ntensors; k++) {
                const struct gpt_tensor *t = &y.model.units[u].tensors[k];
                uint64_t n;

                assert_memory_equal(y.g[u] + t->first, tensor_at(&x, x.g, t->name, &n),
                                    t->elems * sizeof(float));
            }
    }
    for (uint32_t l = 0; l < shape.layers; l++)
        for (uint32_t part = 0; part < 2; part++) {
            const struct gpt_unit *u = &y.model.units[gpt_unit_block(&y.model, l) + part];

            for (uint32_t k = 0; k < u->ntensors; k++)
                assert_int_equal(u->tensors[k].ndims, part == 0 ? 2 : 1);
        }
    fixture_close(&x);
    fixture_close(&y);
}

static void gradients_add(void **state)
{
    struct fixture x, y;

    (void)state;
    fixture_open(&x, small, 3, 5);
    fixture_open(&y, small, 3, 5);
    for (uint32_t u = 0; u < y.model.nunits; u++)
        for (uint64_t i = 0; i < y.model.units[u].elems; i++)
            y.g[u][i] = 0.5f;
    (void)forward_backward(&x);
    (void)forward_backward(&y);
    for (uint32_t u = 0; u < x.model.nunits; u++)
        for (uint64_t i = 0; i < x.model.units[u].elems; i++)
            if (fabsf(x.g[u][i] + 0.5f - y.g[u][i]) > 1e-6f)
                fail_msg("unit %u, element %llu: %g, then %g", u, (unsigned long long)i, x.g[u][i],
                         y.g[u][i]);
    fixture_close(&x);
    fixture_close(&y);
}

/* Ten sequences at once, whose logits need two pieces, compared with ten batches of one. */
static void logits_in_pieces(void **state)
{
    struct gpt_shape shape = { .layers = 1, .heads = 1, .width = 4, .seq = 20, .vocab = 50257 };
    struct fixture all, one;
    double sum = 0, loss;

    (void)state;
    fixture_open(&all, shape, 10, 8);
    fixture_open(&one, shape, 1, 8);
    for (uint32_t u = 0; u < all.model.nunits; u++)
        memcpy(one.w[u], all.w[u], all.model.units[u].elems * sizeof(float));
    loss = forward_backward(&all);
    for (uint32_t m = 0; m < 10; m++) {
        gpt_run_tokens(one.run, all.tokens + m * (shape.seq + 1));
        sum += forward_backward(&one);
    }
    assert_true(fabs(sum / 10 - loss) < 1e-6 * loss);
    for (uint32_t u = 0; u < all.model.nunits; u++) {
        double error = 0, size = 0;

        for (uint64_t i = 0; i < all.model.units[u].elems; i++) {
            error += pow((double)one.g[u][i] / 10 - (double)all.g[u][i], 2);
            size += pow((double)all.g[u][i], 2);
        }
        if (!(sqrt(error / size) < 2e-6))
            fail_msg("unit %u: relative error %g", u, sqrt(error / size));
    }
    fixture_close(&all);
    fixture_close(&one);
}

static void not_finite_reaches_the_loss(void **state)
{
    struct fixture x;

    (void)state;
    fixture_open(&x, small, 3, 5);
    x.w[gpt_unit_block(&x.model, 0)][40] = NAN;
    assert_true(isnan(forward_backward(&x)));
    assert_true(isnan(x.g[0][0]));
    fixture_close(&x);
}

static void units_as_hugging_face_names_them(void **state)
{
    static const struct {
        uint32_t unit, tensor;
        const char *unit_name, *name;
        uint64_t rows, cols;
        uint32_t group;
    } cases[] = {
        { 0, 0, "embed", "transformer.wte.weight", 19, 16, 0 },
        { 0, 1, "embed", "transformer.wpe.weight", 9, 16, 0 },
        { 1, 0, "h.0", "transformer.h.0.ln_1.weight", 16, 1, 1 },
        { 1, 2, "h.0", "transformer.h.0.attn.c_attn.weight", 16, 48, 0 },
        { 1, 3, "h.0", "transformer.h.0.attn.c_attn.bias", 48, 1, 1 },
        { 1, 4, "h.0", "transformer.h.0.attn.c_proj.weight", 16, 16, 0 },
        { 2, 7, "h.1", "transformer.h.1.ln_2.bias", 16, 1, 1 },
        { 2, 8, "h.1", "transformer.h.1.mlp.c_fc.weight", 16, 64, 0 },
        { 2, 10, "h.1", "transformer.h.1.mlp.c_proj.weight", 64, 16, 0 },
        { 2, 11, "h.1", "transformer.h.1.mlp.c_proj.bias", 16, 1, 1 },
        { 3, 0, "ln_f", "transformer.ln_f.weight", 16, 1, 1 },
        { 3, 1, "ln_f", "transformer.ln_f.bias", 16, 1, 1 },
    };
    struct zb_err err = { 0 };
    struct gpt model;
    uint64_t params = 0;

    (void)state;
    assert_int_equal(gpt_init(&model, &small, &err), 0);
    assert_int_equal(model.nunits, 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct gpt_unit *u = &model.units[cases[i].unit];
        const struct gpt_tensor *t = &u->tensors[cases[i].tensor];

        assert_string_equal(u->name, cases[i].unit_name);
        assert_string_equal(t->name, cases[i].name);
        assert_int_equal(t->dims[0], cases[i].rows);
        assert_int_equal(t->dims[1], cases[i].cols);
        assert_int_equal(t->ndims, cases[i].cols == 1 ? 1 : 2);
        assert_int_equal(t->group, cases[i].group);
    }
    for (uint32_t u = 0; u < model.nunits; u++) {
        uint64_t at = 0;

        for (uint32_t t = 0; t < model.units[u].ntensors; t++) { /* one after another */
            assert_int_equal(model.units[u].tensors[t].first, at);
            at += model.units[u].tensors[t].elems;
        }
        assert_int_equal(at, model.units[u].elems);
        params += at;
    }
    assert_int_equal(params, model.params);
    assert_int_equal(params, (19 + 9) * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16);
    gpt_done(&model);
}

static void initial_values_any_cut(void **state)
{
    struct zb_err err = { 0 };
    struct gpt model;
    uint64_t seed = 11;

    (void)state;
    assert_int_equal(gpt_init(&model, &small, &err), 0);
    for (uint32_t u = 0; u < model.nunits; u++) {
        uint64_t n = model.units[u].elems, padded = n + 100;
        float *whole = malloc(padded * sizeof(float)), *cut = malloc(padded * sizeof(float));

        gpt_init_range(&model, 42, u, 0, padded, whole);
        for (uint64_t i = n; i < padded; i++)
            assert_true(whole[i] == 0.0f);
        for (int round = 0; round < 20; round++) {
            memset(cut, 0xff, padded * sizeof(float));
            for (uint64_t at = 0; at < padded;) {
                uint64_t count = 1 + ztest_random(&seed) % (round < 10 ? 7 : 1000);

                count = count < padded - at ? count : padded - at;
                gpt_init_range(&model, 42, u, at, count, cut + at);
                at += count;
            }
            assert_memory_equal(whole, cut, padded * sizeof(float));
        }
        gpt_init_range(&model, 43, u, 0, padded, cut);
        if (u != gpt_unit_ln_f(&model))
            assert_memory_not_equal(whole, cut, padded * sizeof(float));
        gpt_init_range(&model, 42, u, padded, 7, cut); /* all of it is padding */
        for (int i = 0; i < 7; i++)
            assert_true(cut[i] == 0.0f);
        free(whole);
        free(cut);
    }
    gpt_done(&model);
}

static void initial_values_as_gpt2(void **state)
{
    struct gpt_shape shape = { .layers = 3, .heads = 1, .width = 128, .seq = 64, .vocab = 256 };
    struct zb_err err = { 0 };
    struct gpt model;

    (void)state;
    assert_int_equal(gpt_init(&model, &shape, &err), 0);
    for (uint32_t u = 0; u < model.nunits; u++)
        for (uint32_t k = 0; k < model.units[u].ntensors; k++) {
            const struct gpt_tensor *t = &model.units[u].tensors[k];
            const char *end = t->name + strlen(t->name);
            float *w = malloc(t->elems * sizeof(float));
            double mean = 0, var = 0, sigma = 0.02;

            gpt_init_range(&model, 1, u, t->first, t->elems, w);
            for (uint64_t i = 0; i < t->elems; i++)
                mean += w[i] / (double)t->elems;
            for (uint64_t i = 0; i < t->elems; i++)
                var += pow(w[i] - mean, 2) / (double)t->elems;
            if (strcmp(end - 5, ".bias") == 0) {
                assert_true(mean == 0 && var == 0);
            } else if (strstr(t->name, "ln_")) {
                assert_true(mean == 1 && var == 0);
            } else {
                if (strstr(t->name, "c_proj"))
                    sigma /= sqrt(6);
                assert_true(fabs(mean) < 5 * sigma / sqrt((double)t->elems));
                assert_true(fabs(sqrt(var) / sigma - 1) < 5 / sqrt(2 * (double)t->elems));
            }
            free(w);
        }
    gpt_done(&model);
}

static void shapes_refused(void **state)
{
    static const struct {
        const char *name;
        struct gpt_shape shape;
        const char *says;
    } cases[] = {
        { "no layer", { 0, 1, 4, 4, 4, false }, "layers is 0" },
        { "no head", { 1, 0, 4, 4, 4, false }, "heads is 0" },
        { "no width", { 1, 1, 0, 4, 4, false }, "width is 0" },
        { "no token", { 1, 1, 4, 0, 4, false }, "seq is 0" },
        { "no vocabulary", { 1, 1, 4, 4, 0, false }, "vocabulary is 0" },
        { "too many layers", { GPT_LAYERS_MAX + 1, 1, 4, 4, 4, false }, "layers is 4097" },
        { "too wide", { 1, 1, GPT_WIDTH_MAX + 1, 4, 4, false }, "width is 65537" },
        { "heads do not divide", { 1, 3, 16, 4, 4, false }, "not a multiple of 3 heads" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct zb_err err = { 0 };
        struct gpt model;

        if (gpt_init(&model, &cases[i].shape, &err) != -EINVAL || !strstr(err.text, cases[i].says))
            fail_msg("%s: '%s'", cases[i].name, err.text);
        gpt_done(&model);
    }
}

static void runs_refused(void **state)
{
    static const struct {
        const char *name;
        struct gpt_shape shape;
        uint32_t sequences;
        int rc;
    } cases[] = {
        { "no sequence", { 1, 1, 4, 4, 4, false }, 0, -EINVAL },
        { "too many tokens", { 1, 1, 4, 1024, 4, false }, 16385, -EINVAL },
        { "more memory than there is", { 4096, 1, 65536, 1024, 4, false }, 16384, -ENOMEM },
        { "more memory than can be said", { 4096, 65536, 65536, 1048576, 4, false }, 16, -ENOMEM },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gpt_run *run = NULL;
        struct zb_err err = { 0 };
        struct gpt model;
        int rc;

        assert_int_equal(gpt_init(&model, &cases[i].shape, &err), 0);
        rc = gpt_run_new(&run, &model, &(struct gpt_hold){ .sequences = cases[i].sequences }, &err);
        if (rc != cases[i].rc || run || !err.text[0])
            fail_msg("%s: %d '%s'", cases[i].name, rc, err.text);
        gpt_done(&model);
    }
}

/* The planner counts the same units with code of its own. */
static void the_planner_agrees(void **state)
{
    const struct gpt_shape shapes[] = {
        { .layers = 1, .heads = 1, .width = 1, .seq = 1, .vocab = 1 },
        { .layers = 5, .heads = 2, .width = 48, .seq = 32, .vocab = 256 },
        { .layers = 5, .heads = 2, .width = 48, .seq = 32, .vocab = 256, .split = true },
        { .layers = 12, .heads = 12, .width = 768, .seq = 1024, .vocab = 50257 }
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct zb_gpt shape = { shapes[i].layers, shapes[i].width, shapes[i].vocab, shapes[i].seq,
                                shapes[i].split };
        struct zb_model planned = { 0 };
        struct gpt model;

        assert_int_equal(gpt_init(&model, &shapes[i], NULL), 0);
        assert_int_equal(zb_model_gpt(&planned, &shape, NULL), 0);
        assert_int_equal(planned.params, model.params);
        assert_int_equal(planned.nunits, model.nunits);
        for (uint32_t u = 0; u < model.nunits; u++)
            assert_int_equal(planned.units[u], model.units[u].elems);
        for (uint32_t u = 0; u < model.nunits && shapes[i].split; u++)
            assert_int_equal(zb_model_matrices(&planned, u),
                             u > 0 && model.units[u].tensors[0].ndims == 2);
        zb_model_done(&planned);
        gpt_done(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(same_bits_again),
        cmocka_unit_test(frozen_blocks),
        cmocka_unit_test(split_units),
        cmocka_unit_test(gradients_add),
        cmocka_unit_test(logits_in_pieces),
        cmocka_unit_test(not_finite_reaches_the_loss),
        cmocka_unit_test(units_as_hugging_face_names_them),
        cmocka_unit_test(initial_values_any_cut),
        cmocka_unit_test(initial_values_as_gpt2),
        cmocka_unit_test(shapes_refused),
        cmocka_unit_test(runs_refused),
        cmocka_unit_test(the_planner_agrees),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
