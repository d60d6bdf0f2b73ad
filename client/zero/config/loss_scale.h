/*
 * loss_scale.h - the loss scale of fp16: what the next step has, and how it grows and shrinks.
 *
 * MODEL. A pure state machine, told of each step whether any gradient was not finite. Its rules are
 * those of DeepSpeed's DynamicLossScaler (deepspeed/runtime/fp16/loss_scaler.py, 0.19), with the
 * names of its configuration:
 *
 *     initial_scale_power  the first scale is 2 to this power
 *     hysteresis           an overflow uses one of these up. Only when one is left it is kept, and
 *                          the scale is halved instead: so hysteresis - 1 overflows are tolerated,
 *                          in all, and each one behind them halves
 *     consecutive_hysteresis  true: they are refilled by each step without overflow; false: when
 *                          the scale doubles
 *     loss_scale_window    the scale doubles at a step without overflow when that is behind 1, 2,
 *                          ... times so many others in a row: first at the (window + 1)th since the
 *                          last overflow, or since the beginning, then every `window` steps
 *     min_loss_scale       halving ends there. An overflow at that scale which was to halve it ends
 *                          the run
 *
 * A static scale never changes. Where DeepSpeed would double without end, we stop at 2^126: a step
 * divides by it in fp32.
 *
 * What a step did to it is its three fields, which travel with the step's note (note.c).
 */
#ifndef ZCZ_LOSS_SCALE_H
#define ZCZ_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/zero/zc_zero.h"

#define ZCZ_SCALE_POWER_MAX 126u

struct zcz_scaler {
    double scale;          /* that the next step has */
    int64_t last_overflow; /* the iterations before the last step that overflowed; -1: none did */
    uint32_t hysteresis;   /* that are left */
};

/** Whether rules make sense: 0, or -EINVAL with an error message. */
int zcz_scale_check(const struct zc_loss_scale *rules, struct zb_err *err);

/** As before the first of a job's steps, or of one that had no scale before. */
struct zcz_scaler zcz_scale_new(const struct zc_loss_scale *rules, uint64_t iterations);

/**
 * A step ends, before which there were `iterations`.
 *
 * @return 0; -ERANGE: it overflowed at the least scale there is, and *s is as it was
 */
int zcz_scale_update(struct zcz_scaler *s, const struct zc_loss_scale *rules, uint64_t iterations,
                     bool overflow);

#endif
