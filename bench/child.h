/*
 * child.h - a child process that does a part of the work, connected by a pair of sockets. It ends
 * with this process.
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

/** Forks; the child calls run() and exits with success. The parent's stdio buffers are flushed
 * before. On failure nothing is left. */
int zbench_child_start(struct zbench_child *c, void (*run)(int fd, void *arg), void *arg,
                       struct zb_err *err);
/** Kills the child, and waits for its end. ZBENCH_NO_CHILD is allowed. */
void zbench_child_end(struct zbench_child *c);
/** Closes the socket, which tells the child to end, and waits for that. */
void zbench_child_leave(struct zbench_child *c);

#endif
