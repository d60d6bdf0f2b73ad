/*
 * engine.c - what all engines share while they run: checks of requests, the limit, tails of short
 * transfers, counters. Only this file calls done. engine_open.c opens and closes.
 *
 * A REQUEST goes down with res = the bytes to transfer now, and comes up with the signed result:
 *
 *     all bytes             done(0)
 *     fewer                 down again for the rest, from the last whole unit of alignment on
 *     -EINTR, -EAGAIN       down again, ENGINE_AGAIN_MAX times in a row
 *     0, or no whole unit   done(-EIO): the end of the file or device, or no more progress
 *     another failure       done(that error)
 *
 * A COMMIT SLOT is encoded into a block that the engine owns (O_DIRECT needs aligned memory). It is
 * written as any other request, and its done passes the result on.
 *
 * INVARIANTS
 *     I1  stats.inflight is the number of transfers and flushes between zn_submit() and their done,
 *         however often they go down; it never exceeds depth. A discard is counted by `discarding`.
 *     I2  The wake-up is readable whenever zn_reap() would find something: the backend sets it for
 *         what comes up, zn_reap() when it leaves something behind.
 *
 * NOT HERE. The callers decide what the bytes mean and when they may be overwritten.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "nvme/engine_priv.h"

#define ENGINE_AGAIN_MAX 16u

void zn_why(struct zn_engine *e, const char *text)
{
    size_t len = strlen(e->info.why);

    (void)snprintf(e->info.why + len, sizeof(e->info.why) - len, "%s%s", len > 0 ? "; " : "", text);
}

/* Sends a request down to the backend, for the missing bytes. */
static void engine_send(struct zn_engine *e, struct zn_io *io)
{
    io->res = io->op == ZN_FLUSH ? 0 : (int)(io->len_bytes - io->got_bytes);
    if (zn_io_discards(io) && e->file.place->discard)
        zn_discarder_submit(e, io);
    else
        e->ops->submit(e, io);
}

/* A finished request, or NULL. A backend may clear the wake-up when it has none: so the discarder is
 * asked after it. */
static struct zn_io *engine_next(struct zn_engine *e)
{
    struct zn_io *io = e->ops->reap(e);

    return io ? io : zn_discarder_reap(e);
}

static bool engine_discard_valid(const struct zn_engine *e, const struct zn_io *io)
{
    return !e->file.read_only && io->len_bytes > 0 && io->len_bytes <= ZN_IO_BYTES_MAX &&
           (io->off_bytes | io->len_bytes) % ZN_SUPER_BYTES == 0 &&
           io->off_bytes >= ZN_DATA_START &&
           zb_range_inside(io->off_bytes, io->len_bytes, e->info.size_bytes);
}

static bool engine_io_valid(const struct zn_engine *e, const struct zn_io *io)
{
    uint32_t mask = e->info.align_bytes - 1;

    if (io->op == ZN_FLUSH)
        return true;
    if (zn_io_discards(io))
        return engine_discard_valid(e, io);
    if (e->file.read_only && io->op != ZN_READ)
        return false;
    if (io->op == ZN_SLOT)
        return io->buf && ((const struct zn_slot *)io->buf)->sequence > 0;
    return (io->op == ZN_READ || io->op == ZN_WRITE) && io->buf && io->len_bytes > 0 &&
           io->len_bytes <= ZN_IO_BYTES_MAX &&
           (((uintptr_t)io->buf | io->off_bytes | io->len_bytes) & mask) == 0 &&
           io->off_bytes >= ZN_DATA_START &&
           zb_range_inside(io->off_bytes, io->len_bytes, e->info.size_bytes);
}

static void engine_on_slot(struct zn_io *slot_io, int rc)
{
    struct zn_engine *e = zb_container_of(slot_io, struct zn_engine, slot_io);
    struct zn_io *io = e->slot_of;

    e->slot_of = NULL; /* done may submit the next */
    io->done(io, rc);
}

/* Makes the write of a commit slot. */
static struct zn_io *engine_slot(struct zn_engine *e, struct zn_io *io)
{
    const struct zn_slot *slot = io->buf;

    zn_slot_encode(slot, e->file.super.uuid, e->slot_block);
    e->slot_of = io;
    e->slot_io = (struct zn_io){ .op = ZN_WRITE,
                                 .buf = e->slot_block,
                                 .len_bytes = ZN_SLOT_BYTES,
                                 .off_bytes = zn_slot_at(slot->sequence),
                                 .done = engine_on_slot };
    return &e->slot_io;
}

