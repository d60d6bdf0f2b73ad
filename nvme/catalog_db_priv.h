/*
 * catalog_db_priv.h - the catalog's struct, shared by its files: catalog_sql.c calls SQLite,
 * catalog.c reads and commits, catalog_open.c opens.
 */
#ifndef ZN_CATALOG_DB_PRIV_H
#define ZN_CATALOG_DB_PRIV_H

#include <sqlite3.h>

#include "nvme/catalog_priv.h"

#define CATALOG_VERSION 1u

/* -ENOSPC and -EDQUOT, in messages */
#define ZN_CATALOG_NO_SPACE "no space is left on its file system, or in the user's quota there"

enum stmt {
    STMT_FIND,
    STMT_FIND_ALL,
    STMT_INSERT,
    STMT_UPDATE,
    STMT_DELETE,
    STMT_EACH,
    STMT_PAGES,
    STMT_FREE,
    STMTS
};

struct catalog_state {
    struct zn_slot slot;
    uint64_t records, record_bytes; /* without the catalog's own record */
};

struct zn_catalog {
    char *path;
    sqlite3 *db;
    sqlite3_stmt *stmts[STMTS];
    bool read_only;
    int lock_fd; /* of a read-only catalog */
    struct catalog_state state;
    struct zb_err poisoned;
    const atomic_bool *stop; /* zn_catalog_stop_on() */
    struct zn_catalog *from; /* while it is created as a copy: of this one */
};

/* ---- catalog_sql.c */

/** The SQL of each statement. */
extern const char *const zn_catalog_sql[STMTS];

/** The checksum that is stored with a record. */
uint32_t zn_record_crc(const struct zn_key *key, const void *bytes, size_t len_bytes);
/** A record's contribution to the digest. */
uint64_t zn_record_mix(const struct zn_key *key, uint32_t crc);

/** Records the message of SQLite's last failure; rc is SQLite's code. Returns a negative errno. */
int zn_catalog_fail(struct zn_catalog *c, int rc, const char *what, struct zb_err *err);
/** Whether a write of the file, which just returned rc, found no space: the file system is full, or
 * the user's quota of it. */
bool zn_catalog_write_full(struct zn_catalog *c, int rc);
/** Calls fn for each row, as text; fn returns 0. */
int zn_catalog_query(struct zn_catalog *c, const char *sql, sqlite3_callback fn, void *arg,
                     const char *what, struct zb_err *err);
int zn_catalog_exec(struct zn_catalog *c, const char *sql, const char *what, struct zb_err *err);
void zn_catalog_bind_key(struct zn_catalog *c, enum stmt s, const struct zn_key *key);
/** 1: a row; 0: no row. The caller resets the statement (G4). */
int zn_catalog_step(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err);
void zn_catalog_reset(struct zn_catalog *c, enum stmt s);
/** Steps and resets a statement that gives no rows. */
int zn_catalog_run(struct zn_catalog *c, enum stmt s, const char *what, struct zb_err *err);

/* ---- catalog.c */

/** Reads and checks all records; *ret is the state they give. */
int zn_catalog_read(struct zn_catalog *c, struct catalog_state *ret, struct zb_err *err);
/** Writes the catalog's own record, after the others. */
int zn_catalog_put_head(struct zn_catalog *c, const struct catalog_state *s, struct zb_err *err);
/** Adds all records of another catalog to an empty one, within a transaction. */
int zn_catalog_fill(struct zn_catalog *c, struct zn_catalog *from, struct zb_err *err);
/** mode: whether the WAL is truncated (TRUNCATE) or overwritten by the next commit (RESTART). */
int zn_catalog_checkpoint(struct zn_catalog *c, int mode, struct zb_err *err);

#endif
