/*
 * DeepSpeed's configuration: every key with right and wrong values, derived settings, the
 * schedules, and the files of tests/configs.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/config/config_priv.h"

#define ROOT ZSHARD_SOURCE_DIR "/"

static char folder[] = "/tmp/zshard-config-XXXXXX";

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    (void)unlink("ds.json");
    return chdir("/") || rmdir(folder);
}

/* Loads a text with ' for ". *ret is NULL if it is refused. */
static int load(const char *text, uint32_t ranks, struct zc_zero_config **ret, char error[256])
{
    FILE *f = fopen("ds.json", "w");

    *ret = NULL;
    error[0] = '\0';
    assert_non_null(f);
    for (; *text; text++)
        (void)fputc(*text == '\'' ? '"' : *text, f);
    assert_int_equal(fclose(f), 0);
    return zc_zero_config_load(ret, "ds.json", ranks, error, 256);
}

/* From memory as from a file: exactly the given number of bytes. */
static void from_memory(void **state)
{
    static const char text[] = "{\"zero_optimization\": {\"stage\": 2}, \"train_batch_size\": 8}{";
    struct zc_zero_config *c = NULL;
    char error[256] = "";

    (void)state;
    assert_int_equal(zc_zero_config_parse(&c, text, sizeof(text) - 2, 2, error, sizeof(error)), 0);
    assert_int_equal(c->options.stage, ZC_STAGE_2);
    assert_int_equal(c->train_batch, 8);
    assert_int_equal(c->nlines, 2);
    zc_zero_config_free(c);
    c = NULL;
    assert_int_equal(zc_zero_config_parse(&c, text, sizeof(text) - 1, 2, error, sizeof(error)),
                     -EINVAL);
    assert_non_null(strstr(error, "'the configuration', line 1: not JSON"));
    assert_int_equal(zc_zero_config_parse(&c, "[]", 2, 2, error, sizeof(error)), -EINVAL);
    assert_int_equal(zc_zero_config_parse(&c, "", 0, 2, NULL, 0), -EINVAL);
    assert_null(c);
}

/* ---- a configuration as text: "name=value" for everything that differs from an empty file's */

struct text {
    char s[1024];
    size_t n;
};

__attribute__((format(printf, 3, 4))) static void say(struct text *t, bool differs, const char *fmt,
                                                      ...)
{
    va_list ap;

    if (!differs)
        return;
    va_start(ap, fmt);
    t->n += (size_t)snprintf(t->s + t->n, sizeof(t->s) - t->n, "%s", t->n ? " " : "");
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, ap);
    va_end(ap);
    assert_true(t->n < sizeof(t->s));
}

#define SAY(member) say(t, (double)a->member != (double)b->member, #member "=%g", (double)a->member)
#define SAY_OPTION(member)                                                        \
    say(t, (double)a->options.member != (double)b->options.member, #member "=%g", \
        (double)a->options.member)

static void describe(struct text *t, const struct zc_zero_config *a, const struct zc_zero_config *b)
{
    *t = (struct text){ .n = 0 };
    SAY(left);
    SAY(train_batch);
    SAY(micro_batch);
    SAY_OPTION(micro_steps);
    SAY(dtype);
    SAY(lr);
    SAY(schedule.kind);
    SAY(schedule.linear);
    SAY(schedule.min_lr);
    say(t, !isnan(a->schedule.max_lr), "schedule.max_lr=%g", a->schedule.max_lr);
    SAY(schedule.min_ratio);
    SAY(schedule.end_ratio);
    SAY(schedule.warmup_steps);
    SAY(schedule.total_steps);
    SAY(loss_scale.dynamic);
    SAY(loss_scale.fixed);
    SAY(loss_scale.power);
    SAY(loss_scale.window);
    SAY(loss_scale.hysteresis);
    SAY(loss_scale.consecutive);
    SAY(loss_scale.min);
    SAY(quantize_frozen);
    SAY(checkpointing);
    SAY(cpu_checkpointing);
    SAY_OPTION(stage);
    SAY_OPTION(offload_param);
    SAY_OPTION(offload_optimizer);
    SAY_OPTION(clip);
    SAY_OPTION(clip_mode);
    SAY_OPTION(clip_tensor_ratio);
    SAY_OPTION(clip_tensor_beta);
    SAY_OPTION(clip_tensor_warmup);
    SAY_OPTION(node_gather);
    SAY_OPTION(moments);
    SAY_OPTION(muon_engine);
    SAY_OPTION(grad_ring);
    SAY_OPTION(grad_ring_keep);
    SAY_OPTION(optimizer);
    SAY_OPTION(beta1);
    SAY_OPTION(beta2);
    SAY_OPTION(eps);
    SAY_OPTION(momentum);
    SAY_OPTION(dampening);
    SAY_OPTION(nesterov);
    SAY_OPTION(lr_decay);
    SAY_OPTION(weight_decay[0]);
    SAY_OPTION(group_ranks);
    SAY_OPTION(persist_elems);
    SAY_OPTION(live_elems);
    SAY_OPTION(reuse_elems);
    SAY_OPTION(prefetch_elems);
    SAY_OPTION(prefetch_units);
    SAY_OPTION(reduce_elems);
    SAY_OPTION(reduce_waits);
    SAY_OPTION(quantize_gather);
}

static void defaults_are_deepspeeds(void **state)
{
    struct zc_zero_config *c;
    char error[256];

    (void)state;
    assert_int_equal(load("{}", 4, &c, error), 0);
    assert_int_equal(c->nlines, 0);
    assert_int_equal(c->left, ZC_LEFT_BATCH | ZC_LEFT_MICRO_BATCH | ZC_LEFT_MICRO_STEPS |
                                  ZC_LEFT_OPTIMIZER | ZC_LEFT_LR | ZC_LEFT_WEIGHT_DECAY);
    assert_int_equal(c->options.stage, ZC_STAGE_DDP);
    assert_int_equal(c->options.micro_steps, 1);
    assert_int_equal(c->options.reduce_elems, 500000000);
    assert_true(c->options.reduce_waits && c->options.clip == 1.0);
    assert_int_equal(c->dtype, ZC_F32);
    assert_int_equal(c->options.optimizer, ZC_ADAMW);
    assert_true(c->lr == 1e-3 && c->options.beta1 == 0.9 && c->options.beta2 == 0.999 &&
                c->options.eps == 1e-8 && c->options.weight_decay[0] == 0);
    assert_int_equal(c->schedule.kind, ZC_LR_CONSTANT);
    assert_false(c->options.loss_scale.dynamic);
    assert_true(c->loss_scale.dynamic && c->loss_scale.power == 16 && c->loss_scale.min == 1);
    assert_int_equal(c->options.offload_param, ZC_ZERO_NONE);
    zc_zero_config_free(c);
    zc_zero_config_free(NULL);
}

