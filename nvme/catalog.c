/*
 * catalog.c - zn_catalog.h on SQLite: docs/decisions/0007 says why, FORMAT.md what is in the file.
 *
 * MODEL. One table of records and one index over their keys. The record (0, 0, 0) is ours: which
 * catalog this is, its sequence number and its digest; it is written by every transaction, and it
 * is not in the digest.
 *
 * A COMMIT
 *
 *     APPLY --> RESERVE --> COMMIT --> CHECKPOINT --> over
 *        |         |           |            |
 *        +---------+-----------+            +--> poisoned
 *        v
 *     ROLLBACK --> nothing has changed (-ENOSPC), or poisoned
 *
 *     APPLY       changes the records, and the digest beside them, in SQLite's memory
 *     RESERVE     makes the database's file as long as the checkpoint will need it, so that a full
 *                 file system shows itself while nothing has happened
 *     COMMIT      SQLite writes its WAL, over what the transaction before left there. It is not
 *                 flushed yet: what a crash leaves of it is this transaction, or the one before
 *                 (which changes nothing: the file has it), or none
 *     CHECKPOINT  the WAL is flushed: from here on the transaction survives. Its pages go to their
 *                 places, flushed. The WAL is not cut: its blocks would go back to the file system,
 *                 and come again with the next commit, each time a change of metadata to flush
 *     ROLLBACK    after -ENOSPC the WAL is cut, and that flushed, too: what of the transaction was
 *                 written must not come back after a crash, nor keep the space
 *
 * INVARIANTS
 *     G1  Outside of a commit the database's file alone is the catalog: what is in the WAL is in
 *         the file, too. (What a crash left in the WAL may also be of a commit that nobody was told
 *         of.)
 *     G2  state is what the newest whole transaction made of the catalog; it changes at the end of
 *         a commit only.
 *     G3  Nothing is written when a catalog is opened until it was found to be right: SQLite's
 *         close leaves a WAL alone.
 *     G4  No statement stays open: a checkpoint would have to wait for its reader.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/util.h"
#include "nvme/catalog_priv.h"

#define CATALOG_VERSION   1u
#define CATALOG_PAGE      "16384" /* of SQLite; measured: docs/decisions/0007 */
#define CATALOG_CACHE_KIB "32768"
#define CATALOG_WAL_KEPT  "16777216" /* bytes of it that stay for the next commit */
#define CATALOG_SQL_MAX   4096
#define CATALOG_GROW      65536u
/* Where SQLite keeps its locks (its file format, section 1.1.1): a reader's lock is on these bytes,
 * and whoever has a database for itself holds them for writing. */
#define CATALOG_LOCK_AT    (INT64_C(0x40000000) + 2)
#define CATALOG_LOCK_BYTES 510

#define CATALOG_TABLE                                                                      \
    "CREATE TABLE record(id INTEGER PRIMARY KEY,kind INTEGER NOT NULL,a INTEGER NOT NULL," \
    "b INTEGER NOT NULL,crc INTEGER NOT NULL,bytes BLOB NOT NULL)"
#define CATALOG_INDEX "CREATE UNIQUE INDEX record_key ON record(kind,a,b)"

enum stmt { FIND, FIND_ALL, INSERT, UPDATE, DELETE, EACH, PAGES, STMTS };

static const char *const catalog_sql[STMTS] = {
    [FIND] = "SELECT id,crc,length(bytes) FROM record INDEXED BY record_key"
             " WHERE kind=?1 AND a=?2 AND b=?3",
    [FIND_ALL] = "SELECT id,crc,length(bytes),b FROM record INDEXED BY record_key"
                 " WHERE kind=?1 AND a=?2 AND b>=?3 ORDER BY b LIMIT 1",
    [INSERT] = "INSERT INTO record(kind,a,b,crc,bytes) VALUES(?1,?2,?3,?4,?5)",
    [UPDATE] = "UPDATE record SET crc=?4,bytes=?5 WHERE id=?6",
    [DELETE] = "DELETE FROM record WHERE id=?6",
    [EACH] = "SELECT kind,a,b,crc,bytes FROM record INDEXED BY record_key"
             " WHERE kind BETWEEN ?1 AND ?2 ORDER BY kind,a,b",
    [PAGES] = "SELECT page_count*page_size FROM pragma_page_count,pragma_page_size",
};

