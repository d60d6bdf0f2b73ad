/*
 * train_priv.h - a run, for its files: train.c (steps, and the run), train_open.c, train_walk.c (a
 * walk through the units), train_tell.c (output) and train_export.c. train.c has the model.
 */
#ifndef GPT_TRAIN_PRIV_H
#define GPT_TRAIN_PRIV_H

#include <time.h>

#include "client/zero/zc_zero.h"
#include "examples/gpt/config.h"
#include "examples/gpt/data.h"
#include "examples/gpt/model/gpt.h"
#include "examples/gpt/passes.h"
#include "examples/gpt/stash_daemon.h"
#include "examples/gpt/train.h"
#include "examples/gpt/weights.h"

enum slot { SLOT_MAIN, SLOT_SMALL, SLOTS }; /* two units at once: the head's, or those of a block */

/* Maximum bytes after each phase: on the device, and in the engine's buffers. */
enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_STEP, PHASES };

struct memory {
    uint64_t passes, engine[PHASES];
    uint64_t gathered[PHASES], reducing[PHASES];
};

struct train {
    const struct gpt_args *args; /* these: */
    struct gpt_args own;
    struct zc_zero_config *config; /* or NULL */
    const volatile sig_atomic_t *stop;
    FILE *people; /* rank 0 */
    struct zb_err *err;

    struct zc_comm *comm;
    struct zc_zero *zero;
    struct gpt_data *data;
    struct gpt model;
    struct gpt_passes *passes;
    struct gpt_stash *stash;       /* of checkpoints, or NULL */
    struct gpt_weights *init;      /* or NULL: by the seed */
    FILE *jsonl;                   /* rank 0, or NULL */
    uint32_t *tokens;              /* of a micro-batch */
    float *wide[SLOTS];            /* 16 bits on the processor: fp32 weights */
    uint32_t micro_steps, at_once; /* in a step, and in a walk */

    struct zc_zero_stats stats; /* as of the last step */
    double first_loss, last_loss, said_at;
    uint64_t steps;   /* done, by all the runs of this job */
    uint64_t applied; /* of them, not skipped */
    uint64_t ran;     /* by this one */
    double seconds;   /* in them */
    struct memory memory;
    bool stopped;
};

/* What a step was, for people and programs. */
struct report {
    uint64_t step;
    double loss, lr, seconds, tokens_per_s, stall_s, fetched_bytes;
    struct zc_zero_stepped stepped;
    struct zc_zero_stats stats;
    struct memory memory; /* of this step */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t gather_bytes, reduce_bytes, across_bytes, other_bytes; /* sent by this rank */
    uint64_t gather_nodes_bytes; /* part of the first: to ranks with another daemon */
    uint64_t gather_up_bytes;    /* of parameters: from host memory to the device */
    uint64_t gather_down_bytes;  /* and back: those in GPU memory of the daemon */
};

/* ---- train_open.c */

/** Opens everything that a run needs, up to the engine. Call gpt_train_close() also after a
 *  failure. */
int gpt_train_open(struct train *t);
/** clean: every rank closes now. */
void gpt_train_close(struct train *t, bool clean);

/* ---- train_walk.c */

/** Loads micro-batches [first, first + at_once) of the step and walks through all units, forward
 *  and back. */
int gpt_walk(struct train *t, struct report *r, uint32_t first);
/** Updates the maximum of this phase in `m` with what is allocated now. */
void gpt_memory_see(struct train *t, struct memory *m, enum phase phase);

/* ---- train_tell.c: rank 0 only, so nothing here is collective */

void gpt_say_start(struct train *t);
void gpt_say_step(struct train *t, const struct report *r);
/** The daemon was lost after step `before`. */
void gpt_say_again(struct train *t, uint64_t before);
void gpt_say_end(struct train *t);
/** Writes the line of a step, if --jsonl was given. */
int gpt_jsonl_write(struct train *t, const struct report *r);

/* ---- train_export.c */

/** 0; a failure of the engine; or *told, when only this rank's file failed. */
int gpt_export(struct train *t, int *told);

/* ---- all of them */

static inline double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static inline int gpt_engine_fail(struct train *t, int rc)
{
    return rc == 0 ? 0
                   : zb_fail(t->err, rc, "%s", t->zero ? zc_zero_error(t->zero) : zc_strerror(rc));
}

static inline bool is_narrow(const struct train *t)
{
    return t->args->dtype != GPT_FP32;
}

static inline bool gpt_unit_frozen(const struct train *t, uint32_t unit)
{
    return unit >= gpt_unit_block(&t->model, 0) &&
           unit < gpt_unit_block(&t->model, t->args->freeze);
}

/* Whether blocks are recomputed: by default on a device, not on the processor. */
static inline bool recomputes(const struct gpt_args *a)
{
    return a->checkpoint >= GPT_CHECKPOINT_BLOCK ||
           (a->checkpoint == GPT_CHECKPOINT_AUTO && a->device);
}

static inline uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