int zn_submit(struct zn_engine *e, struct zn_io *io)
{
    if (!io->done || !engine_io_valid(e, io))
        return -EINVAL;
    if (e->closing)
        return -ESHUTDOWN;
    if (io->op == ZN_SLOT && e->slot_of)
        return -EBUSY;
    if (zn_io_discards(io) && !e->info.discard)
        return -EOPNOTSUPP;
    if (zn_io_discards(io) && e->stats.discarding)
        return -EBUSY;
    if (!zn_io_discards(io) && e->stats.inflight == e->info.depth) /* I1 */
        return -EAGAIN;
    if (io->op == ZN_SLOT)
        io = engine_slot(e, io);
    if (zn_io_discards(io))
        e->stats.discarding = true;
    else
        e->stats.inflight++;
    io->got_bytes = 0;
    io->again = 0;
    engine_send(e, io);
    return 0;
}

void zn_kick(struct zn_engine *e)
{
    int rc = e->ops->kick(e);

    /* It worked in the trial, so the process was put into a sandbox that forbids it. Requests in
     * flight can be neither finished nor cancelled. */
    assert(rc == 0);
}

int zn_register(struct zn_engine *e, void *base, uint64_t len_bytes)
{
    return e->ops->add ? e->ops->add(e, base, len_bytes) : -EOPNOTSUPP;
}

void zn_unregister(struct zn_engine *e, void *base)
{
    if (e->ops->drop && base)
        e->ops->drop(e, base);
}

/* Handles a result: true if the request has to go down again, else *ret_rc is final. */
static bool engine_again(struct zn_engine *e, struct zn_io *io, int *ret_rc)
{
    uint32_t got = io->got_bytes;

    if ((io->res == -EINTR || io->res == -EAGAIN) && io->again++ < ENGINE_AGAIN_MAX)
        return true;
    *ret_rc = io->res < 0 ? io->res : 0;
    if (io->res < 0 || io->op == ZN_FLUSH)
        return false;
    assert((uint32_t)io->res <= io->len_bytes - got);
    got += (uint32_t)io->res;
    if (got == io->len_bytes) {
        io->got_bytes = got;
        return false;
    }
    got -= got % e->tail_align;
    if (got <= io->got_bytes) {
        *ret_rc = -EIO;
        return false;
    }
    io->got_bytes = got;
    io->again = 0;
    e->stats.short_transfers++;
    return true;
}

static void engine_count(struct zn_engine *e, const struct zn_io *io, int rc)
{
    struct zn_stats *s = &e->stats;

    if (zn_io_discards(io)) {
        e->stats.discarding = false;
        s->discards += rc == 0 && io->op == ZN_DISCARD;
        s->discarded_bytes += rc == 0 && io->op == ZN_DISCARD ? io->len_bytes : 0;
        return; /* its failures are no transfers that failed */
    }
    s->inflight--;
    if (rc < 0) {
        s->failed++;
        return;
    }
    switch (io->op) {
    case ZN_READ:
        s->reads++;
        s->read_bytes += io->len_bytes;
        break;
    case ZN_WRITE:
    case ZN_SLOT: /* comes as a write */
        s->writes++;
        s->written_bytes += io->len_bytes;
        break;
    case ZN_FLUSH:
        s->flushes++;
        break;
    case ZN_DISCARD:
    case ZN_ALLOCATE:
        break;
    }
}

unsigned zn_reap(struct zn_engine *e, unsigned max)
{
    bool again = false;
    unsigned n = 0;
    struct zn_io *io;

    assert(!e->reaping); /* not to be called from a done */
    e->reaping = true;
    while (n < max && (io = engine_next(e)) != NULL) {
        int rc;

        if (engine_again(e, io, &rc)) {
            engine_send(e, io);
            again = true;
            continue;
        }
        engine_count(e, io, rc);
        io->done(io, rc);
        n++;
    }
    e->reaping = false;
    if (n == max)
        zn_wake(e); /* I2 */
    if (again)
        zn_kick(e); /* requests sent down again, which the caller does not know of */
    return n;
}

int zn_wake_fd(const struct zn_engine *e)
{
    return e->wake_fd;
}

const struct zn_info *zn_info(const struct zn_engine *e)
{
    return &e->info;
}

struct zn_stats zn_stats(const struct zn_engine *e)
{
    return e->stats;
}

int zn_newest_slot(const struct zn_engine *e, struct zn_slot *ret, struct zb_err *err)
{
    const struct zn_file *f = &e->file;

    if (f->slot_err.code != 0)
        return zb_fail(err, f->slot_err.code, "%s", f->slot_err.text);
    *ret = f->slot;
    return 0;
}
