/*
 * options.c - default options of an engine, and the check of options.
 */
#include "client/zero/config/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/late.h"
#include "base/model.h"
#include "base/util.h"
#include "client/zero/config/clip_rule.h"
#include "client/zero/config/loss_scale.h"

#define ZCZ_COMMIT_EVERY 100u

void zc_zero_defaults(struct zc_zero_options *options)
{
    *options = (struct zc_zero_options){
        .commit_every = ZCZ_COMMIT_EVERY,
        .micro_steps = 1,
        .optimizer = ZC_ADAMW,
        .moments = ZC_MOMENTS_F32,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .groups = 1,
        .prefetch_units = 1,
        .overlap = ZC_ZERO_OVERLAP,
        .stage = ZC_STAGE_3,
        .clip_tensor_ratio = 1.05,
        .clip_tensor_beta = 0.98,
        .clip_tensor_warmup = 100,
        .loss_scale = { .fixed = 1, .power = 16, .window = 1000, .hysteresis = 2, .min = 1 },
    };
}

static bool offload_known(enum zc_zero_offload o)
{
    return o == ZC_ZERO_NONE || o == ZC_ZERO_HOST || o == ZC_ZERO_NVME;
}

static bool offload_param_known(enum zc_zero_offload o)
{
    return offload_known(o) || o == ZC_ZERO_GPU;
}

static int check_group(const struct zc_zero_options *o, uint32_t g, struct zb_err *err)
{
    const struct zc_group group = zcz_group(o, 0, g);
    const struct zk_params params = zcz_params(&group, 1);
    struct zb_err why = { 0 };

    return zk_params_check((enum zb_optimizer)o->optimizer, &params, &why) < 0
               ? zb_fail(err, -EINVAL, "group %u: %s", g, why.text)
               : 0;
}

static int check_offload(const struct zc_zero_options *o, struct zb_err *err)
{
    if (!offload_param_known(o->offload_param) || !offload_known(o->offload_optimizer))
        return zb_fail(err, -EINVAL,
                       "offload of parameters %d, of the optimizer %d: none, host, nvme, and of "
                       "parameters gpu",
                       (int)o->offload_param, (int)o->offload_optimizer);
    if (!offload_known(o->offload_grad))
        return zb_fail(err, -EINVAL, "offload of gradients %d: host, or none",
                       (int)o->offload_grad);
    if (o->offload_param != ZC_ZERO_NONE && o->offload_optimizer == ZC_ZERO_NONE)
        return zb_fail(err, -EINVAL,
                       "parameters are offloaded with the optimizer state, or not at all");
    if (o->offload_optimizer != ZC_ZERO_NONE && o->stage == ZC_STAGE_DDP)
        return zb_fail(err, -EINVAL,
                       "stage 0 keeps all model states on each rank and offloads nothing; use "
                       "stage 1 to offload optimizer state");
    if (o->offload_param != ZC_ZERO_NONE && o->stage < ZC_STAGE_3)
        return zb_fail(err, -EINVAL,
                       "stage %d has parameters whole on each rank: only stage 3 "
                       "offloads them",
                       (int)o->stage);
    return 0;
}

static int check_stage(const struct zc_zero_options *o, uint32_t world, struct zb_err *err)
{
    if (o->stage > ZC_STAGE_3)
        return zb_fail(err, -EINVAL, "stage %d: from 0 to 3", (int)o->stage);
    if (o->stage < ZC_STAGE_3 &&
        (o->keep_gathered || o->persist_elems > 0 || o->live_elems > 0 || o->reuse_elems > 0))
        return zb_fail(err, -EINVAL,
                       "stage %d keeps all parameters gathered: which stay, and how "
                       "many, is of stage 3",
                       (int)o->stage);
    if (o->stage < ZC_STAGE_3 && o->quantize_gather)
        return zb_fail(err, -EINVAL,
                       "stage %d computes with the parameters that it steps; only stage 3 can "
                       "gather them quantized",
                       (int)o->stage);
    if (o->group_ranks > 0 && (world % o->group_ranks != 0 || o->stage < ZC_STAGE_3))
        return zb_fail(err, -EINVAL, "groups of %u ranks: of stage 3, and a divisor of %u ranks",
                       o->group_ranks, world);
    return 0;
}

