/*
 * probe_kernel.c - probes of the kernel and the file systems, and of zshardd --check-config.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdalign.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define BLOCK 4096

void doctor_probe_uring(const struct doctor_machine *m, FILE *out)
{
    struct io_uring_params params = { .flags = 0 };

    (void)m;
    if (syscall(SYS_io_uring_setup, 8, &params) >= 0)
        (void)fputs("ok", out);
    else
        (void)fprintf(out, "!%s", strerror(errno));
}

/** Whether files of a directory can be read past the page cache: one that is there, or one without
 * a name, which is gone when this process ends. "?": this user may do neither. */
static const char *place_direct(const struct doctor_place *p)
{
    alignas(BLOCK) static char block[BLOCK];
    char file[PATH_MAX + 16];
    int fd, error;

    if (strcmp(p->type, "tmpfs") == 0)
        return "buffered"; /* the flag is accepted from Linux 6.6 on, and means nothing */
    (void)snprintf(file, sizeof(file), "%s/pages.zsd", p->path);
    fd = open(p->file ? file : p->there,
              p->file ? O_RDONLY | O_DIRECT | O_CLOEXEC : O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC,
              0600);
    if (fd < 0)
        return errno == EINVAL ? "buffered" : "?";
    error = pread(fd, block, sizeof(block), 0) < 0 ? errno : 0;
    (void)close(fd);
    return error ? "buffered" : "direct";
}

void doctor_probe_data(const struct doctor_machine *m, FILE *out)
{
    for (size_t i = 0; i < m->nplaces; i++) {
        const struct doctor_place *p = &m->places[i];
        struct statvfs vfs;

        if (p->network || statvfs(p->there, &vfs) < 0)
            (void)fputs("?\n", out);
        else
            (void)fprintf(out, "%llu %s\n", (unsigned long long)vfs.f_bavail * vfs.f_frsize,
                          place_direct(p));
        (void)fflush(out);
    }
}

/** zshardd next to this program, or "": there is none. */
static void daemon_program(char ret[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 16);
    char *slash;

    ret[n > 0 ? n : 0] = '\0';
    slash = strrchr(ret, '/');
    if (slash)
        (void)snprintf(slash, 16, "/zshardd");
    if (!slash || access(ret, X_OK) != 0)
        ret[0] = '\0';
}

void doctor_probe_config(const struct doctor_machine *m, FILE *out)
{
    char program[PATH_MAX], text[PROBE_TEXT];
    int fds[2], status = 1;
    ssize_t n;
    pid_t pid;

    daemon_program(program);
    if (program[0] == '\0' || m->conf_path[0] == '\0' || pipe(fds) < 0)
        return;
    pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* if this probe is late */
        (void)dup2(fds[1], STDERR_FILENO);
        (void)execl(program, program, "--config", m->conf_path, "--check-config", (char *)NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    n = read(fds[0], text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    if (pid > 0)
        (void)waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        (void)fputs("ok", out);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        (void)fprintf(out, "!%.*s", (int)strcspn(text, "\n"), text);
}
