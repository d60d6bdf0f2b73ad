/*
 * needs.h - places on the data files that a job in memory needs: plan/needs.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_NEEDS_H
#define ZSD_NEEDS_H

#include "daemon/job/shard.h"

/** The shards as input of placement, in order of registration; new. NULL: no memory. */
struct zb_place_shard *zsd_place_shards(const struct zsd_job *job);
/** Counts the places that must be promised to a durable job in memory, in addition to the rows of its
 * saved versions (of all, or of those that are not going): its trainable pages `times` times, pages
 * that no such row holds once, and spares for pages in flight. Counts `left` of its shards. 1: w->sum
 * is complete; 0: it is not yet; or -ENOMEM. */
int zsd_place_needs(const struct zsd_job *job, unsigned times, bool going, struct zsd_needs_walk *w,
                    uint64_t left);
/** Promises the needs of the current plan. A smaller promise (`more` is false) never fails; if a
 * change of the saved job is in progress, that does it at its end. */
int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err);

#endif
