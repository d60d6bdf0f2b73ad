/*
 * drive_node.c - see drive_node.h. A block device is a folder deep in the tree of devices:
 * devices/pci0000:00/.../nvme/nvme0/nvme0n1/nvme0n1p2. The function of the PCI bus above it has the
 * file numa_node.
 */
#include "daemon/os/drive_node.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/sysmem.h"

int zsd_drive_node(uint64_t device, const char *sys)
{
    char link[PATH_MAX], folder[PATH_MAX], root[PATH_MAX], *slash;
    int node = ZSD_NO_NODE;

    (void)snprintf(link, sizeof(link), "%s/dev/block/%u:%u", sys, major(device), minor(device));
    if (device == 0 || !realpath(link, folder) || !realpath(sys, root))
        return ZSD_NO_NODE;
    while (node == ZSD_NO_NODE && strlen(folder) > strlen(root)) {
        node = zb_numa_node(folder);
        slash = strrchr(folder, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return node;
}
