/*
 * gather.c - one unit's parameters, from the slices of all ranks to an array that can be computed
 * with.
 *
 *     IDLE ---> FETCH ---> FETCHING ---> COLLECT ---> (UPLOAD) ---> READY ---> IDLE
 *
 *     FETCH     waits for a pin: of streamed parameters only so many can be pinned at one time
 *     FETCHING  the store brings this rank's slice, at the version behind the last step
 *     COLLECT   the slice is copied to its place in a buffer, the pin given back, and the slices of
 *               the other ranks come around it; with quantize_gather what is copied and comes are
 *               codes (quantize.c), of which the parameters are made in a buffer of their own
 *     UPLOAD    where parameters are wanted on a device: they are copied there, from the buffer, or
 *               from the view, whose pin is kept until that is done; the view may be on the device
 *               itself. Where slices are gathered
 *               between devices, COLLECT copies this rank's slice up first, and in UPLOAD are
 *               only those whose parameters are made of codes there
 *     READY     held by the trainer, or waiting for it (schedule.c)
 *
 * A rank that is alone reads the store's memory itself: COLLECT keeps the pin, and READY's end
 * gives it back. The last pin is never kept so, or nothing could be fetched any more: then it
 * copies.
 *
 * INVARIANTS
 *     The collective's place in the order is taken when the gather begins, so a gather that was
 *     dropped on its way still comes to READY before it goes, and one that is wanted again is
 *     another gather: on some ranks it was over before.
 *     z->pins counts units in FETCHING and views kept in READY; it never exceeds store->pins_max.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "client/zero/zero_priv.h"

static uint64_t slice_bytes(const struct zcz_unit *u)
{
    return u->slice * zb_dtype_bytes(u->layout.dtype);
}

static uint64_t stored_bytes(const struct zcz_unit *u)
{
    return u->count * zb_dtype_bytes(u->layout.dtype);
}

void zcz_gather_begin(struct zc_zero *z, struct zcz_unit *u)
{
    assert(u->state == ZCZ_IDLE);
    u->state = ZCZ_FETCH;
    zb_list_push_back(&z->gathers, &u->node);
    if (z->shards > 1) {
        zcz_coll_queue(z, &u->coll, ZCZ_ALL_GATHER, z->inside, "the gather of", u->def.index);
        u->coll.bytes = &z->gather_bytes;
    }
}

static int gather_unpin(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = z->store->ops->release(z->store, u);

    u->pinned = false;
    z->pins--;
    return rc < 0 ? zcz_fail(z, rc, "release of unit %u '%s': %s", u->def.index, u->def.name,
                             zcz_store_text(z->store))
                  : 0;
}

static int gather_idle(struct zc_zero *z, struct zcz_unit *u)
{
    u->state = ZCZ_IDLE;
    u->params = NULL;
    u->drop = false;
    zb_list_remove(&u->node);
    zcz_device_used(z, u->on_dev);
    if (!z->whole_params) {
        zcz_buf_put(&z->gather_pool, u->buf);
        zcz_buf_put(&z->gather_dev, u->on_dev);
        u->buf = u->on_dev = NULL;
    }
    z->moved = true;
    return u->pinned ? gather_unpin(z, u) : 0;
}

void zcz_gather_gone(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_wait w = { .what = "a gather that was given up" };
    int rc = 0;

    while (rc == 0 && u->drop)
        rc = zcz_wait(z, &w);
}

void zcz_gather_drop(struct zc_zero *z, struct zcz_unit *u)
{
    u->drop = true;
    if (u->state == ZCZ_READY)
        (void)gather_idle(z, u); /* a failure is z's, and shows at the next call */
}

static int gather_fetch(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (u->count == 0) { /* this rank keeps nothing of it */
        u->state = ZCZ_COLLECT;
        z->moved = true;
        return 0;
    }
    if (z->pins == z->store->pins_max)
        return 0;
    rc = z->store->ops->fetch(z->store, &u->fetch, u, z->applied);
    if (rc == -EAGAIN)
        return 0;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    z->pins++;
    u->state = ZCZ_FETCHING;
    z->moved = true;
    return 0;
}

static int gather_fetched(struct zc_zero *z, struct zcz_unit *u)
{
    if (u->fetch.pending > 0)
        return 0;
    if (u->fetch.rc < 0)
        return zcz_fail(z, u->fetch.rc, "fetch of unit %u '%s': %s", u->def.index, u->def.name,
                        zcz_store_text(z->store));
    if (u->view.version != z->applied || u->view.bytes != stored_bytes(u))
        return zcz_fail(z, -EPROTO,
                        "unit %u '%s' came as %llu bytes of version %llu, and not %llu of %llu",
                        u->def.index, u->def.name, (unsigned long long)u->view.bytes,
                        (unsigned long long)u->view.version, (unsigned long long)stored_bytes(u),
                        (unsigned long long)z->applied);
    u->pinned = true;
    z->fetched_bytes += stored_bytes(u);
    u->state = ZCZ_COLLECT;
    z->moved = true;
    return 0;
}

