/*
 * bench_steady.c - `zbench steady`: write bandwidth over time, on a drive that is nearly full, with and
 * without discards of what is free.
 *
 * MODEL. A data file of places of 16 MiB, of which `fill` percent are live. A free place, chosen at
 * random, is written in pieces of 1 MiB, and then a live place, also at random, becomes free: as if
 * jobs came and went. In phases with discards a place that became free is discarded before it is used again, one
 * at a time, and then `rest` times as long is not discarded: 31 is what the daemon does while there are transfers. If no other
 * place is free, one is used without. Phases alternate in mirrored order. The drive remembers what
 * happened in the phase before, so only the second half of each phase counts.
 *
 * The figures are those of a file system on a drive: to reach the drive, it must be mounted with the
 * option discard.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/device.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/zbench.h"
#include "nvme/zn.h"

#define STEADY_DEPTH  32u
#define STEADY_PIECE  ((uint32_t)ZB_MIB)
#define STEADY_PIECES 16u /* of a place */
#define STEADY_PLACE  (STEADY_PIECES * STEADY_PIECE)
#define STEADY_OPEN   4u  /* places that are being written or discarded, at most */
#define STEADY_LINES  60u /* of the course of the bandwidth */
#define WAIT_MS       100

struct steady;

struct steady_write {
    struct zn_io io;
    struct steady *b;
    uint32_t place;
};

/* A set of places, of which any may be taken. */
struct places {
    uint32_t *at, n;
};

struct steady {
    struct zbench *z;
    const char *dir;
    uint64_t size_bytes;
    unsigned seconds, phase_s, fill, rest;

    struct zn_engine *e;
    char *buffers, device[24];
    struct places live, clean, stale;
    uint32_t open, next; /* the place that is being written; its next piece */
    uint8_t *left;       /* of each place, pieces that are not written */
    struct steady_write writes[STEADY_DEPTH];
    struct zn_io discard;
    uint32_t discarded; /* the place */
    uint64_t discard_ns, rest_until_ns;
    bool discards, stops;
    uint64_t seed, bytes;
    uint32_t most; /* live places */
    int rc;
};

static uint32_t place_take(struct steady *b, struct places *p)
{
    uint32_t i, place;

    b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    i = (uint32_t)((b->seed >> 33) % p->n);
    place = p->at[i];
    p->at[i] = p->at[--p->n];
    return place;
}

static void place_put(struct places *p, uint32_t place)
{
    p->at[p->n++] = place;
}

static uint64_t place_off(uint32_t place)
{
    return ZN_DATA_START + (uint64_t)place * STEADY_PLACE;
}

/* ---- discards */

static void discard_done(struct zn_io *io, int rc)
{
    struct steady *b = zb_container_of(io, struct steady, discard);
    uint64_t now_ns = zb_now_ns();

    b->rest_until_ns = now_ns + (uint64_t)b->rest * (now_ns - b->discard_ns);
    place_put(&b->clean, b->discarded);
    if (rc < 0 && b->rc == 0)
        b->rc = rc;
}

static void discard_next(struct steady *b)
{
    uint64_t now_ns = zb_now_ns();

    if (!b->discards || b->stops || zn_stats(b->e).discarding || b->stale.n == 0 ||
        now_ns < b->rest_until_ns)
        return;
    b->discarded = place_take(b, &b->stale);
    b->discard_ns = now_ns;
    b->discard = (struct zn_io){ .op = ZN_DISCARD,
                                 .len_bytes = STEADY_PLACE,
                                 .off_bytes = place_off(b->discarded),
                                 .done = discard_done };
    b->rc = zn_submit(b->e, &b->discard);
}

/* ---- writes */

static void write_done(struct zn_io *io, int rc);

static void write_next(struct steady_write *w)
{
    struct steady *b = w->b;

    if (b->stops || b->rc < 0)
        return;
    if (b->next == STEADY_PIECES) {
        b->open = place_take(b, b->clean.n > 0 ? &b->clean : &b->stale);
        b->left[b->open] = STEADY_PIECES;
        b->next = 0;
    }
    w->place = b->open;
    w->io = (struct zn_io){ .op = ZN_WRITE,
                            .buf = b->buffers + (uint64_t)(w - b->writes) * STEADY_PIECE,
                            .len_bytes = STEADY_PIECE,
                            .off_bytes = place_off(b->open) + b->next++ * (uint64_t)STEADY_PIECE,
                            .done = write_done };
    b->rc = zn_submit(b->e, &w->io);
}

