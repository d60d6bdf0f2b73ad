/*
 * passes.h - the passes of gpt.h, wherever they run: on the processor, or on a device.
 *
 * A call that only enqueues fails later: what ends a micro-batch or a step asks
 * (gpt_passes_error(), gpt_passes_loss()).
 */
#ifndef GPT_PASSES_H
#define GPT_PASSES_H

#include "examples/gpt/model/gpt.h"

struct gpt_passes;

struct gpt_passes_options {
    const struct gpt *model;
    struct gpt_hold hold; /* what is kept between passes */
    uint32_t dtype;       /* of weights: enum gpt_dtype */
    const char *device;   /* NULL: the processor */
    void *stream;         /* of the device: zc_zero_stream() */
    gpt_tick_fn *tick;    /* called during what takes long; false: give up */
    void *tick_arg;
};

/** 0; as gpt_run_new(), gpt_dev_open() and gpt_dev_run_new(). */
int gpt_passes_new(struct gpt_passes **ret, const struct gpt_passes_options *options,
                   struct zb_err *err);
/** Before the engine that owns the stream is closed. NULL is allowed. */
void gpt_passes_free(struct gpt_passes *p);

/** Whether weights are given in fp32, whatever the dtype of their unit is. */
bool gpt_passes_wide(const struct gpt_passes *p);
/** Bytes that they have allocated on the device; 0 on the processor. */
uint64_t gpt_passes_device_bytes(const struct gpt_passes *p);
/** Bytes that they have allocated for activations, wherever: as gpt_run_bytes() and
 * gpt_dev_run_bytes() say, and the slots of a stash. */
uint64_t gpt_passes_activation_bytes(const struct gpt_passes *p);
/** 0, or the first failure of the device. */
int gpt_passes_error(const struct gpt_passes *p, struct zb_err *err);

/** As gpt_run_scale(). */
void gpt_passes_scale(struct gpt_passes *p, double scale);

/* As in gpt.h. The head's loss is kept, see below. */
void gpt_passes_micro(struct gpt_passes *p, uint32_t micro);
void gpt_passes_tokens(struct gpt_passes *p, const uint32_t *tokens);
void gpt_passes_embed_forward(struct gpt_passes *p, const void *embed);
void gpt_passes_block_forward(struct gpt_passes *p, uint32_t layer, const void *weights);
void gpt_passes_head(struct gpt_passes *p, const void *ln_f, const void *embed, float *ln_f_grads,
                     float *embed_grads);
void gpt_passes_block_backward(struct gpt_passes *p, uint32_t layer, const void *weights,
                               float *grads);
void gpt_passes_embed_backward(struct gpt_passes *p, float *embed_grads);

/** The losses of the micro-batches since the last call, added up; waits for them. 0, or what
 * failed; -ECANCELED: the tick gave up, and no sentence is written. */
int gpt_passes_loss(struct gpt_passes *p, double *ret, struct zb_err *err);

#endif
