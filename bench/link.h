/*
 * link.h - a real link between two processes, of a limited bandwidth: a pair of virtual Ethernet
 * devices, each in a network namespace of its own, and `tc`'s token bucket on both.
 *
 *     parent                                         child
 *     zbench_link_enter()
 *     fork()                                         zbench_link_child()   waits for the parent
 *     zbench_link_parent()                           (returns)
 *
 * It needs `ip` and `tc` (iproute2) and the right to make namespaces; the link disappears with its
 * processes.
 */
#ifndef ZBENCH_LINK_H
#define ZBENCH_LINK_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define ZBENCH_LINK_ADDRESS "192.0.2.1" /* of the parent: from a range reserved for documentation */

struct zbench_link {
    uint64_t rate;         /* bytes a second, each way */
    int ready[2], made[2]; /* pipes: the child is in its namespace; the parent has made the link */
};

/** Moves this process permanently to an empty network namespace. */
int zbench_link_enter(struct zbench_link *l, struct zb_err *err);
int zbench_link_child(struct zbench_link *l, struct zb_err *err);
int zbench_link_parent(struct zbench_link *l, pid_t child, struct zb_err *err);

#endif