/* The bytes of record (0, 0, 0); integers are little-endian. */
struct catalog_head {
    uint32_t version;
    uint32_t zero;
    uint8_t uuid[16];
    uint64_t sequence;
    uint64_t digest;
};

_Static_assert(sizeof(struct catalog_head) == 40, "FORMAT.md");

struct catalog_state {
    struct zn_slot slot;
    uint64_t records, record_bytes; /* without our own */
};

struct zn_catalog {
    char *path;
    sqlite3 *db;
    sqlite3_stmt *stmts[STMTS];
    bool read_only;
    int lock_fd; /* of a read-only one */
    struct catalog_state state;
    struct zb_err poisoned;
};

/* ---- records */

static uint32_t record_crc(const struct zn_key *key, const void *bytes, size_t len_bytes)
{
    const struct __attribute__((packed)) {
        uint32_t kind;
        uint64_t a, b;
    } head = { htole32(key->kind), htole64(key->a), htole64(key->b) };

    return zb_crc32c(zb_crc32c(0, &head, sizeof(head)), bytes, len_bytes);
}

/* The finalizer of splitmix64: every bit of x changes every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* What a record adds to the digest. */
static uint64_t record_mix(const struct zn_key *key, uint32_t crc)
{
    const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = mix(step + key->kind);

    h = mix(h + step + key->a);
    h = mix(h + step + key->b);
    return mix(h + step + crc);
}

/* ---- SQLite */

static int sql_errno(sqlite3 *db, int rc)
{
    int os = sqlite3_system_errno(db);

    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_PERM:
        return -EACCES;
    case SQLITE_CANTOPEN:
        return os > 0 ? -os : -ENOENT;
    case SQLITE_IOERR:
        return rc == SQLITE_IOERR_NOMEM ? -ENOMEM : rc == SQLITE_IOERR_CORRUPTFS ? -EBADMSG : -EIO;
    default: /* CORRUPT, NOTADB; our SQL is fixed, so damage alone brings about the others too */
        return -EBADMSG;
    }
}

/* The sentence of what SQLite just failed to do. */
static int catalog_fail(struct zn_catalog *c, int rc, const char *what, struct zb_err *err)
{
    int code = sql_errno(c->db, rc);

    if (code == -EBUSY)
        return zb_fail(err, code, "catalog '%s' is in use by another process", c->path);
    return zb_fail(err, code, "catalog '%s': %s: %s%s", c->path, what, sqlite3_errmsg(c->db),
                   code == -EBADMSG ? " (it is damaged)" : "");
}

/* fn sees each row as text; it returns 0. */
static int catalog_query(struct zn_catalog *c, const char *sql, sqlite3_callback fn, void *arg,
                         const char *what, struct zb_err *err)
{
    int rc = sqlite3_exec(c->db, sql, fn, arg, NULL);

    return rc == SQLITE_OK ? 0 : catalog_fail(c, rc, what, err);
}

static int catalog_exec(struct zn_catalog *c, const char *sql, const char *what, struct zb_err *err)
{
    return catalog_query(c, sql, NULL, NULL, what, err);
}

static void catalog_bind_key(struct zn_catalog *c, enum stmt s, const struct zn_key *key)
{
    int rc = sqlite3_bind_int64(c->stmts[s], 1, key->kind);

    rc |= sqlite3_bind_int64(c->stmts[s], 2, (sqlite3_int64)key->a);
    rc |= sqlite3_bind_int64(c->stmts[s], 3, (sqlite3_int64)key->b);
    assert(rc == SQLITE_OK);
}

/* 1: a row; 0: none. The caller resets (G4). */
static int catalog_step(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err)
{
    int rc = sqlite3_step(c->stmts[s]);

    return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : catalog_fail(c, rc, what, err);
}

static void catalog_reset(struct zn_catalog *c, enum stmt s)
{
    (void)sqlite3_reset(c->stmts[s]); /* repeats the failure that step answered with */
    (void)sqlite3_clear_bindings(c->stmts[s]);
}

