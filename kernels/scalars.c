/*
 * scalars.c - what AdamW needs once per step, computed in double. The C library's pow() gives
 * different bits on different systems; multiplications, in a fixed order, do not.
 */
#include <assert.h>
#include <math.h>

#include "kernels/zk.h"

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

struct zk_adamw zk_adamw_prepare(const struct zk_adamw_params *params, uint64_t t)
{
    double c1, c2;

    assert(t >= 1);
    c1 = 1.0 - zk_powi(params->beta1, t);
    c2 = 1.0 - zk_powi(params->beta2, t);
    return (struct zk_adamw){
        .scale = (float)params->scale,
        .decay = (float)(1.0 - params->lr * params->weight_decay),
        .beta2 = (float)params->beta2,
        .one_minus_beta1 = (float)(1.0 - params->beta1),
        .one_minus_beta2 = (float)(1.0 - params->beta2),
        .step_size = (float)(params->lr / c1),
        .rsqrt_c2 = (float)(1.0 / sqrt(c2)),
        .eps = (float)params->eps,
    };
}
