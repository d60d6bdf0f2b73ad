/*
 * gather.c - gathers one unit's parameters: from the slices of all ranks to one array for
 * computation.
 *
 *     IDLE ---> FETCH ---> FETCHING ---> COLLECT ---> (UPLOAD) ---> READY ---> IDLE
 *
 *     FETCH     waits for a pin: the number of streamed slices that are pinned at one time is
 *               limited
 *     FETCHING  the store fetches this rank's slice, at the version after the last step
 *     COLLECT   the slice is copied to its place in a buffer and unpinned, and the slices of the
 *               other ranks are gathered around it. The slice may be on the device, and the buffer
 *               not: then it is copied down
 *     UPLOAD    if parameters are needed on a device: they are copied there from the buffer, or
 *               from the view, which may itself be on the device. The view stays pinned until the
 *               copy is done. If slices are gathered between devices, COLLECT copies this rank's
 *               slice up first, and only units that are dequantized on the device enter UPLOAD
 *     READY     held by the trainer, or kept for it (schedule.c)
 *
 * CODES. A unit may be copied and gathered as blockwise int8 (zcz_coded()), and is then dequantized
 * into a buffer of its own. A unit that is stored quantized is gathered as stored. With
 * quantize_gather, a slice is quantized for the gather. Every rank computes with the dequantized
 * values, also the rank that has the slice. Slices are whole blocks, so a weight's value does not
 * depend on the number of ranks.
 *
 * A rank that is alone reads the store's memory in place: COLLECT keeps the pin until READY ends.
 * It never keeps the last pin in this way, or no other unit could be fetched; in that case it
 * copies.
 *
 * INVARIANTS
 *     A collective takes its place in the order when the gather begins. So a gather that was
 *     dropped on its way still becomes READY before it ends. If the unit is needed again meanwhile,
 *     that is another gather, because on some ranks the first one has ended already.
 *     z->pass->pins counts units in FETCHING and views kept in READY; it never exceeds
 *     store->pins_max.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

/* Bytes of the slice as it is stored, in pages. */
static uint64_t stored_bytes(const struct zc_zero *z, const struct zcz_unit *u)
{
    return zb_plane_bytes(u->layout.block_bytes[ZB_PARAM], z->store->page_elems, u->count);
}

void zcz_gather_begin(struct zc_zero *z, struct zcz_unit *u)
{
    assert(u->pass->state == ZCZ_IDLE);
    u->pass->state = ZCZ_FETCH;
    zb_list_push_back(&z->pass->gathers, &u->pass->node);
    zcz_alone_begin(u);
    if (z->pass->way == ZCZ_WAY_NODES)
        zcz_nodes_begin(z, u);
    else if (z->shards > 1 && z->pass->way == ZCZ_WAY_COMM)
        zcz_coll_queue(z, &u->pass->coll, z->inside, ZCZ_CALL_GATHER, u->def.index, 0);
}

static int gather_unpin(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (z->pass->way != ZCZ_WAY_COMM)
        return zcz_alone_unpin(z, u);
    rc = z->store->ops->release(z->store, u);
    u->pass->pinned = false;
    z->pass->pins--;
    return rc < 0 ? zcz_fail(z, rc, "release of unit %u '%s': %s", u->def.index, u->def.name,
                             zcz_store_text(z->store))
                  : 0;
}

static int gather_idle(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->state = ZCZ_IDLE;
    u->pass->params = NULL;
    u->pass->drop = false;
    zb_list_remove(&u->pass->node);
    zcz_device_used(z, u->pass->on_dev);
    if (!z->whole_params) {
        zcz_buf_put(&z->pass->gather_pool, u->pass->buf);
        zcz_buf_put(&z->pass->gather_dev, u->pass->on_dev);
        u->pass->buf = u->pass->on_dev = NULL;
    }
    zcz_moved(z);
    return u->pass->pinned ? gather_unpin(z, u) : 0;
}