/* The differences of a file from an empty one; "!": how the error message of a refusal begins. For
 * 4 ranks. */
#define OPT(type, params) "{'optimizer': {'type': '" type "', 'params': {" params "}}}"
#define SCHED(type, params)                                                              \
    "{'optimizer': {'type': 'AdamW', 'params': {'lr': 2}}, 'scheduler': {'type': '" type \
    "', 'params': {" params "}}}"
#define ZERO(more) "{'zero_optimization': {'stage': 3" more "}}"
#define FP16(more) "{'fp16': {'enabled': true" more "}}"

#define STAGE_3                                                                             \
    "stage=3 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 prefetch_elems=5e+07 " \
    "reduce_waits=0"
#define LEFT_BATCHES   "left=7"
#define OPTIMIZER_LEFT "left=112"

static const struct {
    const char *json, *want;
} cases[] = {
    /* batches: 1, 2, 4 by default; 112 is the optimizer */
    { "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, "
      "'gradient_accumulation_steps': 4}",
      OPTIMIZER_LEFT " train_batch=32 micro_batch=2 micro_steps=4" },
    { "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2}",
      OPTIMIZER_LEFT " train_batch=32 micro_batch=2 micro_steps=4" },
    { "{'train_batch_size': 32, 'gradient_accumulation_steps': 2}",
      OPTIMIZER_LEFT " train_batch=32 micro_batch=4 micro_steps=2" },
    { "{'train_micro_batch_size_per_gpu': 3, 'gradient_accumulation_steps': 2}",
      OPTIMIZER_LEFT " train_batch=24 micro_batch=3 micro_steps=2" },
    { "{'train_batch_size': 32}", OPTIMIZER_LEFT " train_batch=32 micro_batch=8" },
    { "{'train_micro_batch_size_per_gpu': 3}", OPTIMIZER_LEFT " train_batch=12 micro_batch=3" },
    { "{'gradient_accumulation_steps': 2}", "left=115 micro_steps=2" },
    { "{'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto', "
      "'gradient_accumulation_steps': 'auto'}",
      "" },
    { "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 'auto'}",
      "left=118 train_batch=32" },
    { "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, "
      "'gradient_accumulation_steps': 'auto'}",
      OPTIMIZER_LEFT " train_batch=32 micro_batch=2 micro_steps=4" },
    { "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, "
      "'gradient_accumulation_steps': 3}",
      "!train_batch_size: 32 is not train_micro_batch_size_per_gpu 2 times" },
    { "{'train_batch_size': 33, 'train_micro_batch_size_per_gpu': 2}",
      "!train_batch_size: 33 does not divide into train_micro_batch_size_per_gpu 2 on each of 4" },
    { "{'train_batch_size': 33}", "!train_batch_size: 33 does not divide into gradient_acc" },
    { "{'train_micro_batch_size_per_gpu': 65536, 'gradient_accumulation_steps': 65537}",
      "!train_batch_size: train_micro_batch_size_per_gpu 65536 times gradient_accumulation_steps "
      "65537 times 4 ranks is more than 4294967295" },
    { "{'train_micro_batch_size_per_gpu': 4294967295, 'gradient_accumulation_steps': 4294967295, "
      "'train_batch_size': 'auto'}",
      "!train_batch_size: train_micro" },
    { "{'train_batch_size': 0}", "!train_batch_size: is 0, and must be from 1" },
    { "{'train_batch_size': 1.5}", "!train_batch_size: is 1.5, and must be a whole number" },
    { "{'train_batch_size': '32'}", "!train_batch_size: is \"32\", and must be a whole number" },
    { "{'train_micro_batch_size_per_gpu': -1}", "!train_micro_batch_size_per_gpu: is -1" },
    { "{'gradient_accumulation_steps': true}", "!gradient_accumulation_steps: is true, and must" },
    /* clipping and dtypes */
    { "{'gradient_clipping': 0}", "clip=0" },
    { "{'gradient_clipping': 0.5}", "clip=0.5" },
    { "{'gradient_clipping': 'auto'}", "left=247" },
    { "{'gradient_clipping': -1}", "!gradient_clipping: is -1, and must be from 0" },
    /* keys of ours */
    { "{'zshard': {'clip_mode': 'none', 'node_gather': 'auto'}}", "clip_mode=2 node_gather=2" },
    { "{'zshard': {'clip_mode': 'tensor', 'clip_tensor_ratio': 1.2, 'clip_tensor_beta': 0.9, "
      "'clip_tensor_warmup': 7}}",
      "clip_mode=1 clip_tensor_ratio=1.2 clip_tensor_beta=0.9 clip_tensor_warmup=7" },
    { "{'zshard': {'moments': '8bit-lo'}}", "moments=4" },
    { "{'zshard': {'moments': 'int4'}}", "!zshard.moments: is 'int4'" },
    { "{'zshard': {'muon_engine': 'gpu-bf16'}}", "muon_engine=2" },
    { "{'zshard': {'muon_engine': 'tpu'}}", "!zshard.muon_engine: is 'tpu'" },
    { "{'zshard': {'grad_ring': true, 'grad_ring_keep': 40}}", "grad_ring=1 grad_ring_keep=40" },
    { "{'zshard': {'grad_ring': true, 'grad_ring_keep': 101}}", "!zshard.grad_ring_keep: is 101" },
    { "{'zshard': {'clip_mode': 'blocks'}}", "!zshard.clip_mode: is 'blocks'" },
    { "{'zshard': {'clip_mode': 'tensor', 'clip_tensor_ratio': 0}}",
      "!zshard.clip_tensor_ratio: is 0, and must be above 0" },
    { "{'zshard': {'clip_mode': 'tensor', 'clip_tensor_beta': 1}}",
      "!zshard.clip_tensor_beta: is 1, and must be below 1" },
    { "{'zshard': {'clip': 1}}", "!zshard.clip: no such key; did you mean 'clip_mode'?" },
    { "{'bf16': {'enabled': true}}", "dtype=2" },
    { "{'bfloat16': {'enabled': true}}", "dtype=2" },
    { "{'bf16': {'enabled': false}}", "" },
    { "{'bf16': {'enabled': 'auto'}}", "left=127" },
    { "{'fp16': {'enabled': 'auto'}, 'bf16': {'enabled': true}}", "dtype=2" },
    { "{'bf16': {'enabled': 1}}", "!bf16.enabled: is 1, and must be true or false" },
    { "{'bf16': true}", "!bf16: is true, and must be an object" },
    { "{'bf16': {'enabled': true}, 'fp16': {'enabled': true}}", "!fp16.enabled: bf16 is enabled" },
    { "{'bf16': {'bf16_master_weights_and_grads': true}}", "!bf16.bf16_master_weights_and_grads:" },
    { FP16(""), "dtype=3" },
    { FP16(", 'loss_scale': 128"), "dtype=3 loss_scale.dynamic=0 loss_scale.fixed=128" },
    { FP16(", 'initial_scale_power': 32, 'loss_scale_window': 500, 'hysteresis': 4, "
           "'consecutive_hysteresis': true, 'min_loss_scale': 2"),
      "dtype=3 loss_scale.power=32 loss_scale.window=500 loss_scale.hysteresis=4 "
      "loss_scale.consecutive=1 loss_scale.min=2" },
    { "{'fp16': {'enabled': 'auto', 'loss_scale': 0, 'initial_scale_power': 12}}",
      "left=127 loss_scale.power=12" },
    { FP16(", 'loss_scale': -1"), "!fp16.loss_scale: is -1, and must be from 0" },
    { FP16(", 'initial_scale_power': 200"), "!fp16.initial_scale_power: is 200" },
    { FP16(", 'loss_scale_window': 0"), "!fp16.loss_scale_window: is 0" },
    { FP16(", 'hysteresis': 0"), "!fp16.hysteresis: is 0, and must be from 1" },
    { FP16(", 'min_loss_scale': 0"), "!fp16.min_loss_scale: is 0" },
    { FP16(", 'min_loss_scale': 8, 'initial_scale_power': 2"), "!fp16.min_loss_scale: 8, and the" },
    { FP16(", 'consecutive_hysteresis': 2"), "!fp16.consecutive_hysteresis: is 2" },
    { FP16(", 'fp16_master_weights_and_grads': true"), "!fp16.fp16_master_weights_and_grads: m" },
    { "{'data_types': {'grad_accum_dtype': 'fp32'}, 'communication_data_type': 'fp32'}", "" },
    { "{'data_types': {'grad_accum_dtype': 'fp8'}}", "!data_types.grad_accum_dtype: is 'fp8'" },
    { "{'communication_data_type': 16}", "!communication_data_type: is 16, and must be a word" },
    /* optimizers: 7 is the default batch */
    { OPT("AdamW", ""), LEFT_BATCHES },
    { OPT("adamw", "'lr': 3e-5, 'betas': [0.8, 0.95], 'eps': 1e-6, 'weight_decay': 0.1"),
      LEFT_BATCHES " lr=3e-05 beta1=0.8 beta2=0.95 eps=1e-06 weight_decay[0]=0.1" },
    { OPT("AdamW", "'torch_adam': true"), LEFT_BATCHES " weight_decay[0]=0.01" },
    { OPT("Adam", ""), LEFT_BATCHES },
    { OPT("Adam", "'adam_w_mode': true"), LEFT_BATCHES },
    { OPT("Adam", "'adam_w_mode': false"), LEFT_BATCHES " optimizer=2" },
    { OPT("AdamW", "'adam_w_mode': false"), LEFT_BATCHES },
    { OPT("Lion", "'lr': 1e-4"), LEFT_BATCHES " lr=0.0001 optimizer=3 beta2=0.99" },
    { OPT("SGD", "'lr': 0.1, 'momentum': 0.9, 'nesterov': true"),
      LEFT_BATCHES " lr=0.1 optimizer=4 momentum=0.9 nesterov=1" },
    { OPT("SGD", "'momentum': 0.9, 'dampening': 0.1"),
      LEFT_BATCHES " optimizer=4 momentum=0.9 dampening=0.1" },
    { OPT("Adagrad", "'lr_decay': 0.1"),
      LEFT_BATCHES " lr=0.01 optimizer=5 eps=1e-10 lr_decay=0.1" },
    { OPT("AdamW", "'lr': 'auto', 'betas': 'auto', 'eps': 'auto', 'weight_decay': 'auto'"),
      "left=103" },
    { OPT("Muon", "'lr': 0.02, 'weight_decay': 0.1"),
      LEFT_BATCHES " lr=0.02 optimizer=6 momentum=0.95 nesterov=1 weight_decay[0]=0.1" },
    { OPT("Muon", "'lr': 0.02, 'momentum': 0.9, 'betas': [0.8, 0.9], 'eps': 1e-6"),
      LEFT_BATCHES " lr=0.02 optimizer=6 beta1=0.8 beta2=0.9 eps=1e-06 momentum=0.9 nesterov=1" },
    { OPT("Muon", ""), "!optimizer.params.lr: is missing" },
    { OPT("Muon", "'lr': 1, 'muon_lr': 0.02"), "!optimizer.params.muon_lr: matrices and all" },
    { OPT("Muon", "'lr': 1, 'dampening': 0.1"), "!optimizer.params.dampening: Muon has none" },
    { OPT("Lamb", ""), "!optimizer.type: is 'Lamb', and must be one of: Adam AdamW Lion" },
    { "{'optimizer': {'params': {'lr': 1}}}", "!optimizer.type: is missing" },
    { "{'optimizer': 'AdamW'}", "!optimizer: is \"AdamW\", and must be an object" },
    { OPT("AdamW", "'momentum': 0.9"), "!optimizer.params.momentum: AdamW has none" },
    { OPT("SGD", "'betas': [0.9, 0.9]"), "!optimizer.params.betas: SGD has none" },
    { OPT("Lion", "'eps': 1e-8"), "!optimizer.params.eps: Lion has none" },
    { OPT("AdamW", "'lr_decay': 0.9"), "!optimizer.params.lr_decay: AdamW has none" },
    { OPT("AdamW", "'betas': [0.9]"), "!optimizer.params.betas: is [0.9], and must be two" },
    { OPT("AdamW", "'betas': [0.9, 2]"), "!optimizer.params.betas: is 2, and must be from 0 to 1" },
    { OPT("AdamW", "'betas': [0.9, 1.0]"),
      "!optimizer.params.betas: is [0.9, 1], but both must be below 1" },
    { OPT("AdamW", "'betas': [0.9, '2']"), "!optimizer.params.betas: is [0.9" },
    { OPT("AdamW", "'lr': '3e-5'"), "!optimizer.params.lr: is \"3e-5\", and must be a number" },
    { OPT("AdamW", "'amsgrad': true"),
      "!optimizer.params.amsgrad: it would change the training result" },
    { OPT("AdamW", "'amsgrad': false, 'bias_correction': true"), LEFT_BATCHES },
    { OPT("AdamW", "'bias_correction': false"), "!optimizer.params.bias_correction: it would" },
    { OPT("AdamW", "'max_grad_norm': 1"), "!optimizer.params.max_grad_norm: no such key" },
    { OPT("SGD", "'nesterov': true"), "!optimizer.params.nesterov: needs momentum" },
    /* schedules */
    { SCHED("WarmupLR", ""),
      LEFT_BATCHES " lr=2 schedule.kind=1 schedule.end_ratio=0.0001 schedule.warmup_steps=1000" },
    { SCHED("WarmupLR", "'warmup_min_lr': 0.1, 'warmup_max_lr': 1, 'warmup_num_steps': 10, "
                        "'warmup_type': 'linear'"),
      LEFT_BATCHES " lr=2 schedule.kind=1 schedule.linear=1 schedule.min_lr=0.1 "
                   "schedule.max_lr=1 schedule.end_ratio=0.0001 schedule.warmup_steps=10" },
    { SCHED("WarmupDecayLR", "'total_num_steps': 50, 'warmup_num_steps': 1"),
      LEFT_BATCHES " lr=2 schedule.kind=2 schedule.max_lr=0.001 schedule.end_ratio=0.0001 "
                   "schedule.warmup_steps=2 schedule.total_steps=50" },
    { SCHED("WarmupDecayLR", "'total_num_steps': 'auto', 'warmup_num_steps': 'auto', "
                             "'warmup_min_lr': 'auto', 'warmup_max_lr': 'auto'"),
      "left=263 lr=2 schedule.kind=2 schedule.end_ratio=0.0001 schedule.warmup_steps=2" },
    { SCHED("WarmupCosineLR", "'total_num_steps': 50, 'warmup_min_ratio': 0.1, "
                              "'cos_min_ratio': 0.2, 'warmup_num_steps': 5"),
      LEFT_BATCHES " lr=2 schedule.kind=3 schedule.min_ratio=0.1 schedule.end_ratio=0.2 "
                   "schedule.warmup_steps=5 schedule.total_steps=50" },
    { SCHED("WarmupDecayLR", ""), "!scheduler.params.total_num_steps: is missing" },
    { SCHED("WarmupCosineLR", ""), "!scheduler.params.total_num_steps: is missing" },
    { SCHED("WarmupLR", "'total_num_steps': 9"), "!scheduler.params.total_num_steps: WarmupLR" },
    { SCHED("WarmupCosineLR", "'total_num_steps': 9, 'warmup_max_lr': 1"),
      "!scheduler.params.warmup_max_lr: WarmupCosineLR has none" },
    { SCHED("WarmupLR", "'cos_min_ratio': 0.1"), "!scheduler.params.cos_min_ratio: WarmupLR has" },
    { SCHED("OneCycle", ""), "!scheduler.type: is 'OneCycle', and must be one of: WarmupLR" },
    { SCHED("WarmupLR", "'warmup_type': 'square'"), "!scheduler.params.warmup_type: is 'square'" },
    { SCHED("WarmupLR", "'warmup_max_lr': [1, 2]"), "!scheduler.params.warmup_max_lr: is [1, 2]" },
    { "{'scheduler': {}}", "!scheduler.type: is missing" },
    /* ZeRO */
    { "{'zero_optimization': {}}", "" },
    { "{'zero_optimization': {'stage': 1}}", "stage=1" },
    { "{'zero_optimization': {'stage': 2, 'overlap_comm': true, 'reduce_bucket_size': 2e8}}",
      "stage=2 reduce_elems=2e+08 reduce_waits=0" },
    { ZERO(""), STAGE_3 },
    { ZERO(", 'overlap_comm': false"),
      "stage=3 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 prefetch_elems=5e+07" },
    { ZERO(", 'stage3_prefetch_bucket_size': 1e6, 'stage3_param_persistence_threshold': 1e4, "
           "'stage3_max_live_parameters': 1e7, 'stage3_max_reuse_distance': 0"),
      "stage=3 persist_elems=10000 live_elems=1e+07 prefetch_elems=1e+06 reduce_waits=0" },
    { ZERO(", 'stage3_max_live_parameters': 0"), /* nothing is kept; our 0 means "no ceiling" */
      "stage=3 persist_elems=100000 live_elems=1 reuse_elems=1e+09 prefetch_elems=5e+07 "
      "reduce_waits=0" },
    { ZERO(", 'stage3_prefetch_bucket_size': 0"),
      "stage=3 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 prefetch_units=0 "
      "reduce_waits=0" },
    { ZERO(", 'stage3_prefetch_bucket_size': 'auto', 'stage3_param_persistence_threshold': 'auto', "
           "'reduce_bucket_size': 'auto'"),
      "stage=3 live_elems=1e+09 reuse_elems=1e+09 reduce_elems=0 reduce_waits=0" },
    { ZERO(", 'prefetch_bucket_size': 7, 'param_persistence_threshold': 6, "
           "'max_live_parameters': 5, 'max_reuse_distance': 4"),
      "stage=3 persist_elems=6 live_elems=5 reuse_elems=4 prefetch_elems=7 reduce_waits=0" },
    { ZERO(", 'zero_hpz_partition_size': 2"),
      "stage=3 group_ranks=2 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 "
      "prefetch_elems=5e+07 reduce_waits=0" },
    { ZERO(", 'mics_shard_size': 4"),
      "stage=3 group_ranks=4 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 "
      "prefetch_elems=5e+07 reduce_waits=0" },
    { ZERO(", 'zero_hpz_partition_size': 1, 'mics_shard_size': -1"), STAGE_3 },
    { ZERO(", 'zero_quantized_weights': true"), STAGE_3 " quantize_gather=1" },
    { ZERO(", 'zero_quantized_nontrainable_weights': true"), "quantize_frozen=1 " STAGE_3 },
    { ZERO(", 'zero_quantized_nontrainable_weights': false"), STAGE_3 },
    { "{'zero_optimization': {'stage': 2, 'zero_quantized_nontrainable_weights': true}}",
      "stage=2" },
    { ZERO(", 'zero_quantized_nontrainable_weights': 1"),
      "!zero_optimization.zero_quantized_nontrainable_weights: is 1" },
    { ZERO(", 'offload_param': {'device': 'nvme', 'nvme_path': '/x', 'pin_memory': true, "
           "'buffer_count': 5, 'buffer_size': 1e8, 'max_in_cpu': 1e9}, 'offload_optimizer': "
           "{'device': 'cpu', 'pin_memory': true, 'buffer_count': 4, 'fast_init': false}"),
      "stage=3 offload_param=2 offload_optimizer=1 persist_elems=100000 live_elems=1e+09 "
      "reuse_elems=1e+09 prefetch_elems=5e+07 reduce_waits=0" },
    { ZERO(", 'offload_param': null, 'offload_optimizer': {'device': 'none'}"), STAGE_3 },
    { ZERO(", 'cpu_offload': true, 'cpu_offload_param': true"),
      "stage=3 offload_param=1 offload_optimizer=1 persist_elems=100000 live_elems=1e+09 "
      "reuse_elems=1e+09 prefetch_elems=5e+07 reduce_waits=0" },
    { "{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'nvme'}}}",
      "stage=2 offload_optimizer=2" },
    { "{'zero_optimization': {'stage': 1, 'offload_param': {'device': 'cpu'}}}",
      "!zero_optimization.offload_param.device: parameters are offloaded in stage 3 only, but this "
      "is "
      "stage 1" },
    { "{'zero_optimization': {'offload_optimizer': {'device': 'cpu'}}}",
      "!zero_optimization.offload_optimizer.device: the optimizer is" },
    { ZERO(", 'offload_param': {'device': 'disk'}"),
      "!zero_optimization.offload_param.device: is 'disk', and must be one of: none cpu nvme" },
    { ZERO(", 'offload_param': 'cpu'"), "!zero_optimization.offload_param: is \"cpu\", and" },
    { ZERO(", 'offload_optimizer': {'devise': 'cpu'}"),
      "!zero_optimization.offload_optimizer.devise: no such key" },
    { ZERO(", 'offload_optimizer': {'pin_memory': 'yes'}"),
      "!zero_optimization.offload_optimizer.pin_memory: is \"yes\"" },
    { "{'zero_optimization': {'stage': 4}}",
      "!zero_optimization.stage: is 4, and must be from 0 to 3" },
    { "{'zero_optimization': {'stage': '3'}}",
      "!zero_optimization.stage: is \"3\", and must be a" },
    { "{'zero_optimization': true}", "!zero_optimization: is true, and must be an object" },
    { ZERO(", 'reduce_bucket_size': -1"), "!zero_optimization.reduce_bucket_size: is -1" },
    { ZERO(", 'overlap_comm': 'no'"), "!zero_optimization.overlap_comm: is \"no\"" },
    { ZERO(", 'zero_hpz_partition_size': 3"),
      "!zero_optimization.zero_hpz_partition_size: groups of 3 do not divide 4 ranks" },
    { ZERO(", 'zero_hpz_partition_size': 2, 'mics_shard_size': 4"),
      "!zero_optimization.mics_shard_size: 4, and zero_hpz_partition_size is 2" },
    { "{'zero_optimization': {'stage': 2, 'zero_hpz_partition_size': 2}}",
      "!zero_optimization.zero_hpz_partition_size: applies to stage 3, but this is stage 2" },
    { ZERO(", 'zenflow': {'topk_ratio': 0.1, 'enabled': true}"), "!zero_optimization.zenflow: it" },
    { ZERO(", 'stage3_prefetch_size': 1"), "!zero_optimization.stage3_prefetch_size: no such key" },
    /* checkpointing */
    { "{'activation_checkpointing': {}}", "checkpointing=1" },
    { "{'activation_checkpointing': {'partition_activations': true, 'cpu_checkpointing': true, "
      "'number_checkpoints': 4, 'contiguous_memory_optimization': false, 'profile': false, "
      "'synchronize_checkpoint_boundary': false}}",
      "checkpointing=1 cpu_checkpointing=1" },
    { "{'activation_checkpointing': {'number_checkpoints': 1.5}}",
      "!activation_checkpointing.number_checkpoints: is 1.5, and must be a whole number" },
    /* the rest */
    { "{'steps_per_print': 2000, 'wall_clock_breakdown': false, 'aio': {'block_size': 1048576}}",
      "" },
    { "{'aio': {'block_sise': 1}}", "!aio.block_sise: no such key" },
    { "{'amp': {'enabled': false}}", "" },
    { "{'amp': {'enabled': true}}", "!amp: Apex is not supported" },
    { "{'elasticity': {'enabled': true}}", "!elasticity: it would change the batch" },
    { "{'data_efficiency': {'data_sampling': {'enabled': true}}}", "!data_efficiency: it would" },
    { "{'sparse_attention': {'mode': 'fixed'}}", "!sparse_attention: it would" },
    { "{'gradient_allreduce_op': 'mean'}", "" },
    { "{'gradient_allreduce_op': 'sum'}", "!gradient_allreduce_op: gradients are averaged" },
    { "{'tensor_parallel': {'autotp_size': 1}}", "" },
    { "{'sequence_parallel_size': 2}", "!sequence_parallel_size: sequences are not split" },
    { "{'zero': {'stage': 3}}", "!zero: no such key" },
    { "{'zero_optimisation': {}}",
      "!zero_optimisation: no such key; did you mean 'zero_optimization'?" },
    { ZERO(", 'stgae': 1"), "!zero_optimization.stgae: no such key; did you mean 'stage'?" },
    { "{'bf16': {'enabled': true}, 'bf16': {'enabled': false}}",
      "!'ds.json', line 1: not JSON: dup" },
    { "{'zero_optimization': {'stage': 3, 'stage': 2}}", "!'ds.json', line 1: not JSON: dup" },
    { "{'bf16': {'enabled': true}", "!'ds.json', line 1: not JSON" },
    /* two names of one key */
    { "{'bf16': {'enabled': true}, 'bfloat16': {'enabled': false}}",
      "!bfloat16.enabled: is false, and bf16.enabled, another name of it, is true" },
    { "{'bfloat16': {'enabled': true}, 'bf16': {'enabled': 'auto'}}",
      "!bf16.enabled: is \"auto\", and bfloat16.enabled, another name of it, is true" },
    { "{'bf16': {'enabled': true}, 'bfloat16': {'enabled': true}}", "dtype=2" },
    { "{'bf16': {'enabled': 'auto'}, 'bfloat16': {'enabled': 'auto'}}", "left=127" },
    { "{'bf16': {'enabled': true}, 'bfloat16': {'enabled': null}}", "dtype=2" },
    { "{'bf16': {'check_overflow': true}, 'bfloat16': {'check_overflow': false}}", "" },
    { ZERO(", 'prefetch_bucket_size': 1, 'stage3_prefetch_bucket_size': 2"),
      "!zero_optimization.stage3_prefetch_bucket_size: is 2, and "
      "zero_optimization.prefetch_bucket_size, another name of it, is 1" },
    { ZERO(", 'stage3_param_persistence_threshold': 1, 'param_persistence_threshold': 'auto'"),
      "!zero_optimization.param_persistence_threshold: is \"auto\", and "
      "zero_optimization.stage3_param_persistence_threshold, another name of it, is 1" },
    { ZERO(", 'stage3_max_live_parameters': 1, 'max_live_parameters': 0"),
      "!zero_optimization.max_live_parameters: is 0, and " },
    { ZERO(", 'stage3_max_reuse_distance': 1, 'max_reuse_distance': 0"),
      "!zero_optimization.max_reuse_distance: is 0, and " },
    { ZERO(", 'stage3_prefetch_bucket_size': 5e7, 'prefetch_bucket_size': 50000000"), STAGE_3 },
    { ZERO(", 'offload_param': {'device': 'nvme'}, 'cpu_offload_param': true"),
      "!zero_optimization.offload_param.device: is \"nvme\", and "
      "zero_optimization.cpu_offload_param, its old form, is true" },
    { ZERO(", 'cpu_offload': false, 'offload_optimizer': {'device': 'cpu'}"),
      "!zero_optimization.offload_optimizer.device: is \"cpu\", and "
      "zero_optimization.cpu_offload, its old form, is false" },
    { ZERO(", 'cpu_offload': true, 'offload_optimizer': {'device': 'cpu'}"),
      "stage=3 offload_optimizer=1 persist_elems=100000 live_elems=1e+09 reuse_elems=1e+09 "
      "prefetch_elems=5e+07 reduce_waits=0" },
    { ZERO(", 'cpu_offload': true, 'offload_optimizer': {'device': 'none'}"),
      "!zero_optimization.offload_optimizer.device: is \"none\", and " },
    { "[]", "!'ds.json': not a JSON object" },
};

