/*
 * lr.c - the learning rate of a step, as in DeepSpeed's schedulers.
 *
 * They count applied steps from -1: before the first step they are at -1, where the warm-up has not
 * begun; then at 0, where it begins; at `warmup` it has ended. So the step after n applied steps is
 * at n - 1 (deepspeed/runtime/lr_schedules.py, 0.19).
 */
#include <math.h>

#include "base/util.h"
#include "client/zero/zc_config.h"

static double fmax0(double x)
{
    return x > 0 ? x : 0;
}

/* Progress of the warm-up, for i < warmup. */
static double warmed(const struct zc_lr_schedule *s, double warmup, double i)
{
    return s->linear ? i / warmup : 1.0 / log(warmup) * log(i + 1);
}

/* Fraction of max_lr - min_lr that is added to min_lr. */
static double gamma_at(const struct zc_lr_schedule *s, double warmup, double i)
{
    double total = (double)s->total_steps;

    if (i < warmup)
        return warmed(s, warmup, i);
    return s->kind == ZC_LR_WARMUP ? 1.0 : fmax0((total - i) / fmax(1, total - warmup));
}

/* Factor for the optimizer's rate. */
static double ratio_at(const struct zc_lr_schedule *s, double warmup, double i)
{
    double total = (double)s->total_steps, done;

    if (i < warmup)
        return s->min_ratio + warmed(s, warmup, i) * (1.0 - s->min_ratio);
    done = fmin(1.0, (i - warmup + 1) / fmax(1, total - warmup));
    return fmax0(s->end_ratio + (1.0 - s->end_ratio) * ((1 + cos(M_PI * done)) / 2));
}

double zc_lr_at(const struct zc_lr_schedule *s, double lr, uint64_t applied)
{
    double warmup = (double)zb_max_u64(2, s->warmup_steps), i = (double)applied - 1;
    double max_lr = isnan(s->max_lr) ? lr : s->max_lr;

    switch (s->kind) {
    case ZC_LR_CONSTANT:
        return lr;
    case ZC_LR_WARMUP:
    case ZC_LR_WARMUP_DECAY:
        return i < 0 ? s->min_lr : s->min_lr + (max_lr - s->min_lr) * gamma_at(s, warmup, i);
    case ZC_LR_WARMUP_COSINE:
        return i < 0 ? 0 : lr * ratio_at(s, warmup, i);
    }
    return lr;
}
