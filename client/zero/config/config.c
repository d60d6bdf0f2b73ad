/*
 * config.c - converts a DeepSpeed file to options, and finds contradictions.
 *
 * Each settle_ function handles one part of the file. They run in order, so that a later one can
 * use the results of an earlier one. The paths in their error messages are those of the keys.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "client/zero/config/config_priv.h"
#include "client/zero/config/loss_scale.h"

/* The public part, and the owner of its lines. */
struct loaded {
    struct zc_zero_config config; /* first */
    struct zcz_read read;
};

static bool said(const struct zcz_read *r, enum zcz_at at)
{
    return r->v[at].how == ZCZ_SAID;
}

static bool is_auto(const struct zcz_read *r, enum zcz_at at)
{
    return r->v[at].how == ZCZ_AUTO;
}

static double value(const struct zcz_read *r, enum zcz_at at, double otherwise)
{
    return said(r, at) ? r->v[at].x : otherwise;
}

static uint64_t count(const struct zcz_read *r, enum zcz_at at, double otherwise)
{
    return (uint64_t)value(r, at, otherwise);
}

static bool is_true(const struct zcz_read *r, enum zcz_at at)
{
    return value(r, at, 0) != 0;
}

/* ---- batches */

#define TRAIN "train_batch_size"
#define MICRO "train_micro_batch_size_per_gpu"
#define ACCUM "gradient_accumulation_steps"

typedef unsigned long long ull;

/* Computes the third value from two others: whole / (part * ranks). A key's value is at most
 * UINT32_MAX, so a product of two fits. */
static int batch_divide(uint64_t whole, uint64_t part, const char *name, uint32_t ranks,
                        uint64_t *ret, struct zb_err *err)
{
    if (whole % (part * ranks) != 0)
        return zb_fail(err, -EINVAL,
                       TRAIN ": %llu does not divide into %s %llu on each of %u ranks", (ull)whole,
                       name, (ull)part, ranks);
    *ret = whole / (part * ranks);
    return 0;
}

/* Computes the batch from the two others. It must be a value that the key could have. */
static int batch_multiply(uint64_t micro, uint64_t steps, uint32_t ranks, uint64_t *ret,
                          struct zb_err *err)
{
    if (!zb_mul_fits(micro * steps, ranks, ret) || *ret > UINT32_MAX)
        return zb_fail(err, -EINVAL,
                       TRAIN ": " MICRO " %llu times " ACCUM " %llu times %u ranks is more than %u",
                       (ull)micro, (ull)steps, ranks, UINT32_MAX);
    return 0;
}

static int batch_check(uint64_t train, uint64_t micro, uint64_t steps, uint32_t ranks,
                       struct zb_err *err)
{
    if (ranks > 0 && (train % ranks != 0 || train / ranks != micro * steps))
        return zb_fail(err, -EINVAL,
                       TRAIN ": %llu is not " MICRO " %llu times " ACCUM " %llu times %u ranks",
                       (ull)train, (ull)micro, (ull)steps, ranks);
    if (train % (micro * steps) != 0)
        return zb_fail(err, -EINVAL,
                       TRAIN ": %llu is not a multiple of " MICRO " %llu times " ACCUM " %llu",
                       (ull)train, (ull)micro, (ull)steps);
    return 0;
}

/* DeepSpeed's rules: two of the three values determine the third; one alone implies one micro-step.
 * A value of 0 is left to the trainer. */
static int settle_batch(struct zc_zero_config *c, struct zcz_read *r, uint32_t ranks,
                        struct zb_err *err)
{
    uint64_t train = count(r, ZCZ_TRAIN_BATCH, 0), micro = count(r, ZCZ_MICRO_BATCH, 0);
    uint64_t steps = count(r, ZCZ_ACCUMULATION, 0);
    int rc = 0;