static void every_key(void **state)
{
    struct zc_zero_config *empty, *c;
    char error[256];

    (void)state;
    assert_int_equal(load("{}", 4, &empty, error), 0);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        const char *want = cases[i].want;
        struct text t = { .n = 0 };
        int rc = load(cases[i].json, 4, &c, error);

        if (*want == '!') {
            if (rc != -EINVAL || c || strncmp(error, want + 1, strlen(want + 1)) != 0)
                fail_msg("%s: %d '%s', not '%s'", cases[i].json, rc, error, want);
            continue;
        }
        if (rc != 0)
            fail_msg("%s: %d '%s'", cases[i].json, rc, error);
        describe(&t, c, empty);
        if (strncmp(want, "dtype=3", 7) == 0) { /* the engine's options have the scale, too */
            assert_true(c->options.loss_scale.dynamic == c->loss_scale.dynamic &&
                        c->options.loss_scale.fixed == c->loss_scale.fixed &&
                        c->options.loss_scale.window == c->loss_scale.window);
        }
        if (strcmp(t.s, want) != 0)
            fail_msg("%s:\n    '%s', not\n    '%s'", cases[i].json, t.s, want);
        zc_zero_config_free(c);
    }
    zc_zero_config_free(empty);
}

/* ---- lines */

static const struct {
    const char *json, *key, *value;
    bool ignored;
    const char *text;
} lines[] = {
    { ZERO(""), "zero_optimization.stage", "3", false, "which model states are partitioned" },
    { ZERO(", 'sub_group_size': 1000"), "zero_optimization.sub_group_size", "1000", true,
      "page by page" },
    { ZERO(", 'sub_group_size': 'auto'"), "zero_optimization.sub_group_size", "\"auto\"", true,
      "page by page" },
    { "{'zero_optimization': {'stage': 2, 'stage3_max_live_parameters': 1}}",
      "zero_optimization.stage3_max_live_parameters", "1", true, "it applies to stage 3 only" },
    { "{'fp16': {'enabled': false, 'hysteresis': 2}}", "fp16.hysteresis", "2", true,
      "fp16 is not enabled" },
    { FP16(", 'loss_scale': 8, 'hysteresis': 2"), "fp16.hysteresis", "2", true, "is static" },
    { FP16(", 'hysteresis': 2"), "fp16.hysteresis", "2", false, "overflows until" },
    { "{'fp16': {'enabled': 'auto', 'hysteresis': 2}}", "fp16.hysteresis", "2", false,
      "overflows" },
    { "{'fp16': {'enabled': 'auto'}}", "fp16.enabled", "\"auto\"", false, "left to the trainer" },
    { ZERO(", 'reduce_bucket_size': 'auto'"), "zero_optimization.reduce_bucket_size", "\"auto\"",
      false, "two units" },
    { ZERO(", 'overlap_comm': 'auto'"), "zero_optimization.overlap_comm", "\"auto\"", false,
      "DeepSpeed's default" },
    { "{'data_types': {'grad_accum_dtype': 'bf16'}}", "data_types.grad_accum_dtype", "\"bf16\"",
      true, "added in fp32" },
    { "{'communication_data_type': 'fp32', 'bf16': {'enabled': true}}", "communication_data_type",
      "\"fp32\"", true, "in the dtype of the parameters: results differ in rounding" },
    { "{'communication_data_type': 'fp32', 'fp16': {'enabled': true}}", "communication_data_type",
      "\"fp32\"", true, "results differ in rounding" },
    { "{'activation_checkpointing': {'partition_activations': true}}",
      "activation_checkpointing.partition_activations", "true", true, "nothing to partition" },
    { "{'activation_checkpointing': {'number_checkpoints': 4}}",
      "activation_checkpointing.number_checkpoints", "4", true, "for each block" },
    { "{'scheduler': {'type': 'WarmupDecayLR', 'params': {'warmup_num_steps': 100, "
      "'total_num_steps': 50}}}",
      "scheduler.params.total_num_steps", "50", false, "warning: less than warmup_num_steps 100" },
    { "{'communication_data_type': 'bf16', 'bf16': {'enabled': true}}", "communication_data_type",
      "\"bf16\"", false, "gradients are exchanged in" },
    { OPT("AdamW", "'adam_w_mode': false"), "optimizer.params.adam_w_mode", "false", true,
      "AdamW is AdamW" },
    { "{'amp': {'enabled': false, 'opt_level': 'a text that is long, to be cut somewhere'}}", "amp",
      "{\"enabled\": false, \"opt_level\": \"a t...", true, "it is off" },
    { "{'zero_optimization': {'stage': 2, 'zero_quantized_nontrainable_weights': true}}",
      "zero_optimization.zero_quantized_nontrainable_weights", "true", true,
      "it applies to stage 3 only" },
    { ZERO(", 'zero_quantized_gradients': true"), "zero_optimization.zero_quantized_gradients",
      "true", true, "exchanged in the dtype" },
};

