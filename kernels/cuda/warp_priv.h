/*
 * warp_priv.h - the kernels for GPUs, as what one warp does: compiled by nvcc for the device
 * (launch.cu), and by the C compiler for the processor (host.c), where tests hold them to "ref". So
 * it is written in what C and C++ have in common.
 *
 * MODEL. A launch is cut into chunks, and a warp of 32 lanes does one. Lanes meet only in
 * warp_most() and sums_down(). What a lane keeps between such meetings is in an array of
 * WARP_STATES: one element, for the lane itself, on a GPU; one for each lane on a processor; and
 * WARP_EACH() walks it, once there and 32 times here.
 *
 * A chunk of 256 elements is one group of 8-bit values, and two quads (4 elements) for each lane,
 * so that a warp's accesses are whole lines: 16 bytes a lane of fp32, 8 of 16 bits. Arrays may
 * begin anywhere; `vector` says that all of a work's are aligned to a quad, and `whole` of a quad,
 * or of all of a chunk's, that it is inside and aligned. What is arithmetic stands in ref/, and
 * none of it here.
 *
 * READ FIRST. A lane asks for all that it needs of its quads before it looks at any of it, and
 * before it stores: the compiler cannot know that arrays do not overlap. Only so are enough bytes
 * on their way to keep the memory busy.
 */
#ifndef ZK_WARP_PRIV_H
#define ZK_WARP_PRIV_H

#include "base/util.h"
#include "kernels/gpu.h"
#include "kernels/ref/moment_priv.h"
#include "kernels/ref/quantize_priv.h"

#define WARP_CHUNK  256u /* elements */
#define WARP_BLOCKS 8u   /* blocks of ZB_BLOCK_ELEMS that a warp sums at a time */
#define WARP_B      ZB_BLOCK_ELEMS

#ifdef __CUDACC__
#define WARP_FN   static __device__ __forceinline__
#define WARP_RARE static __device__ __noinline__ /* once, not for each kernel */
#define WARP_ONCE _Pragma("unroll 1")
#define WARP_FULL _Pragma("unroll") /* so that arrays of a lane stay in registers */
#define MAY_ALIAS
#else
#define WARP_FN   static inline
#define WARP_RARE static
#define WARP_ONCE
#define WARP_FULL
#define MAY_ALIAS __attribute__((may_alias))
#endif

#ifdef __CUDA_ARCH__
#define WARP_STATES  1
#define WARP_LANE(w) ((w) + (threadIdx.x & 31u))
#else
#define WARP_STATES  32
#define WARP_LANE(w) (w)
#endif
#define WARP_FOR(i, n) WARP_FULL for (unsigned i = 0; i < (n); i++)
#define WARP_EACH(w)   for (unsigned w = 0; w < WARP_STATES; w++)

/* ---- quads */

struct MAY_ALIAS quad8 {
    uint8_t x[4];
} __attribute__((aligned(4)));
struct MAY_ALIAS quad16 {
    uint16_t x[4];
} __attribute__((aligned(8)));
struct MAY_ALIAS quad32 {
    uint32_t x[4];
} __attribute__((aligned(16)));

typedef uint8_t MAY_ALIAS elem8;
typedef uint16_t MAY_ALIAS elem16;
typedef uint32_t MAY_ALIAS elem32;

/* In one access, which nvcc makes of a struct only sometimes. */
#ifdef __CUDA_ARCH__
WARP_FN struct quad8 quad_load8(const void *array, uint64_t i)
{
    uint32_t w = *(const uint32_t *)((const uint8_t *)array + i);
    struct quad8 q = { { (uint8_t)w, (uint8_t)(w >> 8), (uint8_t)(w >> 16), (uint8_t)(w >> 24) } };

    return q;
}

WARP_FN void quad_store8(void *array, uint64_t i, struct quad8 q)
{
    *(uint32_t *)((uint8_t *)array + i) = (uint32_t)q.x[0] | (uint32_t)q.x[1] << 8 |
                                          (uint32_t)q.x[2] << 16 | (uint32_t)q.x[3] << 24;
}

WARP_FN struct quad16 quad_load16(const void *array, uint64_t i)
{
    uint2 w = *(const uint2 *)((const uint16_t *)array + i);
    struct quad16 q = { { (uint16_t)w.x, (uint16_t)(w.x >> 16), (uint16_t)w.y,
                          (uint16_t)(w.y >> 16) } };

    return q;
}

WARP_FN void quad_store16(void *array, uint64_t i, struct quad16 q)
{
    *(uint2 *)((uint16_t *)array + i) = make_uint2((uint32_t)q.x[0] | (uint32_t)q.x[1] << 16,
                                                   (uint32_t)q.x[2] | (uint32_t)q.x[3] << 16);
}

WARP_FN struct quad32 quad_load32(const void *array, uint64_t i)
{
    uint4 w = *(const uint4 *)((const uint32_t *)array + i);
    struct quad32 q = { { w.x, w.y, w.z, w.w } };

    return q;
}

