#include "examples/gpt/config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct apply {
    struct zc_zero_config *c;
    struct gpt_args *args;
    FILE *people;
};

/* Whether the file's value is used: the flag was not given, and the file does not leave it open. */
static bool takes(struct apply *a, const char *flag, const char *key, uint32_t left)
{
    if (!gpt_args_given(a->args, flag))
        return !(a->c->left & left);
    if (!(a->c->left & left) && a->people)
        for (size_t i = 0; i < a->c->nlines; i++)
            if (strcmp(a->c->lines[i].key, key) == 0)
                fprintf(a->people, "zgpt: %s overrides %s %s of '%s'\n", flag, key,
                        a->c->lines[i].value, a->args->config);
    return false;
}

static int apply_batch(struct apply *a, struct zb_err *err)
{
    struct gpt_args *args = a->args;

    if (takes(a, "--batch", "train_batch_size", ZC_LEFT_BATCH))
        args->batch = (uint32_t)a->c->train_batch;
    if (takes(a, "--micro-batch", "train_micro_batch_size_per_gpu", ZC_LEFT_MICRO_BATCH))
        args->micro_batch = (uint32_t)a->c->micro_batch;
    if (args->batch == 0 || args->micro_batch == 0)
        return zb_fail(err, -EINVAL,
                       "%s: '%s' has neither this key nor those that determine it: give %s",
                       args->batch == 0 ? "train_batch_size" : "train_micro_batch_size_per_gpu",
                       args->config, args->batch == 0 ? "--batch" : "--micro-batch");
    return 0;
}

static void apply_scale(struct apply *a)
{
    const struct zc_loss_scale *s = &a->c->loss_scale;
    struct gpt_args *args = a->args;

    if (takes(a, "--loss-scale", "fp16.loss_scale", 0))
        args->loss_scale = s->fixed;
    if (takes(a, "--initial-scale-power", "fp16.initial_scale_power", 0))
        args->scale_power = s->power;
    if (takes(a, "--loss-scale-window", "fp16.loss_scale_window", 0))
        args->scale_window = s->window;
    if (takes(a, "--hysteresis", "fp16.hysteresis", 0))
        args->hysteresis = s->hysteresis;
    if (takes(a, "--consecutive-hysteresis", "fp16.consecutive_hysteresis", 0))
        args->consecutive_hysteresis = s->consecutive;
    if (takes(a, "--min-loss-scale", "fp16.min_loss_scale", 0))
        args->min_scale = s->min;
}

/* --lr is also the maximum of the schedule. */
static void apply_lr(struct apply *a)
{
    struct zc_lr_schedule *s = &a->c->schedule;

    if (takes(a, "--lr", "optimizer.params.lr", ZC_LEFT_LR))
        a->args->lr = a->c->lr;
    else if (gpt_args_given(a->args, "--lr") && !isnan(s->max_lr) &&
             !takes(a, "--lr", "scheduler.params.warmup_max_lr", 0))
        s->max_lr = NAN;
    if (a->c->left & ZC_LEFT_TOTAL_STEPS)
        s->total_steps = a->args->steps;
}

static void apply_offload(struct apply *a)
{
    static const uint32_t tiers[] = { GPT_OFFLOAD_NONE, GPT_OFFLOAD_HOST, GPT_OFFLOAD_NVME };
    const struct zc_zero_options *o = &a->c->options;
    bool both = takes(a, "--offload", "zero_optimization.offload_optimizer.device", 0);

    if (takes(a, "--offload-optimizer", "zero_optimization.offload_optimizer.device", 0) && both)
        a->args->offload_optimizer = tiers[o->offload_optimizer];
    if (takes(a, "--offload-param", "zero_optimization.offload_param.device", 0) && both)
        a->args->offload_param = tiers[o->offload_param];
}

/* The inputs of blocks are kept; with cpu_checkpointing, by the daemon. */
static void apply_checkpointing(struct apply *a)
{
    if (a->c->checkpointing &&
        takes(a, "--checkpoint", "activation_checkpointing.cpu_checkpointing", 0))
        a->args->checkpoint = a->c->cpu_checkpointing ? GPT_CHECKPOINT_HOST : GPT_CHECKPOINT_BLOCK;
}

/* A DeepSpeed file cannot say which blocks are frozen. */
static void apply_frozen(struct apply *a)
{
    static const char key[] = "zero_optimization.zero_quantized_nontrainable_weights";
    struct gpt_args *args = a->args;

    if (!takes(a, "--quantize-frozen", key, 0) || !a->c->quantize_frozen)
        return;
    args->quantize_frozen = args->freeze > 0 && gpt_args_stage(args) == 3;
    if (!args->quantize_frozen && a->people)
        fprintf(a->people, "zgpt: %s: ignored, because %s\n", key,
                args->freeze > 0 ? "it applies to stage 3 only" : "no block is frozen");
}