    if (steps == 0 && !is_auto(r, ZCZ_ACCUMULATION) && (train == 0 || micro == 0) &&
        !(train == 0 && micro == 0) && !is_auto(r, ZCZ_TRAIN_BATCH) && !is_auto(r, ZCZ_MICRO_BATCH))
        steps = 1;
    if (train && micro && steps)
        rc = batch_check(train, micro, steps, ranks, err);
    else if (ranks > 0 && train && micro)
        rc = batch_divide(train, micro, MICRO, ranks, &steps, err);
    else if (ranks > 0 && train && steps)
        rc = batch_divide(train, steps, ACCUM, ranks, &micro, err);
    else if (ranks > 0 && micro && steps)
        rc = batch_multiply(micro, steps, ranks, &train, err);
    c->train_batch = train;
    c->micro_batch = micro;
    c->options.micro_steps = steps ? (uint32_t)steps : 1;
    c->left |= (train ? 0 : ZC_LEFT_BATCH) | (micro ? 0 : ZC_LEFT_MICRO_BATCH) |
               (steps ? 0 : ZC_LEFT_MICRO_STEPS);
    return rc;
}

/* ---- dtypes */

static int ignore_all(struct zcz_read *r, const char *group, const char *const *keys, size_t n,
                      const char *because)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        char path[128];

        (void)snprintf(path, sizeof(path), "%s%s%s", group, *group ? "." : "", keys[i]);
        rc = zcz_config_ignore(r, path, because);
    }
    return rc;
}

static int settle_scale(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    static const char *const keys[] = { "loss_scale", "initial_scale_power",    "loss_scale_window",
                                        "hysteresis", "consecutive_hysteresis", "min_loss_scale" };
    static const char *const of_dynamic[] = { "initial_scale_power", "loss_scale_window",
                                              "hysteresis", "consecutive_hysteresis",
                                              "min_loss_scale" };
    struct zc_loss_scale *s = &c->loss_scale;

    *s = (struct zc_loss_scale){ .dynamic = value(r, ZCZ_LOSS_SCALE, 0) == 0,
                                 .fixed = value(r, ZCZ_LOSS_SCALE, 0),
                                 .power = (uint32_t)value(r, ZCZ_SCALE_POWER, 16),
                                 .window = (uint32_t)value(r, ZCZ_SCALE_WINDOW, 1000),
                                 .hysteresis = (uint32_t)value(r, ZCZ_HYSTERESIS, 2),
                                 .consecutive = is_true(r, ZCZ_CONSECUTIVE),
                                 .min = value(r, ZCZ_MIN_SCALE, 1) };
    if (s->dynamic && s->min > ldexp(1, (int)s->power))
        return zb_fail(err, -EINVAL, "fp16.min_loss_scale: %g, and the first loss scale is 2^%u",
                       s->min, s->power);
    if (c->dtype == ZC_F16)
        c->options.loss_scale = *s;
    else if (!(c->left & ZC_LEFT_DTYPE))
        return ignore_all(r, "fp16", keys, ZB_COUNT(keys), "fp16 is not enabled");
    return s->dynamic ? 0
                      : ignore_all(r, "fp16", of_dynamic, ZB_COUNT(of_dynamic),
                                   "the loss scale is static");
}

static int settle_dtype(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    static const enum zc_dtype dtypes[] = { ZC_F32, ZC_F16, ZC_BF16 };
    bool fp16 = is_true(r, ZCZ_FP16), bf16 = is_true(r, ZCZ_BF16);
    int rc = 0;

    if (fp16 && bf16)
        return zb_fail(err, -EINVAL, "fp16.enabled: bf16 is enabled as well");
    c->dtype = fp16 ? ZC_F16 : bf16 ? ZC_BF16 : ZC_F32;
    if (!fp16 && !bf16 && (is_auto(r, ZCZ_FP16) || is_auto(r, ZCZ_BF16)))
        c->left |= ZC_LEFT_DTYPE;
    rc = settle_scale(c, r, err);
    if (rc == 0 && said(r, ZCZ_GRAD_DTYPE) && value(r, ZCZ_GRAD_DTYPE, 0) != ZCZ_FP32)
        rc = zcz_config_ignore(r, "data_types.grad_accum_dtype",
                               "gradients of micro-steps are always added in fp32");
    if (rc == 0 && said(r, ZCZ_COMM_DTYPE) && !(c->left & ZC_LEFT_DTYPE) &&
        dtypes[count(r, ZCZ_COMM_DTYPE, 0)] != c->dtype)
        rc = zcz_config_ignore(r, "communication_data_type",
                               c->dtype == ZC_F32
                                   ? "gradients are exchanged in the dtype of the parameters"
                                   : "gradients are exchanged in the dtype of the parameters: "
                                     "results differ in rounding from an exchange in another one");
    return rc;
}

/* ---- optimizer and learning rate */

