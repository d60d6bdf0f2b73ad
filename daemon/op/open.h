/*
 * open.h - ranks open jobs: op/open.c has the model.
 */
#ifndef ZSD_OP_OPEN_H
#define ZSD_OP_OPEN_H

#include "daemon/run/core.h"

/** Deferred by zsd_room_changed(): waiting opens and placements check again. */
void zsd_room_on_work(struct zsd_work *work);

#endif
