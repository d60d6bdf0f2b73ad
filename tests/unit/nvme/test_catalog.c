/*
 * The catalog: transactions compared with a model in memory, and everything that may have happened
 * to its file. Damage is made in a copy of the file; SQLite itself makes damage that random bits
 * would not hit.
 *
 * ZSHARD_CATALOG_DAMAGES=N: the number of random damages, instead of 2,000.
 */
#include "zn_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catalog_model.h"
#include "nvme/catalog_priv.h"

static char dir[256], path[320], wal[330], shm[330];
static struct zb_err err;

static int dir_up(void **state)
{
    (void)state;
    if (zn_test_dir_make(dir, sizeof(dir), access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL) < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/catalog", dir);
    (void)snprintf(wal, sizeof(wal), "%s-wal", path);
    (void)snprintf(shm, sizeof(shm), "%s-shm", path);
    return 0;
}

static int dir_down(void **state)
{
    (void)state;
    zn_test_dir_remove(dir);
    return 0;
}

static int files_gone(void **state)
{
    (void)state;
    err = (struct zb_err){ 0 };
    return (unlink(path) == 0 || errno == ENOENT) && (unlink(wal) == 0 || errno == ENOENT) ? 0 : -1;
}

static int txn_put_bytes(struct zn_txn *t, const struct zn_key *key, const void *bytes,
                         size_t len_bytes)
{
    void *room;
    int rc = zn_txn_put_room(t, key, len_bytes, &room);

    if (rc == 0 && len_bytes > 0)
        memcpy(room, bytes, len_bytes);
    return rc;
}

/* ---- catalogs */

static const struct zn_slot never = { 0 };

static int try_open(struct zn_catalog **ret, const struct zn_slot *slot, bool read_only)
{
    struct zn_catalog_options o = { .path = path, .may_create = true, .read_only = read_only };

    err = (struct zb_err){ 0 };
    return zn_catalog_open(ret, &o, slot, 1, &err);
}

static struct zn_catalog *open_at(const struct zn_slot *slot)
{
    struct zn_catalog *c = NULL;

    if (try_open(&c, slot, false) < 0)
        fail_msg("%s", err.text);
    return c;
}

/* Opens and closes; returns the rc, with the error message in err. */
static int open_rc(const struct zn_slot *slot)
{
    struct zn_catalog *c = NULL;
    int rc = try_open(&c, slot, false);

    zn_catalog_close(c);
    return rc == err.code ? rc : 1;
}

static void expect_refused(const char *what, const struct zn_slot *slot, int rc, const char *part)
{
    int got = open_rc(slot);

    if (got != rc || !strstr(err.text, part))
        fail_msg("%s: %d '%s', not %d '%s'", what, got, err.text, rc, part);
}

static int commit_rc(struct zn_catalog *c, struct zn_txn *t, struct zn_slot *slot)
{
    int rc;

    err = (struct zb_err){ 0 };
    rc = zn_catalog_commit(c, t, slot, &err);
    zn_txn_free(t);
    return rc;
}

/* One random transaction. */
static void commit_random(struct zn_catalog *c, struct model *m, uint64_t *seed, uint32_t len_max,
                          struct zn_slot *slot)
{
    struct zn_txn *t = zn_txn_new();

    txn_random(t, m, seed, len_max);
    if (commit_rc(c, t, slot) < 0)
        fail_msg("%s", err.text);
}

/* ---- files */

struct image {
    uint8_t *bytes;
    size_t len_bytes;
};

static struct image image_read(const char *at)
{
    int fd = open(at, O_RDONLY | O_CLOEXEC);
    struct image i = { 0 };
    struct stat st;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    i.len_bytes = (size_t)st.st_size;
    i.bytes = malloc(i.len_bytes + 1);
    assert_int_equal(read(fd, i.bytes, i.len_bytes), i.len_bytes);
    assert_int_equal(close(fd), 0);
    return i;
}

static void image_write(const char *at, const struct image *i)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, i->bytes, i->len_bytes), i->len_bytes);
    assert_int_equal(close(fd), 0);
}

static void expect_file(const char *at, const struct image *want)
{
    struct image now = image_read(at);

    assert_int_equal(now.len_bytes, want->len_bytes);
    assert_memory_equal(now.bytes, want->bytes, now.len_bytes);
    free(now.bytes);
}

/* Restores the database file, without a WAL. */
static void put_back(const struct image *i)
{
    (void)unlink(wal);
    image_write(path, i);
}

/* Runs SQL on the file, behind the catalog's back. With keep_wal, its changes stay in the WAL. */
static void sql_run(const char *sql, bool keep_wal)
{
    sqlite3 *db = NULL;
    char *text = NULL;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep_wal ? 1 : 0, NULL);
    if (sqlite3_exec(db, "PRAGMA locking_mode=EXCLUSIVE;PRAGMA wal_autocheckpoint=0", NULL, NULL,
                     &text) != SQLITE_OK ||
        sqlite3_exec(db, sql, NULL, NULL, &text) != SQLITE_OK)
        fail_msg("%s: %s", sql, text);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* ---- transactions */

static void txn_table(void **state)
{
    static const struct {
        const char *name;
        struct zn_key key;
        size_t len_bytes;
        int rc;
    } cases[] = {
        { "the least", { 1, 0, 0 }, 0, 0 },
        { "the largest key", { UINT32_MAX, INT64_MAX, INT64_MAX }, 1, 0 },
        { "kind 0 is ours", { 0, 1, 1 }, 1, -EINVAL },
        { "a is too large", { 1, (uint64_t)INT64_MAX + 1, 0 }, 1, -EINVAL },
        { "b is too large", { 1, 0, UINT64_MAX }, 1, -EINVAL },
        { "too long", { 1, 2, 3 }, (size_t)ZN_RECORD_MAX + 1, -EINVAL },
    };
    struct zn_txn *t = zn_txn_new();
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        int rc = txn_put_bytes(t, &cases[i].key, "x", cases[i].len_bytes);

        if (rc != cases[i].rc)
            fail_msg("%s: %d", cases[i].name, rc);
        count += rc == 0;
        assert_int_equal(t->count, count);
        if (cases[i].len_bytes <= 1) {
            assert_int_equal(zn_txn_del(t, &cases[i].key), cases[i].rc);
            count += rc == 0;
        }
    }
    zn_txn_free(t);
    zn_txn_free(NULL);
}

