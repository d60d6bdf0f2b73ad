/*
 * drive_node.h - the socket (NUMA node) that a drive is attached to.
 */
#ifndef ZSD_DRIVE_NODE_H
#define ZSD_DRIVE_NODE_H

#include <stdint.h>

#define ZSD_NO_NODE (-1)

/** The NUMA node of a block device (a dev_t), as sysfs, mounted at `sys`, says: that of the nearest
 * device above it which has one. ZSD_NO_NODE: it says none, as for RAID, device mapper, file systems
 * without a single device, and machines of one node. Blocks. */
int zsd_drive_node(uint64_t device, const char *sys);

#endif