static const char *const optimizer_names[] = { "Adam", "AdamW", "Lion", "SGD", "Adagrad", "Muon" };

static int settle_optimizer(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    struct zc_zero_options *o = &c->options;
    unsigned type = (unsigned)value(r, ZCZ_OPT_TYPE, ZCZ_ADAMW);
    int rc;

    if (!said(r, ZCZ_OPT_TYPE)) {
        if (r->optimizer && !is_auto(r, ZCZ_OPT_TYPE))
            return zb_fail(err, -EINVAL, "optimizer.type: is missing");
        c->left |= ZC_LEFT_OPTIMIZER;
    }
    rc = zcz_config_only(r, zcz_optimizer_rows[1].rows, "optimizer.params", type,
                         optimizer_names[type], err);
    if (rc < 0)
        return rc;
    if (type == ZCZ_ADAM)
        o->optimizer = value(r, ZCZ_ADAM_W_MODE, 1) != 0 ? ZC_ADAMW : ZC_ADAM;
    else
        o->optimizer = type == ZCZ_ADAMW  ? ZC_ADAMW
                       : type == ZCZ_LION ? ZC_LION
                       : type == ZCZ_SGD  ? ZC_SGD
                       : type == ZCZ_MUON ? ZC_MUON
                                          : ZC_ADAGRAD;
    if (type == ZCZ_ADAMW && said(r, ZCZ_ADAM_W_MODE))
        rc = zcz_config_ignore(r, "optimizer.params.adam_w_mode", "AdamW is AdamW");
    if (value(r, ZCZ_BETA1, 0) >= 1 || value(r, ZCZ_BETA2, 0) >= 1)
        return zb_fail(err, -EINVAL,
                       "optimizer.params.betas: is [%g, %g], but both must be below 1",
                       value(r, ZCZ_BETA1, 0), value(r, ZCZ_BETA2, 0));
    c->lr = value(r, ZCZ_LR, type == ZCZ_ADAGRAD ? 1e-2 : 1e-3);
    o->beta1 = value(r, ZCZ_BETA1, 0.9);
    o->beta2 = value(r, ZCZ_BETA2, type == ZCZ_LION ? 0.99 : 0.999);
    o->eps = value(r, ZCZ_EPS, type == ZCZ_ADAGRAD ? 1e-10 : 1e-8);
    o->momentum = value(r, ZCZ_MOMENTUM, type == ZCZ_MUON ? 0.95 : 0);
    o->dampening = value(r, ZCZ_DAMPENING, 0);
    o->nesterov = is_true(r, ZCZ_NESTEROV);
    o->lr_decay = value(r, ZCZ_LR_DECAY, 0);
    o->weight_decay[0] =
        value(r, ZCZ_WEIGHT_DECAY, type == ZCZ_ADAMW && is_true(r, ZCZ_TORCH_ADAM) ? 0.01 : 0);
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return zb_fail(err, -EINVAL, "optimizer.params.nesterov: needs momentum, and no dampening");
    if (type == ZCZ_MUON && !said(r, ZCZ_LR))
        return zb_fail(
            err, -EINVAL,
            "optimizer.params.lr: is missing: DeepSpeed's defaults for Muon and for Adam "
            "differ, and matrices and all other tensors have one learning rate");
    if (type == ZCZ_MUON) { /* as DeepSpeed's */
        o->nesterov = true;
        o->muon_scale = ZC_MUON_SHAPE;
    }
    if (is_auto(r, ZCZ_LR) || !said(r, ZCZ_OPT_TYPE))
        c->left |= ZC_LEFT_LR;
    if (is_auto(r, ZCZ_WEIGHT_DECAY) || !said(r, ZCZ_OPT_TYPE))
        c->left |= ZC_LEFT_WEIGHT_DECAY;
    return rc;
}

static const char *const scheduler_names[] = { "WarmupLR", "WarmupDecayLR", "WarmupCosineLR" };

