/*
 * discard.c - the passes over free space: see discard.h.
 */
#include "daemon/disk/discard.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"

#define DISCARD_BUSY      31u /* so many times as long as a discard the drive rests, if it has work */
#define DISCARD_WORDS     16384u /* of the map that a tick looks at: 4 GiB of the drive */
#define DISCARD_BUSY_PART 8u     /* a discard is so much shorter then */
#define DISCARD_IDLE_NS   UINT64_C(1000000000) /* without a transfer: the drive has no work */
#define DISCARD_RETRY_NS  UINT64_C(5000000000) /* until space is allocated again */

static struct zsd_discard *discard_of(const struct zsd_core *core, unsigned path)
{
    return &core->disk->lines[path].discard;
}

/* Whether ranges of this data file are to be discarded. */
static bool discard_on(const struct zsd_core *core, unsigned path)
{
    const struct zsd *daemon = core->daemon;

    return daemon->config.discard && !daemon->read_only && !core->draining && !core->leaving &&
           !zsd_path_drained(core, path) && !zn_is_absent(zsd_path_engine(daemon, path));
}

uint64_t zsd_discard_holed_bytes(const struct zsd_core *core, unsigned path)
{
    const struct zsd_discard *d = discard_of(core, path);

    return d->holed ? d->units * ZB_PAGE_ALIGN : 0;
}

const char *zsd_discard_text(const struct zsd_core *core, unsigned path)
{
    const struct zn_info *info = zn_info(zsd_path_engine(core->daemon, path));

    if (!core->daemon->config.discard)
        return "off";
    if (!info->discard)
        return info->why_no_discard;
    if (discard_of(core, path)->holed)
        return "on, and a range waits for its space: see discard-holed in the log";
    return discard_of(core, path)->refused ? "off: it failed"
           : !info->told ? "on, but the drive is not told: no mount option discard"
                         : "on";
}

/* Whether the drive has work. Between the transfers of a step there are pauses. */
static bool discard_beside_work(const struct zsd_discard *d, uint64_t now_ns)
{
    const struct zsd_line *line = &d->core->disk->lines[d->path];

    return line->depth > 0 || now_ns < line->drive.moved_ns + DISCARD_IDLE_NS;
}

/* ---- the end of a discard */

static void discard_over(struct zsd_discard *d, int rc)
{
    if (rc < 0) {
        d->refused = true;
        zb_log(ZB_LOG_WARN, "discard-failed", "number=%u directory=\"%s\" why=\"%s\"", d->path + 1,
               zsd_path_folder(d->core->daemon, d->path), strerror(-rc));
    } else if (d->holed) {
        zb_log(ZB_LOG_INFO, "discard-allocated", "number=%u directory=\"%s\" bytes=%llu",
               d->path + 1, zsd_path_folder(d->core->daemon, d->path),
               (unsigned long long)(d->units * ZB_PAGE_ALIGN));
    }
    if (rc == 0)
        d->discarded_bytes += d->units * ZB_PAGE_ALIGN;
    zsd_map_give_discarded(d->core, d->path);
    d->units = 0;
    d->lent = d->holed = false;
}

static void discard_on_done(struct zn_io *io, int rc)
{
    struct zsd_discard *d = zb_container_of(io, struct zsd_discard, io);
    struct zsd_core *core = d->core;
    uint64_t now_ns = zb_now_ns(), took_ns = now_ns - d->since_ns;
    bool holed = rc == -ENOSPC || (rc < 0 && d->holed);

    assert(d->runs);
    d->runs = false;
    core->in_progress--;
    if (holed && !d->holed)
        zb_log(ZB_LOG_WARN, "discard-holed",
               "number=%u directory=\"%s\" bytes=%llu why=\"others took the space: it is allocated "
               "again when there is some\"",
               d->path + 1, zsd_path_folder(core->daemon, d->path),
               (unsigned long long)(d->units * ZB_PAGE_ALIGN));
    d->holed |= holed;
    if (!holed)
        discard_over(d, rc);
    d->rests_until_ns =
        now_ns +
        (holed ? DISCARD_RETRY_NS : took_ns * (discard_beside_work(d, now_ns) ? DISCARD_BUSY : 1));
    zsd_pio_resume(core, d->path);
}

