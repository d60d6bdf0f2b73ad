/*
 * scalars.c - the scalars that the optimizers need once per step, computed in double. The C
 * library's pow() gives different bits on different systems; multiplications in a fixed order do
 * not.
 */
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>

#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

double zk_powi(double b, uint64_t t)
{
    double power = 1.0;

    for (; t > 0; t >>= 1) {
        if (t & 1)
            power *= b;
        b *= b;
    }
    return power;
}

/* NaN is out of range too. */
static int range_check(const char *name, const char *what, double x, double least, double most,
                       struct zb_err *err)
{
    return x >= least && x <= most
               ? 0
               : zb_fail(err, -EINVAL, "%s with %s %g: from %g to %g", name, what, x, least, most);
}

static int betas_check(const char *name, const struct zk_params *p, struct zb_err *err)
{
    return p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1
               ? 0
               : zb_fail(err, -EINVAL, "%s with betas %g and %g: each from 0 to below 1", name,
                         p->beta1, p->beta2);
}

static int eps_check(const char *name, const struct zk_params *p, struct zb_err *err)
{
    return range_check(name, "eps", p->eps, 0, ZK_PARAM_MAX, err);
}

static int sgd_check(const char *name, const struct zk_params *p, struct zb_err *err)
{
    int rc = range_check(name, "momentum", p->momentum, 0, ZK_PARAM_MAX, err);

    if (rc == 0)
        rc = range_check(name, "dampening", p->dampening, -ZK_PARAM_MAX, ZK_PARAM_MAX, err);
    if (rc == 0 && p->nesterov && !(p->momentum > 0 && p->dampening == 0))
        rc = zb_fail(err, -EINVAL,
                     "sgd with nesterov needs a momentum above 0 and no dampening, and has %g "
                     "and %g",
                     p->momentum, p->dampening);
    return rc;
}

static int muon_check(const char *name, const struct zk_params *p, struct zb_err *err)
{
    if (!(p->momentum >= 0 && p->momentum < 1))
        return zb_fail(err, -EINVAL, "%s with momentum %g: from 0 to below 1", name, p->momentum);
    return p->muon_scale < ZK_MUON_SCALE_END
               ? 0
               : zb_fail(err, -EINVAL, "%s with scale number %llu: known are 0 (rms), 1 (shape)",
                         name, (unsigned long long)p->muon_scale);
}

int zk_params_check(enum zb_optimizer optimizer, const struct zk_params *p, struct zb_err *err)
{
    const char *name = zb_optimizer_name(optimizer);
    int rc = range_check(name, "lr", p->lr, 0, ZK_PARAM_MAX, err);

    if (rc == 0)
        rc = range_check(name, "weight decay", p->weight_decay, 0, ZK_PARAM_MAX, err);
    if (rc == 0) /* (float)scale is finite */
        rc = range_check(name, "scale", p->scale, (double)-FLT_MAX, (double)FLT_MAX, err);
    if (rc < 0)
        return rc;
    switch (optimizer) {
    case ZB_ADAMW:
    case ZB_ADAM:
        rc = betas_check(name, p, err);
        return rc == 0 ? eps_check(name, p, err) : rc;
    case ZB_LION:
        return betas_check(name, p, err);
    case ZB_SGD:
        return sgd_check(name, p, err);
    case ZB_ADAGRAD:
        rc = eps_check(name, p, err);
        return rc == 0 ? range_check(name, "lr decay", p->lr_decay, 0, ZK_PARAM_MAX, err) : rc;
    case ZB_MUON: /* and AdamW, for all other tensors */
        rc = betas_check(name, p, err);
        if (rc == 0)
            rc = eps_check(name, p, err);
        return rc == 0 ? muon_check(name, p, err) : rc;
    case ZB_OPTIMIZER_END:
        break;
    }
    return -EINVAL;
}

double zk_limit_factor(double limit, double norm)
{
    return limit > 0 && norm > limit ? limit / norm : 1;
}

double zk_muon_factor(enum zk_muon_scale scale, uint64_t rows, uint64_t cols)
{
    double n = (double)rows, m = (double)cols;

    if (scale == ZK_MUON_SHAPE)
        return n > m ? sqrt(n / m) : 1;
    return 0.2 * sqrt(n > m ? n : m);
}

float zk_segment_scale(double scale)
{
    float f = (float)scale;

    return f == 0 && scale != 0 ? copysignf(0x1p-149f, (float)scale) : f;
}

struct zk_scalars zk_prepare(enum zb_optimizer optimizer, const struct zk_params *params,
                             uint64_t t)
{
    struct zk_scalars s = { .scale = (float)params->scale,
                            .step_size = (float)params->lr,
                            .rounding = (uint32_t)moment_mix64(t) };
    double c1, c2;

    assert(t >= 1 && zb_optimizer_name(optimizer));
    switch (optimizer) {
    case ZB_ADAMW:
    case ZB_ADAM:
        c1 = 1.0 - zk_powi(params->beta1, t);
        c2 = 1.0 - zk_powi(params->beta2, t);
        s.step_size = (float)(params->lr / c1);
        s.rsqrt_c2 = (float)(1.0 / sqrt(c2));
        break;
    case ZB_ADAGRAD:
        s.step_size = (float)(params->lr / (1.0 + (double)(t - 1) * params->lr_decay));
        break;
    case ZB_SGD:
        s.momentum = (float)params->momentum;
        s.one_minus_dampening = (float)(1.0 - params->dampening);
        s.fresh = t == 1 || params->momentum == 0;
        s.nesterov = params->nesterov != 0;
        break;
    case ZB_MUON:
        s.momentum = (float)params->momentum;
        s.one_minus_momentum = (float)(1.0 - params->momentum);
        s.nesterov = params->nesterov != 0;
        s.matrix = 1;
        break;
    case ZB_LION:
    case ZB_OPTIMIZER_END:
        break;
    }
    if (optimizer == ZB_ADAMW || optimizer == ZB_LION || optimizer == ZB_MUON)
        s.decay = (float)(1.0 - params->lr * params->weight_decay);
    else
        s.l2 = (float)params->weight_decay;
    if (optimizer == ZB_ADAMW || optimizer == ZB_ADAM || optimizer == ZB_LION) {
        s.beta1 = (float)params->beta1;
        s.one_minus_beta1 = (float)(1.0 - params->beta1);
        s.beta2 = (float)params->beta2;
        s.one_minus_beta2 = (float)(1.0 - params->beta2);
    }
    if (optimizer == ZB_ADAMW || optimizer == ZB_ADAM || optimizer == ZB_ADAGRAD)
        s.eps = (float)params->eps;
    return s;
}
