/*
 * run_priv.h - a run on the processor, for its files: run.c (its memory), stream.c (the residual
 * stream), attention.c and pass.c. pass.c has the shapes, and what is kept.
 */
#ifndef GPT_RUN_PRIV_H
#define GPT_RUN_PRIV_H

#include "examples/gpt/model/gpt.h"

#define ATT_ROWS 64u

struct acts {
    float *ln1_mean, *ln1_rstd; /* [N] */
    float *ln1;                 /* [N, C] */
    float *qkv;                 /* [N, 3C] */
    float *att;                 /* [M, H, T, T] probabilities; behind the diagonal: see above */
    float *mix;                 /* [N, C] the heads' results */
    float *x2;                  /* [N, C] after attention */
    float *ln2_mean, *ln2_rstd;
    float *ln2;  /* [N, C] */
    float *fc;   /* [N, 4C] before GELU */
    float *gelu; /* [N, 4C] */
};

/* Of one micro-batch. */
struct micro {
    uint32_t *tokens;  /* [M, T + 1] */
    float **x;         /* [L + 1] of [N, C]: before each block, and behind the last */
    struct acts *acts; /* [L], or [1] where they are computed anew */
    float *dx;         /* [N, C] gradient of the residual stream */
};

struct gpt_run {
    const struct gpt *model;
    uint32_t sequences, micros;
    bool recompute;
    struct gpt_stash *stash; /* of x; NULL: it is in memory */
    float *last;             /* with a stash: of a micro-batch that is alone, x behind the last */
    uint64_t rows;           /* N */
    uint64_t head_rows;      /* of logits at a time */
    struct micro *micro;     /* [micros] */
    struct micro *now;       /* of these */
    float **streams;         /* all of x */
    struct acts *acts;       /* all of them */
    float *lnf_mean, *lnf_rstd, *lnf;
    float *logits; /* [head_rows, V] */
    float *d1;     /* [N, C] scratch */
    float *d4;     /* [N, 4C] scratch */
    float *ds;     /* [ATT_ROWS, T] scratch */
    void *memory;
    float scale; /* of the loss, where gradients begin */
    gpt_tick_fn *tick;
    void *tick_arg;
    bool stopped; /* by tick */
};

/** False: the pass must return early. */
static inline bool gpt_run_go_on(struct gpt_run *run)
{
    if (run->tick && !run->stopped && !run->tick(run->tick_arg))
        run->stopped = true;
    return !run->stopped;
}

/* ---- stream.c */

/** Memory for the residual stream before block `layer`. NULL: as gpt_stream_take(). */
float *gpt_stream_make(struct gpt_run *run, uint32_t layer);
/** It is complete. */
void gpt_stream_keep(struct gpt_run *run, uint32_t layer);
/** The residual stream before block `layer`, to be read until gpt_stream_drop(). NULL: the stash
 *  failed, and so does the pass. */
const float *gpt_stream_take(struct gpt_run *run, uint32_t layer);
/** Ends reading it; again: another pass will read it. */
void gpt_stream_drop(struct gpt_run *run, uint32_t layer, bool again);
/** Tells the stash which one is read next: that of block `now` in the next micro-batch, or of
 *  `layer` (below 0: none) after the last one. */
void gpt_stream_ahead(struct gpt_run *run, uint32_t now, int64_t layer);

/* ---- attention.c: one head. q, k, v are columns of rows 3C long; y of rows C long */

struct head {
    const float *q, *k, *v;
    float *att; /* [T, T] */
    int t, hs, ld_qkv, ld_y;
    float scale;
};

/** Head h of sequence `seq`. */
struct head gpt_head_at(const struct gpt_run *run, const struct acts *a, uint64_t seq, uint64_t h);
void gpt_head_forward(const struct head *h, float *y);
/** Adds to dq, dk, dv, which lie as q, k, v do. ds is scratch [ATT_ROWS, T]. */
void gpt_head_backward(const struct head *h, const float *dy, float *dq, float *dk, float *dv,
                       float *ds);

#endif
