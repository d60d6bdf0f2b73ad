/*
 * paths.c - the data files: measuring, and the map of the taken bytes of each; see paths.h.
 */
#include "daemon/disk/paths.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/slots.h"
#include "daemon/disk/drives.h"
#include "daemon/os/arena.h"

/* ---- the measurement
 *
 * It writes only to ranges that are free in the map, and takes them meanwhile. So it runs after
 * recovery has taken the places of all saved pages, and after the first commit has made the
 * recovered state durable (before that, a power cut could bring back a version whose places were
 * free). A file without free ranges is only read. The last round counts: in the first one, reserved
 * space that was never written is read without touching the drive. */

#define RATE_IO_MAX   ((uint32_t)ZB_MIB)
#define RATE_IO_LEAST ((uint32_t)(64 * ZB_KIB)) /* if no longer ranges are free */
#define RATE_IOS      16u                       /* transfers at a time, spread over the file */
#define RATE_ROUNDS   2u
#define RATE_NS       100000000 /* of a round, about: a slow drive makes fewer transfers */

struct rate {
    struct rate_io {
        struct zn_io io;
        struct rate *rate;
    } ios[RATE_IOS];
    unsigned n;
    uint32_t len_bytes; /* of each transfer */
    bool writes;
    unsigned left;
    int rc;
};

static void rate_on_done(struct zn_io *io, int rc)
{
    struct rate *r = zb_container_of(io, struct rate_io, io)->rate;

    r->left--;
    if (rc < 0 && r->rc == 0)
        r->rc = rc;
}

/* Makes n transfers in one direction and waits for them. Returns their time in ns, or a negative
 * errno. */
static int64_t rate_run(struct zn_engine *e, struct rate *r, enum zn_op op, unsigned n)
{
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };
    uint64_t begin_ns = zb_now_ns();
    eventfd_t count;

    for (unsigned i = 0; i < n; i++) {
        int rc;

        r->ios[i].io.op = op;
        rc = zn_submit(e, &r->ios[i].io);
        if (rc == 0)
            r->left++;
        else
            r->rc = rc;
    }
    while (r->left > 0) {
        zn_kick(e);
        if (poll(&p, 1, -1) == 1)
            (void)eventfd_read(p.fd, &count);
        (void)zn_reap(e, n);
    }
    return r->rc < 0 ? r->rc : (int64_t)(zb_now_ns() - begin_ns);
}

static uint64_t rate_of(uint64_t bytes, int64_t ns)
{
    return (uint64_t)(1e9 * (double)bytes / (double)(ns + 1));
}

/* The first unit of the i-th of n ranges that are spread over the file. */
static uint64_t rate_spread(const struct zb_space *map, uint32_t len_bytes, unsigned i, unsigned n)
{
    return zb_space_total_units(map) * ZB_PAGE_ALIGN / len_bytes * i / n *
           (len_bytes / ZB_PAGE_ALIGN);
}

/* Takes up to n free ranges; returns their number. */
static unsigned rate_take(struct zb_space *map, uint32_t len_bytes, unsigned n,
                          uint64_t first[RATE_IOS])
{
    uint64_t units = len_bytes / ZB_PAGE_ALIGN;

    for (unsigned i = 0; i < n; i++) {
        first[i] = rate_spread(map, len_bytes, i, n);
        if (zb_space_take_at(map, first[i], units) < 0 && zb_space_take(map, units, &first[i]) < 0)
            return i;
    }
    return n;
}

static void rate_give(struct zb_space *map, uint32_t len_bytes, unsigned n,
                      const uint64_t first[RATE_IOS])
{
    for (unsigned i = 0; i < n; i++)
        zb_space_give(map, first[i], len_bytes / ZB_PAGE_ALIGN);
}

/* Takes free ranges that are as long as possible. If there are none, chooses ranges that are only
 * read. Returns the number of taken ranges. */
