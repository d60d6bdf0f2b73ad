/*
 * device.c - gathers and gradients on a GPU.
 *
 * MODEL. The store stays where it is, in host memory; what the trainer sees is on the device.
 * Collectives are made in host memory, too, unless the backend has some between devices (`ops`).
 *
 *               in host memory                            between devices
 *     gather    slices are gathered, the unit is copied   this rank's slice is copied up to its
 *               up when it is whole (gather.c, UPLOAD)    place, the others come around it
 *     reduce    masked and rounded to the unit's dtype    masked and rounded, exchanged, added up
 * in on the device, copied down, exchanged,    rank order there, and the sum of this added up in
 * rank order (reduce.c)         rank's slice copied down
 *
 * The additions are the same ones in the same order, so the bits are.
 *
 * STREAMS. The trainer's own, one for copies up, one for copies down, one for collectives: so both
 * directions of the link and the one between devices are busy while it computes. A buffer's event
 * `last` orders them:
 *
 *     up      waits for the works that used the buffer before, on the trainer's stream
 *     down    waits for the trainer's works up to zc_zero_reduce(), and for the exchange; its
 *             buffers come back when the copy is seen to be done, so nobody waits for them
 *     coll    waits for the copy up, or for what makes of a gradient what is exchanged
 *
 * The trainer's stream waits for nobody: what it is given is there, because the engine looks at the
 * end of an upload before it hands it out.
 *
 * HOST MEMORY under a copy (views, buffers) stays until its copy is done: a pin is kept, a buffer
 * is not put back, and a close drains the streams before anything is unmapped.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/zero/zero_priv.h"
#include "kernels/gpu_own.h"

/* The device's failures are final. */
static int device_fail(struct zc_zero *z, int rc, const struct zb_err *err)
{
    return zcz_fail(z, rc, "device '%s': %s", z->options.device, err->text);
}

int zcz_device_open(struct zc_zero *z)
{
    struct zcz_device *d = &z->device;
    struct zk_gpu_stream **const streams[] = { &d->compute, &d->up, &d->down };
    struct zb_err err = { 0 };
    int rc = 0;

    if (!z->options.device)
        return 0;
    rc = zk_gpu_open(z->options.device, 0, &d->gpu, &err);
    for (size_t i = 0; rc == 0 && i < ZB_COUNT(streams); i++)
        rc = zk_gpu_stream_new(d->gpu, streams[i], &err);
    return rc < 0 ? zcz_refuse(z, rc, "device '%s': %s", z->options.device, err.text) : 0;
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

/* What was mapped read-write for the driver alone is read-only again for this process: its pages
 * are pinned, and a stray write of the trainer ends it here as ever. */
void zcz_device_pin(struct zc_zero *z, const void *memory, uint64_t bytes)
{
    struct zcz_device *d = &z->device;
    void *at = (void *)(uintptr_t)memory;
    bool writable = zcz_device_pins_writable(z);
    struct zb_err err = {
        0
    }; /* what is not pinned is copied all the same: zc_zero_stats() shows it */

    bytes = zb_round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE)); /* mapped as whole pages */
    if (!d->gpu || bytes == 0)
        return;
    if (zk_gpu_pin(d->gpu, at, bytes, !writable, &err) == 0)
        d->arena = at;
    if (writable)
        (void)mprotect(at, bytes, PROT_READ);
}

/* No collectives between devices any more. */
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

    if (!clean) /* or draining would wait for ranks that are gone */
        device_leave(z, false);
    zk_gpu_stream_free(d->up);
    zk_gpu_stream_free(d->down);
    zk_gpu_stream_free(d->compute);
    zk_gpu_stream_free(d->coll);
    d->up = d->down = d->compute = d->coll = NULL;
    if (d->arena)
        (void)zk_gpu_unpin(d->gpu, d->arena, NULL);
    d->arena = NULL;
    device_leave(z, clean);
}

void zcz_device_close(struct zc_zero *z)
{
    zk_gpu_close(z->device.gpu);
    z->device.gpu = NULL;
}

void *zc_zero_stream(struct zc_zero *z)
{
    return z->device.compute ? zk_gpu_stream_native(z->device.compute) : NULL;
}

int zcz_device_full(struct zc_zero *z, const struct zcz_pool *pool, const char *what,
                    const struct zcz_unit *u, size_t bytes)
{
    return zcz_fail(z, pool->why.code != 0 ? pool->why.code : -ENOMEM,
                    "device '%s': no memory %s unit %u '%s': %zu bytes: %s", z->options.device,
                    what, u->def.index, u->def.name, bytes, pool->why.text);
}

