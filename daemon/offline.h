/* offline.h - zshardd --fsck, --retire and --shrink: work on data directories that no daemon uses. */
#ifndef ZSD_OFFLINE_H
#define ZSD_OFFLINE_H

#include "daemon/run/daemon.h"

/** Opens the data directories of config read-only, checks them as fsck does (show/fsck.h), then
 * reads and verifies every page. Prints the result to standard output, and the progress to standard
 * error if that is a terminal. 0; -EBADMSG: damaged; -EBUSY: a daemon uses it; -EINVAL: no --data;
 * another code: it could not be read. */
int zsd_offline_fsck(struct zsd *daemon, struct zb_err *err);

/** Moves all saved pages off data file config.retire, then removes it. Says so on standard output.
 * 0; -ENOSPC there is no room: nothing was moved; -EPERM: it is number 1; -EINVAL: there is no such
 * file, or no --data; another code: what was moved stays moved, and the next call goes on. */
int zsd_offline_retire(struct zsd *daemon, struct zb_err *err);

/** Moves what lies beyond config.shrink_bytes in data file config.shrink to free places, then cuts
 * the file. 0, also if it has that size already; -ENOSPC there is no room: nothing was moved; -EINVAL:
 * there is no such file, it is smaller, or no --data; another code: the next call goes on. */
int zsd_offline_shrink(struct zsd *daemon, struct zb_err *err);

#endif