WARP_FN void quad_store32(void *array, uint64_t i, struct quad32 q)
{
    *(uint4 *)((uint32_t *)array + i) = make_uint4(q.x[0], q.x[1], q.x[2], q.x[3]);
}
#else
#define QUAD_ACCESS(bits)                                                                 \
    WARP_FN struct quad##bits quad_load##bits(const void *array, uint64_t i)              \
    {                                                                                     \
        return *(const struct quad##bits *)(const void *)((const elem##bits *)array + i); \
    }                                                                                     \
                                                                                          \
    WARP_FN void quad_store##bits(void *array, uint64_t i, struct quad##bits q)           \
    {                                                                                     \
        *(struct quad##bits *)(void *)((elem##bits *)array + i) = q;                      \
    }

QUAD_ACCESS(8)
QUAD_ACCESS(16)
QUAD_ACCESS(32)
#endif

/* Elements [i, i + 4) of an array of n, zeros behind its end. */
#define QUAD_FUNCTIONS(bits)                                                            \
    WARP_FN struct quad##bits quad_get##bits(const void *array, uint64_t i, uint64_t n, \
                                             bool whole)                                \
    {                                                                                   \
        const elem##bits *at = (const elem##bits *)array + i;                           \
        struct quad##bits q;                                                            \
                                                                                        \
        if (whole)                                                                      \
            return quad_load##bits(array, i);                                           \
        for (unsigned k = 0; k < 4; k++)                                                \
            q.x[k] = i + k < n ? at[k] : (elem##bits)0;                                 \
        return q;                                                                       \
    }                                                                                   \
                                                                                        \
    WARP_FN void quad_put##bits(void *array, uint64_t i, uint64_t n, bool whole,        \
                                struct quad##bits q)                                    \
    {                                                                                   \
        elem##bits *at = (elem##bits *)array + i;                                       \
                                                                                        \
        if (whole) {                                                                    \
            quad_store##bits(array, i, q);                                              \
            return;                                                                     \
        }                                                                               \
        for (unsigned k = 0; k < 4; k++)                                                \
            if (i + k < n)                                                              \
                at[k] = q.x[k];                                                         \
    }

QUAD_FUNCTIONS(8)
QUAD_FUNCTIONS(16)
QUAD_FUNCTIONS(32)

struct quad {
    float x[4];
};

/* A quad of any dtype as it lies in memory: of the two, the one that is. */
struct raw {
    struct quad32 wide;
    struct quad16 half;
};

WARP_FN struct raw raw_get(enum zb_dtype dtype, const void *array, uint64_t i, uint64_t n,
                           bool whole)
{
    struct raw r;

    memset(&r, 0, sizeof(r));
    if (dtype == ZB_F32)
        r.wide = quad_get32(array, i, n, whole);
    else
        r.half = quad_get16(array, i, n, whole);
    return r;
}

/* For arithmetic: a NaN as it is. */
WARP_FN struct quad raw_values(enum zb_dtype dtype, struct raw r)
{
    struct quad values;

    if (dtype == ZB_F32)
        WARP_FOR (k, 4)
            values.x[k] = elem_float(r.wide.x[k]);
    else if (dtype == ZB_BF16)
        WARP_FOR (k, 4)
            values.x[k] = elem_value_of_bf16(r.half.x[k]);
    else
        WARP_FOR (k, 4)
            values.x[k] = elem_value_of_f16(r.half.x[k]);
    return values;
}

WARP_FN struct quad quad_canonical(struct quad values)
{
    WARP_FOR (k, 4)
        values.x[k] = elem_canonical(values.x[k]);
    return values;
}

WARP_FN struct quad32 quad_bits(struct quad values)
{
    struct quad32 q;

    WARP_FOR (k, 4)
        q.x[k] = elem_bits(values.x[k]);
    return q;
}

/* Rounded to 16 bits. */
WARP_FN struct quad16 quad_round(enum zb_dtype dtype, struct quad values)
{
    struct quad16 q;

    WARP_FOR (k, 4)
        q.x[k] = dtype == ZB_BF16 ? elem_to_bf16(values.x[k]) : elem_to_f16(values.x[k]);
    return q;
}

/* As any dtype; fp32 as it is. */
WARP_FN void quad_put(enum zb_dtype dtype, void *array, uint64_t i, uint64_t n, bool whole,
                      struct quad values)
{
    if (dtype == ZB_F32)
        quad_put32(array, i, n, whole, quad_bits(values));
    else
        quad_put16(array, i, n, whole, quad_round(dtype, values));
}

/* ---- meetings */

/* The largest of all lanes, for each of them. */
WARP_FN uint32_t warp_most(const uint32_t *state)
{
#ifdef __CUDA_ARCH__
    return __reduce_max_sync(0xffffffffu, state[0]);
#else
    uint32_t most = 0;

    WARP_EACH (w)
        most = state[w] > most ? state[w] : most;
    return most;
#endif
}

/* ---- works on arrays */

/* Of codes and scales that lie by block: those of the block that element i is in, and its scale. */
WARP_FN unsigned char *block_codes(const void *blocks, uint64_t i)
{
    return (unsigned char *)(uintptr_t)blocks + i / WARP_B * ZB_Q8_BLOCK_BYTES;
}

WARP_FN elem32 *block_scale(const void *blocks, uint64_t i)
{
    return (elem32 *)(void *)(block_codes(blocks, i) + WARP_B) + i % WARP_B / ZB_Q8_GROUP;
}

/* What a work reads of a quad. */
struct array_raw {
    struct raw from, more;
    struct quad8 code;
    uint32_t scale;
};

WARP_FN struct array_raw array_read(const struct zk_gpu_array *a, enum zk_gpu_op op, uint64_t i,
                                    bool whole)
{
    struct array_raw r;

    memset(&r, 0, sizeof(r));
    switch (op) {
    case ZK_GPU_CAST:
        r.from = raw_get(a->from_dtype, a->from, i, a->n, whole);
        break;
    case ZK_GPU_ADD:
        r.from = raw_get(a->from_dtype, a->from, i, a->n, whole);
        r.more = raw_get(ZB_F32, a->to, i, a->n, whole);
        break;
    case ZK_GPU_SPLIT:
    case ZK_GPU_ENCODE_BF16:
        r.from = raw_get(ZB_F32, a->from, i, a->n, whole);
        break;
    case ZK_GPU_MERGE:
        r.from = raw_get(ZB_BF16, a->from, i, a->n, whole);
        r.more = raw_get(ZB_BF16, a->side, i, a->n, whole);
        break;
    case ZK_GPU_DECODE_Q8:
        r.code = quad_get8(a->from, i, a->n, whole);
        if (i < a->n)
            r.scale = ((const elem32 *)a->side)[i / ZB_Q8_GROUP];
        break;
    case ZK_GPU_DEQUANTIZE_I8:
        r.code = quad_get8(block_codes(a->from, i), i % WARP_B, WARP_B, whole);
        r.scale = *block_scale(a->from, i);
        break;
    default: /* not element by element */
        break;
    }
    return r;
}

WARP_FN void array_cast(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                        bool whole)
{
    if (a->from_dtype != a->to_dtype)
        quad_put(a->to_dtype, a->to, i, a->n, whole,
                 quad_canonical(raw_values(a->from_dtype, r->from)));
    else if (a->from_dtype == ZB_F32) /* as it is, NaNs too */
        quad_put32(a->to, i, a->n, whole, r->from.wide);
    else
        quad_put16(a->to, i, a->n, whole, r->from.half);
}

WARP_FN void array_split(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                         bool whole)
{
    struct quad16 hi, lo;

    WARP_FOR (k, 4) {
        int16_t low;

        elem_split(elem_float(r->from.wide.x[k]), &hi.x[k], &low);
        lo.x[k] = (uint16_t)low;
    }
    quad_put16(a->to, i, a->n, whole, hi);
    quad_put16(a->side, i, a->n, whole, lo);
}

WARP_FN void array_merge(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                         bool whole)
{
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = elem_merge(r->from.half.x[k], (int16_t)r->more.half.x[k]);
    quad_put(ZB_F32, a->to, i, a->n, whole, values);
}

WARP_FN struct quad quad_sum(struct quad a, struct quad b)
{
    WARP_FOR (k, 4)
        a.x[k] = elem_add(a.x[k], b.x[k]);
    return quad_canonical(a);
}

WARP_FN void array_encode_bf16(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                               bool whole)
{
    struct quad16 q;

    WARP_FOR (k, 4)
        q.x[k] =
            moment_to_bf16(elem_float(r->from.wide.x[k]), moment_noise(a->key, (uint32_t)(i + k)));
    quad_put16(a->to, i, a->n, whole, q);
}

WARP_FN struct quad8 quad_encode_q8(struct quad values, uint32_t pattern, uint32_t key, uint32_t i,
                                    bool is_signed)
{
    struct quad8 q;

    WARP_FOR (k, 4) {
        uint32_t noise = moment_noise(key, i + k);

        q.x[k] = is_signed ? moment_code_signed(values.x[k], pattern, noise)
                           : moment_code_unsigned(values.x[k], pattern, noise);
    }
    return q;
}

/* scale: its bits. */
WARP_FN struct quad quad_decode_q8(struct quad8 code, uint32_t scale, bool is_signed)
{
    uint32_t sign = is_signed ? MOMENT_SIGN : 0;
    uint32_t top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = moment_decode(code.x[k], scale >> MOMENT_CUT, sign, top);
    return values;
}

WARP_FN struct quad quad_dequantize_i8(struct quad8 code, uint32_t scale)
{
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = quantize_value((int8_t)code.x[k], elem_float(scale));
    return values;
}

WARP_FN void array_write(const struct zk_gpu_array *a, enum zk_gpu_op op, const struct array_raw *r,
                         uint64_t i, bool whole)
{
    switch (op) {
    case ZK_GPU_CAST:
        array_cast(a, r, i, whole);
        break;
    case ZK_GPU_SPLIT:
        array_split(a, r, i, whole);
        break;
    case ZK_GPU_MERGE:
        array_merge(a, r, i, whole);
        break;
    case ZK_GPU_ADD:
        quad_put(ZB_F32, a->to, i, a->n, whole,
                 quad_sum(raw_values(ZB_F32, r->more), raw_values(a->from_dtype, r->from)));
        break;
    case ZK_GPU_ENCODE_BF16:
        array_encode_bf16(a, r, i, whole);
        break;
    case ZK_GPU_DECODE_Q8:
        quad_put(ZB_F32, a->to, i, a->n, whole, quad_decode_q8(r->code, r->scale, a->is_signed));
        break;
    case ZK_GPU_DEQUANTIZE_I8:
        quad_put(a->to_dtype, a->to, i, a->n, whole, quad_dequantize_i8(r->code, r->scale));
        break;
    default: /* not element by element */
        break;
    }
}

/* Where a lane's quad lies in an array, or in its chunk, number 0. */
WARP_FN uint64_t lane_at(uint64_t chunk, unsigned lane, unsigned half)
{
    return chunk * WARP_CHUNK + half * (WARP_CHUNK / 2) + lane * 4;
}

/* A lane's two quads. */
struct lane_quads {
    struct quad half[2];
};

/* Of a whole group, because its scale needs all of it: 8-bit moments, or int8. */
WARP_FN void warp_group(const struct zk_gpu_array *a, bool moments, bool whole, uint64_t chunk)
{
    enum zb_dtype dtype = moments ? ZB_F32 : a->from_dtype;
    struct lane_quads st[WARP_STATES];
    uint32_t most[WARP_STATES], largest;
    float scale;

    WARP_EACH (w) {
        struct raw r[2];

        WARP_FOR (half, 2)
            r[half] = raw_get(dtype, a->from, lane_at(chunk, WARP_LANE(w), half), a->n, whole);
        most[w] = 0;
        WARP_FOR (half, 2) {
            st[w].half[half] = raw_values(dtype, r[half]);
            WARP_FOR (k, 4) {
                uint32_t b = elem_bits(st[w].half[half].x[k]);
                uint32_t x = moments ? moment_finite(b) : b & 0x7fffffff;

                most[w] = x > most[w] ? x : most[w];
            }
        }
    }
    largest = warp_most(most);
    scale = moments ? moment_scale(moment_pattern(largest)) : quantize_scale(largest);
    WARP_EACH (w) {
        WARP_FOR (half, 2) {
            uint64_t i = lane_at(chunk, WARP_LANE(w), half);
            struct quad8 q;

            if (moments)
                q = quad_encode_q8(st[w].half[half], moment_pattern(largest), a->key, (uint32_t)i,
                                   a->is_signed);
            else {
                WARP_FOR (k, 4)
                    q.x[k] = (uint8_t)quantize_code(st[w].half[half].x[k], quantize_inverse(scale));
            }
            if (moments)
                quad_put8(a->to, i, a->n, whole, q);
            else
                quad_put8(block_codes(a->to, i), i % WARP_B, WARP_B, whole, q);
        }
        if (WARP_LANE(w) == 0)
            *(moments ? (elem32 *)a->side + chunk : block_scale(a->to, chunk * WARP_CHUNK)) =
                elem_bits(scale);
    }
}

WARP_FN void lane_array(const struct zk_gpu_array *a, enum zk_gpu_op op, uint64_t chunk,
                        unsigned lane, bool whole)
{
    struct array_raw r[2];

    WARP_FOR (half, 2)
        r[half] = array_read(a, op, lane_at(chunk, lane, half), whole);
    WARP_FOR (half, 2)
        array_write(a, op, &r[half], lane_at(chunk, lane, half), whole);
}

/* One chunk of any work on arrays but a norm. */
WARP_FN void warp_array(const struct zk_gpu_array *a, enum zk_gpu_op op, bool vector,
                        uint64_t chunk)
{
    bool whole = vector && (chunk + 1) * WARP_CHUNK <= a->n;

    if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_QUANTIZE_I8) {
        if (whole)
            warp_group(a, op == ZK_GPU_ENCODE_Q8, true, chunk);
        else
            warp_group(a, op == ZK_GPU_ENCODE_Q8, false, chunk);
        return;
    }
    WARP_EACH (w) {
        if (whole)
            lane_array(a, op, chunk, WARP_LANE(w), true);
        else
            lane_array(a, op, chunk, WARP_LANE(w), false);
    }
}

/* ---- sums of squares, and gradients that are taken in */

/* What is summed: an array, or the gradients of a page while they are set or added to. */
struct warp_sums {
    const void *from;
    void *grad; /* NULL: `from` itself is summed */
    struct zk_gpu_norm *norms;
    uint64_t n;
    bool vector; /* of `from`: pages are aligned */
};

/* What is fixed for a launch: on a GPU, when it is compiled. */
struct sums_kind {
    enum zb_dtype from, grad;
    bool ingest, add;
};

/* Four lanes of a warp share a block, and each has 4 of the 16 lanes of zk.h's definition: those of
 * its quad in every row of 16 elements. */
struct lane_sums {
    double sum[4];
    uint32_t nonfinite;
};

#define SUM_ROWS 8u /* read at a time */

/* What is read of a row's quad. */
struct sums_raw {
    struct raw from;
    struct quad32 old; /* where it is added to */
};

WARP_FN struct sums_raw sums_read(const struct warp_sums *a, const struct sums_kind *kind,
                                  uint64_t i, bool whole)
{
    struct sums_raw r;

    memset(&r, 0, sizeof(r));
    r.from = raw_get(kind->from, a->from, i, a->n, whole);
    if (kind->add)
        r.old = quad_load32(a->grad, i);
    return r;
}

/* A quad of gradients, as zk_page_ingest() takes it in; returns what is in grad then. */
WARP_FN struct quad quad_ingest(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                                const struct sums_raw *r)
{
    struct raw taken = r->from;
    struct quad x = raw_values(kind->from, r->from);

    if (kind->grad == ZB_F32) {
        if (kind->add) {
            struct raw old;

            old.wide = r->old;
            memset(&old.half, 0, sizeof(old.half));
            x = quad_sum(raw_values(ZB_F32, old), x);
        } else if (kind->from != ZB_F32)
            x = quad_canonical(x);
        quad_store32(a->grad, i, quad_bits(x));
        return x;
    }
    if (kind->from != kind->grad)
        taken.half = quad_round(kind->grad, quad_canonical(x));
    quad_store16(a->grad, i, taken.half);
    return raw_values(kind->grad, taken);
}

WARP_FN void row_count(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                       const struct sums_raw *r, struct lane_sums *st)
{
    struct quad x = kind->ingest ? quad_ingest(a, kind, i, r) : raw_values(kind->from, r->from);

    WARP_FOR (k, 4) {
        st->nonfinite += (uint32_t)elem_is_nonfinite(elem_bits(x.x[k]));
        st->sum[k] = elem_add_square(st->sum[k], x.x[k]);
    }
}

/* The next rows are on their way while these are summed. */
WARP_FN void lane_rows(const struct warp_sums *a, const struct sums_kind *kind, uint64_t first,
                       bool whole, struct lane_sums *st)
{
    struct sums_raw r[SUM_ROWS], next[SUM_ROWS];
    unsigned row = 0;

    WARP_FOR (at, SUM_ROWS)
        r[at] = sums_read(a, kind, first + at * 16, whole);
    WARP_ONCE
    for (; row < WARP_B / 16 - SUM_ROWS; row += SUM_ROWS) {
        WARP_FOR (at, SUM_ROWS)
            next[at] = sums_read(a, kind, first + (row + SUM_ROWS + at) * 16, whole);
        WARP_FOR (at, SUM_ROWS)
            row_count(a, kind, first + (row + at) * 16, &r[at], st);
        WARP_FOR (at, SUM_ROWS)
            r[at] = next[at];
    }
    WARP_FOR (at, SUM_ROWS)
        row_count(a, kind, first + (row + at) * 16, &r[at], st);
}

/* Unaligned, or the last block of an array. */
WARP_RARE struct lane_sums lane_rows_rare(const struct warp_sums a, struct sums_kind kind,
                                          uint64_t first)
{
    struct lane_sums st;

    memset(&st, 0, sizeof(st));
    WARP_ONCE
    for (unsigned row = 0; row < WARP_B / 16; row++) {
        struct sums_raw r = sums_read(&a, &kind, first + row * 16, false);

        row_count(&a, &kind, first + row * 16, &r, &st);
    }
    return st;
}

WARP_FN void lane_sum(const struct warp_sums *a, const struct sums_kind *kind, uint64_t block,
                      unsigned quarter, struct lane_sums *st)
{
    uint64_t first = block * WARP_B + quarter * 4;

    memset(st, 0, sizeof(*st));
    if (first >= a->n)
        return;
    if (a->vector && (block + 1) * WARP_B <= a->n)
        lane_rows(a, kind, first, true, st);
    else
        *st = lane_rows_rare(*a, *kind, first);
}

/* Each quarter adds what the one `delta` behind it has; what those without one get is not used. */
WARP_FN void sums_down(struct lane_sums *st, unsigned delta)
{
#ifdef __CUDA_ARCH__
    WARP_FOR (k, 4)
        st->sum[k] += __shfl_down_sync(0xffffffffu, st->sum[k], delta, 4);
    st->nonfinite += __shfl_down_sync(0xffffffffu, st->nonfinite, delta, 4);
#else
    WARP_EACH (w) {
        if (w % 4 + delta >= 4)
            continue;
        WARP_FOR (k, 4)
            st[w].sum[k] += st[w + delta].sum[k];
        st[w].nonfinite += st[w + delta].nonfinite;
    }
#endif
}

/* WARP_BLOCKS blocks. All lanes come here, also those whose block is behind the end. */
WARP_FN void warp_sums(const struct warp_sums *a, const struct sums_kind *kind, uint64_t chunk)
{
    struct lane_sums st[WARP_STATES];

    WARP_EACH (w)
        lane_sum(a, kind, chunk * WARP_BLOCKS + WARP_LANE(w) / 4, WARP_LANE(w) % 4, &st[w]);
    sums_down(st, 2); /* lane j += lane j + 8 */
    sums_down(st, 1); /* + 4; then + 2 and + 1: */
    WARP_EACH (w) {
        uint64_t block = chunk * WARP_BLOCKS + WARP_LANE(w) / 4;

        if (WARP_LANE(w) % 4 == 0 && block * WARP_B < a->n) {
            double sum = (st[w].sum[0] + st[w].sum[2]) + (st[w].sum[1] + st[w].sum[3]);

            a->norms[block].sum = st[w].nonfinite > 0 ? 0 : sum;
            a->norms[block].nonfinite = st[w].nonfinite;
        }
    }
}

/* ---- steps */

struct warp_step {
    unsigned char *param, *state, *grad;
    uint64_t first, count;
    const struct zk_segment *segments;
    const struct zk_scalars *by_group;
    uint32_t nsegments;
    uint32_t block_bytes;  /* of state */
    uint32_t moment_at[2]; /* in a block of state; the master is at 0 */
    bool moment_signed[2];
    enum zb_dtype grad_dtype;
};

/* What is fixed for a launch: on a GPU, when it is compiled. */
struct step_kind {
    enum zb_optimizer optimizer;
    enum zb_dtype dtype;
    enum zb_moments moments;
    unsigned nmoments;
};

/* A quad of a page. */
struct place {
    uint64_t in_page; /* element */
    uint32_t in_block;
    unsigned char *state; /* of its block */
};

/* Which scalars are at hand, and the segment where the search goes on. */
struct lane_scalars {
    uint32_t group, segment;
    struct zk_scalars s;
};

/* The first segment from `s` on that ends behind element x of the unit. */
WARP_FN uint32_t segment_find(const struct warp_step *a, uint32_t s, uint64_t x)
{
    uint32_t end = a->nsegments;

    while (s < end) {
        uint32_t middle = s + (end - s) / 2;

        if (a->segments[middle].first + a->segments[middle].count > x)
            end = middle;
        else
            s = middle + 1;
    }
    return s;
}

/* true: element x is in a segment, whose scalars are at hand then. x does not go down. */
WARP_FN bool scalars_find(const struct warp_step *a, struct lane_scalars *s, uint64_t x)
{
    while (s->segment < a->nsegments &&
           a->segments[s->segment].first + a->segments[s->segment].count <= x)
        s->segment++;
    if (s->segment == a->nsegments || a->segments[s->segment].first > x)
        return false;
    if (a->segments[s->segment].group != s->group) {
        s->group = a->segments[s->segment].group;
        s->s = a->by_group[s->group];
    }
    return true;
}

WARP_FN void element_step(enum zb_optimizer optimizer, const struct zk_scalars *s, float *p,
                          float *m, float *v, float g)
{
    switch (optimizer) {
    case ZB_ADAMW:
        elem_step_ADAMW(s, p, m, v, g);
        break;
    case ZB_ADAM:
        elem_step_ADAM(s, p, m, v, g);
        break;
    case ZB_LION:
        elem_step_LION(s, p, m, v, g);
        break;
    case ZB_SGD:
        elem_step_SGD(s, p, m, v, g);
        break;
    case ZB_ADAGRAD:
        elem_step_ADAGRAD(s, p, m, v, g);
        break;
    case ZB_OPTIMIZER_END:
        break;
    }
}

/* Stores of a quad what was stepped, by bit. */
#define STEPPED_ALL 15u

WARP_FN void stepped_put32(void *array, uint64_t i, struct quad32 q, uint32_t stepped)
{
    if (stepped == STEPPED_ALL)
        quad_store32(array, i, q);
    else
        WARP_FOR (k, 4)
            if (stepped >> k & 1)
                ((elem32 *)array)[i + k] = q.x[k];
}

WARP_FN void stepped_put16(void *array, uint64_t i, struct quad16 q, uint32_t stepped)
{
    if (stepped == STEPPED_ALL)
        quad_store16(array, i, q);
    else
        WARP_FOR (k, 4)
            if (stepped >> k & 1)
                ((elem16 *)array)[i + k] = q.x[k];
}

/* What a step reads of a quad: of the master what the dtype has of it, gradients, and moments as
 * they are stored. */
struct step_raw {
    struct raw param;
    struct quad16 low; /* of a split master */
    struct raw grad;
    struct raw moment[ZB_MOMENTS_MAX];
    struct quad8 code[ZB_MOMENTS_MAX];
    uint32_t scale[ZB_MOMENTS_MAX];
};

/* Planes are aligned, and pages whole blocks: so is each quad. */
WARP_FN struct step_raw step_read(const struct warp_step *a, const struct step_kind *kind,
                                  const struct place *at)
{
    struct step_raw r;

    memset(&r, 0, sizeof(r));
    if (kind->dtype == ZB_F16)
        r.param.wide = quad_load32(at->state, at->in_block);
    else
        r.param = raw_get(kind->dtype, a->param, at->in_page, a->count, true);
    if (kind->dtype == ZB_BF16)
        r.low = quad_load16(at->state, at->in_block);
    r.grad = raw_get(a->grad_dtype, a->grad, at->in_page, a->count, true);
    WARP_FOR (which, ZB_MOMENTS_MAX) {
        const unsigned char *from = at->state + a->moment_at[which];

        if (which >= kind->nmoments)
            continue;
        if (kind->moments == ZB_MOMENTS_Q8) {
            r.code[which] = quad_load8(from, at->in_block);
            r.scale[which] =
                ((const elem32 *)(const void *)(from + WARP_B))[at->in_block / ZB_Q8_GROUP];
        } else {
            r.moment[which] = raw_get(kind->moments == ZB_MOMENTS_BF16 ? ZB_BF16 : ZB_F32, from,
                                      at->in_block, WARP_B, true);
        }
    }
    return r;
}

WARP_FN struct quad master_of(enum zb_dtype dtype, const struct step_raw *r)
{
    struct quad values;

    if (dtype != ZB_BF16)
        return raw_values(ZB_F32, r->param);
    WARP_FOR (k, 4)
        values.x[k] = elem_value_of_split(r->param.half.x[k], (int16_t)r->low.x[k]);
    return values;
}

WARP_FN void master_put(enum zb_dtype dtype, const struct warp_step *a, const struct place *at,
                        struct quad values, uint32_t stepped)
{
    struct quad16 hi, lo;

    if (dtype == ZB_F32) {
        stepped_put32(a->param, at->in_page, quad_bits(values), stepped);
        return;
    }
    if (dtype == ZB_F16) {
        stepped_put16(a->param, at->in_page, quad_round(ZB_F16, values), stepped);
        stepped_put32(at->state, at->in_block, quad_bits(values), stepped);
        return;
    }
    WARP_FOR (k, 4) {
        int16_t low;

        elem_split_canonical(values.x[k], &hi.x[k], &low);
        lo.x[k] = (uint16_t)low;
    }
    stepped_put16(a->param, at->in_page, hi, stepped);
    stepped_put16(at->state, at->in_block, lo, stepped);
}

WARP_FN struct quad moment_of(enum zb_moments moments, const struct warp_step *a, unsigned which,
                              const struct step_raw *r)
{
    if (moments == ZB_MOMENTS_Q8)
        return quad_decode_q8(r->code[which], r->scale[which], a->moment_signed[which]);
    if (moments == ZB_MOMENTS_BF16)
        return quad_canonical(raw_values(ZB_BF16, r->moment[which]));
    return raw_values(ZB_F32, r->moment[which]);
}

/* What was stepped is stored. Moments of 8 bits need their group first: moment_put_q8(). */
WARP_FN void moment_put(enum zb_moments moments, const struct warp_step *a, unsigned which,
                        const struct place *at, struct quad values, uint32_t stepped, uint32_t key)
{
    unsigned char *to = at->state + a->moment_at[which];
    struct quad16 q;

    if (moments == ZB_MOMENTS_F32) {
        stepped_put32(to, at->in_block, quad_bits(values), stepped);
        return;
    }
    WARP_FOR (k, 4)
        q.x[k] = moment_to_bf16(values.x[k], moment_noise(key, at->in_block + k));
    stepped_put16(to, at->in_block, q, stepped);
}

/* A lane's moments, [which][half], between the step and the encoding in 8 bits. */
struct lane_moments {
    struct quad x[ZB_MOMENTS_MAX][2];
};

/* all: every element is stepped, by the scalars at hand. */
WARP_FN void quad_step(const struct warp_step *a, const struct step_kind *kind,
                       const struct place *at, const struct step_raw *r,
                       struct lane_scalars *scalars, const uint32_t *keys, bool all, unsigned half,
                       struct lane_moments *st)
{
    struct quad p = master_of(kind->dtype, r), g = raw_values(a->grad_dtype, r->grad);
    uint32_t stepped = all ? STEPPED_ALL : 0;

    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments)
            st->x[which][half] = moment_of(kind->moments, a, which, r);
    WARP_FOR (k, 4)
        if (all || scalars_find(a, scalars, a->first + at->in_page + k)) {
            element_step(kind->optimizer, &scalars->s, &p.x[k], &st->x[0][half].x[k],
                         &st->x[1][half].x[k], g.x[k]);
            stepped |= 1u << k;
        }
    if (stepped != 0)
        master_put(kind->dtype, a, at, p, stepped);
    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments && kind->moments != ZB_MOMENTS_Q8)
            moment_put(kind->moments, a, which, at, st->x[which][half], stepped, keys[which]);
}

