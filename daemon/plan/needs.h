/*
 * needs.h - places on the data files that a job in memory needs: plan/needs.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_NEEDS_H
#define ZSD_NEEDS_H

#include "daemon/job/shard.h"

/** The shards as placement looks at them, in order of registration; new. NULL: no memory. */
struct zb_place_shard *zsd_place_shards(const struct zsd_job *job);
/** What a durable job in memory must be promised besides the rows of its saved versions (those of
 * this stamp): its trainable pages `times`, whatever no such row holds once, and spares for pages
 * in flight. 0 or -ENOMEM. */
int zsd_place_needs(const struct zsd_job *job, unsigned times, uint64_t stamp,
                    struct zb_needs *ret);
/** Promises what is needed for what is planned now. What needs less (`more` is false) never fails,
 * and a change of the saved job that is in progress ends by doing that itself. */
int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err);

#endif
