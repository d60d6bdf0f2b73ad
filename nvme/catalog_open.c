/*
 * catalog_open.c - opens the catalog: the file, SQLite's settings and the schema; compares its
 * state with that in the data files. The model is in catalog.c.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "nvme/catalog_db_priv.h"

#define CATALOG_PAGE      "16384" /* of SQLite; measured: docs/decisions/0007 */
#define CATALOG_CACHE_KIB "32768"
#define CATALOG_WAL_KEPT  "16777216" /* bytes of it that stay for the next commit */
#define CATALOG_SQL_MAX   4096
/* Where SQLite keeps its locks (its file format, section 1.1.1): readers lock these bytes for
 * reading, and an exclusive user locks them for writing. */
#define CATALOG_LOCK_AT    (INT64_C(0x40000000) + 2)
#define CATALOG_LOCK_BYTES 510

#define CATALOG_TABLE                                                                      \
    "CREATE TABLE record(id INTEGER PRIMARY KEY,kind INTEGER NOT NULL,a INTEGER NOT NULL," \
    "b INTEGER NOT NULL,crc INTEGER NOT NULL,bytes BLOB NOT NULL)"
#define CATALOG_INDEX "CREATE UNIQUE INDEX record_key ON record(kind,a,b)"

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
                           ", and another one at %" PRIu64 ": they belong to different stores",
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

/* Checks that the database and its journals, if they exist, are regular files: SQLite would follow
 * a link, and wait for the writer of a FIFO. */
static int open_regular(const struct zn_catalog_options *o, struct zb_err *err)
{
    static const char *const ends[] = { "", "-wal", "-shm", "-journal" };

    for (size_t i = 0; i < ZB_COUNT(ends); i++) {
        char path[PATH_MAX];
        struct stat st;

        if ((size_t)snprintf(path, sizeof(path), "%s%s", o->path, ends[i]) >= sizeof(path))
            return zb_fail(err, -ENAMETOOLONG, "the path of catalog '%.100s...'", o->path);
        if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
            continue;
        if (S_ISLNK(st.st_mode))
            return zb_fail(err, -ELOOP, "catalog '%s' is a symbolic link, which is not followed",
                           path);
        return zb_fail(err, -EMEDIUMTYPE, "catalog '%s' is not a regular file", path);
    }
    return 0;
}

/* Checks that the file exists and is accessible, or creates it. A new file gets mode 0600: SQLite
 * would let others read it. */
static int open_file(const struct zn_catalog_options *o, bool may_create, struct zb_err *err)
{
    int fd = open_regular(o, err);

    if (fd < 0)
        return fd;
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

/* SQLite's exclusive mode takes write locks, which a file opened for reading cannot get. So we
 * take a reader's lock here, and SQLite takes none (its VFS unix-none). */
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

/* Disables features that a damaged or a malicious database could abuse. */
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
        return zn_catalog_fail(c, rc, "configure SQLite", err);
    return zn_catalog_exec(c,
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
        return zn_catalog_fail(c, rc, "open", err);
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
        int rc = sqlite3_prepare_v3(c->db, zn_catalog_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                                    &c->stmts[i], NULL);

        if (rc != SQLITE_OK)
            return zn_catalog_fail(c, rc, "prepare its statements", err);
    }
    return 0;
}

/* Makes creations and deletions of files in the folder durable. SQLite does so only when it
 * creates a file. So after the first transaction its journal may be deleted, but reappear after a
 * power cut, and would be rolled back over later writes. Nothing is written to a database before
 * its folder is flushed. The only call of a VFS that flushes a folder is a deletion, so a file is
 * made and deleted. */
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

/* Turns an empty database into a catalog, atomically: a crash leaves it empty. */
static int open_create(struct zn_catalog *c, const char *vfs_name, struct zb_err *err)
{
    struct catalog_state state = { 0 };
    int rc;

    if (c->from)
        state = c->from->state;
    while (!c->from && getrandom(state.slot.catalog, sizeof(state.slot.catalog), 0) !=
                           (ssize_t)sizeof(state.slot.catalog))
        ; /* as in zn_super_init() */
    rc = zn_catalog_exec(c,
                         "PRAGMA page_size=" CATALOG_PAGE ";PRAGMA auto_vacuum=INCREMENTAL;"
                         "PRAGMA journal_mode=WAL",
                         "create it", err);
    if (rc == 0)
        rc = open_flush_folder(c, vfs_name, err); /* makes the deletion of the journal durable */
    if (rc == 0)
        rc = zn_catalog_exec(c, "BEGIN IMMEDIATE;" CATALOG_TABLE ";" CATALOG_INDEX, "create it",
                             err);
    if (rc == 0)
        rc = open_prepare(c, err);
    if (rc == 0)
        rc = zn_catalog_put_head(c, &state, err);
    if (rc == 0 && c->from)
        rc = zn_catalog_fill(c, c->from, err);
    if (rc == 0)
        rc = zn_catalog_exec(c, "COMMIT", "create it", err);
    return rc;
}

