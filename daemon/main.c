/*
 * main.c - zshardd: arguments and exit status. loop_end.c handles signals.
 *
 * EXIT STATUS
 *     0  ended in good order: by a signal, --help, --version, --check-config
 *     1  something failed, or the daemon ended before its operations were finished
 *     2  wrong options or configuration
 *     3  the socket or the data directory belongs to another daemon
 *     4  gpu_bytes is set, and there is no such GPU, or no driver
 *     5  the data directory belongs to another user, or others may write to it; or a file in it is
 *        a symbolic link
 *     6  --fsck found damage, for example a missing file
 *     7  a data file is missing
 *     8  --retire, --shrink: there is no room for the pages that move
 *     9  --retire: the first data file cannot be retired
 *     75 ended in good order, to be started again: an administrator asked for a restart
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/config/embedded.h"
#include "daemon/disk/datadir.h"
#include "daemon/loop.h"
#include "daemon/offline.h"
#include "daemon/os/notify.h"
#include "daemon/run/compute.h"
#include "daemon/run/events.h"
#include "daemon/startup.h"
#include "daemon/store/store.h"

#define STALL_MS 120000u /* a drive may stall for half a minute; TimeoutStopSec is longer */
#define MS_PER_S UINT64_C(1000)

enum {
    EXIT_GOOD = 0,
    EXIT_FAILED = 1,
    EXIT_CONFIG = 2,
    EXIT_IN_USE = 3,
    EXIT_NO_GPU = 4,
    EXIT_NOT_OURS = 5,
    EXIT_DAMAGED = 6,
    EXIT_MISSING = 7,
    EXIT_NO_ROOM = 8,
    EXIT_FIRST = 9,
    EXIT_RESTART = 75 /* RestartForceExitStatus of the unit */
};

/** Prints the one line on standard output. That it may be closed is no failure. */
static void say_ready(const struct zsd *daemon)
{
    const struct zsd_config *c = &daemon->config;

    (void)printf("ready socket=%s data=%s host_bytes=%llu nvme_bytes=%llu io=%s kernels=%s "
                 "threads=%u pid=%ld\n",
                 c->socket, c->data, (unsigned long long)c->host_bytes,
                 (unsigned long long)c->nvme_bytes,
                 daemon->engine ? zn_info(daemon->engine)->io : "none", daemon->kernels->name,
                 zsd_compute_threads(daemon->compute), (long)getpid());
    (void)fflush(stdout);
}

static int status_of_start(int rc)
{
    return rc == -EBUSY || rc == -EADDRINUSE     ? EXIT_IN_USE
           : rc == -ENODEV                       ? EXIT_NO_GPU
           : rc == -ENOMEDIUM                    ? EXIT_MISSING
           : rc == -EKEYREJECTED || rc == -ELOOP ? EXIT_NOT_OURS
                                                 : EXIT_FAILED;
}

/** Starts the daemon, runs the loop until its end, and shuts down. Returns the exit status. */
static int serve(struct zsd *daemon, struct zb_err *err)
{
    bool embedded = daemon->config.embedded;
    const struct zsd_patience patience = { .wait_ms = daemon->config.restart_wait_s * MS_PER_S,
                                           .stall_ms = STALL_MS,
                                           .limit_ms = daemon->config.stop_timeout_s * MS_PER_S };
    int rc = zsd_startup(daemon, err), status = EXIT_FAILED;

    if (rc == 0)
        rc = zsd_loop_end_on_signals(daemon, &patience, err);
    if (rc < 0) {
        status = status_of_start(rc);
        zsd_embedded_refused(embedded ? (int)daemon->config.ready_fd : -1, status, err->text);
    } else {
        zb_log(ZB_LOG_INFO, "serving", "socket=\"%s\" data=\"%s\" host=\"%s\" nvme=\"%s\"",
               daemon->config.socket, daemon->config.data,
               zb_size_text(daemon->config.host_bytes).s,
               zb_size_text(daemon->config.nvme_bytes).s);
        if (embedded)
            zsd_embedded_ready(daemon);
        else
            say_ready(daemon);
        if (embedded)
            zsd_loop_end_unused(daemon);
        zsd_loop_watchdog(daemon);
        rc = zsd_notify("READY=1");
        if (rc < 0)
            zb_log(ZB_LOG_WARN, "notify-failed", "why=\"%s\"", strerror(-rc));
        status = zsd_loop_run(daemon) ? EXIT_GOOD : EXIT_FAILED;
        if (status == EXIT_FAILED) {
            zb_log(ZB_LOG_INFO, "ended", "status=%d", status);
            zsd_shutdown_now(daemon, status);
        }
        if (daemon->restart && status == EXIT_GOOD)
            status = EXIT_RESTART;
        if (embedded && status == EXIT_GOOD && daemon->config.paths[0] == '\0' &&
            zsd_store_empty(daemon->core))
            zsd_datadir_forget(daemon->datadir); /* nothing is saved: frees the disk space */
    }
    zsd_shutdown(daemon);
    return status;
}

