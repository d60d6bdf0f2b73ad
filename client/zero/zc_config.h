/*
 * zc_config.h - DeepSpeed's configuration file, as options of the ZeRO engine (zc_zero.h).
 *
 * MODEL. zc_zero_config_load() reads the JSON that people have. Each key of it is acted on, or has
 * a line that says why it has no effect ("ignored, because ..."), or is refused with its path: what
 * is unknown, of the wrong type, contradicts another, or would train something else than we do.
 * Nothing is passed over in silence. docs/CONFIG.md has all keys.
 *
 * Defaults of what the file does not say are DeepSpeed's (0.19). Where it says "auto", as Hugging
 * Face's files do, or says nothing and DeepSpeed has no default, the value is left to the trainer:
 * `left` says which are.
 *
 * No call here is an engine's: no rank needs to be there. The program prints the lines.
 */
#ifndef ZC_CONFIG_H
#define ZC_CONFIG_H

#include "zc_zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What the trainer decides. Its value in struct zc_zero_config is what DeepSpeed would take. */
#define ZC_LEFT_BATCH        1u /* train_batch: 0 */
#define ZC_LEFT_MICRO_BATCH  2u /* micro_batch: 0 */
#define ZC_LEFT_MICRO_STEPS  4u /* options.micro_steps: 1 */
#define ZC_LEFT_DTYPE        8u
#define ZC_LEFT_OPTIMIZER    16u /* and betas, eps, and all that is its own */
#define ZC_LEFT_LR           32u
#define ZC_LEFT_WEIGHT_DECAY 64u
#define ZC_LEFT_CLIP         128u
#define ZC_LEFT_TOTAL_STEPS  256u /* of the schedule: 0 */

enum zc_lr_kind {
    ZC_LR_CONSTANT = 0,
    ZC_LR_WARMUP = 1, /* WarmupLR, WarmupDecayLR, WarmupCosineLR */
    ZC_LR_WARMUP_DECAY = 2,
    ZC_LR_WARMUP_COSINE = 3,
};

/** DeepSpeed's schedulers of these names. */
struct zc_lr_schedule {
    enum zc_lr_kind kind;
    bool linear;                 /* the warm-up; else logarithmic */
    double min_lr, max_lr;       /* WARMUP, WARMUP_DECAY; max_lr NaN: the optimizer's */
    double min_ratio, end_ratio; /* WARMUP_COSINE: of the optimizer's */
    uint64_t warmup_steps;       /* at least 2 */
    uint64_t total_steps;        /* WARMUP_DECAY, WARMUP_COSINE */
};

/** The learning rate of a step, before which `applied` steps were applied (a skipped one is none):
 * `lr` is the optimizer's. As with DeepSpeed the first step has the schedule's first value, and so
 * has the second. */
ZC_EXPORT double zc_lr_at(const struct zc_lr_schedule *schedule, double lr, uint64_t applied);

/** What became of a key that the file has. */
struct zc_config_line {
    const char *key;   /* its path: "zero_optimization.stage" */
    const char *value; /* as JSON, cut short */
    bool ignored;      /* it has no effect; text says why */
    const char *text;  /* what it does */
};

struct zc_zero_config {
    /* As zc_zero_defaults(), but for what the file says. comm, socket, job and device are the
     * program's, as are weight_decay[1] ...; it has one group. */
    struct zc_zero_options options;
    uint32_t left;        /* of ZC_LEFT_* */
    uint64_t train_batch; /* samples of a step, over all ranks */
    uint64_t micro_batch; /* of them that a rank computes at a time */
    enum zc_dtype dtype;  /* of parameters and of gradients that are exchanged */
    double lr;
    struct zc_lr_schedule schedule;
    struct zc_loss_scale loss_scale; /* of fp16: options.loss_scale, where the dtype is */
    bool quantize_frozen;            /* of stage 3: for the trainer's units, where frozen is set */
    bool checkpointing;              /* activation_checkpointing is there */
    bool cpu_checkpointing;          /* ... and says so */
    const struct zc_config_line *lines;
    size_t nlines;
};

/**
 * Reads a file.
 *
 * @param ranks  of the run; 0: not known, and what would follow from it is left
 * @param error,error_bytes  a buffer for the error message of a failure, which begins with the path of
 *        the key where it is of one; may be NULL and 0
 * @return 0; -EINVAL what it says cannot be (or is not JSON), -ENOENT ... it cannot be read, -ENOMEM
 */
ZC_EXPORT int zc_zero_config_load(struct zc_zero_config **ret, const char *path, uint32_t ranks,
                                  char *error, size_t error_bytes);
/** The same of a text in memory, `bytes` of JSON (a program's own dictionary, say). */
ZC_EXPORT int zc_zero_config_parse(struct zc_zero_config **ret, const char *text, size_t bytes,
                                   uint32_t ranks, char *error, size_t error_bytes);
/** NULL is fine. */
ZC_EXPORT void zc_zero_config_free(struct zc_zero_config *config);

#ifdef __cplusplus
}
#endif

#endif
