/*
 * catalog.c - zn_catalog.h, implemented with SQLite. docs/decisions/0007 has the reasons, FORMAT.md
 * the contents of the file.
 *
 * MODEL. One table of records and one index over their keys. The record (0, 0, 0) is our own: it
 * identifies the catalog, and has its sequence number and digest. Every transaction writes it, and
 * the digest does not include it.
 *
 * A COMMIT
 *
 *     APPLY --> SHRINK --> RESERVE --> COMMIT --> CHECKPOINT --> done
 *        |         |          |           |            |
 *        +---------+----------+-----------+            +--> poisoned
 *        v
 *     ROLLBACK --> nothing has changed (-ENOSPC), or poisoned
 *
 *     APPLY       changes the records, and the digest with them, in SQLite's memory
 *     SHRINK      deleted records leave free pages, which the next transactions use. As many are
 *                 kept as there are pages in use, plus FREE_MIN; the rest is returned to the file
 *                 system
 *     RESERVE     extends the database file to the size that the checkpoint will need, so that a
 *                 full file system is noticed before anything has changed
 *     COMMIT      SQLite writes its WAL, over the previous transaction. The WAL is not flushed yet:
 *                 after a crash it holds this transaction, or the previous one (which changes
 *                 nothing: the file has it), or none
 *     CHECKPOINT  the WAL is flushed: from here on the transaction survives. Its pages are written
 *                 to the database file, which is flushed. The WAL is not truncated: the file system
 *                 would free its blocks and allocate them again for the next commit, and both are
 *                 changes of metadata to flush
 *     ROLLBACK    after -ENOSPC the WAL is truncated and flushed: parts of the transaction in it
 *                 must not return after a crash, nor keep the space
 *
 * INVARIANTS
 *     G1  Outside of a commit the database file alone is the catalog: everything in the WAL is in
 *         the file, too. (After a crash the WAL may also hold a commit that was never reported.)
 *     G2  `state` describes the catalog after the newest complete transaction. It changes only at
 *         the end of a commit.
 *     G3  Opening a catalog writes nothing until the catalog has been verified. SQLite's close does
 *         not touch the WAL.
 *     G4  No statement stays open: a checkpoint would have to wait for its reader.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "nvme/catalog_db_priv.h"

#define CATALOG_GROW 65536u
#define FREE_MIN     64u  /* free pages that a catalog keeps in any case */
#define SHRINK_MAX   256u /* free pages returned at most, beyond those that the transaction freed */

/* The bytes of record (0, 0, 0); integers are little-endian. */
struct catalog_head {
    uint32_t version;
    uint32_t zero;
    uint8_t uuid[16];
    uint64_t sequence;
    uint64_t digest;
};

_Static_assert(sizeof(struct catalog_head) == 40, "FORMAT.md");

/* ---- walks */

/* A record whose CRC is right. */
typedef int walk_fn(void *arg, const struct zn_key *key, uint32_t crc, const void *bytes,
                    size_t len_bytes, struct zb_err *err);

static int walk_damaged(const struct zn_catalog *c, const struct zn_key *key, const char *how,
                        struct zb_err *err)
{
    return zb_fail(err, -EBADMSG,
                   "catalog '%s' is damaged: record (%" PRIu32 ", %" PRIu64 ", %" PRIu64 "): %s",
                   c->path, key->kind, key->a, key->b, how);
}

/* Handles one row of EACH. *key is the previous row's key (have: there was one), and becomes this
 * row's. */
static int walk_row(struct zn_catalog *c, bool have, struct zn_key *key, walk_fn *fn, void *arg,
                    struct zb_err *err)
{
    sqlite3_stmt *s = c->stmts[STMT_EACH];
    sqlite3_int64 number[4];
    struct zn_key was = *key;
    const void *bytes;
    size_t len_bytes;

