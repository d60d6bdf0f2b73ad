/*
 * discard.h - tells the drives which bytes hold nothing any more: the option `discard`.
 *
 * WHY. A drive that does not know that bytes are free copies them when it erases its flash. That costs
 * write bandwidth and wear, the more the fuller it is.
 *
 * WHAT. Ranges of the map that are free: a byte in the map has no holder, so that it may be written at
 * any time, and a discard is no more than that. What names it no more is durable by then. Free places
 * of a class stay as they are: they belong to a job, which writes them soon. At the start all that is
 * free counts as not discarded yet.
 *
 * MODEL. For each data file, a pass goes over the map, and takes a range of ZSD_DISCARD_LEAST to
 * ZSD_DISCARD_MOST bytes out of it. The engine discards it beside the loop (nvme/discard.c). Then it
 * goes back into the map:
 *
 *     free, stale --taken--> runs --ok--> free, clean
 *                             |  ^
 *                      -ENOSPC|  |after a time
 *                             v  |
 *                            holed
 *
 * One range at a time; after it the drive rests as long as the discard took. If the drive had a
 * transfer within the last second, ranges are shorter, and the rest is DISCARD_BUSY times as long.
 *
 * INVARIANTS
 *     D1  Nothing is written to a range while it is discarded. If there is no other free place, the
 *         range is lent (zsd_map_take_on()), and writes to it wait in its queue: pio.c. So no
 *         allocation fails because of a discard.
 *     D2  A range of a file that has no space (holed) is not lent. Until its space is allocated again
 *         nothing more is discarded there. One that was lent before is allocated again as well, and
 *         its bytes do not change.
 *
 * Loop thread only.
 */
#ifndef ZSD_DISCARD_H
#define ZSD_DISCARD_H

#include "daemon/disk/disk.h"

#define ZSD_DISCARD_LEAST (256 * ZB_KIB)
#define ZSD_DISCARD_MOST  (64 * ZB_MIB)

/** Begins what is due. */
void zsd_discards_tick(struct zsd_core *core, uint64_t now_ns);
/** Whether there is something to do, so that the tick is needed. */
bool zsd_discards_wanted(const struct zsd_core *core);
/** Bytes of a data file that have no space in its file system: 0, unless a discard was unlucky. */
uint64_t zsd_discard_holed_bytes(const struct zsd_core *core, unsigned path);
/** "on", "off", or why not, for people. */
const char *zsd_discard_text(const struct zsd_core *core, unsigned path);

#endif
