/*
 * drives.c - the measured speed of drives, and draining: see drives.h.
 */
#include "daemon/disk/drives.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/disk/extents.h"
#include "daemon/disk/paths.h"

#define ERRORS_NS UINT64_C(3600000000000) /* failures are counted for so long */
#define LOADED    2u                      /* transfers at a time, on average */
#define SECOND_NS UINT64_C(1000000000)

const char *zsd_drain_text(enum zsd_drain drain)
{
    static const char *const texts[] = { [ZSD_DRAIN_NONE] = "in use",
                                         [ZSD_DRAIN_ASKED] = "drained on request",
                                         [ZSD_DRAIN_FAILED] = "drained: it fails",
                                         [ZSD_DRAIN_SLOW] = "drained: it is slow",
                                         [ZSD_DRAIN_STALLED] = "drained: it stalls" };

    return texts[drain];
}

const char *zsd_drive_state(const struct zsd_drive *d)
{
    static const char *const texts[] = { [ZSD_DRAIN_ASKED] = "drained on request, and empty",
                                         [ZSD_DRAIN_FAILED] = "drained: it fails; it is empty",
                                         [ZSD_DRAIN_SLOW] = "drained: it is slow; it is empty",
                                         [ZSD_DRAIN_STALLED] = "drained: it stalls; it is empty" };
    bool empty = d->drain != ZSD_DRAIN_NONE && d->held_bytes == 0;

    return empty ? texts[d->drain] : zsd_drain_text(d->drain);
}

/* ---- draining */

static bool drive_exists(const struct zsd_core *core, unsigned path)
{
    return path < zsd_paths(core->daemon) && !zn_is_absent(zsd_path_engine(core->daemon, path));
}

static bool drive_in_use(const struct zsd_core *core, unsigned path)
{
    return drive_exists(core, path) && !zsd_path_drained(core, path);
}

/* The set of drained data files, or what they hold, has changed. */
static void drives_changed(struct zsd_core *core)
{
    core->disk->drains++;
    core->tiers.nvme.budget = zsd_map_total_bytes(core);
    zsd_extents_sort(core);
}

int zsd_drive_drain(struct zsd_core *core, unsigned path, enum zsd_drain drain, const char *why,
                    struct zb_err *err)
{
    struct zsd_drive *d;
    unsigned others = 0;

    if (!drive_exists(core, path))
        return zb_fail(err, -EINVAL, "there is no data file number %u", path + 1);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        others += i != path && drive_in_use(core, i);
    if (others == 0)
        return zb_fail(err, -EINVAL,
                       "data file number %u cannot be drained: no other one is in use", path + 1);
    if (zsd_path_drained(core, path))
        return 0;
    d = &core->disk->lines[path].drive;
    d->drain = drain;
    d->emptied = false;
    (void)snprintf(d->why, sizeof(d->why), "%s", why);
    core->disk->drained |= 1u << path;
    drives_changed(core);
    core->daemon->stats.drives_drained++;
    zb_log(drain == ZSD_DRAIN_ASKED ? ZB_LOG_INFO : ZB_LOG_ERROR, "drive-drained",
           "number=%u directory=\"%s\" held_bytes=%llu state=\"%s\" why=\"%s\"", path + 1,
           zsd_path_folder(core->daemon, path), (unsigned long long)d->held_bytes,
           zsd_drain_text(drain), d->why);
    return 0;
}

int zsd_drive_use(struct zsd_core *core, unsigned path, struct zb_err *err)
{
    struct zsd_drive *d;

    if (!drive_exists(core, path))
        return zb_fail(err, -EINVAL, "there is no data file number %u", path + 1);
    if (!zsd_path_drained(core, path))
        return 0;
    d = &core->disk->lines[path].drive;
    *d = (struct zsd_drive){ .held_bytes = d->held_bytes, .moved_ns = zb_now_ns() };
    core->disk->drained &= ~(1u << path);
    drives_changed(core);
    zb_log(ZB_LOG_INFO, "drive-used", "number=%u directory=\"%s\" held_bytes=%llu", path + 1,
           zsd_path_folder(core->daemon, path), (unsigned long long)d->held_bytes);
    return 0;
}

void zsd_drive_failed(struct zsd_core *core, unsigned path, int rc, uint64_t now_ns)
{
    struct zsd_drive *d = &core->disk->lines[path].drive;
    uint32_t most = core->daemon->config.drive_errors;
    char why[sizeof(d->why)];

    if (d->errors == 0 || now_ns - d->errors_ns > ERRORS_NS) {
        d->errors = 0;
        d->errors_ns = now_ns;
    }
    d->errors++;
    if (most == 0 || d->errors < most || zsd_path_drained(core, path))
        return;
    (void)snprintf(why, sizeof(why), "%llu transfers failed within %llu s, the last one: %s",
                   (unsigned long long)d->errors,
                   (unsigned long long)((now_ns - d->errors_ns) / SECOND_NS), strerror(-rc));
    (void)zsd_drive_drain(core, path, ZSD_DRAIN_FAILED, why, NULL);
}

/* ---- speed */

/* The speed of a drive at the start; 1 if not all of them were measured. */
static double start_rate(const struct zsd_core *core, unsigned path)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        if (drive_in_use(core, i) && core->daemon->path_rates[i].mixed == 0)
            return 1;
    return (double)core->daemon->path_rates[path].mixed;
}

