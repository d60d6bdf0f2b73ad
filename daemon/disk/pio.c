/*
 * pio.c - transfers of pages: the queue for each data file, and holds. Users are page operations
 * (page/pageop.c) and changes of the catalog (store/change.c); below is one I/O engine per file
 * (nvme/zn.h).
 *
 * HOLD. A flush waits for everything in the drive's queue, which a step refills all the time. So
 * while a change of the catalog is flushed, new page writes wait here. The transfers in flight
 * drain once, and the flushes find an idle drive. Reads and computing continue. The length of a
 * hold is limited, and so is the fraction of time of all holds, so no client's changes can stop a
 * training job.
 *
 * DISCARD. A range that is being discarded may be lent, if there is no other one (discard.h). A write to
 * it waits until the discard has ended.
 *
 * SHARES. Jobs share a drive through its queue (run/fair.h).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/leaving.h"
#include "daemon/disk/paths.h"

#define HOLD_MAX_MS  100u
#define HOLD_REST    4u /* the next hold begins at the earliest after so many times its length */
#define DRIVE_LOG_NS UINT64_C(10000000000)

void zsd_disk_init(struct zsd_disk *disk, struct zsd_core *core)
{
    disk->core = core;
    disk->slow_ns = ZSD_DRIVE_SLOW_NS;
    disk->window_ns = ZSD_DRIVE_WINDOW_NS;
    disk->discard_least = ZSD_DISCARD_LEAST / ZB_PAGE_ALIGN;
    disk->discard_most = ZSD_DISCARD_MOST / ZB_PAGE_ALIGN;
    zsd_leaving_init(core);
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++) {
        zsd_fair_init(&disk->lines[i].waiting);
        zb_list_init(&disk->lines[i].held);
        zb_list_init(&disk->lines[i].discard.waits);
    }
    zsd_fair_init(&disk->buffer_line);
}

void zsd_generation_from(struct zsd_core *core, uint64_t generation)
{
    core->disk->generation = generation;
}

uint64_t zsd_generation_next(struct zsd_core *core)
{
    return ++core->disk->generation;
}

static void pio_on_done(struct zn_io *io, int rc);

static bool pio_submit(struct zsd_core *core, struct zsd_pio *pio)
{
    bool first = zn_stats(zsd_path_engine(core->daemon, pio->path)).inflight == 0;
    int rc = zn_submit(zsd_path_engine(core->daemon, pio->path), &pio->io);

    if (rc == -EAGAIN)
        return false;
    assert(rc == 0); /* extents are always aligned and inside the file */
    pio->since_ns = zb_now_ns();
    if (first)
        core->disk->lines[pio->path].drive.moved_ns = pio->since_ns;
    return true;
}

static void pio_push(struct zsd_core *core, struct zsd_pio *pio, uint64_t bytes)
{
    struct zsd_payer *payer = pio->payer ? pio->payer : &core->house;

    zsd_fair_push(&core->disk->lines[pio->path].waiting, &payer->flows[ZSD_LINE_FILES + pio->path],
                  &pio->turn, bytes, payer->share, pio->io.urgent);
}

/* Whether it is a write to a range that is being discarded: it may come before the discard. */
static bool pio_waits(const struct zsd_core *core, const struct zsd_pio *pio)
{
    const struct zsd_discard *d = &core->disk->lines[pio->path].discard;
    const struct zn_io *io = &d->io;

    return d->runs && d->lent && io->op == ZN_DISCARD && pio->io.op == ZN_WRITE &&
           pio->io.off_bytes < io->off_bytes + io->len_bytes &&
           io->off_bytes < pio->io.off_bytes + pio->io.len_bytes;
}

/* Submits queued transfers, as many as the engine accepts. */
static void pio_feed(struct zsd_core *core, unsigned path)
{
    struct zsd_line *line = &core->disk->lines[path];
    struct zsd_turn *turn;

    while ((turn = zsd_fair_next(&line->waiting)) != NULL) {
        struct zsd_pio *pio = zb_container_of(turn, struct zsd_pio, turn);
        bool held = core->disk->hold.on && pio->io.op == ZN_WRITE;
        bool waits = pio_waits(core, pio);

        if (!held && !waits && !pio_submit(core, pio))
            break;
        zsd_fair_take(&line->waiting, turn);
        if (held || waits)
            zb_list_push_back(waits ? &line->discard.waits : &line->held, &turn->node);
    }
}

/* Queues writes again, which were charged already. */
static void pio_again(struct zsd_core *core, unsigned path, struct zb_list *list)
{
    struct zb_list *node;

    while ((node = zb_list_pop_front(list)) != NULL)
        pio_push(core, zb_container_of(node, struct zsd_pio, turn.node), 0);
    pio_feed(core, path);
}

