#include "base/plan.h"

#include <errno.h>

#include "base/util.h"

static const struct {
    const char *name;
    uint32_t bytes;
    uint32_t adamw_state_bytes;
} dtypes[] = {
    [ZB_F32] = { "fp32", 4, 8 },
    [ZB_BF16] = { "bf16", 2, 10 },
};

static bool dtype_known(enum zb_dtype dtype)
{
    return (unsigned)dtype < ZB_COUNT(dtypes) && dtypes[dtype].name != NULL;
}

const char *zb_dtype_name(enum zb_dtype dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].name : NULL;
}

size_t zb_dtype_bytes(enum zb_dtype dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].bytes : 0;
}

int zb_layout_of(enum zb_dtype dtype, enum zb_dtype grad_dtype, bool frozen, struct zb_layout *ret,
                 struct zb_err *err)
{
    struct zb_layout l = { .dtype = dtype, .grad_dtype = grad_dtype, .frozen = frozen };

    if (!dtype_known(dtype))
        return zb_fail(err, -EINVAL, "parameters of dtype number %d: known are 1 (fp32), 2 (bf16)",
                       (int)dtype);
    if (!frozen && !dtype_known(grad_dtype))
        return zb_fail(err, -EINVAL, "gradients of dtype number %d: known are 1 (fp32), 2 (bf16)",
                       (int)grad_dtype);
    l.elem_bytes[ZB_PARAM] = dtypes[dtype].bytes;
    if (!frozen) {
        l.elem_bytes[ZB_GRAD] = dtypes[grad_dtype].bytes;
        l.elem_bytes[ZB_STATE] = dtypes[dtype].adamw_state_bytes;
    }
    for (int p = 0; p < ZB_PLANES; p++)
        if (l.elem_bytes[p] > 0) {
            uint32_t block_bytes = l.elem_bytes[p] * ZB_BLOCK_ELEMS;

            l.crc_bytes[p] = ZB_CRC_BYTES_MAX / block_bytes * block_bytes;
        }
    *ret = l;
    return 0;
}
