/*
 * commit.h - commits of a job in memory: op/commit.c has the model.
 */
#ifndef ZSD_OP_COMMIT_H
#define ZSD_OP_COMMIT_H

#include "daemon/job/job.h"

/**
 * Saves the state of the job as a version, and commits or prepares it. The job is READY or
 * STEPPING, and nothing changes its pages until done; err NULL: it is durable. save_err: the error
 * of pages that a step could not save, if any.
 */
void zsd_commit_start(struct zsd_job *job, enum zsd_commit_what what, const struct zb_err *save_err,
                      void (*done)(struct zsd_job *job, const struct zb_err *err));
/** Whether the job can be committed (prepared) now: 0, or a negative errno and the reason. */
int zsd_commit_check(const struct zsd_job *job, struct zb_err *err);
/** Whether the state of the job is the committed one. */
bool zsd_commit_has(const struct zsd_job *job);
/** The row that a commit of the job is building, which holds the places of *ret_pages pages; or
 * NULL. */
const struct zsd_row *zsd_commit_row(const struct zsd_job *job, uint32_t *ret_pages);
/** At the end of the daemon: commits the steps that a job made since its last commit. */
void zsd_commit_last(struct zsd_job *job);

#endif
