/*
 * scalars.c - what the optimizers need once per step, computed in double. The C library's pow()
 * gives different bits on different systems; multiplications, in a fixed order, do not.
 */
#include <assert.h>
#include <math.h>

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

uint64_t zk_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

struct zk_scalars zk_prepare(enum zb_optimizer optimizer, const struct zk_params *params,
                             uint64_t t)
{
    struct zk_scalars s = { .scale = (float)params->scale,
                            .step_size = (float)params->lr,
                            .rounding = (uint32_t)zk_mix64(t) };
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
        s.nesterov = params->nesterov;
        break;
    case ZB_LION:
    case ZB_OPTIMIZER_END:
        break;
    }
    if (optimizer == ZB_ADAMW || optimizer == ZB_LION)
        s.decay = (float)(1.0 - params->lr * params->weight_decay);
    else
        s.l2 = (float)params->weight_decay;
    if (optimizer != ZB_SGD && optimizer != ZB_ADAGRAD) {
        s.beta1 = (float)params->beta1;
        s.one_minus_beta1 = (float)(1.0 - params->beta1);
        s.beta2 = (float)params->beta2;
        s.one_minus_beta2 = (float)(1.0 - params->beta2);
    }
    if (optimizer != ZB_SGD && optimizer != ZB_LION)
        s.eps = (float)params->eps;
    return s;
}
