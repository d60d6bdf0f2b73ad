/*
 * core.h - the core of the daemon: jobs, shards, placement and operations, behind the few calls
 * that the loop makes and the rows of requests. It knows neither libuv nor sockets.
 *
 * Loop thread only.
 */
#ifndef ZSD_CORE_H
#define ZSD_CORE_H

#include "daemon/net/conn.h"

/** Needs daemon->config, kernels, compute and engine. 0; -ENOMEM, -ENOSPC (host_bytes is too small
 * for the smallest ring): err has the sentence. */
int zsd_core_new(struct zsd *daemon, struct zb_err *err);
/** Ends every job. Compute and engine must be idle or still running (it drains them). NULL core:
 * fine. */
void zsd_core_free(struct zsd *daemon);

/** The connection ends: its rank leaves its job; a job that is not kept and loses a rank ends. */
void zsd_core_gone(struct zsd_conn *conn);

/** Once a turn, before the loop waits: resumes whoever became runnable, then kicks the engine. */
void zsd_core_turn(struct zsd *daemon);
/** About every 20 ms: requests past their deadline are answered. */
void zsd_core_tick(struct zsd *daemon, uint64_t now_ns);
/** Runs what is in progress to its end. Blocks: only where no loop runs. */
void zsd_core_settle(struct zsd *daemon);
/** Operations in progress: an orderly end waits for 0. */
unsigned zsd_core_busy(const struct zsd *daemon);
/** Does something wait for zsd_core_tick(): an operation, or a scrub, which goes at a rate and
 * which no end waits for. */
bool zsd_core_ticks(const struct zsd *daemon);
/** SIGTERM: from now on, new jobs and new steps are refused (-ECANCELED); running ones finish. */
void zsd_core_drain(struct zsd *daemon);
/** Nothing runs any more: steps that still wait are given up, and what durable jobs have beyond
 * their last commit is committed. */
void zsd_core_last(struct zsd *daemon);
/** The end is near: every job ends, and its ranks are told that it is the daemon that goes, before
 * their connections close and each would take the other for dead. */
void zsd_core_farewell(struct zsd *daemon);

/* Handlers, the rows of dispatch.c: message is of the row's request type, already decoded, and
 * lives only during the call. Each answers req exactly once, now or later. */
typedef void zsd_handler(struct zsd_req *req, const ProtobufCMessage *message);

zsd_handler zsd_job_open, zsd_unit_define, zsd_shard_register, zsd_ready, zsd_job_close,
    zsd_job_destroy, zsd_job_share;
zsd_handler zsd_write, zsd_read, zsd_fetch, zsd_push, zsd_norms, zsd_note_put, zsd_note_get,
    zsd_step, zsd_skip, zsd_step_begin;
zsd_handler zsd_list, zsd_jobs, zsd_tiers, zsd_stat;
zsd_handler zsd_tier_set;             /* plan/replan.c */
zsd_handler zsd_gpu_share;            /* plan/gpu_params.c */
zsd_handler zsd_top;                  /* top.c */
zsd_handler zsd_commit, zsd_progress; /* op/commit.c */
zsd_handler zsd_snapshot, zsd_snapshots, zsd_rollback, zsd_clone, zsd_snapshot_destroy;
zsd_handler zsd_reader_open, zsd_reader_unit, zsd_reader_read, zsd_reader_close; /* op/reader.c */
zsd_handler zsd_scrub, zsd_fsck, zsd_df;

/** One-way, so there is nothing to answer: what is wrong with it is counted and logged. */
void zsd_release(struct zsd_conn *conn, const ProtobufCMessage *message);

#endif
