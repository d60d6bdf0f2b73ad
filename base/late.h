/*
 * late.h - an optimizer that is chosen only after memory was placed for another one.
 *
 * A pure function; any thread.
 */
#ifndef ZB_LATE_H
#define ZB_LATE_H

#include "base/plan.h"

/** Whether state of this layout, not stepped yet, can be stepped by another optimizer without
 * moving: one with as many moments, or, if they are fp32, with fewer. Then the unused moments
 * stay zero, and only layout->optimizer changes. 0: it can; -EINVAL: unknown optimizer; -ENOTSUP:
 * it cannot. */
int zb_layout_steps_with(const struct zb_layout *layout, enum zb_optimizer optimizer,
                         enum zb_moments moments, struct zb_err *err);

#endif