void zcz_gather_gone(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_wait w = { .what = "a gather that was given up" };
    int rc = 0;

    while (rc == 0 && u->pass->drop)
        rc = zcz_wait(z, &w);
}

void zcz_gather_drop(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->drop = true;
    if (u->pass->state == ZCZ_READY)
        (void)gather_idle(z, u); /* a failure is recorded in z, and reported by the next call */
}

static int gather_fetch(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (u->count == 0) { /* this rank keeps nothing of the unit */
        u->pass->state = ZCZ_COLLECT;
        zcz_moved(z);
        return 0;
    }
    if (z->pass->pins == z->store->pins_max)
        return 0;
    rc = z->store->ops->fetch(z->store, &u->pass->fetch, u, z->applied);
    if (rc == -EAGAIN)
        return 0;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    z->pass->pins++;
    u->pass->state = ZCZ_FETCHING;
    zcz_moved(z);
    return 0;
}

static int gather_fetched(struct zc_zero *z, struct zcz_unit *u)
{
    if (u->pass->fetch.pending > 0)
        return 0;
    if (u->pass->fetch.rc < 0)
        return zcz_fail(z, u->pass->fetch.rc, "fetch of unit %u '%s': %s", u->def.index,
                        u->def.name, zcz_store_text(z->store));
    if ((u->view.version != z->applied || u->view.bytes != stored_bytes(z, u)) && !z->store->lost)
        return zcz_fail(z, -EPROTO,
                        "unit %u '%s' came as %llu bytes of version %llu, and not %llu of %llu",
                        u->def.index, u->def.name, (unsigned long long)u->view.bytes,
                        (unsigned long long)u->view.version, (unsigned long long)stored_bytes(z, u),
                        (unsigned long long)z->applied);
    u->pass->pinned = true;
    z->pass->fetched_bytes += stored_bytes(z, u);
    u->pass->state = ZCZ_COLLECT;
    zcz_moved(z);
    return 0;
}

static struct zcz_pieces view_pieces(const struct zc_zero *z, const struct zcz_unit *u)
{
    return zcz_gather_pieces(z, u, &u->view, u->count);
}

/* Copies the slice to its place among others of `bytes` each, followed by zeros. In a store with
 * whole units it is there already. */
static void gather_place(const struct zc_zero *z, const struct zcz_unit *u, struct zcz_buf *b,
                         size_t bytes)
{
    struct zcz_pieces from = view_pieces(z, u);
    char *place = (char *)b->data + bytes * z->shard;

    for (size_t done = 0; done < from.bytes && place != from.data; done += from.piece)
        memcpy(place + done, (const char *)from.data + done / from.piece * from.stride,
               zb_min_u64(from.piece, from.bytes - done));
    memset(place + from.bytes, 0, bytes - from.bytes);
}

static int gather_copy(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = zcz_gather_host_get(z, u);

    if (rc < 0)
        return rc;
    gather_place(z, u, u->pass->buf, zcz_slice_bytes(u));
    u->pass->params = u->pass->buf->data;
    return u->pass->pinned ? gather_unpin(z, u) : 0;
}

/* ---- codes, on the host */

static int gather_wire_get(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->wire = zcz_buf_get(&z->pass->wire_pool, zcz_wire_bytes(u) * z->shards);
    return u->pass->wire
               ? 0
               : zcz_fail(z, -ENOMEM, "no memory for the codes of unit %u '%s': %llu bytes",
                          u->def.index, u->def.name,
                          (unsigned long long)(zcz_wire_bytes(u) * z->shards));
}

static int gather_encode(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = gather_wire_get(z, u);
    char *place;

    if (rc < 0)
        return rc;
    if (u->layout.quantized) {
        gather_place(z, u, u->pass->wire, zcz_wire_bytes(u));
    } else {
        place = (char *)u->pass->wire->data + zcz_wire_bytes(u) * z->shard;
        zk_q8_write(z->kernels, u->layout.dtype, u->view.data, u->count, place);
        memset(place + zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->count), 0,
               zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->slice - u->count));
    }
    return u->pass->pinned ? gather_unpin(z, u) : 0;
}

