#include "bench/process.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define WORDS_MAX 40

/* In the child: becomes a zshardd, or ends. */
static void daemon_exec(const struct zbench_daemon *d, const char *const *options, int out,
                        pid_t parent)
{
    char program[PATH_MAX], socket[sizeof(d->socket)], data[sizeof(d->dir) + 8];
    char *words[WORDS_MAX + 1] = { program, (char[]){ "--socket" }, socket, (char[]){ "--data" },
                                   data };
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 16);
    char *slash;
    size_t at = 5;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (n < 0 || getppid() != parent)
        _exit(127);
    program[n] = '\0';
    slash = strrchr(program, '/');
    (void)strcpy(slash ? slash + 1 : program, "zshardd");
    (void)snprintf(socket, sizeof(socket), "%s", d->socket);
    (void)snprintf(data, sizeof(data), "%s/data", d->dir);
    for (size_t i = 0; options[i] && at < WORDS_MAX; i++)
        words[at++] = strdup(options[i]);
    (void)dup2(out, STDOUT_FILENO);
    (void)execv(program, words);
    _exit(127);
}

int zbench_daemon_start(struct zbench_daemon *d, const char *parent, const char *const *options,
                        struct zb_err *err)
{
    pid_t self = getpid();
    char line[512];
    size_t len = 0;
    int fds[2];

    if ((size_t)snprintf(d->dir, sizeof(d->dir), "%s/zbench-XXXXXX", parent) >= sizeof(d->dir) ||
        !mkdtemp(d->dir)) {
        d->dir[0] = '\0';
        return zb_fail(err, -errno, "a temporary directory in '%s': %m", parent);
    }
    (void)snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
    if (pipe(fds) < 0)
        return zb_fail(err, -errno, "a pipe: %m");
    d->out = fds[0];
    d->pid = fork();
    if (d->pid == 0)
        daemon_exec(d, options, fds[1], self);
    (void)close(fds[1]);
    if (d->pid < 0)
        return zb_fail(err, -errno, "a process for zshardd: %m");
    while (len + 1 < sizeof(line) && !memchr(line, '\n', len)) {
        ssize_t n = read(d->out, line + len, sizeof(line) - 1 - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    line[len] = '\0';
    if (strncmp(line, "ready ", 6) != 0)
        return zb_fail(err, -ENOENT, "zshardd (beside this program) did not start");
    return 0;
}

static int daemon_remove(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void zbench_daemon_end(struct zbench_daemon *d)
{
    if (d->pid > 0) {
        (void)kill(d->pid, SIGTERM);
        while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    d->pid = 0;
    zb_close_fd(&d->out);
    if (d->dir[0])
        (void)nftw(d->dir, daemon_remove, 8, FTW_DEPTH | FTW_PHYS);
    d->dir[0] = '\0';
}
