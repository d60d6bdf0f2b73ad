/*
 * loss_scale.h - the loss scale of fp16: its value for the next step, and how it grows and shrinks.
 *
 * MODEL. A pure state machine, which is told after each step whether a gradient was not finite. Its
 * rules are those of DeepSpeed's DynamicLossScaler (deepspeed/runtime/fp16/loss_scaler.py, 0.19),
 * with the names of its configuration:
 *
 *     initial_scale_power     the first scale is 2 to this power
 *     hysteresis              an overflow takes one off this count while it is above one. When it
 *                             is one, an overflow halves the scale instead. So hysteresis - 1
 *                             overflows are tolerated in all, and each later one halves
 *     consecutive_hysteresis  true: each step without overflow resets the count; false: the count
 *                             is reset when the scale doubles
 *     loss_scale_window       the scale doubles at a step without overflow if the number of such
 *                             steps in a row before it is 1, 2, ... times this: first at step
 *                             (window + 1) since the last overflow, or since the beginning, then
 *                             every `window` steps
 *     min_loss_scale          the smallest scale. An overflow that would halve it further ends the
 *                             run
 *
 * A static scale never changes. DeepSpeed doubles without limit; here the limit is 2^126, because a
 * step divides by the scale in fp32.
 *
 * The state is the three fields of struct zcz_scaler, which are stored in the step's note (note.c).
 */
#ifndef ZCZ_LOSS_SCALE_H
#define ZCZ_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/zero/zc_zero.h"

#define ZCZ_SCALE_POWER_MAX 126u

struct zcz_scaler {
    double scale;          /* for the next step */
    int64_t last_overflow; /* iterations before the last step that overflowed; of a new scale,
                              the iterations so far - 1 */
    uint32_t hysteresis;   /* what is left of the count */
};

/** Checks the rules: 0, or -EINVAL with an error message. */
int zcz_scale_check(const struct zc_loss_scale *rules, struct zb_err *err);

/** Returns the state before a job's first step, or if the job had no scale before. */
struct zcz_scaler zcz_scale_new(const struct zc_loss_scale *rules, uint64_t iterations);

/**
 * Updates the state after a step; `iterations` is the number of iterations before that step.
 *
 * @return 0; -ERANGE: it overflowed at the smallest scale, and *s is unchanged
 */
int zcz_scale_update(struct zcz_scaler *s, const struct zc_loss_scale *rules, uint64_t iterations,
                     bool overflow);

#endif
