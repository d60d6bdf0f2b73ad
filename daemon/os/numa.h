/*
 * numa.h - which nodes of a NUMA machine the daemon computes on and takes memory from.
 *
 * MODEL. Decided once, before the first thread. Memory is a policy of the process, which every
 * thread inherits: arenas, page buffers, gradients and state come from the nodes of the policy,
 * whichever thread touches them first; clients map memory that is already there. One node is
 * preferred; several are interleaved, so that all of their controllers work, on whichever node a
 * page's worker runs. Both spill: when the nodes are full, memory comes from other nodes, so the
 * policy makes no allocation fail. Each worker runs on the CPUs of one node; a node has as many
 * workers as CPUs.
 *
 * WHERE MEMORY IS: the kernel is asked on request (zsd_numa_survey()).
 */
#ifndef ZSD_NUMA_H
#define ZSD_NUMA_H

#include <sched.h>
#include <stdint.h>

#include "base/err.h"

#define ZSD_NODES_MAX 64u

struct zsd_numa;

/** A range of memory, and how much of it is on which node: what was touched. */
struct zsd_numa_area {
    const void *base;
    uint64_t bytes;
};

struct zsd_numa_use {
    uint64_t on[ZSD_NODES_MAX];
    uint64_t chosen, spilled; /* on the requested nodes, and on others */
};

/**
 * option is "off", "auto" (the nodes that have CPUs of `cpus`) or a list of nodes ("0-1,3"); cpus
 * as in zsd_compute_new(). Sets the memory policy of the calling thread. 0; -EINVAL: a list
 * without nodes, or with one without memory; an error of the kernel if it refuses the policy for a
 * list (for auto that is only logged): err; -ENOMEM. With "off" *ret is NULL.
 */
int zsd_numa_open(struct zsd_numa **ret, const char *option, const char *cpus, struct zb_err *err);
/** Resets the calling thread's policy. NULL is fine. */
void zsd_numa_close(struct zsd_numa *n);
/** "off", "auto", or a list that can be read. */
int zsd_numa_check(const char *option, struct zb_err *err);

/** The CPUs of each chosen node that has usable ones: *ret_n sets; 0: nothing is bound. */
const cpu_set_t *zsd_numa_cpus(const struct zsd_numa *n, unsigned *ret_n);
/** The decision, for people. */
const char *zsd_numa_text(const struct zsd_numa *n);

/** Any thread, while the areas may come and go; an area that is gone counts nothing. Up to 256 MiB
 * are counted exactly, more of one area by 65,536 pages of it. */
void zsd_numa_survey(const struct zsd_numa *n, const struct zsd_numa_area *areas, unsigned nareas,
                     struct zsd_numa_use *ret);
/** As "0:4096 1:0": each node and its bytes. */
void zsd_numa_use_text(const struct zsd_numa *n, const struct zsd_numa_use *use, char *text,
                       unsigned size);

#endif