/* Each row is one transaction of puts (p), deletes (d), and deletes of all (D) for the keys a .. f
 * of one kind and a; then the expected contents. */
static void commit_table(void **state)
{
    static const struct {
        const char *name, *changes, *there;
    } cases[] = {
        { "nothing", "", "" },
        { "a first record", "pa", "a" },
        { "once more", "pa", "a" },
        { "more of them, not in order", "pdpbpc", "abcd" },
        { "put and deleted", "pede", "abcd" },
        { "deleted and put", "dbpb", "abcd" },
        { "deleted", "dcda", "bd" },
        { "put twice", "pfpf", "bdf" },
        { "all of them", "D", "" },
        { "all of none", "D", "" },
        { "put, all deleted, put", "papbDpc", "c" },
    };
    struct zn_slot slot = never;
    struct model m = { 0 };
    struct zn_catalog *c = open_at(&slot);
    uint64_t sequence = 0;

    (void)state;
    assert_true(same(c, &m));
    assert_int_equal(zn_catalog_slot(c).sequence, 0);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zn_txn *t = zn_txn_new();

        for (const char *p = cases[i].changes; *p; p += *p == 'D' ? 1 : 2) {
            struct record r = { .len_bytes = (uint32_t)(i * 777), .seed = i };
            struct zn_key key = model_key(1, 2, (unsigned)p[1] - 'a');

            if (*p == 'p')
                txn_put(t, &key, &r);
            else if (*p == 'd')
                assert_int_equal(zn_txn_del(t, &key), 0);
            else
                assert_int_equal(zn_txn_del_all(t, key.kind, key.a), 0);
            if (*p == 'p')
                m.records[1][2][p[1] - 'a'] = r;
        }
        for (unsigned b = 0; b < SIDE; b++)
            m.records[1][2][b].there = strchr(cases[i].there, (int)('a' + b)) != NULL;
        assert_int_equal(commit_rc(c, t, &slot), 0);
        if (!same(c, &m) || slot.sequence != ++sequence)
            fail_msg("%s: %s", cases[i].name, err.text);
        zn_catalog_close(c);
        c = open_at(&slot);
        if (!same(c, &m) || memcmp(&slot, &(struct zn_slot){ 0 }, 1) == 0)
            fail_msg("%s: opened again: %s", cases[i].name, err.text);
    }
    zn_catalog_close(c);
    zn_catalog_close(NULL);
}

static int each_count(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zb_err *e)
{
    unsigned *left = arg;

    (void)key;
    (void)bytes;
    (void)len_bytes;
    return --*left == 0 ? zb_fail(e, -ECANCELED, "enough") : 0;
}

static void each_range(void **state)
{
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&slot);
    struct zn_txn *t = zn_txn_new();
    unsigned left;

    (void)state;
    for (uint32_t kind = 1; kind < 6; kind++)
        for (uint64_t a = 0; a < kind; a++)
            assert_int_equal(txn_put_bytes(t, &(struct zn_key){ kind, a, 0 }, "x", 1), 0);
    assert_int_equal(commit_rc(c, t, &slot), 0);
    left = 100;
    assert_int_equal(zn_catalog_each(c, 0, UINT32_MAX, each_count, &left, &err), 0);
    assert_int_equal(left, 100 - 15);
    left = 100;
    assert_int_equal(zn_catalog_each(c, 2, 4, each_count, &left, &err), 0);
    assert_int_equal(left, 100 - 9);
    left = 100;
    assert_int_equal(zn_catalog_each(c, 7, 6, each_count, &left, &err), 0);
    assert_int_equal(left, 100);
    left = 4;
    assert_int_equal(zn_catalog_each(c, 1, 5, each_count, &left, &err), -ECANCELED);
    assert_string_equal(err.text, "enough");
    t = zn_txn_new(); /* an abandoned walk does not block it */
    assert_int_equal(commit_rc(c, t, &slot), 0);
    zn_catalog_close(c);
}

/* All or nothing; and a catalog that failed keeps failing until it is opened again. */
static void commit_poisoned(void **state)
{
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&slot);
    struct model m = { 0 };
    uint64_t seed = 5;

    (void)state;
    for (int i = 0; i < 9; i++)
        commit_random(c, &m, &seed, 20000, &slot);
    for (int round = 0; round < 2; round++) {
        struct zn_txn *t = zn_txn_new();
        struct model never_was = m;

        txn_random(t, &never_was, &seed, 20000);
        assert_int_equal(txn_put_bytes(t, &(struct zn_key){ 9, 9, 9 }, "x", 1), 0);
        if (round == 0)
            assert_int_equal(zn_txn_del(t, &(struct zn_key){ 9, 9, 8 }), 0);
        assert_int_equal(commit_rc(c, t, &slot), -ENOENT);
        assert_non_null(strstr(err.text, "record (9, 9, 8) is deleted, and is not there"));
        assert_true(same(c, &m));
    }
    zn_catalog_close(c);
    c = open_at(&slot);
    assert_true(same(c, &m));
    commit_random(c, &m, &seed, 20000, &slot);
    assert_true(same(c, &m));
    zn_catalog_close(c);
}

