/*
 * fork.h - closes descriptors that a child process must not inherit.
 *
 * MODEL. A socket stays open until the last process closes its copy. So the owner of a socket adds
 * a struct zb_fork to a list. In a child, right after fork(), the `child` function of each entry
 * runs: it closes the child's copies and records that the object belongs to the parent. Only fork()
 * does that, not vfork() or a direct clone().
 *
 * OWNERSHIP. The struct is the caller's. It must not move between zb_fork_watch() and
 * zb_fork_forget(). THREADS. Any. `child` runs in a process with one thread, and other threads may
 * have left memory in any state: it may only close descriptors and set flags. ERRORS. None: if the
 * handlers cannot be registered (no memory), a child keeps its copies.
 */
#ifndef ZB_FORK_H
#define ZB_FORK_H

#include "base/util.h"

struct zb_fork {
    struct zb_list node;
    void (*child)(struct zb_fork *f);
};

void zb_fork_watch(struct zb_fork *f, void (*child)(struct zb_fork *f));
/** Does nothing if f is zeroed (never watched). */
void zb_fork_forget(struct zb_fork *f);

#endif
