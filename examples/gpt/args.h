/*
 * args.h - the command line of zgpt: one table of rows gives the parser, the checks and --help.
 */
#ifndef GPT_ARGS_H
#define GPT_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/opt.h"

enum gpt_overlap { GPT_OVERLAP_ALL, GPT_OVERLAP_NONE, GPT_OVERLAP_EARLY, GPT_OVERLAP_SERVE };
enum gpt_offload { GPT_OFFLOAD_NONE, GPT_OFFLOAD_HOST, GPT_OFFLOAD_NVME, GPT_OFFLOAD_GPU };
enum gpt_offload_grad { GPT_GRAD_AUTO, GPT_GRAD_HOST };
enum gpt_dtype { GPT_FP32, GPT_BF16, GPT_FP16 };
enum gpt_order { GPT_HORIZONTAL, GPT_VERTICAL };
enum gpt_accumulate { GPT_REDUCED, GPT_LOCAL };
enum gpt_checkpoint {
    GPT_CHECKPOINT_AUTO,
    GPT_CHECKPOINT_NONE,
    GPT_CHECKPOINT_BLOCK,
    GPT_CHECKPOINT_HOST,
    GPT_CHECKPOINT_NVME
};
enum gpt_optimizer { GPT_ADAMW, GPT_ADAM, GPT_LION, GPT_SGD, GPT_ADAGRAD, GPT_MUON };
enum gpt_moments { GPT_MOMENTS_FP32, GPT_MOMENTS_BF16, GPT_MOMENTS_8BIT, GPT_MOMENTS_8BIT_LO };

/* Strings point into argv. */
struct gpt_args {
    bool help, version;
    const char *socket, *job;
    bool keep, resume, resume_if_there; /* the last two imply keep; resume overrides the last */
    uint64_t commit_every;
    uint32_t reconnect_s;
    uint32_t share;
    uint32_t below_3; /* gpt_args_stage() */
    bool keep_gathered, gather_alone, quantize_gather;
    uint32_t node_gather; /* enum zc_node_gather */
    bool quantize_frozen; /* with freeze */
    uint32_t group;
    uint64_t memory;
    uint32_t offload;                          /* enum gpt_offload: of those not given: */
    uint32_t offload_optimizer, offload_param; /* enum gpt_offload */
    uint32_t offload_grad;                     /* enum gpt_offload_grad */
    uint32_t overlap;                          /* enum gpt_overlap */
    bool grad_ring;
    uint32_t grad_ring_keep;
    struct zb_opt_words data;
    uint64_t steps, seed;
    uint32_t batch, micro_batch, seq, layers, heads, width;
    uint32_t freeze; /* number of blocks, from the first on, that are not trained */
    double lr, weight_decay, clip;
    uint32_t clip_mode; /* enum zc_clip_mode */
    double clip_ratio, clip_beta;
    uint32_t clip_warmup;
    uint32_t order, accumulate, checkpoint; /* enum gpt_order, gpt_accumulate, gpt_checkpoint */
    uint32_t dtype;                         /* enum gpt_dtype */
    double loss_scale;                      /* of fp16; 0: dynamic, by these: */
    uint32_t scale_power, scale_window, hysteresis;
    bool consecutive_hysteresis;
    double min_scale;
    uint32_t optimizer, moments; /* enum gpt_optimizer, gpt_moments */
    uint32_t muon_scale;         /* enum zc_muon_scale */
    uint32_t muon_engine;        /* enum zc_muon_engine */
    const char *device;          /* NULL: the processor */
    const char *init, *export, *jsonl;
    const char *config; /* DeepSpeed's file: says what the flags do not (config.h) */
    uint64_t given;     /* rows of flags that were: gpt_args_given() */
};

/**
 * Reads the words after the program's name. With --help or --version nothing else is required.
 *
 * @return 0; or err has the message and is -EINVAL usage, -ENOMEM. gpt_args_done() in either case.
 */
int gpt_args_parse(struct gpt_args *args, int argc, char **argv, struct zb_err *err);
/** Checks the arguments as a whole. gpt_args_parse() calls it, except with --config, which may
 * still change them. 0 or -EINVAL. */
int gpt_args_check(struct gpt_args *args, struct zb_err *err);
/** Whether a flag ("--lr") was given. */
bool gpt_args_given(const struct gpt_args *args, const char *flag);
void gpt_args_done(struct gpt_args *args);

/** --stage: 0 to 3. */
static inline uint32_t gpt_args_stage(const struct gpt_args *args)
{
    return 3 - args->below_3;
}

/** The check that needs the number of ranks: the global batch must divide into whole micro-batches
 *  per rank. *ret_micro_steps: their number per rank and step. 0 or -EINVAL. */
int gpt_args_micro_steps(const struct gpt_args *args, uint32_t world, uint32_t *ret_micro_steps,
                         struct zb_err *err);

void gpt_args_help(FILE *out);

#endif