/* With one rank the option has no effect. */
static int check_alone(const struct zc_zero_options *o, uint32_t world, struct zb_err *err)
{
    const char *why = o->stage < ZC_STAGE_3 ? "below stage 3 parameters are whole on each rank"
                      : o->offload_optimizer == ZC_ZERO_NONE
                          ? "without a daemon the slices of other ranks are in their processes"
                      : o->group_ranks > 0 ? "groups of ranks have a job each"
                      : o->quantize_gather ? "quantize_gather quantizes what ranks send each other"
                                           : NULL;

    if (!o->gather_alone || world == 1 || !why)
        return 0;
    return zb_fail(err, -ENOTSUP, "gathers that are each rank's own (gather_alone): %s", why);
}

/* Leaves room for the number of a group after the name: open_name(). */
static int check_name(const struct zc_zero_options *o, uint32_t world, struct zb_err *err)
{
    uint32_t groups = o->group_ranks > 0 ? world / o->group_ranks : 1;
    int number = groups > 1 ? snprintf(NULL, 0, ".%u", groups - 1) : 0;

    if (!o->job || strlen(o->job) <= (size_t)(ZC_NAME_MAX - number))
        return 0;
    return zb_fail(err, -EINVAL, "a job's name has at most %d bytes%s", ZC_NAME_MAX - number,
                   number ? ", and each group of ranks appends its number" : "");
}

/* Muon needs whole matrices in one process. */
static int check_muon(const struct zc_zero_options *o, uint32_t world, struct zb_err *err)
{
    uint32_t shards = o->stage == ZC_STAGE_DDP ? 1 : o->group_ranks > 0 ? o->group_ranks : world;

    if (o->optimizer_late)
        return zb_fail(err, -ENOTSUP, "Muon is chosen when a job is opened, not later");
    if (o->offload_optimizer == ZC_ZERO_NONE && o->device && *o->device)
        return zb_fail(err, -ENOTSUP,
                       "Muon on a device needs the optimizer offloaded to host or nvme: the daemon "
                       "orthogonalizes");
    if (o->offload_optimizer == ZC_ZERO_NONE && shards > 1)
        return zb_fail(err, -ENOTSUP,
                       "Muon with the states of %u ranks cut needs the optimizer offloaded to host "
                       "or nvme: without a daemon no process has a whole matrix",
                       shards);
    return 0;
}

static int check_engine(const struct zc_zero_options *o, struct zb_err *err)
{
    if (!zb_muon_engine_name((enum zb_muon_engine)o->muon_engine))
        return zb_fail(err, -EINVAL, "muon_engine %d is not known", (int)o->muon_engine);
    if (o->muon_engine == ZC_MUON_CPU)
        return 0;
    if (o->optimizer != ZC_MUON && !o->optimizer_late)
        return zb_fail(err, -EINVAL, "muon_engine %s: the optimizer is not Muon",
                       zb_muon_engine_name((enum zb_muon_engine)o->muon_engine));
    return o->offload_optimizer == ZC_ZERO_NONE
               ? zb_fail(err, -EINVAL,
                         "muon_engine %s is the daemon's: the optimizer is not offloaded",
                         zb_muon_engine_name((enum zb_muon_engine)o->muon_engine))
               : 0;
}

/* Gradients that are not held cannot be scaled later, or added to. */
static int check_ring(const struct zc_zero_options *o, struct zb_err *err)
{
    const char *why = o->offload_optimizer != ZC_ZERO_NVME
                          ? "the optimizer state is not offloaded to nvme"
                      : !(o->overlap & ZC_ZERO_EARLY) ? "steps do not begin early"
                      : o->optimizer == ZC_MUON       ? "Muon needs the gradients of whole matrices"
                      : o->clip_mode == ZC_CLIP_GLOBAL && o->clip > 0
                          ? "global clipping needs gradients that are held"
                      : o->clip_mode == ZC_CLIP_TENSOR && o->loss_scale.dynamic
                          ? "steps that clip by tensor do not begin early with a dynamic loss scale"
                      : o->micro_steps == 0 && !o->announces
                          ? "steps of as many micro-steps as come are not announced"
                      : o->micro_steps > 1 && !o->accumulate_local && !o->vertical
                          ? "micro-steps are added up in the daemon, not by the trainer"
                      : o->grad_ring_keep > 100 ? "grad_ring_keep is at most 100 percent"
                                                : NULL;

    return o->grad_ring && why ? zb_fail(err, -EINVAL, "grad_ring: %s", why) : 0;
}

