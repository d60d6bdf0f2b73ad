/*
 * loop_wake.c - the compute pool and the engines meet libuv.
 *
 * All offer an eventfd and a reap, and do not know what a loop is. A reap that stops at its limit
 * sets the eventfd again, so the others run first and nothing is lost.
 */
#include <assert.h>
#include <sys/eventfd.h>

#include "daemon/compute.h"
#include "daemon/loop_priv.h"
#include "daemon/paths.h"

static void wake_on_poll(uv_poll_t *poll, int status, int events)
{
    struct zsd_wake *w = poll->data;
    eventfd_t n;

    (void)events;
    assert(status == 0);           /* our own eventfd: only we could break it */
    (void)eventfd_read(w->fd, &n); /* drain, then reap: no wake-up can be lost */
    if (w->engine)
        (void)zn_reap(w->engine, ZSD_REAP_MAX);
    else
        (void)zsd_compute_reap(w->daemon->compute, ZSD_REAP_MAX);
}

static int wake_start(struct zsd_wake *w, struct zsd *daemon, int fd, struct zn_engine *engine,
                      struct zb_err *err)
{
    int rc = uv_poll_init(&daemon->loop->uv, &w->poll, fd);

    if (rc < 0)
        return zb_fail(err, rc, "watch an eventfd: %m");
    w->poll.data = w;
    w->daemon = daemon;
    w->fd = fd;
    w->engine = engine;
    rc = uv_poll_start(&w->poll, UV_READABLE, wake_on_poll);
    assert(rc == 0); /* it only notes what the next poll asks for */
    return 0;
}

int zsd_wakes_start(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_wake *w = daemon->loop->wakes;
    int rc = wake_start(&w[0], daemon, zsd_compute_wake_fd(daemon->compute), NULL, err);

    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++) {
        struct zn_engine *e = zsd_path_engine(daemon, i);

        rc = wake_start(&w[1 + i], daemon, zn_wake_fd(e), e, err);
    }
    return rc;
}
