/*
 * zc_config.h - DeepSpeed's configuration file, as options of the ZeRO engine (zc_zero.h).
 *
 * MODEL. zc_zero_config_load() reads DeepSpeed's JSON. Each key of the file is used, or it has a
 * line that says why it has no effect ("ignored, because ..."), or the file is rejected with the
 * path of the key. A key is rejected if it is unknown, has the wrong type, contradicts another key,
 * or would change the result of the training. No key is skipped silently. docs/CONFIG.md lists all
 * keys.
 *
 * Missing keys take DeepSpeed's defaults (0.19). If a key is "auto", as in Hugging Face's files, or
 * is missing and DeepSpeed has no default, the trainer chooses the value: `left` names these.
 *
 * THREADS. The functions use no shared state; one thread at a time may use one config. They involve
 * no daemon and no other rank, and print nothing: the program prints `lines`.
 */
#ifndef ZC_CONFIG_H
#define ZC_CONFIG_H

#include "zc_zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Values that the trainer chooses. struct zc_zero_config has DeepSpeed's value. */
#define ZC_LEFT_BATCH        1u /* train_batch: 0 */
#define ZC_LEFT_MICRO_BATCH  2u /* micro_batch: 0 */
#define ZC_LEFT_MICRO_STEPS  4u /* options.micro_steps: 1 */
#define ZC_LEFT_DTYPE        8u
#define ZC_LEFT_OPTIMIZER    16u /* with its betas, eps and other scalars */
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
    bool linear;                 /* shape of the warm-up: linear, or logarithmic */
    double min_lr, max_lr;       /* WARMUP, WARMUP_DECAY; max_lr NaN: the optimizer's lr */
    double min_ratio, end_ratio; /* WARMUP_COSINE: factors of the optimizer's lr */
    uint64_t warmup_steps;       /* at least 2 */
    uint64_t total_steps;        /* WARMUP_DECAY, WARMUP_COSINE */
};

/**
 * Returns the learning rate of the step that follows `applied` applied steps (skipped steps do not
 * count). `lr` is the optimizer's. As in DeepSpeed, the first and the second step both have the
 * schedule's first value.
 */
ZC_EXPORT double zc_lr_at(const struct zc_lr_schedule *schedule, double lr, uint64_t applied);

/** How a key of the file is handled. */
struct zc_config_line {
    const char *key;   /* its path: "zero_optimization.stage" */
    const char *value; /* as JSON, truncated */
    bool ignored;      /* the key has no effect; text says why */
    const char *text;  /* what it does */
};

/**
 * A configuration file, as options. Everything belongs to the configuration until
 * zc_zero_config_free().
 */
struct zc_zero_config {
    /* As zc_zero_defaults(), changed by the file. The program sets comm, socket, job, device and
     * weight_decay[1] onwards; groups is 1. */
    struct zc_zero_options options;
    uint32_t left;        /* ZC_LEFT_*: values that the trainer chooses */
    uint64_t train_batch; /* samples of a step, over all ranks */
    uint64_t micro_batch; /* samples that a rank computes at a time */
    /* of parameters, and of gradients on their way between ranks */
    enum zc_dtype dtype;
    double lr;
    struct zc_lr_schedule schedule;
    /* of fp16; also in options.loss_scale if dtype is fp16 */
    struct zc_loss_scale loss_scale;
    bool quantize_frozen;   /* stage 3: set zc_unit.quantized for frozen units */
    bool checkpointing;     /* the file has activation_checkpointing */
    bool cpu_checkpointing; /* activation_checkpointing.cpu_checkpointing is on */
    const struct zc_config_line *lines;
    size_t nlines;
};

/**
 * Reads a file.
 *
 * @param ranks  number of ranks of the run; 0: not known, and values that depend on it are not
 *               computed
 * @param error,error_bytes  buffer for the error message of a failure, which begins with the path
 *                           of the key if one is at fault; may be NULL and 0
 * @return 0; -EINVAL the file is not JSON, or is rejected; -ENOENT and other errors of reading;
 *         -ENOMEM. The caller frees *ret with zc_zero_config_free().
 */
ZC_EXPORT int zc_zero_config_load(struct zc_zero_config **ret, const char *path, uint32_t ranks,
                                  char *error, size_t error_bytes);
/** Reads a text in memory, `bytes` long, in the same way. */
ZC_EXPORT int zc_zero_config_parse(struct zc_zero_config **ret, const char *text, size_t bytes,
                                   uint32_t ranks, char *error, size_t error_bytes);
/** Frees a configuration. NULL is allowed. */
ZC_EXPORT void zc_zero_config_free(struct zc_zero_config *config);

#ifdef __cplusplus
}
#endif

#endif
