/*
 * sysmem.h - the memory that is still available to this process, and the NUMA node of a device. The
 * default of host_bytes is a quarter of that memory.
 */
#ifndef ZB_SYSMEM_H
#define ZB_SYSMEM_H

#include <stdint.h>

#define ZB_HOST_SHARE 4u /* a daemon's host_bytes "auto" is the available memory divided by this */

/**
 * The minimum of the machine's available memory (MemAvailable) and the memory left in each memory
 * cgroup above us, version 1 or 2: its limit minus its usage, not counting reclaimable file cache.
 * Files that cannot be read are ignored. Blocks for reads of a few small files of /proc and /sys.
 *
 * @param root  prefix of every path: "" for this machine, a directory in tests
 */
uint64_t zb_sysmem_left(const char *root);

/**
 * The least limit of the memory cgroups above a process, version 1 or 2; UINT64_MAX, or more than
 * any machine has: none. The mounts are those that we see.
 *
 * @param pid  0: this process
 */
uint64_t zb_sysmem_limit(const char *root, int pid);

/** Resident memory of a process, shared pages and files included; 0: unknown. */
uint64_t zb_sysmem_resident(int pid);

/** The NUMA node, below 1024, that the kernel writes into the file numa_node of a device's folder in
 * sysfs. -1: there is no such file, the machine has one node, or the firmware does not say. Blocks. */
int zb_numa_node(const char *folder);

#endif