/* A statement that gives no rows. */
static int catalog_run(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err)
{
    int rc = catalog_step(c, s, what, err);

    catalog_reset(c, s);
    return rc;
}

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

/* One row of EACH; *key is the one before it (have: there was one), and becomes its own. */
static int walk_row(struct zn_catalog *c, bool have, struct zn_key *key, walk_fn *fn, void *arg,
                    struct zb_err *err)
{
    sqlite3_stmt *s = c->stmts[EACH];
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
        return catalog_fail(c, SQLITE_NOMEM, "read a record", err);
    if (len_bytes > ZN_RECORD_MAX || (!bytes && len_bytes > 0))
        return walk_damaged(c, key, "its length is wrong", err);
    if (record_crc(key, bytes, len_bytes) != (uint32_t)number[3])
        return walk_damaged(c, key, "its checksum differs", err);
    return fn(arg, key, (uint32_t)number[3], bytes ? bytes : "", len_bytes, err);
}

static int catalog_walk(struct zn_catalog *c, uint32_t kind, uint32_t kind_last, walk_fn *fn,
                        void *arg, struct zb_err *err)
{
    struct zn_key key = { 0 };
    bool have = false;
    int rc;

    rc = sqlite3_bind_int64(c->stmts[EACH], 1, kind);
    rc |= sqlite3_bind_int64(c->stmts[EACH], 2, kind_last);
    assert(rc == SQLITE_OK);
    while ((rc = catalog_step(c, EACH, "read the records", err)) > 0) {
        rc = walk_row(c, have, &key, fn, arg, err);
        if (rc < 0)
            break;
        have = true;
    }
    catalog_reset(c, EACH);
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
        t->digest += record_mix(key, crc);
        return 0;
    }
    if (key->a > 0 || key->b > 0 || len_bytes < sizeof(t->head))
        return walk_damaged(t->c, key, "not ours", err);
    memcpy(&t->head, bytes, sizeof(t->head));
    t->have_head = true;
    return 0;
}

/* Reads everything; *ret is what there is. */
static int catalog_read(struct zn_catalog *c, struct catalog_state *ret, struct zb_err *err)
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

    (void)sqlite3_db_release_memory(c->db); /* what SQLite remembers proves nothing */
    rc = catalog_read(c, &now, err);
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
    int rc = catalog_step(c, PAGES, "its size", err);

    if (rc > 0)
        *ret = (struct zn_catalog_size){
            .file_bytes = (uint64_t)sqlite3_column_int64(c->stmts[PAGES], 0),
            .records = c->state.records,
            .record_bytes = c->state.record_bytes,
        };
    catalog_reset(c, PAGES);
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

    if (s == INSERT)
        catalog_bind_key(c, s, key);
    else
        (void)sqlite3_bind_int64(c->stmts[s], 6, id);
    (void)sqlite3_bind_int64(c->stmts[s], 4, crc);
    rc = sqlite3_bind_blob64(c->stmts[s], 5, bytes, len_bytes, SQLITE_STATIC);
    assert(rc == SQLITE_OK);
    return catalog_run(c, s, "write a record", err);
}

/* What there is now of the key goes from the totals: 1, and *ret_id is its row; 0: nothing. */
static int apply_forget(struct zn_catalog *c, enum stmt find, struct zn_key *key,
                        struct catalog_state *s, sqlite3_int64 *ret_id, struct zb_err *err)
{
    int rc;

    catalog_bind_key(c, find, key);
    rc = catalog_step(c, find, "look for a record", err);
    if (rc > 0) {
        if (find == FIND_ALL)
            key->b = (uint64_t)sqlite3_column_int64(c->stmts[find], 3);
        *ret_id = sqlite3_column_int64(c->stmts[find], 0);
        s->slot.digest -= record_mix(key, (uint32_t)sqlite3_column_int64(c->stmts[find], 1));
        s->record_bytes -= (uint64_t)sqlite3_column_int64(c->stmts[find], 2);
        s->records--;
    }
    catalog_reset(c, find);
    return rc;
}