/* A lane's quads. `own` is the first segment that ends behind the chunk's first element; there is
 * one. */
WARP_FN void lane_step(const struct warp_step *a, const struct step_kind *kind,
                       const struct place *at, const uint32_t *keys, uint32_t own, bool all,
                       unsigned lane, struct lane_moments *st)
{
    struct step_raw r[2];
    struct place quads[2];
    struct lane_scalars scalars;

    WARP_FOR (half, 2) {
        uint32_t i = (uint32_t)lane_at(0, lane, half);

        quads[half].in_page = at->in_page + i;
        quads[half].in_block = at->in_block + i;
        quads[half].state = at->state;
        r[half] = step_read(a, kind, &quads[half]);
    }
    scalars.group = a->segments[own].group;
    scalars.s = a->by_group[scalars.group];
    scalars.segment = all ? own : segment_find(a, own, a->first + quads[0].in_page);
    WARP_FOR (half, 2)
        quad_step(a, kind, &quads[half], &r[half], &scalars, keys, all, half, st);
}

/* A chunk with more than one segment, or with elements that are in none. */
WARP_RARE struct lane_moments lane_step_rare(const struct warp_step a, struct step_kind kind,
                                             struct place at, uint32_t key0, uint32_t key1,
                                             uint32_t own, unsigned lane)
{
    const uint32_t keys[ZB_MOMENTS_MAX] = { key0, key1 };
    struct lane_moments st;

    memset(&st, 0, sizeof(st));
    lane_step(&a, &kind, &at, keys, own, false, lane, &st);
    return st;
}

