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
 * begin anywhere; `vector` says that all of a work's are aligned to a quad. What is arithmetic
 * stands in ref/, and none of it here.
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
#define WARP_FN     static __device__ __forceinline__
#define WARP_UNROLL _Pragma("unroll 8")
#define WARP_FULL   _Pragma("unroll") /* so that arrays of a lane stay in registers */
#define MAY_ALIAS
#else
#define WARP_FN static inline
#define WARP_UNROLL
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

/* Elements [i, i + 4) of an array of n, zeros behind its end. */
#define QUAD_FUNCTIONS(bits)                                                            \
    WARP_FN struct quad##bits quad_get##bits(const void *array, uint64_t i, uint64_t n, \
                                             bool vector)                               \
    {                                                                                   \
        const elem##bits *at = (const elem##bits *)array + i;                           \
        struct quad##bits q;                                                            \
                                                                                        \
        if (vector && i + 4 <= n)                                                       \
            return *(const struct quad##bits *)(const void *)at;                        \
        for (unsigned k = 0; k < 4; k++)                                                \
            q.x[k] = i + k < n ? at[k] : (elem##bits)0;                                 \
        return q;                                                                       \
    }                                                                                   \
                                                                                        \
    WARP_FN void quad_put##bits(void *array, uint64_t i, uint64_t n, bool vector,       \
                                struct quad##bits q)                                    \
    {                                                                                   \
        elem##bits *at = (elem##bits *)array + i;                                       \
                                                                                        \
        if (vector && i + 4 <= n) {                                                     \
            *(struct quad##bits *)(void *)at = q;                                       \
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

/* Of any dtype, for arithmetic: a NaN as it is. */
WARP_FN struct quad quad_values(enum zb_dtype dtype, const void *array, uint64_t i, uint64_t n,
                                bool vector)
{
    struct quad values;

    if (dtype == ZB_F32) {
        struct quad32 q = quad_get32(array, i, n, vector);

        WARP_FOR (k, 4)
            values.x[k] = elem_float(q.x[k]);
    } else {
        struct quad16 q = quad_get16(array, i, n, vector);

        WARP_FOR (k, 4)
            values.x[k] = dtype == ZB_BF16 ? elem_value_of_bf16(q.x[k]) : elem_value_of_f16(q.x[k]);
    }
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
WARP_FN void quad_put(enum zb_dtype dtype, void *array, uint64_t i, uint64_t n, bool vector,
                      struct quad values)
{
    if (dtype == ZB_F32)
        quad_put32(array, i, n, vector, quad_bits(values));
    else
        quad_put16(array, i, n, vector, quad_round(dtype, values));
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

WARP_FN void quad_cast(const struct zk_gpu_array *a, uint64_t i, bool vector)
{
    if (a->from_dtype != a->to_dtype)
        quad_put(a->to_dtype, a->to, i, a->n, vector,
                 quad_canonical(quad_values(a->from_dtype, a->from, i, a->n, vector)));
    else if (a->from_dtype == ZB_F32) /* as it is, NaNs too */
        quad_put32(a->to, i, a->n, vector, quad_get32(a->from, i, a->n, vector));
    else
        quad_put16(a->to, i, a->n, vector, quad_get16(a->from, i, a->n, vector));
}

WARP_FN void quad_split(const struct zk_gpu_array *a, uint64_t i, bool vector)
{
    struct quad values = quad_values(ZB_F32, a->from, i, a->n, vector);
    struct quad16 hi, lo;

    WARP_FOR (k, 4) {
        int16_t low;

        elem_split(values.x[k], &hi.x[k], &low);
        lo.x[k] = (uint16_t)low;
    }
    quad_put16(a->to, i, a->n, vector, hi);
    quad_put16(a->side, i, a->n, vector, lo);
}

WARP_FN void quad_merge(const struct zk_gpu_array *a, uint64_t i, bool vector)
{
    struct quad16 hi = quad_get16(a->from, i, a->n, vector);
    struct quad16 lo = quad_get16(a->side, i, a->n, vector);
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = elem_merge(hi.x[k], (int16_t)lo.x[k]);
    quad_put(ZB_F32, a->to, i, a->n, vector, values);
}

WARP_FN struct quad quad_sum(struct quad a, struct quad b)
{
    WARP_FOR (k, 4)
        a.x[k] = elem_add(a.x[k], b.x[k]);
    return quad_canonical(a);
}

WARP_FN void quad_encode_bf16(const struct zk_gpu_array *a, uint64_t i, bool vector)
{
    struct quad values = quad_values(ZB_F32, a->from, i, a->n, vector);
    struct quad16 q;

    WARP_FOR (k, 4)
        q.x[k] = moment_to_bf16(values.x[k], moment_noise(a->key, (uint32_t)(i + k)));
    quad_put16(a->to, i, a->n, vector, q);
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

WARP_FN struct quad quad_decode_q8(const void *code, const void *scales, uint64_t i, uint64_t n,
                                   bool vector, bool is_signed)
{
    uint32_t pattern = ((const elem32 *)scales)[i / ZB_Q8_GROUP] >> MOMENT_CUT;
    uint32_t sign = is_signed ? MOMENT_SIGN : 0;
    uint32_t top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;
    struct quad8 q = quad_get8(code, i, n, vector);
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = moment_decode(q.x[k], pattern, sign, top);
    return values;
}

WARP_FN void quad_dequantize_i8(const struct zk_gpu_array *a, uint64_t i, bool vector)
{
    float scale = elem_float(((const elem32 *)a->side)[i / ZB_Q8_GROUP]);
    struct quad8 q = quad_get8(a->from, i, a->n, vector);
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = quantize_value((int8_t)q.x[k], scale);
    quad_put(a->to_dtype, a->to, i, a->n, vector, values);
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
WARP_FN void warp_group(const struct zk_gpu_array *a, bool moments, bool vector, uint64_t chunk)
{
    struct lane_quads st[WARP_STATES];
    uint32_t most[WARP_STATES], largest;
    float scale;

    WARP_EACH (w) {
        most[w] = 0;
        WARP_FOR (half, 2) {
            st[w].half[half] = quad_values(moments ? ZB_F32 : a->from_dtype, a->from,
                                           lane_at(chunk, WARP_LANE(w), half), a->n, vector);
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
            quad_put8(a->to, i, a->n, vector, q);
        }
        if (WARP_LANE(w) == 0)
            ((elem32 *)a->side)[chunk] = elem_bits(scale);
    }
}

WARP_FN void quad_array(const struct zk_gpu_array *a, enum zk_gpu_op op, bool vector, uint64_t i)
{
    switch (op) {
    case ZK_GPU_CAST:
        quad_cast(a, i, vector);
        break;
    case ZK_GPU_SPLIT:
        quad_split(a, i, vector);
        break;
    case ZK_GPU_MERGE:
        quad_merge(a, i, vector);
        break;
    case ZK_GPU_ADD:
        quad_put(ZB_F32, a->to, i, a->n, vector,
                 quad_sum(quad_values(ZB_F32, a->to, i, a->n, vector),
                          quad_values(a->from_dtype, a->from, i, a->n, vector)));
        break;
    case ZK_GPU_ENCODE_BF16:
        quad_encode_bf16(a, i, vector);
        break;
    case ZK_GPU_DECODE_Q8:
        quad_put(ZB_F32, a->to, i, a->n, vector,
                 quad_decode_q8(a->from, a->side, i, a->n, vector, a->is_signed));
        break;
    case ZK_GPU_DEQUANTIZE_I8:
        quad_dequantize_i8(a, i, vector);
        break;
    default: /* not element by element */
        break;
    }
}

/* One chunk of any work on arrays but a norm. */
WARP_FN void warp_array(const struct zk_gpu_array *a, enum zk_gpu_op op, bool vector,
                        uint64_t chunk)
{
    if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_QUANTIZE_I8) {
        warp_group(a, op == ZK_GPU_ENCODE_Q8, vector, chunk);
        return;
    }
    WARP_EACH (w) {
        WARP_FOR (half, 2) {
            uint64_t i = lane_at(chunk, WARP_LANE(w), half);

            if (i < a->n)
                quad_array(a, op, vector, i);
        }
    }
}

/* ---- sums of squares, and gradients that are taken in */

/* What is summed: an array, or the gradients of a page while they are set or added to. */
struct warp_sums {
    const void *from;
    void *grad; /* NULL: `from` itself is summed */
    struct zk_gpu_norm *norms;
    uint64_t n;
    enum zb_dtype from_dtype, grad_dtype;
    bool add, vector;
};

/* Four lanes of a warp share a block, and each has 4 of the 16 lanes of zk.h's definition: those of
 * its quad in every row of 16 elements. */
struct lane_sums {
    double sum[4];
    uint32_t nonfinite;
};

/* A quad of gradients, as zk_page_ingest() takes it in; returns what is in grad then. */
WARP_FN struct quad quad_ingest(const struct warp_sums *a, uint64_t i)
{
    struct quad16 q;
    struct quad x;

    if (a->add || a->grad_dtype == ZB_F32) {
        x = quad_values(a->from_dtype, a->from, i, a->n, a->vector);
        if (a->add)
            x = quad_sum(quad_values(ZB_F32, a->grad, i, a->n, true), x);
        else if (a->from_dtype != ZB_F32)
            x = quad_canonical(x);
        quad_put32(a->grad, i, a->n, true, quad_bits(x));
        return x;
    }
    if (a->from_dtype == a->grad_dtype)
        q = quad_get16(a->from, i, a->n, a->vector);
    else
        q = quad_round(a->grad_dtype,
                       quad_canonical(quad_values(a->from_dtype, a->from, i, a->n, a->vector)));
    quad_put16(a->grad, i, a->n, true, q);
    WARP_FOR (k, 4)
        x.x[k] = a->grad_dtype == ZB_BF16 ? elem_value_of_bf16(q.x[k]) : elem_value_of_f16(q.x[k]);
    return x;
}

WARP_FN void lane_sum(const struct warp_sums *a, uint64_t block, unsigned quarter,
                      struct lane_sums *st)
{
    uint64_t first = block * WARP_B + quarter * 4;

    WARP_FOR (k, 4)
        st->sum[k] = 0;
    st->nonfinite = 0;
    if (first >= a->n)
        return;
    WARP_UNROLL
    for (unsigned row = 0; row < WARP_B / 16; row++) {
        uint64_t i = first + row * 16;
        struct quad x = a->grad ? quad_ingest(a, i)
                                : quad_values(a->from_dtype, a->from, i, a->n, a->vector);

        WARP_FOR (k, 4) {
            st->nonfinite += (uint32_t)elem_is_nonfinite(elem_bits(x.x[k]));
            st->sum[k] = elem_add_square(st->sum[k], x.x[k]);
        }
    }
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
WARP_FN void warp_sums(const struct warp_sums *a, uint64_t chunk)
{
    struct lane_sums st[WARP_STATES];

    WARP_EACH (w)
        lane_sum(a, chunk * WARP_BLOCKS + WARP_LANE(w) / 4, WARP_LANE(w) % 4, &st[w]);
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
        quad_put32(array, i, i + 4, true, q);
    else
        WARP_FOR (k, 4)
            if (stepped >> k & 1)
                ((elem32 *)array)[i + k] = q.x[k];
}

WARP_FN void stepped_put16(void *array, uint64_t i, struct quad16 q, uint32_t stepped)
{
    if (stepped == STEPPED_ALL)
        quad_put16(array, i, i + 4, true, q);
    else
        WARP_FOR (k, 4)
            if (stepped >> k & 1)
                ((elem16 *)array)[i + k] = q.x[k];
}

WARP_FN struct quad master_get(enum zb_dtype dtype, const struct warp_step *a,
                               const struct place *at)
{
    struct quad16 hi, lo;
    struct quad values;

    if (dtype == ZB_F32)
        return quad_values(ZB_F32, a->param, at->in_page, a->count, true);
    if (dtype == ZB_F16)
        return quad_values(ZB_F32, at->state, at->in_block, WARP_B, true);
    hi = quad_get16(a->param, at->in_page, a->count, true);
    lo = quad_get16(at->state, at->in_block, WARP_B, true);
    WARP_FOR (k, 4)
        values.x[k] = elem_value_of_split(hi.x[k], (int16_t)lo.x[k]);
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

WARP_FN struct quad moment_get(enum zb_moments moments, const struct warp_step *a, unsigned which,
                               const struct place *at)
{
    const unsigned char *from = at->state + a->moment_at[which];

    if (moments == ZB_MOMENTS_Q8)
        return quad_decode_q8(from, from + WARP_B, at->in_block, WARP_B, true,
                              a->moment_signed[which]);
    if (moments == ZB_MOMENTS_BF16)
        return quad_canonical(quad_values(ZB_BF16, from, at->in_block, WARP_B, true));
    return quad_values(ZB_F32, from, at->in_block, WARP_B, true);
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

WARP_FN void quad_step(const struct warp_step *a, const struct step_kind *kind,
                       const struct place *at, struct lane_scalars *scalars, const uint32_t *keys,
                       unsigned half, struct lane_moments *st)
{
    struct quad p = master_get(kind->dtype, a, at);
    struct quad g = quad_values(a->grad_dtype, a->grad, at->in_page, a->count, true);
    uint32_t stepped = 0;

    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments)
            st->x[which][half] = moment_get(kind->moments, a, which, at);
    WARP_FOR (k, 4)
        if (scalars_find(a, scalars, a->first + at->in_page + k)) {
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
    uint32_t s = segment_find(a, 0, from), keys[ZB_MOMENTS_MAX] = { 0, 0 };

    if (s == a->nsegments || a->segments[s].first >= to)
        return;
    for (uint32_t which = 0; which < kind->nmoments && whole; which++)
        keys[which] = moment_key(a->by_group[a->segments[s].group].rounding, which, first / WARP_B);
    WARP_EACH (w) {
        uint64_t in = lane_at(0, WARP_LANE(w), 0);
        struct lane_scalars scalars;

        scalars.group = a->segments[s].group;
        scalars.s = a->by_group[scalars.group];
        scalars.segment = segment_find(a, s, a->first + at.in_page + in);
        WARP_FOR (half, 2) {
            uint32_t i = (uint32_t)lane_at(0, WARP_LANE(w), half);
            struct place quad = { at.in_page + i, in_block + i, at.state };

            quad_step(a, kind, &quad, &scalars, keys, half, &st[w]);
        }
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
    a.from_dtype = ingest ? w->ingest.from_dtype : w->array.from_dtype;
    a.grad_dtype = ingest ? w->ingest.layout.grad_dtype : ZB_F32;
    a.add = ingest && w->ingest.add;
    a.vector = warp_aligned(a.from, zb_dtype_bytes(a.from_dtype));
    return a;
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
