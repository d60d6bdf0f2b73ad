#include <assert.h>
#include <stdlib.h>

#include "daemon/loop_priv.h"
#include "daemon/net/server.h"
#include "daemon/run/core.h"

static void loop_on_tick(uv_timer_t *timer)
{
    zsd_core_tick(timer->data, zb_now_ns());
}

/** Nothing to do: its being active is what counts. */
static void loop_on_again(uv_idle_t *idle)
{
    (void)idle;
}

/** The clock is looked at only while somebody waits for something. */
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

    zsd_core_turn(daemon);
    if (zsd_server_turn(daemon))
        (void)uv_idle_start(&daemon->loop->again, loop_on_again);
    else
        (void)uv_idle_stop(&daemon->loop->again);
    loop_arm_tick(daemon);
}

int zsd_loop_new(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_loop *l = calloc(1, sizeof(*l));
    int rc;

    if (!l)
        return zb_fail(err, -ENOMEM, "the loop: %m");
    rc = uv_loop_init(&l->uv);
    if (rc < 0) {
        free(l);
        return zb_fail(err, rc, "the loop: %m");
    }
    daemon->loop = l;
    /* These only fill memory. */
    (void)uv_prepare_init(&l->uv, &l->prepare);
    (void)uv_idle_init(&l->uv, &l->again);
    (void)uv_timer_init(&l->uv, &l->tick);
    l->prepare.data = l->tick.data = daemon;
    (void)uv_prepare_start(&l->prepare, loop_on_prepare);
    return zsd_wakes_start(daemon, err);
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
    (void)uv_run(&l->uv, UV_RUN_DEFAULT); /* the close callbacks, ours and the server's */
    rc = uv_loop_close(&l->uv);
    assert(rc == 0);
    free(l);
    daemon->loop = NULL;
}

bool zsd_loop_run(struct zsd *daemon)
{
    (void)uv_run(&daemon->loop->uv, UV_RUN_DEFAULT);
    return !daemon->loop->ending.forced;
}
