#include "real_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/folder.h"
#include "tests/ztest.h"

#define ARGS_MAX 24

static char folder[64];
static unsigned started;

static void run(const struct real_daemon *d, const char *const *more, int out)
{
    const char *args[ARGS_MAX + 1] = { "zshardd", "--socket",     d->socket,
                                       "--data",  d->data,        "--page-elems",
                                       "4096",    "--nvme-bytes", "64M" };
    size_t n = 9;

    while (*more && n < ARGS_MAX)
        args[n++] = *more++;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(out, STDOUT_FILENO);
    (void)execv(ZSHARDD, (char *const *)(uintptr_t)args);
    _exit(127);
}

/* Starts it, and returns when it is ready. */
static void start(struct real_daemon *d, const char *const *args)
{
    char line[512] = "";
    int out[2];
    FILE *f;

    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0)
        run(d, args, out[1]);
    (void)close(out[1]);
    f = fdopen(out[0], "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) && strncmp(line, "ready", 5) != 0)
        ;
    (void)fclose(f);
    if (strncmp(line, "ready", 5) != 0)
        fail_msg("zshardd did not start on '%s' with %s %s", d->data, args[0], args[1]);
}

void real_daemon_new(struct real_daemon *d, const char *const *args)
{
    (void)snprintf(d->socket, sizeof(d->socket), "%s/socket%u", folder, ++started);
    (void)snprintf(d->data, sizeof(d->data), "%s/data%u", folder, started);
    start(d, args);
}

void real_daemon_resume(struct real_daemon *d, const char *const *args)
{
    start(d, args);
}

void real_daemon_stop(struct real_daemon *d)
{
    (void)kill(d->pid, SIGTERM);
    real_daemon_ended(d);
}

void real_daemon_ended(struct real_daemon *d)
{
    int status = 0;

    assert_int_equal(waitpid(d->pid, &status, 0), d->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void real_daemon_kill(struct real_daemon *d)
{
    (void)kill(d->pid, SIGKILL);
    assert_int_equal(waitpid(d->pid, NULL, 0), d->pid);
}

int real_daemon_setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s/zshard-XXXXXX", ztest_folder());
    return mkdtemp(folder) ? 0 : -1;
}

int real_daemon_teardown(void **state)
{
    (void)state;
    return folder_remove(folder);
}
