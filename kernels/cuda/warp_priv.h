/*
 * warp_priv.h - the kernels for GPUs, as what one warp does: compiled by nvcc for the device
 * (launch.cu), and by the C compiler for the processor (host.c), where tests hold them to "ref". So
 * it is written in what C and C++ have in common. This file has what all kernels share. The kernels
 * are in warp_array_priv.h, warp_sums_priv.h and warp_step_priv.h; warp_work_priv.h includes them
 * all.
 *
 * MODEL. A launch is cut into chunks, and a warp of 32 lanes does one. Lanes meet only in
 * warp_meet(), warp_most() and sums_down(). A lane's state between such meetings is in an array of
 * WARP_STATES: one element, for the lane itself, on a GPU; one per lane on a processor. WARP_EACH()
 * walks it: once on a GPU, 32 times on a processor.
 *
 * A chunk of 256 elements is one group of 8-bit values, and two quads (4 elements) for each lane,
 * so that a warp's accesses are whole lines: 16 bytes a lane of fp32, 8 of 16 bits. Arrays may
 * begin anywhere; `vector` says that all of a work's are aligned to a quad, and `whole` of a quad,
 * or of all of a chunk's, that it is inside and aligned. All arithmetic is in ref/, and none of it
 * here.
 *
 * READ FIRST. A lane loads everything that it needs of its quads before it uses any of it, and
 * before it stores: the compiler cannot know that arrays do not overlap. Only in this way are
 * enough loads in flight to keep the memory busy.
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
#define WARP_BOTH static __host__ __device__ __forceinline__
#define WARP_RARE static __device__ __noinline__ /* compiled once, not in each kernel */
#define WARP_ONCE _Pragma("unroll 1")
#define WARP_FULL _Pragma("unroll") /* so that arrays of a lane stay in registers */
#define MAY_ALIAS
#else
#define WARP_FN   static inline
#define WARP_BOTH static inline
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

/* In one access: nvcc does not always do that for a struct. */
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

/* Elements [i, i + 4) of an array of n, zeros after its end. */
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

/* A quad of any dtype, as stored: one of the two members is used. */
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

/* For arithmetic; NaNs are unchanged. */
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

/* Stores as any dtype; fp32 unchanged. */
WARP_FN void quad_put(enum zb_dtype dtype, void *array, uint64_t i, uint64_t n, bool whole,
                      struct quad values)
{
    if (dtype == ZB_F32)
        quad_put32(array, i, n, whole, quad_bits(values));
    else
        quad_put16(array, i, n, whole, quad_round(dtype, values));
}

WARP_FN struct quad quad_sum(struct quad a, struct quad b)
{
    WARP_FOR (k, 4)
        a.x[k] = elem_add(a.x[k], b.x[k]);
    return quad_canonical(a);
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

/* ---- lanes */

/* Where a lane's quad is in an array, or in its chunk, number 0. */
WARP_FN uint64_t lane_at(uint64_t chunk, unsigned lane, unsigned half)
{
    return chunk * WARP_CHUNK + half * (WARP_CHUNK / 2) + lane * 4;
}

/* What a lane has stored before this, the others see after it. */
WARP_FN void warp_meet(void)
{
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
}

/* The maximum over all lanes, for each of them. */
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

#endif
