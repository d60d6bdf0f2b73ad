/*
 * gather_dev.c - parameters that travel between devices as codes: made there, and made into
 * parameters again.
 */
#include "client/zero/pass/pass_priv.h"

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