static int apply_delete(struct zn_catalog *c, sqlite3_int64 id, struct zb_err *err)
{
    (void)sqlite3_bind_int64(c->stmts[DELETE], 6, id);
    return catalog_run(c, DELETE, "delete a record", err);
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
        rc = apply_forget(c, FIND, &key, s, &id, err);
        if (rc < 0)
            return rc;
        crc = record_crc(&key, change->bytes, change->len_bytes);
        s->slot.digest += record_mix(&key, crc);
        s->record_bytes += change->len_bytes;
        s->records++;
        return put_row(c, rc > 0 ? UPDATE : INSERT, id, &key, crc, change->bytes, change->len_bytes,
                       err);
    case ZN_CHANGE_DEL:
        rc = apply_forget(c, FIND, &key, s, &id, err);
        if (rc == 0)
            return zb_fail(err, -ENOENT,
                           "catalog '%s': record (%" PRIu32 ", %" PRIu64 ", %" PRIu64
                           ") is deleted, and is not there",
                           c->path, key.kind, key.a, key.b);
        return rc < 0 ? rc : apply_delete(c, id, err);
    case ZN_CHANGE_DEL_ALL:
        key.b = 0;
        while ((rc = apply_forget(c, FIND_ALL, &key, s, &id, err)) > 0) {
            rc = apply_delete(c, id, err);
            if (rc < 0)
                return rc;
        }
        return rc;
    }
    assert(false);
    return -EINVAL;
}

/* Our own record, after the others. */
static int apply_head(struct zn_catalog *c, const struct catalog_state *s, struct zb_err *err)
{
    struct catalog_head head = { .version = htole32(CATALOG_VERSION),
                                 .sequence = htole64(s->slot.sequence),
                                 .digest = htole64(s->slot.digest) };
    struct catalog_state ignored = { 0 };
    struct zn_key key = { 0 };
    sqlite3_int64 id = 0;
    int rc = apply_forget(c, FIND, &key, &ignored, &id, err);

    if (rc < 0)
        return rc;
    memcpy(head.uuid, s->slot.catalog, sizeof(head.uuid));
    return put_row(c, rc > 0 ? UPDATE : INSERT, id, &key, record_crc(&key, &head, sizeof(head)),
                   &head, sizeof(head), err);
}

static int catalog_apply(struct zn_catalog *c, const struct zn_txn *t, struct catalog_state *s,
                         struct zb_err *err)
{
    int rc = catalog_exec(c, "BEGIN IMMEDIATE", "begin a transaction", err);

    for (size_t i = 0; rc == 0 && i < t->count; i++)
        rc = apply_change(c, &t->changes[i], s, err);
    s->slot.sequence++;
    return rc == 0 ? apply_head(c, s, err) : rc;
}

/* Writes zeros behind the file's end, up to what the pages of this transaction take. */
static int catalog_reserve(struct zn_catalog *c, struct zb_err *err)
{
    static const uint8_t zeros[CATALOG_GROW];
    struct zn_catalog_size size;
    sqlite3_int64 was, at;
    sqlite3_file *f;
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
    (void)f->pMethods->xTruncate(f, was); /* only space is lost if it stays longer */
    return zb_fail(err, (rc & 0xff) == SQLITE_FULL ? -ENOSPC : -EIO,
                   "catalog '%s': make room for %" PRIu64 " bytes of it: %m", c->path,
                   size.file_bytes);
}

/* mode: whether the WAL is cut (TRUNCATE) or begun anew by the next commit (RESTART). */
static int catalog_checkpoint(struct zn_catalog *c, int mode, struct zb_err *err)
{
    int rc = catalog_exec(c, "PRAGMA synchronous=FULL", "flush what is committed", err);

    if (rc < 0)
        return rc;
    rc = sqlite3_wal_checkpoint_v2(c->db, NULL, mode, NULL, NULL);

    return rc == SQLITE_OK ? 0 : catalog_fail(c, rc, "bring the WAL to its place", err);
}

/* Flushes that the WAL is empty. */
static int catalog_flush_wal(struct zn_catalog *c, struct zb_err *err)
{
    sqlite3_file *wal;
    int rc = sqlite3_file_control(c->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);

    assert(rc == SQLITE_OK);
    rc = wal->pMethods ? wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL) : SQLITE_OK;
    return rc == SQLITE_OK ? 0 : catalog_fail(c, rc, "flush the WAL", err);
}

