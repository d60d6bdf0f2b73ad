/*
 * catalog_sql.c - the catalog's SQL statements, and their results.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>

#include "base/crc.h"
#include "nvme/catalog_db_priv.h"

const char *const zn_catalog_sql[STMTS] = {
    [STMT_FIND] = "SELECT id,crc,length(bytes) FROM record INDEXED BY record_key"
                  " WHERE kind=?1 AND a=?2 AND b=?3",
    [STMT_FIND_ALL] = "SELECT id,crc,length(bytes),b FROM record INDEXED BY record_key"
                      " WHERE kind=?1 AND a=?2 AND b>=?3 ORDER BY b LIMIT 1",
    [STMT_INSERT] = "INSERT INTO record(kind,a,b,crc,bytes) VALUES(?1,?2,?3,?4,?5)",
    [STMT_UPDATE] = "UPDATE record SET crc=?4,bytes=?5 WHERE id=?6",
    [STMT_DELETE] = "DELETE FROM record WHERE id=?6",
    [STMT_EACH] = "SELECT kind,a,b,crc,bytes FROM record INDEXED BY record_key"
                  " WHERE kind BETWEEN ?1 AND ?2 ORDER BY kind,a,b",
    [STMT_PAGES] = "SELECT page_count*page_size FROM pragma_page_count,pragma_page_size",
    [STMT_FREE] = "SELECT freelist_count,page_count FROM pragma_freelist_count,pragma_page_count",
};

/* ---- records */

uint32_t zn_record_crc(const struct zn_key *key, const void *bytes, size_t len_bytes)
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

uint64_t zn_record_mix(const struct zn_key *key, uint32_t crc)
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
    default: /* CORRUPT, NOTADB; our SQL is fixed, so the others also mean damage */
        return -EBADMSG;
    }
}

/* SQLite has a code for ENOSPC, but none for EDQUOT. Its own record of the system's error is not set
 * by a failed COMMIT, so the VFS is asked. */
bool zn_catalog_write_full(struct zn_catalog *c, int rc)
{
    sqlite3_vfs *vfs = NULL;

    if ((rc & 0xff) == SQLITE_FULL)
        return true;
    return rc == SQLITE_IOERR_WRITE &&
           sqlite3_file_control(c->db, "main", SQLITE_FCNTL_VFS_POINTER, (void *)&vfs) ==
               SQLITE_OK &&
           vfs->xGetLastError && vfs->xGetLastError(vfs, 0, NULL) == EDQUOT;
}

int zn_catalog_fail(struct zn_catalog *c, int rc, const char *what, struct zb_err *err)
{
    int code = zn_catalog_write_full(c, rc) ? -ENOSPC : sql_errno(c->db, rc);

    if (code == -EBUSY)
        return zb_fail(err, code, "catalog '%s' is in use by another process", c->path);
    if (code == -ENOSPC)
        return zb_fail(err, code, "catalog '%s': %s: " ZN_CATALOG_NO_SPACE, c->path, what);
    return zb_fail(err, code, "catalog '%s': %s: %s%s", c->path, what, sqlite3_errmsg(c->db),
                   code == -EBADMSG ? " (it is damaged)" : "");
}

int zn_catalog_query(struct zn_catalog *c, const char *sql, sqlite3_callback fn, void *arg,
                     const char *what, struct zb_err *err)
{
    int rc = sqlite3_exec(c->db, sql, fn, arg, NULL);

    return rc == SQLITE_OK ? 0 : zn_catalog_fail(c, rc, what, err);
}

int zn_catalog_exec(struct zn_catalog *c, const char *sql, const char *what, struct zb_err *err)
{
    return zn_catalog_query(c, sql, NULL, NULL, what, err);
}

void zn_catalog_bind_key(struct zn_catalog *c, enum stmt s, const struct zn_key *key)
{
    int rc = sqlite3_bind_int64(c->stmts[s], 1, key->kind);

    rc |= sqlite3_bind_int64(c->stmts[s], 2, (sqlite3_int64)key->a);
    rc |= sqlite3_bind_int64(c->stmts[s], 3, (sqlite3_int64)key->b);
    assert(rc == SQLITE_OK);
}

int zn_catalog_step(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err)
{
    int rc = sqlite3_step(c->stmts[s]);

    return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : zn_catalog_fail(c, rc, what, err);
}

void zn_catalog_reset(struct zn_catalog *c, enum stmt s)
{
    (void)sqlite3_reset(c->stmts[s]); /* returns the failure of the step again */
    (void)sqlite3_clear_bindings(c->stmts[s]);
}

int zn_catalog_run(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err)
{
    int rc = zn_catalog_step(c, s, what, err);

    zn_catalog_reset(c, s);
    return rc;
}
