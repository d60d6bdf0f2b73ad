/*
 * fork.h - what a process that forks must not leave open in its child.
 *
 * MODEL. A socket ends with the last process that holds a copy of it. So whoever has one puts a
 * struct zb_fork into a list; in a child, right after fork(), the `child` of each runs: it closes
 * the child's copies and notes that what it belongs to is the parent's. Only fork() does that, not
 * vfork() nor clone() by hand.
 *
 * OWNERSHIP. The struct is the caller's, and stays where it is from zb_fork_watch() until
 * zb_fork_forget().
 * THREADS. Any. `child` runs in a process with one thread whose memory may be in the middle of
 * anything: it may close descriptors and set flags, nothing else.
 * ERRORS. None: where the handlers cannot be registered (no memory), a child keeps its copies.
 */
#ifndef ZB_FORK_H
#define ZB_FORK_H

#include "base/util.h"

struct zb_fork {
    struct zb_list node;
    void (*child)(struct zb_fork *f);
};

void zb_fork_watch(struct zb_fork *f, void (*child)(struct zb_fork *f));
/** Of one that was never watched (zeroed), too. */
void zb_fork_forget(struct zb_fork *f);

#endif