static int settle_schedule(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    struct zc_lr_schedule *s = &c->schedule;
    unsigned type = (unsigned)value(r, ZCZ_SCHED_TYPE, 0);
    int rc;

    *s = (struct zc_lr_schedule){ .max_lr = NAN };
    if (!r->scheduler)
        return 0;
    if (!said(r, ZCZ_SCHED_TYPE))
        return zb_fail(err, -EINVAL, "scheduler.type: is missing");
    rc = zcz_config_only(r, zcz_scheduler_rows[1].rows, "scheduler.params", type,
                         scheduler_names[type], err);
    if (rc < 0)
        return rc;
    s->kind = (enum zc_lr_kind)(ZC_LR_WARMUP + type);
    s->linear = is_true(r, ZCZ_WARMUP_TYPE);
    s->min_lr = value(r, ZCZ_WARMUP_MIN_LR, 0);
    if (said(r, ZCZ_WARMUP_MAX_LR))
        s->max_lr = r->v[ZCZ_WARMUP_MAX_LR].x;
    else if (s->kind == ZC_LR_WARMUP_DECAY && !is_auto(r, ZCZ_WARMUP_MAX_LR))
        s->max_lr = 0.001; /* DeepSpeed's default; WarmupLR uses the optimizer's */
    s->min_ratio = value(r, ZCZ_WARMUP_MIN_RATIO, 0);
    s->end_ratio = value(r, ZCZ_COS_MIN_RATIO, 0.0001);
    s->warmup_steps =
        zb_max_u64(2, count(r, ZCZ_WARMUP_STEPS, is_auto(r, ZCZ_WARMUP_STEPS) ? 0 : 1000));
    s->total_steps = count(r, ZCZ_TOTAL_STEPS, 0);
    if (s->kind != ZC_LR_WARMUP && s->total_steps == 0) {
        if (!is_auto(r, ZCZ_TOTAL_STEPS))
            return zb_fail(err, -EINVAL, "scheduler.params.total_num_steps: is missing");
        c->left |= ZC_LEFT_TOTAL_STEPS;
    }
    if (s->kind == ZC_LR_WARMUP_DECAY && s->total_steps > 0 && s->total_steps < s->warmup_steps) {
        char text[128];

        (void)snprintf(text, sizeof(text),
                       "warning: less than warmup_num_steps %llu: the warm-up is not completed",
                       (ull)s->warmup_steps);
        rc = zcz_config_warn(r, "scheduler.params.total_num_steps", text);
    }
    return rc;
}

/* ---- ZeRO */

static const char *const of_stage_3[] = {
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",  "stage3_max_reuse_distance",
    "prefetch_bucket_size",        "param_persistence_threshold",
    "max_live_parameters",         "max_reuse_distance",
    "zero_quantized_weights",      "zero_quantized_nontrainable_weights",
};

static enum zc_zero_offload tier_of(double device)
{
    return device == ZCZ_DEVICE_NVME  ? ZC_ZERO_NVME
           : device == ZCZ_DEVICE_CPU ? ZC_ZERO_HOST
                                      : ZC_ZERO_NONE;
}

/* The old form is a bool: true is `cpu`, false is `none`. */
static int settle_device(const struct zcz_read *r, enum zcz_at at, enum zcz_at old,
                         enum zc_zero_offload *ret, struct zb_err *err)
{
    double device = is_true(r, old) ? ZCZ_DEVICE_CPU : ZCZ_DEVICE_NONE;

    if (said(r, at) && said(r, old) && r->v[at].x != device) {
        const struct zc_config_line *l = &r->lines[r->v[at].line];
        const struct zc_config_line *other = &r->lines[r->v[old].line];

        return zb_fail(err, -EINVAL, "%s: is %s, and %s, its old form, is %s", l->key, l->value,
                       other->key, other->value);
    }
    *ret = tier_of(value(r, at, device));
    return 0;
}

/* Parameters are only offloaded together with the state. */
static int settle_offload(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    struct zc_zero_options *o = &c->options;
    unsigned stage = (unsigned)o->stage;
    int rc;

    rc = settle_device(r, ZCZ_PARAM_DEVICE, ZCZ_CPU_OFFLOAD_PARAM, &o->offload_param, err);
    if (rc == 0)
        rc = settle_device(r, ZCZ_OPT_DEVICE, ZCZ_CPU_OFFLOAD, &o->offload_optimizer, err);
    if (rc < 0)
        return rc;
    if (o->offload_param != ZC_ZERO_NONE && stage != 3)
        return zb_fail(
            err, -EINVAL,
            "zero_optimization.offload_param.device: parameters are offloaded in stage 3 only, "
            "but this is stage %u",
            stage);
    if (o->offload_optimizer != ZC_ZERO_NONE && stage == 0)
        return zb_fail(err, -EINVAL,
                       "zero_optimization.offload_optimizer.device: the optimizer is offloaded in "
                       "stages 1 to 3, but this is stage 0");
    if (o->offload_optimizer == ZC_ZERO_NONE && o->offload_param != ZC_ZERO_NONE)
        o->offload_optimizer = ZC_ZERO_HOST;
    return 0;
}

