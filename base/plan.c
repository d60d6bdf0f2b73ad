#include "base/plan.h"

#include <assert.h>
#include <errno.h>

static const struct {
    const char *name;
    uint32_t bytes;
    uint32_t master_bytes; /* in state */
} dtypes[ZB_DTYPE_END] = {
    [ZB_F32] = { "fp32", 4, 0 },
    [ZB_BF16] = { "bf16", 2, 2 },
    [ZB_F16] = { "fp16", 2, 4 },
};

static const struct {
    const char *name;
    const char *moments[ZB_MOMENTS_MAX];
} optimizers[ZB_OPTIMIZER_END] = {
    [ZB_ADAMW] = { "adamw", { "exp_avg", "exp_avg_sq" } },
    [ZB_ADAM] = { "adam", { "exp_avg", "exp_avg_sq" } },
    [ZB_LION] = { "lion", { "exp_avg" } },
    [ZB_SGD] = { "sgd", { "momentum_buffer" } },
    [ZB_ADAGRAD] = { "adagrad", { "sum" } },
    [ZB_MUON] = { "muon", { "momentum_buffer" } },
};

static const struct {
    const char *name;
    uint32_t block_bytes;
} moments_kinds[ZB_MOMENTS_END] = {
    [ZB_MOMENTS_F32] = { "fp32", ZB_BLOCK_ELEMS * 4 },
    [ZB_MOMENTS_BF16] = { "bf16", ZB_BLOCK_ELEMS * 2 },
    [ZB_MOMENTS_Q8] = { "8bit", ZB_Q8_BLOCK_BYTES },
    [ZB_MOMENTS_Q8_LO] = { "8bit-lo", ZB_Q8_BLOCK_BYTES },
};

const char *zb_dtype_name(enum zb_dtype dtype)
{
    return (unsigned)dtype < ZB_DTYPE_END ? dtypes[dtype].name : NULL;
}

size_t zb_dtype_bytes(enum zb_dtype dtype)
{
    return (unsigned)dtype < ZB_DTYPE_END ? dtypes[dtype].bytes : 0;
}

const char *zb_optimizer_name(enum zb_optimizer optimizer)
{
    return (unsigned)optimizer < ZB_OPTIMIZER_END ? optimizers[optimizer].name : NULL;
}

const char *zb_moments_name(enum zb_moments moments)
{
    return (unsigned)moments < ZB_MOMENTS_END ? moments_kinds[moments].name : NULL;
}

const char *zb_moment_name(enum zb_optimizer optimizer, unsigned i)
{
    return (unsigned)optimizer < ZB_OPTIMIZER_END && i < ZB_MOMENTS_MAX
               ? optimizers[optimizer].moments[i]
               : NULL;
}

bool zb_moment_signed(enum zb_optimizer optimizer, unsigned i)
{
    return i == 0 && optimizer != ZB_ADAGRAD;
}

uint32_t zb_moment_block_bytes(enum zb_moments moments)
{
    return (unsigned)moments < ZB_MOMENTS_END ? moments_kinds[moments].block_bytes : 0;
}

static int layout_check(enum zb_dtype dtype, enum zb_dtype grad_dtype, enum zb_optimizer optimizer,
                        enum zb_moments moments, bool frozen, struct zb_err *err)
{
    if (!zb_dtype_name(dtype))
        return zb_fail(err, -EINVAL,
                       "parameters of dtype number %d: known are 1 (fp32), 2 (bf16), 3 (fp16)",
                       (int)dtype);
    if (!frozen && !zb_dtype_name(grad_dtype))
        return zb_fail(err, -EINVAL,
                       "gradients of dtype number %d: known are 1 (fp32), 2 (bf16), 3 (fp16)",
                       (int)grad_dtype);
    if (!zb_optimizer_name(optimizer))
        return zb_fail(err, -EINVAL,
                       "optimizer number %d: known are 1 (AdamW), 2 (Adam), 3 (Lion), 4 (SGD), 5 "
                       "(Adagrad), 6 (Muon)",
                       (int)optimizer);
    if (!zb_moments_name(moments))
        return zb_fail(err, -EINVAL,
                       "moments number %d: known are 1 (fp32), 2 (bf16), 3 (8bit), 4 (8bit-lo)",
                       (int)moments);
    return 0;
}

static uint32_t crc_bytes(uint32_t block_bytes)
{
    return block_bytes > 0 ? ZB_CRC_BYTES_MAX / block_bytes * block_bytes : 0;
}

int zb_layout_of(enum zb_dtype dtype, enum zb_dtype grad_dtype, enum zb_optimizer optimizer,
                 enum zb_moments moments, bool frozen, struct zb_layout *ret, struct zb_err *err)
{
    struct zb_layout l = { .dtype = dtype,
                           .grad_dtype = grad_dtype,
                           .optimizer = optimizer,
                           .moments = moments,
                           .frozen = frozen };

    if (layout_check(dtype, grad_dtype, optimizer, moments, frozen, err) < 0)
        return -EINVAL;
    while (zb_moment_name(optimizer, l.nmoments))
        l.nmoments++;
    l.block_bytes[ZB_PARAM] = dtypes[dtype].bytes * ZB_BLOCK_ELEMS;
    if (!frozen) {
        l.block_bytes[ZB_GRAD] = dtypes[grad_dtype].bytes * ZB_BLOCK_ELEMS;
        l.low8 = dtype == ZB_BF16 && moments == ZB_MOMENTS_Q8_LO;
        l.block_bytes[ZB_STATE] = (l.low8 ? 1 : dtypes[dtype].master_bytes) * ZB_BLOCK_ELEMS +
                                  l.nmoments * zb_moment_block_bytes(moments);
    }
    for (int p = 0; p < ZB_PLANES; p++)
        l.crc_bytes[p] = crc_bytes(l.block_bytes[p]);
    *ret = l;
    return 0;
}

void zb_layout_quantize(struct zb_layout *layout)
{
    assert(layout->frozen);
    layout->quantized = true;
    layout->block_bytes[ZB_PARAM] = ZB_Q8_BLOCK_BYTES;
    layout->crc_bytes[ZB_PARAM] = crc_bytes(layout->block_bytes[ZB_PARAM]);
}
