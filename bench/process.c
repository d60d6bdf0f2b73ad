#include "bench/process.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"

#define WORDS_MAX    40
#define OPTIONS_MAX  1024
#define KEEPER_TRIES 50 /* 0.1 s apart: a daemon that is being killed may still create files */

/* In the child: executes a program of this one's folder. words[0] is the buffer for its path. */
_Noreturn static void exec_beside(const char *name, char *const *words, pid_t parent)
{
    ssize_t n = readlink("/proc/self/exe", words[0], PATH_MAX - 16);
    char *slash;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (n < 0 || getppid() != parent)
        _exit(127);
    words[0][n] = '\0';
    slash = strrchr(words[0], '/');
    (void)strcpy(slash ? slash + 1 : words[0], name);
    (void)execv(words[0], words);
    _exit(127);
}

/* Splits `options` in place, into words[at] and the following. */
static void words_cut(char **words, size_t at, char *options)
{
    for (char *word; at < WORDS_MAX && (word = strsep(&options, " ")) != NULL;)
        if (*word)
            words[at++] = word;
}

/* In the child. */
static void daemon_exec(const struct zbench_daemon *d, char *options, int out, pid_t parent)
{
    char program[PATH_MAX], socket[sizeof(d->socket)], data[sizeof(d->dir) + 8];
    char *words[WORDS_MAX + 1] = { program, (char[]){ "--socket" }, socket, (char[]){ "--data" },
                                   data };

    (void)snprintf(socket, sizeof(socket), "%s", d->socket);
    (void)snprintf(data, sizeof(data), "%s/data", d->dir);
    words_cut(words, 5, options);
    (void)dup2(out, STDOUT_FILENO);
    exec_beside("zshardd", words, parent);
}

int zbench_run(const char *name, const char *const *words, struct zb_err *err, const char *fmt, ...)
{
    char program[PATH_MAX], options[OPTIONS_MAX], *all[WORDS_MAX + 1] = { program };
    pid_t self = getpid(), pid;
    int status = 0;
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(options, sizeof(options), fmt, ap);
    va_end(ap);
    pid = fork();
    if (pid == 0) {
        size_t n = 1;

        for (; words[n - 1] && n < WORDS_MAX; n++)
            all[n] = strdup(words[n - 1]);
        words_cut(all, n, options);
        if (freopen("/dev/null", "w", stdout))
            exec_beside(name, all, self);
        _exit(127);
    }
    if (pid < 0)
        return zb_fail(err, -errno, "a process for %s: %m", name);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return zb_fail(err, -ECHILD, "%s (in the directory of this program) ended with %s %d", name,
                   WIFEXITED(status) ? "status" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int daemon_remove(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void dir_remove(const char *dir)
{
    (void)nftw(dir, daemon_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* In the child: removes the directory if the parent ends without doing so. Of the parent's
 * descriptors it keeps only output and the pipe that shows the parent's end. It is in a session of
 * its own, so signals of the terminal do not reach it. */
static void keeper_main(const char *dir, int fd)
{
    const struct timespec pause = { .tv_nsec = 100000000 };
    char byte;
    ssize_t n;

    (void)setsid();
    if (dup2(fd, STDIN_FILENO) < 0)
        _exit(EXIT_FAILURE);
    (void)close_range(STDERR_FILENO + 1, ~0U, 0);
    do
        n = read(STDIN_FILENO, &byte, 1);
    while (n > 0 || (n < 0 && errno == EINTR));
    for (int i = 0; i < KEEPER_TRIES && access(dir, F_OK) == 0; i++) {
        if (i > 0)
            (void)nanosleep(&pause, NULL);
        dir_remove(dir);
    }
    _exit(EXIT_SUCCESS);
}

static int keeper_start(struct zbench_daemon *d, struct zb_err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return zb_fail(err, -errno, "a pipe: %m");
    d->keeper_fd = fds[1];
    d->keeper = fork();
    if (d->keeper == 0)
        keeper_main(d->dir, fds[0]);
    (void)close(fds[0]);
    return d->keeper < 0 ? zb_fail(err, -errno, "a process that cleans up: %m") : 0;
}

static void keeper_end(struct zbench_daemon *d)
{
    if (d->keeper > 0) {
        (void)kill(d->keeper, SIGKILL);
        while (waitpid(d->keeper, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    d->keeper = 0;
    zb_close_fd(&d->keeper_fd);
}

int zbench_daemon_start(struct zbench_daemon *d, const char *parent, struct zb_err *err,
                        const char *fmt, ...)
{
    va_list ap;
    int rc;

    va_start(ap, fmt);
    rc = zbench_daemon_vstart(d, parent, err, fmt, ap);
    va_end(ap);
    return rc;
}

/* Starts the program in its directory, and waits until it is ready. */
int zbench_daemon_run(struct zbench_daemon *d, const char *words, struct zb_err *err)
{
    pid_t self = getpid();
    char line[512], options[OPTIONS_MAX];
    size_t len = 0;
    int fds[2];

    (void)snprintf(options, sizeof(options), "%s", words);
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
        return zb_fail(err, -ENOENT, "zshardd (in the directory of this program) did not start");
    return 0;
}

int zbench_daemon_vstart(struct zbench_daemon *d, const char *parent, struct zb_err *err,
                         const char *fmt, va_list ap)
{
    char options[OPTIONS_MAX];

    if ((size_t)snprintf(d->dir, sizeof(d->dir), "%s/zbench-XXXXXX", parent) >= sizeof(d->dir) ||
        !mkdtemp(d->dir)) {
        d->dir[0] = '\0';
        return zb_fail(err, -errno, "a temporary directory in '%s': %m", parent);
    }
    (void)snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
    (void)vsnprintf(options, sizeof(options), fmt, ap);
    return keeper_start(d, err) < 0 ? err->code : zbench_daemon_run(d, options, err);
}

/* Sends SIGTERM, and waits for the daemon's end. */
void zbench_daemon_stop(struct zbench_daemon *d)
{
    if (d->pid > 0) {
        (void)kill(d->pid, SIGTERM);
        while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    d->pid = 0;
    zb_close_fd(&d->out);
}

int zbench_daemon_again(struct zbench_daemon *d, struct zb_err *err, const char *fmt, ...)
{
    char options[OPTIONS_MAX];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(options, sizeof(options), fmt, ap);
    va_end(ap);
    zbench_daemon_stop(d);
    return zbench_daemon_run(d, options, err);
}

void zbench_daemon_end(struct zbench_daemon *d)
{
    zbench_daemon_stop(d);
    if (d->dir[0])
        dir_remove(d->dir);
    d->dir[0] = '\0';
    keeper_end(d);
}
