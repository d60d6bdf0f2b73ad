/*
 * catalog.c - the records of a store, as bytes.
 *
 * WHOSE. Jobs belong to a user, and nobody else attaches to them. The store was made by user
 * CO_UID; where another one runs the test, the record of each job gets his number, as the next
 * transaction of the catalog. The commit slots do not name that transaction: a daemon takes a
 * catalog that is one transaction ahead of them, as a crash may leave it.
 *
 * WRITTEN ALIKE. A field that moved on both sides, where it is written and where it is read, shows
 * when an old store is read, but only if somebody uses the field. So records that today's daemon
 * writes are compared with what the old one wrote, too: jobs and units byte by byte, but for ids,
 * the owner and a field that is not used any more; others, which have places and times, by their
 * length.
 */
#include "tests/compat/compat.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme/zn.h"
#include "nvme/zn_catalog.h"

#define FILES       2u
#define RECORD_SIZE 512u
#define KIND_JOB    2u
#define KIND_UNIT   3u
#define KIND_LAST   7u
#define IDS_BYTES   16u /* at the end of a job's record */
#define UID_BYTES   8u
#define EVERY_AT    36u /* commit_every, from the owner on */
#define EVERY_BYTES 8u

static void slot_read(const char *dir, unsigned index, struct zn_slot *ret)
{
    char path[160];
    struct stat st;
    struct zn_options options = { .path = path, .index = index, .read_only = true };
    struct zn_engine *engine = NULL;
    struct zb_err err = { 0 };

    (void)snprintf(path, sizeof(path), "%s/pages.zsd", dir);
    assert_int_equal(stat(path, &st), 0);
    options.size_bytes = (uint64_t)st.st_size;
    if (zn_open(&engine, &options, &err) < 0 || zn_newest_slot(engine, ret, &err) < 0)
        fail_msg("%s: %s", path, err.text);
    zn_close(engine);
}

static struct zn_catalog *catalog_open(const char *data, const char *more, bool read_only)
{
    char path[160];
    const struct zn_catalog_options options = { .path = path, .read_only = read_only };
    struct zn_slot slots[FILES];
    struct zn_catalog *catalog = NULL;
    struct zb_err err = { 0 };

    (void)snprintf(path, sizeof(path), "%s/catalog.zsd", data);
    slot_read(data, 0, &slots[0]);
    slot_read(more, 1, &slots[1]);
    if (zn_catalog_open(&catalog, &options, slots, FILES, &err) < 0)
        fail_msg("catalog: %s", err.text);
    return catalog;
}

/* Where a job's record has its owner: after a byte of format, and the name. */
static size_t uid_at(const uint8_t *record, size_t len_bytes)
{
    uint32_t name_bytes;

    assert_true(len_bytes > 5 && len_bytes <= RECORD_SIZE);
    memcpy(&name_bytes, record + 1, sizeof(name_bytes));
    assert_true(name_bytes <= ZC_NAME_MAX && 5 + name_bytes + UID_BYTES + IDS_BYTES <= len_bytes);
    return 5 + name_bytes;
}

static int record_own(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zb_err *err)
{
    const size_t at = uid_at(bytes, len_bytes);
    const uint64_t uid = geteuid();
    void *record;
    int rc = zn_txn_put_room(arg, key, len_bytes, &record);

    (void)err;
    if (rc < 0)
        return rc;
    memcpy(record, bytes, len_bytes);
    memcpy((uint8_t *)record + at, &uid, UID_BYTES);
    return 0;
}

void co_put(const char *data, const char *more, const struct zn_key *key, const void *bytes,
            size_t len_bytes)
{
    struct zn_catalog *catalog = catalog_open(data, more, false);
    struct zn_txn *txn = zn_txn_new();
    struct zb_err err = { 0 };
    struct zn_slot slot;
    void *room;

    assert_non_null(txn);
    assert_int_equal(zn_txn_put_room(txn, key, len_bytes, &room), 0);
    memcpy(room, bytes, len_bytes);
    if (zn_catalog_commit(catalog, txn, &slot, &err) < 0)
        fail_msg("catalog: %s", err.text);
    zn_catalog_close(catalog);
    zn_txn_free(txn);
}

void co_own(const char *data, const char *more)
{
    struct zn_txn *txn = zn_txn_new();
    struct zb_err err = { 0 };
    struct zn_slot slot;

    if (geteuid() != CO_UID) {
        struct zn_catalog *catalog = catalog_open(data, more, false);

        assert_non_null(txn);
        if (zn_catalog_each(catalog, KIND_JOB, KIND_JOB, record_own, txn, &err) < 0 ||
            zn_catalog_commit(catalog, txn, &slot, &err) < 0)
            fail_msg("catalog: %s", err.text);
        zn_catalog_close(catalog);
    }
    zn_txn_free(txn);
}

/* 66a9a3a noted there how often its trainer commits. Nobody reads that any more, and zeros are
 * written in its place. */
static void every_restore(uint8_t *record, size_t uid)
{
    for (const struct co_job *job = co_jobs; job < co_jobs + CO_JOBS; job++)
        if (strlen(job->name) == uid - 5 && memcmp(record + 5, job->name, uid - 5) == 0)
            memcpy(record + uid + EVERY_AT, &job->commit_every, EVERY_BYTES);
}

struct sums {
    unsigned records[KIND_LAST + 1];
    size_t bytes[KIND_LAST + 1];
};

static int record_see(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zb_err *err)
{
    struct sums *sums = arg;
    uint8_t record[RECORD_SIZE];

    (void)err;
    assert_true(key->kind <= KIND_LAST);
    sums->records[key->kind]++;
    sums->bytes[key->kind] += len_bytes;
    if (key->kind == KIND_JOB) {
        memcpy(record, bytes, len_bytes);
        every_restore(record, uid_at(bytes, len_bytes));
        memset(record + uid_at(bytes, len_bytes), 0, UID_BYTES);
        co_see_bytes(record, len_bytes - IDS_BYTES, "record of job %u", (unsigned)key->a);
    } else if (key->kind == KIND_UNIT) {
        co_see_bytes(bytes, len_bytes, "record of job %u unit %u", (unsigned)key->a,
                     (unsigned)key->b);
    }
    return 0;
}

void co_see_records(const char *data, const char *more)
{
    struct zn_catalog *catalog = catalog_open(data, more, true);
    struct sums sums = { 0 };
    struct zb_err err = { 0 };
    char text[64];

    if (zn_catalog_each(catalog, 1, KIND_LAST, record_see, &sums, &err) < 0)
        fail_msg("catalog: %s", err.text);
    zn_catalog_close(catalog);
    for (unsigned kind = 1; kind <= KIND_LAST; kind++) {
        (void)snprintf(text, sizeof(text), "%u, %zu bytes", sums.records[kind], sums.bytes[kind]);
        co_see(text, "records of kind %u", kind);
    }
}
