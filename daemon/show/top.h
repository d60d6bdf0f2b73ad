/*
 * top.h - the data of `zctl top`.
 */
#ifndef ZSD_TOP_H
#define ZSD_TOP_H

#include "daemon/run/core.h"

/** Call once per turn: samples the gauges that no event updates, such as waits for steps, buffers
 * in use, and the queues of the drives. */
void zsd_top_turn(struct zsd_core *core);

#endif