/* Nothing has changed, and nothing of the transaction can come back: 0. */
static int catalog_rollback(struct zn_catalog *c, struct zb_err *err)
{
    int rc = 0;

    if (sqlite3_get_autocommit(c->db) == 0)
        rc = catalog_exec(c, "ROLLBACK", "take a transaction back", err);
    if (rc == 0)
        rc = catalog_checkpoint(c, SQLITE_CHECKPOINT_TRUNCATE, err);
    return rc == 0 ? catalog_flush_wal(c, err) : rc;
}

static int catalog_poison(struct zn_catalog *c, const struct zb_err *why, struct zb_err *err)
{
    c->poisoned = *why;
    if (why->code == -ENOSPC) /* at a place where that is not harmless any more */
        c->poisoned.code = -EIO;
    return zb_fail(err, c->poisoned.code, "%s", c->poisoned.text);
}

int zn_catalog_commit(struct zn_catalog *c, const struct zn_txn *t, struct zn_slot *ret_slot,
                      struct zb_err *err)
{
    struct catalog_state next = c->state;
    struct zb_err why = { 0 };
    int rc;

    if (c->poisoned.code != 0)
        return zb_fail(err, c->poisoned.code, "%s", c->poisoned.text);
    if (c->read_only)
        return zb_fail(err, -EROFS, "catalog '%s' was opened for reading only", c->path);
    rc = catalog_exec(c, "PRAGMA synchronous=OFF", "begin a transaction", &why);
    if (rc == 0)
        rc = catalog_apply(c, t, &next, &why);
    if (rc == 0)
        rc = catalog_reserve(c, &why);
    if (rc == 0)
        rc = catalog_exec(c, "COMMIT", "commit a transaction", &why);
    if (rc < 0) {
        struct zb_err again = { 0 };
        int back = catalog_rollback(c, &again);

        if (rc == -ENOSPC && back == 0)
            return zb_fail(err, rc, "%s", why.text);
        return catalog_poison(c, &why, err);
    }
    rc = catalog_checkpoint(c, SQLITE_CHECKPOINT_RESTART, &why);
    if (rc < 0)
        return catalog_poison(c, &why, err);
    c->state = next;
    *ret_slot = next.slot;
    return 0;
}

/* ---- open */

/* The newest slot of all data files; they may differ by one. */
static int open_newest(const struct zn_slot *slots, unsigned n, struct zn_slot *ret,
                       struct zb_err *err)
{
    struct zn_slot newest = { 0 };

    for (unsigned i = 0; i < n; i++)
        if (slots[i].sequence > newest.sequence)
            newest = slots[i];
    for (unsigned i = 0; i < n; i++) {
        if (newest.sequence - slots[i].sequence > 1)
            return zb_fail(err, -EBADMSG,
                           "data file %u of %u is at transaction %" PRIu64
                           ", and another one at %" PRIu64 ": they are not of one store",
                           i + 1, n, slots[i].sequence, newest.sequence);
        if (slots[i].sequence > 0 &&
            (memcmp(slots[i].catalog, newest.catalog, sizeof(newest.catalog)) != 0 ||
             (slots[i].sequence == newest.sequence && slots[i].digest != newest.digest)))
            return zb_fail(err, -EBADMSG, "data file %u of %u belongs to another catalog", i + 1,
                           n);
    }
    *ret = newest;
    return 0;
}

/* Is it there, and may we? A new file is ours alone: SQLite would let others read it. */
static int open_file(const struct zn_catalog_options *o, bool may_create, struct zb_err *err)
{
    int fd;

    if (faccessat(AT_FDCWD, o->path, R_OK | (o->read_only ? 0 : W_OK), AT_EACCESS) == 0)
        return 0;
    if (errno != ENOENT)
        return zb_fail(err, -errno, "catalog '%s': %m", o->path);
    if (!may_create)
        return zb_fail(err, -ENOENT, "catalog '%s' is missing", o->path);
    fd = open(o->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0)
        return zb_fail(err, -errno, "create catalog '%s': %m", o->path);
    zb_close_fd(&fd);
    return 0;
}

