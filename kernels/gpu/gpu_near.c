/*
 * gpu_near.c - the NUMA node that a device is near. The kernel says it for each device on the PCI bus;
 * no library is needed for that. -1 in its file means that the machine has one node, or that the
 * firmware does not say.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/gpu_priv.h"

#define NODES_MAX 1024

int zk_gpu_near_pci(const char *pci, const char *address)
{
    char path[256], text[16] = "", *end;
    long node;
    FILE *f;

    if (!*address ||
        snprintf(path, sizeof(path), "%s/%s/numa_node", pci, address) >= (int)sizeof(path))
        return -1;
    f = fopen(path, "re");
    if (!f)
        return -1;
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    (void)fclose(f);
    node = strtol(text, &end, 10);
    return end != text && node >= 0 && node < NODES_MAX ? (int)node : -1;
}