static void every_key_has_a_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lines); i++) {
        const struct zc_config_line *found = NULL;
        struct zc_zero_config *c;
        char error[256];

        assert_int_equal(load(lines[i].json, 4, &c, error), 0);
        for (size_t k = 0; k < c->nlines; k++)
            found = strcmp(c->lines[k].key, lines[i].key) == 0 ? &c->lines[k] : found;
        if (!found)
            fail_msg("%s: no line for %s", lines[i].json, lines[i].key);
        if (found->ignored != lines[i].ignored || !strstr(found->text, lines[i].text) ||
            strcmp(found->value, lines[i].value) != 0)
            fail_msg("%s: '%s' %d '%s'", lines[i].json, found->value, found->ignored, found->text);
        zc_zero_config_free(c);
    }
}

/* ---- the schedules, calculated by hand from DeepSpeed's formulas, for 10 steps */

#define LOG_4(n) 0.5 * (n) /* log(x) / log(4) for x = 1, 2, 4: n = 0, 1, 2 */

static const struct {
    const char *name;
    struct zc_lr_schedule schedule;
    double lrs[10];
} schedules[] = {
    { "constant", { .kind = ZC_LR_CONSTANT }, { 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 } },
    { "warm-up, logarithmic",
      { .kind = ZC_LR_WARMUP, .min_lr = 0, .max_lr = 1, .warmup_steps = 4 },
      { 0, 0, LOG_4(1), 0.79248125036057809, LOG_4(2), 1, 1, 1, 1, 1 } },
    { "warm-up, linear, to the optimizer's",
      { .kind = ZC_LR_WARMUP, .linear = true, .min_lr = 1, .max_lr = NAN, .warmup_steps = 4 },
      { 1, 1, 1.25, 1.5, 1.75, 2, 2, 2, 2, 2 } },
    { "warm-up of nothing takes two",
      { .kind = ZC_LR_WARMUP, .linear = true, .max_lr = 1, .warmup_steps = 0 },
      { 0, 0, 0.5, 1, 1, 1, 1, 1, 1, 1 } },
    { "decay",
      { .kind = ZC_LR_WARMUP_DECAY,
        .linear = true,
        .max_lr = 1,
        .warmup_steps = 4,
        .total_steps = 8 },
      { 0, 0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25, 0 } },
    { "decay within the warm-up",
      { .kind = ZC_LR_WARMUP_DECAY,
        .linear = true,
        .max_lr = 1,
        .warmup_steps = 4,
        .total_steps = 2 },
      { 0, 0, 0.25, 0.5, 0.75, 0, 0, 0, 0, 0 } },
    { "cosine",
      { .kind = ZC_LR_WARMUP_COSINE,
        .linear = true,
        .max_lr = NAN,
        .min_ratio = 0.5,
        .end_ratio = 0.1,
        .warmup_steps = 4,
        .total_steps = 8 },
      { 0, 1, 1.25, 1.5, 1.75, 1.7363961030678928, 1.1, 0.46360389693210720, 0.2, 0.2 } },
};

