/*
 * drain.h - moves saved pages off drained drives (disk/drives.h), while the daemon runs: those of
 * snapshots, of jobs that are not in memory, and of whatever no step writes.
 *
 * A pass walks over all rows, and moves one page at a time: read, verify, write to a new place. After
 * some pages, a change of the catalog names them at their new places, in all rows that share them; only
 * then are the old ones freed. A page that others hold too stays: a job in memory that works with it,
 * or a reader of a version that was destroyed. The tick starts a pass when a drained drive holds
 * pages, and another one some time after the last.
 *
 * Loop thread only.
 */
#ifndef ZSD_DRAIN_H
#define ZSD_DRAIN_H

#include "daemon/disk/extents.h"
#include "daemon/run/core.h"

/** Starts a pass if one is due. */
void zsd_drain_tick(struct zsd_core *core, uint64_t now_ns);
/** Whether a drained drive holds pages, so that the tick is needed. */
bool zsd_drain_wanted(const struct zsd_core *core);
/** Starts a pass, unless one runs, or nothing is to be done. */
void zsd_drain_start(struct zsd_core *core);
/** The pass that runs ends soon, and no other one begins. */
void zsd_drain_end(struct zsd_core *core);
/** When nothing is in progress any more. */
void zsd_drain_free(struct zsd_core *core);
/** Adds what it was promised, and what is booked for that. 0 or -ENOMEM. */
int zsd_drain_promised(const struct zsd_core *core, struct zb_needs *promise,
                       struct zsd_account *held);

#endif
