/*
 * data.h - the tokens that a run trains on.
 *
 * MODEL. One long row of tokens, from a list of files of one kind:
 *
 *     text          any bytes; a token is a byte, the vocabulary is 256; read into memory, so an
 *                   edit during the run changes nothing
 *     NAME.bin      llm.c's token files: a header of 256 int32 (magic 20240520, version 1, number
 *                   of tokens), then uint16 tokens; GPT-2's vocabulary of 50257; read when needed
 *
 * in the order given. A sequence is a window of it. The offset of sequence i of step s is a pure
 * function of the seed, s and i, and does not depend on the number of ranks or on the rank that
 * asks: with a row of n tokens and windows of w, Philox4x32-10 (rng.h) keyed by the seed, in the
 * stream "batches", at position s * 2^32 + i gives r, and the offset is
 * floor(r * (n - w + 1) / 2^64).
 *
 * THREADS. Read-only after it is open.
 */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define GPT_TEXT_VOCAB     256u
#define GPT_BIN_VOCAB      50257u
#define GPT_TEXT_BYTES_MAX (UINT64_C(1) << 30)

struct gpt_data;

struct gpt_data_info {
    size_t files;
    uint32_t vocab;
    uint64_t tokens;
    uint64_t hash;       /* of the tokens in their order: FNV-1a, one token a step */
    double unigram_nats; /* entropy of the tokens' frequencies: what a model without context gets */
};

/**
 * Opens the files, checks them and counts their tokens.
 *
 * @param paths   n of them; 0: the installed text (../share/zshard/data), in a build its own
 *                sources: see gpt_data_sources()
 * @param window  tokens of a sequence with its last target, >= 2
 * @return 0; -ENOENT and other errors of open(); -EINVAL both kinds, not a regular file, more text
 *         than GPT_TEXT_BYTES_MAX, or fewer tokens than one window; -EBADMSG a token file that is
 *         cut, too long, of another magic or version, or has a token above the vocabulary; -ENOMEM
 */
int gpt_data_open(struct gpt_data **ret, const char *const *paths, size_t n, uint32_t window,
                  struct zb_err *err);
/** NULL is allowed. */
void gpt_data_close(struct gpt_data *d);

const struct gpt_data_info *gpt_data_info(const struct gpt_data *d);

/** Where sequence `index` (below 2^32) of step `step` (below 2^32) begins. */
uint64_t gpt_data_offset(const struct gpt_data *d, uint64_t seed, uint64_t step, uint64_t index);

/** Writes that sequence, one window of tokens. 0, or -EIO or -EBADMSG: a token file has changed. */
int gpt_data_sequence(const struct gpt_data *d, uint64_t seed, uint64_t step, uint64_t index,
                      uint32_t *tokens, struct zb_err *err);

struct gpt_paths {
    char **path;
    size_t n;
};

/**
 * The text files of a source tree (*.c *.h *.md *.py *.sh *.txt *.proto), in the order of their
 * paths' bytes, without hidden folders, build* and out.
 *
 * @return 0: free it with gpt_paths_done(); -ENOENT there are none; what else reading folders says
 */
int gpt_data_sources(const char *root, struct gpt_paths *ret, struct zb_err *err);
void gpt_paths_done(struct gpt_paths *paths);

#endif
