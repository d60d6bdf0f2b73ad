#include "examples/gpt/passes.h"

#include <errno.h>
#include <stdlib.h>

#include "examples/gpt/args.h"
#include "examples/gpt/dev/dev.h"
#include "examples/gpt/dev/pass.h"

_Static_assert(GPT_FP32 == (int)GPT_DEV_F32 && GPT_BF16 == (int)GPT_DEV_BF16 &&
                   GPT_FP16 == (int)GPT_DEV_FP16,
               "");

struct gpt_passes {
    struct gpt_run *run; /* on the processor, */
    double loss;
    uint64_t activation_bytes;
    struct gpt_dev *dev; /* or these on a device */
    struct gpt_dev_run *dev_run;
};

static int device_new(struct gpt_passes *p, const struct gpt_passes_options *o, struct zb_err *err)
{
    int rc = gpt_dev_open(&p->dev, o->device, o->stream, err);

    if (rc == 0)
        rc = gpt_dev_run_new(&p->dev_run, p->dev, o->model, &o->hold, (enum gpt_dtype_dev)o->dtype,
                             err);
    if (rc == 0)
        gpt_dev_run_on_tick(p->dev_run, o->tick, o->tick_arg);
    return rc;
}

int gpt_passes_new(struct gpt_passes **ret, const struct gpt_passes_options *o, struct zb_err *err)
{
    struct gpt_passes *p = calloc(1, sizeof(*p));
    int rc;

    if (!p)
        return zb_fail(err, -ENOMEM, "activations: %m");
    if (o->device) {
        p->activation_bytes = gpt_dev_run_bytes(o->model, &o->hold, (enum gpt_dtype_dev)o->dtype);
        rc = device_new(p, o, err);
    } else {
        p->activation_bytes = gpt_run_bytes(o->model, &o->hold);
        rc = gpt_run_new(&p->run, o->model, &o->hold, err);
        if (rc == 0)
            gpt_run_on_tick(p->run, o->tick, o->tick_arg);
    }
    if (o->hold.stash)
        p->activation_bytes += o->hold.stash->memory_bytes;
    if (rc == 0)
        *ret = p;
    else
        gpt_passes_free(p);
    return rc;
}

void gpt_passes_free(struct gpt_passes *p)
{
    if (!p)
        return;
    gpt_run_free(p->run);
    gpt_dev_run_free(p->dev_run);
    gpt_dev_close(p->dev);
    free(p);
}

bool gpt_passes_wide(const struct gpt_passes *p)
{
    return !p->dev;
}

uint64_t gpt_passes_device_bytes(const struct gpt_passes *p)
{
    return p->dev ? gpt_dev_allocated(p->dev) : 0;
}

uint64_t gpt_passes_activation_bytes(const struct gpt_passes *p)
{
    return p->activation_bytes;
}

int gpt_passes_error(const struct gpt_passes *p, struct zb_err *err)
{
    return p->dev ? gpt_dev_error(p->dev, err) : 0;
}

void gpt_passes_scale(struct gpt_passes *p, double scale)
{
    if (p->run)
        gpt_run_scale(p->run, (float)scale);
    else
        gpt_dev_run_scale(p->dev_run, (float)scale);
}

void gpt_passes_micro(struct gpt_passes *p, uint32_t micro)
{
    if (p->run)
        gpt_run_micro(p->run, micro);
    else
        gpt_dev_micro(p->dev_run, micro);
}

void gpt_passes_tokens(struct gpt_passes *p, const uint32_t *tokens)
{
    if (p->run)
        gpt_run_tokens(p->run, tokens);
    else
        gpt_dev_tokens(p->dev_run, tokens);
}

void gpt_passes_embed_forward(struct gpt_passes *p, const void *embed)
{
    if (p->run)
        gpt_embed_forward(p->run, embed);
    else
        gpt_dev_embed_forward(p->dev_run, embed);
}

void gpt_passes_block_forward(struct gpt_passes *p, uint32_t layer,
                              const struct gpt_block_weights *weights)
{
    if (p->run)
        gpt_block_forward(p->run, layer, weights);
    else
        gpt_dev_block_forward(p->dev_run, layer, weights);
}

void gpt_passes_head(struct gpt_passes *p, const void *ln_f, const void *embed, float *ln_f_grads,
                     float *embed_grads)
{
    if (p->run)
        p->loss += gpt_head(p->run, ln_f, embed, ln_f_grads, embed_grads);
    else
        gpt_dev_head(p->dev_run, ln_f, embed, ln_f_grads, embed_grads);
}

void gpt_passes_block_backward(struct gpt_passes *p, uint32_t layer,
                               const struct gpt_block_weights *weights,
                               const struct gpt_block_grads *grads)
{
    if (p->run)
        gpt_block_backward(p->run, layer, weights, grads);
    else
        gpt_dev_block_backward(p->dev_run, layer, weights, grads);
}

void gpt_passes_embed_backward(struct gpt_passes *p, float *embed_grads)
{
    if (p->run)
        gpt_embed_backward(p->run, embed_grads);
    else
        gpt_dev_embed_backward(p->dev_run, embed_grads);
}

int gpt_passes_loss(struct gpt_passes *p, double *ret, struct zb_err *err)
{
    if (p->dev)
        return gpt_dev_loss(p->dev_run, ret, err);
    *ret = p->loss;
    p->loss = 0.0;
    return 0;
}