/* `at` is the chunk's first element. */
WARP_FN void moment_put_q8(const struct warp_step *a, unsigned which, const struct place *at,
                           const struct lane_moments *st, uint32_t key)
{
    unsigned char *to = at->state + a->moment_at[which];
    uint32_t most[WARP_STATES], pattern;

    WARP_EACH (w) {
        most[w] = 0;
        WARP_FOR (e, 8) {
            uint32_t x = moment_finite(elem_bits(st[w].x[which][e / 4].x[e % 4]));

            most[w] = x > most[w] ? x : most[w];
        }
    }
    pattern = moment_pattern(warp_most(most));
    WARP_EACH (w) {
        WARP_FOR (half, 2) {
            uint32_t i = at->in_block + (uint32_t)lane_at(0, WARP_LANE(w), half);

            quad_put8(
                to, i, WARP_B, true,
                quad_encode_q8(st[w].x[which][half], pattern, key, i, a->moment_signed[which]));
        }
        if (WARP_LANE(w) == 0)
            ((elem32 *)(void *)(to + WARP_B))[at->in_block / ZB_Q8_GROUP] =
                elem_bits(moment_scale(pattern));
    }
}

/* One chunk of a step. What no segment touches is left alone: each element, but for moments of 8
 * bits, which are encoded as a whole wherever a segment touches their block. What rounds reduced
 * ones is drawn for the block's first segment. */
