/* fsck.h - recomputes every counter of the store from its catalog, and compares. */
#ifndef ZSD_FSCK_H
#define ZSD_FSCK_H

#include "daemon/store/store.h"

#define ZSD_PROBLEMS_MAX 16u /* problems with a message; all are counted */

struct zsd_fsck_report {
    uint64_t jobs, versions, snapshots, rows, pages;
    uint64_t bytes; /* of all pages; shared pages count once */
    uint64_t sequence;
    uint64_t nproblems;
    char problems[ZSD_PROBLEMS_MAX][sizeof(((struct zb_err *)0)->text)];
};

typedef void zsd_fsck_done(void *arg, const struct zsd_fsck_report *report,
                           const struct zb_err *err);

/** Starts a run, or joins the one in progress. Loop thread; the core must have a store. done is
 * called once: err is NULL, or has the reason why the check was not possible. The catalog is read
 * on its own thread, between two changes, and delays no change for long. */
void zsd_fsck_start(struct zsd_core *core, zsd_fsck_done *done, void *arg);

#endif
