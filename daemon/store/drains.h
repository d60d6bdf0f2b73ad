/*
 * drains.h - keeps in the catalog which drives are drained (disk/drives.h), and why, until they are
 * used again. A start drains them again.
 *
 * A record has the UUID of the data file: another file that gets the same number is not drained. An
 * older release ignores the records, and uses the drives.
 *
 * A drain is recorded with the next change of the catalog, whatever that is for. So a drive that
 * fails is drained without a change of its own, which would have to be written to that drive, too. A
 * request to drain a drive, or to use it again, makes a change (op/tier.c), and so is durable when
 * it is answered.
 *
 * Loop thread only, but for the two functions of records.
 */
#ifndef ZSD_DRAINS_H
#define ZSD_DRAINS_H

#include "daemon/disk/disk.h"
#include "nvme/zn_catalog.h"

struct zsd_store;

struct zsd_drain_record {
    unsigned path; /* index of the data file */
    uint8_t uuid[16];
    enum zsd_drain drain;
    char why[sizeof(((struct zsd_drive *)NULL)->why)];
};
/** As the functions of record.h. */
int zsd_record_put_drain(struct zn_txn *t, const struct zsd_drain_record *d);
int zsd_record_get_drain(const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zsd_drain_record *ret, struct zb_err *err);

/** Puts what has changed of the drained drives into a transaction. *ret: store->drains, once the
 * transaction is durable. 0 or -ENOMEM. */
int zsd_drains_put(const struct zsd_store *store, struct zn_txn *t, uint64_t *ret,
                   struct zb_err *err);
/** Whether the catalog has all of it. */
bool zsd_drains_kept(const struct zsd_store *store);
/** At the start: drains the drives that the catalog says are drained. Blocks. 0; -EBADMSG, -ENOMEM. */
int zsd_drains_recover(struct zsd_store *store, struct zb_err *err);

#endif
