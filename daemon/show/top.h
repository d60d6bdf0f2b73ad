/*
 * top.h - what `zctl top` shows.
 */
#ifndef ZSD_TOP_H
#define ZSD_TOP_H

#include "daemon/run/core.h"

/** Looks once a turn at what is not worth a hook: who waits for steps, buffers in use, the lines
 * before the drives. */
void zsd_top_turn(struct zsd_core *core);

#endif