static void learning_rates(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(schedules); i++)
        for (uint64_t n = 0; n < 10; n++) {
            double lr = zc_lr_at(&schedules[i].schedule, 2, n);

            if (!(fabs(lr - schedules[i].lrs[n]) <= 1e-15 * 4))
                fail_msg("%s: behind %d steps %.17g, not %.17g", schedules[i].name, (int)n, lr,
                         schedules[i].lrs[n]);
        }
}

/* ---- typical files */

static const struct {
    const char *name, *want; /* differences from an empty one, for 2 ranks; or the key's path */
} files[] = {
#define STUDY "train_batch=12 micro_batch=3 micro_steps=2"
    { "stage1", STUDY " dtype=2 stage=1 weight_decay[0]=0.01" },
    { "stage2", STUDY " dtype=2 stage=2 weight_decay[0]=0.01 reduce_elems=2e+08 reduce_waits=0" },
    { "stage2_offload", STUDY " dtype=2 stage=2 offload_optimizer=1 "
                              "weight_decay[0]=0.01 reduce_elems=2e+08 reduce_waits=0" },
    { "stage3", STUDY " dtype=2 stage=3 weight_decay[0]=0.01 persist_elems=100000 "
                      "live_elems=1e+09 reuse_elems=1e+09 prefetch_elems=5e+07 reduce_waits=0" },
    { "stage3_offload", STUDY " dtype=2 stage=3 offload_param=1 offload_optimizer=1 "
                              "weight_decay[0]=0.01 live_elems=1e+09 reuse_elems=1e+09 "
                              "reduce_elems=0 reduce_waits=0" },
    { "stage3_fp16", STUDY " dtype=3 stage=3 weight_decay[0]=0.01 persist_elems=100000 "
                           "live_elems=1e+09 reuse_elems=1e+09 prefetch_elems=5e+07 "
                           "reduce_waits=0" },
    { "stage3_nvme", STUDY " dtype=2 stage=3 offload_param=2 offload_optimizer=2 "
                           "weight_decay[0]=0.01 persist_elems=100000 live_elems=1e+09 "
                           "reuse_elems=1e+09 prefetch_elems=5e+07 reduce_waits=0" },
    { "scheduler", STUDY " dtype=2 lr=0.002 schedule.kind=2 schedule.linear=1 "
                         "schedule.max_lr=0.002 schedule.end_ratio=0.0001 "
                         "schedule.warmup_steps=4 schedule.total_steps=12 stage=3 clip=0.5 "
                         "beta2=0.95 weight_decay[0]=0.1 persist_elems=100000 live_elems=1e+09 "
                         "reuse_elems=1e+09 prefetch_elems=5e+07 reduce_waits=0" },
    { "huggingface", "left=495 schedule.kind=2 schedule.end_ratio=0.0001 schedule.warmup_steps=2 "
                     "stage=3 live_elems=1e+09 reuse_elems=1e+09 reduce_elems=0 reduce_waits=0" },
    { "broken/unknown", "!zero_optimization.stgae: " },
    { "broken/stage", "!zero_optimization.stage: " },
    { "broken/batch", "!train_batch_size: " },
    { "broken/dtypes", "!fp16.enabled: " },
    { "broken/offload", "!zero_optimization.offload_param.device: " },
    { "broken/optimizer", "!optimizer.type: " },
    { "broken/scheduler", "!scheduler.params.total_num_steps: " },
    { "broken/hysteresis", "!fp16.hysteresis: " },
    { "broken/pin", "!zero_optimization.offload_optimizer.pin_memory: " },
    { "broken/aio", "!aio.blocksize: " },
    { "nowhere", "!'" },
};

