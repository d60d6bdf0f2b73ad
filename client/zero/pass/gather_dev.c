/*
 * gather_dev.c - buffers of gathers, on the host and on a device; quantizing and dequantizing there.
 * Also the layout of a view, in pieces.
 */
#include <errno.h>

#include "client/zero/pass/pass_priv.h"

int zcz_gather_host_get(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_pool *pool = z->whole_params && !z->device.gpu ? &z->whole_param
                                                              : &z->pass->gather_pool;
    size_t bytes = zcz_slice_bytes(u) * z->shards;

    if (!u->pass->buf)
        u->pass->buf = zcz_buf_get(pool, bytes);
    return u->pass->buf ? 0
                        : zcz_fail(z, -ENOMEM, "no memory to gather unit %u '%s': %zu bytes",
                                   u->def.index, u->def.name, bytes);
}

int zcz_gather_host_up(struct zc_zero *z, struct zcz_unit *u)
{
    size_t bytes = zcz_slice_bytes(u) * z->shards;
    struct zcz_pieces from = {
        .data = u->pass->buf->data, .bytes = bytes, .piece = bytes, .stride = bytes
    };
    int rc = zcz_gather_dev_whole(z, u);

    if (rc == 0)
        rc = zcz_device_up(z, u->pass->on_dev, 0, &from, bytes);
    return rc < 0 ? rc : zcz_gather_made(z, u);
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

int zcz_gather_quantize(struct zc_zero *z, struct zcz_unit *u)
{
    size_t params = u->slice * zb_dtype_bytes(u->layout.dtype) * z->shard;
    size_t codes = zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->slice) * z->shard;
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(u->pass->wire->last, z->device.up, &err);

    if (rc == 0)
        rc = device_codes(z, u, ZK_GPU_QUANTIZE_I8, (const char *)u->pass->on_dev->data + params,
                          (char *)u->pass->wire->data + codes, u->slice, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->pass->wire->last, z->device.up, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zcz_gather_dequantize(struct zc_zero *z, struct zcz_unit *u)
{
    struct zb_err err = { 0 };
    int rc = zk_gpu_event_wait(u->pass->wire->last, z->device.up, &err);

    if (rc == 0)
        rc = zk_gpu_event_wait(u->pass->on_dev->last, z->device.up, &err);
    if (rc == 0)
        rc = device_codes(z, u, ZK_GPU_DEQUANTIZE_I8, u->pass->wire->data, u->pass->on_dev->data,
                          u->slice * z->shards, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->pass->wire->last, z->device.up, &err);
    if (rc == 0)
        rc = zk_gpu_event_record(u->pass->on_dev->last, z->device.up, &err);
    zcz_buf_put(&z->pass->wire_dev, u->pass->wire);
    u->pass->wire = NULL;
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zcz_gather_made(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->copying = false;
    u->pass->state = ZCZ_UPLOAD;
    zcz_device_moves(z);
    zcz_moved(z);
    return u->pass->wire ? zcz_gather_dequantize(z, u) : 0;
}

int zcz_gather_dev_whole(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_pool *pool = z->whole_params ? &z->whole_param : &z->pass->gather_dev;
    size_t bytes = zcz_slice_bytes(u) * z->shards;

    if (!u->pass->on_dev)
        u->pass->on_dev = zcz_buf_get(pool, bytes);
    return u->pass->on_dev ? 0 : zcz_device_full(z, pool, "to gather", u, bytes);
}

int zcz_gather_dev_get(struct zc_zero *z, struct zcz_unit *u)
{
    int rc = zcz_gather_dev_whole(z, u);

    if (rc < 0 || !zcz_coded(z, u) || u->pass->wire)
        return rc;
    u->pass->wire = zcz_buf_get(&z->pass->wire_dev, zcz_wire_bytes(u) * z->shards);
    return u->pass->wire ? 0
                         : zcz_device_full(z, &z->pass->wire_dev, "for the codes of", u,
                                           zcz_wire_bytes(u) * z->shards);
}

/* The stores of this process keep a slice as one page. In pages of the daemon's size, it must have
 * no gaps. */
_Static_assert(ZB_PAGE_ELEMS_DEFAULT / ZB_BLOCK_ELEMS * ZB_Q8_BLOCK_BYTES % ZB_PAGE_ALIGN == 0,
               "pages of codes have gaps");

struct zcz_pieces zcz_gather_pieces(const struct zc_zero *z, const struct zcz_unit *u,
                                    const struct zc_view *view, uint64_t count)
{
    uint32_t block = u->layout.block_bytes[ZB_PARAM];
    size_t bytes = zb_blocks_bytes(block, count);
    struct zcz_pieces p = {
        .data = z->store->params_dev ? z->store->params_dev + view->offset : view->data,
        .on_device = z->store->params_dev || z->store->on_device,
        .bytes = bytes,
        .piece = zb_blocks_bytes(block, z->store->page_elems),
        .stride = zb_page_bytes(block, z->store->page_elems),
    };

    if (p.piece == p.stride)
        p.piece = p.stride = bytes;
    return p;
}
