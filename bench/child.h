/*
 * child.h - a process of ours that does a part of the work, at the other end of a pair of sockets. It
 * ends with this one.
 */
#ifndef ZBENCH_CHILD_H
#define ZBENCH_CHILD_H

#include <sys/types.h>

#include "base/err.h"

struct zbench_child {
    pid_t pid; /* 0: none */
    int fd;    /* -1: none */
};

#define ZBENCH_NO_CHILD ((struct zbench_child){ .fd = -1 })

/** Forks; the child calls run() and exits with success. What the parent has in its buffers is written
 * before. On failure nothing is left. */
int zbench_child_start(struct zbench_child *c, void (*run)(int fd, void *arg), void *arg,
                       struct zb_err *err);
/** Kills it, and waits for its end. ZBENCH_NO_CHILD is fine. */
void zbench_child_end(struct zbench_child *c);
/** Closes the socket, which it sees, and waits for its end. */
void zbench_child_leave(struct zbench_child *c);

#endif
