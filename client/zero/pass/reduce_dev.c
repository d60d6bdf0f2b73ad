/*
 * reduce_dev.c - gradients on a device: masked and rounded there, then copied down, or exchanged
 * and added between devices (core/device.c has the order).
 */
#include <errno.h>

#include "client/zero/pass/pass_priv.h"

/* Zeros elements that are never stepped, as zcz_grad_mask(). */
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

    r->rounded = zcz_buf_get(&z->pass->grad_dev, padded * zb_dtype_bytes(work.array.to_dtype));
    if (!r->rounded)
        return zb_fail(err, z->pass->grad_dev.why.code != 0 ? z->pass->grad_dev.why.code : -ENOMEM,
                       "no memory to round the gradient of unit %u '%s': %s", r->unit->def.index,
                       r->unit->def.name, z->pass->grad_dev.why.text);
    work.array.to = r->rounded->data;
    return zk_gpu_launch(d->down, &work, err);
}

/* On stream `down`, after the trainer's work: prepares what is exchanged, in r->rounded or
 * r->on_dev. */
static int down_begin(struct zc_zero *z, struct zcz_reduce *r, struct zb_err *err)
{
    const struct zcz_device *d = &z->device;
    const struct zcz_unit *u = r->unit;
    uint64_t padded = zcz_grad_elems(z, u);
    int rc = zk_gpu_event_record(r->on_dev->last, d->compute, err);

    zcz_device_moves(z);
    if (rc == 0)
        rc = zk_gpu_event_wait(r->on_dev->last, d->down, err);
    if (rc == 0)
        rc = down_mask(d, u, r->on_dev->data, padded, err);
    if (rc == 0 && u->layout.dtype != ZB_F32)
        rc = down_round(z, r, padded, err);
    return rc;
}

/* Nothing is copied down: the store takes this rank's slice from the device. A failure is final. */
static int down_keep(struct zc_zero *z, struct zcz_reduce *r, const void *from, enum zb_dtype dtype)
{
    const struct zcz_unit *u = r->unit;
    int rc = u->count > 0 ? z->store->ops->push_dev(z->store, r->unit, r->micro, from, dtype) : 0;

    r->next = u->count;
    z->pass->pushed_bytes += u->count * sizeof(float);
    return rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
}

int zcz_reduce_down(struct zc_zero *z, struct zcz_reduce *r)
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
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

/*
 * MEMORY. With a 16-bit dtype, the trainer's buffer is twice as long as what is rounded from it, so
 * its second half receives. An fp32 gradient is received in a buffer of its own. The sum is written
 * to the front of the trainer's buffer and takes at most half of it; what was there has been
 * rounded or sent.
 *
 * At stage 0 parts of the only slice are exchanged, and the sum of this rank's part is written to
 * its own place: for fp32 in the trainer's buffer; otherwise in a buffer of its own, because
 * received data may be there. The sums of the others are gathered around it, and the store takes
 * the whole.
 */
int zcz_reduce_exchange(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_unit *u = r->unit;
    struct zcz_coll *first = z->shards > 1 ? &r->coll : &r->parts;
    size_t slice_bytes = (z->shards > 1 ? u->slice : u->part) * zb_dtype_bytes(u->layout.dtype);
    struct zb_err err = { 0 };
    int rc = down_begin(z, r, &err);

    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, z->device.down, &err);
    if (rc < 0)
        return zcz_device_fail(z, rc, &err);
    if (u->layout.dtype == ZB_F32 &&
        !(r->more_dev = zcz_buf_get(&z->pass->grad_dev, slice_bytes * first->comm->world)))
        return zcz_device_full(z, &z->pass->grad_dev, "to exchange the gradient of", u,
                               slice_bytes * first->comm->world);
    zcz_coll_arm_dev(first, r->on_dev, r->rounded ? r->rounded->data : r->on_dev->data,
                     r->more_dev ? r->more_dev->data
                                 : (char *)r->on_dev->data + slice_bytes * first->comm->world,
                     slice_bytes);
    return 0;
}

/* Adds what every rank sent of `n` elements, in rank order, as zcz_add_slices(). */
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

/* Gets memory for a slice that is added over replicas, ordered after all work that used it. */
static struct zcz_buf *across_get(struct zc_zero *z, const struct zcz_unit *u, int *ret_rc)
{
    size_t bytes = u->part * z->replicas * sizeof(float);
    struct zcz_buf *b = zcz_buf_get(&z->pass->grad_dev, bytes);
    struct zb_err err = { 0 };

    *ret_rc = b ? zk_gpu_event_wait(b->last, z->device.down, &err)
                : zcz_device_full(z, &z->pass->grad_dev, "to add up the gradient of", u, bytes);
    if (b && *ret_rc < 0)
        *ret_rc = zcz_device_fail(z, *ret_rc, &err);
    return b;
}

int zcz_reduce_inside(struct zc_zero *z, struct zcz_reduce *r)
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
        return zcz_device_fail(z, rc, &err);
    zcz_coll_arm_dev(&r->parts, r->sums, sums, r->parts_in->data, u->part * sizeof(*sums));
    return 0;
}

int zcz_reduce_part(struct zc_zero *z, struct zcz_reduce *r)
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
        return zcz_device_fail(z, rc, &err);
    zcz_coll_arm_dev(&r->gather, r->sums, mine, r->sums->data, u->part * sizeof(*mine));
    return 0;
}

/* The fp32 sum of this rank's slice is complete: passes it to the store, or begins to copy it
 * down. */
static int down_sum(struct zc_zero *z, struct zcz_reduce *r, const void *sum, struct zb_err *err)
{
    if (z->store->on_device)
        return down_keep(z, r, sum, ZB_F32);
    return zk_gpu_copy(z->device.down, ZK_GPU_TO_HOST, r->send->data, sum,
                       r->unit->slice * sizeof(float), err);
}

int zcz_reduce_parts(struct zc_zero *z, struct zcz_reduce *r)
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
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zcz_reduce_sum(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zb_err err = { 0 };
    int rc = down_add(z, &r->coll, r->unit->layout.dtype, r->unit->slice, r->on_dev->data, &err);

    r->summing = true;
    if (rc == 0)
        rc = down_sum(z, r, r->on_dev->data, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(r->on_dev->last, z->device.down, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}
