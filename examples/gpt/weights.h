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
 * Finds every tensor of the model in a file, or in all *.safetensors of a folder, by its name or by
 * its name without "transformer." (as in GPT-2's own files). The files must have no other tensors,
 * except attention masks and a head (lm_head.weight) that equals the embedding.
 *
 * @return 0; -ENOENT a tensor or the file is missing; -EINVAL a tensor has another shape, or two
 *         files have it; -ENOTSUP its dtype is not F32, F16 or BF16, or the model does not use it;
 *         -EBADMSG and other errors of zc_st_open()
 */
int gpt_weights_open(struct gpt_weights **ret, const struct gpt *model, const char *path,
                     struct zb_err *err);
/** NULL is allowed. */
void gpt_weights_close(struct gpt_weights *w);

/** Reads elements [first, first + count) of a unit. 0 or -EIO. */
int gpt_weights_range(const struct gpt_weights *w, uint32_t unit, uint64_t first, uint64_t count,
                      float *out, struct zb_err *err);

/** Begins a file of all tensors in F32. Append the elements of unit 0, of unit 1, and so on.
 *  Results as zc_st_create(). */
int gpt_weights_create(struct zc_st_writer **ret, const struct gpt *model, const char *path,
                       struct zb_err *err);

#endif
