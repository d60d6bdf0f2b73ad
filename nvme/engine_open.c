/*
 * engine_open.c - opens and closes an engine: its options, the data file, the choice of a backend
 * and a first read by it. What runs in between is engine.c.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "nvme/engine_priv.h"

static bool engine_wants(const char *io, const struct zn_ops *ops)
{
    return !io || strcmp(io, "auto") == 0 || strcmp(io, ops->name) == 0;
}

static int engine_check_options(const struct zn_engine *e, const struct zn_options *o,
                                struct zb_err *err)
{
    bool known = false;

    for (const struct zn_ops *const *b = e->file.place->backends; *b; b++)
        known = known || engine_wants(o->io, *b);
    if (!known)
        return zb_fail(err, -EINVAL, "unknown I/O engine '%s': must be auto, uring or threads",
                       o->io);
    if (!o->path || o->path[0] == '\0')
        return zb_fail(err, -EINVAL, "the data file has no name");
    if (o->size_bytes % ZN_SUPER_BYTES != 0 || o->size_bytes <= ZN_DATA_START ||
        o->size_bytes > INT64_MAX)
        return zb_fail(
            err, -EINVAL, "size of data file '%s': %llu bytes is not a multiple of 4096 above %llu",
            o->path, (unsigned long long)o->size_bytes, (unsigned long long)ZN_DATA_START);
    if (o->depth > ZN_DEPTH_MAX || o->threads > ZN_THREADS_MAX)
        return zb_fail(err, -EINVAL, "I/O depth %u (at most %u) with %u threads (at most %u)",
                       o->depth, ZN_DEPTH_MAX, o->threads, ZN_THREADS_MAX);
    return 0;
}

/* Sleeps until the wake-up, and clears it. */
static void engine_wait(struct zn_engine *e)
{
    struct pollfd p = { .fd = e->wake_fd, .events = POLLIN };
    eventfd_t n;

    while (poll(&p, 1, -1) < 0)
        assert(errno == EINTR);
    (void)eventfd_read(e->wake_fd, &n);
}

/* The trial: reads the first block, all the way through the kernel and the wake-up. */
static int engine_try(struct zn_engine *e, struct zb_err *err)
{
    alignas(ZN_SUPER_BYTES) char block[ZN_SUPER_BYTES];
    struct zn_io io = { .op = ZN_READ, .buf = block, .res = (int)sizeof(block) };
    int rc;

    e->ops->submit(e, &io);
    do {
        rc = e->ops->kick(e);
        if (rc < 0)
            return zb_fail(err, rc, "a first read by %s is refused: %m", e->ops->name);
        engine_wait(e);
    } while (!e->ops->reap(e));
    return io.res < 0 ? zb_fail(err, io.res, "a first read by %s fails: %m", e->ops->name) : 0;
}

static void engine_stop(struct zn_engine *e)
{
    if (e->ops)
        e->ops->close(e);
    e->ops = NULL;
}

static int engine_start(struct zn_engine *e, const struct zn_ops *ops, struct zb_err *err)
{
    int rc;

    e->ops = ops;
    rc = ops->start(e, err);
    if (rc == 0)
        rc = engine_try(e, err);
    if (rc == 0)
        e->info.io = ops->name;
    else
        engine_stop(e);
    return rc;
}

/* Starts the first allowed backend that works; info.why says why an earlier one does not. */
static int engine_choose(struct zn_engine *e, const char *io, struct zb_err *err)
{
    struct zb_err why = { 0 };
    int rc = 0;

    for (const struct zn_ops *const *b = e->file.place->backends; *b; b++) {
        if (!engine_wants(io, *b))
            continue;
        e->info.why[0] = '\0'; /* what an earlier one lacked does not count: it does not run */
        if (why.code != 0)
            zn_why(e, why.text);
        why = (struct zb_err){ 0 };
        rc = engine_start(e, *b, &why);
        if (rc == 0)
            return 0;
    }
    return zb_fail(err, rc, "no I/O engine starts: %s%s%s", e->info.why,
                   e->info.why[0] != '\0' ? "; " : "", why.text);
}

