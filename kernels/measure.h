/*
 * measure.h - measures how fast a node's threads step state in memory, for plans (drives:
 * base/measure.h).
 */
#ifndef ZK_MEASURE_H
#define ZK_MEASURE_H

#include "base/err.h"
#include "base/plan.h"

/** Bytes per second, read and written together, that the threads move when they step pages of
 * this layout in memory. Blocks for a fifth of a second; 130 to 240 MB for each thread. 0, -ENOMEM,
 * -EAGAIN. */
int zk_measure_steps(const struct zb_layout *layout, unsigned threads, double *ret,
                     struct zb_err *err);

#endif
