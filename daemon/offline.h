/* offline.h - zshardd --fsck: checks a data directory that no daemon uses, without changing it. */
#ifndef ZSD_OFFLINE_H
#define ZSD_OFFLINE_H

#include "daemon/run/daemon.h"

/** Opens the data directories of config read-only, checks them as fsck does (show/fsck.h), then
 * reads and verifies every page. Prints the result to standard output, and the progress to standard
 * error if that is a terminal. 0; -EBADMSG: damaged; -EBUSY: a daemon uses it; -EINVAL: no --data;
 * another code: it could not be read. */
int zsd_offline_fsck(struct zsd *daemon, struct zb_err *err);

#endif