    for (int i = 0; i < 4; i++) {
        number[i] = sqlite3_column_int64(s, i);
        if (sqlite3_column_type(s, i) != SQLITE_INTEGER || number[i] < 0)
            return walk_damaged(c, key, "the one after it has no key", err);
    }
    if (number[0] > UINT32_MAX || number[3] > UINT32_MAX)
        return walk_damaged(c, key, "the one after it is out of range", err);
    *key = (struct zn_key){ .kind = (uint32_t)number[0],
                            .a = (uint64_t)number[1],
                            .b = (uint64_t)number[2] };
    if (have &&
        (key->kind < was.kind ||
         (key->kind == was.kind && (key->a < was.a || (key->a == was.a && key->b <= was.b)))))
        return walk_damaged(c, key, "out of order", err);
    if (sqlite3_column_type(s, 4) != SQLITE_BLOB)
        return walk_damaged(c, key, "has no bytes", err);
    bytes = sqlite3_column_blob(s, 4);
    len_bytes = (size_t)sqlite3_column_bytes(s, 4);
    if (!bytes && sqlite3_errcode(c->db) == SQLITE_NOMEM)
        return zn_catalog_fail(c, SQLITE_NOMEM, "read a record", err);
    if (len_bytes > ZN_RECORD_MAX || (!bytes && len_bytes > 0))
        return walk_damaged(c, key, "its length is wrong", err);
    if (zn_record_crc(key, bytes, len_bytes) != (uint32_t)number[3])
        return walk_damaged(c, key, "its checksum differs", err);
    return fn(arg, key, (uint32_t)number[3], bytes ? bytes : "", len_bytes, err);
}

static int catalog_walk(struct zn_catalog *c, uint32_t kind, uint32_t kind_last, walk_fn *fn,
                        void *arg, struct zb_err *err)
{
    struct zn_key key = { 0 };
    bool have = false;
    int rc;

    rc = sqlite3_bind_int64(c->stmts[STMT_EACH], 1, kind);
    rc |= sqlite3_bind_int64(c->stmts[STMT_EACH], 2, kind_last);
    assert(rc == SQLITE_OK);
    while ((rc = zn_catalog_step(c, STMT_EACH, "read the records", err)) > 0) {
        if (c->stop && atomic_load_explicit(c->stop, memory_order_relaxed)) {
            rc = zb_fail(err, -EAGAIN, "catalog '%s': a walk was stopped", c->path);
            break;
        }
        rc = walk_row(c, have, &key, fn, arg, err);
        if (rc < 0)
            break;
        have = true;
    }
    zn_catalog_reset(c, STMT_EACH);
    return rc;
}

struct totals {
    struct zn_catalog *c;
    bool have_head;
    struct catalog_head head;
    uint64_t records, record_bytes, digest;
};

static int totals_on_record(void *arg, const struct zn_key *key, uint32_t crc, const void *bytes,
                            size_t len_bytes, struct zb_err *err)
{
    struct totals *t = arg;

    if (key->kind > 0) {
        t->records++;
        t->record_bytes += len_bytes;
        t->digest += zn_record_mix(key, crc);
        return 0;
    }
    if (key->a > 0 || key->b > 0 || len_bytes < sizeof(t->head))
        return walk_damaged(t->c, key, "not ours", err);
    memcpy(&t->head, bytes, sizeof(t->head));
    t->have_head = true;
    return 0;
}

int zn_catalog_read(struct zn_catalog *c, struct catalog_state *ret, struct zb_err *err)
{
    struct totals t = { .c = c };
    int rc = catalog_walk(c, 0, UINT32_MAX, totals_on_record, &t, err);

    if (rc < 0)
        return rc;
    if (!t.have_head)
        return zb_fail(err, -EBADMSG, "catalog '%s' is damaged: its head record is missing",
                       c->path);
    if (le32toh(t.head.version) != CATALOG_VERSION)
        return zb_fail(err, -EOPNOTSUPP,
                       "catalog '%s' has version %" PRIu32 ", and this program knows %u", c->path,
                       le32toh(t.head.version), CATALOG_VERSION);
    if (le64toh(t.head.digest) != t.digest)
        return zb_fail(err, -EBADMSG,
                       "catalog '%s' is damaged: its records are not those of transaction %" PRIu64
                       " (the digest differs: some are older, or missing)",
                       c->path, le64toh(t.head.sequence));
    *ret = (struct catalog_state){ .slot = { .sequence = le64toh(t.head.sequence),
                                             .digest = t.digest },
                                   .records = t.records,
                                   .record_bytes = t.record_bytes };
    memcpy(ret->slot.catalog, t.head.uuid, sizeof(ret->slot.catalog));
    return 0;
}

void zn_catalog_stop_on(struct zn_catalog *c, const atomic_bool *stop)
{
    c->stop = stop;
}

struct each {
    zn_record_fn *fn;
    void *arg;
};

static int each_on_record(void *arg, const struct zn_key *key, uint32_t crc, const void *bytes,
                          size_t len_bytes, struct zb_err *err)
{
    const struct each *e = arg;

    (void)crc;
    return e->fn(e->arg, key, bytes, len_bytes, err);
}

