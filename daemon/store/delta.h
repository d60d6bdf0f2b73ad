/*
 * delta.h - durable changes of a saved job: commit, snapshot, rollback, clone and destroy.
 */
#ifndef ZSD_DELTA_H
#define ZSD_DELTA_H

#include "daemon/store/change.h"
#include "daemon/store/saved.h"

/** State of a change, from its beginning until it is settled. delta.c has the model. */
struct zsd_delta_run {
    struct zsd_version *fresh[2]; /* versions to add to the catalog */
    struct zsd_version **drops;   /* versions to delete from it */
    struct zsd_version **stays;   /* versions of the job that stay */
    struct zsd_row **puts;        /* rows to add */
    uint64_t *dels;               /* ids of rows to delete */
    uint32_t nfresh, ndrops, nstays;
    uint64_t nputs, ndels;
    uint32_t list, row;            /* position of the count of rows: fresh, then drops */
    int namesakes, images;         /* how it changes store->namesakes and store->images */
    uint64_t share_come, share_go; /* bytes of rows that other jobs of the user have, too */
    struct zb_needs come, go;   /* places that the saved job's rows will hold, and no longer hold */
    struct zsd_needs_walk walk; /* the count for the promise */
    bool decided;               /* plan() is complete */
    bool counted;               /* snap_add is counted in version->snapshots */
    bool flagged;               /* version->kept has its future value */
    bool manifest;              /* the units must be added to the catalog */
    bool applied;               /* applied, or failed; only counts are left to settle */
};

/**
 * A change of a saved job. plan() sets the state after the change. The records to write and delete
 * follow from that. When the change is durable, the saved job gets that state, and everything that
 * loses its last holder is freed (T2).
 */
struct zsd_delta {
    struct zsd_change change; /* the caller may set sync; the rest is private */
    struct zsd_saved *saved;
    /* Loop thread, first in the queue. committed and prepared are the current ones. May replace
     * them, set snap_add, and set `going` of snapshots. 0; 1: incomplete, call again in the next
     * turn, with no other change in between; or a negative errno with a message. */
    int (*plan)(struct zsd_delta *d, struct zb_err *err);
    /* Loop thread, once, in the turn in which the saved job gets its new state: updates whatever
     * requests that come before done() must see. NULL: nothing. */
    void (*applied)(struct zsd_delta *d);
    /* Loop thread, once. err is NULL if the change is durable. May free d. */
    void (*done)(struct zsd_delta *d, const struct zb_err *err);
    struct zsd_version *committed, *prepared; /* new ones are held by the owner */
    struct zsd_snap
        *snap_add; /* a new snapshot, with its version; owned by the saved job once durable,
                                  until then by the owner */
    bool grows;    /* committed may need more than is promised: zsd_saved_raise_part() */
    bool destroy;  /* deletes the job, with everything that it saved... */
    bool stays;    /* ...but only from the catalog: its incarnation continues */
    struct zsd_delta_run run; /* private */
};
void zsd_delta_start(struct zsd_delta *d);

#endif
