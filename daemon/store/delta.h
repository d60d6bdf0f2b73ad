/*
 * delta.h - changes of a saved job: commit, snapshot, rollback, clone and destroy are all of this
 * form.
 */
#ifndef ZSD_DELTA_H
#define ZSD_DELTA_H

#include "daemon/store/change.h"
#include "daemon/store/saved.h"

/**
 * What becomes of a saved job: all that commit, snapshot, rollback, clone and destroy are. plan()
 * says what shall be; which records come and go follows from that, and when the change is durable
 * the saved job is so. Whatever loses its last holder is freed then (T2).
 */
struct zsd_delta {
    struct zsd_change change; /* its sync may be set; all else is ours */
    struct zsd_saved *saved;
    /* Loop thread, when its turn has come; committed and prepared are as they are now. May change
     * them, set snap_add, and `going` of snapshots. 0, or a negative errno with a sentence. */
    int (*plan)(struct zsd_delta *d, struct zb_err *err);
    /* Loop thread, once; err NULL: it is so. May free d. */
    void (*done)(struct zsd_delta *d, const struct zb_err *err);
    struct zsd_version *committed, *prepared; /* the owner holds what is new of them */
    struct zsd_snap *snap_add; /* its version is known; the saved job's when it is durable, else the
                                  owner's still */
    bool grows;   /* committed needs more than there is promised: see zsd_saved_raise() */
    bool destroy; /* the job goes, with all that it has... */
    bool stays;   /* ...from the catalog only: its incarnation goes on */
    /* private */
    struct zsd_version *fresh[2]; /* the catalog does not know them yet */
    struct zsd_version **drops;   /* it forgets them */
    struct zsd_row **puts;
    uint64_t *dels;
    uint32_t nfresh, ndrops, nputs, ndels;
    bool counted; /* snap_add, in its version */
};
void zsd_delta_start(struct zsd_delta *d);

#endif
