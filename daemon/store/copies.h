/*
 * copies.h - copies of the catalog, one next to each data file but the first, which has the catalog
 * itself. If the first drive is lost, or its catalog is damaged, the newest copy replaces it.
 *
 * MODEL. A copy is a catalog of its own (nvme/zn_catalog.h), with the same identity, records and
 * sequence number. Each change is committed to the catalog, then to the copies, and only then to the
 * slots. So after a crash the catalog and the copies are at the sequence number of the slots, or one
 * ahead, and each of them has all that was acknowledged.
 *
 * A copy that fails is given up, with a log event. No change fails because of it. If there was no
 * space for it, later changes make it again; otherwise the next start does. The start makes each copy
 * that is not at the catalog's sequence number.
 *
 * Loop thread only; the copies' own work is done by threads of daemon->catalog_thread.
 */
#ifndef ZSD_COPIES_H
#define ZSD_COPIES_H

#include "daemon/run/turn.h"
#include "nvme/zn_catalog.h"

struct zsd_store;

/** Opens store->catalog, from the newest copy if it is missing or damaged. Blocks: at the start only.
 * 0, or the failure of zn_catalog_open(). */
int zsd_copies_open(struct zsd_store *store, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zb_err *err);
/** Opens or makes the copies, after it is known that no data file is missing: a start that fails
 * leaves nothing in the directory of a drive that is not mounted. Blocks: at the start only. 0 or
 * -ENOMEM: err. */
int zsd_copies_begin(struct zsd_store *store, struct zb_err *err);
/** NULL store->copies is fine. */
void zsd_copies_close(struct zsd_store *store);
/** Commits a transaction to all copies, which the catalog has committed as *slot. Defers `work` when
 * all have it, or have failed. False: there are no copies, and nothing is deferred. */
bool zsd_copies_commit(struct zsd_store *store, const struct zn_txn *t, const struct zn_slot *slot,
                       struct zsd_work *work);
/** How many copies have failed; *ret_path and *ret: the first of them, and why. */
unsigned zsd_copies_failing(const struct zsd_store *store, unsigned *ret_path, struct zb_err *ret);
/** Commits to all copies, as above, at the start: blocks. */
void zsd_copies_commit_now(struct zsd_store *store, const struct zn_txn *t,
                           const struct zn_slot *slot);

#endif