int zn_catalog_each(struct zn_catalog *c, uint32_t kind, uint32_t kind_last, zn_record_fn *fn,
                    void *arg, struct zb_err *err)
{
    struct each e = { fn, arg };

    return catalog_walk(c, kind > 0 ? kind : 1, kind_last, each_on_record, &e, err);
}

int zn_catalog_verify(struct zn_catalog *c, struct zb_err *err)
{
    struct catalog_state now;
    int rc;

    (void)sqlite3_db_release_memory(c->db); /* drops SQLite's cached pages, to read the file
                                               itself */
    rc = zn_catalog_read(c, &now, err);
    if (rc < 0)
        return rc;
    if (memcmp(&now.slot, &c->state.slot, sizeof(now.slot)) != 0)
        return zb_fail(err, -EBADMSG,
                       "catalog '%s' went back to transaction %" PRIu64 " from %" PRIu64, c->path,
                       now.slot.sequence, c->state.slot.sequence);
    return 0;
}

int zn_catalog_size(struct zn_catalog *c, struct zn_catalog_size *ret, struct zb_err *err)
{
    int rc = zn_catalog_step(c, STMT_PAGES, "its size", err);

    if (rc > 0)
        *ret = (struct zn_catalog_size){
            .file_bytes = (uint64_t)sqlite3_column_int64(c->stmts[STMT_PAGES], 0),
            .records = c->state.records,
            .record_bytes = c->state.record_bytes,
        };
    zn_catalog_reset(c, STMT_PAGES);
    assert(rc != 0); /* there is always a row */
    return rc < 0 ? rc : 0;
}

struct zn_slot zn_catalog_slot(const struct zn_catalog *c)
{
    return c->state.slot;
}

/* ---- commit */

static int put_row(struct zn_catalog *c, enum stmt s, sqlite3_int64 id, const struct zn_key *key,
                   uint32_t crc, const void *bytes, size_t len_bytes, struct zb_err *err)
{
    int rc;

    if (s == STMT_INSERT)
        zn_catalog_bind_key(c, s, key);
    else
        (void)sqlite3_bind_int64(c->stmts[s], 6, id);
    (void)sqlite3_bind_int64(c->stmts[s], 4, crc);
    rc = sqlite3_bind_blob64(c->stmts[s], 5, bytes, len_bytes, SQLITE_STATIC);
    assert(rc == SQLITE_OK);
    return zn_catalog_run(c, s, "write a record", err);
}

/* Subtracts the key's current record from the totals: 1, and *ret_id is its row; 0: no such
 * record. */
static int apply_forget(struct zn_catalog *c, enum stmt find, struct zn_key *key,
                        struct catalog_state *s, sqlite3_int64 *ret_id, struct zb_err *err)
{
    int rc;

    zn_catalog_bind_key(c, find, key);
    rc = zn_catalog_step(c, find, "look for a record", err);
    if (rc > 0) {
        if (find == STMT_FIND_ALL)
            key->b = (uint64_t)sqlite3_column_int64(c->stmts[find], 3);
        *ret_id = sqlite3_column_int64(c->stmts[find], 0);
        s->slot.digest -= zn_record_mix(key, (uint32_t)sqlite3_column_int64(c->stmts[find], 1));
        s->record_bytes -= (uint64_t)sqlite3_column_int64(c->stmts[find], 2);
        s->records--;
    }
    zn_catalog_reset(c, find);
    return rc;
}

static int apply_delete(struct zn_catalog *c, sqlite3_int64 id, struct zb_err *err)
{
    (void)sqlite3_bind_int64(c->stmts[STMT_DELETE], 6, id);
    return zn_catalog_run(c, STMT_DELETE, "delete a record", err);
}

static int apply_change(struct zn_catalog *c, const struct zn_change *change,
                        struct catalog_state *s, struct zb_err *err)
{
    struct zn_key key = change->key;
    sqlite3_int64 id = 0;
    uint32_t crc;
    int rc;

