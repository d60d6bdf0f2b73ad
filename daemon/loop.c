/*
 * loop.c - the loop of libuv: what runs in a turn, and how the compute pools, the catalog's thread
 * and the engines wake it. See loop.h.
 *
 * Each of these provides an eventfd and a reap function, and is independent of the loop. A reap
 * that stops at its limit sets the eventfd again, so the others run first and nothing is lost.
 */
#include "daemon/loop.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/core_life.h"
#include "daemon/disk/paths.h"
#include "daemon/loop_priv.h"
#include "daemon/net/server.h"
#include "daemon/os/notify.h"
#include "daemon/os/slice.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/run/turn.h"

/* No part of a turn takes much longer, and clients wait for the loop. */
#define LOOP_SLICE_NS    UINT64_C(100000)

#define WATCHDOG_REPORTS 4u /* in the interval of the service manager: a late one does not matter */
#define US_PER_MS        1000u

/* ---- wake-ups */

static void wake_on_poll(uv_poll_t *poll, int status, int events)
{
    struct zsd_loop *loop = zb_container_of(poll->loop, struct zsd_loop, uv);
    struct zsd_wake *w = poll->data;
    eventfd_t n;

    (void)events;
    assert(status == 0);           /* our own eventfd: no errors */
    (void)eventfd_read(w->fd, &n); /* drain, then reap: no wake-up can be lost */
    loop->reaped += w->engine ? zn_reap(w->engine, ZSD_REAP_MAX)
                              : zsd_compute_reap(w->compute, ZSD_REAP_MAX);
}

static int wake_start(struct zsd_wake *w, struct zsd *daemon, struct zn_engine *engine,
                      struct zsd_compute *compute, struct zb_err *err)
{
    int fd = engine ? zn_wake_fd(engine) : zsd_compute_wake_fd(compute);
    int rc = uv_poll_init(&daemon->loop->uv, &w->poll, fd);

    if (rc < 0)
        return zb_fail(err, rc, "watch an eventfd: %m");
    w->poll.data = w;
    w->fd = fd;
    w->engine = engine;
    w->compute = compute;
    rc = uv_poll_start(&w->poll, UV_READABLE, wake_on_poll);
    assert(rc == 0); /* cannot fail: it only records the events for the next poll */
    return 0;
}

static int wakes_start(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_wake *w = daemon->loop->wakes;
    int rc = wake_start(w++, daemon, NULL, daemon->compute, err);

    for (unsigned g = 0; g < daemon->ngpus && rc == 0; g++)
        rc = wake_start(w++, daemon, NULL, zsd_gpu_threads(daemon->gpus[g]), err);
    if (rc == 0 && daemon->catalog_thread)
        rc = wake_start(w++, daemon, NULL, daemon->catalog_thread, err);
    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++)
        rc = wake_start(w++, daemon, zsd_path_engine(daemon, i), NULL, err);
    return rc;
}

/* ---- turns */

static void loop_on_tick(uv_timer_t *timer)
{
    zsd_core_tick(timer->data, zb_now_ns());
}

/** Does nothing. While an idle handle is active, the loop does not wait. */
static void loop_on_again(uv_idle_t *idle)
{
    (void)idle;
}

/** The tick runs only while a request or an operation needs it. */
static void loop_arm_tick(struct zsd *daemon)
{
    uv_timer_t *tick = &daemon->loop->tick;
    bool wanted = daemon->reqs > 0 || zsd_core_ticks(daemon);

    if (wanted == (uv_is_active((uv_handle_t *)tick) != 0))
        return;
    if (wanted)
        (void)uv_timer_start(tick, loop_on_tick, ZSD_TICK_MS, ZSD_TICK_MS);
    else
        (void)uv_timer_stop(tick);
}

static void loop_on_prepare(uv_prepare_t *prepare)
{
    struct zsd *daemon = prepare->data;

    bool more = zsd_core_turn(daemon);

    if (zsd_server_turn(daemon) || more)
        (void)uv_idle_start(&daemon->loop->again, loop_on_again);
    else
        (void)uv_idle_stop(&daemon->loop->again);
    loop_arm_tick(daemon);
    zsd_linger_turn(daemon);
    if (daemon->restart)
        zsd_loop_end(daemon);
    zsd_turn_over(daemon, uv_metrics_idle_time(&daemon->loop->uv));
}

/* ---- the watchdog of the service manager */

static void watchdog_on_timer(uv_timer_t *timer)
{
    (void)timer;
    (void)zsd_notify_try("WATCHDOG=1"); /* the loop never waits for the manager */
}

void zsd_loop_watchdog(struct zsd *daemon)
{
    uint64_t us = zsd_notify_watchdog_us(), ms = us / US_PER_MS / WATCHDOG_REPORTS;

    if (us == 0)
        return;
    (void)uv_timer_init(&daemon->loop->uv, &daemon->loop->watchdog); /* cannot fail */
    (void)uv_timer_start(&daemon->loop->watchdog, watchdog_on_timer, 0, zb_max_u64(ms, 1));
}

/* ---- its life */

int zsd_loop_new(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_loop *l = calloc(1, sizeof(*l));
    int rc;

    if (!l)
        return zb_fail(err, -ENOMEM, "the loop: %m");
    daemon->turns.limit_ns = ZSD_TURN_NS;
    rc = uv_loop_init(&l->uv);
    if (rc < 0) {
        free(l);
        return zb_fail(err, rc, "the loop: %m");
    }
    daemon->loop = l;
    /* These cannot fail: they only initialize memory. */
    (void)uv_loop_configure(&l->uv, UV_METRICS_IDLE_TIME);
    (void)uv_prepare_init(&l->uv, &l->prepare);
    (void)uv_idle_init(&l->uv, &l->again);
    (void)uv_timer_init(&l->uv, &l->tick);
    l->prepare.data = l->tick.data = daemon;
    (void)uv_prepare_start(&l->prepare, loop_on_prepare);
    return wakes_start(daemon, err);
}

struct uv_loop_s *zsd_loop_uv(const struct zsd *daemon)
{
    return &daemon->loop->uv;
}

static void loop_close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void zsd_loop_free(struct zsd *daemon)
{
    struct zsd_loop *l = daemon->loop;
    int rc;

    if (!l)
        return;
    uv_walk(&l->uv, loop_close_handle, NULL);
    (void)uv_run(&l->uv, UV_RUN_DEFAULT); /* runs the close callbacks, ours and the server's */
    rc = uv_loop_close(&l->uv);
    assert(rc == 0);
    free(l);
    daemon->loop = NULL;
}

bool zsd_loop_run(struct zsd *daemon)
{
    int rc = zsd_slice_set(LOOP_SLICE_NS);

    if (rc < 0) /* a sandbox may forbid it: then answers take longer on a busy machine */
        zb_log(ZB_LOG_INFO, "slice-refused", "why=\"%s\"", strerror(-rc));
    (void)uv_run(&daemon->loop->uv, UV_RUN_DEFAULT);
    return !daemon->loop->ending.forced;
}
