#include "base/device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SECTOR_BYTES 512u             /* the unit of sysfs, on every device */
#define UNIT_BYTES   UINT64_C(512000) /* of SMART: a thousand sectors */
#define GET_LOG_PAGE 2u
#define LOG_SMART    2u
#define ALL_SPACES   UINT32_MAX

/* Opens a file of the device in sysfs; NULL and errno. */
static FILE *device_file(const char *device, const char *sys, const char *name)
{
    char path[256];
    unsigned maj, min;

    if (sscanf(device, "%u:%u", &maj, &min) != 2) {
        errno = EINVAL;
        return NULL;
    }
    (void)snprintf(path, sizeof(path), "%s/dev/block/%u:%u/%s", sys, maj, min, name);
    return fopen(path, "re");
}

int zb_device_use(const char *device, const char *sys, struct zb_device_use *ret)
{
    unsigned long long written, discarded = 0;
    FILE *file = device_file(device, sys, "stat");
    int n;

    if (!file)
        return errno == EINVAL ? -EINVAL : -ENOENT;
    n = fscanf(file, "%*u %*u %*u %*u %*u %*u %llu %*u %*u %*u %*u %*u %*u %llu", &written,
               &discarded);
    (void)fclose(file);
    if (n < 1)
        return -EBADMSG;
    *ret = (struct zb_device_use){ .written_bytes = written * SECTOR_BYTES,
                                   .discarded_bytes = discarded * SECTOR_BYTES };
    return 0;
}

/* A counter of 128 bits, in units; at most UINT64_MAX bytes. */
static uint64_t smart_bytes(const uint8_t *at)
{
    uint64_t units = 0;

    for (unsigned i = 16; i-- > 0;) {
        if (units > UINT64_MAX / UNIT_BYTES >> 8)
            return UINT64_MAX;
        units = units << 8 | at[i];
    }
    return units > UINT64_MAX / UNIT_BYTES ? UINT64_MAX : units * UNIT_BYTES;
}

int zb_smart_parse(const uint8_t page[ZB_SMART_BYTES], struct zb_smart *ret)
{
    bool same = page[0] == 0 || page[0] == 0xff;

    for (unsigned i = 1; i < ZB_SMART_BYTES && same; i++)
        same = page[i] == page[0];
    if (same)
        return -EBADMSG;
    *ret = (struct zb_smart){ .warning = page[0],
                              .spare = page[3],
                              .spare_least = page[4],
                              .percentage_used = page[5],
                              .read_bytes = smart_bytes(page + 32),
                              .written_bytes = smart_bytes(page + 48) };
    return 0;
}

/* The node of an NVMe drive in /dev. 0 or a negative errno. */
static int smart_node(const char *device, char *ret, size_t size)
{
    FILE *file = device_file(device, "/sys", "uevent");
    char line[128], name[64] = "";

    if (!file)
        return errno == EINVAL ? -EINVAL : -ENODEV;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "DEVNAME=%63s", name) == 1)
            break;
    (void)fclose(file);
    if (strncmp(name, "nvme", 4) != 0)
        return -ENODEV;
    (void)snprintf(ret, size, "/dev/%s", name);
    return 0;
}

int zb_smart_read(const char *device, struct zb_smart *ret)
{
    uint8_t page[ZB_SMART_BYTES] = { 0 };
    struct nvme_admin_cmd cmd = {
        .opcode = GET_LOG_PAGE,
        .nsid = ALL_SPACES,
        .addr = (uintptr_t)page,
        .data_len = sizeof(page),
        .cdw10 = (sizeof(page) / 4 - 1) << 16 | LOG_SMART,
    };
    char node[96];
    int rc = smart_node(device, node, sizeof(node)), fd;

    if (rc < 0)
        return rc;
    fd = open(node, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rc = ioctl(fd, NVME_IOCTL_ADMIN_CMD, &cmd);
    rc = rc < 0 ? -errno : rc > 0 ? -EIO : 0; /* above 0: the status of the drive */
    (void)close(fd);
    return rc < 0 ? rc : zb_smart_parse(page, ret);
}