static void files_of_people(void **state)
{
    struct zc_zero_config *empty, *c;
    char error[256], path[512];

    (void)state;
    assert_int_equal(load("{}", 2, &empty, error), 0);
    empty->left = 0;
    for (size_t i = 0; i < ZB_COUNT(files); i++) {
        const char *want = files[i].want;
        struct text t;
        int rc;

        (void)snprintf(path, sizeof(path), ROOT "tests/configs/%s.json", files[i].name);
        c = NULL;
        rc = zc_zero_config_load(&c, path, 2, error, sizeof(error));
        if (*want == '!') {
            if (rc != (strcmp(files[i].name, "nowhere") == 0 ? -ENOENT : -EINVAL) ||
                strncmp(error, want + 1, strlen(want + 1)) != 0)
                fail_msg("%s: %d '%s'", files[i].name, rc, error);
            continue;
        }
        if (rc != 0)
            fail_msg("%s: %d '%s'", files[i].name, rc, error);
        describe(&t, c, empty);
        if (strcmp(t.s, want) != 0)
            fail_msg("%s:\n    '%s', not\n    '%s'", files[i].name, t.s, want);
        zc_zero_config_free(c);
    }
    zc_zero_config_free(empty);
}

/* ---- docs/CONFIG.md documents every key */