int zcz_options_check(const struct zc_zero_options *o, uint32_t world, struct zb_err *err)
{
    struct zb_err why = { 0 };
    int rc = check_stage(o, world, err);

    if (rc == 0)
        rc = check_offload(o, err);
    if (rc < 0)
        return rc;
    if ((o->resume || o->resume_if_there) && (o->offload_optimizer == ZC_ZERO_NONE || !o->job))
        return zb_fail(err, -EINVAL, "resume needs a daemon and the name of a job that it kept");
    if (o->durable && (o->offload_optimizer == ZC_ZERO_NONE || !o->keep))
        return zb_fail(err, -EINVAL, "a durable job needs a daemon, and to be kept");
    if (o->node_gather > ZC_NODE_GATHER_AUTO)
        return zb_fail(err, -EINVAL, "node_gather %d is not known", (int)o->node_gather);
    rc = check_alone(o, world, err);
    if (rc == 0)
        rc = check_name(o, world, err);
    if (rc < 0)
        return rc;
    if (o->micro_steps == 0 && o->vertical)
        return zb_fail(err, -EINVAL,
                       "vertical: a unit's micro-steps are at least 1, not as many as come (0)");
    if (!(o->clip >= 0 && isfinite(o->clip)))
        return zb_fail(err, -EINVAL, "clip %g: 0 (off) or a norm", o->clip);
    if (zcz_clip_check(o, &why) < 0)
        return zb_fail(err, -EINVAL, "%s", why.text);
    if (!zb_optimizer_name((enum zb_optimizer)o->optimizer))
        return zb_fail(err, -EINVAL, "optimizer number %d is not known", (int)o->optimizer);
    if (o->optimizer == ZC_MUON && check_muon(o, world, err) < 0)
        return err->code;
    if (check_engine(o, err) < 0)
        return err->code;
    if (check_ring(o, err) < 0)
        return err->code;
    if (!zb_moments_name((enum zb_moments)o->moments))
        return zb_fail(err, -EINVAL, "moments number %d is not known", (int)o->moments);
    if (o->groups < 1 || o->groups > ZCZ_GROUPS_MAX)
        return zb_fail(err, -EINVAL, "%u parameter groups: must be 1 to %u", o->groups,
                       ZCZ_GROUPS_MAX);
    for (uint32_t g = 0; g < o->groups; g++)
        if (check_group(o, g, err) < 0)
            return -EINVAL;
    if (o->overlap & ~ZC_ZERO_OVERLAP)
        return zb_fail(err, -EINVAL, "overlap %#x: known are %#x", o->overlap, ZC_ZERO_OVERLAP);
    if (zcz_scale_check(&o->loss_scale, &why) < 0)
        return zb_fail(err, -EINVAL, "%s", why.text);
    if (o->prefetch_units > ZB_PREFETCH_MAX)
        return zb_fail(err, -EINVAL, "%u units gathered ahead: at most %u", o->prefetch_units,
                       ZB_PREFETCH_MAX);
    return 0;
}

struct zc_group zcz_group(const struct zc_zero_options *o, double lr, uint32_t group)
{
    return (struct zc_group){ .lr = lr,
                              .beta1 = o->beta1,
                              .beta2 = o->beta2,
                              .eps = o->eps,
                              .weight_decay = o->weight_decay[group],
                              .momentum = o->momentum,
                              .dampening = o->dampening,
                              .lr_decay = o->lr_decay,
                              .nesterov = o->nesterov,
                              .muon_scale = o->muon_scale };
}

void zc_zero_group_defaults(enum zc_optimizer kind, struct zc_group *ret)
{
    *ret = (struct zc_group){ .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    if (kind == ZC_ADAMW)
        ret->weight_decay = 1e-2;
    if (kind == ZC_LION) {
        ret->lr = 1e-4;
        ret->beta2 = 0.99;
    }
    if (kind == ZC_MUON) { /* for AdamW, too */
        ret->weight_decay = 0.1;
        ret->momentum = 0.95;
        ret->nesterov = true;
    }
    if (kind == ZC_ADAGRAD) {
        ret->lr = 1e-2;
        ret->eps = 1e-10;
    }
}

struct zk_params zcz_params(const struct zc_group *g, double scale)
{
    return (struct zk_params){ .lr = g->lr,
                               .beta1 = g->beta1,
                               .beta2 = g->beta2,
                               .eps = g->eps,
                               .weight_decay = g->weight_decay,
                               .scale = scale,
                               .momentum = g->momentum,
                               .dampening = g->dampening,
                               .lr_decay = g->lr_decay,
                               .nesterov = g->nesterov,
                               .muon_scale = (uint64_t)g->muon_scale };
}
