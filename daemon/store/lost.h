/*
 * lost.h - versions whose pages were on a data file that is missing (--without). They stay in the
 * catalog until they are destroyed, and cannot be opened, read or returned to.
 */
#ifndef ZSD_LOST_H
#define ZSD_LOST_H

#include "daemon/store/store.h"

/** 0; -EIO, with a message: pages of the version are lost. NULL is fine. */
int zsd_version_whole(const struct zsd_core *core, const struct zsd_version *v, struct zb_err *err);
/** Logs each job and snapshot that is lost. */
void zsd_lost_log(const struct zsd_store *store);

#endif
