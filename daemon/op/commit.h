/*
 * commit.h - commits of a job in memory: op/commit.c has the model.
 */
#ifndef ZSD_OP_COMMIT_H
#define ZSD_OP_COMMIT_H

#include "daemon/job/job.h"

/**
 * Saves the state of the job as a version, and commits or prepares it. The job must be READY or
 * STEPPING, and its pages must not change until done().
 *
 * @param save_err  the error of pages that a step could not save: the commit fails with it. Or NULL
 * @param done      err NULL: the version is durable
 */
void zsd_commit_start(struct zsd_job *job, enum zsd_commit_what what, const struct zb_err *save_err,
                      void (*done)(struct zsd_job *job, const struct zb_err *err));
/** Whether the job can be committed (prepared) now: 0, or a negative errno and the reason. */
int zsd_commit_check(const struct zsd_job *job, struct zb_err *err);
/** Whether the state of the job is the committed one. */
bool zsd_commit_has(const struct zsd_job *job);
/** The row that a commit of the job is building, or NULL. It holds the places of its first
 * *ret_pages pages. */
const struct zsd_row *zsd_commit_row(const struct zsd_job *job, uint32_t *ret_pages);
/** Counts a commit that has ended. err NULL: it began at began_ns and is durable, or prepared; else
 * it failed. A refusal that is the caller's fault is not counted. */
void zsd_commit_count(struct zsd_job *job, uint64_t began_ns, const struct zb_err *err);
/** Number of shards that a commit in progress has saved. */
uint32_t zsd_commit_progress(const struct zsd_job *job);
/** Call when the daemon ends: commits the steps that the job has made since its last commit. */
void zsd_commit_last(struct zsd_job *job);

#endif
