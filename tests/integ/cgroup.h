/*
 * cgroup.h - a memory cgroup for a daemon, of version 1 or 2, whichever has the memory controller here.
 *
 * MODEL. It is made below the one that we are in, so that whatever limits us limits it, too; or, where
 * that may not have another one below it (version 2: it has processes), beside it. A
 * process puts itself into it between fork and exec (zi_daemon.cgroup_procs), so everything that it
 * touches is charged there: its own memory, shared memory (memfd) by who touches it first, and the page
 * cache of its files, which is given up before anybody is killed.
 */
#ifndef ZINTEG_CGROUP_H
#define ZINTEG_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cg_memory {
    unsigned version; /* 1 or 2; 0: none was made */
    char dir[512];
    char procs[576]; /* who writes "0" there is in it */
};

/** Makes one with this limit, without swap where that can be limited. False: why[] says why not. */
bool cg_memory_open(struct cg_memory *cg, uint64_t limit_bytes, char *why, size_t why_bytes);
/** Processes that were killed in it for memory. */
uint64_t cg_memory_kills(const struct cg_memory *cg);
/** How often it was at its limit. */
uint64_t cg_memory_at_limit(const struct cg_memory *cg);
/** The most that it had, page cache included; and what it has now without the page cache of files. */
uint64_t cg_memory_peak(const struct cg_memory *cg);
uint64_t cg_memory_unfiled(const struct cg_memory *cg);
/** Nobody is in it any more. */
void cg_memory_close(struct cg_memory *cg);

#endif