static int gather_decode(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = zcz_gather_host_get(z, u); /* a unit in codes is of stage 3 */

    if (rc < 0)
        return rc;
    zk_q8_read(z->kernels, u->layout.dtype, u->pass->wire->data, u->slice * z->shards,
               u->pass->buf->data);
    zcz_buf_put(&z->pass->wire_pool, u->pass->wire);
    u->pass->wire = NULL;
    u->pass->params = u->pass->buf->data;
    return 0;
}

/* Copies the slice, as it is stored, from GPU memory of the daemon to its place in host memory. 1:
 * it is there; 0: not yet. */
static int gather_down(struct zc_zero *z, struct zcz_unit *u)
{
    size_t bytes = u->layout.quantized ? zcz_wire_bytes(u) : zcz_slice_bytes(u);
    struct zcz_pieces from = view_pieces(z, u);
    struct zcz_buf *b;
    char *place;
    int rc = 0;

    if (!u->pass->copying)
        rc = u->layout.quantized ? gather_wire_get(z, u) : zcz_gather_host_get(z, u);
    if (rc < 0)
        return rc;
    b = u->layout.quantized ? u->pass->wire : u->pass->buf;
    place = (char *)b->data + bytes * z->shard;
    if (!u->pass->copying) {
        u->pass->copying = true;
        zcz_device_moves(z);
        zcz_moved(z);
        return zcz_device_down(z, place, &from, &u->pass->down);
    }
    rc = zcz_device_reached(z, u->pass->down);
    if (rc <= 0)
        return rc;
    u->pass->copying = false;
    zcz_device_moved(z);
    memset(place + from.bytes, 0, bytes - from.bytes);
    rc = gather_unpin(z, u);
    return rc < 0 ? rc : 1;
}

/* Makes this rank's slice ready for the collective. */
static int gather_send(struct zc_zero *z, struct zcz_unit *u)
{
    bool coded = zcz_coded(z, u);
    size_t bytes = coded ? zcz_wire_bytes(u) : zcz_slice_bytes(u);
    struct zcz_buf *b;
    int rc;

    if (z->store->params_dev && u->pass->pinned)
        rc = gather_down(z, u);
    else
        rc = coded ? gather_encode(z, u) : gather_copy(z, u);
    if (u->pass->copying || rc < 0)
        return rc;
    b = coded ? u->pass->wire : u->pass->buf;
    zcz_moved(z);
    zcz_coll_arm(&u->pass->coll, (char *)b->data + bytes * z->shard, b->data, bytes);
    return 0;
}

/* ---- on a device */

/* Begins to copy the slice, as it is stored, to the device: codes to u->pass->wire, parameters to
 * u->pass->on_dev. */
static int gather_up(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_pieces from = view_pieces(z, u);
    size_t bytes = u->layout.quantized ? zcz_wire_bytes(u) : zcz_slice_bytes(u);
    int rc = zcz_gather_dev_get(z, u);

    return rc < 0 ? rc
                  : zcz_device_up(z, u->layout.quantized ? u->pass->wire : u->pass->on_dev,
                                  bytes * z->shard, &from, bytes);
}

/* The data is complete on the host, or in the view: begins to copy it to the device. */
static int gather_upload(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (u->pass->buf)
        return zcz_gather_host_up(z, u);
    rc = gather_up(z, u);
    return rc < 0 ? rc : zcz_gather_made(z, u);
}

static int gather_uploaded(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = zcz_device_done(z, u->pass->on_dev);

    if (rc <= 0)
        return rc;
    zcz_device_moved(z);
    zcz_buf_put(&z->pass->gather_pool, u->pass->buf);
    u->pass->buf = NULL;
    u->pass->params = u->pass->on_dev->data;
    u->pass->state = ZCZ_READY;
    zcz_moved(z);
    return u->pass->pinned ? gather_unpin(z, u) : 0;
}

