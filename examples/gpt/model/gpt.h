/*
 * gpt.h - a decoder of GPT-2's architecture as a list of units, with its forward and backward pass.
 *
 * MODEL. Pre-LN blocks, learned positions, GELU in its tanh form, causal multi-head attention, and
 * a head that shares the token embedding (logits = ln_f(x) wte^T). The parameters are divided into
 * units, which the ZeRO engine gathers as a whole. A unit is the concatenation of its tensors:
 *
 *     0          "embed"   transformer.wte.weight [V, C], transformer.wpe.weight [T, C]
 *     1 + i      "h.<i>"   ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj of block i
 *     1 + L      "ln_f"    transformer.ln_f.weight, .bias
 *
 * With `split` each block has two units: "h.<i>" with its matrices, and "h.<i>.vectors" after it.
 *
 * Names and layouts are Hugging Face's: the matrices of a block are [in, out]. struct gpt is a
 * description without weights. struct gpt_run has the activations of one or several micro-batches,
 * and no weights either: the caller passes a unit's fp32 weights and gradient buffers to every
 * pass, so a unit can be released as soon as the call returns. A pass applies to the micro-batch
 * that gpt_run_micro() selected. Each micro-batch makes its passes in this order:
 *
 *     gpt_run_tokens()
 *     gpt_embed_forward(embed)
 *     gpt_block_forward(i, h.i)                for i = 0 .. L-1
 *     gpt_head(ln_f, embed)                    loss; and, with places for gradients, backward
 *     gpt_block_backward(i, h.i)               for i = L-1 .. 0
 *     gpt_embed_backward()
 *
 * NUMBERS. fp32 with one BLAS thread; our own sums have a fixed order. The same weights, tokens and
 * shape give the same bits on one kind of processor. Gradients are added to the buffers, so
 * micro-batches accumulate.
 *
 * THREADS. A gpt is read-only after gpt_init(). A run belongs to one thread.
 */
#ifndef GPT_H
#define GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "examples/gpt/model/stash.h"

/* No product of sizes below overflows 64 bits, and BLAS's int holds every dimension. */
#define GPT_LAYERS_MAX 4096u
#define GPT_WIDTH_MAX  65536u
#define GPT_SEQ_MAX    1048576u
#define GPT_VOCAB_MAX  1048576u
#define GPT_ROWS_MAX   16777216u /* tokens of one micro-batch */

struct gpt_shape {
    uint32_t layers, heads, width, seq, vocab;
    bool split; /* the matrices of a block are a unit of their own */
};

enum gpt_fill { GPT_FILL_ZERO, GPT_FILL_ONE, GPT_FILL_NORMAL };

struct gpt_tensor {
    char name[48];
    uint32_t ndims;
    uint64_t dims[2];
    uint64_t first, elems; /* of the unit's elements */
    uint32_t group;        /* 0: with weight decay (matrices), 1: without */
    enum gpt_fill fill;    /* initial values */
    double sigma;          /* of GPT_FILL_NORMAL */
};

#define GPT_GROUPS           2u
#define GPT_UNIT_TENSORS_MAX 12u
#define GPT_PARTS            2u /* units of a block, at most */

struct gpt_unit {
    char name[24];
    uint64_t elems;
    uint32_t ntensors;
    struct gpt_tensor tensors[GPT_UNIT_TENSORS_MAX];
};

/* Where a tensor of a block is: in which of the block's units, and where in it. */
struct gpt_place {
    uint32_t part;
    uint64_t first;
};

struct gpt {
    struct gpt_shape shape;
    uint32_t parts;  /* units of each block: 1, or 2 if they are split */
    uint32_t nunits; /* layers * parts + 2 */
    struct gpt_unit *units;
    uint64_t params;                              /* elements of all units */
    struct gpt_place block[GPT_UNIT_TENSORS_MAX]; /* by block.h; the same in all blocks */
};

/* A block's weights: those of each of its units. */
struct gpt_block_weights {
    const void *at[GPT_PARTS];
};

/* Where a block's gradients go. NULL: the block is not trained. */
struct gpt_block_grads {
    float *at[GPT_PARTS];
};

/**
 * Lays out a model of that shape.
 *
 * @return 0; -EINVAL a size is 0 or above its limit, or width is not a multiple of heads; -ENOMEM
 */
int gpt_init(struct gpt *model, const struct gpt_shape *shape, struct zb_err *err);
/** Frees a zeroed or initialised model. */
void gpt_done(struct gpt *model);