/* The speed of the peers, each as a part of its own speed at the start: the lower median of them; 0:
 * unknown. What was seen of a drive that is not loaded is less than its speed. */
static double peers_part(const struct zsd_core *core, unsigned path)
{
    double parts[ZN_PATHS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        const struct zsd_drive *d = &core->disk->lines[i].drive;
        double part = (double)zb_max_u64(d->rate, d->seen) / start_rate(core, i);
        unsigned at = n;

        if (i == path || !drive_in_use(core, i) || part <= 0)
            continue;
        for (; at > 0 && parts[at - 1] > part; at--)
            parts[at] = parts[at - 1];
        parts[at] = part;
        n++;
    }
    return n > 0 ? parts[(n - 1) / 2] : 0;
}

/* Drains a drive that has been far slower than its peers for some time. */
static void drive_judge(struct zsd_core *core, unsigned path, uint64_t sample, uint64_t now_ns)
{
    struct zsd_drive *d = &core->disk->lines[path].drive;
    double part = (double)sample / start_rate(core, path), peers = peers_part(core, path);
    char why[sizeof(d->why)];

    if (peers <= 0 || part * 100 >= peers * core->daemon->config.drive_slow) {
        d->slow_ns = 0;
        return;
    }
    if (d->slow_ns == 0)
        d->slow_ns = now_ns;
    if (now_ns - d->slow_ns < core->disk->slow_ns)
        return;
    (void)snprintf(why, sizeof(why), "%s/s for %llu s, %.0f %% of what its peers' speed suggests",
                   zb_size_text(sample).s, (unsigned long long)((now_ns - d->slow_ns) / SECOND_NS),
                   100 * part / peers);
    (void)zsd_drive_drain(core, path, ZSD_DRAIN_SLOW, why, NULL);
}

/* Ends the window of a drive, if it is long enough. */
static void drive_window(struct zsd_core *core, unsigned path, uint64_t now_ns)
{
    struct zsd_line *line = &core->disk->lines[path];
    struct zsd_drive *d = &line->drive;
    struct zn_stats io = zn_stats(zsd_path_engine(core->daemon, path));
    uint64_t bytes = io.read_bytes + io.written_bytes, transfers = io.reads + io.writes;
    uint64_t busy_ns = line->depths.busy_ns - d->busy_ns,
             area_ns = line->depths.area_ns - d->area_ns;
    bool begins = d->since_ns == 0;

    if (!begins && (now_ns < d->since_ns + core->disk->window_ns ||
                    transfers - d->transfers < ZSD_DRIVE_WINDOW_N || busy_ns == 0))
        return;
    if (!begins) {
        d->seen = (uint64_t)(1e9 * (double)(bytes - d->bytes) / (double)busy_ns);
        if (area_ns >= LOADED * busy_ns) {
            d->rate = d->rate == 0 ? d->seen : d->rate - d->rate / 4 + d->seen / 4;
            drive_judge(core, path, d->seen, now_ns);
        }
    }
    d->since_ns = now_ns;
    d->bytes = bytes;
    d->transfers = transfers;
    d->busy_ns = line->depths.busy_ns;
    d->area_ns = line->depths.area_ns;
}

/* ---- the tick */

uint64_t zsd_drive_waits_ns(const struct zsd_core *core, unsigned path, uint64_t now_ns)
{
    uint64_t moved_ns = core->disk->lines[path].drive.moved_ns;

    return zn_stats(zsd_path_engine(core->daemon, path)).inflight > 0 && now_ns > moved_ns
               ? now_ns - moved_ns
               : 0;
}

/* Reports a drive that stalls, once for each time, and drains it. */
static void drive_stalls(struct zsd_core *core, unsigned path, uint64_t now_ns)
{
    struct zsd_drive *d = &core->disk->lines[path].drive;
    uint64_t limit_ns = core->daemon->config.drive_stall_s * SECOND_NS;
    uint64_t waits_ns = zsd_drive_waits_ns(core, path, now_ns);
    char why[sizeof(d->why)];

    if (limit_ns == 0 || waits_ns < limit_ns || d->stalled_ns == d->moved_ns)
        return;
    d->stalled_ns = d->moved_ns;
    (void)snprintf(why, sizeof(why), "no transfer has ended for %llu s, %u are in progress",
                   (unsigned long long)(waits_ns / SECOND_NS),
                   zn_stats(zsd_path_engine(core->daemon, path)).inflight);
    zb_log(ZB_LOG_ERROR, "drive-stalled", "number=%u directory=\"%s\" why=\"%s\"", path + 1,
           zsd_path_folder(core->daemon, path), why);
    if (!zsd_path_drained(core, path))
        (void)zsd_drive_drain(core, path, ZSD_DRAIN_STALLED, why, NULL);
}

void zsd_drives_tick(struct zsd_core *core, uint64_t now_ns)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zsd_drive *d = &core->disk->lines[i].drive;

        if (!drive_exists(core, i))
            continue;
        drive_stalls(core, i, now_ns);
        if (drive_in_use(core, i))
            drive_window(core, i, now_ns);
        else if (d->held_bytes == 0 && !d->emptied) {
            d->emptied = true;
            zb_log(ZB_LOG_INFO, "drive-empty", "number=%u directory=\"%s\"", i + 1,
                   zsd_path_folder(core->daemon, i));
        }
    }
}
