/*
 * change.h - the queue of changes: one durable change of the catalog after the other. Users take turns
 * (run/fair.h), so a user with many changes delays another one by one change. Those of a user keep
 * their order.
 *
 *     BEGIN ---> SYNC ---> CATALOG ---> COPIES ---> SLOTS ---> SETTLE ---> over     done() gets the
 *                                                                                   result
 *
 *     BEGIN    begin() decides the transaction from the current state, over several turns if that
 *              is long; no other change begins meanwhile
 *     SYNC     flushes the data files, for changes that set `sync`
 *     CATALOG  fill() adds long records, and the catalog commits, on the catalog's thread
 *     COPIES   commits the same to the copies of the catalog on the other data files, all at a time
 *     SLOTS    writes and flushes the commit slots of the data files
 *     SETTLE   settle() applies the change in memory, or undoes begin(); also over several turns
 *
 * Each transaction also has what has changed of the drained drives (drains.h).
 *
 * A change that only reads (`looks`) gives way when another change is queued: it ends with -EAGAIN,
 * and can be started again.
 */
#ifndef ZSD_CHANGE_H
#define ZSD_CHANGE_H

#include <stdatomic.h>

#include "daemon/disk/disk.h"
#include "daemon/run/fair.h"
#include "nvme/zn_catalog.h"

/** One durable change; embedded in the struct of its owner, which keeps it until done. */
struct zsd_change {
    bool sync;  /* flush the data files first, because pages were written for it */
    bool looks; /* changes nothing: fill() only reads the catalog, even if the store is poisoned */
    bool holds; /* with `looks`: it does not give way */
    struct zsd_flow *flow; /* of the user for whom it is; NULL: for none */
    /* Loop thread, first in the queue: puts the change into txn. 0; 1: incomplete, call again in
     * the next turn; or a negative errno with a message: the change fails. */
    int (*begin)(struct zsd_change *c, struct zb_err *err);
    /* The catalog's thread: adds long records, from data that does not change meanwhile. NULL:
     * there are none. */
    int (*fill)(struct zsd_change *c, struct zb_err *err);
    /* Loop thread, before the next change begins. err is NULL if the change is durable. False:
     * incomplete, call again in the next turn. NULL: there is nothing to settle. */
    bool (*settle)(struct zsd_change *c, const struct zb_err *err);
    /* Loop thread, once, not from inside zsd_change_start(). err is NULL if the change is
     * durable. */
    void (*done)(struct zsd_change *c, const struct zb_err *err);
    struct zn_txn *txn;
    /* owned by the queue */
    struct zsd_core *core;
    int state;
    atomic_bool asked; /* another change is queued: one with `looks` and without `holds` should end
                          soon, with -EAGAIN */
    bool poisons;      /* no change is possible after this failure */
    bool full;         /* the catalog had no space for it */
    bool doubt;        /* it failed, but may be durable: only the next start finds out */
    bool settling;     /* SETTLE has begun */
    uint64_t drains;   /* disk->drains, as the transaction has it */
    struct zn_catalog_size size; /* of the catalog after it, if it was committed */
    struct zb_err err;
    struct zn_slot slot;
    struct zsd_pio pio;
    struct zsd_task task;
    struct zsd_work work;
    struct zsd_turn turn; /* while it waits */
};
/** Queues it. */
void zsd_change_start(struct zsd_core *core, struct zsd_change *c);

#endif
