/*
 * top.h - what `zctl top` shows.
 */
#ifndef ZSD_TOP_H
#define ZSD_TOP_H

#include "daemon/run/core.h"

/** Once per turn, samples values without a hook of their own: waits for steps, buffers in use, the
 * queues of the drives. */
void zsd_top_turn(struct zsd_core *core);

#endif
