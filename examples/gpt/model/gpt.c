/*
 * gpt.c - the units of the model, and their initial values.
 */
#include "examples/gpt/model/gpt.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "examples/gpt/model/rng.h"

#define INIT_SIGMA 0.02

static struct gpt_tensor *unit_add(struct gpt_unit *u, const char *prefix, const char *name,
                                   uint64_t rows, uint64_t cols, enum gpt_fill fill, double sigma)
{
    struct gpt_tensor *t = &u->tensors[u->ntensors++];

    assert(u->ntensors <= GPT_UNIT_TENSORS_MAX);
    (void)snprintf(t->name, sizeof(t->name), "%s%s", prefix, name);
    t->ndims = rows ? 2 : 1; /* rows 0: a vector */
    t->dims[0] = rows ? rows : cols;
    t->dims[1] = rows ? cols : 1;
    t->elems = t->dims[0] * t->dims[1];
    t->first = u->elems;
    t->group = rows ? 0 : 1;
    t->fill = fill;
    t->sigma = sigma;
    u->elems += t->elems;
    return t;
}

/* The tensors of a block, in the order of block.h; rows and columns in widths, rows 0: a vector. */
static const struct {
    const char *name;
    uint64_t rows, cols;
    enum gpt_fill fill;
    bool residual; /* ends on the residual stream */
} block_tensors[GPT_UNIT_TENSORS_MAX] = {
    { "ln_1.weight", 0, 1, GPT_FILL_ONE, false },
    { "ln_1.bias", 0, 1, GPT_FILL_ZERO, false },
    { "attn.c_attn.weight", 1, 3, GPT_FILL_NORMAL, false },
    { "attn.c_attn.bias", 0, 3, GPT_FILL_ZERO, false },
    { "attn.c_proj.weight", 1, 1, GPT_FILL_NORMAL, true },
    { "attn.c_proj.bias", 0, 1, GPT_FILL_ZERO, false },
    { "ln_2.weight", 0, 1, GPT_FILL_ONE, false },
    { "ln_2.bias", 0, 1, GPT_FILL_ZERO, false },
    { "mlp.c_fc.weight", 1, 4, GPT_FILL_NORMAL, false },
    { "mlp.c_fc.bias", 0, 4, GPT_FILL_ZERO, false },
    { "mlp.c_proj.weight", 4, 1, GPT_FILL_NORMAL, true },
    { "mlp.c_proj.bias", 0, 1, GPT_FILL_ZERO, false },
};

static void block_lay_out(struct gpt *model, uint32_t layer)
{
    struct gpt_unit *units = &model->units[gpt_unit_block(model, layer)];
    uint64_t c = model->shape.width;
    double sigma = INIT_SIGMA, residual = INIT_SIGMA / sqrt(2.0 * model->shape.layers);
    char prefix[32];

    (void)snprintf(prefix, sizeof(prefix), "transformer.h.%u.", layer);
    (void)snprintf(units[0].name, sizeof(units[0].name), "h.%u", layer);
    if (model->parts > 1)
        (void)snprintf(units[1].name, sizeof(units[1].name), "h.%u.vectors", layer);
    for (uint32_t i = 0; i < GPT_UNIT_TENSORS_MAX; i++) {
        uint32_t part = model->parts > 1 && block_tensors[i].rows == 0;
        const struct gpt_tensor *t = unit_add(&units[part], prefix, block_tensors[i].name,
                                              block_tensors[i].rows * c, block_tensors[i].cols * c,
                                              block_tensors[i].fill,
                                              block_tensors[i].residual ? residual : sigma);

        model->block[i] = (struct gpt_place){ .part = part, .first = t->first };
    }
}

static int shape_check(const struct gpt_shape *s, struct zb_err *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } sizes[] = {
        { "layers", s->layers, GPT_LAYERS_MAX },   { "width", s->width, GPT_WIDTH_MAX },
        { "heads", s->heads, GPT_WIDTH_MAX },      { "seq", s->seq, GPT_SEQ_MAX },
        { "vocabulary", s->vocab, GPT_VOCAB_MAX },
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max)
            return zb_fail(err, -EINVAL, "%s is %u, but must be 1 to %u", sizes[i].name,
                           sizes[i].value, sizes[i].max);
    if (s->width % s->heads != 0)
        return zb_fail(err, -EINVAL, "width %u is not a multiple of %u heads", s->width, s->heads);
    return 0;
}

int gpt_init(struct gpt *model, const struct gpt_shape *shape, struct zb_err *err)
{
    struct gpt_unit *u;
    int rc = shape_check(shape, err);

    *model = (struct gpt){ .shape = *shape };
    if (rc != 0)
        return rc;
    model->parts = shape->split ? GPT_PARTS : 1;
    model->nunits = shape->layers * model->parts + 2;
    model->units = calloc(model->nunits, sizeof(*model->units));
    if (!model->units)
        return zb_fail(err, -ENOMEM, "a model of %u layers: %m", shape->layers);

    u = &model->units[gpt_unit_embed()];
    (void)snprintf(u->name, sizeof(u->name), "embed");
    (void)unit_add(u, "transformer.", "wte.weight", shape->vocab, shape->width, GPT_FILL_NORMAL,
                   INIT_SIGMA);
    (void)unit_add(u, "transformer.", "wpe.weight", shape->seq, shape->width, GPT_FILL_NORMAL,
                   INIT_SIGMA);
    for (uint32_t l = 0; l < shape->layers; l++)
        block_lay_out(model, l);
    u = &model->units[gpt_unit_ln_f(model)];
    (void)snprintf(u->name, sizeof(u->name), "ln_f");
    (void)unit_add(u, "transformer.", "ln_f.weight", 0, shape->width, GPT_FILL_ONE, 0);
    (void)unit_add(u, "transformer.", "ln_f.bias", 0, shape->width, GPT_FILL_ZERO, 0);

    for (uint32_t i = 0; i < model->nunits; i++)
        model->params += model->units[i].elems;
    return 0;
}

void gpt_done(struct gpt *model)
{
    free(model->units);
    *model = (struct gpt){ 0 };
}

/* Elements [first, first + count) of one tensor. */
static void tensor_init_range(const struct gpt_tensor *t, uint64_t seed, uint64_t first,
                              uint64_t count, float *out)
{
    struct gpt_rng rng = gpt_rng(seed, t->name);
    uint64_t end = first + count;

    if (t->fill != GPT_FILL_NORMAL) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = t->fill == GPT_FILL_ONE ? 1.0f : 0.0f;
        return;
    }
    for (uint64_t block = first / 4; block * 4 < end; block++) {
        double z[4];

        gpt_rng_normal4(&rng, block, z);
        for (uint64_t j = 0; j < 4; j++)
            if (block * 4 + j >= first && block * 4 + j < end)
                out[block * 4 + j - first] = (float)(t->sigma * z[j]);
    }
}

void gpt_init_range(const struct gpt *model, uint64_t seed, uint32_t unit, uint64_t first,
                    uint64_t count, float *out)
{
    const struct gpt_unit *u = &model->units[unit];

    assert(unit < model->nunits);
    for (uint64_t i = first > u->elems ? first : u->elems; i < first + count; i++)
        out[i - first] = 0.0f;
    for (uint32_t k = 0; k < u->ntensors; k++) {
        const struct gpt_tensor *t = &u->tensors[k];
        uint64_t from = first > t->first ? first : t->first;
        uint64_t to = first + count < t->first + t->elems ? first + count : t->first + t->elems;

        if (from < to)
            tensor_init_range(t, seed, from - t->first, to - from, out + (from - first));
    }
}
