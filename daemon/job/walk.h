/*
 * walk.h - a walk over the shards or pages of a job, in parts over several turns.
 *
 * MODEL. Each turn runs part(), which handles as much as the turn has room for (run/turn.h). The
 * job is held meanwhile (J1). A walk ends when part() returns true, or when the job has ended. Then
 * done() is called, if there is one, and over() frees the struct that embeds the walk.
 *
 * Loop thread only.
 */
#ifndef ZSD_WALK_H
#define ZSD_WALK_H

#include "daemon/job/job.h"

/** Called at the end of a walk, never from inside the call that began it. err NULL: success, unless
 * the job has ended meanwhile: check its state. */
typedef void zsd_walked(struct zsd_job *job, const struct zb_err *err);

/** Embedded in the struct of its owner. */
struct zsd_walk {
    struct zsd_job *job;
    struct zb_err err;                   /* set by part(): why the walk ends */
    bool (*part)(struct zsd_walk *walk); /* the next part; true: that was the last */
    void (*over)(struct zsd_walk *walk); /* frees the owner's struct */
    zsd_walked *done;                    /* may be NULL */
    struct zsd_work work;
};

/** Begins with the next turn. part and over must be set. */
void zsd_walk_start(struct zsd_walk *walk, struct zsd_job *job);

#endif