/* After any changes, the digest is that of the records, as another implementation computes it
 * (same()). */
static void commit_random_changes(void **state)
{
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&slot);
    struct model m = { 0 };
    uint64_t seed = 1;

    (void)state;
    for (unsigned i = 0; i < 300; i++) {
        commit_random(c, &m, &seed, i % 20 == 0 ? 1 << 20 : 30000, &slot);
        if (!same(c, &m) || zn_catalog_verify(c, &err) < 0)
            fail_msg("transaction %u: %s", i, err.text);
        if (i % 10 == 0) {
            struct stat st;

            assert_int_equal(stat(wal, &st), 0);
            assert_int_equal(access(shm, F_OK), -1);
            zn_catalog_close(c);
            if (i % 20 == 0)
                assert_int_equal(unlink(wal), 0); /* G1 */
            c = open_at(&slot);
            assert_true(same(c, &m));
            assert_int_equal(stat(wal, &st), 0);
            assert_int_equal(st.st_size, 0); /* nothing of it is left */
        }
    }
    assert_int_equal(slot.sequence, 300);
    zn_catalog_close(c);
}

/* The size of the WAL after a large transaction is limited once another one has followed. */
static void wal_is_kept_and_bounded(void **state)
{
    static const uint32_t records[] = { 1, 1, 40, 1, 1 }; /* of 1 MiB */
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&slot);
    uint8_t *bytes = calloc(1, 1 << 20);
    off_t sizes[ZB_COUNT(records)];

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < ZB_COUNT(records); i++) {
        struct zn_txn *t = zn_txn_new();
        struct stat st;

        for (uint32_t b = 0; b < records[i]; b++)
            assert_int_equal(txn_put_bytes(t, &(struct zn_key){ 1, i, b }, bytes, 1 << 20), 0);
        assert_int_equal(commit_rc(c, t, &slot), 0);
        assert_int_equal(stat(wal, &st), 0);
        sizes[i] = st.st_size;
    }
    assert_true(sizes[0] > 1 << 20 && sizes[0] < 2 << 20);
    assert_in_range(sizes[1], sizes[0], 3 << 20); /* overwritten, not appended to */
    assert_true(sizes[2] > 40 << 20);
    assert_int_equal(sizes[3], 16 << 20);
    assert_int_equal(sizes[4], 16 << 20);
    free(bytes);
    zn_catalog_close(c);
    c = open_at(&slot);
    zn_catalog_close(c);
}

/* Deleted records do not keep the file long: it shrinks, at once or step by step; the other records
 * are unchanged. */
static void what_is_deleted_gives_its_room_back(void **state)
{
    enum { MANY = 24, BYTES = 1 << 20 };
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&slot);
    uint8_t *bytes = calloc(1, BYTES);
    struct zn_txn *t = zn_txn_new();
    struct stat st;

    (void)state;
    assert_non_null(bytes);
    for (uint32_t a = 1; a <= MANY; a++)
        assert_int_equal(txn_put_bytes(t, &(struct zn_key){ 1, a, 0 }, bytes, BYTES), 0);
    assert_int_equal(commit_rc(c, t, &slot), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > MANY * BYTES);

    /* half of it: there may be as many free pages as used ones */
    t = zn_txn_new();
    for (uint32_t a = 1; a <= MANY; a += 2)
        assert_int_equal(zn_txn_del(t, &(struct zn_key){ 1, a, 0 }), 0);
    assert_int_equal(commit_rc(c, t, &slot), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > MANY * BYTES);

    t = zn_txn_new();
    for (uint32_t a = 2; a < MANY; a += 2)
        assert_int_equal(zn_txn_del(t, &(struct zn_key){ 1, a, 0 }), 0);
    assert_int_equal(commit_rc(c, t, &slot), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < MANY / 2 * BYTES);
    for (uint32_t a = 100; a < 104; a++) { /* each frees another part */
        t = zn_txn_new();
        assert_int_equal(txn_put_bytes(t, &(struct zn_key){ 1, a, 0 }, bytes, 1), 0);
        assert_int_equal(commit_rc(c, t, &slot), 0);
    }
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 4 * BYTES); /* a record, as much free, and what is always kept */
    assert_int_equal(zn_catalog_verify(c, &err), 0);
    zn_catalog_close(c);
    c = open_at(&slot);
    t = zn_txn_new();
    assert_int_equal(zn_txn_del(t, &(struct zn_key){ 1, MANY, 0 }), 0);
    assert_int_equal(commit_rc(c, t, &slot), 0);
    zn_catalog_close(c);
    free(bytes);
}

/* ---- older, newer and foreign files */

enum { REWINDS = 6 };

