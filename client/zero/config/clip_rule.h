/*
 * clip_rule.h - clipping by tensor: the limit of a tensor's norm, and the average that it follows
 * from.
 *
 * MODEL. AdaGC (G. Wang et al., arXiv 2502.11034, algorithm 1), as pure functions of one tensor. The
 * state is its average, a float: 0 before it has begun. In the warm-up the average is the smallest
 * norm after global clipping; from then on a moving average of the norms after clipping by tensor:
 *
 *     limit(v)      = ratio * v                               0: no limit
 *     next(v, n)    = n if v is 0; v if n is 0; else
 *                     in the warm-up  min(v, n)
 *                     after it        beta * v + (1 - beta) * n
 *
 * in double, in this order, rounded once to float. What differs from the paper: a norm of 0 changes
 * nothing (the paper would then clip the tensor to 0 for ever), and a tensor that begins late is not
 * clipped in its first step.
 */
#ifndef ZCZ_CLIP_RULE_H
#define ZCZ_CLIP_RULE_H

#include <stdbool.h>

#include "base/err.h"
#include "client/zero/zc_zero.h"

/** Checks the options of clipping: 0, or -EINVAL with an error message. */
int zcz_clip_check(const struct zc_zero_options *o, struct zb_err *err);
/** The limit of the norm of a tensor with this average. 0: none. */
double zcz_clip_limit(const struct zc_zero_options *o, float average);
/** The average after a step in which the tensor had this norm, after clipping. */
float zcz_clip_next(const struct zc_zero_options *o, bool warmup, float average, double norm);

#endif
