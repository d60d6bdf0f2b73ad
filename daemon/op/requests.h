/*
 * requests.h - the handlers of requests: the rows of dispatch.c.
 */
#ifndef ZSD_REQUESTS_H
#define ZSD_REQUESTS_H

#include "daemon/net/conn.h"

/** Call when the connection has ended. Its rank leaves the job, which ends, too, if it is not kept
 * or not READY yet. */
void zsd_core_gone(struct zsd_conn *conn);
/** Whether jobs other than the connection's own have operations in progress. conn NULL: any job. */
bool zsd_core_others(const struct zsd *daemon, const struct zsd_conn *conn);

zsd_handler zsd_job_open, zsd_unit_define, zsd_shard_register, zsd_ready, zsd_job_close,
    zsd_job_destroy, zsd_job_share;
zsd_handler zsd_write, zsd_read, zsd_fetch, zsd_push, zsd_norms, zsd_note_put, zsd_note_get,
    zsd_step, zsd_skip, zsd_step_begin, zsd_step_classes, zsd_job_optimizer, zsd_abandon,
    zsd_tensor_norms, zsd_step_tensors, zsd_unit_sums;
zsd_handler zsd_tier_set, zsd_drive_set;   /* tier.c */
zsd_handler zsd_job_about;                 /* about.c */
zsd_handler zsd_quota_list, zsd_quota_set; /* quota.c */
zsd_handler zsd_restart;                   /* restart.c */
zsd_handler zsd_commit, zsd_progress;
zsd_handler zsd_snapshot, zsd_snapshots, zsd_rollback, zsd_clone, zsd_snapshot_destroy;
zsd_handler zsd_reader_open, zsd_reader_unit, zsd_reader_read, zsd_reader_close;

/** One-way: errors are not answered, but counted and logged. */
void zsd_release(struct zsd_conn *conn, const ProtobufCMessage *message);

#endif