    switch (change->op) {
    case ZN_CHANGE_PUT:
        rc = apply_forget(c, STMT_FIND, &key, s, &id, err);
        if (rc < 0)
            return rc;
        crc = zn_record_crc(&key, change->bytes, change->len_bytes);
        s->slot.digest += zn_record_mix(&key, crc);
        s->record_bytes += change->len_bytes;
        s->records++;
        return put_row(c, rc > 0 ? STMT_UPDATE : STMT_INSERT, id, &key, crc, change->bytes,
                       change->len_bytes, err);
    case ZN_CHANGE_DEL:
        rc = apply_forget(c, STMT_FIND, &key, s, &id, err);
        if (rc == 0)
            return zb_fail(err, -ENOENT,
                           "catalog '%s': record (%" PRIu32 ", %" PRIu64 ", %" PRIu64
                           ") is deleted, and is not there",
                           c->path, key.kind, key.a, key.b);
        return rc < 0 ? rc : apply_delete(c, id, err);
    case ZN_CHANGE_DEL_ALL:
        key.b = 0;
        while ((rc = apply_forget(c, STMT_FIND_ALL, &key, s, &id, err)) > 0) {
            rc = apply_delete(c, id, err);
            if (rc < 0)
                return rc;
        }
        return rc;
    }
    assert(false);
    return -EINVAL;
}

int zn_catalog_put_head(struct zn_catalog *c, const struct catalog_state *s, struct zb_err *err)
{
    struct catalog_head head = { .version = htole32(CATALOG_VERSION),
                                 .sequence = htole64(s->slot.sequence),
                                 .digest = htole64(s->slot.digest) };
    struct catalog_state ignored = { 0 };
    struct zn_key key = { 0 };
    sqlite3_int64 id = 0;
    int rc = apply_forget(c, STMT_FIND, &key, &ignored, &id, err);

    if (rc < 0)
        return rc;
    memcpy(head.uuid, s->slot.catalog, sizeof(head.uuid));
    return put_row(c, rc > 0 ? STMT_UPDATE : STMT_INSERT, id, &key,
                   zn_record_crc(&key, &head, sizeof(head)), &head, sizeof(head), err);
}

static int fill_on_record(void *arg, const struct zn_key *key, uint32_t crc, const void *bytes,
                          size_t len_bytes, struct zb_err *err)
{
    return put_row(arg, STMT_INSERT, 0, key, crc, bytes, len_bytes, err);
}

int zn_catalog_fill(struct zn_catalog *c, struct zn_catalog *from, struct zb_err *err)
{
    return catalog_walk(from, 1, UINT32_MAX, fill_on_record, c, err);
}

static int catalog_apply(struct zn_catalog *c, const struct zn_txn *t, struct catalog_state *s,
                         struct zb_err *err)
{
    int rc = zn_catalog_exec(c, "BEGIN IMMEDIATE", "begin a transaction", err);

    for (size_t i = 0; rc == 0 && i < t->count; i++)
        rc = apply_change(c, &t->changes[i], s, err);
    s->slot.sequence++;
    return rc == 0 ? zn_catalog_put_head(c, s, err) : rc;
}

static int catalog_free(struct zn_catalog *c, uint64_t *ret_free, uint64_t *ret_pages,
                        struct zb_err *err)
{
    int rc = zn_catalog_step(c, STMT_FREE, "its free pages", err);

    if (rc > 0) {
        *ret_free = (uint64_t)sqlite3_column_int64(c->stmts[STMT_FREE], 0);
        *ret_pages = (uint64_t)sqlite3_column_int64(c->stmts[STMT_FREE], 1);
    }
    zn_catalog_reset(c, STMT_FREE);
    assert(rc != 0); /* there is always a row */
    return rc < 0 ? rc : 0;
}

/* `was`: the free pages before this transaction. A catalog of an older program has no map of its
 * pages, and keeps its length. */
static int catalog_shrink(struct zn_catalog *c, uint64_t was, struct zb_err *err)
{
    uint64_t unused = 0, pages = 0, stay, goes;
    char sql[64];
    int rc = catalog_free(c, &unused, &pages, err);

    stay = pages - unused + FREE_MIN;
    if (rc < 0 || unused <= stay)
        return rc;
    goes = zb_min_u64(unused - stay, SHRINK_MAX + (unused > was ? unused - was : 0));
    (void)snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%" PRIu64 ")", goes);
    return zn_catalog_exec(c, sql, "give its free pages back", err);
}