static void engine_discards(struct zn_engine *e, const struct zn_options *o)
{
    const char *why = o->read_only               ? "the data file is opened read-only"
                      : !e->file.place->discards ? "this kind of device does not discard"
                                                 : "";

    (void)snprintf(e->info.why_no_discard, sizeof(e->info.why_no_discard), "%s", why);
    if (*why == '\0')
        e->file.place->discards(&e->file, &e->info);
}

static int engine_build(struct zn_engine *e, const struct zn_options *o, struct zb_err *err)
{
    int rc = engine_check_options(e, o, err);

    if (rc < 0)
        return rc;
    rc = -posix_memalign(&e->slot_block, ZN_SLOT_BYTES, ZN_SLOT_BYTES);
    if (rc < 0)
        return zb_fail(err, rc, "block of the commit slots: %m");
    e->info.size_bytes = o->size_bytes;
    e->info.depth = o->depth > 0 ? o->depth : ZN_DEPTH_DEFAULT;
    e->threads = o->threads > 0 ? o->threads
                                : (unsigned)zb_min_u64(e->info.depth, ZN_THREADS_DEFAULT);
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->wake_fd < 0)
        return zb_fail(err, -errno, "wake-up of the I/O engine: %m");
    rc = zn_file_open(&e->file, o, &e->info, err);
    if (rc < 0)
        return rc;
    e->info.device = e->file.on_device;
    e->tail_align = e->info.direct ? e->info.align_bytes : 1;
    rc = engine_choose(e, o->io, err);
    if (rc == 0)
        rc = zn_file_prepare(&e->file, o, &e->info, err);
    memcpy(e->info.uuid, e->file.super.uuid, sizeof(e->info.uuid));
    if (rc == 0)
        engine_discards(e, o);
    return rc;
}

static void engine_free(struct zn_engine *e)
{
    zn_discarder_close(e);
    engine_stop(e);
    zn_file_close(&e->file);
    zb_close_fd(&e->wake_fd);
    free(e->slot_block);
    free(e);
}

int zn_open_at(struct zn_engine **ret, const struct zn_place *place, void *device,
               const struct zn_options *options, struct zb_err *err)
{
    struct zn_engine *e = calloc(1, sizeof(*e));
    int rc;

    if (!e)
        return zb_fail(err, -ENOMEM, "I/O engine: %m");
    e->file.place = place;
    e->file.device = device;
    e->file.fd = e->wake_fd = -1;
    rc = engine_build(e, options, err);
    if (rc == 0)
        *ret = e;
    else
        engine_free(e);
    return rc;
}

int zn_open(struct zn_engine **ret, const struct zn_options *options, struct zb_err *err)
{
    return zn_open_at(ret, &zn_kernel_place, NULL, options, err);
}

int zn_cut(struct zn_engine *e, const char *path, uint64_t size_bytes, struct zb_err *err)
{
    assert(e->stats.inflight == 0 && !e->stats.discarding);
    if (e->file.read_only || size_bytes % ZN_SUPER_BYTES != 0 || size_bytes <= ZN_DATA_START ||
        size_bytes > e->file.super.size_bytes)
        return zb_fail(err, -EINVAL, "data file '%s' cannot be cut to %llu bytes", path,
                       (unsigned long long)size_bytes);
    return zn_file_cut(&e->file, path, size_bytes, err);
}

void zn_close(struct zn_engine *e)
{
    if (!e)
        return;
    e->closing = true;
    (void)zn_reap(e, UINT_MAX); /* completions that the caller has not reaped */
    while (e->stats.inflight > 0 || e->stats.discarding) {
        zn_kick(e);
        engine_wait(e);
        (void)zn_reap(e, UINT_MAX);
    }
    engine_free(e);
}
