/*
 * change.h - the queue of changes: one durable change of the catalog after the other.
 *
 *     BEGIN ---> SYNC ---> CATALOG ---> SLOTS ---> SETTLE ---> over     done() gets the result
 *
 *     BEGIN    begin() decides the transaction, by the current state: in parts, if that is long;
 *              meanwhile no other change begins
 *     SYNC     flushes the data file, for changes that set `sync`
 *     CATALOG  fill() adds long records, and the catalog commits, on the catalog's thread
 *     SLOTS    writes and flushes the commit slot of the data file
 *     SETTLE   settle() makes it so in memory, or undoes what begin() did: in parts, too
 *
 * A change that only reads (`looks`) gives way when another change is queued: it ends with -EAGAIN,
 * and can be started again, at the end of the queue.
 */
#ifndef ZSD_CHANGE_H
#define ZSD_CHANGE_H

#include <stdatomic.h>

#include "daemon/disk/disk.h"
#include "nvme/zn_catalog.h"

/** One durable change; embedded in the struct of its owner, which keeps it until done. */
struct zsd_change {
    bool sync;  /* the data file is flushed first: pages were written for it */
    bool looks; /* changes nothing: fill() only reads the catalog, even if that is poisoned */
    bool holds; /* if it only reads: it does not give way */
    /* Loop thread, at the front of the queue: puts the change into txn. 0; 1: that was a part of it, and
     * it is called again in the next turn; or a negative errno with a message: nothing happens. */
    int (*begin)(struct zsd_change *c, struct zb_err *err);
    /* The catalog's thread: adds long records, from data that does not change meanwhile. NULL:
     * nothing. */
    int (*fill)(struct zsd_change *c, struct zb_err *err);
    /* Loop thread, before the next change begins; err is NULL when it is durable. False: the rest is
     * for the next turn, in which it is called again. NULL: nothing is to be settled. */
    bool (*settle)(struct zsd_change *c, const struct zb_err *err);
    /* Loop thread, once, not from inside zsd_change_start(): err is NULL when it is durable. */
    void (*done)(struct zsd_change *c, const struct zb_err *err);
    struct zn_txn *txn;
    /* of the queue */
    struct zsd_core *core;
    int state;
    atomic_bool asked; /* another change is queued: one that only reads, and does not hold, ends
                          soon, with -EAGAIN */
    bool poisons;      /* no change is possible after this failure */
    bool doubt;        /* it may have happened all the same: the next start finds out */
    bool settling;     /* SETTLE has begun */
    struct zb_err err;
    struct zn_slot slot;
    struct zsd_pio pio;
    struct zsd_task task;
    struct zsd_work work;
    struct zb_list node;
};
/** Queues it. */
void zsd_change_start(struct zsd_core *core, struct zsd_change *c);

#endif
