/*
 * pass.h - the forward and backward pass of gpt.h on a device.
 *
 * MODEL. The same passes in the same order as in gpt.h, with weights in the unit's own dtype. They
 * only enqueue work (dev.h). In a 16-bit model the operands of matrix products have 16 bits, and
 * sums are fp32: products accumulate in fp32, and the residual stream, its gradient, layer norms,
 * softmax, the loss and all gradients of weights are fp32.
 *
 * MEMORY is one allocation, made once. With recomputation, only the residual stream before each
 * block is kept from the forward pass to the backward pass: [rows, width] of fp32 for each layer.
 * The rest is scratch for one block, and logits for some rows at a time. Without recomputation, the
 * intermediate arrays of each block are kept as well, except the attention matrices, which are
 * always recomputed, one sequence at a time.
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
/** Call it before the device is closed. Does not wait. NULL is allowed. */
void gpt_dev_run_free(struct gpt_dev_run *run);

/** Sets a function that is called repeatedly while a call waits for the device; false: give up. */
void gpt_dev_run_on_tick(struct gpt_dev_run *run, gpt_tick_fn *tick, void *arg);

/** As gpt_run_scale(). */
void gpt_dev_run_scale(struct gpt_dev_run *run, float scale);

/** As gpt_run_micro(). */
void gpt_dev_micro(struct gpt_dev_run *run, uint32_t micro);

/** As gpt_run_tokens(). For micro-batch 0 it may wait for the copies of the call before last. */
void gpt_dev_tokens(struct gpt_dev_run *run, const uint32_t *tokens);

void gpt_dev_embed_forward(struct gpt_dev_run *run, const void *embed);
void gpt_dev_block_forward(struct gpt_dev_run *run, uint32_t layer,
                           const struct gpt_block_weights *weights);
/** As gpt_head(), but the loss stays on the device. */
void gpt_dev_head(struct gpt_dev_run *run, const void *ln_f, const void *embed, float *ln_f_grads,
                  float *embed_grads);
/** As gpt_block_backward(). */
void gpt_dev_block_backward(struct gpt_dev_run *run, uint32_t layer,
                            const struct gpt_block_weights *weights,
                            const struct gpt_block_grads *grads);
void gpt_dev_embed_backward(struct gpt_dev_run *run, float *embed_grads);

/** Waits for the losses of the micro-batches since the last call, and adds them up. 0, or a
 * failure; -ECANCELED: the tick gave up, and there is no error message. */
int gpt_dev_loss(struct gpt_dev_run *run, double *ret, struct zb_err *err);

#endif