static unsigned rate_ranges(const struct zsd_core *core, unsigned path, struct rate *r,
                            uint64_t first[RATE_IOS])
{
    struct zb_space *map = core->disk->maps[path];
    unsigned want =
        (unsigned)zb_min_u64(RATE_IOS, zn_info(zsd_path_engine(core->daemon, path))->depth);
    unsigned taken;

    r->len_bytes = RATE_IO_MAX;
    while ((taken = rate_take(map, r->len_bytes, want, first)) < want &&
           r->len_bytes > RATE_IO_LEAST) {
        rate_give(map, r->len_bytes, taken, first);
        r->len_bytes /= 2;
    }
    r->writes = taken > 0;
    r->n = r->writes ? taken
                     : (unsigned)zb_min_u64(want, zsd_path_bytes(core, path) / r->len_bytes);
    for (unsigned i = 0; i < r->n && !r->writes; i++)
        first[i] = rate_spread(map, r->len_bytes, i, r->n);
    return taken;
}

/* Reads the ranges, then writes the same bytes. */
static void rate_round(struct zn_engine *e, struct rate *r, unsigned n, int64_t *ret_read_ns,
                       int64_t *ret_write_ns)
{
    *ret_read_ns = rate_run(e, r, ZN_READ, n);
    *ret_write_ns = r->writes && r->rc == 0 ? rate_run(e, r, ZN_WRITE, n) : 0;
}

static struct zsd_rates rate_result(const struct rate *r, int64_t read_ns, int64_t write_ns)
{
    uint64_t bytes = (uint64_t)r->n * r->len_bytes;

    return (
        struct zsd_rates){ .read = rate_of(bytes, read_ns),
                           .written = r->writes ? rate_of(bytes, write_ns) : 0,
                           .mixed = rate_of(r->writes ? 2 * bytes : bytes, read_ns + write_ns) };
}

/* 0, or a negative errno. */
static int rate_measure(struct zsd_core *core, unsigned path, uint8_t *buffers)
{
    struct zn_engine *e = zsd_path_engine(core->daemon, path);
    struct rate r = { .rc = 0 };
    uint64_t first[RATE_IOS];
    unsigned taken = rate_ranges(core, path, &r, first);
    int64_t read_ns = 0, write_ns = 0;

    for (unsigned i = 0; i < r.n; i++) {
        r.ios[i].rate = &r;
        r.ios[i].io =
            (struct zn_io){ .buf = buffers + (size_t)i * r.len_bytes,
                            .len_bytes = r.len_bytes,
                            .off_bytes = core->daemon->engine_base + first[i] * ZB_PAGE_ALIGN,
                            .done = rate_on_done };
    }
    if (r.n > 0)
        rate_round(e, &r, 1, &read_ns, &write_ns); /* a single read and write, for RATE_NS */
    if (r.n > 0 && r.rc == 0)
        r.n =
            (unsigned)zb_min_u64(r.n, zb_max_u64(RATE_NS / (uint64_t)(read_ns + write_ns + 1), 1));
    for (unsigned round = 0; r.n > 0 && round < RATE_ROUNDS && r.rc == 0; round++)
        rate_round(e, &r, r.n, &read_ns, &write_ns);
    rate_give(core->disk->maps[path], r.len_bytes, taken, first);
    if (r.rc == 0 && r.n > 0)
        core->daemon->path_rates[path] = rate_result(&r, read_ns, write_ns);
    return r.rc;
}

int zsd_paths_measure(struct zsd_core *core, struct zb_err *err)
{
    const struct zsd *daemon = core->daemon;
    uint8_t *buffers = zsd_private_new((uint64_t)RATE_IOS * RATE_IO_MAX);
    int rc = 0;

    if (!buffers)
        return zb_fail(err, -ENOMEM, "buffers to measure the data files: %m");
    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++) {
        const struct zsd_rates *rates = &daemon->path_rates[i];

        if (zn_is_absent(zsd_path_engine(daemon, i)))
            continue;
        rc = rate_measure(core, i, buffers);
        if (rc == 0)
            zb_log(ZB_LOG_INFO, "path",
                   "number=%u directory=\"%s\" read_bytes_per_s=%llu written_bytes_per_s=%llu "
                   "mixed_bytes_per_s=%llu",
                   i + 1, zsd_path_folder(daemon, i), (unsigned long long)rates->read,
                   (unsigned long long)rates->written, (unsigned long long)rates->mixed);
        else if (daemon->nmore > 0)
            (void)zb_fail(err, rc, "read and write data file number %u: %m", i + 1);
        else
            zb_log(ZB_LOG_WARN, "path-unmeasured", "number=%u directory=\"%s\" why=\"%s\"", i + 1,
                   zsd_path_folder(daemon, i), strerror(-rc));
    }
    zsd_private_free(buffers, (uint64_t)RATE_IOS * RATE_IO_MAX);
    return daemon->nmore > 0 ? rc : 0; /* with one file: most of its pages may still be readable */
}

