/*
 * snapshot.h - snapshots, clones, rollback, destroy: op/snapshot.c has the model.
 */
#ifndef ZSD_OP_SNAPSHOT_H
#define ZSD_OP_SNAPSHOT_H

#include "daemon/net/conn.h"
#include "daemon/store/saved.h"

/** Call at the end of a commit: answers requests that wait for the next commit. */
void zsd_snap_next(struct zsd_saved *saved);
/** Rejects requests that wait for a commit, with `why`. */
void zsd_snap_cancel(struct zsd_saved *saved, const struct zb_err *why);
/** The saved job that a request may change; with `unkept`, also that of a job in memory that has
 * never committed. NULL: req was answered. */
struct zsd_saved *zsd_snap_saved(struct zsd_req *req, uint64_t owner, const char *name,
                                 bool unkept);
/** The version of a snapshot name ("": the commit). NULL: err has the reason. */
struct zsd_version *zsd_snap_version(const struct zsd_saved *saved, const char *name,
                                     struct zb_err *err);
/** Answers with the description of a snapshot; snap NULL: of a commit. */
void zsd_snap_reply(struct zsd_req *req, const struct zsd_saved *saved, const struct zsd_version *v,
                    const struct zsd_snap *snap);

/** Destroys a saved job and its incarnation in memory; answers req. op/rollback.c */
void zsd_saved_destroy(struct zsd_req *req, struct zsd_saved *saved);

#endif
