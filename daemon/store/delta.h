/*
 * delta.h - changes of a saved job: commit, snapshot, rollback, clone and destroy are all of this
 * form.
 */
#ifndef ZSD_DELTA_H
#define ZSD_DELTA_H

#include "daemon/store/change.h"
#include "daemon/store/saved.h"

/** Of a change, from its beginning until it is settled. */
struct zsd_delta_run {
    struct zsd_version *fresh[2]; /* the catalog does not know them yet */
    struct zsd_version **drops;   /* it forgets them */
    struct zsd_version **stays;   /* it has them, and keeps them */
    struct zsd_row **puts;
    uint64_t *dels;
    uint32_t nfresh, ndrops, nstays;
    uint64_t nputs, ndels;
    uint32_t list, row;         /* counted up to here: fresh, then drops */
    struct zb_needs come, go;   /* what the saved job's rows hold more then, and less */
    struct zsd_needs_walk walk; /* of the promise */
    bool decided;               /* what the change is */
    bool counted;               /* snap_add, in its version */
    bool flagged;               /* which versions are kept: as it will be */
    bool manifest;              /* the catalog does not have it yet */
    bool applied;               /* it is as it is from now on, but for counts */
};

/**
 * A change of a saved job. plan() sets the desired state. Which records are written and deleted
 * follows from that. When the change is durable, the saved job gets that state, and everything that
 * loses its last holder is freed (T2).
 */
struct zsd_delta {
    struct zsd_change change; /* the caller may set sync; the rest is private */
    struct zsd_saved *saved;
    /* Loop thread, at the front of the queue; committed and prepared are the current ones. May
     * change them, set snap_add, and `going` of snapshots. 0; 1: that was a part of it, and it is
     * called again in the next turn, with no other change between; or a negative errno with a message.
     */
    int (*plan)(struct zsd_delta *d, struct zb_err *err);
    /* Loop thread, once, in the turn in which it is durable: the saved job has its new state. NULL:
     * nothing. Requests between this and done() must see all of it. */
    void (*applied)(struct zsd_delta *d);
    /* Loop thread, once; err NULL: it is durable. May free d. */
    void (*done)(struct zsd_delta *d, const struct zb_err *err);
    struct zsd_version *committed, *prepared; /* the owner holds new ones */
    struct zsd_snap *snap_add; /* its version is set; belongs to the saved job when it is durable,
                                  until then to the owner */
    bool grows;                /* committed needs more than is promised: zsd_saved_raise_part() */
    bool destroy;              /* deletes the job, with everything that it saved... */
    bool stays;                /* ...but only from the catalog: its incarnation continues */
    struct zsd_delta_run run;  /* private */
};
void zsd_delta_start(struct zsd_delta *d);

#endif