WARP_FN void warp_step(const struct warp_step *a, const struct step_kind *kind, uint64_t chunk)
{
    uint64_t block = chunk / (WARP_B / WARP_CHUNK), first = a->first + block * WARP_B;
    uint32_t in_block = (uint32_t)(chunk % (WARP_B / WARP_CHUNK)) * WARP_CHUNK;
    bool whole = kind->moments != ZB_MOMENTS_F32;
    uint64_t from = whole ? first : first + in_block;
    uint64_t to = whole ? first + WARP_B : from + WARP_CHUNK;
    struct place at = { chunk * WARP_CHUNK, in_block, a->state + block * a->block_bytes };
    struct lane_moments st[WARP_STATES];
    uint32_t s = segment_find(a, 0, from), own, keys[ZB_MOMENTS_MAX] = { 0, 0 };
    uint64_t begin = first + in_block;
    bool all;

    if (s == a->nsegments || a->segments[s].first >= to)
        return;
    for (uint32_t which = 0; which < kind->nmoments && whole; which++)
        keys[which] = moment_key(a->by_group[a->segments[s].group].rounding, which, first / WARP_B);
    own = whole ? segment_find(a, s, begin) : s;
    all = own < a->nsegments && a->segments[own].first <= begin &&
          a->segments[own].first + a->segments[own].count >= begin + WARP_CHUNK;
    own = own < a->nsegments ? own : s; /* behind the last: no element finds it */
    WARP_EACH (w) {
        if (all)
            lane_step(a, kind, &at, keys, own, true, WARP_LANE(w), &st[w]);
        else
            st[w] = lane_step_rare(*a, *kind, at, keys[0], keys[1], own, WARP_LANE(w));
    }
    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments && kind->moments == ZB_MOMENTS_Q8)
            moment_put_q8(a, which, &at, st, keys[which]);
}