static void rewinds(void **state)
{
    struct zn_slot slots[REWINDS] = { never }, other;
    struct image files[REWINDS];
    struct model models[REWINDS] = { 0 };
    struct zn_catalog *c = open_at(&never);
    struct zn_slot two[2];
    uint64_t seed = 3;

    (void)state;
    for (unsigned i = 0; i < REWINDS; i++) {
        if (i > 0) {
            models[i] = models[i - 1];
            commit_random(c, &models[i], &seed, 9000, &slots[i]);
        }
        files[i] = image_read(path);
    }
    zn_catalog_close(c);
    for (unsigned file = 0; file < REWINDS; file++) {
        for (unsigned slot = 0; slot < REWINDS; slot++) {
            struct zn_slot now;
            int rc;

            put_back(&files[file]);
            c = NULL;
            rc = try_open(&c, &slots[slot], false);
            if (rc != (file == slot || file == slot + 1 ? 0 : -EBADMSG) || rc != err.code)
                fail_msg("catalog of %u, slots of %u: %d '%s'", file, slot, rc, err.text);
            if (rc == 0) {
                now = zn_catalog_slot(c);
                assert_true(same(c, &models[file]));
                assert_int_equal(now.sequence, file);
                assert_true(file == 0 || memcmp(&now, &slots[file], sizeof(now)) == 0);
            }
            zn_catalog_close(c);
            if (rc < 0)
                expect_file(path, &files[file]); /* a refusal changes nothing */
        }
    }
    expect_refused("ahead", &slots[2], -EBADMSG, "is at transaction 5, and the data files at 2");
    put_back(&files[2]);
    expect_refused("behind", &slots[5], -EBADMSG, "is at transaction 2, and the data files at 5");

    /* the slots of several data files */
    put_back(&files[4]);
    for (unsigned a = 0; a < REWINDS; a++) {
        for (unsigned b = 0; b < REWINDS; b++) {
            struct zn_catalog_options o = { .path = path };
            unsigned most = a > b ? a : b, least = a > b ? b : a;
            bool right = most - least <= 1 && (most == 3 || most == 4);
            int rc;

            two[0] = slots[a];
            two[1] = slots[b];
            c = NULL;
            rc = zn_catalog_open(&c, &o, two, 2, NULL);
            zn_catalog_close(c);
            if (rc != (right ? 0 : -EBADMSG))
                fail_msg("slots of %u and %u: %d", a, b, rc);
        }
    }

    /* of another catalog, or other contents with the same number */
    other = slots[4];
    other.digest ^= 1;
    expect_refused("another digest", &other, -EBADMSG, "does not hold what was committed as");
    other = slots[3];
    other.catalog[5] ^= 1;
    expect_refused("another catalog", &other, -EBADMSG, "is not the one that the data files");
    two[0] = slots[4];
    two[1] = other;
    assert_int_equal(
        zn_catalog_open(&c, &(struct zn_catalog_options){ .path = path }, two, 2, &err), -EBADMSG);
    assert_int_equal(unlink(path), 0);
    expect_refused("gone", &slots[4], -ENOENT, "is missing");
    assert_int_equal(access(path, F_OK), -1);
    for (unsigned i = 0; i < REWINDS; i++)
        free(files[i].bytes);
}

/* WALs that a crash left behind, and foreign ones. A WAL that SQLite ignores would silently give an
 * older state. */
static void wals(void **state)
{
    struct zn_slot slots[3];
    struct image files[3], old_wal, flipped;
    struct model models[3] = { 0 };
    struct zn_catalog *c = open_at(&never);
    char next[330], sql[900];
    uint64_t seed = 8;

    (void)state;
    (void)snprintf(next, sizeof(next), "%s.next", path);
    for (unsigned i = 0; i < 3; i++) {
        struct zn_txn *t = zn_txn_new();

        if (i > 0)
            models[i] = models[i - 1];
        txn_random(t, &models[i], &seed, 9000);
        models[i].records[0][0][0] = (struct record){ true, 100, i };
        txn_put(t, &(struct zn_key){ 1, 0, 0 }, &models[i].records[0][0][0]);
        assert_int_equal(commit_rc(c, t, &slots[i]), 0);
        files[i] = image_read(path);
    }
    zn_catalog_close(c);
    /* file 0, with a WAL that makes it file 1 */
    put_back(&files[0]);
    image_write(next, &files[1]);
    (void)snprintf(sql, sizeof(sql),
                   "ATTACH '%s' AS next;BEGIN;DELETE FROM main.record;"
                   "INSERT INTO main.record SELECT * FROM next.record;COMMIT",
                   next);
    sql_run(sql, true);
    assert_int_equal(unlink(next), 0);
    (void)snprintf(sql, sizeof(sql), "%s-wal", next);
    (void)unlink(sql);
    old_wal = image_read(wal);
    assert_true(old_wal.len_bytes > 0);
    for (unsigned slot = 0; slot < 2; slot++) {
        struct stat st;

        put_back(&files[0]);
        image_write(wal, &old_wal);
        c = NULL;
        assert_int_equal(try_open(&c, &slots[slot], true), 0); /* reads, and changes nothing */
        assert_true(same(c, &models[1]));
        zn_catalog_close(c);
        expect_file(path, &files[0]);
        expect_file(wal, &old_wal);
        c = open_at(&slots[slot]);
        assert_true(same(c, &models[1]));
        assert_int_equal(stat(wal, &st), 0);
        assert_int_equal(st.st_size, 0);
        zn_catalog_close(c);
        assert_int_equal(unlink(wal), 0); /* the file alone is enough */
        c = open_at(&slots[1]);
        assert_true(same(c, &models[1]));
        zn_catalog_close(c);
    }
    put_back(&files[0]);
    image_write(wal, &old_wal);
    expect_refused("behind", &slots[2], -EBADMSG, "is at transaction 2, and the data files at 3");
    expect_file(path, &files[0]);
    expect_file(wal, &old_wal);

    /* next to a newer file */
    put_back(&files[2]);
    image_write(wal, &old_wal);
    assert_int_equal(open_rc(&slots[2]), -EBADMSG);
    expect_file(path, &files[2]);
    expect_file(wal, &old_wal);

    /* any bit of it: the result is the older state, if the slots have that, or a refusal */
    flipped = old_wal;
    for (unsigned i = 0; i < 64; i++) {
        uint64_t bit = ztest_random(&seed) % (flipped.len_bytes * 8);
        int rc;

        flipped.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        for (unsigned slot = 0; slot < 2; slot++) {
            put_back(&files[0]);
            image_write(wal, &flipped);
            c = NULL;
            rc = try_open(&c, &slots[slot], false);
            if (rc < 0 ? rc != -EBADMSG
                       : !same(c, &models[zn_catalog_slot(c).sequence - 1]) ||
                             zn_catalog_slot(c).sequence < slots[slot].sequence)
                fail_msg("bit %llu, slots of %u: %d '%s'", (unsigned long long)bit, slot, rc,
                         err.text);
            zn_catalog_close(c);
        }
        flipped.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned i = 0; i < 3; i++)
        free(files[i].bytes);
    free(old_wal.bytes);
}

