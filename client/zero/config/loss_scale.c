#include "client/zero/config/loss_scale.h"

#include <errno.h>
#include <math.h>

int zcz_scale_check(const struct zc_loss_scale *rules, struct zb_err *err)
{
    if (!rules->dynamic)
        return rules->fixed >= 0 && rules->fixed <= 0x1p126
                   ? 0
                   : zb_fail(err, -EINVAL, "loss scale %g: from 0 to 2^%u", rules->fixed,
                             ZCZ_SCALE_POWER_MAX);
    if (rules->power > ZCZ_SCALE_POWER_MAX)
        return zb_fail(err, -EINVAL, "a first loss scale of 2^%u: at most 2^%u", rules->power,
                       ZCZ_SCALE_POWER_MAX);
    if (rules->window < 1 || rules->hysteresis < 1)
        return zb_fail(err, -EINVAL,
                       "loss scale: a window of %u steps, a hysteresis of %u: each at least 1",
                       rules->window, rules->hysteresis);
    if (!(rules->min > 0 && rules->min <= ldexp(1, (int)rules->power)))
        return zb_fail(err, -EINVAL,
                       "a least loss scale of %g: above 0, and at most the first, 2^%u", rules->min,
                       rules->power);
    return 0;
}

struct zcz_scaler zcz_scale_new(const struct zc_loss_scale *rules, uint64_t iterations)
{
    double fixed = rules->fixed > 0 ? rules->fixed : 1;

    return (struct zcz_scaler){ .scale = rules->dynamic ? ldexp(1, (int)rules->power) : fixed,
                                .last_overflow = (int64_t)iterations - 1,
                                .hysteresis = rules->hysteresis };
}

static int scale_shrink(struct zcz_scaler *s, const struct zc_loss_scale *rules)
{
    if (rules->hysteresis > 1 && s->hysteresis > 1) {
        s->hysteresis--;
        return 0;
    }
    if (s->scale == rules->min)
        return -ERANGE;
    s->scale = fmax(s->scale / 2, rules->min);
    return 0;
}

static void scale_grow(struct zcz_scaler *s, const struct zc_loss_scale *rules, int64_t good)
{
    bool doubles = good > 0 && good % rules->window == 0;

    if (rules->consecutive || doubles)
        s->hysteresis = rules->hysteresis;
    if (doubles)
        s->scale = fmin(s->scale * 2, ldexp(1, (int)ZCZ_SCALE_POWER_MAX));
}

int zcz_scale_update(struct zcz_scaler *s, const struct zc_loss_scale *rules, uint64_t iterations,
                     bool overflow)
{
    int rc = 0;

    if (!rules->dynamic)
        return 0;
    if (!overflow) {
        scale_grow(s, rules, (int64_t)iterations - s->last_overflow - 1);
        return 0;
    }
    rc = scale_shrink(s, rules);
    if (rc == 0)
        s->last_overflow = (int64_t)iterations;
    return rc;
}