static inline uint32_t gpt_unit_embed(void)
{
    return 0;
}

/* The first unit of a block. */
static inline uint32_t gpt_unit_block(const struct gpt *model, uint32_t layer)
{
    return 1 + layer * model->parts;
}

static inline uint32_t gpt_unit_ln_f(const struct gpt *model)
{
    return gpt_unit_block(model, model->shape.layers);
}

/**
 * Initial values of elements [first, first + count) of a unit: a pure function of the seed, the
 * tensor's name and the element's number in it, however the range is cut. Normal(0, 0.02), smaller
 * by sqrt(2 * layers) for the matrices that end on the residual stream; biases 0; LN weights 1.
 * Elements past the unit's end (padding) are 0.
 */
void gpt_init_range(const struct gpt *model, uint64_t seed, uint32_t unit, uint64_t first,
                    uint64_t count, float *out);

/* ---- micro-batches */

/* What to keep between the passes. */
struct gpt_hold {
    uint32_t sequences; /* of a micro-batch */
    uint32_t micros;    /* that are between their passes at one time; 0: 1 */
    bool recompute;     /* of each block its input alone: its backward pass computes the rest anew,
                           the same bits. Else all that the backward pass needs */
    struct gpt_stash *stash; /* with recompute: where these inputs are, entries of [rows, width]:
                                (layers + 1) of each micro-batch. NULL: in the run's memory. It
                                outlives the run */
};

struct gpt_run;

/** Entries of a stash, and the bytes of one. */
uint32_t gpt_hold_entries(const struct gpt *model, const struct gpt_hold *hold);
uint64_t gpt_hold_entry_bytes(const struct gpt *model, const struct gpt_hold *hold);

/** Bytes that a run takes in addition to its stash, or UINT64_MAX if a micro-batch is beyond
 * GPT_ROWS_MAX. docs/ACTIVATIONS.md has the formula. */
uint64_t gpt_run_bytes(const struct gpt *model, const struct gpt_hold *hold);

/**
 * Also tells BLAS to use one thread, in the whole process.
 *
 * @return 0; -EINVAL no sequence, or too many tokens; -ENOMEM: err has the bytes
 */
int gpt_run_new(struct gpt_run **ret, const struct gpt *model, const struct gpt_hold *hold,
                struct zb_err *err);
void gpt_run_free(struct gpt_run *run);

/** Selects the micro-batch of the following passes, below `micros`; initially 0. */
void gpt_run_micro(struct gpt_run *run, uint32_t micro);

/**
 * Lets the caller run code during long computations: `tick` is called between the matrix products
 * of every pass. If it returns false, the pass returns early. Its results are meaningless, and so
 * are those of later passes until gpt_run_tokens().
 */
typedef bool gpt_tick_fn(void *arg);
void gpt_run_on_tick(struct gpt_run *run, gpt_tick_fn *tick, void *arg);

/** Makes later gradients those of `scale` (initially 1) times the loss. The reported loss is not
 * scaled. */
void gpt_run_scale(struct gpt_run *run, float scale);

/** Starts a micro-batch: `sequences` rows of seq + 1 tokens, each below vocab; token t + 1 is the
 *  target of token t. Copied. */
void gpt_run_tokens(struct gpt_run *run, const uint32_t *tokens);

void gpt_embed_forward(struct gpt_run *run, const float *embed);
void gpt_block_forward(struct gpt_run *run, uint32_t layer,
                       const struct gpt_block_weights *weights);

/**
 * The rest of the forward pass, and unless both places for gradients are NULL the start of the
 * backward pass. Needs two units at a time, and works through the logits some rows at a time.
 *
 * @param embed_grads  gets the gradient of wte as the head's matrix
 * @return the loss: cross-entropy in nats, the mean over the tokens of the micro-batch
 */
double gpt_head(struct gpt_run *run, const float *ln_f, const float *embed, float *ln_f_grads,
                float *embed_grads);

/** Without gradients the block is not trained, and gradients of its weights are not computed.
 * Gradients of the units below it are the same, bit for bit. */
void gpt_block_backward(struct gpt_run *run, uint32_t layer,
                        const struct gpt_block_weights *weights,
                        const struct gpt_block_grads *grads);
/** Adds the gradient of wte as the embedding, and that of wpe. */
void gpt_embed_backward(struct gpt_run *run, float *embed_grads);

#endif
