/*
 * train_walk.c - one walk through the units: `at_once` micro-batches, forward and backward. Weights
 * are borrowed unit by unit; gradients are reduced when they are complete. train.c has the model.
 */
#include "examples/gpt/model/vec.h"
#include "examples/gpt/train_priv.h"

static bool widens(const struct train *t)
{
    return is_narrow(t) && gpt_passes_wide(t->passes);
}

/* Borrows a unit's weights, in the form that passes take. unit_put() releases them. */
static int unit_get(struct train *t, uint32_t unit, enum slot slot, const void **ret)
{
    const void *params = NULL;
    int rc = zc_zero_gather(t->zero, unit, &params);

    if (rc != 0)
        return gpt_engine_fail(t, rc);
    *ret = params;
    if (widens(t)) {
        (t->args->dtype == GPT_BF16 ? gpt_vec_widen : gpt_vec_widen_fp16)(
            params, t->wide[slot], t->model.units[unit].elems);
        *ret = t->wide[slot];
        rc = zc_zero_release(t->zero, unit);
    }
    return gpt_engine_fail(t, rc);
}

static int unit_put(struct train *t, uint32_t unit)
{
    return widens(t) ? 0 : gpt_engine_fail(t, zc_zero_release(t->zero, unit));
}

/* Borrows the units of a block, in the order in which this pass goes through units. */
static int block_get(struct train *t, uint32_t layer, bool backward, struct gpt_block_weights *ret)
{
    uint32_t first = gpt_unit_block(&t->model, layer), parts = t->model.parts;
    int rc = 0;

    for (uint32_t i = 0; i < parts && rc == 0; i++) {
        uint32_t part = backward ? parts - 1 - i : i;

        rc = unit_get(t, first + part, part == 0 ? SLOT_MAIN : SLOT_SMALL, &ret->at[part]);
    }
    return rc;
}

static int block_put(struct train *t, uint32_t layer)
{
    int rc = 0;

    for (uint32_t part = 0; part < t->model.parts && rc == 0; part++)
        rc = unit_put(t, gpt_unit_block(&t->model, layer) + part);
    return rc;
}

void gpt_memory_see(struct train *t, struct memory *m, enum phase phase)
{
    uint64_t engine = t->args->device ? zc_zero_device_bytes(t->zero) : 0;

    struct zc_zero_bytes now;

    zc_zero_bytes(t->zero, &now);
    m->engine[phase] = max_of(m->engine[phase], engine);
    m->gathered[phase] = max_of(m->gathered[phase], now.gathered);
    m->reducing[phase] = max_of(m->reducing[phase], now.reducing);
    m->passes = gpt_passes_device_bytes(t->passes);
}

/* Micro-batch `micro` of the step. */
static int batch_load(struct train *t, uint64_t step, uint32_t micro)
{
    const struct gpt_args *a = t->args;
    uint64_t first = ((uint64_t)micro * t->comm->world + t->comm->rank) * a->micro_batch;

    for (uint32_t j = 0; j < a->micro_batch; j++) {
        int rc = gpt_data_sequence(t->data, a->seed, step, first + j,
                                   t->tokens + (size_t)j * (a->seq + 1), t->err);

        if (rc != 0)
            return rc;
    }
    gpt_passes_tokens(t->passes, t->tokens);
    return 0;
}

/* The passes that follow are of the next micro-batch of the walk: for (m = 0; walk(t, m); m++). */
static bool walk(struct train *t, uint32_t m)
{
    if (m == t->at_once)
        return false;
    gpt_passes_micro(t->passes, m);
    return true;
}

static int forward(struct train *t)
{
    struct gpt_block_weights block = { { NULL } };
    const void *w = NULL;
    int rc = unit_get(t, gpt_unit_embed(), SLOT_MAIN, &w);

    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_embed_forward(t->passes, w);
    rc = unit_put(t, gpt_unit_embed());
    for (uint32_t l = 0; l < t->args->layers && rc == 0; l++) {
        rc = block_get(t, l, false, &block);
        if (rc != 0)
            return rc;
        for (uint32_t m = 0; walk(t, m); m++)
            gpt_passes_block_forward(t->passes, l, &block);
        rc = block_put(t, l);
    }
    return rc;
}

/* *ret_embed_grads stays ours until the embedding is reduced, at the end of the backward pass. */
static int head(struct train *t, float **ret_embed_grads)
{
    uint32_t ln_f = gpt_unit_ln_f(&t->model);
    const void *w_ln_f = NULL, *w_embed = NULL;
    float *g_ln_f = NULL;
    int rc = unit_get(t, ln_f, SLOT_SMALL, &w_ln_f);

    if (rc == 0)
        rc = unit_get(t, gpt_unit_embed(), SLOT_MAIN, &w_embed);
    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_grad(t->zero, ln_f, &g_ln_f));
    if (rc == 0)
        rc = gpt_engine_fail(t, zc_zero_grad(t->zero, gpt_unit_embed(), ret_embed_grads));
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_head(t->passes, w_ln_f, w_embed, g_ln_f, *ret_embed_grads);
    rc = unit_put(t, ln_f);
    if (rc == 0)
        rc = unit_put(t, gpt_unit_embed());
    return rc == 0 ? gpt_engine_fail(t, zc_zero_reduce(t->zero, ln_f)) : rc;
}

static int block_backward(struct train *t, uint32_t layer)
{
    uint32_t first = gpt_unit_block(&t->model, layer);
    struct gpt_block_weights w = { { NULL } };
    struct gpt_block_grads g = { { NULL } };
    bool frozen = gpt_unit_frozen(t, first);
    int rc = block_get(t, layer, true, &w);

    for (uint32_t part = 0; part < t->model.parts && !frozen && rc == 0; part++)
        rc = gpt_engine_fail(t, zc_zero_grad(t->zero, first + part, &g.at[part]));
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_block_backward(t->passes, layer, &w, &g);
    rc = block_put(t, layer);
    for (uint32_t part = t->model.parts; part-- > 0 && !frozen && rc == 0;)
        rc = gpt_engine_fail(t, zc_zero_reduce(t->zero, first + part));
    return rc;
}

int gpt_walk(struct train *t, struct report *r, uint32_t first)
{
    float *embed_grads = NULL;
    int rc = 0;

    for (uint32_t m = 0; rc == 0 && walk(t, m); m++)
        rc = batch_load(t, r->step, first + m);
    if (rc == 0)
        rc = forward(t);
    gpt_memory_see(t, &r->memory, PHASE_FORWARD);
    if (rc == 0)
        rc = head(t, &embed_grads);
    for (uint32_t l = t->args->layers; l-- > 0 && rc == 0;)
        rc = block_backward(t, l);
    if (rc != 0)
        return rc;
    for (uint32_t m = 0; walk(t, m); m++)
        gpt_passes_embed_backward(t->passes, embed_grads);
    rc = gpt_engine_fail(t, zc_zero_reduce(t->zero, gpt_unit_embed()));
    gpt_memory_see(t, &r->memory, PHASE_BACKWARD);
    if (rc == 0 && t->stash)
        rc = gpt_stash_error(t->stash, t->err);
    return rc == 0 ? gpt_passes_error(t->passes, t->err) : rc;
}