int zcz_device_up(struct zc_zero *z, struct zcz_buf *b, size_t at, const struct zcz_pieces *from,
                  size_t bytes)
{
    struct zk_gpu_stream *up = z->device.up;
    bool within = z->store->on_device || z->store->params_dev;
    char *to = (char *)b->data + at;
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(b->last, up, &err);

    for (size_t done = 0; done < from->bytes && rc == 0; done += from->piece)
        rc = zk_gpu_copy(up, within ? ZK_GPU_WITHIN : ZK_GPU_TO_DEVICE, to + done,
                         (const char *)from->data + done / from->piece * from->stride,
                         zb_min_u64(from->piece, from->bytes - done), &err);
    if (rc == 0 && bytes > from->bytes)
        rc = zk_gpu_fill(up, to + from->bytes, 0, bytes - from->bytes, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(b->last, up, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

static int device_codes(struct zc_zero *z, const struct zcz_unit *u, enum zk_gpu_op op,
                        const void *from, void *to, uint64_t n, struct zb_err *err)
{
    struct zk_gpu_work work = { .op = op,
                                .array = { .from = from,
                                           .to = to,
                                           .n = n,
                                           .from_dtype = u->layout.dtype,
                                           .to_dtype = u->layout.dtype } };

    return zk_gpu_launch(z->device.up, &work, err);
}

int zcz_device_quantize(struct zc_zero *z, struct zcz_unit *u)
{
    size_t params = u->slice * zb_dtype_bytes(u->layout.dtype) * z->shard;
    size_t codes = zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->slice) * z->shard;
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(u->wire->last, z->device.up, &err);

    if (rc == 0)
        rc = device_codes(z, u, ZK_GPU_QUANTIZE_I8, (const char *)u->on_dev->data + params,
                          (char *)u->wire->data + codes, u->slice, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->wire->last, z->device.up, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

int zcz_device_dequantize(struct zc_zero *z, struct zcz_unit *u)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(u->wire->last, z->device.up, &err);

    if (rc == 0)
        rc = zk_gpu_event_wait(u->on_dev->last, z->device.up, &err);
    if (rc == 0)
        rc = device_codes(z, u, ZK_GPU_DEQUANTIZE_I8, u->wire->data, u->on_dev->data,
                          u->slice * z->shards, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->wire->last, z->device.up, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->on_dev->last, z->device.up, &err);
    zcz_buf_put(&z->wire_dev, u->wire);
    u->wire = NULL;
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

int zcz_device_zero(struct zc_zero *z, struct zcz_buf *b, size_t bytes)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_fill(z->device.compute, b->data, 0, bytes, &err);

    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

/* Zeros what is never stepped: as grad_mask() in reduce.c. */
static int down_mask(const struct zcz_device *d, const struct zcz_unit *u, float *grad,
                     uint64_t padded, struct zb_err *err)
{
    uint64_t from = 0;
    int rc = 0;

    for (uint32_t s = 0; s <= u->nsegments && rc == 0; s++) {
        uint64_t to = s < u->nsegments ? u->segments[s].first : padded;

        if (to > from)
            rc = zk_gpu_fill(d->down, grad + from, 0, (to - from) * sizeof(*grad), err);
        if (s < u->nsegments)
            from = to + u->segments[s].count;
    }
    return rc;
}

static int down_round(struct zc_zero *z, struct zcz_reduce *r, uint64_t padded, struct zb_err *err)
{
    const struct zcz_device *d = &z->device;
    struct zk_gpu_work work = { .op = ZK_GPU_CAST,
                                .array = { .from = r->on_dev->data,
                                           .n = padded,
                                           .from_dtype = ZB_F32,
                                           .to_dtype = r->unit->layout.dtype } };

    r->rounded = zcz_buf_get(&z->grad_dev, padded * zb_dtype_bytes(work.array.to_dtype));
    if (!r->rounded)
        return zb_fail(err, z->grad_dev.why.code != 0 ? z->grad_dev.why.code : -ENOMEM,
                       "no memory to round the gradient of unit %u '%s': %s", r->unit->def.index,
                       r->unit->def.name, z->grad_dev.why.text);
    work.array.to = r->rounded->data;
    return zk_gpu_launch(d->down, &work, err);
}

/* Behind the trainer's works, on the way down: what is exchanged, in r->rounded or r->on_dev. */
static int down_begin(struct zc_zero *z, struct zcz_reduce *r, struct zb_err *err)
{
    const struct zcz_device *d = &z->device;
    const struct zcz_unit *u = r->unit;
    uint64_t padded = zcz_grad_elems(z, u);
    int rc = zk_gpu_event_record(r->on_dev->last, d->compute, err);

    z->device.moving++;
    if (rc == 0)
        rc = zk_gpu_event_wait(r->on_dev->last, d->down, err);
    if (rc == 0)
        rc = down_mask(d, u, r->on_dev->data, padded, err);
    if (rc == 0 && u->layout.dtype != ZB_F32)
        rc = down_round(z, r, padded, err);
    return rc;
}

/* Nothing comes down: the store takes this rank's slice where it is. A failure says why, and is
 * final. */
static int down_keep(struct zc_zero *z, struct zcz_reduce *r, const void *from, enum zb_dtype dtype)
{
    const struct zcz_unit *u = r->unit;
    int rc = u->count > 0 ? z->store->ops->push_dev(z->store, r->unit, r->micro, from, dtype) : 0;

    r->next = u->count;
    z->pushed_bytes += u->count * sizeof(float);
    return rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
}

int zcz_device_down(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_device *d = &z->device;
    const struct zcz_unit *u = r->unit;
    const void *from;
    uint64_t padded = zcz_grad_elems(z, u);
    struct zb_err err = { 0 };
    int rc = down_begin(z, r, &err);

    from = r->rounded ? r->rounded->data : r->on_dev->data;
    if (rc == 0 && z->store->on_device)
        rc = down_keep(z, r, from, u->layout.dtype);
    else if (rc == 0)
        rc = zk_gpu_copy(d->down, ZK_GPU_TO_HOST, r->send->data, from,
                         padded * zb_dtype_bytes(u->layout.dtype), &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, d->down, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

/*
 * Memory: what is received lies behind what is rounded from in the trainer's buffer, which is twice
 * as long as need be then; of fp32 in a buffer of its own. The sum, at most as long as one of two
 * slices, comes to the front of the trainer's buffer, which was rounded, or sent, by then.
 *
 * Under stage 0 what is exchanged are parts of the only slice, and the sum of this rank's part
 * comes to its own place: of fp32 in the trainer's buffer; else in one of its own, for what was
 * received may lie there. The others' sums come around it, and the whole is the store's.
 */
int zcz_device_exchange(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_unit *u = r->unit;
    struct zcz_coll *first = z->shards > 1 ? &r->coll : &r->parts;
    size_t slice_bytes = (z->shards > 1 ? u->slice : u->part) * zb_dtype_bytes(u->layout.dtype);
    struct zb_err err = { 0 };
    int rc = down_begin(z, r, &err);

    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, z->device.down, &err);
    if (rc < 0)
        return device_fail(z, rc, &err);
    if (u->layout.dtype == ZB_F32 &&
        !(r->more_dev = zcz_buf_get(&z->grad_dev, slice_bytes * first->comm->world)))
        return zcz_device_full(z, &z->grad_dev, "to exchange the gradient of", u,
                               slice_bytes * first->comm->world);
    zcz_coll_arm_dev(first, r->on_dev, r->rounded ? r->rounded->data : r->on_dev->data,
                     r->more_dev ? r->more_dev->data
                                 : (char *)r->on_dev->data + slice_bytes * first->comm->world,
                     slice_bytes);
    return 0;
}

/* What every rank sent of `n` elements, in rank order, as zcz_add_slices(). */
static int down_add(struct zc_zero *z, const struct zcz_coll *from, enum zb_dtype dtype, uint64_t n,
                    void *to, struct zb_err *err)
{
    struct zk_gpu_work work = { .array = {
                                    .to = to, .n = n, .from_dtype = dtype, .to_dtype = ZB_F32 } };
    int rc = zk_gpu_event_wait(from->dev->last, z->device.down, err);

    for (uint32_t s = 0; s < from->comm->world && rc == 0; s++) {
        work.op = s == 0 ? ZK_GPU_CAST : ZK_GPU_ADD;
        work.array.from = (char *)from->recv + s * from->slice_bytes;
        rc = zk_gpu_launch(z->device.down, &work, err);
    }
    return rc;
}

/* Memory for a slice that is added up over replicas, which no work uses any more. */
static struct zcz_buf *across_get(struct zc_zero *z, const struct zcz_unit *u, int *ret_rc)
{
    size_t bytes = u->part * z->replicas * sizeof(float);
    struct zcz_buf *b = zcz_buf_get(&z->grad_dev, bytes);
    struct zb_err err = { 0 };

    *ret_rc = b ? zk_gpu_event_wait(b->last, z->device.down, &err)
                : zcz_device_full(z, &z->grad_dev, "to add up the gradient of", u, bytes);
    if (b && *ret_rc < 0)
        *ret_rc = device_fail(z, *ret_rc, &err);
    return b;
}

int zcz_device_inside(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_unit *u = r->unit;
    uint64_t tail = u->part * z->replicas - u->slice;
    struct zb_err err = { 0 };
    float *sums;
    int rc = 0;

    r->sums = across_get(z, u, &rc);
    if (rc == 0)
        r->parts_in = across_get(z, u, &rc);
    if (rc < 0)
        return rc;
    sums = r->sums->data;
    rc = down_add(z, &r->coll, u->layout.dtype, u->slice, sums, &err);
    if (rc == 0 && tail > 0)
        rc = zk_gpu_fill(z->device.down, sums + u->slice, 0, tail * sizeof(*sums), &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->sums->last, z->device.down, &err);
    if (rc < 0)
        return device_fail(z, rc, &err);
    zcz_coll_arm_dev(&r->parts, r->sums, sums, r->parts_in->data, u->part * sizeof(*sums));
    return 0;
}

int zcz_device_part(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_unit *u = r->unit;
    bool f32 = z->shards > 1 || u->layout.dtype == ZB_F32;
    struct zb_err err = { 0 };
    float *mine;
    int rc = 0;

    if (!r->sums)
        r->sums = f32 ? r->on_dev : across_get(z, u, &rc);
    if (rc < 0)
        return rc;
    mine = (float *)r->sums->data + u->part * z->replica;
    rc = down_add(z, &r->parts, f32 ? ZB_F32 : u->layout.dtype, u->part, mine, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->sums->last, z->device.down, &err);
    if (rc < 0)
        return device_fail(z, rc, &err);
    zcz_coll_arm_dev(&r->gather, r->sums, mine, r->sums->data, u->part * sizeof(*mine));
    return 0;
}

/* The sum of this rank's slice, fp32, is there: the store's, or on its way down. */
static int down_sum(struct zc_zero *z, struct zcz_reduce *r, const void *sum, struct zb_err *err)
{
    if (z->store->on_device)
        return down_keep(z, r, sum, ZB_F32);
    return zk_gpu_copy(z->device.down, ZK_GPU_TO_HOST, r->send->data, sum,
                       r->unit->slice * sizeof(float), err);
}

int zcz_device_parts(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(r->sums->last, z->device.down, &err);

    r->summing = r->summed = r->coll.done = true;
    if (rc == 0)
        rc = down_sum(z, r, r->sums->data, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, z->device.down, &err);
    if (rc == 0 && r->sums != r->on_dev)
        rc = zk_gpu_event_record(r->sums->last, z->device.down, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

int zcz_device_sum(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zb_err err = { 0 };
    int rc = down_add(z, &r->coll, r->unit->layout.dtype, r->unit->slice, r->on_dev->data, &err);

    r->summing = true;
    if (rc == 0)
        rc = down_sum(z, r, r->on_dev->data, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, z->device.down, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

/* What was released is told to the store: the backend may wait for a rank that waits for that. */
static int store_flush(struct zc_zero *z)
{
    int rc = z->store && !z->store_gone ? z->store->ops->poll(z->store, 0) : 0;

    if (rc >= 0)
        return 0;
    z->store_gone = true;
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
    if (rc == 0 && c->kind == ZCZ_ALL_GATHER)
        *ret_comm_rc = d->ops->all_gather(c->comm, c->send, c->recv, c->slice_bytes);
    else if (rc == 0)
        *ret_comm_rc = d->ops->exchange(c->comm, c->send, c->recv, c->slice_bytes);
    if (rc == 0 && *ret_comm_rc == 0)
        rc = zk_gpu_event_record(c->dev->last, d->coll, &err);
    return rc < 0 ? device_fail(z, rc, &err) : 0;
}

void zcz_device_used(struct zc_zero *z, const struct zcz_buf *b)
{
    if (b) /* a failure is the device's, and shows where something is asked of it */
        (void)zk_gpu_event_record(b->last, z->device.compute, NULL);
}

int zcz_device_done(struct zc_zero *z, const struct zcz_buf *b)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_query(b->last, &err);

    if (rc == -EAGAIN)
        return 0;
    return rc < 0 ? device_fail(z, rc, &err) : 1;
}