static int settle_groups(struct zc_zero_config *c, const struct zcz_read *r, uint32_t ranks,
                         struct zb_err *err)
{
    uint32_t hpz = (uint32_t)value(r, ZCZ_HPZ, 1);
    uint32_t mics = value(r, ZCZ_MICS, -1) > 0 ? (uint32_t)value(r, ZCZ_MICS, 0) : 0;
    const char *key = mics ? "mics_shard_size" : "zero_hpz_partition_size";
    uint32_t n = mics ? mics : hpz > 1 ? hpz : 0;

    if (mics && hpz > 1 && mics != hpz)
        return zb_fail(err, -EINVAL,
                       "zero_optimization.mics_shard_size: %u, and zero_hpz_partition_size is %u",
                       mics, hpz);
    if (n > 0 && c->options.stage != ZC_STAGE_3)
        return zb_fail(err, -EINVAL,
                       "zero_optimization.%s: applies to stage 3, but this is stage %d", key,
                       (int)c->options.stage);
    if (n > 0 && ranks > 0 && ranks % n != 0)
        return zb_fail(err, -EINVAL, "zero_optimization.%s: groups of %u do not divide %u ranks",
                       key, n, ranks);
    c->options.group_ranks = n;
    return 0;
}

static int settle_zero(struct zc_zero_config *c, struct zcz_read *r, uint32_t ranks,
                       struct zb_err *err)
{
    struct zc_zero_options *o = &c->options;
    int rc;

    o->stage = (enum zc_zero_stage)count(r, ZCZ_STAGE, 0);
    o->reduce_elems = is_auto(r, ZCZ_REDUCE_BUCKET) ? 0 : count(r, ZCZ_REDUCE_BUCKET, 5e8);
    o->reduce_waits = value(r, ZCZ_OVERLAP_COMM, o->stage == ZC_STAGE_3) == 0;
    if (o->stage == ZC_STAGE_3) {
        o->persist_elems = is_auto(r, ZCZ_PERSISTENCE) ? 0 : count(r, ZCZ_PERSISTENCE, 1e5);
        o->live_elems = count(r, ZCZ_MAX_LIVE, 1e9);
        if (o->live_elems == 0) /* 0 means to keep nothing here, but no limit in our options */
            o->live_elems = 1;
        o->reuse_elems = count(r, ZCZ_MAX_REUSE, 1e9);
        o->prefetch_elems = is_auto(r, ZCZ_PREFETCH_BUCKET) ? 0
                                                            : count(r, ZCZ_PREFETCH_BUCKET, 5e7);
        if (said(r, ZCZ_PREFETCH_BUCKET) && o->prefetch_elems == 0)
            o->prefetch_units = 0;
        o->quantize_gather = is_true(r, ZCZ_QUANTIZED_WEIGHTS);
        c->quantize_frozen = is_true(r, ZCZ_QUANTIZED_FROZEN);
    } else {
        rc = ignore_all(r, "zero_optimization", of_stage_3, ZB_COUNT(of_stage_3),
                        "it applies to stage 3 only");
        if (rc < 0)
            return rc;
    }
    rc = settle_offload(c, r, err);
    return rc < 0 ? rc : settle_groups(c, r, ranks, err);
}

/* ---- keys of ours */