/* Of the host. */
static struct zcz_pool *gather_pool(struct zc_zero *z)
{
    return z->whole_params && !z->device.gpu ? &z->whole_param : &z->gather_pool;
}

/* On the device: there is u->on_dev, or the failure. */
static int gather_dev_get(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_pool *pool = z->whole_params ? &z->whole_param : &z->gather_dev;
    size_t bytes = slice_bytes(u) * z->shards;

    if (!u->on_dev)
        u->on_dev = zcz_buf_get(pool, bytes);
    return u->on_dev ? 0 : zcz_device_full(z, pool, "to gather", u, bytes);
}

static int gather_no_memory(struct zc_zero *z, const struct zcz_unit *u)
{
    return zcz_fail(z, -ENOMEM, "no memory to gather unit %u '%s': %llu bytes", u->def.index,
                    u->def.name, (unsigned long long)(slice_bytes(u) * z->shards));
}

/* The slice to its place, zeros behind it. A store with whole units has it there. */
static int gather_copy(struct zc_zero *z, struct zcz_unit *u)
{
    char *place;

    if (!u->buf)
        u->buf = zcz_buf_get(gather_pool(z), slice_bytes(u) * z->shards);
    if (!u->buf)
        return gather_no_memory(z, u);
    place = (char *)u->buf->data + slice_bytes(u) * z->shard;
    if (u->count > 0 && place != u->view.data)
        memcpy(place, u->view.data, stored_bytes(u));
    memset(place + stored_bytes(u), 0, slice_bytes(u) - stored_bytes(u));
    u->params = u->buf->data;
    return u->pinned ? gather_unpin(z, u) : 0;
}

static bool gather_quantized(const struct zc_zero *z, const struct zcz_unit *u)
{
    return z->options.quantize_gather && !u->def.frozen;
}

/* Likewise, as it travels. */
static int gather_quantize(struct zc_zero *z, struct zcz_unit *u)
{
    size_t bytes = zcz_wire_bytes(u->slice);
    char *place;

    u->wire = zcz_buf_get(&z->wire_pool, bytes * z->shards);
    if (!u->wire)
        return zcz_fail(z, -ENOMEM, "no memory to quantize unit %u '%s': %llu bytes", u->def.index,
                        u->def.name, (unsigned long long)(bytes * z->shards));
    place = (char *)u->wire->data + bytes * z->shard;
    zcz_quantize(z->kernels, u->layout.dtype, u->view.data, u->count, u->slice, place);
    zcz_coll_arm(&u->coll, place, u->wire->data, bytes);
    return u->pinned ? gather_unpin(z, u) : 0;
}

static int gather_dequantize(struct zc_zero *z, struct zcz_unit *u)
{
    u->buf = zcz_buf_get(&z->gather_pool, slice_bytes(u) * z->shards);
    if (!u->buf)
        return gather_no_memory(z, u);
    for (uint32_t s = 0; s < z->shards; s++)
        zcz_dequantize(z->kernels, u->layout.dtype,
                       (char *)u->wire->data + zcz_wire_bytes(u->slice) * s, u->slice,
                       (char *)u->buf->data + slice_bytes(u) * s);
    zcz_buf_put(&z->wire_pool, u->wire);
    u->wire = NULL;
    u->params = u->buf->data;
    return 0;
}

/* This rank's slice starts to travel. */
static int gather_send(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    z->moved = true;
    if (gather_quantized(z, u))
        return gather_quantize(z, u);
    rc = gather_copy(z, u);
    if (rc == 0)
        zcz_coll_arm(&u->coll, (char *)u->buf->data + slice_bytes(u) * z->shard, u->buf->data,
                     slice_bytes(u));
    return rc;
}

/* What is pinned: of the host, or on the device, where it is copied within. */
static const void *view_data(const struct zc_zero *z, const struct zcz_unit *u)
{
    return z->store->params_dev ? z->store->params_dev + u->view.offset : u->view.data;
}

/* The bytes are in one piece, and wanted in a buffer on the device. */
static int gather_upload(struct zc_zero *z, struct zcz_unit *u)
{
    size_t bytes = slice_bytes(u) * z->shards;
    int rc = gather_dev_get(z, u);

    if (rc < 0)
        return rc;
    rc = u->buf ? zcz_device_up(z, u->on_dev, 0, u->buf->data, bytes, bytes)
                : zcz_device_up(z, u->on_dev, 0, view_data(z, u), stored_bytes(u), bytes);
    u->state = ZCZ_UPLOAD;
    z->moved = true;
    return rc;
}

