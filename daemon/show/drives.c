/*
 * drives.c - the drives, for `zctl drive` and `zctl tiers`.
 */
#include <stdio.h>
#include <sys/sysmacros.h>

#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/show/inspect.h"
#include "proto/codec.h"

/* With several paths, the text has the measured speed of each. */
size_t zsd_drive_detail(const struct zsd *daemon, unsigned path, char *text, size_t size)
{
    const struct zn_info *info = zn_info(zsd_path_engine(daemon, path));
    enum zsd_drain drain = daemon->core->disk->lines[path].drive.drain;
    char rate[48] = "", node[32] = "";

    if (zsd_paths(daemon) > 1)
        (void)snprintf(rate, sizeof(rate), ", %s/s",
                       zb_size_text(zsd_drive_rate(daemon->core, path)).s);
    if (daemon->path_nodes[path] > 0)
        (void)snprintf(node, sizeof(node), ", node %d", daemon->path_nodes[path] - 1);
    return (size_t)snprintf(
        text, size, "%sio %s%s%s%s, %s%s, depth %u%s%s%s%s%s%s", path > 0 ? "; " : "", info->io,
        info->why[0] ? " (" : "", info->why, info->why[0] ? ")" : "",
        info->direct ? "direct" : "buffered: ", info->why_buffered, info->depth,
        info->why_unregistered[0] ? ", " : "", info->why_unregistered, rate, node,
        drain != ZSD_DRAIN_NONE ? ", " : "", drain != ZSD_DRAIN_NONE ? zsd_drain_text(drain) : "");
}

static void drive_row(const struct zsd *daemon, unsigned path, char device[24], Zp__DriveRow *row)
{
    const struct zsd_core *core = daemon->core;
    const struct zsd_drive *d = &core->disk->lines[path].drive;
    const struct zn_info *info = zn_info(zsd_path_engine(daemon, path));
    struct zn_stats io = zn_stats(zsd_path_engine(daemon, path));

    zp__drive_row__init(row);
    row->number = path + 1;
    row->directory = zp_str(zsd_path_folder(daemon, path));
    row->state = zp_str(zsd_drive_state(d));
    row->why = zp_str(d->why);
    row->size_bytes = zsd_path_bytes(core, path);
    row->held_bytes = d->held_bytes;
    row->bytes_s = zsd_drive_rate(core, path);
    row->start_bytes_s = daemon->path_rates[path].mixed;
    row->read_bytes = io.read_bytes;
    row->written_bytes = io.written_bytes;
    row->failed = io.failed;
    row->waits_ms = zsd_drive_waits_ns(core, path, zb_now_ns()) / 1000000;
    if (info->device != 0) {
        (void)snprintf(device, 24, "%u:%u", major(info->device), minor(info->device));
        row->device = device;
    }
    row->node = (uint32_t)daemon->path_nodes[path];
    row->device_start_bytes = daemon->path_device_bytes[path];
    row->discarded_bytes = core->disk->lines[path].discard.discarded_bytes;
    row->holed_bytes = zsd_discard_holed_bytes(core, path);
    row->discard = zp_str(zsd_discard_text(core, path));
}

void zsd_drive_rows(const struct zsd *daemon, struct zsd_drive_rows *ret)
{
    ret->n = 0;
    for (unsigned i = 0; i < zsd_paths(daemon); i++) {
        if (zn_is_absent(zsd_path_engine(daemon, i)))
            continue;
        drive_row(daemon, i, ret->devices[i], &ret->rows[i]);
        ret->list[ret->n++] = &ret->rows[i];
    }
}