/* ---- from works, by the host */

static inline uint64_t warp_chunks(const struct zk_gpu_work *w)
{
    if (w->op == ZK_GPU_STEP)
        return w->step.page.count / WARP_CHUNK;
    if (w->op == ZK_GPU_INGEST)
        return zb_div_up(w->ingest.page.count / WARP_B, WARP_BLOCKS);
    if (w->op == ZK_GPU_NORM)
        return zb_div_up(zb_div_up(w->array.n, WARP_B), WARP_BLOCKS);
    return zb_div_up(w->array.n, WARP_CHUNK);
}

static inline struct warp_step warp_step_of(const struct zk_gpu_step *w)
{
    uint32_t moment_bytes = zb_moment_block_bytes(w->layout.moments);
    struct warp_step a;

    a.param = (unsigned char *)w->page.param;
    a.state = (unsigned char *)w->page.state;
    a.grad = (unsigned char *)w->page.grad;
    a.first = w->page.first;
    a.count = w->page.count;
    a.segments = w->segments;
    a.by_group = w->by_group;
    a.nsegments = w->nsegments;
    a.block_bytes = w->layout.block_bytes[ZB_STATE];
    a.grad_dtype = w->layout.grad_dtype;
    for (uint32_t i = 0; i < ZB_MOMENTS_MAX; i++) {
        bool is = i < w->layout.nmoments;

        a.moment_at[i] = is ? a.block_bytes - (w->layout.nmoments - i) * moment_bytes : 0;
        a.moment_signed[i] = is && zb_moment_signed(w->layout.optimizer, i);
    }
    return a;
}

