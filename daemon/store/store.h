/*
 * store.h - data that survives the trainers and the daemon: saved jobs (saved.h), their versions,
 * and the pages of these (version.h).
 *
 * MODEL. All of it is in memory, owned by the loop thread; the catalog (nvme/zn_catalog.h) only
 * keeps it. A change is prepared here, made durable by the queue of changes (change.h), and becomes
 * visible only then.
 *
 * A flush that failed, and a catalog that is poisoned, poison the store: every later change fails
 * with the same message until the daemon starts again. -ENOSPC of the catalog fails one change.
 *
 * INVARIANTS
 *
 *     T1  The catalog at the sequence number of the slots equals the state in memory, except for
 *         the change that runs. An extent that the catalog names is held by a row that is kept.
 *
 *     T2  An extent is freed only when the change that deletes its last record is durable.
 *
 *     T3  Generations never repeat: boot number << 40 | count; the boot number is committed before
 *         the first page is written.
 */
#ifndef ZSD_STORE_H
#define ZSD_STORE_H

#include "daemon/store/saved.h"
#include "nvme/zn_catalog.h"

/** The store. Read by fsck, df, scrub; changed in this folder only. */
struct zsd_store {
    struct zsd_core *core;
    struct zn_catalog *catalog; /* on the catalog's thread only, once the loop runs */
    struct zb_list saved;       /* by number */
    struct zb_list line;        /* queue of struct zsd_change: the first runs */
    struct zb_list rows;        /* every row that has places */
    uint64_t boot;              /* T3 */
    uint64_t next_id;           /* of rows, versions, snapshots */
    uint64_t sequence;          /* of the newest change that is over */
    uint64_t stamp;             /* of the newest loop over rows */
    struct zb_err poisoned;     /* code 0: it is not */
};

/** Opens the catalog (daemon->catalog_path), checks it, and creates all objects in it. err has what
 * is wrong. Blocks: at the start only. Logs what it found. Without a catalog's path or a data file
 * there is no store, and it returns 0. */
int zsd_store_open(struct zsd_core *core, struct zb_err *err);
/** Whether there is a store that is not poisoned and has no saved job. */
bool zsd_store_empty(const struct zsd_core *core);
/** The queue is empty, and there are no jobs in memory. */
void zsd_store_close(struct zsd_core *core);

#endif
