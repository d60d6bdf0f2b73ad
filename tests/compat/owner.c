/*
 * owner.c - gives the jobs of a store to whoever runs the test.
 *
 * Jobs belong to a user, and nobody else attaches to them. The store was made by user CO_UID; where
 * another one runs the test, each job's record gets his number, as the next transaction of the
 * catalog. It is not in the commit slots: a daemon takes a catalog that is one transaction ahead of
 * them, as a crash may leave it.
 */
#include "tests/compat/compat.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme/zn.h"
#include "nvme/zn_catalog.h"

#define KIND_JOB    2u
#define FILES       2u
#define RECORD_SIZE 512u

static int record_own(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zb_err *err)
{
    uint8_t record[RECORD_SIZE];
    uint32_t name_bytes;
    uint64_t uid = geteuid();

    (void)err;
    assert_true(len_bytes > 5 && len_bytes <= sizeof(record));
    memcpy(record, bytes, len_bytes);
    memcpy(&name_bytes, record + 1, sizeof(name_bytes)); /* a byte of format, the name, the owner */
    assert_true(name_bytes <= ZC_NAME_MAX && 5 + name_bytes + sizeof(uid) <= len_bytes);
    memcpy(record + 5 + name_bytes, &uid, sizeof(uid));
    return zn_txn_put(arg, key, record, len_bytes);
}

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

void co_own(const char *data, const char *more)
{
    char path[160];
    const struct zn_catalog_options options = { .path = path };
    struct zn_slot slots[FILES], slot;
    struct zn_catalog *catalog = NULL;
    struct zn_txn *txn = zn_txn_new();
    struct zb_err err = { 0 };

    if (geteuid() != CO_UID) {
        assert_non_null(txn);
        (void)snprintf(path, sizeof(path), "%s/catalog.zsd", data);
        slot_read(data, 0, &slots[0]);
        slot_read(more, 1, &slots[1]);
        if (zn_catalog_open(&catalog, &options, slots, FILES, &err) < 0 ||
            zn_catalog_each(catalog, KIND_JOB, KIND_JOB, record_own, txn, &err) < 0 ||
            zn_catalog_commit(catalog, txn, &slot, &err) < 0)
            fail_msg("catalog: %s", err.text);
        zn_catalog_close(catalog);
    }
    zn_txn_free(txn);
}
