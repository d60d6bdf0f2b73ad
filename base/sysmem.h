/*
 * sysmem.h - the memory that is still available to us. The default of host_bytes is a quarter of it.
 */
#ifndef ZB_SYSMEM_H
#define ZB_SYSMEM_H

#include <stdint.h>

#define ZB_HOST_SHARE 4u /* a daemon's host_bytes "auto" is one part of so many of what is left */

/**
 * The least of what the machine has available (MemAvailable) and what each memory cgroup above us,
 * version 1 or 2, leaves: its limit less what it uses, where file cache that can go does not count.
 * What cannot be read does not limit. Blocks for a few small files of /proc and /sys.
 *
 * @param root  put before every path: "" for this machine, a directory in tests
 */
uint64_t zb_sysmem_left(const char *root);

/** What a process has in memory of its own and of what it shares, files included; 0: it cannot be read. */
uint64_t zb_sysmem_resident(int pid);

#endif