/* SQLite locks a database for us alone with locks for writing, which a file that is open for
 * reading does not get. So here is a reader's, and SQLite takes none (its VFS unix-none). */
static int open_lock(struct zn_catalog *c, struct zb_err *err)
{
    struct flock lock = { .l_type = F_RDLCK,
                          .l_whence = SEEK_SET,
                          .l_start = CATALOG_LOCK_AT,
                          .l_len = CATALOG_LOCK_BYTES };

    c->lock_fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (c->lock_fd < 0)
        return zb_fail(err, -errno, "open catalog '%s': %m", c->path);
    if (fcntl(c->lock_fd, F_SETLK, &lock) == 0)
        return 0;
    if (errno == EAGAIN || errno == EACCES)
        return zb_fail(err, -EBUSY, "catalog '%s' is in use by another process", c->path);
    return zb_fail(err, -errno, "lock catalog '%s': %m", c->path);
}

/* What a damaged database, or one that somebody made for us, must not be able to do. */
static int open_defend(struct zn_catalog *c, struct zb_err *err)
{
    static const struct {
        int what, value;
    } config[] = {
        { SQLITE_DBCONFIG_DEFENSIVE, 1 },
        { SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0 },
        { SQLITE_DBCONFIG_ENABLE_TRIGGER, 0 },
        { SQLITE_DBCONFIG_ENABLE_VIEW, 0 },
        { SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1 } /* G3 */
    };
    static const struct {
        int what, value;
    } limits[] = {
        { SQLITE_LIMIT_LENGTH, (int)ZN_RECORD_MAX + CATALOG_SQL_MAX },
        { SQLITE_LIMIT_SQL_LENGTH, CATALOG_SQL_MAX },
        { SQLITE_LIMIT_ATTACHED, 0 },
        { SQLITE_LIMIT_WORKER_THREADS, 0 },
    };
    int rc = SQLITE_OK;

    for (size_t i = 0; rc == SQLITE_OK && i < ZB_COUNT(config); i++)
        rc = sqlite3_db_config(c->db, config[i].what, config[i].value, NULL);
    for (size_t i = 0; i < ZB_COUNT(limits); i++)
        (void)sqlite3_limit(c->db, limits[i].what, limits[i].value);
    if (rc != SQLITE_OK)
        return catalog_fail(c, rc, "configure SQLite", err);
    return catalog_exec(c,
                        "PRAGMA locking_mode=EXCLUSIVE;" /* first: no shared memory then */
                        "PRAGMA mmap_size=0;PRAGMA cell_size_check=ON;PRAGMA temp_store=MEMORY;"
                        "PRAGMA cache_size=-" CATALOG_CACHE_KIB ";PRAGMA wal_autocheckpoint=0;"
                        "PRAGMA journal_size_limit=" CATALOG_WAL_KEPT ";"
                        "PRAGMA secure_delete=OFF;PRAGMA synchronous=FULL",
                        "configure SQLite", err);
}

static int open_sqlite(struct zn_catalog *c, const struct zn_catalog_options *o, bool may_create,
                       struct zb_err *err)
{
    int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
    const char *vfs = o->vfs;
    int rc;

    flags |= o->read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
    flags |= may_create && o->vfs ? SQLITE_OPEN_CREATE : 0;
    if (o->read_only && !o->vfs) {
        vfs = "unix-none";
        rc = open_lock(c, err);
        if (rc < 0)
            return rc;
    }
    rc = sqlite3_open_v2(o->path, &c->db, flags, vfs);
    if (!c->db)
        return zb_fail(err, -ENOMEM, "open catalog '%s': %m", o->path);
    if (rc != SQLITE_OK)
        return catalog_fail(c, rc, "open", err);
    if (!o->read_only && sqlite3_db_readonly(c->db, "main") != 0)
        return zb_fail(err, -EROFS, "catalog '%s': %m", o->path);
    return open_defend(c, err);
}

enum { SCHEMA_ROWS = 2 };

struct schema {
    unsigned rows;
    bool differs;
};

