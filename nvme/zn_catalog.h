/*
 * zn_catalog.h - the catalog: a small transactional store of records, next to the data file. It
 * never returns to an older state without an error.
 *
 * MODEL. A record is a key (kind, a, b) and up to ZN_RECORD_MAX bytes. The caller defines the
 * kinds and the meaning of the bytes. Changes are made in transactions: lists of puts and deletes,
 * of which all are applied, or none. Each transaction has the next sequence number. SQLite keeps
 * the records, in one file, WAL mode, locked by us alone.
 *
 * SQLite alone can rewind without an error (a flipped bit in its WAL opens an older state; a stale
 * page passes its integrity check). So:
 *
 *     - every record carries a CRC32C over its key and its bytes;
 *     - the digest is the sum, modulo 2^64, of a 64-bit mix of each record's key and CRC: it is
 *       updated with every change, stored in the catalog with the sequence number, and computed
 *       again when the catalog is opened;
 *     - before zn_catalog_commit() returns, the WAL is flushed and checkpointed, and the database
 *       flushed; then the caller writes {sequence, digest} into a commit slot of every data file
 *       (layout.h) and flushes that, and only then reports the commit.
 *
 * So an open catalog is at the slots' sequence, or one transaction ahead of them, which was never
 * reported. Anything else is -EBADMSG. After opening a catalog, and before the first commit, the
 * caller writes the slots with zn_catalog_slot() and flushes them (unless the sequence is 0):
 * otherwise a catalog that is one ahead would be two ahead after that commit, and the slots that
 * an earlier process wrote need not be durable.
 *
 * THREADS. One thread at a time uses a catalog; which one may change. Calls block.
 */
#ifndef ZN_CATALOG_H
#define ZN_CATALOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "nvme/layout.h"

#define ZN_RECORD_MAX (UINT32_C(512) << 20)

struct zn_catalog;
struct zn_txn;

struct zn_key {
    uint32_t kind; /* 1 .. UINT32_MAX */
    uint64_t a, b; /* at most INT64_MAX each: SQLite's integers */
};

struct zn_catalog_options {
    const char *path; /* the database's file; created when missing, if may_create */
    const char *vfs;  /* of SQLite; NULL: the system's. Tests name the simulated device's */
    bool may_create;
    bool read_only; /* nothing is changed: for inspecting a store, even after a crash. (An empty WAL
                       may appear next to it.) */
};

/**
 * Opens, and verifies everything: every record's CRC, the digest, the sequence against the slots.
 *
 * @param slots  the newest slot of each data file (layout.h): n of them; sequence 0 means that
 *               nothing was ever committed there. They may differ by one.
 * @return 0; -EBADMSG the catalog is damaged, or older or newer than the slots allow; err names
 *         what, as exactly as it can; -ENOENT missing or empty (and may not be created; or missing,
 *         but the slots require one); -EBUSY another process has it; -EOPNOTSUPP a newer
 * format; -ENOSPC, -EIO, -EACCES, -EROFS, -ENOMEM
 */
int zn_catalog_open(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zb_err *err);
void zn_catalog_close(struct zn_catalog *c); /* NULL is fine */

/**
 * Makes a copy of `from`, with its identity, records and sequence number, at options->path, in place
 * of what is there; and opens it. The same transactions keep it a copy. A crash leaves nothing
 * there, or an empty catalog, or the copy.
 *
 * @return 0; a failure as of zn_catalog_open(), or of reading `from`: then there is no file there
 */
int zn_catalog_copy(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    struct zn_catalog *from, struct zb_err *err);

/** The contents of the slots that match the current catalog. */
struct zn_slot zn_catalog_slot(const struct zn_catalog *c);

/** Called for each record, in order of its key; the bytes are valid during the call. A negative
 * errno ends the walk. Must not commit. */
typedef int zn_record_fn(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zb_err *err);

/** Walks all records of the kinds [kind, kind_last]; verifies each CRC again. 0; -EBADMSG; what fn
 * returned. */
int zn_catalog_each(struct zn_catalog *c, uint32_t kind, uint32_t kind_last, zn_record_fn *fn,
                    void *arg, struct zb_err *err);

/** Reads all records of the file again and computes the digest again: 0; -EBADMSG with a message.
 */
int zn_catalog_verify(struct zn_catalog *c, struct zb_err *err);

/** While *stop is true, walks and verifications end with -EAGAIN; NULL: they are never stopped.
 * Another thread may set it. */
void zn_catalog_stop_on(struct zn_catalog *c, const atomic_bool *stop);

/** Bytes of the database's file; records. */
struct zn_catalog_size {
    uint64_t file_bytes, records, record_bytes;
};
int zn_catalog_size(struct zn_catalog *c, struct zn_catalog_size *ret, struct zb_err *err);

/* ---- transactions: built anywhere, by one thread at a time, without a catalog */

/** NULL: no memory. */
struct zn_txn *zn_txn_new(void);
void zn_txn_free(struct zn_txn *t); /* NULL is fine */
/** Puts (adds or replaces) a record; *ret is memory of len_bytes, for the caller to fill before the
 * commit. 0, -ENOMEM, -EINVAL the key or length. */
int zn_txn_put_room(struct zn_txn *t, const struct zn_key *key, size_t len_bytes, void **ret);
/** Deleting a record that does not exist fails the commit (-ENOENT): it is a bug. */
int zn_txn_del(struct zn_txn *t, const struct zn_key *key);
/** Every record with this kind and a. None is fine. */
int zn_txn_del_all(struct zn_txn *t, uint32_t kind, uint64_t a);

/**
 * Makes the transaction durable in the catalog. When it returns 0, the slots must be written with
 * *ret_slot and flushed before the change is acknowledged, and before the next commit.
 *
 * @return 0; -ENOSPC: nothing has changed, and a later commit may succeed; -EROFS: it was opened
 *         read_only; another code, -EIO above all: the contents of the file are unknown. The
 *         catalog is *poisoned*: every later commit fails with the same message, reads continue.
 *         The next open finds out what the file holds.
 */
int zn_catalog_commit(struct zn_catalog *c, const struct zn_txn *t, struct zn_slot *ret_slot,
                      struct zb_err *err);

#endif