static void write_done(struct zn_io *io, int rc)
{
    struct steady_write *w = zb_container_of(io, struct steady_write, io);
    struct steady *b = w->b;

    if (rc < 0 && b->rc == 0)
        b->rc = rc;
    b->bytes += STEADY_PIECE;
    if (--b->left[w->place] == 0) {
        place_put(&b->live, w->place);
        if (b->live.n > b->most)
            place_put(b->discards ? &b->stale : &b->clean, place_take(b, &b->live));
    }
    write_next(w);
}

static void steady_reap(struct steady *b)
{
    struct pollfd ready = { .fd = zn_wake_fd(b->e), .events = POLLIN };
    eventfd_t n;

    zn_kick(b->e);
    if (poll(&ready, 1, WAIT_MS) > 0)
        (void)eventfd_read(ready.fd, &n);
    (void)zn_reap(b->e, STEADY_DEPTH);
}

static void steady_drain(struct steady *b)
{
    b->stops = true;
    while (zn_stats(b->e).inflight > 0 || zn_stats(b->e).discarding)
        steady_reap(b);
    b->stops = false;
}

static uint64_t device_bytes(const struct steady *b)
{
    struct zb_device_use use;

    return zb_device_use(b->device, "/sys", &use) == 0 ? use.written_bytes : 0;
}

/* One phase: MB/s of its second half. */
static int steady_phase(struct steady *b, bool discards, uint64_t begin_ns, double *ret)
{
    uint64_t from_ns = zb_now_ns(), now_ns = from_ns,
             half_ns = from_ns + b->phase_s * UINT64_C(500000000);
    uint64_t end_ns = from_ns + b->phase_s * UINT64_C(1000000000), line_ns = from_ns;
    uint64_t every_ns = zb_max_u64(UINT64_C(1000000000) * b->seconds / STEADY_LINES, 1000000000);
    uint64_t bytes = b->bytes, line_bytes = b->bytes, device = device_bytes(b), all = b->bytes;
    uint64_t discarded = zn_stats(b->e).discarded_bytes;

    b->discards = discards;
    if (!discards) /* what waits for a discard is used without */
        while (b->stale.n > 0)
            place_put(&b->clean, b->stale.at[--b->stale.n]);
    for (unsigned i = 0; i < STEADY_DEPTH; i++)
        write_next(&b->writes[i]);
    while (b->rc == 0 && now_ns < end_ns) {
        discard_next(b);
        steady_reap(b);
        now_ns = zb_now_ns();
        if (now_ns >= half_ns && half_ns > 0) {
            bytes = b->bytes;
            from_ns = now_ns;
            half_ns = 0;
        }
        if (now_ns >= line_ns + every_ns || now_ns >= end_ns) {
            zbench_note(b->z, "%7.1f s  %-8s %8.0f MB/s", (double)(now_ns - begin_ns) / 1e9,
                        discards ? "discard" : "plain",
                        (double)(b->bytes - line_bytes) * 1e3 / (double)(now_ns - line_ns));
            line_ns = now_ns;
            line_bytes = b->bytes;
        }
    }
    *ret = (double)(b->bytes - bytes) * 1e3 / (double)(now_ns - from_ns);
    steady_drain(b);
    device = device_bytes(b) - device;
    if (b->device[0])
        zbench_note(b->z, "%-17s %s written, %s discarded, by the device %.2f times as much", "",
                    zb_size_text(b->bytes - all).s,
                    zb_size_text(zn_stats(b->e).discarded_bytes - discarded).s,
                    (double)device / (double)zb_max_u64(b->bytes - all, 1));
    return b->rc < 0 ? zb_fail(&b->z->err, b->rc, "writing in '%s': %m", b->dir) : 0;
}

static int steady_phases(struct steady *b)
{
    static double plain[ZBENCH_ROUNDS_MAX], with[ZBENCH_ROUNDS_MAX];
    unsigned rounds =
        (unsigned)zb_min_u64(zb_max_u64(b->seconds / (2 * b->phase_s), 1), ZBENCH_ROUNDS_MAX);
    const struct zbench_row row = zbench_row("MB/s", false, "without", "steady/write/discard");
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    for (unsigned i = 0; i < 2 * rounds && rc == 0; i++) {
        bool discards = (i % 2 == 1) != (i / 2 % 2 == 1); /* mirrored: A B B A */

        rc = steady_phase(b, discards, begin_ns, discards ? &with[i / 2] : &plain[i / 2]);
    }
    return rc < 0 ? rc : zbench_add(b->z, &row, with, plain, rounds);
}

/* ---- the file */