static int schema_on_row(void *arg, int columns, char **values, char **names)
{
    static const char *const want[SCHEMA_ROWS] = { CATALOG_TABLE, CATALOG_INDEX };
    struct schema *s = arg;

    (void)columns;
    (void)names;
    if (s->rows >= SCHEMA_ROWS || !values[0] || strcmp(values[0], want[s->rows]) != 0)
        s->differs = true;
    s->rows++;
    return 0;
}

struct text {
    char s[16];
};

static int text_on_row(void *arg, int columns, char **values, char **names)
{
    struct text *text = arg;

    (void)columns;
    (void)names;
    (void)snprintf(text->s, sizeof(text->s), "%s", values[0] ? values[0] : "");
    return 0;
}

static int open_prepare(struct zn_catalog *c, struct zb_err *err)
{
    for (int i = 0; i < STMTS; i++) {
        int rc = sqlite3_prepare_v3(c->db, catalog_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                                    &c->stmts[i], NULL);

        if (rc != SQLITE_OK)
            return catalog_fail(c, rc, "prepare its statements", err);
    }
    return 0;
}

/* An empty database becomes a catalog, all at once: a crash leaves an empty one. */
static int open_create(struct zn_catalog *c, struct zb_err *err)
{
    struct catalog_state state = { 0 };
    int rc;

    while (getrandom(state.slot.catalog, sizeof(state.slot.catalog), 0) !=
           (ssize_t)sizeof(state.slot.catalog))
        ; /* as in zn_super_init() */
    rc = catalog_exec(c,
                      "PRAGMA page_size=" CATALOG_PAGE ";PRAGMA auto_vacuum=NONE;"
                      "PRAGMA journal_mode=WAL;"
                      "BEGIN IMMEDIATE;" CATALOG_TABLE ";" CATALOG_INDEX,
                      "create it", err);
    if (rc == 0)
        rc = open_prepare(c, err);
    if (rc == 0)
        rc = apply_head(c, &state, err);
    if (rc == 0)
        rc = catalog_exec(c, "COMMIT", "create it", err);
    return rc;
}

/* The tables that we made, or none yet: then they are made. */
static int open_schema(struct zn_catalog *c, bool may_create, bool committed, struct zb_err *err)
{
    struct schema schema = { 0 };
    struct text mode = { "" };
    int rc = catalog_query(c, "SELECT sql FROM sqlite_schema", schema_on_row, &schema, "open", err);

    if (rc < 0)
        return rc;
    if (schema.rows == 0 && !may_create)
        return zb_fail(err, committed ? -EBADMSG : -ENOENT, "catalog '%s' is empty", c->path);
    if (schema.rows == 0)
        rc = open_create(c, err);
    else if (schema.rows != SCHEMA_ROWS || schema.differs)
        return zb_fail(err, -EBADMSG, "'%s' is no catalog, or a damaged one: its tables are others",
                       c->path);
    else
        rc = open_prepare(c, err);
    if (rc == 0)
        rc = catalog_query(c, "PRAGMA journal_mode", text_on_row, &mode, "open", err);
    if (rc == 0 && strcmp(mode.s, "wal") != 0)
        return zb_fail(err, -EBADMSG, "catalog '%s' is damaged: its journal is not a WAL", c->path);
    return rc;
}

/* Every page of the file belongs to one tree, or is free, once: or a commit would overwrite what is
 * in use. The records do not show that. */
static int open_check_pages(struct zn_catalog *c, struct zb_err *err)
{
    struct text text = { "" };
    int rc = catalog_query(c, "PRAGMA quick_check(1)", text_on_row, &text, "check it", err);

    if (rc == 0 && strcmp(text.s, "ok") != 0)
        return zb_fail(err, -EBADMSG, "catalog '%s' is damaged: its pages are in disorder (%s ...)",
                       c->path, text.s);
    return rc;
}

/* The catalog as it is against what the data files say. */
static int open_compare(const struct zn_catalog *c, const struct zn_slot *newest,
                        struct zb_err *err)
{
    const struct zn_slot *slot = &c->state.slot;

