/*
 * loop_wake.c - the compute pool and the engine meet libuv.
 *
 * Both offer an eventfd and a reap, and do not know what a loop is. A reap that stops at its limit
 * sets the eventfd again, so the others run first and nothing is lost.
 */
#include <assert.h>
#include <sys/eventfd.h>

#include "daemon/compute.h"
#include "daemon/loop_priv.h"

static unsigned wake_compute(struct zsd *daemon, unsigned max)
{
    return zsd_compute_reap(daemon->compute, max);
}

static unsigned wake_engine(struct zsd *daemon, unsigned max)
{
    return zn_reap(daemon->engine, max);
}

static void wake_on_poll(uv_poll_t *poll, int status, int events)
{
    struct zsd_wake *w = poll->data;
    eventfd_t n;

    (void)events;
    assert(status == 0);           /* our own eventfd: only we could break it */
    (void)eventfd_read(w->fd, &n); /* drain, then reap: no wake-up can be lost */
    (void)w->reap(w->daemon, ZSD_REAP_MAX);
}

static int wake_start(struct zsd_wake *w, struct zsd *daemon, int fd,
                      unsigned (*reap)(struct zsd *, unsigned), struct zb_err *err)
{
    int rc = uv_poll_init(&daemon->loop->uv, &w->poll, fd);

    if (rc < 0)
        return zb_fail(err, rc, "watch an eventfd: %m");
    w->poll.data = w;
    w->daemon = daemon;
    w->fd = fd;
    w->reap = reap;
    rc = uv_poll_start(&w->poll, UV_READABLE, wake_on_poll);
    assert(rc == 0); /* it only notes what the next poll asks for */
    return 0;
}

int zsd_wakes_start(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_wake *w = daemon->loop->wakes;
    int rc = wake_start(&w[0], daemon, zsd_compute_wake_fd(daemon->compute), wake_compute, err);

    if (rc == 0 && daemon->engine)
        rc = wake_start(&w[1], daemon, zn_wake_fd(daemon->engine), wake_engine, err);
    return rc;
}