static char *page_read(void)
{
    FILE *f = fopen(ROOT "docs/CONFIG.md", "r");
    char *page = calloc(1, 1 << 20);

    assert_non_null(f);
    assert_non_null(page);
    assert_true(fread(page, 1, (1 << 20) - 1, f) > 0);
    (void)fclose(f);
    return page;
}

static void page_has(const char *page, const struct zcz_row *rows, const char *path)
{
    for (const struct zcz_row *row = rows; row->key; row++) {
        char name[256], quoted[260];

        (void)snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "", row->key);
        (void)snprintf(quoted, sizeof(quoted), "`%s`", row->key);
        if (row->rows)
            page_has(page, row->rows, name);
        else if (!strstr(page, quoted))
            fail_msg("docs/CONFIG.md does not have %s", name);
        if (row->kind == ZCZ_WORD && !row->words)
            fail_msg("%s has no words", name);
        if (!row->rows && !row->does == !row->because && !row->refused)
            fail_msg("%s: what becomes of it?", name);
    }
}

static void the_page_has_every_key(void **state)
{
    char *page = page_read();

    (void)state;
    page_has(page, zcz_config_rows, "");
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_memory),
        cmocka_unit_test(defaults_are_deepspeeds),
        cmocka_unit_test(every_key),
        cmocka_unit_test(every_key_has_a_line),
        cmocka_unit_test(learning_rates),
        cmocka_unit_test(files_of_people),
        cmocka_unit_test(the_page_has_every_key),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