/* The slice is on the device: arms the collective. */
static int gather_send_on_device(struct zc_zero *z, struct zcz_unit *u)
{
    size_t bytes = u->pass->wire ? zcz_wire_bytes(u) : zcz_slice_bytes(u);
    struct zcz_buf *b = u->pass->wire ? u->pass->wire : u->pass->on_dev;
    int rc = u->pass->wire && !u->layout.quantized ? zcz_gather_quantize(z, u) : 0;

    zcz_device_moved(z);
    zcz_moved(z);
    if (rc < 0)
        return rc;
    zcz_coll_arm_dev(&u->pass->coll, b, (char *)b->data + bytes * z->shard, b->data, bytes);
    return u->pass->pinned ? gather_unpin(z, u) : 0;
}

static int gather_collect_on_device(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (!u->pass->copying) {
        u->pass->copying = true;
        zcz_device_moves(z);
        zcz_moved(z);
        return gather_up(z, u);
    }
    if (!u->pass->coll.armed) { /* unpin without waiting for other ranks, which may wait for a pin
                                   themselves */
        rc = zcz_device_done(z, u->layout.quantized ? u->pass->wire : u->pass->on_dev);
        return rc <= 0 ? rc : gather_send_on_device(z, u);
    }
    if (u->pass->coll.done && u->pass->wire)
        return zcz_gather_made(z, u);
    if (u->pass->coll.done) {
        u->pass->copying = false;
        u->pass->params = u->pass->on_dev->data;
        u->pass->state = ZCZ_READY;
        zcz_moved(z);
    }
    return 0;
}

/* ---- turns */

/* A rank that is alone, on the host: uses the view in place, unless it is quantized or has the last
 * pin. */
static int gather_self(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = 0;

    if (u->layout.quantized) {
        rc = gather_encode(z, u);
        if (rc == 0)
            rc = gather_decode(z, u);
    } else if (z->pass->pins < z->store->pins_max) {
        u->pass->params = u->view.data;
    } else {
        rc = gather_copy(z, u);
    }
    return rc;
}

static int gather_collect(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = 0;

    if (z->shards == 1 && z->store->on_device && !u->layout.quantized) {
        u->pass->params = u->view.data; /* used in place */
        u->pass->state = ZCZ_READY;
        zcz_moved(z);
        return 0;
    }
    if (z->shards == 1 && z->device.gpu)
        return gather_upload(z, u);
    if (z->device.ops)
        return gather_collect_on_device(z, u);

    if (z->shards == 1)
        rc = gather_self(z, u);
    else if (!u->pass->coll.armed)
        return gather_send(z, u);
    else if (!u->pass->coll.done)
        return 0;
    else if (u->pass->wire)
        rc = gather_decode(z, u);
    if (rc == 0 && z->device.gpu)
        return gather_upload(z, u);
    u->pass->state = ZCZ_READY;
    zcz_moved(z);
    return rc;
}

static int gather_run(struct zc_zero *z, struct zcz_unit *u)
{
    bool by_name = z->pass->way != ZCZ_WAY_COMM;

    switch (u->pass->state) {
    case ZCZ_IDLE:
        return 0;
    case ZCZ_FETCH:
        return by_name ? zcz_alone_fetch(z, u) : gather_fetch(z, u);
    case ZCZ_FETCHING:
        return by_name ? zcz_alone_fetched(z, u) : gather_fetched(z, u);
    case ZCZ_COLLECT:
        return by_name ? zcz_alone_collect(z, u) : gather_collect(z, u);
    case ZCZ_UPLOAD:
        return gather_uploaded(z, u);
    case ZCZ_READY:
        return u->pass->drop ? gather_idle(z, u) : 0;
    }
    return 0;
}

int zcz_gather_turn(struct zc_zero *z)
{
    int rc = 0;

    zb_list_each(pos, &z->pass->gathers)
    {
        rc = gather_run(z, zb_container_of(pos, struct zcz_pass_unit, node)->unit);
        if (rc < 0)
            break;
    }
    return rc;
}
