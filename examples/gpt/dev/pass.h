/*
 * pass.h - the forward and backward pass of gpt.h on a device.
 *
 * MODEL. The same passes in the same order as gpt.h has them, over weights in the unit's own dtype.
 * They only enqueue (dev.h). What a 16-bit model multiplies has 16 bits, what it sums is fp32:
 * products accumulate in fp32, and the residual stream, its gradient, layer norms, softmax, the
 * loss and all gradients of weights are fp32.
 *
 * MEMORY is one allocation, made once. Where blocks are computed anew, what is kept from the
 * forward pass to the backward pass is the residual stream before each block, and nothing else. The
 * rest is scratch of one block, and logits some rows at a time. So each layer adds [rows, width] of
 * fp32. Else the insides of each block are kept, too, but for the squares of attention, which are
 * always computed anew, a sequence at a time.
 */
#ifndef GPT_PASS_H
#define GPT_PASS_H

#include "examples/gpt/dev/dev.h"
#include "examples/gpt/model/gpt.h"

struct gpt_dev_run;

/** Bytes of device memory that a run takes, or UINT64_MAX. */
uint64_t gpt_dev_run_bytes(const struct gpt *model, const struct gpt_hold *hold,
                           enum gpt_dtype_dev dtype);

/** 0; -EINVAL no sequence, or too many tokens; -ENOMEM, -EIO. The device outlives the run. */
int gpt_dev_run_new(struct gpt_dev_run **ret, struct gpt_dev *dev, const struct gpt *model,
                    const struct gpt_hold *hold, enum gpt_dtype_dev dtype, struct zb_err *err);
/** Waits for nothing: before the device is closed. NULL is allowed. */
void gpt_dev_run_free(struct gpt_dev_run *run);

/** Called now and then where a call waits for the device; false: give up. */
void gpt_dev_run_on_tick(struct gpt_dev_run *run, gpt_tick_fn *tick, void *arg);

/** As gpt_run_scale(). */
void gpt_dev_run_scale(struct gpt_dev_run *run, float scale);

/** As gpt_run_micro(). */
void gpt_dev_micro(struct gpt_dev_run *run, uint32_t micro);

/** As gpt_run_tokens(). Of micro-batch 0, may wait for the copies of two times before. */
void gpt_dev_tokens(struct gpt_dev_run *run, const uint32_t *tokens);

void gpt_dev_embed_forward(struct gpt_dev_run *run, const void *embed);
void gpt_dev_block_forward(struct gpt_dev_run *run, uint32_t layer, const void *weights);
/** As gpt_head(), but that the loss stays on the device. */
void gpt_dev_head(struct gpt_dev_run *run, const void *ln_f, const void *embed, float *ln_f_grads,
                  float *embed_grads);
/** As gpt_block_backward(): grads may be NULL. */
void gpt_dev_block_backward(struct gpt_dev_run *run, uint32_t layer, const void *weights,
                            float *grads);
void gpt_dev_embed_backward(struct gpt_dev_run *run, float *embed_grads);

/** The losses of the micro-batches since the last call, added up. Waits for them. 0, or what
 * failed; -ECANCELED: the tick gave up, and no sentence is written. */
int gpt_dev_loss(struct gpt_dev_run *run, double *ret, struct zb_err *err);

#endif
