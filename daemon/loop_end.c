/*
 * loop_end.c - the orderly end: from the first signal until the loop stops.
 *
 *     first signal    (or an embedded daemon is unused, loop_linger.c) no more clients are
 *                     accepted, and the core drains, which is checked every END_STEP_MS
 *     nothing busy    durable jobs commit their newest step, and the ranks of every job are
 *                     notified; then clients that read slowly have ZSD_SEND_MS for their answers
 *     nothing unsent, a deadline, or a second signal: the loop stops
 */
#include <signal.h>
#include <string.h>

#include "daemon/core_life.h"
#include "daemon/loop_priv.h"
#include "daemon/net/server.h"
#include "daemon/os/notify.h"

#define END_STEP_MS 10u
#define NS_PER_MS   UINT64_C(1000000)

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

static void end_on_timer(uv_timer_t *timer)
{
    struct zsd *daemon = timer->data;
    struct zsd_ending *e = &daemon->loop->ending;
    uint64_t now = zb_now_ns();
    bool busy = zsd_core_busy(daemon) > 0;

    if (!busy && !e->told) {
        e->told = true;
        zsd_core_last(daemon);
        zsd_core_farewell(daemon);
        return; /* the next checks wait for these commits and messages, too */
    }
    if (!busy && e->send_ns == 0)
        e->send_ns = now + ZSD_SEND_MS * NS_PER_MS;
    if ((!busy && (zsd_server_unsent(daemon) == 0 || now >= e->send_ns)) || now >= e->deadline_ns)
        end_now(daemon);
}

void zsd_loop_end(struct zsd *daemon)
{
    struct zsd_ending *e = &daemon->loop->ending;
    int rc;

    if (e->begun)
        return;
    e->begun = true;
    e->deadline_ns = zb_now_ns() + e->drain_ms * NS_PER_MS;
    rc = zsd_notify("STOPPING=1");
    if (rc < 0)
        zb_log(ZB_LOG_WARN, "notify-failed", "why=\"%s\"", strerror(-rc));
    zsd_server_drain(daemon);
    zsd_core_drain(daemon);
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

int zsd_loop_end_on_signals(struct zsd *daemon, uint32_t drain_ms, struct zb_err *err)
{
    uv_loop_t *uv = &daemon->loop->uv;
    struct zsd_ending *e = &daemon->loop->ending;
    int rc = 0;

    e->drain_ms = drain_ms;
    (void)uv_timer_init(uv, &e->timer); /* cannot fail */
    e->timer.data = daemon;
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(end_signals); i++)
        rc = end_watch(daemon, &e->signals[i], end_on_signal, end_signals[i]);
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(ignored_signals); i++)
        rc = end_watch(daemon, &e->ignored[i], end_on_ignored, ignored_signals[i]);
    return rc < 0 ? zb_fail(err, rc, "watch signals: %m") : 0;
}
