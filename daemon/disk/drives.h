/*
 * drives.h - the drives while they are in use: their measured speed, and which of them are drained.
 *
 * SPEED. It is measured from the traffic: bytes that were transferred, per second in which there
 * were transfers. A window ends after a second at the earliest, and has some transfers. It counts
 * as loaded if there were two or more of them at a time, on average: fewer show the latency of the
 * drive, not its throughput. Loaded windows are averaged. Until the first one, the speed is that of
 * the start (zsd_paths_measure()). New pages are spread by speed: zsd_path_weight().
 *
 * DRAINED. Nothing new is placed on a drained drive. Pages that are on it move: a step writes each
 * page to a new place, on another drive; what no step writes is moved by store/drain.c. While the
 * others have no room, its places are used as before. A drive is drained on request, and by itself
 * if it
 *
 *     fails    drive_errors transfers have failed within an hour
 *     is slow  its speed was below drive_slow percent of its peers' for ZSD_DRIVE_SLOW_NS, each
 *              compared with its own speed at the start
 *     stalls   there are transfers, and none has ended for drive_stall seconds
 *
 * The last drive that is in use is never drained. A drive is used again on request. The catalog has
 * which drives are drained, and why, so that a start drains them again: store/drains.h.
 *
 * Loop thread only.
 */
#ifndef ZSD_DRIVES_H
#define ZSD_DRIVES_H

#include "daemon/disk/disk.h"

#define ZSD_DRIVE_WINDOW_NS UINT64_C(1000000000)
#define ZSD_DRIVE_WINDOW_N  8u /* transfers of a window, at least */
#define ZSD_DRIVE_SLOW_NS   UINT64_C(30000000000)

static inline bool zsd_path_drained(const struct zsd_core *core, unsigned path)
{
    return core->disk->drained >> path & 1;
}

/** Measures, and drains what is slow or stalls. */
void zsd_drives_tick(struct zsd_core *core, uint64_t now_ns);
/** Call when a transfer has failed: drains the drive if it were too many. */
void zsd_drive_failed(struct zsd_core *core, unsigned path, int rc, uint64_t now_ns);

/** Drains a data file. Nothing changes if it is drained already. 0; -EINVAL: there is no such file,
 * or no other one is in use. */
int zsd_drive_drain(struct zsd_core *core, unsigned path, enum zsd_drain drain, const char *why,
                    struct zb_err *err);
/** Uses it again, as it was before. 0; -EINVAL: there is no such file. */
int zsd_drive_use(struct zsd_core *core, unsigned path, struct zb_err *err);

/** The measured speed, of reads and writes together: bytes per second; 0: it is not known. */
static inline uint64_t zsd_drive_rate(const struct zsd_core *core, unsigned path)
{
    uint64_t rate = core->disk->lines[path].drive.rate;

    return rate > 0 ? rate : core->daemon->path_rates[path].mixed;
}

/** How long no transfer has ended there, although there are some; 0: there are none. */
uint64_t zsd_drive_waits_ns(const struct zsd_core *core, unsigned path, uint64_t now_ns);
/** "in use", or why it is drained. */
const char *zsd_drain_text(enum zsd_drain drain);
/** The same, and whether no page is left on it. */
const char *zsd_drive_state(const struct zsd_drive *d);

#endif