/** Works on data directories that no daemon uses. Returns the exit status. */
static int offline(struct zsd *daemon, struct zb_err *err)
{
    int rc = daemon->config.retire > 0   ? zsd_offline_retire(daemon, err)
             : daemon->config.shrink > 0 ? zsd_offline_shrink(daemon, err)
                                         : zsd_offline_fsck(daemon, err);

    return rc == 0                                ? EXIT_GOOD
           : rc == -EBADMSG || rc == -EMEDIUMTYPE ? EXIT_DAMAGED
           : rc == -ENOMEDIUM                     ? EXIT_MISSING
           : rc == -ELOOP                         ? EXIT_NOT_OURS
           : rc == -EBUSY                         ? EXIT_IN_USE
           : rc == -EINVAL                        ? EXIT_CONFIG
           : rc == -ENOSPC                        ? EXIT_NO_ROOM
           : rc == -EPERM                         ? EXIT_FIRST
           : rc == -EKEYREJECTED                  ? EXIT_NOT_OURS
                                                  : EXIT_FAILED;
}

/** If a standard descriptor were closed, a file that is opened later, even the data file, could get
 * its number, and log lines would be written into it. */
static void open_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

/** SIGPIPE and SIGXFSZ: a failed write returns an error code. The others would kill the process
 * before the loop handles them (loop_end.c). */
static void ignore_signals(void)
{
    static const int ignored[] = { SIGPIPE, SIGXFSZ, SIGALRM, SIGUSR1, SIGUSR2 };

    for (size_t i = 0; i < ZB_COUNT(ignored); i++)
        (void)signal(ignored[i], SIG_IGN);
}

/** Level and format of the log: 0, or the exit status. */
static int open_log(const struct zsd_config *config)
{
    struct zb_err err = { 0 };

    zb_log_set_level(config->log_level);
    if (zb_log_set_format(config->log_format, &zsd_log_program, &err) == 0)
        return EXIT_GOOD;
    zsd_embedded_refused(config->embedded ? (int)config->ready_fd : -1, EXIT_CONFIG, err.text);
    (void)fprintf(stderr, "zshardd: log_format = journal: %s\n", err.text);
    return EXIT_CONFIG;
}

int main(int argc, char **argv)
{
    static struct zsd daemon;
    const char *text = NULL;
    struct zb_err err = { 0 };
    int rc, status;

    open_standard_files();
    ignore_signals();
    zb_log_never_wait();
    rc = zsd_config_load(&daemon.config, argc, argv, &text, &err);
    if (rc < 0) {
        zsd_embedded_refused(zsd_embedded_fd(argc, argv), EXIT_CONFIG, err.text);
        (void)fprintf(stderr, "zshardd: %s\n", err.text);
        return EXIT_CONFIG;
    }
    if (rc >= 3) {
        status = open_log(&daemon.config);
        if (status != EXIT_GOOD)
            return status;
        status = offline(&daemon, &err);
        if (err.code < 0)
            (void)fprintf(stderr, "zshardd: %s\n", err.text);
        return status;
    }
    if (rc > 0) {
        (void)fputs(rc == 1 ? text : "zshardd: the configuration is fine\n", stdout);
        return fflush(stdout) == 0 ? EXIT_GOOD : EXIT_FAILED;
    }
    if (daemon.config.embedded && fcntl((int)daemon.config.ready_fd, F_GETFD) < 0) {
        (void)fprintf(
            stderr, "zshardd: --ready-fd %u: %s\n", daemon.config.ready_fd,
            strerror(errno)); /* checked here, before an opened file can get this number */
        return EXIT_CONFIG;
    }
    status = open_log(&daemon.config);
    if (status != EXIT_GOOD)
        return status;
    status = serve(&daemon, &err);
    if (err.code < 0)
        zb_log(ZB_LOG_ERROR, "failed", "why=\"%s\"", err.text);
    else
        zb_log(ZB_LOG_INFO, "ended", "status=%d", status);
    return status;
}