    if (newest->sequence > 0 && memcmp(slot->catalog, newest->catalog, sizeof(slot->catalog)) != 0)
        return zb_fail(err, -EBADMSG, "catalog '%s' is not the one that the data files belong to",
                       c->path);
    if (slot->sequence < newest->sequence)
        return zb_fail(err, -EBADMSG,
                       "catalog '%s' is at transaction %" PRIu64 ", and the data files at %" PRIu64
                       ": it is an older one",
                       c->path, slot->sequence, newest->sequence);
    if (slot->sequence - newest->sequence > 1)
        return zb_fail(err, -EBADMSG,
                       "catalog '%s' is at transaction %" PRIu64 ", and the data files at %" PRIu64
                       ": they are older ones, or others",
                       c->path, slot->sequence, newest->sequence);
    if (slot->sequence == newest->sequence && slot->digest != newest->digest)
        return zb_fail(err, -EBADMSG,
                       "catalog '%s' does not hold what was committed as transaction %" PRIu64,
                       c->path, slot->sequence);
    return 0;
}

/* What is in the folder, and what is no more, becomes durable. SQLite sees to that for files that
 * it makes itself, and only then: whoever was killed, or whose flush failed, between the end of the
 * journal that made the database and the WAL's first flush has left a journal that could come back
 * with the next power cut, and undo all that was committed meanwhile. There is no call of a VFS for
 * it but a deletion: of a file that is made for it. */
static int open_flush_folder(const struct zn_catalog *c, const char *vfs_name, struct zb_err *err)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(vfs_name);
    sqlite3_file *file = vfs ? calloc(1, (size_t)vfs->szOsFile) : NULL;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_JOURNAL;
    char *name = sqlite3_mprintf("%s-flush", c->path);
    int rc = file && name ? vfs->xOpen(vfs, name, file, flags, NULL) : SQLITE_NOMEM;

    if (file && file->pMethods)
        (void)file->pMethods->xClose(file);
    if (rc == SQLITE_OK)
        rc = vfs->xDelete(vfs, name, 1);
    sqlite3_free(name);
    free(file);
    if (rc == SQLITE_OK)
        return 0;
    return zb_fail(err,
                   rc == SQLITE_NOMEM  ? -ENOMEM
                   : rc == SQLITE_FULL ? -ENOSPC
                                       : -EIO,
                   "catalog '%s': flush its folder: %s", c->path, sqlite3_errstr(rc));
}

static int open_build(struct zn_catalog *c, const struct zn_catalog_options *o,
                      const struct zn_slot *slots, unsigned n, struct zb_err *err)
{
    struct zn_slot newest;
    bool may_create;
    int rc = open_newest(slots, n, &newest, err);

    if (rc < 0)
        return rc;
    may_create = o->may_create && !o->read_only && newest.sequence == 0;
    c->read_only = o->read_only;
    c->path = strdup(o->path);
    if (!c->path)
        return zb_fail(err, -ENOMEM, "catalog: %m");
    rc = o->vfs ? 0 : open_file(o, may_create, err);
    if (rc == 0)
        rc = open_sqlite(c, o, may_create, err);
    if (rc == 0)
        rc = open_schema(c, may_create, newest.sequence > 0, err);
    if (rc == 0)
        rc = open_check_pages(c, err);
    if (rc == 0)
        rc = catalog_read(c, &c->state, err);
    if (rc == 0)
        rc = open_compare(c, &newest, err);
    if (rc == 0 && !o->read_only)
        rc = catalog_checkpoint(c, SQLITE_CHECKPOINT_TRUNCATE, err); /* G1 */
    if (rc == 0 && !o->read_only)
        rc = open_flush_folder(c, o->vfs, err);
    return rc;
}

void zn_catalog_close(struct zn_catalog *c)
{
    int rc;

    if (!c)
        return;
    for (int i = 0; i < STMTS; i++)
        (void)sqlite3_finalize(c->stmts[i]);
    rc = sqlite3_close(c->db);
    assert(rc == SQLITE_OK); /* G4 */
    zb_close_fd(&c->lock_fd);
    free(c->path);
    free(c);
}

int zn_catalog_open(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zb_err *err)
{
    struct zn_catalog *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "catalog: %m");
    c->lock_fd = -1;
    rc = open_build(c, options, slots, n, err);
    if (rc == 0)
        *ret = c;
    else
        zn_catalog_close(c);
    return rc;
}
