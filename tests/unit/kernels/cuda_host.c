/*
 * cuda_host.c - the kernels for GPUs, run on the processor (kernels/cuda/host.c), as another
 * implementation of zk.h, so that every test of the kernels tests them, too.
 *
 * A step is that of a page: arrays of any length are copied into whole blocks, of which one segment
 * covers the requested elements. Test programs have one thread.
 */
#include "tests/ztest.h"

#include <string.h>

#include "base/util.h"
#include "kernels/cuda/cuda_priv.h"
#include "kernels/zk_priv.h"
#include "tests/unit/kernels/data.h"

#define BLOCKS 3
#define ELEMS  (BLOCKS * ZB_BLOCK_ELEMS)
#define AT     37 /* start of the segment, not at a quad's bound */

static _Alignas(64) unsigned char param[ELEMS * 4], state[ELEMS * 12], grad[ELEMS * 4];

/* Copies elements [AT, AT + n) between a plane with elements of `bytes` in blocks of block_bytes,
 * and an array, in either direction. */
static void plane_copy(unsigned char *plane, uint32_t block_bytes, size_t bytes, void *array,
                       size_t n, bool back)
{
    unsigned char *p = array;

    for (size_t i = 0; i < n; i++) {
        unsigned char *at = plane + (AT + i) / ZB_BLOCK_ELEMS * block_bytes +
                            (AT + i) % ZB_BLOCK_ELEMS * bytes;

        if (back)
            memcpy(p + i * bytes, at, bytes);
        else
            memcpy(at, p + i * bytes, bytes);
    }
}

static void planes_copy(const struct zb_layout *layout, const struct zk_step_arrays *a, size_t n,
                        bool back)
{
    uint32_t block = layout->block_bytes[ZB_STATE];
    struct zk_state_block first = zk_state_block(layout, state, 0);
    float *moment[] = { a->m, a->v };

    plane_copy(param, layout->block_bytes[ZB_PARAM], zb_dtype_bytes(layout->dtype), a->param, n,
               back);
    if (first.master)
        plane_copy(first.master, block, layout->dtype == ZB_BF16 ? 2 : 4, a->master, n, back);
    for (uint32_t i = 0; i < layout->nmoments; i++)
        plane_copy(first.moment[i], block, 4, moment[i], n, back);
}

static void step_run(enum zb_optimizer optimizer, enum zb_dtype dtype, enum zb_dtype grad_dtype,
                     const struct zk_scalars *s, const struct zk_step_arrays *a, size_t n)
{
    struct zk_segment segment = { .first = ZB_BLOCK_ELEMS + AT, .count = n };
    struct zk_gpu_work w = { .op = ZK_GPU_STEP };

    assert_true(AT + n <= ELEMS);
    memset(param, 0x77, sizeof(param));
    memset(state, 0x77, sizeof(state));
    assert_int_equal(
        zb_layout_of(dtype, grad_dtype, optimizer, ZB_MOMENTS_F32, false, &w.step.layout, NULL), 0);
    planes_copy(&w.step.layout, a, n, false);
    plane_copy(grad, w.step.layout.block_bytes[ZB_GRAD], zb_dtype_bytes(grad_dtype),
               (void *)(uintptr_t)a->grad, n, false);
    w.step.page = (struct zk_page){ param, state, grad, ZB_BLOCK_ELEMS, ELEMS, NULL, 0 };
    w.step.segments = &segment;
    w.step.nsegments = 1;
    w.step.by_group = s;
    w.step.ngroups = 1;
    zk_cuda_host_run(&w);
    planes_copy(&w.step.layout, a, n, true);
    assert_true(param[0] == 0x77 && state[0] == 0x77); /* before the segment */
}

