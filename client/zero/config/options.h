/*
 * options.h - the options of an engine by themselves: what may be, and what a step makes of them.
 */
#ifndef ZC_ZERO_OPTIONS_H
#define ZC_ZERO_OPTIONS_H

#include "base/err.h"
#include "client/zero/zc_zero.h"
#include "kernels/zk.h"

#define ZCZ_GROUPS_MAX 64u

/** Whether an engine of `world` ranks can have these options: 0, or -EINVAL. */
int zcz_options_check(const struct zc_zero_options *o, uint32_t world, struct zb_err *err);

/** The scalars of one parameter group in a step. */
struct zc_group zcz_group(const struct zc_zero_options *o, double lr, uint32_t group);
/** The same, as the kernels take them. */
struct zk_params zcz_params(const struct zc_group *g, double scale);

#endif
