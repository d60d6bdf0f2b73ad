/*
 * needs.h - places on the data files that a job in memory needs: plan/needs.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_NEEDS_H
#define ZSD_NEEDS_H

#include "daemon/job/shard.h"

/** Makes a table of the job's shards as input of placement, in order of registration. NULL: no
 * memory. */
struct zb_place_shard *zsd_place_shards(const struct zsd_job *job);
/** Counts the places that must be promised to a job in memory, in addition to the rows of its saved
 * versions: trainable pages of a durable job `times` times, pages that no row holds once, and
 * spares for pages in flight. going: rows of snapshots that are being destroyed count, too. Handles
 * at most `left` shards. 0: w->sum is complete; 1: call again; or -ENOMEM. */
int zsd_place_needs(const struct zsd_job *job, unsigned times, bool going, struct zsd_needs_walk *w,
                    uint64_t left);
/** Sets the promise to the needs of the current plan. more: the needs grew. A smaller promise never
 * fails; if a change of the saved job is in progress, the change sets it at its end. */
int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err);

#endif
