/*
 * bench_catalog.c - `zbench catalog`: the cost of the metadata of N pages: the time of commits and
 * of opening, and bytes on the device.
 *
 * MODEL. The catalog holds one job of `pages` pages of bf16 parameters with their state: a record
 * for each shard of 64 pages (a row), as long as that of daemon/store/record.c and with random
 * contents, and a record that lists the rows. The cases of a round, on a new catalog:
 *
 *     first    the commit that puts all records
 *     all      a commit that replaces all records, as a step does. It is the second such commit,
 *              because the file has its final size only after the first
 *     row      a commit that replaces one row
 *     open     opening, which reads and verifies every byte
 *     space    bytes of the file after these commits
 *
 * The reference for commits is what no store can avoid: writing as many bytes as the records have
 * to a file that already has that size, and a flush. For opening, it is reading the file (both find
 * it in the page cache); for space, the bytes of the records.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"
#include "nvme/zn.h"
#include "nvme/zn_catalog.h"

#define CATALOG_ROW_PAGES 64u
#define CATALOG_CHUNK     (1u << 20)

/* Kinds of daemon/store/record.h, and bytes around the entries of pages (FORMAT.md). */
enum { KIND_VERSION = 4, KIND_ROW = 6, ROW_HEAD = 29, PLANE_HEAD = 8, PAGE_HEAD = 20 };
enum { VERSION_HEAD = 33 };

enum catalog_case { FIRST, ALL, ROW, OPEN, SPACE, CASES };

struct catalog_bench {
    struct zbench *z;
    const char *dir;
    unsigned long pages;
    unsigned rounds;

    char path[512], wal[520], raw[520];
    struct zn_catalog *c;
    struct zn_slot slot;
    uint64_t rows, row_bytes, records_bytes;
    uint64_t version; /* rows of version v have ids from v * rows on */
    uint64_t seed;
    uint8_t *chunk;
};

static double catalog_ms(uint64_t since_ns)
{
    return (double)(zb_now_ns() - since_ns) / 1e6;
}

/* Bytes of a row of 64 pages. */
static uint64_t catalog_row_bytes(void)
{
    static const enum zb_plane planes[] = { ZB_PARAM, ZB_STATE };
    uint64_t bytes = ROW_HEAD + ZB_COUNT(planes) * PLANE_HEAD;
    struct zb_layout layout;

    (void)zb_layout_of(ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32, false, &layout, NULL);
    for (size_t i = 0; i < ZB_COUNT(planes); i++) {
        uint32_t page_bytes =
            (uint32_t)zb_page_bytes(layout.block_bytes[planes[i]], ZB_PAGE_ELEMS_DEFAULT);
        uint32_t crcs = zn_crc_count(page_bytes, layout.crc_bytes[planes[i]]);

        bytes += CATALOG_ROW_PAGES * (PAGE_HEAD + crcs * sizeof(uint32_t));
    }
    return bytes;
}

/* Incompressible bytes. */
static void catalog_fill(struct catalog_bench *b, void *to, size_t len_bytes)
{
    uint64_t x = b->seed += 2;

    for (size_t i = 0; i + sizeof(x) <= len_bytes; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy((char *)to + i, &x, sizeof(x));
    }
}

static int catalog_put(struct catalog_bench *b, struct zn_txn *t, const struct zn_key *key,
                       uint64_t len_bytes)
{
    void *room;
    int rc = zn_txn_put_room(t, key, len_bytes, &room);

    if (rc == 0)
        catalog_fill(b, room, len_bytes);
    return rc;
}

/* Puts the rows and the list of a new version, and deletes those of the previous one. */
static int catalog_fill_txn(struct catalog_bench *b, struct zn_txn *t)
{
    uint64_t old = b->version++ * b->rows, new = b->version * b->rows;
    struct zn_key version = { KIND_VERSION, 1, b->version };
    int rc = catalog_put(b, t, &version, VERSION_HEAD + b->rows * sizeof(uint64_t));

    for (uint64_t i = 0; i < b->rows && rc == 0; i++)
        rc = catalog_put(b, t, &(struct zn_key){ KIND_ROW, new + i, 0 }, b->row_bytes);
    if (b->version == 1 || rc < 0)
        return rc;
    version.b--;
    rc = zn_txn_del(t, &version);
    for (uint64_t i = 0; i < b->rows && rc == 0; i++)
        rc = zn_txn_del(t, &(struct zn_key){ KIND_ROW, old + i, 0 });
    return rc;
}

