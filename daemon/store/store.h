/*
 * store.h - what survives the trainers and the daemon: saved jobs (saved.h), their versions, and the
 * pages that these hold (version.h).
 *
 * MODEL. All of it is in memory, owned by the loop thread; the catalog (nvme/zn_catalog.h) only keeps
 * it. A change is prepared here, made durable by the line of changes (change.h), and only then seen by
 * anybody.
 *
 * A flush that failed, and a catalog that is poisoned, poison the store: every later change fails
 * with the same message until the daemon starts again. -ENOSPC of the catalog fails one change.
 *
 * INVARIANTS
 *
 *     T1  What the catalog says at the slots' sequence is what is in memory, but for the change that
 *         is in the line. An extent that the catalog names is held by a row that is kept.
 *
 *     T2  An extent is given back only when the change that forgets it is durable.
 *
 *     T3  Generations never repeat: boot number << 40 | count; the boot number is committed before the
 *         first page is written.
 */
#ifndef ZSD_STORE_H
#define ZSD_STORE_H

#include "daemon/store/saved.h"
#include "nvme/zn_catalog.h"

/** What the store knows. Read by fsck, df, scrub; changed in this folder only. */
struct zsd_store {
    struct zsd_core *core;
    struct zn_catalog *catalog; /* on the catalog's thread only, once the loop runs */
    struct zb_list saved;       /* by number */
    struct zb_list line;        /* struct zsd_change: the first runs */
    struct zb_list rows;        /* every row that has places */
    uint64_t boot;              /* T3 */
    uint64_t next_id;           /* of rows, versions, snapshots */
    uint64_t sequence;          /* of the newest change that is over */
    uint64_t stamp;             /* of the newest walk over rows */
    struct zb_err poisoned;     /* code 0: it is well */
};

/** Opens the catalog (daemon->catalog_path), checks it, and makes everything that it says: err
 * names what is wrong. Blocks: at the start only. Logs what it found. Without a catalog's path or a
 * data file there is no store, and it returns 0. */
int zsd_store_open(struct zsd_core *core, struct zb_err *err);
/** There is a store, it is well, and no job is saved in it. */
bool zsd_store_empty(const struct zsd_core *core);
/** Nothing is in the line any more, and jobs are gone. */
void zsd_store_close(struct zsd_core *core);

#endif
