/*
 * bench_ready.c - `zbench ready`: how long a daemon takes from its start until it is ready, with a
 * store of many pages.
 *
 * MODEL. A zshardd of our own saves a durable job of `pages` pages: one half are bf16 parameters,
 * the other half is their optimizer state. The daemon is then stopped and started again, in turns,
 * and each start is timed until the line `ready`:
 *
 *     cold    what the page cache holds of the data directory is dropped before
 *     warm    the page cache is as the daemon before left it
 *
 * The program itself and its libraries stay in the page cache. The reference is what no start can
 * avoid: reading every byte of the catalog, after the same preparation.
 */
#include "bench/zbench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define PAGE_ELEMS  UINT64_C(4096)
#define UNITS       64u
#define STAGING     (UINT64_C(16) << 20)
#define HOST_BYTES  (UINT64_C(1) << 30)
#define DEADLINE_MS 600000u
#define READ_BYTES  ((size_t)1 << 20)

enum { START, READ }; /* contestants */

struct ready_bench {
    struct zbench *z;
    const char *dir;
    uint64_t pages;
    unsigned rounds;
    struct zbench_rig rig;
    char daemon[256]; /* its options */
    bool cold;
    uint64_t catalog_bytes;
    uint8_t *buffer; /* READ_BYTES */
};

/* What is done with each file of the data directory. */
typedef int ready_file_fn(struct ready_bench *b, int fd, const char *name);

static int ready_files(struct ready_bench *b, ready_file_fn *fn)
{
    char path[256];
    DIR *dir;
    int rc = 0;

    (void)snprintf(path, sizeof(path), "%s/data", b->rig.daemon.dir);
    dir = opendir(path);
    if (!dir)
        return zb_fail(&b->z->err, -errno, "'%s': %m", path);
    for (const struct dirent *entry = readdir(dir); entry && rc == 0; entry = readdir(dir)) {
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

        rc = fd < 0 ? zb_fail(&b->z->err, -errno, "'%s/%s': %m", path, entry->d_name)
                    : fn(b, fd, entry->d_name);
        zb_close_fd(&fd);
    }
    (void)closedir(dir);
    return rc;
}

static int ready_drop(struct ready_bench *b, int fd, const char *name)
{
    int rc = 0;

    if (fdatasync(fd) < 0 && errno != EINVAL) /* EINVAL: a directory */
        rc = -errno;
    else
        rc = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return rc < 0
               ? zb_fail(&b->z->err, rc, "drop '%s' from the page cache: %s", name, strerror(-rc))
               : 0;
}

static int ready_read(struct ready_bench *b, int fd, const char *name)
{
    ssize_t n;

    if (strncmp(name, "catalog", strlen("catalog")) != 0)
        return 0;
    while ((n = read(fd, b->buffer, READ_BYTES)) > 0)
        b->catalog_bytes += (uint64_t)n;
    return n < 0 ? zb_fail(&b->z->err, -errno, "read '%s': %m", name) : 0;
}

/* A start, or a reading of the catalog; the daemon is stopped before and after. */
static int ready_slice(void *bench, unsigned who, double *ret)
{
    struct ready_bench *b = bench;
    uint64_t since;
    int rc = b->cold ? ready_files(b, ready_drop) : 0;

    if (rc < 0)
        return rc;
    if (who == READ)
        b->catalog_bytes = 0;
    since = zb_now_ns();
    rc = who == START ? zbench_daemon_run(&b->rig.daemon, b->daemon, &b->z->err)
                      : ready_files(b, ready_read);
    *ret = (double)(zb_now_ns() - since) / 1e6;
    if (who == READ && rc == 0 && b->catalog_bytes == 0)
        rc = zb_fail(&b->z->err, -ENOENT, "the data directory has no catalog");
    zbench_daemon_stop(&b->rig.daemon);
    return rc;
}

static int ready_rows(struct ready_bench *b)
{
    static const char *const names[] = { "warm", "cold" };
    int rc = 0;

    for (unsigned cold = 0; cold < 2 && rc == 0; cold++) {
        struct zbench_row row = zbench_row("ms", true, "reading the catalog",
                                           "ready/%" PRIu64 "/%s", b->pages, names[cold]);

        b->cold = cold != 0;
        rc = zbench_compare(b->z, &row, "ABBA", b->rounds, ready_slice, b);
    }
    return rc;
}

/* Saves the job, and leaves it. */
static int ready_make(struct ready_bench *b)
{
    const struct zc_job_options options = {
        .keep = true, .durable = true, .staging_bytes = STAGING, .moments = ZC_MOMENTS_Q8
    };
    struct zbench_rig *r = &b->rig;
    struct zc_placement placement;
    struct zc_point point;
    int rc = zbench_rig_open(r, &options);

    if (rc == 0)
        rc = zbench_rig_define(r, UNITS, b->pages / 2 / UNITS * PAGE_ELEMS, ZC_BF16, &placement);
    if (rc < 0)
        return rc;
    rc = zc_commit_wait(r->c, r->job.id, ZC_COMMIT_STEP, r->step, DEADLINE_MS, &point);
    if (rc == 0)
        rc = zc_job_close_wait(r->c, r->job.id);
    if (rc < 0)
        return zbench_rig_failed(r, rc);
    r->job.id = 0;
    zc_close(r->c);
    r->c = NULL;
    zbench_daemon_stop(&r->daemon);
    return 0;
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct ready_bench, member)

static const struct zb_opt ready_options[] = {
    ZBENCH_DIR(struct ready_bench, "/var/tmp"),
    { "pages", ZB_OPT_SIZE, AT(pages), .arg = "N", .def = "100000", .min = 2 * (uint64_t)UNITS,
      .max = 1u << 24 },
    ZBENCH_ROUNDS(struct ready_bench, "5"),
    { 0 },
};

static int ready_main(struct zbench *z, void *bench)
{
    struct ready_bench *b = bench;
    int rc;

    b->z = z;
    b->pages -= b->pages % (2 * (uint64_t)UNITS);
    b->buffer = malloc(READ_BYTES);
    if (!b->buffer)
        return zb_fail(&z->err, -ENOMEM, "a buffer: %m");
    (void)snprintf(b->daemon, sizeof(b->daemon),
                   "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --page-elems %" PRIu64
                   " --log-level error",
                   HOST_BYTES, b->pages * PAGE_ELEMS * 8 + HOST_BYTES, PAGE_ELEMS);
    rc = zbench_rig_start(&b->rig, z, b->dir, "%s", b->daemon);
    if (rc == 0)
        rc = ready_make(b);
    if (rc == 0)
        rc = ready_rows(b);
    if (rc == 0)
        zbench_note(z, "a catalog of %" PRIu64 " bytes", b->catalog_bytes);
    free(b->buffer);
    return zbench_rig_end(&b->rig, rc);
}

const struct zbench_cmd zbench_ready = {
    .name = "ready",
    .help = "from a daemon's start until it is ready, with a store of many pages",
    .options = ready_options,
    .bytes = sizeof(struct ready_bench),
    .run = ready_main,
};
