/*
 * gpu_near.c - the NUMA node that a device is near. The kernel says it for each device on the PCI bus;
 * no library is needed for that.
 */
#include <stdio.h>

#include "base/sysmem.h"
#include "kernels/gpu/gpu_priv.h"

int zk_gpu_near_pci(const char *pci, const char *address)
{
    char folder[256];

    if (!*address || snprintf(folder, sizeof(folder), "%s/%s", pci, address) >= (int)sizeof(folder))
        return -1;
    return zb_numa_node(folder);
}