static inline bool warp_aligned(const void *array, size_t elem_bytes)
{
    return (uintptr_t)array % (4 * elem_bytes) == 0;
}

static inline struct warp_sums warp_sums_of(const struct zk_gpu_work *w)
{
    bool ingest = w->op == ZK_GPU_INGEST;
    struct warp_sums a;

    a.from = ingest ? w->ingest.from : w->array.from;
    a.grad = ingest ? w->ingest.page.grad : NULL;
    a.norms = ingest ? w->ingest.norms : w->array.norms;
    a.n = ingest ? w->ingest.page.count : w->array.n;
    a.vector =
        warp_aligned(a.from, zb_dtype_bytes(ingest ? w->ingest.from_dtype : w->array.from_dtype));
    return a;
}

static inline struct sums_kind warp_sums_kind(const struct zk_gpu_work *w)
{
    struct sums_kind kind;

    kind.ingest = w->op == ZK_GPU_INGEST;
    kind.from = kind.ingest ? w->ingest.from_dtype : w->array.from_dtype;
    kind.grad = kind.ingest ? w->ingest.layout.grad_dtype : ZB_F32;
    kind.add = kind.ingest && w->ingest.add;
    return kind;
}

/* Whether all arrays of a work on arrays can be taken by quads. */
static inline bool warp_vector(enum zk_gpu_op op, const struct zk_gpu_array *a)
{
    size_t from = zb_dtype_bytes(a->from_dtype), to = zb_dtype_bytes(a->to_dtype), side = 1;

    if (op == ZK_GPU_SPLIT || op == ZK_GPU_ENCODE_BF16 || op == ZK_GPU_ENCODE_Q8)
        from = sizeof(float);
    else if (op == ZK_GPU_MERGE)
        from = sizeof(uint16_t);
    else if (op == ZK_GPU_DECODE_Q8 || op == ZK_GPU_DEQUANTIZE_I8)
        from = 1;
    if (op == ZK_GPU_MERGE || op == ZK_GPU_ADD || op == ZK_GPU_DECODE_Q8)
        to = sizeof(float);
    else if (op == ZK_GPU_SPLIT || op == ZK_GPU_ENCODE_BF16)
        to = sizeof(uint16_t);
    else if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_QUANTIZE_I8)
        to = 1;
    if (op == ZK_GPU_SPLIT || op == ZK_GPU_MERGE)
        side = sizeof(int16_t);
    return warp_aligned(a->from, from) && warp_aligned(a->to, to) && warp_aligned(a->side, side);
}

#endif
