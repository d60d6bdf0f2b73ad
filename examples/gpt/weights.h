/*
 * weights.h - a model's weights in safetensors files, under Hugging Face's GPT-2 names.
 */
#ifndef GPT_WEIGHTS_H
#define GPT_WEIGHTS_H

#include <stdint.h>

#include "client/zc_safetensors.h"
#include "examples/gpt/model/gpt.h"

struct gpt_weights;

/**
 * Finds every tensor of the model in a file, or in all *.safetensors of a folder: by its name, or by its name without "transformer.", as
 * GPT-2's own files have it. Every tensor of the files is one of the model's, but for attention masks
 * and a head (lm_head.weight) that is the embedding once more.
 *
 * @return 0; -ENOENT a tensor, or the file, is not there; -EINVAL another shape, or two files have it; -ENOTSUP not F32,
 *         F16 or BF16, or a tensor that the model does not use; -EBADMSG and what else zc_st_open() says
 */
int gpt_weights_open(struct gpt_weights **ret, const struct gpt *model, const char *path,
                     struct zb_err *err);
/** NULL is fine. */
void gpt_weights_close(struct gpt_weights *w);

/** Elements [first, first + count) of a unit, inside it. 0 or -EIO. */
int gpt_weights_range(const struct gpt_weights *w, uint32_t unit, uint64_t first, uint64_t count,
                      float *out, struct zb_err *err);

/** Begins a file of all tensors in F32, in the order of the units: what follows are the elements of
 *  unit 0, of unit 1, and so on. As zc_st_create(). */
int gpt_weights_create(struct zc_st_writer **ret, const struct gpt *model, const char *path,
                       struct zb_err *err);

#endif