static int catalog_fill_one(struct catalog_bench *b, struct zn_txn *t)
{
    return catalog_put(b, t, &(struct zn_key){ KIND_ROW, b->version * b->rows + b->rows / 2, 0 },
                       b->row_bytes);
}

/* *ret_ms: the time of the commit, without filling the transaction. */
static int catalog_commit(struct catalog_bench *b,
                          int (*fill)(struct catalog_bench *b, struct zn_txn *t), double *ret_ms)
{
    struct zn_txn *t = zn_txn_new();
    int rc = t ? fill(b, t) : -ENOMEM;
    uint64_t begin = zb_now_ns();

    if (rc < 0)
        (void)zb_fail(&b->z->err, rc, "a transaction: %m");
    else
        rc = zn_catalog_commit(b->c, t, &b->slot, &b->z->err);
    *ret_ms = catalog_ms(begin);
    zn_txn_free(t);
    return rc;
}

static int catalog_open(struct catalog_bench *b, double *ret_ms)
{
    const struct zn_catalog_options o = { .path = b->path, .may_create = true };
    uint64_t begin;

    zn_catalog_close(b->c);
    b->c = NULL;
    begin = zb_now_ns();
    if (zn_catalog_open(&b->c, &o, &b->slot, 1, &b->z->err) < 0)
        return b->z->err.code;
    *ret_ms = catalog_ms(begin);
    return 0;
}

static void catalog_unlink(struct catalog_bench *b)
{
    zn_catalog_close(b->c);
    b->c = NULL;
    b->slot = (struct zn_slot){ 0 };
    b->version = 0;
    (void)unlink(b->path);
    (void)unlink(b->wal);
}

/* Writes len_bytes at the beginning of the file, and flushes. */
static int catalog_raw(struct catalog_bench *b, uint64_t len_bytes, double *ret_ms)
{
    int fd = open(b->raw, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), rc = fd < 0 ? -errno : 0;
    uint64_t begin = zb_now_ns();

    catalog_fill(b, b->chunk, CATALOG_CHUNK);
    for (uint64_t at = 0; at < len_bytes && rc == 0;) {
        ssize_t n = pwrite(fd, b->chunk, zb_min_u64(CATALOG_CHUNK, len_bytes - at), (off_t)at);

        if (n < 0)
            rc = -errno;
        else
            at += (uint64_t)n;
    }
    if (rc == 0 && fdatasync(fd) < 0)
        rc = -errno;
    *ret_ms = catalog_ms(begin);
    zb_close_fd(&fd);
    return rc < 0 ? zb_fail(&b->z->err, rc, "'%s': %m", b->raw) : 0;
}

static int catalog_raw_read(struct catalog_bench *b, double *ret_ms)
{
    int fd = open(b->path, O_RDONLY | O_CLOEXEC), rc = fd < 0 ? -errno : 0;
    uint64_t begin = zb_now_ns();
    ssize_t n = 1;

    while (rc == 0 && n > 0) {
        n = read(fd, b->chunk, CATALOG_CHUNK);
        rc = n < 0 ? -errno : 0;
    }
    *ret_ms = catalog_ms(begin);
    zb_close_fd(&fd);
    return rc < 0 ? zb_fail(&b->z->err, rc, "'%s': %m", b->path) : 0;
}

static int catalog_round(struct catalog_bench *b, double value[CASES], double reference[CASES])
{
    struct zn_catalog_size size;
    double ignored, before, after;
    int rc = catalog_raw(b, b->records_bytes, &ignored); /* gives the file its size */

    if (rc == 0)
        rc = catalog_raw(b, b->records_bytes, &before);
    if (rc == 0)
        rc = catalog_open(b, &ignored);
    if (rc == 0)
        rc = catalog_commit(b, catalog_fill_txn, &value[FIRST]);
    if (rc == 0)
        rc = catalog_commit(b, catalog_fill_txn, &ignored);
    if (rc == 0)
        rc = catalog_commit(b, catalog_fill_txn, &value[ALL]);
    if (rc == 0)
        rc = catalog_raw(b, b->records_bytes, &after);
    if (rc == 0)
        rc = catalog_raw(b, b->row_bytes, &reference[ROW]);
    if (rc == 0)
        rc = catalog_commit(b, catalog_fill_one, &value[ROW]);
    if (rc == 0)
        rc = catalog_raw_read(b, &reference[OPEN]);
    if (rc == 0)
        rc = zn_catalog_size(b->c, &size, &b->z->err);
    if (rc == 0) {
        reference[FIRST] = reference[ALL] = (before + after) / 2;
        value[SPACE] = (double)size.file_bytes / 1e6;
        reference[SPACE] = (double)size.record_bytes / 1e6;
        rc = catalog_open(b, &value[OPEN]);
    }
    catalog_unlink(b);
    return rc;
}

