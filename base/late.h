/*
 * late.h - an optimizer that is known only after memory was placed for another one.
 *
 * A pure function; any thread.
 */
#ifndef ZB_LATE_H
#define ZB_LATE_H

#include "base/plan.h"

/** Whether state of this layout, which has seen no step, can be stepped by another optimizer in its place: one with as many
 * moments, or, where they are fp32, with fewer; the last ones stay zero then, and layout->optimizer changes alone. 0;
 * -EINVAL a number that is not known; -ENOTSUP. */
int zb_layout_steps_with(const struct zb_layout *layout, enum zb_optimizer optimizer,
                         enum zb_moments moments, struct zb_err *err);

#endif