/* ---- the map */

#define WEIGHT_RANGE 16u /* the slowest drive gets so small a part of what the fastest one gets */

int zsd_map_init(struct zsd_core *core, struct zb_err *err)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        uint64_t bytes = zsd_path_bytes(core, i);
        int rc = zb_space_new(&core->disk->maps[i], bytes / ZB_PAGE_ALIGN);

        if (rc < 0)
            return zb_fail(err, rc, "the map of %s of NVMe: %m", zb_size_text(bytes).s);
    }
    core->disk->extents = core->disk->maps[0];
    return 0;
}

void zsd_map_done(struct zsd_core *core)
{
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++)
        zb_space_free(core->disk->maps[i]);
    memset(core->disk->maps, 0, sizeof(core->disk->maps));
    core->disk->extents = NULL;
}

uint64_t zsd_path_weight(const struct zsd_core *core, unsigned path)
{
    uint64_t fastest = 0;

    if (zsd_path_drained(core, path))
        return 0;
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        if (!zsd_path_drained(core, i))
            fastest = zb_max_u64(fastest, zsd_drive_rate(core, i));
    return zb_max_u64(zb_max_u64(zsd_drive_rate(core, path), fastest / WEIGHT_RANGE), 1);
}

uint64_t zsd_path_bytes(const struct zsd_core *core, unsigned path)
{
    const struct zsd *daemon = core->daemon;
    uint64_t bytes = zn_info(zsd_path_engine(daemon, path))->size_bytes - daemon->engine_base;

    return bytes / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
}

/* Of the paths in the set `left`, the one that will hold the fewest units for its weight;
 * ZN_PATHS_MAX: none. */
static unsigned map_next(const struct zsd_core *core, unsigned left, uint64_t units)
{
    unsigned best = ZN_PATHS_MAX;
    double best_load = 0;

    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        const struct zb_space *map = core->disk->maps[i];
        uint64_t weight = zsd_path_weight(core, i);
        double load = (double)(zb_space_total_units(map) - zb_space_free_units(map) + units) /
                      (double)zb_max_u64(weight, 1);

        if ((left >> i & 1) && weight > 0 && zb_space_total_units(map) > 0 &&
            (best == ZN_PATHS_MAX || load < best_load)) {
            best = i;
            best_load = load;
        }
    }
    return best;
}

uint64_t zsd_map_take(struct zsd_core *core, uint64_t bytes)
{
    return zsd_map_take_on(core, bytes, (1u << ZN_PATHS_MAX) - 1);
}

/* Lends the ranges that are being discarded: there is no other one. What is written there waits
 * (pio.c). One without space in its file is not lent. False: there is none. */
static bool map_lend(struct zsd_core *core, unsigned paths)
{
    bool some = false;

    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zsd_discard *d = &core->disk->lines[i].discard;

        if (!(paths >> i & 1) || d->units == 0 || d->lent || d->holed || zsd_path_drained(core, i))
            continue;
        zsd_map_give_discarded(core, i);
        d->lent = some = true;
    }
    return some;
}

static uint64_t map_take_on(struct zsd_core *core, uint64_t bytes, unsigned left)
{
    uint64_t first, units = bytes / ZB_PAGE_ALIGN;
    unsigned path;

    while ((path = map_next(core, left, units)) < ZN_PATHS_MAX) {
        if (zb_space_take(core->disk->maps[path], units, &first) == 0)
            return ZN_AT(path, first * ZB_PAGE_ALIGN);
        left &= ~(1u << path);
    }
    return ZB_NO_PLACE;
}

uint64_t zsd_map_take_on(struct zsd_core *core, uint64_t bytes, unsigned paths)
{
    uint64_t at = map_take_on(core, bytes, paths);

    if (at == ZB_NO_PLACE && map_lend(core, paths))
        at = map_take_on(core, bytes, paths);
    return at;
}