/* Writes all places that are live at first. */
static int steady_fill(struct steady *b, uint32_t places)
{
    for (uint32_t i = 0; i < places; i++)
        place_put(&b->clean, places - 1 - i);
    b->discards = false;
    for (unsigned i = 0; i < STEADY_DEPTH; i++)
        write_next(&b->writes[i]);
    while (b->rc == 0 && b->bytes < (uint64_t)places * STEADY_PLACE)
        steady_reap(b);
    steady_drain(b);
    return b->rc < 0 ? zb_fail(&b->z->err, b->rc, "writing in '%s': %m", b->dir) : 0;
}

static int steady_open(struct steady *b, uint32_t places)
{
    char path[4200];
    struct zn_options o = { .path = path, .size_bytes = place_off(places), .depth = STEADY_DEPTH };
    const struct zn_info *info;
    int rc;

    (void)snprintf(path, sizeof(path), "%s/zbench-steady-%d", b->dir, (int)getpid());
    rc = zn_open(&b->e, &o, &b->z->err);
    if (rc < 0)
        return rc;
    (void)unlink(path);
    info = zn_info(b->e);
    if (!info->discard)
        return zb_fail(&b->z->err, -EOPNOTSUPP, "'%s': %s", b->dir, info->why_no_discard);
    if (info->device != 0)
        (void)snprintf(b->device, sizeof(b->device), "%u:%u", major(info->device),
                       minor(info->device));
    zbench_note(b->z, "%s in '%s', %u %% live, phases of %u s%s%s", zb_size_text(o.size_bytes).s,
                b->dir, b->fill, b->phase_s,
                info->told ? "" : "; the file system is not mounted with discard: it tells nothing",
                info->direct ? "" : "; without O_DIRECT: the page cache is measured");
    return 0;
}

static int steady_main(struct zbench *z, void *bench)
{
    struct steady *b = bench;
    uint32_t places = (uint32_t)(b->size_bytes / STEADY_PLACE);
    struct places *sets[] = { &b->live, &b->clean, &b->stale };
    int rc = 0;

    b->z = z;
    b->seed = 1;
    b->next = STEADY_PIECES;
    b->most = (uint32_t)((uint64_t)places * b->fill / 100);
    if (places - b->most <= STEADY_OPEN)
        return zb_fail(
            &z->err, -EINVAL,
            "--size is too small: %u places of 16 MiB are free, and more than %u must be",
            places - b->most, STEADY_OPEN);
    b->buffers = aligned_alloc(4096, (size_t)STEADY_DEPTH * STEADY_PIECE);
    for (size_t i = 0; i < ZB_COUNT(sets); i++) {
        sets[i]->at = malloc(places * sizeof(uint32_t));
        rc = sets[i]->at ? rc : -ENOMEM;
    }
    b->left = calloc(places, 1);
    if (!b->buffers || !b->left || rc < 0)
        rc = zb_fail(&z->err, -ENOMEM, "memory for the places: %m");
    for (size_t i = 0; rc == 0 && i < (size_t)STEADY_DEPTH * STEADY_PIECE / 8; i++)
        ((uint64_t *)(void *)b->buffers)[i] = i * UINT64_C(0x9e3779b97f4a7c15) ^ i >> 7;
    for (unsigned i = 0; i < STEADY_DEPTH; i++)
        b->writes[i].b = b;
    if (rc == 0)
        rc = steady_open(b, places);
    if (rc == 0)
        rc = steady_fill(b, places);
    if (rc == 0)
        rc = steady_phases(b);
    zn_close(b->e);
    for (size_t i = 0; i < ZB_COUNT(sets); i++)
        free(sets[i]->at);
    free(b->left);
    free(b->buffers);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct steady, member)

static const struct zb_opt steady_options[] = {
    ZBENCH_DIR(struct steady, "."),
    { "size", ZB_OPT_SIZE, AT(size_bytes), .arg = "SIZE", .def = "4G", .round = STEADY_PLACE,
      .min = 256 * ZB_MIB, .max = UINT64_C(1) << 50 },
    { "fill", ZB_OPT_COUNT, AT(fill), .arg = "PERCENT", .def = "80", .min = 1, .max = 95 },
    { "seconds", ZB_OPT_COUNT, AT(seconds), .arg = "S", .def = "3600", .min = 2, .max = 1000000 },
    { "phase", ZB_OPT_COUNT, AT(phase_s), .arg = "S", .def = "300", .min = 1, .max = 1000000 },
    { "rest", ZB_OPT_COUNT, AT(rest), .arg = "N", .def = "31", .min = 0, .max = 1000 },
    { 0 },
};

const struct zbench_cmd zbench_steady = {
    .name = "steady",
    .help = "write bandwidth over time on a drive that is nearly full, with and without discards",
    .options = steady_options,
    .bytes = sizeof(struct steady),
    .run = steady_main,
};
