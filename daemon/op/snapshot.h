/*
 * snapshot.h - snapshots, rollback, clone, destroy: op/snapshot.c has the model.
 */
#ifndef ZSD_OP_SNAPSHOT_H
#define ZSD_OP_SNAPSHOT_H

#include "daemon/net/conn.h"
#include "daemon/store/saved.h"

/** A commit of it is over: whoever waits for the next one gets it. */
void zsd_snap_next(struct zsd_saved *saved);
/** No commit of it will come: whoever waits for one hears why. */
void zsd_snap_cancel(struct zsd_saved *saved, const struct zb_err *why);
/** Destroys a saved job, in memory too; answers req. */
void zsd_saved_destroy(struct zsd_req *req, struct zsd_saved *saved);

#endif
