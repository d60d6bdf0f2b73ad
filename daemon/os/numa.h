/*
 * numa.h - which nodes of a NUMA machine the daemon computes on and takes memory from.
 *
 * MODEL. Decided once, before the first thread starts. The memory policy is set on the first
 * thread, and all others inherit it. So arenas, page buffers, gradients and state come from the
 * nodes of the policy, whichever thread touches them first; clients map memory that is already
 * allocated. A single node is preferred. Several nodes are interleaved, so that all of their memory
 * controllers are used, on whichever node a page's worker runs. Both spill: if the nodes are full,
 * memory comes from other nodes, so the policy makes no allocation fail. Each worker runs on the
 * CPUs of one node; a node has as many workers as CPUs.
 *
 * zsd_numa_survey() asks the kernel where memory is.
 */
#ifndef ZSD_NUMA_H
#define ZSD_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define ZSD_NODES_MAX 64u

struct zsd_numa;

/** A range of memory. */
struct zsd_numa_area {
    const void *base;
    uint64_t bytes;
};

struct zsd_numa_use {
    uint64_t on[ZSD_NODES_MAX]; /* bytes on each node; only touched memory counts */
    uint64_t chosen, spilled;   /* on the chosen nodes, and on others */
};

/**
 * Chooses nodes, and sets the memory policy of the calling thread. option is "off", "auto" (the
 * nodes that have CPUs of `cpus`) or a list of nodes ("0-1,3"); cpus is as in zsd_compute_new(). 0;
 * -EINVAL: not a list, or one with nodes that this process may not use, or none with a usable CPU;
 * -ENOMEM; an error of the kernel, if it refuses the policy for a list (for auto that is only
 * logged). err has the message. With "off" *ret is NULL.
 */
int zsd_numa_open(struct zsd_numa **ret, const char *option, const char *cpus, struct zb_err *err);
/** Resets the calling thread's policy. NULL is fine. */
void zsd_numa_close(struct zsd_numa *n);
/** Checks the option: "off", "auto", or a well-formed list. 0 or -EINVAL. */
int zsd_numa_check(const char *option, struct zb_err *err);

/** The usable CPUs of each chosen node that has any: *ret_n sets; 0: nothing is bound. */
const cpu_set_t *zsd_numa_cpus(const struct zsd_numa *n, unsigned *ret_n);
/** Whether memory comes from this node. */
bool zsd_numa_has(const struct zsd_numa *n, unsigned node);
/** A description of the decision. */
const char *zsd_numa_text(const struct zsd_numa *n);

/** Counts the bytes of the areas by node. Any thread; areas may be unmapped meanwhile, and then
 * count as nothing. Areas of up to 256 MiB are counted exactly, larger ones by at most 65,536
 * sample pages. */
void zsd_numa_survey(const struct zsd_numa *n, const struct zsd_numa_area *areas, unsigned nareas,
                     struct zsd_numa_use *ret);
/** Formats `use`, as "0:4096 1:0": each node and its bytes. */
void zsd_numa_use_text(const struct zsd_numa *n, const struct zsd_numa_use *use, char *text,
                       unsigned size);

#endif
