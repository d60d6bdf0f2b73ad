/*
 * loop_wake.c - the compute pools, the catalog's thread and the engines meet libuv.
 *
 * Each offers an eventfd and a reap, and does not know what a loop is. A reap that stops at its
 * limit sets the eventfd again, so the others run first and nothing is lost.
 */
#include <assert.h>
#include <sys/eventfd.h>

#include "daemon/disk/paths.h"
#include "daemon/loop_priv.h"
#include "daemon/run/compute.h"

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
        (void)zsd_compute_reap(w->compute, ZSD_REAP_MAX);
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
    assert(rc == 0); /* it only notes what the next poll asks for */
    return 0;
}

int zsd_wakes_start(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_wake *w = daemon->loop->wakes;
    int rc = wake_start(w++, daemon, NULL, daemon->compute, err);

    if (rc == 0 && daemon->gpu_threads)
        rc = wake_start(w++, daemon, NULL, daemon->gpu_threads, err);
    if (rc == 0 && daemon->catalog_thread)
        rc = wake_start(w++, daemon, NULL, daemon->catalog_thread, err);
    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++)
        rc = wake_start(w++, daemon, zsd_path_engine(daemon, i), NULL, err);
    return rc;
}
