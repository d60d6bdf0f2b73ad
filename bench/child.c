#include "bench/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

int zbench_child_start(struct zbench_child *c, void (*run)(int fd, void *arg), void *arg,
                       struct zb_err *err)
{
    int fds[2], rc = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return zb_fail(err, -errno, "a pair of sockets: %m");
    (void)fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(fds[0]);
        run(fds[1], arg);
        _exit(EXIT_SUCCESS);
    }
    if (c->pid < 0)
        rc = zb_fail(err, -errno, "start a process: %m");
    (void)close(fds[1]);
    c->fd = fds[0];
    if (rc < 0) {
        c->pid = 0;
        zb_close_fd(&c->fd);
    }
    return rc;
}

static void child_wait(struct zbench_child *c)
{
    while (c->pid > 0 && waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    c->pid = 0;
}

void zbench_child_end(struct zbench_child *c)
{
    if (c->pid > 0)
        (void)kill(c->pid, SIGKILL);
    zb_close_fd(&c->fd);
    child_wait(c);
}

void zbench_child_leave(struct zbench_child *c)
{
    if (c->fd >= 0)
        (void)shutdown(c->fd, SHUT_RDWR); /* children forked later have inherited this end */
    zb_close_fd(&c->fd);
    child_wait(c);
}
