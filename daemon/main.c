/*
 * main.c - zshardd: arguments, signals, exit status.
 *
 * THE END. SIGTERM, SIGINT or SIGHUP: nobody is accepted any more, the core refuses new work and
 * finishes what is in progress, answers are sent, then everything goes down. That is bounded by
 * DRAIN_MS; a second signal ends it at once.
 *
 * EXIT STATUS
 *     0  ended in good order: by a signal, --help, --version, --check-config
 *     1  something failed, or the end came before what was in progress was finished
 *     2  wrong options or configuration
 *     3  the socket or the data directory belongs to another daemon
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "daemon/compute.h"
#include "daemon/core.h"
#include "daemon/loop_priv.h"
#include "daemon/notify.h"
#include "daemon/server.h"
#include "daemon/startup.h"

#define DRAIN_MS      30000u /* for what is in progress */
#define DRAIN_SEND_MS 1000u  /* and then for answers to clients that read slowly */
#define DRAIN_STEP_MS 10u

enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_CONFIG = 2, EXIT_IN_USE = 3 };

static const int end_signals[] = { SIGTERM, SIGINT, SIGHUP };

struct ending {
    struct zsd *daemon;
    uv_signal_t signals[ZB_COUNT(end_signals)];
    uv_timer_t timer;
    bool begun;
    bool told; /* the ranks of every job */
    uint64_t deadline_ns;
    int status;
};

static void tell_manager(const char *state)
{
    int rc = zsd_notify(state);

    if (rc < 0)
        zb_log(ZB_LOG_WARN, "notify-failed", "why=\"%s\"", strerror(-rc));
}

/** Are we done, or out of time? */
static void ending_on_timer(uv_timer_t *timer)
{
    struct ending *e = timer->data;
    uint64_t now = zb_now_ns();
    unsigned busy = zsd_core_busy(e->daemon);
    size_t unsent = zsd_server_unsent(e->daemon);

    if (busy == 0)
        e->deadline_ns = zb_min_u64(e->deadline_ns, now + DRAIN_SEND_MS * UINT64_C(1000000));
    if (busy == 0 && !e->told) {
        e->told = true;
        zsd_core_farewell(e->daemon);
        return; /* what that began, and what it said, is waited for like all else */
    }
    if ((busy > 0 || unsent > 0) && now < e->deadline_ns)
        return;
    if (busy > 0) {
        zb_log(ZB_LOG_WARN, "end-forced", "operations=%u waited_ms=%u", busy, DRAIN_MS);
        e->status = EXIT_FAILED;
    }
    zsd_loop_stop(e->daemon);
}

static void ending_on_signal(uv_signal_t *handle, int signum)
{
    struct ending *e = handle->data;

    zb_log(ZB_LOG_INFO, "signal", "name=%s operations=%u clients=%u", strsignal(signum),
           zsd_core_busy(e->daemon), e->daemon->clients);
    if (e->begun) {
        if (zsd_core_busy(e->daemon) > 0)
            e->status = EXIT_FAILED;
        zsd_loop_stop(e->daemon);
        return;
    }
    e->begun = true;
    e->deadline_ns = zb_now_ns() + DRAIN_MS * UINT64_C(1000000);
    tell_manager("STOPPING=1");
    zsd_server_drain(e->daemon);
    zsd_core_drain(e->daemon);
    (void)uv_timer_start(&e->timer, ending_on_timer, 0, DRAIN_STEP_MS);
}

static int ending_init(struct ending *e, struct zsd *daemon, struct zb_err *err)
{
    uv_loop_t *uv = &daemon->loop->uv;
    int rc = 0;

    *e = (struct ending){ .daemon = daemon, .status = EXIT_GOOD };
    (void)uv_timer_init(uv, &e->timer); /* only fills memory */
    e->timer.data = e;
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(end_signals); i++) {
        rc = uv_signal_init(uv, &e->signals[i]);
        if (rc < 0)
            break;
        e->signals[i].data = e;
        rc = uv_signal_start(&e->signals[i], ending_on_signal, end_signals[i]);
    }
    return rc < 0 ? zb_fail(err, rc, "watch signals: %m") : 0;
}

/** The one line on standard output. Who started us may have closed it: that is no failure. */
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
    tell_manager("READY=1");
}

static int serve(struct zsd *daemon, struct zb_err *err)
{
    struct ending ending;
    int status = EXIT_FAILED;
    int rc = zsd_startup(daemon, err);

    if (rc == -EBUSY || rc == -EADDRINUSE)
        return EXIT_IN_USE;
    if (rc < 0)
        return EXIT_FAILED;
    if (ending_init(&ending, daemon, err) == 0) {
        zb_log(ZB_LOG_INFO, "serving", "socket=\"%s\" data=\"%s\" host=\"%s\" nvme=\"%s\"",
               daemon->config.socket, daemon->config.data,
               zb_size_text(daemon->config.host_bytes).s,
               zb_size_text(daemon->config.nvme_bytes).s);
        say_ready(daemon);
        zsd_loop_run(daemon);
        status = ending.status;
    }
    zsd_shutdown(daemon); /* closes the handles of `ending` with the loop */
    return status;
}

/** Started with one of these closed, the next file that we open, the data file even, would be
 *  where the log goes. */
static void open_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

int main(int argc, char **argv)
{
    static struct zsd daemon;
    const char *text = NULL;
    struct zb_err err = { 0 };
    int rc, status;

    open_standard_files();
    rc = zsd_config_load(&daemon.config, argc, argv, &text, &err);
    if (rc < 0) {
        (void)fprintf(stderr, "zshardd: %s\n", err.text);
        return EXIT_CONFIG;
    }
    if (rc > 0) {
        (void)fputs(rc == 1 ? text : "zshardd: the configuration is fine\n", stdout);
        return fflush(stdout) == 0 ? EXIT_GOOD : EXIT_FAILED;
    }
    zb_log_set_level(daemon.config.log_level);
    (void)signal(SIGPIPE, SIG_IGN);
    status = serve(&daemon, &err);
    if (err.code < 0)
        zb_log(ZB_LOG_ERROR, "failed", "why=\"%s\"", err.text);
    else
        zb_log(ZB_LOG_INFO, "ended", "status=%d", status);
    return status;
}
