/*
 * loop_end.c - the orderly end: from the first signal until the loop stops.
 *
 *     SIGHUP          a daemon with a configuration file reads it again (reload/reload.h)
 *     first signal    (or an administrator asks for a restart, op/restart.c; or an embedded
 *                     daemon is unused, loop_linger.c) no more clients are
 *                     accepted. Ranks that attach again after a restart are told
 *     these have left, or wait_ms has passed: the core drains, which is checked every END_STEP_MS
 *     nothing busy    durable jobs commit their newest step, and the ranks of every job are
 *                     notified; then clients that read slowly have ZSD_SEND_MS for their answers
 *     nothing unsent, the end of patience, or a second signal: the loop stops
 *
 * PATIENCE. A commit takes as long as a job is large. As long as operations finish, the end goes
 * on, and the service manager is asked for more time.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core_life.h"
#include "daemon/loop_priv.h"
#include "daemon/net/server.h"
#include "daemon/os/notify.h"
#include "daemon/reload/reload.h"

#define END_STEP_MS  10u
#define END_NOTIFY_S 1u  /* interval of reports to the service manager */
#define END_EXTEND_S 30u /* how much longer it should wait after each of them */
#define END_LOG_S    10u
#define END_TEXT_MAX 256u
#define NS_PER_MS    UINT64_C(1000000)
#define NS_PER_S     UINT64_C(1000000000)
#define MS_PER_S     UINT64_C(1000)
#define US_PER_S     1000000u

static const int end_signals[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT };
static const int ignored_signals[] = { SIGALRM, SIGUSR1,
                                       SIGUSR2 }; /* by default they would end the process */

static void end_now(struct zsd *daemon)
{
    struct zsd_ending *e = &daemon->loop->ending;
    unsigned busy = zsd_core_busy(daemon);

    e->forced = busy > 0;
    if (e->forced)
        zb_log(ZB_LOG_WARN, "end-forced", "operations=%u", busy);
    if (!e->told) { /* forced: send as much as possible at once */
        zsd_core_farewell(daemon);
        zsd_server_flush(daemon);
    }
    uv_stop(&daemon->loop->uv);
}

static void end_notify(const char *state)
{
    int rc = zsd_notify(state);

    if (rc < 0)
        zb_log(ZB_LOG_WARN, "notify-failed", "why=\"%s\"", strerror(-rc));
}

/* Reports what the end waits for: to the service manager, whose patience it extends, and to the
 * log. */
static void end_report(struct zsd *daemon, unsigned busy, uint64_t now)
{
    struct zsd_ending *e = &daemon->loop->ending;
    char what[END_TEXT_MAX], state[END_TEXT_MAX + 128];

    if (now < e->notify_ns && now < e->log_ns)
        return;
    zsd_core_ending_text(daemon, what, sizeof(what));
    if (now >= e->log_ns) {
        zb_log(ZB_LOG_INFO, "ending", "seconds=%llu operations=%u why=\"%s\"",
               (unsigned long long)((now - e->begun_ns) / NS_PER_S), busy, what);
        e->log_ns = now + END_LOG_S * NS_PER_S;
    }
    if (now >= e->notify_ns) {
        (void)snprintf(state, sizeof(state), "EXTEND_TIMEOUT_USEC=%u\nSTATUS=Stopping: %s",
                       END_EXTEND_S * US_PER_S, what);
        (void)zsd_notify(state); /* a failure was logged at the beginning */
        e->notify_ns = now + END_NOTIFY_S * NS_PER_S;
    }
}

/* Whether the end has taken too long. */
static bool end_too_long(struct zsd *daemon, uint64_t now)
{
    struct zsd_ending *e = &daemon->loop->ending;

    if (e->seen != daemon->loop->reaped) {
        e->seen = daemon->loop->reaped;
        e->seen_ns = now;
    }
    return now >= e->seen_ns + e->patience.stall_ms * NS_PER_MS ||
           (e->patience.limit_ms > 0 && now >= e->begun_ns + e->patience.limit_ms * NS_PER_MS);
}

