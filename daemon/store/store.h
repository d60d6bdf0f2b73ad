/*
 * store.h - data that survives the trainers and the daemon: saved jobs (saved.h), their versions,
 * and the pages of these (version.h).
 *
 * MODEL. All of it is in memory, owned by the loop thread; the catalog (nvme/zn_catalog.h) makes it
 * durable. A change is prepared here, made durable by the queue of changes (change.h), and becomes
 * visible only then.
 *
 * A failed flush, and a failed commit of the catalog, poison the store: every later change fails
 * with the same message until the daemon is restarted. -ENOSPC of the catalog fails only its
 * change.
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

#include "daemon/store/record.h"
#include "daemon/store/saved.h"
#include "nvme/zn_catalog.h"

/** The store. Read by fsck, df, scrub; changed in this folder only. */
struct zsd_store {
    struct zsd_core *core;
    /* Once the loop runs, used only by the change that runs: the pool has several threads, and a catalog
     * is used by one at a time. */
    struct zn_catalog *catalog;
    uint64_t catalog_bytes;    /* of its file, after the newest durable change */
    struct zsd_copies *copies; /* of the catalog: copies.h; NULL: none */
    struct zsd_drainer *drain; /* drain.h; NULL: no drive was drained yet */
    struct zb_list saved;      /* by number */
    struct zsd_change *runs;   /* NULL: none, and none waits */
    struct zsd_fair line;      /* the changes that wait: by user */
    struct zsd_flow house;     /* changes of no user */
    struct zb_list rows;       /* all rows that have places: rows.h */
    struct zb_list walks;      /* struct zsd_row_walk, over rows */
    uint64_t boot;             /* T3 */
    uint64_t next_id;          /* of rows, versions, snapshots */
    uint64_t sequence;         /* of the newest durable change */
    uint64_t namesakes;        /* saved jobs whose name an earlier one of another user has */
    uint64_t images;           /* in the catalog */
    uint64_t drains;           /* disk->drains, as the catalog has it: drains.h */
    uint64_t stamp;            /* of the newest loop over rows or versions */
    struct zb_err poisoned;    /* code 0: it is not; -EROFS: it is open read-only */
    struct zb_err full; /* the last change failed because the catalog had no space; code 0: no */
};

/** The record of the store, with so many more namesakes and images. */
struct zsd_store_record zsd_store_record(const struct zsd_store *store, int namesakes, int images);
/** Whether another saved job has the same name. */
bool zsd_store_namesake(const struct zsd_saved *saved);

/** Commits a new boot number (T3); blocks: at the start only. 0 or a negative errno. */
int zsd_store_boot(struct zsd_store *store, struct zb_err *err);

/** Opens the catalog (daemon->catalog_path), checks it, and makes all of its objects in memory.
 * Logs the saved jobs. Blocks: at the start only. 0; or a negative errno: err has the message.
 * Without a catalog's path or a data file there is no store, and it returns 0. */
int zsd_store_open(struct zsd_core *core, struct zb_err *err);
/** Whether there is a store that is not poisoned and has no saved job. */
bool zsd_store_empty(const struct zsd_core *core);
/** Closes it. The queue must be empty, and no job in memory. NULL store: fine. */
void zsd_store_close(struct zsd_core *core);

#endif
