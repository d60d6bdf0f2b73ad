/*
 * change.h - the line of changes: one durable change of the catalog after the other.
 *
 *     BEGIN ---> SYNC ---> CATALOG ---> SLOTS ---> over     done() tells how
 *
 *     BEGIN    begin() decides, by what is true now, what the transaction is
 *     SYNC     flushes the data file, for changes that say so
 *     CATALOG  fill() adds what is long to write, and the catalog commits, on the catalog's thread
 *     SLOTS    writes and flushes the commit slot of the data file
 *
 * One that only looks gives way to whoever comes: it ends with -EAGAIN, and whoever started it may
 * start it again, at the end of the line.
 */
#ifndef ZSD_CHANGE_H
#define ZSD_CHANGE_H

#include <stdatomic.h>

#include "daemon/disk/disk.h"
#include "nvme/zn_catalog.h"

/** One durable change; embedded in whoever makes it, alive until done. */
struct zsd_change {
    bool sync;  /* the data file is flushed first: pages were written for it */
    bool looks; /* changes nothing: fill() looks at the catalog, also at one that is poisoned */
    bool holds; /* of one that looks: it does not give way */
    /* Loop thread, when its turn has come: puts what the change is into txn. 0, or a negative errno
     * with a sentence: nothing happens. */
    int (*begin)(struct zsd_change *c, struct zb_err *err);
    /* The catalog's thread: puts what is long to write, from what does not change meanwhile. NULL:
     * nothing. */
    int (*fill)(struct zsd_change *c, struct zb_err *err);
    /* Loop thread, once, not from inside zsd_change_start(): err is NULL when it is durable. */
    void (*done)(struct zsd_change *c, const struct zb_err *err);
    struct zn_txn *txn;
    /* the line's */
    struct zsd_core *core;
    int state;
    atomic_bool asked; /* somebody waits in the line: one that looks, and does not hold, ends soon,
                          with -EAGAIN */
    bool poisons;      /* nothing can be changed behind what failed */
    bool doubt;        /* and it may have happened: the next start finds out */
    struct zb_err err;
    struct zn_slot slot;
    struct zsd_pio pio;
    struct zsd_task task;
    struct zsd_work work;
    struct zb_list node;
};
/** Puts it at the end of the line. */
void zsd_change_start(struct zsd_core *core, struct zsd_change *c);

#endif