static int settle_ours(struct zc_zero_config *c, struct zcz_read *r, struct zb_err *err)
{
    static const char *const of_tensor[] = { "clip_tensor_ratio", "clip_tensor_beta",
                                             "clip_tensor_warmup" };
    static const char *const of_ring[] = { "grad_ring_keep" };
    struct zc_zero_options *o = &c->options;
    int rc = 0;

    o->clip_mode = (enum zc_clip_mode)value(r, ZCZ_CLIP_MODE, ZC_CLIP_GLOBAL);
    o->clip_tensor_ratio = value(r, ZCZ_CLIP_RATIO, o->clip_tensor_ratio);
    o->clip_tensor_beta = value(r, ZCZ_CLIP_BETA, o->clip_tensor_beta);
    o->clip_tensor_warmup = count(r, ZCZ_CLIP_WARMUP, (double)o->clip_tensor_warmup);
    o->moments = (enum zc_moments)(ZC_MOMENTS_F32 + (int)value(r, ZCZ_MOMENTS, 0));
    o->muon_engine = (enum zc_muon_engine)value(r, ZCZ_MUON_ENGINE, ZC_MUON_CPU);
    o->node_gather = (enum zc_node_gather)value(r, ZCZ_NODE_GATHER, ZC_NODE_GATHER_COMM);
    o->grad_ring = is_true(r, ZCZ_GRAD_RING);
    o->grad_ring_keep = (uint32_t)count(r, ZCZ_GRAD_RING_KEEP, 0);
    if (said(r, ZCZ_CLIP_RATIO) && o->clip_tensor_ratio == 0)
        return zb_fail(err, -EINVAL, "zshard.clip_tensor_ratio: is 0, and must be above 0");
    if (said(r, ZCZ_CLIP_BETA) && o->clip_tensor_beta == 1)
        return zb_fail(err, -EINVAL, "zshard.clip_tensor_beta: is 1, and must be below 1");
    if (!o->grad_ring)
        rc = ignore_all(r, "zshard", of_ring, ZB_COUNT(of_ring), "grad_ring is not true");
    return rc < 0 || o->clip_mode == ZC_CLIP_TENSOR
               ? rc
               : ignore_all(r, "zshard", of_tensor, ZB_COUNT(of_tensor), "clip_mode is not tensor");
}

/* ---- the whole */

static void settle_rest(struct zc_zero_config *c, const struct zcz_read *r)
{
    c->options.clip = value(r, ZCZ_CLIP, 1.0);
    c->left |= is_auto(r, ZCZ_CLIP) ? ZC_LEFT_CLIP : 0;
    c->checkpointing = r->checkpointing;
    c->cpu_checkpointing = is_true(r, ZCZ_CPU_CHECKPOINTING);
}

static int settle(struct zc_zero_config *c, struct zcz_read *r, uint32_t ranks, struct zb_err *err)
{
    int rc;

    zc_zero_defaults(&c->options);
    rc = settle_batch(c, r, ranks, err);
    if (rc == 0)
        rc = settle_dtype(c, r, err);
    if (rc == 0)
        rc = settle_optimizer(c, r, err);
    if (rc == 0)
        rc = settle_schedule(c, r, err);
    if (rc == 0)
        rc = settle_zero(c, r, ranks, err);
    if (rc == 0)
        rc = settle_ours(c, r, err);
    if (rc == -ENOMEM)
        (void)zb_fail(err, rc, "a configuration: %m");
    settle_rest(c, r);
    c->lines = r->lines;
    c->nlines = r->nlines;
    return rc;
}

/* Loads a file, or a text if path is NULL. */
static int load(struct zc_zero_config **ret, const char *path, const char *text, size_t bytes,
                uint32_t ranks, char *error, size_t error_bytes)
{
    struct loaded *l = calloc(1, sizeof(*l));
    struct zb_err err = { 0 };
    int rc = !l     ? zb_fail(&err, -ENOMEM, "a configuration: %m")
             : path ? zcz_config_read(&l->read, path, &err)
                    : zcz_config_read_text(&l->read, text, bytes, &err);

    if (rc == 0)
        rc = settle(&l->config, &l->read, ranks, &err);
    if (rc == 0) {
        *ret = &l->config;
        return 0;
    }
    zc_zero_config_free(l ? &l->config : NULL);
    if (error_bytes > 0)
        (void)snprintf(error, error_bytes, "%s", err.text);
    return rc;
}

int zc_zero_config_load(struct zc_zero_config **ret, const char *path, uint32_t ranks, char *error,
                        size_t error_bytes)
{
    return load(ret, path, NULL, 0, ranks, error, error_bytes);
}

int zc_zero_config_parse(struct zc_zero_config **ret, const char *text, size_t bytes,
                         uint32_t ranks, char *error, size_t error_bytes)
{
    return load(ret, NULL, text, bytes, ranks, error, error_bytes);
}

void zc_zero_config_free(struct zc_zero_config *config)
{
    struct loaded *l = zb_container_of(config, struct loaded, config);

    if (!config)
        return;
    zcz_config_read_done(&l->read);
    free(l);
}