static int catalog_run(struct catalog_bench *b)
{
    static const struct {
        const char *name, *after, *unit, *reference_name;
    } cases[CASES] = {
        [FIRST] = { "commit", "/first", "ms", "write+fdatasync" },
        [ALL] = { "commit", "/all", "ms", "write+fdatasync" },
        [ROW] = { "commit", "/row", "ms", "write+fdatasync" },
        [OPEN] = { "open", "", "ms", "read" },
        [SPACE] = { "space", "", "MB", "records" },
    };
    static double values[CASES][ZBENCH_ROUNDS_MAX], references[CASES][ZBENCH_ROUNDS_MAX];
    int rc = 0;

    b->rows = zb_div_up(b->pages, CATALOG_ROW_PAGES);
    b->row_bytes = catalog_row_bytes();
    b->records_bytes = b->rows * (b->row_bytes + sizeof(uint64_t)) + VERSION_HEAD;
    zbench_note(b->z, "%lu pages: %" PRIu64 " rows of %" PRIu64 " bytes, %.1f MB in all", b->pages,
                b->rows, b->row_bytes, (double)b->records_bytes / 1e6);
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        double value[CASES], reference[CASES];

        rc = catalog_round(b, value, reference);
        for (int k = 0; k < CASES && rc == 0; k++) {
            values[k][i] = value[k];
            references[k][i] = reference[k];
        }
    }
    for (int k = 0; k < CASES && rc == 0; k++) {
        const struct zbench_row row = zbench_row(cases[k].unit, true, cases[k].reference_name,
                                                 "%s/%lu%s", cases[k].name, b->pages,
                                                 cases[k].after);

        rc = zbench_add(b->z, &row, values[k], references[k], b->rounds);
    }
    return rc;
}

static int catalog_all(struct catalog_bench *b)
{
    static const unsigned long pages[] = { 10000, 100000 };
    int rc = 0;

    b->chunk = malloc(CATALOG_CHUNK);
    if (!b->chunk)
        return zb_fail(&b->z->err, -ENOMEM, "a buffer: %m");
    (void)snprintf(b->path, sizeof(b->path), "%s/zbench-catalog-%d", b->dir, (int)getpid());
    (void)snprintf(b->wal, sizeof(b->wal), "%s-wal", b->path);
    (void)snprintf(b->raw, sizeof(b->raw), "%s-raw", b->path);
    if (b->pages > 0)
        return catalog_run(b);
    for (size_t i = 0; i < ZB_COUNT(pages) && rc == 0; i++) {
        b->pages = pages[i];
        rc = catalog_run(b);
    }
    return rc;
}

static int catalog_main(struct zbench *z, void *bench)
{
    struct catalog_bench *b = bench;
    int rc;

    b->z = z;
    b->seed = 1;
    if (strlen(b->dir) > 400)
        return zb_fail(&z->err, -EINVAL, "--dir is too long");
    rc = catalog_all(b);
    catalog_unlink(b);
    (void)unlink(b->raw);
    free(b->chunk);
    return rc;
}

static const struct zb_opt catalog_options[] = {
    ZBENCH_DIR(struct catalog_bench, "."),
    { "pages", ZB_OPT_COUNT, ZB_OPT_AT(struct catalog_bench, pages), .arg = "N", .min = 1,
      .max = 100000000 },
    ZBENCH_ROUNDS(struct catalog_bench, "5"),
    { 0 },
};

const struct zbench_cmd zbench_catalog = {
    .name = "catalog",
    .help = "commits of a catalog of N pages, against writing as many bytes",
    .options = catalog_options,
    .bytes = sizeof(struct catalog_bench),
    .run = catalog_main,
};