/* ---- the begin */

static void discard_start(struct zsd_discard *d, enum zn_op op, uint64_t now_ns)
{
    struct zsd_core *core = d->core;
    int rc;

    d->io = (struct zn_io){ .op = op,
                            .off_bytes = core->daemon->engine_base + d->first * ZB_PAGE_ALIGN,
                            .len_bytes = (uint32_t)(d->units * ZB_PAGE_ALIGN),
                            .done = discard_on_done };
    d->runs = true;
    d->since_ns = now_ns;
    core->in_progress++;
    rc = zn_submit(zsd_path_engine(core->daemon, d->path), &d->io);
    assert(rc == 0); /* aligned, inside of the file, and the only one */
}

/* Begins with a drive. False: it does not discard. */
static bool discard_begin(struct zsd_core *core, unsigned path)
{
    struct zsd_discard *d = discard_of(core, path);
    const struct zn_info *info = zn_info(zsd_path_engine(core->daemon, path));
    const char *folder = zsd_path_folder(core->daemon, path);

    if (info->discard && zb_space_track(core->disk->maps[path]) < 0)
        return false; /* no memory: again with the next tick */
    d->core = core;
    d->path = path;
    d->refused = !info->discard;
    if (d->refused)
        zb_log(ZB_LOG_WARN, "discard-unsupported", "number=%u directory=\"%s\" why=\"%s\"",
               path + 1, folder, info->why_no_discard);
    else if (!info->told)
        zb_log(ZB_LOG_WARN, "discard-untold",
               "number=%u directory=\"%s\" why=\"the file system is not mounted with the option "
               "discard: it does not tell the drive\"",
               path + 1, folder);
    return !d->refused;
}

/* Continues the pass. */
static void discard_pass(struct zsd_discard *d, uint64_t now_ns)
{
    struct zsd_core *core = d->core;
    const struct zsd_disk *disk = core->disk;
    uint64_t align = zn_info(zsd_path_engine(core->daemon, d->path))->discard_bytes / ZB_PAGE_ALIGN;
    uint64_t most = disk->discard_most / (discard_beside_work(d, now_ns) ? DISCARD_BUSY_PART : 1);
    struct zb_stale want = { .align = align,
                             .phase = core->daemon->engine_base / ZB_PAGE_ALIGN,
                             .least = disk->discard_least,
                             .most = zb_max_u64(most / align * align, align),
                             .words = DISCARD_WORDS };

    if (d->next == 0)
        d->given = false;
    d->seen = false;
    if (zsd_map_take_stale(core, d->path, &want))
        discard_start(d, ZN_DISCARD, now_ns);
    if (d->next == zb_space_total_units(disk->maps[d->path])) {
        d->next = 0;
        d->seen = true;
    }
}

static bool discard_has_work(const struct zsd_core *core, unsigned path)
{
    const struct zsd_discard *d = discard_of(core, path);

    return d->holed || d->runs || (discard_on(core, path) && !d->refused && (!d->seen || d->given));
}

bool zsd_discards_wanted(const struct zsd_core *core)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        if (discard_has_work(core, i))
            return true;
    return false;
}

void zsd_discards_tick(struct zsd_core *core, uint64_t now_ns)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zsd_discard *d = discard_of(core, i);

        if (d->runs || now_ns < d->rests_until_ns || !discard_has_work(core, i))
            continue;
        if (d->holed)
            discard_start(d, ZN_ALLOCATE, now_ns);
        else if (d->core || discard_begin(core, i))
            discard_pass(d, now_ns);
    }
}