#define STEP(unused, optimizer, p, g)                                                  \
    static void step_##optimizer##_##p##_##g(const struct zk_scalars *s,               \
                                             const struct zk_step_arrays *a, size_t n) \
    {                                                                                  \
        step_run(ZB_##optimizer, ZB_##p, ZB_##g, s, a, n);                             \
    }
ZK_STEPS(STEP, )

#define STEP_ROW(unused, optimizer, p, g) \
    [ZB_##optimizer][ZB_##p][ZB_##g] = step_##optimizer##_##p##_##g,

static zk_step_fn *const steps[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END] = { ZK_STEPS(
    STEP_ROW, ) };

static void array_run(enum zk_gpu_op op, struct zk_gpu_array a)
{
    struct zk_gpu_work w = { .op = op, .array = a };

    zk_cuda_host_run(&w);
}

static void split(const float *master, uint16_t *hi, int16_t *lo, size_t n)
{
    array_run(ZK_GPU_SPLIT, (struct zk_gpu_array){ .from = master, .to = hi, .side = lo, .n = n });
}

static void merge(const uint16_t *hi, const int16_t *lo, float *master, size_t n)
{
    array_run(ZK_GPU_MERGE, (struct zk_gpu_array){
                                .from = hi, .to = master, .side = (void *)(uintptr_t)lo, .n = n });
}

static void cast(const void *from, enum zb_dtype from_dtype, void *to, enum zb_dtype to_dtype,
                 size_t n)
{
    array_run(ZK_GPU_CAST,
              (struct zk_gpu_array){
                  .from = from, .to = to, .n = n, .from_dtype = from_dtype, .to_dtype = to_dtype });
}

static void f32_to_bf16(const float *from, uint16_t *to, size_t n)
{
    cast(from, ZB_F32, to, ZB_BF16, n);
}

static void bf16_to_f32(const uint16_t *from, float *to, size_t n)
{
    cast(from, ZB_BF16, to, ZB_F32, n);
}

static void f32_to_f16(const float *from, uint16_t *to, size_t n)
{
    cast(from, ZB_F32, to, ZB_F16, n);
}

static void f16_to_f32(const uint16_t *from, float *to, size_t n)
{
    cast(from, ZB_F16, to, ZB_F32, n);
}

static void add(float *acc, const void *x, enum zb_dtype dtype, size_t n)
{
    array_run(ZK_GPU_ADD,
              (struct zk_gpu_array){ .from = x, .to = acc, .n = n, .from_dtype = dtype });
}

static void add_f32(float *acc, const float *x, size_t n)
{
    add(acc, x, ZB_F32, n);
}

static void add_bf16(float *acc, const uint16_t *x, size_t n)
{
    add(acc, x, ZB_BF16, n);
}

static void add_f16(float *acc, const uint16_t *x, size_t n)
{
    add(acc, x, ZB_F16, n);
}

static void encode_bf16(const float *from, uint16_t *to, uint32_t key, size_t n)
{
    array_run(ZK_GPU_ENCODE_BF16,
              (struct zk_gpu_array){ .from = from, .to = to, .n = n, .key = key });
}

static void encode_q8(const float *from, uint8_t *code, float *scale, bool is_signed, uint32_t key,
                      size_t n)
{
    array_run(
        ZK_GPU_ENCODE_Q8,
        (struct zk_gpu_array){
            .from = from, .to = code, .side = scale, .n = n, .key = key, .is_signed = is_signed });
}

static void decode_q8(const uint8_t *code, const float *scale, float *to, bool is_signed, size_t n)
{
    array_run(ZK_GPU_DECODE_Q8, (struct zk_gpu_array){ .from = code,
                                                       .to = to,
                                                       .side = (void *)(uintptr_t)scale,
                                                       .n = n,
                                                       .is_signed = is_signed });
}

/* int8 data has codes and scales in each block. */
struct q8_block {
    int8_t codes[ZB_BLOCK_ELEMS];
    float scales[ZB_BLOCK_ELEMS / ZB_Q8_GROUP];
};

static void quantize_i8(const float *from, int8_t *code, float *scale, size_t n)
{
    for (size_t at = 0; at < n; at += ZB_BLOCK_ELEMS) {
        size_t left = zb_min_u64(n - at, ZB_BLOCK_ELEMS);
        float block[ZB_BLOCK_ELEMS] = { 0 };
        struct q8_block q;

        memcpy(block, from + at, left * sizeof(float));
        array_run(ZK_GPU_QUANTIZE_I8,
                  (struct zk_gpu_array){
                      .from = block, .to = &q, .n = ZB_BLOCK_ELEMS, .from_dtype = ZB_F32 });
        memcpy(code + at, q.codes, left);
        memcpy(scale + at / ZB_Q8_GROUP, q.scales, left / ZB_Q8_GROUP * sizeof(float));
    }
}

static void dequantize_i8(const int8_t *code, const float *scale, float *to, size_t n)
{
    for (size_t at = 0; at < n; at += ZB_BLOCK_ELEMS) {
        size_t left = zb_min_u64(n - at, ZB_BLOCK_ELEMS);
        float block[ZB_BLOCK_ELEMS];
        struct q8_block q = { 0 };

        memcpy(q.codes, code + at, left);
        memcpy(q.scales, scale + at / ZB_Q8_GROUP, left / ZB_Q8_GROUP * sizeof(float));
        array_run(ZK_GPU_DEQUANTIZE_I8,
                  (struct zk_gpu_array){
                      .from = &q, .to = block, .n = ZB_BLOCK_ELEMS, .to_dtype = ZB_F32 });
        memcpy(to + at, block, left * sizeof(float));
    }
}

static double sumsq(const float *x, size_t n, uint64_t *nonfinite)
{
    struct zk_gpu_norm norm = { 0 };

    array_run(ZK_GPU_NORM,
              (struct zk_gpu_array){ .from = x, .norms = &norm, .n = n, .from_dtype = ZB_F32 });
    *nonfinite += norm.nonfinite;
    return norm.sum;
}

/* A block of gradients; elements after n are zeros, which change no sum of squares. */
static double set(void *to, const void *from, enum zb_dtype dtype, size_t n, uint64_t *nonfinite)
{
    static _Alignas(64) unsigned char block[ZB_BLOCK_ELEMS * 4];
    struct zk_gpu_norm norm = { 0 };
    struct zk_gpu_work w = { .op = ZK_GPU_INGEST,
                             .ingest = { .page = { .grad = grad, .count = ZB_BLOCK_ELEMS },
                                         .from = block,
                                         .from_dtype = dtype,
                                         .norms = &norm } };

    assert_int_equal(
        zb_layout_of(ZB_F32, dtype, ZB_SGD, ZB_MOMENTS_F32, false, &w.ingest.layout, NULL), 0);
    memset(block, 0, sizeof(block));
    memcpy(block, from, n * zb_dtype_bytes(dtype));
    zk_cuda_host_run(&w);
    memcpy(to, grad, n * zb_dtype_bytes(dtype));
    *nonfinite += norm.nonfinite;
    return norm.sum;
}

static double set_f32(float *to, const float *x, size_t n, uint64_t *nonfinite)
{
    return set(to, x, ZB_F32, n, nonfinite);
}

static double set_bf16(uint16_t *to, const uint16_t *x, size_t n, uint64_t *nonfinite)
{
    return set(to, x, ZB_BF16, n, nonfinite);
}

static bool always(void)
{
    return true;
}

const struct zk_ops ztest_cuda_host = {
    .name = "cuda-host",
    .supported = always,
    .step = steps,
    .split = split,
    .merge = merge,
    .f32_to_bf16 = f32_to_bf16,
    .bf16_to_f32 = bf16_to_f32,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .add_f32 = add_f32,
    .add_bf16 = add_bf16,
    .add_f16 = add_f16,
    .encode_bf16 = encode_bf16,
    .encode_q8 = encode_q8,
    .decode_q8 = decode_q8,
    .quantize_i8 = quantize_i8,
    .dequantize_i8 = dequantize_i8,
    .sumsq = sumsq,
    .set_f32 = set_f32,
    .set_bf16 = set_bf16,
};