#define ON_PATH(path) (ZB_NO_PLACE - 1 - (path)) /* not yet a range: one of this path */

/* Chooses the path of each range, as map_next() would. */
static void many_choose(const struct zsd_core *core, uint64_t units, uint64_t n, uint64_t *ret)
{
    unsigned paths = zsd_paths(core->daemon);
    uint64_t used[ZN_PATHS_MAX];
    double load[ZN_PATHS_MAX], weight[ZN_PATHS_MAX];

    for (unsigned p = 0; p < paths; p++) {
        const struct zb_space *map = core->disk->maps[p];

        used[p] = zb_space_total_units(map) - zb_space_free_units(map) + units;
        weight[p] = (double)zsd_path_weight(core, p);
        load[p] = zb_space_total_units(map) > 0 && weight[p] > 0 ? (double)used[p] / weight[p]
                                                                 : INFINITY;
    }
    for (uint64_t i = 0; i < n; i++) {
        unsigned best = 0;

        for (unsigned p = 1; p < paths; p++)
            if (load[p] < load[best])
                best = p;
        ret[i] = ON_PATH(best);
        used[best] += units;
        load[best] = (double)used[best] / weight[best];
    }
}

/* Takes the ranges that were chosen for this path, until it has no gap left. */
static void many_take(struct zsd_core *core, unsigned path, uint64_t units, uint64_t n,
                      uint64_t *ret)
{
    uint64_t first = 0, have = 0, want = 0;

    for (uint64_t i = 0; i < n; i++)
        want += ret[i] == ON_PATH(path);
    for (uint64_t i = 0; i < n && want > 0; i++) {
        if (ret[i] != ON_PATH(path))
            continue;
        if (have == 0)
            have = zb_space_take_some(core->disk->maps[path], units, want, &first);
        if (have == 0)
            return;
        ret[i] = ZN_AT(path, first * ZB_PAGE_ALIGN);
        first += units;
        have--;
        want--;
    }
}

/* The same with a single path: there is nothing to choose. */
static uint64_t many_single(struct zsd_core *core, uint64_t units, uint64_t n, uint64_t *ret)
{
    uint64_t took = 0, first, some;

    do {
        while (took < n &&
               (some = zb_space_take_some(core->disk->maps[0], units, n - took, &first)) > 0)
            for (; some > 0; some--, first += units)
                ret[took++] = ZN_AT(0, first * ZB_PAGE_ALIGN);
    } while (took < n && map_lend(core, 1));
    return took;
}

uint64_t zsd_map_take_many(struct zsd_core *core, uint64_t bytes, uint64_t n, uint64_t *ret)
{
    unsigned paths = zsd_paths(core->daemon);
    uint64_t units = bytes / ZB_PAGE_ALIGN, took = 0;

    if (paths == 1)
        return many_single(core, units, n, ret);
    many_choose(core, units, n, ret);
    for (unsigned p = 0; p < paths; p++)
        if (!zsd_path_drained(core, p))
            many_take(core, p, units, n, ret);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = ret[i] >= ON_PATH(paths - 1) ? zsd_map_take(core, bytes) : ret[i];

        if (at != ZB_NO_PLACE)
            ret[took++] = at;
    }
    return took;
}

int zsd_map_take_at(struct zsd_core *core, uint64_t at, uint64_t bytes)
{
    int rc;

    if (ZN_AT_PATH(at) >= ZN_PATHS_MAX || at % ZB_PAGE_ALIGN != 0)
        return -ERANGE;
    if (zsd_place_lost(core->daemon, at)) {
        if (ZN_AT_PATH(at) + 1 != core->daemon->config.without)
            return -ERANGE;
        core->disk->lost_bytes += bytes;
        return 0;
    }
    rc = zb_space_take_at(core->disk->maps[ZN_AT_PATH(at)], ZN_AT_OFFSET(at) / ZB_PAGE_ALIGN,
                          bytes / ZB_PAGE_ALIGN);
    if (rc == 0 && zsd_path_drained(core, ZN_AT_PATH(at)))
        core->tiers.nvme.budget += bytes;
    return rc;
}

