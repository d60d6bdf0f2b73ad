/*
 * options.h - the options of an engine: their check, and the scalars of a step.
 */
#ifndef ZC_ZERO_OPTIONS_H
#define ZC_ZERO_OPTIONS_H

#include "base/err.h"
#include "client/zero/zc_zero.h"
#include "kernels/zk.h"

#define ZCZ_GROUPS_MAX 64u

/** Checks whether an engine of `world` ranks can have these options: 0, or -EINVAL or -ENOTSUP. */
int zcz_options_check(const struct zc_zero_options *o, uint32_t world, struct zb_err *err);

/** Returns the scalars of a parameter group for a step. */
struct zc_group zcz_group(const struct zc_zero_options *o, double lr, uint32_t group);
/** Converts them to the form that the kernels take. */
struct zk_params zcz_params(const struct zc_group *g, double scale);

#endif