/* The keys of ours. */
static void apply_ours(struct apply *a)
{
    const struct zc_zero_options *o = &a->c->options;
    struct gpt_args *args = a->args;

    if (takes(a, "--clip-mode", "zshard.clip_mode", 0))
        args->clip_mode = (uint32_t)o->clip_mode;
    if (takes(a, "--clip-ratio", "zshard.clip_tensor_ratio", 0))
        args->clip_ratio = o->clip_tensor_ratio;
    if (takes(a, "--clip-beta", "zshard.clip_tensor_beta", 0))
        args->clip_beta = o->clip_tensor_beta;
    if (takes(a, "--clip-warmup", "zshard.clip_tensor_warmup", 0))
        args->clip_warmup = (uint32_t)o->clip_tensor_warmup;
    if (takes(a, "--grad-ring", "zshard.grad_ring", 0))
        args->grad_ring = o->grad_ring;
    if (takes(a, "--grad-ring-keep", "zshard.grad_ring_keep", 0))
        args->grad_ring_keep = o->grad_ring_keep;
    if (takes(a, "--node-gather", "zshard.node_gather", 0))
        args->node_gather = (uint32_t)o->node_gather;
    if (takes(a, "--moments", "zshard.moments", 0))
        args->moments = (uint32_t)(o->moments - ZC_MOMENTS_F32);
    if (takes(a, "--muon-engine", "zshard.muon_engine", 0))
        args->muon_engine = (uint32_t)o->muon_engine;
}

static int apply(struct apply *a, struct zb_err *err)
{
    const struct zc_zero_options *o = &a->c->options;
    struct gpt_args *args = a->args;
    bool fp16 = takes(a, "--dtype", "fp16.enabled", ZC_LEFT_DTYPE);
    bool bf16 = takes(a, "--dtype", "bf16.enabled", ZC_LEFT_DTYPE);
    int rc = apply_batch(a, err);

    if (fp16 && bf16)
        args->dtype = (uint32_t)a->c->dtype - ZC_F32 + GPT_FP32;
    if (takes(a, "--optimizer", "optimizer.type", ZC_LEFT_OPTIMIZER))
        args->optimizer = (uint32_t)o->optimizer - ZC_ADAMW + GPT_ADAMW;
    if (!(a->c->left & ZC_LEFT_OPTIMIZER) && !gpt_args_given(args, "--muon-scale"))
        args->muon_scale = (uint32_t)o->muon_scale;
    if (takes(a, "--weight-decay", "optimizer.params.weight_decay", ZC_LEFT_WEIGHT_DECAY))
        args->weight_decay = o->weight_decay[0];
    if (takes(a, "--clip", "gradient_clipping", ZC_LEFT_CLIP))
        args->clip = o->clip;
    if (takes(a, "--stage", "zero_optimization.stage", 0))
        args->below_3 = 3 - (uint32_t)o->stage;
    if (takes(a, "--quantize-gather", "zero_optimization.zero_quantized_weights", 0))
        args->quantize_gather = o->quantize_gather && gpt_args_stage(args) == 3;
    if (takes(a, "--group", "zero_optimization.zero_hpz_partition_size", 0))
        args->group = o->group_ranks;
    apply_frozen(a);
    apply_ours(a);
    apply_lr(a);
    apply_scale(a);
    apply_offload(a);
    apply_checkpointing(a);
    if (gpt_args_stage(args) < 3) { /* the flag's, maybe: what the file says of 3 is of no use */
        args->group = gpt_args_given(args, "--group") ? args->group : 0;
        if (!gpt_args_given(args, "--offload-param"))
            args->offload_param = GPT_OFFLOAD_NONE;
    }
    return rc;
}

int gpt_config_apply(struct zc_zero_config **ret, struct gpt_args *args, uint32_t ranks,
                     FILE *people, struct zb_err *err)
{
    struct apply a = { .args = args, .people = people };
    char why[sizeof(err->text)];
    int rc = zc_zero_config_load(&a.c, args->config, ranks, why, sizeof(why));

    if (rc != 0)
        return zb_fail(err, rc, "--config '%s': %s", args->config, why);
    for (size_t i = 0; i < a.c->nlines && people; i++)
        if (a.c->lines[i].ignored)
            fprintf(people, "zgpt: %s: ignored, because %s\n", a.c->lines[i].key,
                    a.c->lines[i].text);
        else if (strncmp(a.c->lines[i].text, "warning: ", strlen("warning: ")) == 0)
            fprintf(people, "zgpt: %s: %s\n", a.c->lines[i].key, a.c->lines[i].text);
    rc = apply(&a, err);
    if (rc == 0)
        rc = gpt_args_check(args, err);
    if (rc == 0)
        *ret = a.c;
    else
        zc_zero_config_free(a.c);
    return rc;
}