void zsd_pio_resume(struct zsd_core *core, unsigned path)
{
    pio_again(core, path, &core->disk->lines[path].discard.waits);
}

void zsd_hold_end(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns(), held_ns = now_ns - core->disk->hold.since_ns;

    if (!core->disk->hold.on)
        return;
    core->disk->hold.on = false;
    core->disk->hold.rests_until_ns = now_ns + HOLD_REST * held_ns;
    core->daemon->stats.write_hold_us += held_ns / 1000;
    zsd_timed_disarm(&core->disk->hold.timed);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        pio_again(core, i, &core->disk->lines[i].held);
}

static void hold_on_expire(struct zsd_timed *timed)
{
    zsd_hold_end(zb_container_of(timed, struct zsd_disk, hold.timed)->core);
}

void zsd_hold_begin(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns();

    if (core->disk->hold.on || now_ns < core->disk->hold.rests_until_ns)
        return;
    core->disk->hold.on = true;
    core->disk->hold.since_ns = now_ns;
    core->daemon->stats.write_holds++;
    zsd_timed_arm(core, &core->disk->hold.timed, HOLD_MAX_MS, hold_on_expire);
}

static void pio_line_up(struct zsd_core *core, struct zsd_pio *pio)
{
    core->disk->lines[pio->path].depth++;
    pio_push(core, pio, pio->io.len_bytes);
    pio_feed(core, pio->path);
}

static bool pio_is_for_all(const struct zsd_pio *pio)
{
    return pio->io.op == ZN_FLUSH || pio->io.op == ZN_SLOT;
}

/* Logs a failure of the drive: the first, and later at most one in DRIVE_LOG_NS for each data file. */
static void pio_log(const struct zsd_pio *pio, struct zsd_line *line, int rc, uint64_t now_ns)
{
    static const char *const ops[] = {
        [ZN_READ] = "read", [ZN_WRITE] = "write", [ZN_FLUSH] = "flush", [ZN_SLOT] = "write"
    };
    const struct zsd *daemon = pio->core->daemon;

    if (line->logged_ns != 0 && now_ns < line->logged_ns + DRIVE_LOG_NS)
        return;
    line->logged_ns = now_ns;
    zb_log(ZB_LOG_ERROR, "drive-error", "path=%u directory=\"%s\" op=%s failures=%llu why=\"%s\"",
           pio->path, zsd_path_folder(daemon, pio->path), ops[pio->io.op],
           (unsigned long long)zn_stats(zsd_path_engine(daemon, pio->path)).failed, strerror(-rc));
}

/* Counts the time that the drive took, or the failure. */
static void pio_count(struct zsd_pio *pio, int rc)
{
    static const enum zsd_time times[] = { [ZN_READ] = ZSD_TIME_READ,
                                           [ZN_WRITE] = ZSD_TIME_WRITE,
                                           [ZN_FLUSH] = ZSD_TIME_FLUSH,
                                           [ZN_SLOT] = ZSD_TIME_WRITE };
    struct zsd_line *line = &pio->core->disk->lines[pio->path];
    enum zsd_time time = times[pio->io.op];
    uint64_t now_ns = zb_now_ns(), took_ns = now_ns - pio->since_ns;

    line->drive.moved_ns = now_ns;
    if (rc < 0) {
        zsd_drive_failed(pio->core, pio->path, rc, now_ns);
        line->failed_ns = now_ns;
        line->failed_rc = rc;
        pio_log(pio, line, rc, now_ns);
        return;
    }
    line->spent_ns[time] += took_ns;
    zsd_histogram_add(&pio->core->daemon->times[time], took_ns);
}

static void pio_on_done(struct zn_io *io, int rc)
{
    struct zsd_pio *pio = zb_container_of(io, struct zsd_pio, io);
    struct zsd_core *core = pio->core;
    unsigned path = pio->path;

    core->disk->lines[path].depth--;
    pio_count(pio, rc);
    if (rc == 0 && pio_is_for_all(pio) && path + 1 < zsd_paths(core->daemon)) {
        pio->path++;
        pio_line_up(core, pio);
    } else {
        pio->done(pio, rc); /* may free pio */
    }
    pio_feed(core, path);
}

void zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio)
{
    pio->core = core;
    pio->io.done = pio_on_done;
    pio->path = pio_is_for_all(pio) ? 0 : ZN_AT_PATH(pio->io.off_bytes);
    pio->io.off_bytes = ZN_AT_OFFSET(pio->io.off_bytes);
    pio_line_up(core, pio);
}

void zsd_pio_kick(struct zsd_core *core)
{
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        zn_kick(zsd_path_engine(core->daemon, i));
}
