/*
 * near.h - memory on the NUMA node that is near a GPU.
 *
 * MODEL. numa.h sets one policy for all memory of the daemon. Ranges that the copies of one GPU use
 * get a policy of their own before they are allocated: their node is preferred. It is only a
 * preference. If the node is full, the kernel takes another one. If the kernel refuses the policy,
 * because of the container or because there is no such node, the memory is where it would have been
 * otherwise. So no allocation fails that would have worked without this.
 */
#ifndef ZSD_NEAR_H
#define ZSD_NEAR_H

#include <stdbool.h>
#include <stdint.h>

#define ZSD_NEAR_NODES 1024 /* numbers of nodes are below this one */
#define ZSD_NEAR_NONE  (-1) /* no node is near, or none is known */

struct zsd_numa;

/** Prefers a node for whole pages that were not allocated yet. 0 or a negative errno. */
typedef int zsd_near_fn(void *arg, void *memory, uint64_t bytes, int node);

struct zsd_near {
    bool on;
    const struct zsd_numa *numa; /* the nodes that may be used; NULL: all */
    zsd_near_fn *bind;           /* NULL: the kernel's */
    void *arg;                   /* of bind */
};

/** Whether memory is placed on this node: node is one, and the daemon uses it. */
bool zsd_near_uses(const struct zsd_near *n, int node);
/** Prefers the node for the whole pages of a range that was not allocated yet. Any thread. 0; or why
 * the kernel refuses: nothing has changed then. */
int zsd_near_bind(const struct zsd_near *n, void *memory, uint64_t bytes, int node);

#endif
