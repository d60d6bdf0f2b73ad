/*
 * walk.h - a walk over what a job has many of (shards, pages), in parts over several turns.
 *
 * MODEL. Each turn runs part(), which handles as much as the turn has room for (run/turn.h). The job is
 * held meanwhile (J1). A walk ends when part() says so, or when the job has ended. done() hears the end,
 * and then over() frees what embeds the walk.
 *
 * Loop thread only.
 */
#ifndef ZSD_WALK_H
#define ZSD_WALK_H

#include "daemon/job/job.h"

/** Hears the end: later, never from inside the call that began the walk. err NULL: no failure. The job
 * may have ended meanwhile (its state says so). */
typedef void zsd_walked(struct zsd_job *job, const struct zb_err *err);

/** Embedded in the struct of its owner. */
struct zsd_walk {
    struct zsd_job *job;
    struct zb_err err;                   /* set by part(): why the walk ends */
    bool (*part)(struct zsd_walk *walk); /* the next part; true: that was the last */
    void (*over)(struct zsd_walk *walk); /* frees the owner's struct */
    zsd_walked *done;
    struct zsd_work work;
};

/** Begins with the next turn. part, over and done are set. */
void zsd_walk_start(struct zsd_walk *walk, struct zsd_job *job);

#endif
