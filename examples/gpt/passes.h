/*
 * passes.h - the passes of gpt.h, on the processor or on a device.
 *
 * Calls that only enqueue work report failures later: at the end of a micro-batch or step, call
 * gpt_passes_error() or gpt_passes_loss().
 */
#ifndef GPT_PASSES_H
#define GPT_PASSES_H

#include "examples/gpt/model/gpt.h"

struct gpt_passes;

struct gpt_passes_options {
    const struct gpt *model;
    struct gpt_hold hold; /* what to keep between passes */
    uint32_t dtype;       /* of weights: enum gpt_dtype */
    const char *device;   /* NULL: the processor */
    void *stream;         /* of the device: zc_zero_stream() */
    gpt_tick_fn *tick;    /* called during long computations; false: give up */
    void *tick_arg;
};

/** 0; errors of gpt_run_new(), gpt_dev_open() and gpt_dev_run_new(). */
int gpt_passes_new(struct gpt_passes **ret, const struct gpt_passes_options *options,
                   struct zb_err *err);
/** Call it before the engine that owns the stream is closed. NULL is allowed. */
void gpt_passes_free(struct gpt_passes *p);

/** Whether the passes take weights in fp32, whatever the dtype of the unit. */
bool gpt_passes_wide(const struct gpt_passes *p);
/** Bytes allocated on the device; 0 on the processor. */
uint64_t gpt_passes_device_bytes(const struct gpt_passes *p);
/** Bytes allocated for activations, on any device: gpt_run_bytes() or gpt_dev_run_bytes(), and the
 * slots of a stash. */
uint64_t gpt_passes_activation_bytes(const struct gpt_passes *p);
/** 0, or the first failure of the device. */
int gpt_passes_error(const struct gpt_passes *p, struct zb_err *err);

/** As gpt_run_scale(). */
void gpt_passes_scale(struct gpt_passes *p, double scale);

/* As in gpt.h. The head's loss is kept, see below. */
void gpt_passes_micro(struct gpt_passes *p, uint32_t micro);
void gpt_passes_tokens(struct gpt_passes *p, const uint32_t *tokens);
void gpt_passes_embed_forward(struct gpt_passes *p, const void *embed);
void gpt_passes_block_forward(struct gpt_passes *p, uint32_t layer,
                              const struct gpt_block_weights *weights);
void gpt_passes_head(struct gpt_passes *p, const void *ln_f, const void *embed, float *ln_f_grads,
                     float *embed_grads);
void gpt_passes_block_backward(struct gpt_passes *p, uint32_t layer,
                               const struct gpt_block_weights *weights,
                               const struct gpt_block_grads *grads);
void gpt_passes_embed_backward(struct gpt_passes *p, float *embed_grads);

/** Waits for the losses of the micro-batches since the last call, and adds them up. 0, or a
 * failure; -ECANCELED: the tick gave up, and there is no error message. */
int gpt_passes_loss(struct gpt_passes *p, double *ret, struct zb_err *err);

#endif