/* Checks the schema, and creates it in an empty database. */
static int open_schema(struct zn_catalog *c, const struct zn_catalog_options *o, bool may_create,
                       bool committed, struct zb_err *err)
{
    struct schema schema = { 0 };
    struct text mode = { "" };
    int rc =
        zn_catalog_query(c, "SELECT sql FROM sqlite_schema", schema_on_row, &schema, "open", err);

    if (rc == 0 && !o->read_only)
        rc = open_flush_folder(c, o->vfs, err); /* an earlier process may have been killed before it
                                                   did this */
    if (rc < 0)
        return rc;
    if (schema.rows == 0 && !may_create)
        return zb_fail(err, committed ? -EBADMSG : -ENOENT, "catalog '%s' is empty", c->path);
    if (schema.rows == 0)
        rc = open_create(c, o->vfs, err);
    else if (schema.rows != SCHEMA_ROWS || schema.differs)
        return zb_fail(err, -EBADMSG, "'%s' is not a catalog, or is damaged: its tables differ",
                       c->path);
    else
        rc = open_prepare(c, err);
    if (rc == 0)
        rc = zn_catalog_query(c, "PRAGMA journal_mode", text_on_row, &mode, "open", err);
    if (rc == 0 && strcmp(mode.s, "wal") != 0)
        return zb_fail(err, -EBADMSG, "catalog '%s' is damaged: its journal is not a WAL", c->path);
    return rc;
}

/* Checks that every page of the file is free or belongs to exactly one tree. Otherwise a commit
 * could overwrite pages in use. The checksums of records do not detect that. */
static int open_check_pages(struct zn_catalog *c, struct zb_err *err)
{
    struct text text = { "" };
    int rc = zn_catalog_query(c, "PRAGMA quick_check(1)", text_on_row, &text, "check it", err);

    if (rc == 0 && strcmp(text.s, "ok") != 0)
        return zb_fail(err, -EBADMSG, "catalog '%s' is damaged: its pages are in disorder (%s ...)",
                       c->path, text.s);
    return rc;
}

/* Compares the catalog with the slots of the data files. */
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

static int open_build(struct zn_catalog *c, const struct zn_catalog_options *o,
                      const struct zn_slot *slots, unsigned n, struct zb_err *err)
{
    struct zn_slot newest;
    bool may_create;
    int rc = open_newest(slots, n, &newest, err);

    if (rc < 0)
        return rc;
    may_create = o->may_create && !o->read_only && (newest.sequence == 0 || c->from);
    c->read_only = o->read_only;
    c->path = strdup(o->path);
    if (!c->path)
        return zb_fail(err, -ENOMEM, "catalog: %m");
    rc = o->vfs ? 0 : open_file(o, may_create, err);
    if (rc == 0)
        rc = open_sqlite(c, o, may_create, err);
    if (rc == 0)
        rc = open_schema(c, o, may_create, newest.sequence > 0, err);
    if (rc == 0)
        rc = open_check_pages(c, err);
    if (rc == 0)
        rc = zn_catalog_read(c, &c->state, err);
    if (rc == 0)
        rc = open_compare(c, &newest, err);
    if (rc == 0 && !o->read_only)
        rc = zn_catalog_checkpoint(c, SQLITE_CHECKPOINT_TRUNCATE, err); /* G1 */
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

static int open_new(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zn_catalog *from,
                    struct zb_err *err)
{
    struct zn_catalog *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "catalog: %m");
    c->lock_fd = -1;
    c->from = from;
    rc = open_build(c, options, slots, n, err);
    c->from = NULL;
    if (rc == 0)
        *ret = c;
    else
        zn_catalog_close(c);
    return rc;
}

int zn_catalog_open(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zb_err *err)
{
    return open_new(ret, options, slots, n, NULL, err);
}

/* Deletes a catalog. Its journals go first: alone they could become the contents of a new one. */
static int copy_clear(const struct zn_catalog_options *o, struct zb_err *err)
{
    static const char *const ends[] = { "-journal", "-wal", "-shm", "" };
    sqlite3_vfs *vfs = sqlite3_vfs_find(o->vfs);
    int rc = vfs ? SQLITE_OK : SQLITE_NOMEM;

    for (size_t i = 0; i < ZB_COUNT(ends) && rc == SQLITE_OK; i++) {
        char *name = sqlite3_mprintf("%s%s", o->path, ends[i]);

        rc = name ? vfs->xDelete(vfs, name, 1) : SQLITE_NOMEM;
        rc = rc == SQLITE_IOERR_DELETE_NOENT ? SQLITE_OK : rc;
        sqlite3_free(name);
    }
    return rc == SQLITE_OK ? 0
                           : zb_fail(err, rc == SQLITE_NOMEM ? -ENOMEM : -EIO,
                                     "catalog '%s': replace it: %s", o->path, sqlite3_errstr(rc));
}

int zn_catalog_copy(struct zn_catalog **ret, const struct zn_catalog_options *options,
                    struct zn_catalog *from, struct zb_err *err)
{
    struct zn_catalog_options o = *options;
    int rc = copy_clear(&o, err);

    if (rc < 0)
        return rc;
    o.may_create = true;
    rc = open_new(ret, &o, &from->state.slot, 1, from, err);
    if (rc < 0)
        (void)copy_clear(&o, NULL); /* a part of it holds space, and is of no use */
    return rc;
}
