/*
 * drive.c - zctl drive: the drives, their measured speed and state; drains one, or uses it again.
 *
 * What the block device says is read here: daemon and zctl are on one machine.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/zctl/cmd/cmd.h"

/* A row of zc_drives_wait(), and what is added to it. */
struct drive_row {
    struct zc_drive_row d;
    uint64_t device_written_bytes; /* by everybody, since the machine started; 0: unknown */
    double
        over; /* bytes that the device has written since the daemon started, over ours; -1: unknown */
    double wear; /* part of its life that is used; -1: unknown */
};

static const struct zctl_column columns[] = {
    { "number", ZCTL_U64, offsetof(struct drive_row, d.number), ZCTL_SHOWN, NULL, 0 },
    { "directory", ZCTL_TEXT, offsetof(struct drive_row, d.directory), ZCTL_SHOWN, NULL, 0 },
    { "size_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.size_bytes), ZCTL_SHOWN, "SIZE", 0 },
    { "held_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.held_bytes), ZCTL_SHOWN, "HELD", 0 },
    { "bytes_s", ZCTL_SIZE, offsetof(struct drive_row, d.bytes_s), ZCTL_SHOWN, "SPEED/S", 0 },
    { "start_bytes_s", ZCTL_SIZE, offsetof(struct drive_row, d.start_bytes_s), ZCTL_SHOWN,
      "AT START", 0 },
    { "node", ZCTL_TEXT, offsetof(struct drive_row, d.node), ZCTL_SHOWN, NULL, 0 },
    { "failed", ZCTL_U64, offsetof(struct drive_row, d.failed), ZCTL_SHOWN, NULL, 0 },
    { "device_over_ours", ZCTL_SHARE, offsetof(struct drive_row, over), ZCTL_SHOWN, "DEVICE", 0 },
    { "wear", ZCTL_SHARE, offsetof(struct drive_row, wear), ZCTL_SHOWN, NULL, 0 },
    { "state", ZCTL_TEXT, offsetof(struct drive_row, d.state), ZCTL_SHOWN, NULL, 0 },
    { "why", ZCTL_TEXT, offsetof(struct drive_row, d.why), ZCTL_JSON_ONLY, NULL, 0 },
    { "waits_ms", ZCTL_U64, offsetof(struct drive_row, d.waits_ms), ZCTL_JSON_ONLY, NULL, 0 },
    { "read_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.read_bytes), ZCTL_JSON_ONLY, NULL, 0 },
    { "written_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.written_bytes), ZCTL_JSON_ONLY, NULL,
      0 },
    { "device", ZCTL_TEXT, offsetof(struct drive_row, d.device), ZCTL_JSON_ONLY, NULL, 0 },
    { "device_written_bytes", ZCTL_SIZE, offsetof(struct drive_row, device_written_bytes),
      ZCTL_JSON_ONLY, NULL, 0 },
    { "discard", ZCTL_TEXT, offsetof(struct drive_row, d.discard), ZCTL_JSON_ONLY, NULL, 0 },
    { "discarded_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.discarded_bytes), ZCTL_JSON_ONLY,
      NULL, 0 },
    { "holed_bytes", ZCTL_SIZE, offsetof(struct drive_row, d.holed_bytes), ZCTL_JSON_ONLY, NULL,
      0 },
};

/* Adds what the devices say. Data files on one device are compared with it together. */
static void rows_fill(struct drive_row *rows, const struct zc_drive_row *drives, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct zc_drive_row *d = &drives[i];
        struct zctl_device device;
        uint64_t ours = 0;

        for (size_t k = 0; k < n; k++)
            ours += strcmp(drives[k].device, d->device) == 0 ? drives[k].written_bytes : 0;
        zctl_device_look(d->device, true, &device);
        rows[i] = (struct drive_row){ .d = *d,
                                      .device_written_bytes = device.written_bytes,
                                      .wear = device.wear };
        rows[i].over = zctl_device_over(device.known && d->device_start_bytes > 0,
                                        device.written_bytes + 1 - d->device_start_bytes, ours);
    }
}

static int drive_list(struct zctl *z)
{
    struct drive_row rows[ZC_TOP_PATHS_MAX];
    struct zc_drive_row *drives = NULL;
    struct zctl_below below = { 0 };
    size_t n = 0;
    int rc = zctl_failed(z, zc_drives_wait(z->client, &drives, &n));

    if (rc == 0)
        rc = zctl_below_open(z, &below);
    n = n < ZC_TOP_PATHS_MAX ? n : ZC_TOP_PATHS_MAX;
    if (rc == 0)
        rows_fill(rows, drives, n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (*drives[i].why)
            (void)fprintf(below.out, "%llu: %s\n", (unsigned long long)drives[i].number,
                          drives[i].why);
    if (rc == 0)
        rc = zctl_print_below(z, columns, sizeof(columns) / sizeof(columns[0]), rows, n,
                              sizeof(rows[0]), &below);
    zc_rows_free(drives);
    return rc;
}

static int drive(struct zctl *z, int argc, char **argv)
{
    static const struct zb_opt number = { "N", ZB_OPT_COUNT, .size = sizeof(uint32_t), .min = 1,
                                          .max = ZC_TOP_PATHS_MAX };
    bool drain = argc == 2 && strcmp(argv[0], "drain") == 0;
    uint32_t n = 0;
    int rc;

    if (argc != 0 && !drain && (argc != 2 || strcmp(argv[0], "use") != 0))
        return zb_fail(&z->err, -EINVAL, "usage: zctl drive [drain N | use N]");
    rc = argc == 2 ? zb_opt_set(&number, &n, argv[1], "the number of a data file", &z->err) : 0;
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0 && argc == 0)
        return drive_list(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_drive_set_wait(z->client, n, drain));
    return rc < 0 || !z->json ? rc : zctl_print(z, NULL, 0, NULL, 0, 0);
}

const struct zctl_cmd zctl_drive = {
    .name = "drive",
    .args = "[drain N | use N]",
    .help = "show the drives, their speed and state; drain one, or use it again",
    .argc_min = 0,
    .argc_max = 2,
    .run = drive,
    ZCTL_COLUMNS(columns),
};
