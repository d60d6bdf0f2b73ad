/*
 * device.c - gathers and gradients on a GPU.
 *
 * MODEL. The store stays in host memory; the trainer's data is on the device. Collectives also run
 * in host memory, unless the backend has collectives between devices (`ops`).
 *
 *     gather, in host memory    slices are gathered, and the whole unit is copied up. If the
 *                               daemon has the parameters on the device, this rank's slice is
 *                               copied down first
 *     gather, between devices   this rank's slice is copied up to its place, and the others are
 *                               gathered around it
 *     reduce, in host memory    masked and rounded to the unit's dtype on the device, copied down,
 *                               exchanged, added in rank order
 *     reduce, between devices   masked and rounded, exchanged, added in rank order on the device,
 *                               and the sum of this rank's slice copied down
 *
 * The additions and their order are the same in both, and so are the bits.
 *
 * STREAMS. There are four: the trainer's own, one for copies up, one for copies down, one for
 * collectives. So both directions of the link, and the link between devices, are busy while the
 * trainer computes. A buffer's event `last` orders them:
 *
 *     up      waits for the work that used the buffer before, on the trainer's stream
 *     down    waits for the trainer's work up to zc_zero_reduce(), and for the exchange. Its
 *             buffers are returned when the copy is known to be done, so nothing waits for them
 *     coll    waits for the copy up, or for the kernels that prepare a gradient for the exchange
 *
 * The trainer's stream never waits: the engine checks that an upload has ended before it hands out
 * the data.
 *
 * HOST MEMORY under a copy (views, buffers) stays until the copy is done: a pin is kept, a buffer
 * is not returned, and close drains the streams before anything is unmapped.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/zero/core/zero.h"
#include "kernels/gpu_own.h"

/* Failures of the device are final. */
int zcz_device_fail(struct zc_zero *z, int rc, const struct zb_err *err)
{
    return zcz_fail(z, rc, "device '%s': %s", z->options.device, err->text);
}

int zcz_device_open(struct zc_zero *z)
{
    struct zcz_device *d = &z->device;
    struct zk_gpu_stream **const streams[] = { &d->up, &d->down, &d->compute };
    size_t ours = ZB_COUNT(streams);
    struct zb_err err = { 0 };
    int rc = 0;

    if (!z->options.device && z->options.stream)
        return zcz_refuse(z, -EINVAL, "a stream is given, and no device");
    if (!z->options.device)
        return 0;
    if (!z->options.alloc != !z->options.free)
        return zcz_refuse(z, -EINVAL, "alloc and free of device memory are given both, or neither");
    d->alloc = z->options.alloc;
    d->free = z->options.free;
    d->memory_arg = z->options.memory_arg;
    if (z->options.stream) {
        rc = zk_gpu_adopt(z->options.device, z->options.stream, &d->gpu, &d->adopted, &err);
        d->compute = d->adopted;
        ours--;
    } else {
        rc = zk_gpu_open(z->options.device, 0, &d->gpu, &err);
    }
    for (size_t i = 0; rc == 0 && i < ours; i++)
        rc = zk_gpu_stream_new(d->gpu, streams[i], &err);
    return rc < 0 ? zcz_refuse(z, rc, "device '%s': %s", z->options.device, err.text) : 0;
}

void zcz_device_set_common(struct zc_zero *z, bool common)
{
    z->device.common = common;
}

int zcz_device_join(struct zc_zero *z)
{
    const struct zc_comm_ops *comm = z->comm->ops;
    struct zc_comm *const comms[] = { z->inside, z->across };
    struct zcz_device *d = &z->device;
    struct zb_err err = { 0 };
    int rc;

    if (!d->gpu || !comm->device || z->world == 1)
        return 0;
    rc = zk_gpu_stream_new(d->gpu, &d->coll, &err);
    if (rc == 0)
        rc = zk_gpu_enter(d->gpu, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "device '%s': %s", z->options.device, err.text);
    for (size_t i = 0; i < ZB_COUNT(comms); i++) {
        if (!comms[i])
            continue;
        rc = comm->device->open(comms[i], zk_gpu_info(d->gpu)->backend,
                                zk_gpu_stream_native(d->coll), z->timeout_ms);
        if (rc < 0)
            return zcz_refuse(z, rc, "collectives between devices over '%s': %s", comm->name,
                              comm->error ? comm->error(comms[i]) : "failed");
        d->ops = comm->device;
        d->joined[i] = true;
    }
    return 0;
}

