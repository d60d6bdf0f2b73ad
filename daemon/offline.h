/* offline.h - zshardd --fsck: checks a data directory that no daemon uses, without changing it. */
#ifndef ZSD_OFFLINE_H
#define ZSD_OFFLINE_H

#include "daemon/run/daemon.h"

/** Opens what config names, read-only, checks it as fsck does (show/fsck.h), then reads and
 * verifies every page; prints the result to standard output, and the progress to standard error if
 * that is a terminal. 0; -EBADMSG: it is damaged; -EBUSY: a daemon has it; -EINVAL: no --data;
 * another code: it could not be read. */
int zsd_offline_fsck(struct zsd *daemon, struct zb_err *err);

#endif
