/*
 * device.h - what a block device tells about itself: bytes written, by the kernel, and its wear, by
 * NVMe SMART. Blocks; not for a loop.
 *
 * A device is named as sysfs does, "major:minor".
 */
#ifndef ZB_DEVICE_H
#define ZB_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

/** What everybody wrote to a device, and discarded there, since the machine was started. */
struct zb_device_use {
    uint64_t written_bytes, discarded_bytes; /* discarded: 0 before Linux 4.18 */
};

/** sys: "/sys", or another folder in tests. 0; -EINVAL: no name; -ENOENT, -EBADMSG: not known. */
int zb_device_use(const char *device, const char *sys, struct zb_device_use *ret);

#define ZB_SMART_BYTES 512u

/** A part of the log page SMART / Health Information (NVM Express, log page 2). */
struct zb_smart {
    unsigned warning;         /* bits of the critical warning; 0: none */
    unsigned percentage_used; /* of the life that the vendor expects; may exceed 100; 255 at most */
    unsigned spare, spare_least; /* percent of the spare blocks that are left; the threshold */
    uint64_t read_bytes, written_bytes; /* by hosts, over its life; UINT64_MAX: that or more */
};

/** Reads the page. 0; -EBADMSG: it is all zeros or all ones, as some devices answer that have none. */
int zb_smart_parse(const uint8_t page[ZB_SMART_BYTES], struct zb_smart *ret);

/** Asks an NVMe drive. Needs root. 0; -EINVAL, -ENODEV: no NVMe drive; -EACCES, -EPERM; -EIO: it
 * refuses; -EBADMSG. */
int zb_smart_read(const char *device, struct zb_smart *ret);

#endif
