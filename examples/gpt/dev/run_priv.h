/*
 * run_priv.h - a run on a device, for its files: run.c (its memory and its tokens),
 * launch.c (one product or kernel at a time), attention.c, stream.c (the residual stream) and
 * pass.c. pass.c has the model.
 */
#ifndef GPT_DEV_RUN_PRIV_H
#define GPT_DEV_RUN_PRIV_H

#include "examples/gpt/dev/kern.h"
#include "examples/gpt/dev/matmul.h"
#include "examples/gpt/dev/pass.h"

#define HOST_BUFFERS 2u
#define MARK_LOSS    HOST_BUFFERS            /* behind those of the host buffers */
#define MARK_WINDOW  (MARK_LOSS + 1u)        /* behind the last pass that used each */
#define MARK_SLOT    (MARK_WINDOW + WINDOWS) /* behind the last copy from or to each */
#define WINDOWS      3u
#define NO_ENTRY     UINT32_MAX

_Static_assert(MARK_SLOT + GPT_STASH_SLOTS <= GPT_DEV_MARKS, "a mark for each slot");

/* The tokens of a micro-batch, on the device and on the host. */
struct batch {
    uint32_t *inputs, *targets;      /* [N] */
    uint32_t *which, *first, *order; /* struct gpt_kern_embed_back: [N], [N + 1], [N] */
};

/* The arrays of a block's forward pass that its backward pass needs, except its input. */
struct inside {
    float *mean1, *rstd1, *mean2, *rstd2;
    void *h1, *qkv, *mix, *h2, *fc, *gelu; /* of the dtype: [N, C], 3C, C, C, 4C, 4C */
    float *x2;                             /* [N, C] */
};

struct micro {
    struct batch batch; /* on the device */
    uint64_t distinct;
    float **x; /* [L + 1] of [N, C]: the residual stream before each block, and behind the last */
    struct inside *inside; /* [L], or [1] where it is computed anew */
    float *dx;             /* [N, C] */
};

struct window {
    float *at;
    uint32_t entry; /* of the stash, or NO_ENTRY */
    bool leaves;    /* a copy to this slot may be on its way */
    unsigned slot;
    uint64_t touched;
};

struct gpt_dev_run {
    struct gpt_dev *dev;
    const struct gpt *model;
    uint32_t sequences, micros;
    bool recompute;
    struct gpt_stash *stash; /* of x; NULL: it is on the device */
    struct window windows[WINDOWS];
    unsigned read; /* the window that is read */
    uint64_t clock;
    uint64_t rows, head_rows;
    enum gpt_dtype_dev dtype;
    float scale; /* of the loss, where gradients begin */
    uint64_t batch_elems;
    struct micro *micro, *now;    /* [micros], and of these */
    float **streams;              /* all of x */
    struct inside *inside;        /* all of them */
    struct inside *in;            /* of the block that is being computed */
    struct inside head;           /* mean1, rstd1 and h1 of the last layer norm */
    double *host_loss;            /* of the device's host memory, as these: */
    uint32_t *host[HOST_BUFFERS]; /* micro-batches */
    uint32_t *seen;               /* [vocab]: scratch of the host */
    unsigned turn;

    void *dy, *d1, *d4; /* of the dtype: C, C, 4C */
    float *scores;      /* [H, T, T] */
    void *p, *ds;       /* of the dtype */
    float *logits;      /* [head_rows, V] */
    void *dlogits;
    double *losses, *loss; /* [N], [1] */
    float *part, *part_x;  /* [GPT_KERN_SPLITS, 4C], C */
    gpt_tick_fn *tick;
    void *tick_arg;
};

/* ---- launch.c */

/** y = x w + b; y and b of the dtype. b may be NULL. */
void gpt_dev_linear(struct gpt_dev_run *run, const void *x, const void *w, const void *b, void *y,
                    uint64_t in, uint64_t out);
/** dw += x^T dy; NULL: nothing */
void gpt_dev_weights_back(struct gpt_dev_run *run, const void *x, const void *dy, float *dw,
                          uint64_t in, uint64_t out);
/** dx = dy w^T */
void gpt_dev_inputs_back(struct gpt_dev_run *run, const void *dy, const void *w, void *dx,
                         uint64_t in, uint64_t out);
void gpt_dev_norm(struct gpt_dev_run *run, const float *x, const void *w, const void *b, void *y,
                  float *mean, float *rstd);
/** db += the sums of dy's columns, which is of `dtype`; NULL: nothing */
void gpt_dev_bias_back(struct gpt_dev_run *run, enum gpt_dtype_dev dtype, const void *dy, float *db,
                       uint64_t cols);
/** Layer norm, backward: adds to dx, and, unless they are NULL, to dw and db. */
void gpt_dev_norm_back(struct gpt_dev_run *run, const float *x, const void *w, const float *mean,
                       const float *rstd, const void *dy, float *dw, float *db);
void gpt_dev_residual(struct gpt_dev_run *run, const float *x, const void *y, const void *b,
                      float *to);
/** dx of the dtype. */
const void *gpt_dev_dx_round(struct gpt_dev_run *run);

/* ---- attention.c, into or from run->in */

void gpt_dev_attention_forward(struct gpt_dev_run *run);
/** dqkv from dmix; both as qkv and mix lie. */
void gpt_dev_attention_backward(struct gpt_dev_run *run, const void *dmix, void *dqkv);

/* ---- stream.c */

/** The residual stream before block `layer`, to be read until gpt_dev_stream_done(). */
const float *gpt_dev_stream_in(struct gpt_dev_run *run, uint32_t layer);
void gpt_dev_stream_done(struct gpt_dev_run *run);
/** Memory for the residual stream before block `layer`, which does not overlap the one being read.
 *  Call gpt_dev_stream_made() next. */
float *gpt_dev_stream_out(struct gpt_dev_run *run, uint32_t layer);
/** Sends it to the stash, unless it is needed at once: after the last block of a single
 *  micro-batch. */
void gpt_dev_stream_made(struct gpt_dev_run *run, uint32_t layer);
/** It will not be read again. */
void gpt_dev_stream_forget(struct gpt_dev_run *run, uint32_t layer);
/** Tells the stash which one is read next: that of block `now` in the next micro-batch, or of
 *  `layer` (below 0: none) after the last one. */
void gpt_dev_stream_ahead(struct gpt_dev_run *run, uint32_t now, int64_t layer);

#endif
