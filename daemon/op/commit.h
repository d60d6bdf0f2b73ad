/*
 * commit.h - commits of a job in memory: op/commit.c has the model.
 */
#ifndef ZSD_OP_COMMIT_H
#define ZSD_OP_COMMIT_H

#include "daemon/job/job.h"

/**
 * Saves what the job has, as a version, and commits or prepares it. The job is READY or STEPPING,
 * and nothing changes its pages until done; err NULL: it is durable. save_err: pages that a step
 * could not save, if any.
 */
void zsd_commit_start(struct zsd_job *job, enum zsd_commit_what what, const struct zb_err *save_err,
                      void (*done)(struct zsd_job *job, const struct zb_err *err));
/** Why the job cannot be committed (prepared) now, if so: 0, or a negative errno. */
int zsd_commit_check(const struct zsd_job *job, struct zb_err *err);
/** What the job has is what is committed. */
bool zsd_commit_has(const struct zsd_job *job);
/** The row that a commit of the job is making, and holds places of that many pages; NULL: none. */
const struct zsd_row *zsd_commit_row(const struct zsd_job *job, uint32_t *ret_pages);
/** The daemon is ending: what a job has beyond its last commit is saved. */
void zsd_commit_last(struct zsd_job *job);

#endif
