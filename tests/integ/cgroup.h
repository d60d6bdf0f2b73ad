/*
 * cgroup.h - a memory cgroup for a daemon, of version 1 or 2, whichever has the memory controller
 * here.
 *
 * MODEL. It is made inside our own cgroup, so that our limits apply to it, too. If that may not
 * have a child (version 2: it has processes), it is made next to ours. A process enters it between
 * fork and exec (zi_daemon.cgroup_procs), so everything that it touches is charged there: its own
 * memory, shared memory (memfd) that it is the first to touch, and the page cache of its files,
 * which is reclaimed before any process is killed.
 */
#ifndef ZINTEG_CGROUP_H
#define ZINTEG_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cg_memory {
    unsigned version; /* 1 or 2; 0: none was made */
    char dir[512];
    char procs[576]; /* a process that writes "0" there is moved into the cgroup */
};

/** Makes one with this limit, and without swap where that can be limited. False: why[] has the
 * reason. */
bool cg_memory_open(struct cg_memory *cg, uint64_t limit_bytes, char *why, size_t why_bytes);
/** The number of processes in it that were killed for memory. */
uint64_t cg_memory_kills(const struct cg_memory *cg);
/** How often it has reached its limit. */
uint64_t cg_memory_at_limit(const struct cg_memory *cg);
/** Its peak usage, page cache included; and its current usage without the page cache of files. */
uint64_t cg_memory_peak(const struct cg_memory *cg);
uint64_t cg_memory_unfiled(const struct cg_memory *cg);
/** Every process has left it. */
void cg_memory_close(struct cg_memory *cg);

#endif