/* ---- damage */

static void damage_by_sql(void **state)
{
    static const struct {
        const char *name, *sql;
        int rc;
        const char *text;
    } cases[] = {
        { "a bit of the bytes", "UPDATE record SET bytes=x'01' WHERE kind=1 AND a=0 AND b=0",
          -EBADMSG, "record (1, 0, 0): its checksum differs" },
        { "a checksum", "UPDATE record SET crc=crc+1 WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "record (1, 0, 0): its checksum differs" },
        { "another key", "UPDATE record SET a=77 WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "record (1, 77, 0): its checksum differs" },
        { "a record is gone", "DELETE FROM record WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "the digest differs" },
        { "the head is gone", "DELETE FROM record WHERE kind=0", -EBADMSG, "head record is miss" },
        { "the head is short", "UPDATE record SET bytes=x'01000000' WHERE kind=0", -EBADMSG,
          "record (0, 0, 0): its checksum differs" },
        { "two heads", "INSERT INTO record VALUES(99,0,0,1,0,x'')", -EBADMSG,
          "record (0, 0, 1): its checksum differs" },
        { "text for bytes", "UPDATE record SET bytes='abc' WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "record (1, 0, 0): has no bytes" },
        { "text for a key", "UPDATE record SET b='abc' WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "has no key" },
        { "a negative key", "UPDATE record SET kind=-1 WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "the digest differs" },
        { "a large kind", "UPDATE record SET kind=4294967296 WHERE kind=1 AND a=0 AND b=0",
          -EBADMSG, "the digest differs" },
        { "a large checksum", "UPDATE record SET crc=-5 WHERE kind=1 AND a=0 AND b=0", -EBADMSG,
          "has no key" },
        { "another table", "CREATE TABLE x(y)", -EBADMSG, "its tables differ" },
        { "a trigger",
          "CREATE TRIGGER x AFTER UPDATE ON record BEGIN DELETE FROM record WHERE kind=1; END",
          -EBADMSG, "its tables differ" },
        { "no index", "DROP INDEX record_key", -EBADMSG, "its tables differ" },
        { "no tables", "DROP TABLE record", -EBADMSG, "is empty" },
        { "no WAL", "PRAGMA journal_mode=DELETE", -EBADMSG, "its journal is not a WAL" },
        { "an index that lies",
          "PRAGMA writable_schema=ON;UPDATE sqlite_schema SET sql=replace(sql,'a,b)','b,a)')",
          -EBADMSG, "its tables differ" },
        { "vacuumed, and whole", "VACUUM", 0, "" },
        { "another cache", "PRAGMA default_cache_size=9", 0, "" },
    };
    struct zn_slot slot;
    struct model m = { 0 };
    struct zn_catalog *c = open_at(&never);
    struct image file;
    uint64_t seed = 4;

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        commit_random(c, &m, &seed, 20000, &slot);
    m.records[0][0][0] = (struct record){ true, 5000, 1 };
    for (unsigned i = 0; i < 2; i++) {
        struct zn_txn *t = zn_txn_new();

        txn_put(t, &(struct zn_key){ 1, 0, 0 }, &m.records[0][0][0]);
        assert_int_equal(commit_rc(c, t, &slot), 0);
    }
    zn_catalog_close(c);
    file = image_read(path);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        int rc;

        put_back(&file);
        sql_run(cases[i].sql, false);
        c = NULL;
        rc = try_open(&c, &slot, false);
        if (rc != cases[i].rc || !strstr(err.text, cases[i].text) || (rc == 0 && !same(c, &m)))
            fail_msg("%s: %d '%s'", cases[i].name, rc, err.text);
        zn_catalog_close(c);
    }
    free(file.bytes);
}

/* Files that are not our database at all. */
static void damage_whole_files(void **state)
{
    static const struct {
        const char *name;
        size_t cut; /* keep this much of ours; 0: bytes instead */
        const char *bytes;
        const char *text;
    } cases[] = {
        { "empty", 0, "", "is empty" },
        { "text", 0,
          "hello, world; this is not a database, and longer than its header would be: "
          "more than a hundred bytes",
          "not a database" },
        { "a few bytes", 0, "SQLite", "" },
        { "the first page only", 16384, NULL, "" },
        { "half of it", 65536, NULL, "" },
        { "half a page less", 0, NULL, "" },
    };
    struct zn_slot slot;
    struct model m = { 0 };
    struct zn_catalog *c = open_at(&never);
    struct image file;
    uint64_t seed = 4;

    (void)state;
    for (unsigned i = 0; i < 12; i++)
        commit_random(c, &m, &seed, 40000, &slot);
    zn_catalog_close(c);
    file = image_read(path);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct image now = file;

        if (cases[i].bytes)
            now = (struct image){ (uint8_t *)(uintptr_t)cases[i].bytes, strlen(cases[i].bytes) };
        else
            now.len_bytes = cases[i].cut > 0 ? cases[i].cut : file.len_bytes - 8192;
        put_back(&now);
        expect_refused(cases[i].name, &slot, -EBADMSG, cases[i].text);
        if (i < 2 && cases[i].bytes) /* nothing is lost yet: an empty file is a new one */
            assert_int_equal(open_rc(&never), i == 0 ? 0 : -EBADMSG);
    }
    free(file.bytes);
}

enum { PAGE = 16384, OLDER = 6 };

/* Makes one random damage; returns its name. */
static const char *damage(struct image *i, const struct image *older, uint64_t *seed)
{
    uint8_t page[PAGE];
    size_t pages = i->len_bytes / PAGE, a = ztest_random(seed) % pages,
           b = ztest_random(seed) % pages;
    const struct image *o = &older[ztest_random(seed) % OLDER];

    switch (ztest_random(seed) % 8) {
    case 0:
    case 1:
        i->bytes[ztest_random(seed) % i->len_bytes] ^= (uint8_t)(1u << ztest_random(seed) % 8);
        return "a bit";
    case 2: /* in the structures */
        i->bytes[a * PAGE + ztest_random(seed) % 128] ^= (uint8_t)(1u << ztest_random(seed) % 8);
        return "a bit of a page's header";
    case 3:
        for (int n = 0; n < 2; n++)
            i->bytes[ztest_random(seed) % i->len_bytes] ^= (uint8_t)(1u << ztest_random(seed) % 8);
        return "two bits";
    case 4:
        memset(i->bytes + ztest_random(seed) % (i->len_bytes / 4096) * 4096, 0, 4096);
        return "4 KiB of zeros";
    case 5:
        memcpy(page, i->bytes + a * PAGE, PAGE);
        memcpy(i->bytes + a * PAGE, i->bytes + b * PAGE, PAGE);
        memcpy(i->bytes + b * PAGE, page, PAGE);
        return "swapped pages";
    case 6:
        a = ztest_random(seed) % (o->len_bytes / PAGE < pages ? o->len_bytes / PAGE : pages);
        memcpy(i->bytes + a * PAGE, o->bytes + a * PAGE, PAGE);
        return "an old page";
    default:
        a = ztest_random(seed) % 512;
        b = ztest_random(seed) % (i->len_bytes / 512);
        for (size_t n = 0; n < 512; n++)
            i->bytes[b * 512 + n] = (uint8_t)ztest_random(seed);
        return "a sector of noise";
    }
}

/* Each damage is found, or the content is unchanged: then, and after more commits. */
static void damage_random(void **state)
{
    const char *more = getenv("ZSHARD_CATALOG_DAMAGES");
    unsigned long rounds = more ? strtoul(more, NULL, 10) : 2000;
    struct zn_slot slot;
    struct model m = { 0 };
    struct zn_catalog *c = open_at(&never);
    struct image file, older[OLDER], now;
    unsigned refused = 0, found_later = 0;
    uint64_t seed = 6;

    (void)state;
    for (unsigned i = 0; i < 5 * OLDER; i++) {
        if (i % 5 == 0)
            older[i / 5] = image_read(path);
        commit_random(c, &m, &seed, 60000, &slot);
    }
    zn_catalog_close(c);
    file = image_read(path);
    now = file;
    now.bytes = malloc(file.len_bytes);
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t was = seed;
        const char *what;
        int rc;

        memcpy(now.bytes, file.bytes, file.len_bytes);
        what = damage(&now, older, &seed);
        put_back(&now);
        c = NULL;
        rc = try_open(&c, &slot, false);
        refused += rc < 0;
        if (rc < 0 ? rc != -EBADMSG || err.code != rc : !same(c, &m))
            fail_msg("%s (seed %llu): %d '%s'", what, (unsigned long long)was, rc, err.text);
        if (rc == 0 && memcmp(now.bytes, file.bytes, file.len_bytes) != 0) {
            struct model next = m;
            struct zn_txn *t = zn_txn_new();
            struct zn_slot told = slot;
            uint64_t other = i;

            txn_random(t, &next, &other, 60000);
            rc = commit_rc(c, t, &told);
            found_later += rc < 0;
            if (rc < 0 ? rc != -EBADMSG : !same(c, &next) || zn_catalog_verify(c, &err) < 0)
                fail_msg("%s (seed %llu), and a commit: %d '%s'", what, (unsigned long long)was, rc,
                         err.text);
        }
        zn_catalog_close(c);
    }
    print_message("%lu damages: %u refused, the others touched nothing (%u of them: found by the "
                  "next commit)\n",
                  rounds, refused, found_later);
    for (unsigned i = 0; i < OLDER; i++)
        free(older[i].bytes);
    free(file.bytes);
    free(now.bytes);
}

/* ---- memory runs out */

static sqlite3_mem_methods memory; /* SQLite's own */
static unsigned memory_left;       /* allocations of SQLite until one fails; 0: none fails */
static unsigned memory_failed;

static bool memory_fails(void)
{
    if (memory_left == 0 || --memory_left > 0)
        return false;
    memory_failed++;
    return true;
}

static void *failing_malloc(int bytes)
{
    return memory_fails() ? NULL : memory.xMalloc(bytes);
}

static void *failing_realloc(void *p, int bytes)
{
    return memory_fails() ? NULL : memory.xRealloc(p, bytes);
}

/* Before SQLite is used for the first time. */
static void memory_wrap(void)
{
    sqlite3_mem_methods failing;

    (void)sqlite3_config(SQLITE_CONFIG_GETMALLOC, &memory);
    failing = memory;
    failing.xMalloc = failing_malloc;
    failing.xRealloc = failing_realloc;
    (void)sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
}

/* The first allocation of SQLite fails, then the second, and so on, until a commit after an open
 * succeeds. A failure is reported, or has no effect; and what was acknowledged is there. */
static void memory_runs_out(void **state)
{
    unsigned opens = 0, commits = 0;
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct zn_slot slot = never;
        struct model before = { 0 }, after;
        struct zn_catalog *c = open_at(&never);
        struct zn_txn *t = zn_txn_new();
        uint64_t seed = 12;
        int rc;

        for (int i = 0; i < 3; i++)
            commit_random(c, &before, &seed, 30000, &slot);
        zn_catalog_close(c);
        c = NULL;
        after = before;
        txn_random(t, &after, &seed, 30000);
        memory_failed = 0;
        memory_left = nth;
        rc = try_open(&c, &slot, false);
        opens += rc < 0;
        if (rc == 0) {
            rc = commit_rc(c, t, &slot);
            commits += rc < 0;
        } else {
            zn_txn_free(t);
        }
        memory_left = 0;
        failed = memory_failed > 0;
        if (rc < 0 && (rc != -ENOMEM || !failed))
            fail_msg("allocation %u: %d '%s'", nth, rc, err.text);
        if (rc < 0 && c) { /* poisoned, except for reading */
            unsigned many = 1 << 20;

            assert_int_equal(zn_catalog_each(c, 1, UINT32_MAX, each_count, &many, &err), 0);
            assert_int_equal(commit_rc(c, zn_txn_new(), &slot), -ENOMEM);
        }
        zn_catalog_close(c);
        c = open_at(&slot);
        if (!same(c, rc == 0 || zn_catalog_slot(c).sequence > slot.sequence ? &after : &before))
            fail_msg("allocation %u: not what was told", nth);
        zn_catalog_close(c);
        assert_int_equal(files_gone(NULL), 0);
    }
    print_message("%u failures of an open, %u of a commit\n", opens, commits);
    assert_true(opens > 20 && commits > 5);
}

/* ---- locks */

static int child_opens(const void *arg)
{
    struct zn_catalog *c = NULL;
    int rc = try_open(&c, &never, *(const bool *)arg);

    zn_catalog_close(c);
    return rc == -EBUSY && strstr(err.text, "in use by another process") ? 0 : 1;
}

static int child_holds(const void *arg)
{
    const int *fds = arg;
    struct zn_catalog *c = NULL;
    int rc = try_open(&c, &never, true);
    char byte = (char)(rc == 0);

    if (write(fds[0], &byte, 1) != 1 || read(fds[1], &byte, 1) != 1)
        return 1;
    zn_catalog_close(c);
    return 0;
}

static void open_twice(void **state)
{
    static const bool kinds[] = { false, true };
    struct zn_catalog *c = open_at(&never);
    int up[2], down[2], status;
    char byte = 0;
    pid_t pid;

    (void)state;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(zn_test_child(child_opens, &kinds[i]), 0);
    assert_int_equal(open_rc(&never), -EBUSY); /* also within one process */
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(zn_test_child(child_opens, &kinds[i]), 0);
    zn_catalog_close(c);
    /* a reader keeps writers out, but not other readers */
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    pid = fork();
    if (pid == 0) {
        (void)close(down[1]); /* so that it ends with this process */
        _exit(child_holds((const int[]){ up[1], down[0] }));
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    assert_int_equal(open_rc(&never), -EBUSY);
    assert_int_equal(try_open(&c, &never, true), 0);
    zn_catalog_close(c);
    assert_int_equal(write(down[1], &byte, 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(open_rc(&never), 0);
    for (int i = 0; i < 2; i++) {
        (void)close(up[i]);
        (void)close(down[i]);
    }
}

static void open_read_only(void **state)
{
    struct zn_slot slot = never, told;
    struct model m = { 0 };
    struct zn_catalog *c = NULL;
    struct image file;
    uint64_t seed = 2;

    (void)state;
    assert_int_equal(try_open(&c, &never, true), -ENOENT);
    assert_int_equal(access(path, F_OK), -1);
    c = open_at(&never);
    for (int i = 0; i < 5; i++)
        commit_random(c, &m, &seed, 9000, &slot);
    zn_catalog_close(c);
    file = image_read(path);
    assert_int_equal(try_open(&c, &slot, true), 0);
    assert_true(same(c, &m));
    assert_int_equal(zn_catalog_verify(c, &err), 0);
    assert_int_equal(commit_rc(c, zn_txn_new(), &told), -EROFS);
    assert_non_null(strstr(err.text, "opened for reading only"));
    assert_true(same(c, &m));
    zn_catalog_close(c);
    expect_file(path, &file);
    free(file.bytes);
}

static int child_not_allowed(const void *arg)
{
    const struct zn_slot *slot = arg;
    struct zn_catalog *c = NULL;
    int rc;

    if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
        return 2;
    if (open_rc(slot) != -EACCES)
        return 3;
    rc = try_open(&c, slot, true);
    zn_catalog_close(c);
    return rc == 0 ? 0 : 4;
}

static void open_not_allowed(void **state)
{
    struct zn_slot slot;
    struct model m = { 0 };
    struct zn_catalog *c = open_at(&never);
    struct stat st;
    uint64_t seed = 2;

    (void)state;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int i = 0; i < 3; i++)
        commit_random(c, &m, &seed, 9000, &slot);
    zn_catalog_close(c);
    assert_int_equal(stat(wal, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(wal, 0444), 0);
    assert_int_equal(zn_test_child(child_not_allowed, &slot), 0);
}

/* ---- full file systems: a tmpfs of our own, at `dir`/mnt */

static void ballast(const char *at, size_t bytes)
{
    static const uint8_t page[4096] = { 1 };
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    for (size_t n = 0; n < bytes && write(fd, page, sizeof(page)) == sizeof(page);)
        n += sizeof(page);
    assert_int_equal(close(fd), 0);
}

/* However much room is left: the commit succeeds, or nothing has changed, and the next one that has
 * room succeeds. */
static void commit_full(void **state)
{
    enum { ROOM = 4 << 20, COMMIT = 1 << 20 };
    static const uint8_t large[COMMIT] = { 7 };
    char mnt[280], filler[300];
    char was[sizeof(path)];
    unsigned full = 0, fits = 0;

    (void)state;
    (void)snprintf(mnt, sizeof(mnt), "%s/mnt", dir);
    assert_int_equal(mkdir(mnt, 0700), 0);
    if (geteuid() != 0 || mount("tmpfs", mnt, "tmpfs", 0, "size=4m") < 0) {
        (void)rmdir(mnt);
        ztest_skip("only root can mount a file system to fill");
    }
    memcpy(was, path, sizeof(was));
    (void)snprintf(filler, sizeof(filler), "%s/filler", mnt);
    (void)snprintf(path, sizeof(path), "%s/catalog", mnt);
    for (size_t left = 0; left < 5 * COMMIT / 2; left += 61440) {
        struct zn_slot slot = never, told;
        struct model m = { 0 };
        struct zn_catalog *c = open_at(&never);
        struct zn_txn *t;
        struct stat st;
        uint64_t seed = left;
        char w[330];
        int rc;

        for (int i = 0; i < 3; i++)
            commit_random(c, &m, &seed, 9000, &slot);
        assert_int_equal(stat(path, &st), 0);
        ballast(filler, ROOM - left - (size_t)st.st_size - 8192);
        t = zn_txn_new();
        assert_int_equal(txn_put_bytes(t, &(struct zn_key){ 1, 0, 0 }, large, sizeof(large)), 0);
        told = slot;
        rc = commit_rc(c, t, &told);
        full += rc == -ENOSPC;
        fits += rc == 0;
        if (rc < 0 && (rc != -ENOSPC || !same(c, &m)))
            fail_msg("%zu bytes left: %d '%s'", left, rc, err.text);
        if (rc < 0) { /* also for the next one that opens it */
            zn_catalog_close(c);
            c = open_at(&slot);
            assert_true(same(c, &m));
            assert_int_equal(unlink(filler), 0);
            commit_random(c, &m, &seed, 9000, &slot);
            assert_true(same(c, &m));
        } else {
            slot = told;
        }
        zn_catalog_close(c);
        assert_int_equal(open_rc(&slot), 0);
        (void)unlink(filler);
        assert_int_equal(unlink(path), 0);
        (void)snprintf(w, sizeof(w), "%s-wal", path);
        assert_int_equal(unlink(w), 0);
    }
    print_message("full at %u places, and %u fitted\n", full, fits);
    assert_true(full > 10 && fits > 2);
    memcpy(path, was, sizeof(was));
    assert_int_equal(umount2(mnt, MNT_DETACH), 0);
    assert_int_equal(rmdir(mnt), 0);
}

/* ---- a full quota: what takes no new block of the file system succeeds, as a write to a place that
 * was written before */

static bool quota_is_full;
static unsigned quota_struck;
static ssize_t (*quota_pwrite)(int fd, const void *bytes, size_t len, off_t off);

static ssize_t pwrite_at_quota(int fd, const void *bytes, size_t len, off_t off)
{
    struct stat st;

    if (quota_is_full && fstat(fd, &st) == 0 && off + (off_t)len > st.st_size) {
        quota_struck++;
        errno = EDQUOT;
        return -1;
    }
    return quota_pwrite(fd, bytes, len, off);
}

/* SQLite's own files, and a quota that is full at once, or after the reserve of the database. */
static void commit_quota(void **state)
{
    static const char *const calls[] = { "pwrite", "pwrite64" };
    static const uint8_t large[300000] = { 7 };
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    struct zn_slot slot = never;
    struct zn_catalog *c = open_at(&never);
    struct model m = { 0 };
    uint64_t seed = 5;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(calls); i++) {
        sqlite3_syscall_ptr was = vfs->xGetSystemCall(vfs, calls[i]);

        if (was)
            memcpy(&quota_pwrite, &was, sizeof(quota_pwrite));
        (void)vfs->xSetSystemCall(vfs, calls[i], (sqlite3_syscall_ptr)pwrite_at_quota);
    }
    assert_non_null(quota_pwrite);
    for (unsigned i = 0; i < 20; i++) {
        struct zn_txn *t = zn_txn_new();
        struct zn_slot told = slot;

        commit_random(c, &m, &seed, 9000, &slot);
        assert_int_equal(
            txn_put_bytes(t, &(struct zn_key){ 1, i, 0 }, large, sizeof(large) - i * 10000), 0);
        quota_is_full = true;
        assert_int_equal(commit_rc(c, t, &told), -ENOSPC);
        assert_non_null(strstr(err.text, "quota"));
        quota_is_full = false;
        assert_true(same(c, &m));
    }
    commit_random(c, &m, &seed, 9000, &slot);
    assert_true(same(c, &m));
    assert_true(quota_struck >= 20);
    for (size_t i = 0; i < ZB_COUNT(calls); i++)
        (void)vfs->xSetSystemCall(vfs, calls[i], NULL);
    zn_catalog_close(c);
    assert_int_equal(open_rc(&slot), 0);
}

#define CATALOG_TEST(f) cmocka_unit_test_setup(f, files_gone)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CATALOG_TEST(txn_table),
        CATALOG_TEST(commit_table),
        CATALOG_TEST(each_range),
        CATALOG_TEST(commit_poisoned),
        CATALOG_TEST(commit_random_changes),
        CATALOG_TEST(wal_is_kept_and_bounded),
        CATALOG_TEST(what_is_deleted_gives_its_room_back),
        CATALOG_TEST(rewinds),
        CATALOG_TEST(wals),
        CATALOG_TEST(damage_by_sql),
        CATALOG_TEST(damage_whole_files),
        CATALOG_TEST(damage_random),
        CATALOG_TEST(memory_runs_out),
        CATALOG_TEST(open_twice),
        CATALOG_TEST(open_read_only),
        CATALOG_TEST(open_not_allowed),
        CATALOG_TEST(commit_full),
        CATALOG_TEST(commit_quota),
    };

    memory_wrap();
    return cmocka_run_group_tests(tests, dir_up, dir_down);
}