/* The first stage: false while ranks that attach again are waited for. */
static bool end_drains(struct zsd *daemon, uint64_t now)
{
    struct zsd_ending *e = &daemon->loop->ending;

    if (e->drains)
        return true;
    if (zsd_core_waits(daemon) && now < e->begun_ns + e->patience.wait_ms * NS_PER_MS) {
        end_report(daemon, zsd_core_busy(daemon), now);
        return false;
    }
    e->drains = true;
    e->begun_ns = e->seen_ns = now;
    zsd_core_drain(daemon);
    return true;
}

static void end_on_timer(uv_timer_t *timer)
{
    struct zsd *daemon = timer->data;
    struct zsd_ending *e = &daemon->loop->ending;
    uint64_t now = zb_now_ns();
    unsigned busy;

    if (!end_drains(daemon, now))
        return;
    busy = zsd_core_busy(daemon);
    if (busy == 0 && !e->told) {
        e->told = true;
        zsd_core_last(daemon);
        zsd_core_farewell(daemon);
        return; /* the next checks wait for these commits and messages, too */
    }
    if (busy == 0 && e->send_ns == 0)
        e->send_ns = now + ZSD_SEND_MS * NS_PER_MS;
    end_report(daemon, busy, now);
    if ((busy == 0 && (zsd_server_unsent(daemon) == 0 || now >= e->send_ns)) ||
        end_too_long(daemon, now))
        end_now(daemon);
}

void zsd_loop_end(struct zsd *daemon)
{
    struct zsd_ending *e = &daemon->loop->ending;

    if (e->begun)
        return;
    e->begun = true;
    e->begun_ns = e->seen_ns = zb_now_ns();
    e->seen = daemon->loop->reaped;
    e->notify_ns = e->begun_ns + END_NOTIFY_S * NS_PER_S;
    e->log_ns = e->begun_ns + END_LOG_S * NS_PER_S;
    end_notify("STOPPING=1");
    zsd_server_drain(daemon);
    zsd_core_leave(daemon);
    (void)uv_timer_start(&e->timer, end_on_timer, 0, END_STEP_MS);
}

static void end_on_signal(uv_signal_t *handle, int signum)
{
    struct zsd *daemon = handle->data;

    zb_log(ZB_LOG_INFO, "signal", "name=%s operations=%u clients=%u", sigabbrev_np(signum),
           zsd_core_busy(daemon), daemon->clients);
    if (daemon->loop->ending.begun)
        end_now(daemon);
    else
        zsd_loop_end(daemon);
}

/* SIGHUP of a daemon that was started with a configuration file: reads it again. */
static void end_on_hangup(uv_signal_t *handle, int signum)
{
    struct zsd *daemon = handle->data;
    struct zsd_ending *e = &daemon->loop->ending;

    if (e->begun) {
        zb_log(ZB_LOG_WARN, "signal-ignored", "name=%s", sigabbrev_np(signum));
        return;
    }
    zsd_reload(daemon);
    e->patience.wait_ms = daemon->config.restart_wait_s * MS_PER_S;
    e->patience.limit_ms = daemon->config.stop_timeout_s * MS_PER_S;
}

static void end_on_ignored(uv_signal_t *handle, int signum)
{
    (void)handle;
    zb_log(ZB_LOG_WARN, "signal-ignored", "name=%s", sigabbrev_np(signum));
}

static int end_watch(struct zsd *daemon, uv_signal_t *handle, uv_signal_cb cb, int signum)
{
    int rc = uv_signal_init(&daemon->loop->uv, handle);

    if (rc < 0)
        return rc;
    handle->data = daemon;
    return uv_signal_start(handle, cb, signum);
}

int zsd_loop_end_on_signals(struct zsd *daemon, const struct zsd_patience *patience,
                            struct zb_err *err)
{
    uv_loop_t *uv = &daemon->loop->uv;
    struct zsd_ending *e = &daemon->loop->ending;
    bool reloads = daemon->config.file && !daemon->config.embedded;
    int rc = 0;

    e->patience = *patience;
    (void)uv_timer_init(uv, &e->timer); /* cannot fail */
    e->timer.data = daemon;
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(end_signals); i++)
        rc = end_watch(daemon, &e->signals[i],
                       end_signals[i] == SIGHUP && reloads ? end_on_hangup : end_on_signal,
                       end_signals[i]);
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(ignored_signals); i++)
        rc = end_watch(daemon, &e->ignored[i], end_on_ignored, ignored_signals[i]);
    return rc < 0 ? zb_fail(err, rc, "watch signals: %m") : 0;
}
