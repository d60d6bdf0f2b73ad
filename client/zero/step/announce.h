/*
 * announce.h - steps that are announced: their arguments are known before the backward pass.
 *
 * The store begins such a step as gradients come (ZC_ZERO_EARLY), unless they are clipped globally.
 * The decision at the end of the iteration (step.c) stays the same.
 */
#ifndef ZC_ZERO_ANNOUNCE_H
#define ZC_ZERO_ANNOUNCE_H

#include "client/zero/core/zero.h"

/** A step as the options say, with this learning rate. groups: memory for its groups, ZCZ_GROUPS_MAX. */
struct zc_zero_step_how zcz_step_how(const struct zc_zero *z, double lr, struct zc_group *groups);
/** The factor for a summed gradient, without clipping. divide: 0, or the number of micro-steps. */
double zcz_step_average(const struct zc_zero *z, double divide);
/** If a step is announced, zc_zero_step() must have the same values: 0 or -EINVAL. */
int zcz_announced_check(struct zc_zero *z, const struct zc_zero_step_how *how);
/** With micro_steps 0: a step that was announced with a tensor needs a gradient of it, on any rank (`used`: a bit
 * for each tensor of all units), unless step_unused is set. 0 or -EINVAL. */
int zcz_announced_used(struct zc_zero *z, const struct zc_zero_step_how *how,
                       const unsigned char *used);
/** The announced step has begun, or is not made. */
void zcz_announce_forget(struct zc_zero *z);
void zcz_announce_close(struct zc_zero *z);
/** Announces the next step to the store when the last one has ended, because gradients are pushed from
 * then on. If step counts lag, its classes come first. 0, or the engine has failed. */
int zcz_announce_turn(struct zc_zero *z);

#endif
