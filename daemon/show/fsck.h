/* fsck.h - every counter of the store, computed again from its catalog, and compared. */
#ifndef ZSD_FSCK_H
#define ZSD_FSCK_H

#include "daemon/store/store.h"

#define ZSD_PROBLEMS_MAX 16u /* reported; all are counted */

struct zsd_fsck_report {
    uint64_t jobs, versions, snapshots, rows, pages;
    uint64_t bytes; /* of all pages, each once */
    uint64_t sequence;
    uint64_t nproblems;
    char problems[ZSD_PROBLEMS_MAX][sizeof(((struct zb_err *)0)->text)];
};

typedef void zsd_fsck_done(void *arg, const struct zsd_fsck_report *report,
                           const struct zb_err *err);

/** Loop thread; the core has a store. done, once: err NULL, or the reason why it could not check.
 * The catalog is read on its own thread, between two changes, which never wait long. A run in
 * progress is joined. */
void zsd_fsck_start(struct zsd_core *core, zsd_fsck_done *done, void *arg);

#endif