static int gather_uploaded(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = zcz_device_done(z, u->on_dev);

    if (rc <= 0)
        return rc;
    z->device.moving--;
    zcz_buf_put(&z->gather_pool, u->buf);
    u->buf = NULL;
    u->params = u->on_dev->data;
    u->state = ZCZ_READY;
    z->moved = true;
    return u->pinned ? gather_unpin(z, u) : 0;
}

static int gather_collect_on_device(struct zc_zero *z, struct zcz_unit *u)
{
    size_t at = slice_bytes(u) * z->shard;
    int rc;

    if (!u->copying) {
        rc = gather_dev_get(z, u);
        if (rc < 0)
            return rc;
        u->copying = true;
        z->moved = true;
        return zcz_device_up(z, u->on_dev, at, view_data(z, u), stored_bytes(u), slice_bytes(u));
    }
    if (!u->coll.armed) { /* the pin does not wait for other ranks, who may wait for theirs */
        rc = zcz_device_done(z, u->on_dev);
        if (rc <= 0)
            return rc;
        z->device.moving--;
        if (gather_quantized(z, u))
            rc = zcz_device_quantize(z, u);
        else
            zcz_coll_arm_dev(&u->coll, u->on_dev, (char *)u->on_dev->data + at, u->on_dev->data,
                             slice_bytes(u));
        z->moved = true;
        if (rc < 0)
            return rc;
        return u->pinned ? gather_unpin(z, u) : 0;
    }
    if (u->coll.done && u->wire) {
        u->copying = false;
        u->state = ZCZ_UPLOAD;
        z->moved = true;
        return zcz_device_dequantize(z, u);
    }
    if (u->coll.done) {
        u->copying = false;
        u->params = u->on_dev->data;
        u->state = ZCZ_READY;
        z->moved = true;
    }
    return 0;
}

static int gather_collect(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = 0;

    if (z->shards == 1 && z->store->on_device) { /* the view is what is computed with */
        u->params = u->view.data;
        u->state = ZCZ_READY;
        z->moved = true;
        return 0;
    }
    if (z->shards == 1 && z->device.gpu)
        return gather_upload(z, u);
    if (z->device.ops)
        return gather_collect_on_device(z, u);

    if (z->shards == 1 && z->pins < z->store->pins_max) {
        u->params = u->view.data;
    } else if (z->shards == 1) {
        rc = gather_copy(z, u);
    } else if (!u->coll.armed) {
        return gather_send(z, u);
    } else if (!u->coll.done) {
        return 0;
    } else if (u->wire) {
        rc = gather_dequantize(z, u);
    }
    if (rc == 0 && z->device.gpu)
        return gather_upload(z, u);
    u->state = ZCZ_READY;
    z->moved = true;
    return rc;
}

static int gather_run(struct zc_zero *z, struct zcz_unit *u)
{
    switch (u->state) {
    case ZCZ_IDLE:
        return 0;
    case ZCZ_FETCH:
        return gather_fetch(z, u);
    case ZCZ_FETCHING:
        return gather_fetched(z, u);
    case ZCZ_COLLECT:
        return gather_collect(z, u);
    case ZCZ_UPLOAD:
        return gather_uploaded(z, u);
    case ZCZ_READY:
        return u->drop ? gather_idle(z, u) : 0;
    }
    return 0;
}

int zcz_gather_turn(struct zc_zero *z)
{
    int rc = 0;

    zb_list_each(pos, &z->gathers)
    {
        rc = gather_run(z, zb_container_of(pos, struct zcz_unit, node));
        if (rc < 0)
            break;
    }
    return rc;
}

/* ---- the trainer's calls */

int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params)
{
    struct zcz_wait w = { .what = "a gather" };
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->holds == 0) {
        rc = zcz_schedule_gathered(z, unit);
        if (rc < 0)
            return rc;
        zcz_gather_gone(z, u);
        if (u->state == ZCZ_IDLE)
            zcz_gather_begin(z, u);
        u->holds = 1;
        u->unreduced = true;
        zcz_schedule_apply(z);
    } else {
        u->holds++;
    }
    rc = zcz_turn(z, 0);
    while (rc == 0 && u->state != ZCZ_READY)
        rc = zcz_wait(z, &w);
    if (rc < 0)
        return rc;
    *ret_params = u->params;
    return 0;
}

int zc_zero_release(struct zc_zero *z, uint32_t unit)
{
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->holds == 0)
        return zcz_refuse(z, -EINVAL, "unit %u '%s' is released and was not gathered", unit,
                          u->def.name);
    if (--u->holds == 0)
        zcz_schedule_apply(z);
    return zcz_turn(z, 0);
}