/* Writes zeros past the end of the file, up to the size that the pages of this transaction need. */
static int catalog_reserve(struct zn_catalog *c, struct zb_err *err)
{
    static const uint8_t zeros[CATALOG_GROW];
    struct zn_catalog_size size;
    sqlite3_int64 was, at;
    sqlite3_file *f;
    bool full;
    int rc = zn_catalog_size(c, &size, err);

    if (rc < 0)
        return rc;
    rc = sqlite3_file_control(c->db, "main", SQLITE_FCNTL_FILE_POINTER, &f);
    assert(rc == SQLITE_OK);
    rc = f->pMethods->xFileSize(f, &was);
    for (at = was; rc == SQLITE_OK && at < (sqlite3_int64)size.file_bytes;) {
        int len = (int)zb_min_u64(sizeof(zeros), size.file_bytes - (uint64_t)at);

        rc = f->pMethods->xWrite(f, zeros, len, at);
        at += len;
    }
    if (rc == SQLITE_OK)
        return 0;
    full = zn_catalog_write_full(c, rc);
    (void)f->pMethods->xTruncate(f, was); /* if it fails, only space is lost */
    if (full)
        return zb_fail(err, -ENOSPC,
                       "catalog '%s': make it %" PRIu64 " bytes long: " ZN_CATALOG_NO_SPACE,
                       c->path, size.file_bytes);
    return zb_fail(err, -EIO, "catalog '%s': make it %" PRIu64 " bytes long: %m", c->path,
                   size.file_bytes);
}

int zn_catalog_checkpoint(struct zn_catalog *c, int mode, struct zb_err *err)
{
    int rc = zn_catalog_exec(c, "PRAGMA synchronous=FULL", "flush what is committed", err);

    if (rc < 0)
        return rc;
    rc = sqlite3_wal_checkpoint_v2(c->db, NULL, mode, NULL, NULL);

    return rc == SQLITE_OK ? 0 : zn_catalog_fail(c, rc, "bring the WAL to its place", err);
}

/* Flushes the truncated WAL. */
static int catalog_flush_wal(struct zn_catalog *c, struct zb_err *err)
{
    sqlite3_file *wal;
    int rc = sqlite3_file_control(c->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);

    assert(rc == SQLITE_OK);
    rc = wal->pMethods ? wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL) : SQLITE_OK;
    return rc == SQLITE_OK ? 0 : zn_catalog_fail(c, rc, "flush the WAL", err);
}

/* 0: nothing has changed, and no part of the transaction can reappear. */
static int catalog_rollback(struct zn_catalog *c, struct zb_err *err)
{
    int rc = 0;

    if (sqlite3_get_autocommit(c->db) == 0)
        rc = zn_catalog_exec(c, "ROLLBACK", "take a transaction back", err);
    if (rc == 0)
        rc = zn_catalog_checkpoint(c, SQLITE_CHECKPOINT_TRUNCATE, err);
    return rc == 0 ? catalog_flush_wal(c, err) : rc;
}

static int catalog_poison(struct zn_catalog *c, const struct zb_err *why, struct zb_err *err)
{
    c->poisoned = *why;
    if (why->code == -ENOSPC) /* too late: -ENOSPC is not harmless here */
        c->poisoned.code = -EIO;
    return zb_fail(err, c->poisoned.code, "%s", c->poisoned.text);
}

int zn_catalog_commit(struct zn_catalog *c, const struct zn_txn *t, struct zn_slot *ret_slot,
                      struct zb_err *err)
{
    struct catalog_state next = c->state;
    struct zb_err why = { 0 };
    uint64_t unused = 0, pages = 0;
    int rc;

    if (c->poisoned.code != 0)
        return zb_fail(err, c->poisoned.code, "%s", c->poisoned.text);
    if (c->read_only)
        return zb_fail(err, -EROFS, "catalog '%s' was opened for reading only", c->path);
    rc = zn_catalog_exec(c, "PRAGMA synchronous=OFF", "begin a transaction", &why);
    if (rc == 0)
        rc = catalog_free(c, &unused, &pages, &why);
    if (rc == 0)
        rc = catalog_apply(c, t, &next, &why);
    if (rc == 0)
        rc = catalog_shrink(c, unused, &why);
    if (rc == 0)
        rc = catalog_reserve(c, &why);
    if (rc == 0)
        rc = zn_catalog_exec(c, "COMMIT", "commit a transaction", &why);
    if (rc < 0) {
        struct zb_err again = { 0 };
        int back = catalog_rollback(c, &again);

        if (rc == -ENOSPC && back == 0)
            return zb_fail(err, rc, "%s", why.text);
        return catalog_poison(c, &why, err);
    }
    rc = zn_catalog_checkpoint(c, SQLITE_CHECKPOINT_RESTART, &why);
    if (rc < 0)
        return catalog_poison(c, &why, err);
    c->state = next;
    *ret_slot = next.slot;
    return 0;
}