bool zcz_device_pins_writable(const struct zc_zero *z)
{
    return z->device.gpu && !zk_gpu_info(z->device.gpu)->pins_read_only;
}

/* Rounds parts to whole pages, and joins those that meet then. Returns how many there are. */
static uint32_t parts_join(const struct zcz_part *parts, uint32_t nparts,
                           struct zcz_part ret[ZCZ_PARTS_MAX])
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint32_t n = 0;

    for (uint32_t i = 0; i < nparts; i++) {
        uint64_t at = parts[i].at / page * page;
        uint64_t end = zb_round_up(parts[i].at + parts[i].bytes, page);

        if (parts[i].bytes == 0)
            continue;
        if (n > 0 && at <= ret[n - 1].at + ret[n - 1].bytes)
            ret[n - 1].bytes = end - ret[n - 1].at;
        else
            ret[n++] = (struct zcz_part){ at, end - at };
    }
    return n;
}

/* Memory that was mapped read-write only for the driver becomes read-only again for this process:
 * its pages are pinned, and a stray write by the trainer faults, as usual. */
void zcz_device_pin(struct zc_zero *z, const void *memory, uint64_t bytes,
                    const struct zcz_part *parts, uint32_t nparts)
{
    struct zcz_device *d = &z->device;
    char *base = (char *)(uintptr_t)memory;
    bool writable = zcz_device_pins_writable(z);
    struct zcz_part joined[ZCZ_PARTS_MAX];
    struct zb_err err = {
        0
    }; /* not fatal: unpinned memory is copied all the same, and zc_zero_stats() shows it */

    if (!d->gpu || bytes == 0)
        return;
    nparts = parts_join(parts, nparts, joined);
    for (uint32_t i = 0; i < nparts; i++)
        if (zk_gpu_pin(d->gpu, base + joined[i].at, joined[i].bytes, !writable, &err) == 0)
            d->pins[d->npins++] = base + joined[i].at;
    if (writable) /* mapped as whole pages */
        (void)mprotect(base, zb_round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE)), PROT_READ);
}

void zcz_device_unpin(struct zc_zero *z)
{
    struct zcz_device *d = &z->device;

    while (d->npins > 0)
        (void)zk_gpu_unpin(d->gpu, d->pins[--d->npins], NULL);
}

/* Ends collectives between devices. */
static void device_leave(struct zc_zero *z, bool clean)
{
    struct zc_comm *const comms[] = { z->inside, z->across };
    struct zcz_device *d = &z->device;

    for (size_t i = 0; i < ZB_COUNT(comms); i++) {
        if (d->joined[i])
            d->ops->close(comms[i], clean);
        d->joined[i] = false;
    }
}

void zcz_device_drain(struct zc_zero *z, bool clean)
{
    struct zcz_device *d = &z->device;

    if (!clean) /* otherwise draining would wait for ranks that are gone */
        device_leave(z, false);
    zk_gpu_stream_free(d->up);
    zk_gpu_stream_free(d->down);
    if (d->adopted)
        (void)zk_gpu_stream_sync(d->adopted, NULL);
    else
        zk_gpu_stream_free(d->compute);
    zk_gpu_stream_free(d->coll);
    d->up = d->down = d->compute = d->coll = NULL;
    zcz_device_unpin(z);
    device_leave(z, clean);
}

void zcz_device_moves(struct zc_zero *z)
{
    z->device.moving++;
}

void zcz_device_moved(struct zc_zero *z)
{
    z->device.moving--;
}

void zcz_device_close(struct zc_zero *z)
{
    if (z->device.adopted)
        zk_gpu_disown(z->device.gpu, z->device.adopted);
    else
        zk_gpu_close(z->device.gpu);
    z->device.gpu = NULL;
    z->device.adopted = NULL;
}

const char *zc_zero_device(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    return z->device.gpu ? z->options.device : NULL;
}

void *zc_zero_stream(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    return z->device.compute ? zk_gpu_stream_native(z->device.compute) : NULL;
}