void zsd_map_give(struct zsd_core *core, uint64_t at, uint64_t bytes)
{
    if (zsd_place_lost(core->daemon, at)) {
        core->disk->lost_bytes -= bytes;
        return;
    }
    zb_space_give(core->disk->maps[ZN_AT_PATH(at)], ZN_AT_OFFSET(at) / ZB_PAGE_ALIGN,
                  bytes / ZB_PAGE_ALIGN);
    core->disk->lines[ZN_AT_PATH(at)].discard.given = true;
    if (zsd_path_drained(core, ZN_AT_PATH(at))) /* it is not given out again */
        core->tiers.nvme.budget -= bytes;
}

void zsd_map_give_many(struct zsd_core *core, uint64_t bytes, uint64_t n, const uint64_t *at)
{
    struct {
        uint64_t at, bytes; /* a range that is to be given, and may still grow at both ends */
    } runs[ZN_PATHS_MAX] = { 0 };

    for (uint64_t i = 0; i < n; i++) {
        unsigned p = ZN_AT_PATH(at[i]);

        if (runs[p].bytes > 0 && at[i] == runs[p].at + runs[p].bytes) {
            runs[p].bytes += bytes;
        } else if (runs[p].bytes > 0 && at[i] + bytes == runs[p].at) {
            runs[p].at = at[i];
            runs[p].bytes += bytes;
        } else {
            if (runs[p].bytes > 0)
                zsd_map_give(core, runs[p].at, runs[p].bytes);
            runs[p].at = at[i];
            runs[p].bytes = bytes;
        }
    }
    for (unsigned p = 0; p < ZN_PATHS_MAX; p++)
        if (runs[p].bytes > 0)
            zsd_map_give(core, runs[p].at, runs[p].bytes);
}

bool zsd_map_take_stale(struct zsd_core *core, unsigned path, const struct zb_stale *want)
{
    struct zsd_discard *d = &core->disk->lines[path].discard;

    assert(d->units == 0 && !zsd_path_drained(core, path));
    d->units = zb_space_take_stale(core->disk->maps[path], want, &d->next, &d->first);
    return d->units > 0;
}

void zsd_map_give_discarded(struct zsd_core *core, unsigned path)
{
    struct zsd_discard *d = &core->disk->lines[path].discard;

    if (d->lent)
        return;
    zb_space_give_clean(core->disk->maps[path], d->first, d->units);
}

void zsd_map_close(struct zsd_core *core, unsigned path, uint64_t from)
{
    zb_space_take_rest(core->disk->maps[path], from / ZB_PAGE_ALIGN);
}

/* Units that are out of the map for a discard. */
static uint64_t map_out(const struct zsd_core *core, unsigned path)
{
    const struct zsd_discard *d = &core->disk->lines[path].discard;

    return d->lent ? 0 : d->units;
}

static uint64_t free_bytes(const struct zsd_core *core, bool drained)
{
    uint64_t units = 0;

    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        if (zsd_path_drained(core, i) == drained)
            units += zb_space_free_units(core->disk->maps[i]) + map_out(core, i);
    return units * ZB_PAGE_ALIGN;
}

uint64_t zsd_map_free_bytes(const struct zsd_core *core)
{
    return free_bytes(core, false);
}

uint64_t zsd_map_drained_bytes(const struct zsd_core *core)
{
    return free_bytes(core, true);
}

uint64_t zsd_map_total_bytes(const struct zsd_core *core)
{
    uint64_t units = 0;

    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        const struct zb_space *map = core->disk->maps[i];

        units += zb_space_total_units(map);
        units -= zsd_path_drained(core, i) ? zb_space_free_units(map) + map_out(core, i) : 0;
    }
    return units * ZB_PAGE_ALIGN + core->disk->lost_bytes;
}

struct zsd_rates zsd_path_best(const struct zsd_core *core, unsigned path)
{
    const struct zsd_rates *start = &core->daemon->path_rates[path];
    const struct zsd_second *s = &core->disk->lines[path].second;

    return (struct zsd_rates){ .read = zb_max_u64(start->read, s->best_read),
                               .written = zb_max_u64(start->written, s->best_written),
                               .mixed = start->mixed };
}
