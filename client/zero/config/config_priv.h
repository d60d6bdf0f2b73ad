/*
 * config_priv.h - shared by the files that read a configuration: rows of keys, and their values.
 *
 *     config_rows.c  the keys, their types, and how each is handled
 *     config_read.c  reads a file, by these rows, into struct zcz_read
 *     config.c       converts struct zcz_read to struct zc_zero_config, and finds contradictions
 */
#ifndef ZCZ_CONFIG_PRIV_H
#define ZCZ_CONFIG_PRIV_H

#include "base/err.h"
#include "client/zero/zc_config.h"

enum zcz_kind {
    ZCZ_GROUP, /* an object, with rows of its own */
    ZCZ_BOOL,
    ZCZ_COUNT, /* a whole number, also as 5e8 */
    ZCZ_REAL,
    ZCZ_WORD, /* one of `words`, case-insensitive; the value is its index */
    ZCZ_TEXT,
    ZCZ_PAIR,  /* [real, real]: the values of `at` and of the one after it */
    ZCZ_ANY,   /* not checked, except what is enabled in it, if that is rejected */
    ZCZ_TRUE,  /* a BOOL that is rejected if it is false */
    ZCZ_NEVER, /* rejected unless it is false */
};

/* Values that are used. */
enum zcz_at {
    ZCZ_NOWHERE,
    ZCZ_TRAIN_BATCH,
    ZCZ_MICRO_BATCH,
    ZCZ_ACCUMULATION,
    ZCZ_CLIP,
    ZCZ_COMM_DTYPE,
    ZCZ_GRAD_DTYPE,
    ZCZ_OPT_TYPE,
    ZCZ_LR,
    ZCZ_BETA1,
    ZCZ_BETA2,
    ZCZ_EPS,
    ZCZ_WEIGHT_DECAY,
    ZCZ_ADAM_W_MODE,
    ZCZ_TORCH_ADAM,
    ZCZ_MOMENTUM,
    ZCZ_DAMPENING,
    ZCZ_NESTEROV,
    ZCZ_LR_DECAY,
    ZCZ_SCHED_TYPE,
    ZCZ_WARMUP_MIN_LR,
    ZCZ_WARMUP_MAX_LR,
    ZCZ_WARMUP_STEPS,
    ZCZ_WARMUP_TYPE,
    ZCZ_WARMUP_MIN_RATIO,
    ZCZ_COS_MIN_RATIO,
    ZCZ_TOTAL_STEPS,
    ZCZ_STAGE,
    ZCZ_OVERLAP_COMM,
    ZCZ_REDUCE_BUCKET,
    ZCZ_PREFETCH_BUCKET,
    ZCZ_PERSISTENCE,
    ZCZ_MAX_LIVE,
    ZCZ_MAX_REUSE,
    ZCZ_HPZ,
    ZCZ_MICS,
    ZCZ_QUANTIZED_WEIGHTS,
    ZCZ_QUANTIZED_FROZEN,
    ZCZ_PARAM_DEVICE,
    ZCZ_OPT_DEVICE,
    ZCZ_CPU_OFFLOAD,
    ZCZ_CPU_OFFLOAD_PARAM,
    ZCZ_FP16,
    ZCZ_LOSS_SCALE,
    ZCZ_SCALE_POWER,
    ZCZ_SCALE_WINDOW,
    ZCZ_HYSTERESIS,
    ZCZ_CONSECUTIVE,
    ZCZ_MIN_SCALE,
    ZCZ_BF16,
    ZCZ_CPU_CHECKPOINTING,
    ZCZ_CLIP_MODE,
    ZCZ_MOMENTS,
    ZCZ_MUON_ENGINE,
    ZCZ_CLIP_RATIO,
    ZCZ_CLIP_BETA,
    ZCZ_CLIP_WARMUP,
    ZCZ_GRAD_RING,
    ZCZ_GRAD_RING_KEEP,
    ZCZ_NODE_GATHER,
    ZCZ_AT_END
};

struct zcz_row {
    const char *key; /* NULL: end of the rows */
    enum zcz_kind kind;
    enum zcz_at at;
    double min, max;            /* for COUNT, REAL, PAIR */
    const char *words;          /* for WORD: "none cpu nvme" */
    const struct zcz_row *rows; /* for GROUP */
    const char *does;           /* what the key does, */
    const char *because;        /* or why it has no effect; */
    const char *refused;        /* or why it is rejected if it is enabled */
    const char *autos;          /* what "auto" means; NULL: DeepSpeed's default */
    uint32_t only;              /* bits of the types that have the key; 0: all */
};

extern const struct zcz_row zcz_config_rows[]; /* of the whole file */
extern const struct zcz_row zcz_optimizer_rows[], zcz_scheduler_rows[];

enum zcz_optimizers { ZCZ_ADAM, ZCZ_ADAMW, ZCZ_LION, ZCZ_SGD, ZCZ_ADAGRAD, ZCZ_MUON };
enum zcz_devices { ZCZ_DEVICE_NONE, ZCZ_DEVICE_CPU, ZCZ_DEVICE_NVME };
enum zcz_dtypes { ZCZ_FP32, ZCZ_FP16_WORD, ZCZ_BF16_WORD };

enum zcz_how { ZCZ_ABSENT, ZCZ_AUTO, ZCZ_SAID };

struct zcz_value {
    enum zcz_how how;
    double x;
    size_t line; /* line of the key that set it, or left it to auto */
};

struct zcz_read {
    struct zcz_value v[ZCZ_AT_END];
    bool optimizer, scheduler, checkpointing; /* whether these groups are present */
    struct zc_config_line *lines;             /* their strings are allocated */
    size_t nlines, room;
};

/** Reads a file. 0, or err has an error message. zcz_config_read_done() is needed in either
 * case. */
int zcz_config_read(struct zcz_read *r, const char *path, struct zb_err *err);
/** Reads a text in the same way. */
int zcz_config_read_text(struct zcz_read *r, const char *text, size_t bytes, struct zb_err *err);
void zcz_config_read_done(struct zcz_read *r);

/** Checks that the keys that are present apply to this type: 0 or -EINVAL. */
int zcz_config_only(const struct zcz_read *r, const struct zcz_row *rows, const char *path,
                    uint32_t type, const char *name, struct zb_err *err);

/** Marks a key's line as ignored, because the key has no effect here. 0 or -ENOMEM. */
int zcz_config_ignore(struct zcz_read *r, const char *key, const char *because);
/** Replaces the text of a key's line; the key is used. 0 or -ENOMEM. */
int zcz_config_warn(struct zcz_read *r, const char *key, const char *text);

#endif
