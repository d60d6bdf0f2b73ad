/*
 * delta.h - changes of a saved job: commit, snapshot, rollback, clone and destroy are all of this
 * form.
 */
#ifndef ZSD_DELTA_H
#define ZSD_DELTA_H

#include "daemon/store/change.h"
#include "daemon/store/saved.h"

/**
 * A change of a saved job. plan() sets the desired state. Which records are written and deleted
 * follows from that. When the change is durable, the saved job gets that state, and everything that
 * loses its last holder is freed (T2).
 */
struct zsd_delta {
    struct zsd_change change; /* the caller may set sync; the rest is private */
    struct zsd_saved *saved;
    /* Loop thread, at the front of the queue; committed and prepared are the current ones. May
     * change them, set snap_add, and `going` of snapshots. 0, or a negative errno with a message.
     */
    int (*plan)(struct zsd_delta *d, struct zb_err *err);
    /* Loop thread, once; err NULL: it is durable. May free d. */
    void (*done)(struct zsd_delta *d, const struct zb_err *err);
    struct zsd_version *committed, *prepared; /* the owner holds new ones */
    struct zsd_snap *snap_add; /* its version is set; belongs to the saved job when it is durable,
                                  until then to the owner */
    bool grows;                /* committed needs more than is promised: see zsd_saved_raise() */
    bool destroy;              /* deletes the job, with everything that it saved... */
    bool stays;                /* ...but only from the catalog: its incarnation continues */
    /* private */
    struct zsd_version *fresh[2]; /* not in the catalog yet */
    struct zsd_version **drops;   /* deleted from it */
    struct zsd_row **puts;
    uint64_t *dels;
    uint32_t nfresh, ndrops, nputs, ndels;
    bool counted; /* snap_add, in its version */
};
void zsd_delta_start(struct zsd_delta *d);

#endif
