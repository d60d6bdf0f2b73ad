/*
 * into.c - gathers parameters into the caller's memory.
 */
#include <errno.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

int zc_zero_gather_into(struct zc_zero *z, uint32_t unit, void *params)
{
    ZCZ_GUARD(z);
    struct zb_err err = { 0 };
    const void *from;
    size_t bytes;
    int rc = zc_zero_gather(z, unit, &from);

    if (rc < 0)
        return rc;
    bytes = z->units[unit].def.elems * zb_dtype_bytes(z->units[unit].layout.dtype);
    if (!z->device.gpu) {
        memcpy(params, from, bytes);
        return 0;
    }
    rc = zk_gpu_copy(z->device.compute, ZK_GPU_WITHIN, params, from, bytes, &err);
    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}
