/*
 * device.c - what a block device of a data file says: zctl and the daemon are on one machine.
 */
#include "base/device.h"

#include <stdio.h>

#include "client/zctl/base/zctl.h"

void zctl_device_look(const char *device, bool smart, struct zctl_device *ret)
{
    struct zb_device_use use;
    struct zb_smart page;

    *ret = (struct zctl_device){ .wear = -1 };
    (void)snprintf(ret->name, sizeof(ret->name), "%s", device);
    if (zb_device_use(device, "/sys", &use) == 0) {
        ret->known = true;
        ret->written_bytes = use.written_bytes;
    }
    if (smart && zb_smart_read(device, &page) == 0)
        ret->wear = page.percentage_used / 100.0;
}

double zctl_device_over(bool known, uint64_t device_bytes, uint64_t our_bytes)
{
    return known && our_bytes > 0 ? (double)device_bytes / (double)our_bytes : -1;
}