int zcz_device_full(struct zc_zero *z, const struct zcz_pool *pool, const char *what,
                    const struct zcz_unit *u, size_t bytes)
{
    return zcz_fail(z, pool->why.code != 0 ? pool->why.code : -ENOMEM,
                    "device '%s': no memory %s unit %u '%s': %zu bytes: %s", z->options.device,
                    what, u->def.index, u->def.name, bytes, pool->why.text);
}

void zcz_device_clear(struct zc_zero *z)
{
    z->device.up_bytes = z->device.down_bytes = 0;
}

/* Begins to copy pieces, one after the other, to `to`. 0 or a negative errno. */
static int device_copy(struct zk_gpu_stream *stream, enum zk_gpu_way way, void *to,
                       const struct zcz_pieces *from, struct zb_err *err)
{
    int rc = 0;

    for (size_t done = 0; done < from->bytes && rc == 0; done += from->piece)
        rc = zk_gpu_copy(stream, way, (char *)to + done,
                         (const char *)from->data + done / from->piece * from->stride,
                         zb_min_u64(from->piece, from->bytes - done), err);
    return rc;
}

int zcz_device_up(struct zc_zero *z, struct zcz_buf *b, size_t at, const struct zcz_pieces *from,
                  size_t bytes)
{
    struct zk_gpu_stream *up = z->device.up;
    char *to = (char *)b->data + at;
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(b->last, up, &err);

    if (rc == 0)
        rc = device_copy(up, from->on_device ? ZK_GPU_WITHIN : ZK_GPU_TO_DEVICE, to, from, &err);
    z->device.up_bytes += from->on_device ? 0 : from->bytes;
    if (rc == 0 && bytes > from->bytes)
        rc = zk_gpu_fill(up, to + from->bytes, 0, bytes - from->bytes, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(b->last, up, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zcz_device_down(struct zc_zero *z, void *to, const struct zcz_pieces *from,
                    struct zk_gpu_event **event)
{
    struct zk_gpu_stream *down = z->device.down;
    struct zb_err err = { 0 };
    int rc = *event ? 0 : zk_gpu_event_new(z->device.gpu, event, &err);

    if (rc == 0)
        rc = device_copy(down, ZK_GPU_TO_HOST, to, from, &err);
    z->device.down_bytes += from->bytes;
    if (rc == 0)
        rc = zk_gpu_event_record(*event, down, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zcz_device_zero(struct zc_zero *z, struct zcz_buf *b, size_t bytes)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_fill(z->device.compute, b->data, 0, bytes, &err);

    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

/* Sends releases to the store: the backend may wait for a rank that waits for them. */
static int store_flush(struct zc_zero *z)
{
    int rc = z->store && !z->turns.store_gone ? z->store->ops->poll(z->store, 0) : 0;

    if (rc >= 0)
        return 0;
    z->turns.store_gone = true;
    return zcz_fail(z, rc, "%s", zcz_store_text(z->store));
}

int zcz_device_start(struct zc_zero *z, struct zcz_coll *c, int *ret_comm_rc)
{
    const struct zcz_device *d = &z->device;
    struct zb_err err = { 0 };
    int rc = store_flush(z);

    if (rc < 0)
        return rc;
    rc = zk_gpu_event_wait(c->dev->last, d->coll, &err);
    if (rc == 0)
        rc = zk_gpu_enter(d->gpu, &err);
    if (rc == 0 && zcz_coll_exchanges(c))
        *ret_comm_rc = d->ops->exchange(c->comm, c->send, c->recv, c->slice_bytes);
    else if (rc == 0)
        *ret_comm_rc = d->ops->all_gather(c->comm, c->send, c->recv, c->slice_bytes);
    if (rc == 0 && *ret_comm_rc == 0)
        rc = zk_gpu_event_record(c->dev->last, d->coll, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

void zcz_device_used(struct zc_zero *z, const struct zcz_buf *b)
{
    if (b) /* a failure of the device is reported by a later call */
        (void)zk_gpu_event_record(b->last, z->device.compute, NULL);
}

int zcz_device_done(struct zc_zero *z, const struct zcz_buf *b)
{
    return zcz_device_reached(z, b->last);
}

int zcz_device_reached(struct zc_zero *z, struct zk_gpu_event *event)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_query(event, &err);

    if (rc == -EAGAIN)
        return 0;
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 1;
}
