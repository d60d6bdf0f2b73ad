#include "client/zero/config/clip_rule.h"

#include <errno.h>
#include <float.h>
#include <math.h>

int zcz_clip_check(const struct zc_zero_options *o, struct zb_err *err)
{
    if (o->clip_mode != ZC_CLIP_GLOBAL && o->clip_mode != ZC_CLIP_TENSOR &&
        o->clip_mode != ZC_CLIP_NONE)
        return zb_fail(err, -EINVAL, "clip mode %d: 0 (global), 1 (tensor), 2 (none)",
                       (int)o->clip_mode);
    if (o->clip_mode != ZC_CLIP_TENSOR)
        return 0;
    if (!(o->clip_tensor_ratio > 0 && o->clip_tensor_ratio <= 1e6))
        return zb_fail(err, -EINVAL, "clipping by tensor with ratio %g: above 0, up to 1e6",
                       o->clip_tensor_ratio);
    if (!(o->clip_tensor_beta >= 0 && o->clip_tensor_beta < 1))
        return zb_fail(err, -EINVAL, "clipping by tensor with beta %g: from 0 to below 1",
                       o->clip_tensor_beta);
    return 0;
}

double zcz_clip_limit(const struct zc_zero_options *o, float average)
{
    return o->clip_tensor_ratio * (double)average;
}

float zcz_clip_next(const struct zc_zero_options *o, bool warmup, float average, double norm)
{
    double v = average, next = o->clip_tensor_beta * v + (1 - o->clip_tensor_beta) * norm;

    if (norm == 0)
        return average;
    if (average == 0)
        next = norm;
    else if (warmup)
        next = fmin(v, norm);
    return (float)fmin(next, (double)FLT_MAX);
}
