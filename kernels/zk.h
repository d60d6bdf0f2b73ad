/*
 * zk.h - what each kernel computes.
 *
 * MODEL. A kernel is a pure function over arrays: it allocates nothing, keeps no state, has no
 * callbacks, and is safe in any thread that called zk_thread_init(). All implementations of one
 * kernel give the SAME BITS. ref/ defines the correct result, in readable C; it is always built,
 * and again for each supported instruction set (zk_priv.h). cpu/ and cuda/ have fast
 * implementations. tests/unit/kernels compares all of them with "ref" bit for bit. So the result
 * of a run never depends on the machine, thread or backend that ran a step.
 *
 * Arithmetic is IEEE 754 with rounding to nearest even and denormals on; fused multiply-adds are
 * written out and nothing else is fused (-ffp-contract=off). A result that is NaN is stored as
 * 0x7fc00000 (fp32), 0x7fc0 (bf16) or 0x7e00 (fp16): payloads differ between processors.
 *
 * Arrays of one call do not overlap unless said so. Any alignment of an element's own size works;
 * 64 bytes is fastest. n may be 0.
 */
#ifndef ZK_H
#define ZK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/plan.h"

/*
 * THE SPLIT MASTER of a bf16 parameter (DESIGN section 6). A master f, with bit pattern b, is
 *     hi = (b + 0x8000) >> 16      the bf16 parameter: round to nearest, ties AWAY from zero
 *     lo = b - (hi << 16)          signed 16 bits
 * and (hi << 16) + lo is b again for every pattern that is not a NaN (with ties to even it would
 * not be). A NaN is hi 0x7fc0, lo 0. Hardware casts round ties to even: never use them here.
 *
 * With "8bit-lo" state has only the upper 8 bits of lo, signed: lo / 256. After a step b is rounded to a
 * multiple of 256, stochastically (REDUCED MOMENTS below):
 *     b = (b + (noise(key, i) >> 16 & 0xff)) & ~0xff      i of the block; key of the first moment
 * and then split. A master that is written is rounded with 0x80 instead: to nearest, ties away from zero.
 * So a master is within 2^-8 of a unit in the last place of its bf16, and 2^-9 where it is written. Multiples
 * of 256 stay as they are, among them every infinity and NaN; a finite master above 2^128 - 2^112, whose
 * parameter is infinite anyway, may become infinite.
 *
 * An fp16 parameter is the nearest fp16 of an fp32 master, which is completely in state; an fp32
 * parameter is its own master.
 *
 * A STATE PAGE interleaves by block, so that one block is verified, updated and checksummed while
 * it is in the cache. A block of B = ZB_BLOCK_ELEMS elements is
 *     master:       bf16 int16 lo[B], or int8 lo[B]; fp16 float master[B]; fp32 nothing
 *     each moment:  float[B]; or uint16_t bf16[B]; or uint8_t code[B], float scale[B / 256]
 * with the moments in the order of base/plan.h.
 */
struct zk_state_block {
    void *master;                 /* int16_t[], int8_t[] or float[]; NULL for fp32 parameters */
    void *moment[ZB_MOMENTS_MAX]; /* NULL: the optimizer has fewer */
};

/** The arrays of block number `block` (from 0) of a state page. */
static inline struct zk_state_block zk_state_block(const struct zb_layout *layout, void *page,
                                                   size_t block)
{
    uint32_t moment_bytes = zb_moment_block_bytes(layout->moments);
    unsigned char *p = (unsigned char *)page + block * layout->block_bytes[ZB_STATE];
    struct zk_state_block b = { .master = layout->dtype == ZB_F32 ? NULL : p };

    p += layout->block_bytes[ZB_STATE] - layout->nmoments * moment_bytes;
    for (uint32_t i = 0; i < layout->nmoments; i++)
        b.moment[i] = p + i * moment_bytes;
    return b;
}

/*
 * THE OPTIMIZERS, with the semantics of the class of that name in torch.optim; Lion as published
 * (X. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2). Scalars are
 * computed once per step and group, in double, in the order written, by zk_prepare(), and rounded
 * once to float; t is 1 for the first step; powers are zk_powi()'s:
 *
 *     scale = scale                  decay = 1 - lr * weight_decay       l2 = weight_decay
 *     beta1 = beta1                  one_minus_beta1 = 1 - beta1
 *     beta2 = beta2                  one_minus_beta2 = 1 - beta2
 *     eps = eps                      rsqrt_c2 = 1 / sqrt(1 - beta2^t)    momentum = momentum
 *     step_size = AdamW, Adam: lr / (1 - beta1^t); Adagrad: lr / (1 + (t - 1) * lr_decay); else lr
 *     one_minus_dampening = 1 - dampening      one_minus_momentum = 1 - momentum
 *     fresh = t is 1, or momentum is 0
 *
 * and for each element, all in float, in this order, p being the fp32 master, m and v the moments
 * (v of those that have two), sqrt and / correctly rounded:
 *
 *     all        g = grad * scale
 *
 *     AdamW      p = p * decay
 *                m = fma(one_minus_beta1, g - m, m)
 *                v = fma(one_minus_beta2 * g, g, beta2 * v)
 *                p = fma(-step_size, m / fma(sqrt(v), rsqrt_c2, eps), p)
 *
 *     Adam       g = fma(l2, p, g)
 *                m, v, p as AdamW
 *
 *     Lion       u = fma(one_minus_beta1, g, beta1 * m)
 *                m = fma(one_minus_beta2, g, beta2 * m)
 *                p = fma(-step_size, sign(u), p * decay)      sign of 0 is 0, of NaN NaN
 *
 *     SGD        g = fma(l2, p, g)
 *                m = fresh ? g : fma(one_minus_dampening, g, momentum * m)
 *                p = fma(-step_size, nesterov ? fma(momentum, m, g) : m, p)
 *
 *     Adagrad    g = fma(l2, p, g)
 *                m = fma(g, g, m)
 *                p = fma(-step_size, g / (sqrt(m) + eps), p)
 *
 *     Muon       m = fma(one_minus_momentum, g - m, m)
 *                u = nesterov ? fma(momentum, m - g, g) : m
 *                o = the matrix of all u, orthogonalized: ortho.h
 *                p = fma(-step_size, o, p * decay)
 *
 * Muon steps matrices. Its step functions make the first pass: they store u where `param` points,
 * which is an array of float apart from the parameters. weight_f32() and weight_bf16() make the last one. The
 * step size is lr times a factor of the shape, which zk_muon_factor() has. Other tensors of a job
 * with Muon are stepped by AdamW.
 *
 * Then the master is stored as its parameter's dtype asks. The differences to torch.optim are ones
 * of rounding, except for these: SGD keeps g as its momentum while momentum is 0, so that momentum
 * that is switched on later begins with the last gradient and not with the next; an infinite
 * parameter becomes NaN under l2, also under one of 0.
 */
struct zk_scalars {
    float scale; /* of the gradient: 1 / (loss scale * averaging) times the clip coefficient */
    float decay, l2, step_size, eps;
    float beta1, one_minus_beta1, beta2, one_minus_beta2, rsqrt_c2;
    float momentum, one_minus_dampening, one_minus_momentum;
    uint32_t fresh, nesterov; /* 0 or 1 */
    uint32_t matrix;          /* 0 or 1: Muon's */
    uint32_t rounding;        /* a number drawn from t: of the rounding of reduced moments */
};

struct zk_params {
    double lr, beta1, beta2, eps, weight_decay;
    double scale;
    double momentum, dampening, lr_decay;
    uint64_t nesterov;   /* 0 or 1; no padding, so that params compare as bytes */
    uint64_t muon_scale; /* enum zk_muon_scale */
};

/*
 * REDUCED MOMENTS are stored in fewer bits; a block of them is decoded to fp32, stepped and
 * encoded. Rounding is stochastic: up with the probability of what is cut off. A second moment
 * moves by a thousandth of itself in a step, which rounding to nearest would never let it do. The
 * random bits are a function of the step, the moment and the element's place in its unit: so they
 * too are the same everywhere. Representable values are returned exactly, whatever the random bits.
 *
 *     noise(key, i)  of element i of the block, mod 2^32. The lowest bit of the key is the moment's
 *                    number, 0 or 1; both moments share what else is in it:
 *                    x = i * 0x9e3779b9 ^ (key with that bit 0); x ^= x >> 16; x *= 0x7feb352d;
 *                    x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16;
 *                    for the second moment, the halves of x change places
 *
 *     bf16           (bits + (noise >> 16)) >> 16; NaN is 0x7fc0
 *
 *     8 bits         each ZB_Q8_GROUP elements have a scale: the largest finite magnitude
 *                    among them, rounded up to 4 significant bits, at most 1.875 * 2^127.
 *                    An element's magnitude is rounded to 4 significant bits,
 *                    r = (bits + (noise >> 12)) >> 20 and at most the scale's s = bits >> 20,
 *                    and stored as how far below the scale it is:
 *                    unsigned  code = 254 - (s - r), at least 1; 0 is zero, 255 NaN
 *                    signed    code = 126 - (s - r), below 1 zero; 127 NaN; and a sign, bit 7
 *
 * So unsigned ones reach 31 powers of two below the scale, signed ones 15, with a relative error
 * below an eighth. Infinity becomes NaN; an unsigned moment drops its sign.
 */

/*
 * BLOCKWISE INT8 is how values travel in a byte each (weights that are gathered, gradients that are
 * reduced); moments have their own format, above. Each ZB_Q8_GROUP elements have a scale:
 *
 *     most  = the largest magnitude of the group
 *     scale = most / 127, at least 2^-126
 *     code  = the integer nearest to x * (1 / scale), ties to even: fma(x, 1 / scale, 3 * 2^22) has
 *             it in its low bits. From -127 to 127
 *     x     = code * scale, rounded to the dtype asked for
 *
 * so the error is at most half a scale and two roundings of it. A group with an infinity or a NaN
 * gets the scale NaN, and is returned as NaN, all of it.
 */

/** b^t in double by repeated squaring, from the lowest bit of t up: the same bits everywhere. */
double zk_powi(double b, uint64_t t);
/** The limit of every scalar of an optimizer, so that the results of zk_prepare() are finite. */
#define ZK_PARAM_MAX 1e6
/** 0, or -EINVAL, with an error message that names the scalar that this optimizer cannot step
 * with. lr, weight decay, eps, momentum and lr decay are 0 to ZK_PARAM_MAX, dampening may be
 * negative, the betas are below 1, scale is finite as a float. What the optimizer does not use is
 * ignored, except for lr, weight decay and scale. */
int zk_params_check(enum zb_optimizer optimizer, const struct zk_params *params,
                    struct zb_err *err);
/** The factor that limits a norm: limit / norm if the norm is above the limit, else 1. limit 0:
 * none. */
double zk_limit_factor(double limit, double norm);
/* The factor of Muon's learning rate. */
enum zk_muon_scale {
    ZK_MUON_RMS = 0,   /* 0.2 * sqrt(max(rows, cols)): updates as large as AdamW's (Moonlight) */
    ZK_MUON_SHAPE = 1, /* sqrt(max(1, rows / cols)) (K. Jordan) */
    ZK_MUON_SCALE_END
};
/** Of a matrix as it is stored. */
double zk_muon_factor(enum zk_muon_scale scale, uint64_t rows, uint64_t cols);
/** The same scale as a segment's, which is never 0 (zk_page.h): (float)scale, or the float next
 * to 0 where that is 0 and scale is not. */
float zk_segment_scale(double scale);
/** t >= 1: the number of this step. The betas are in [0, 1): 1 would divide by zero. What the
 * optimizer does not use is ignored: its scalars are 0. */
struct zk_scalars zk_prepare(enum zb_optimizer optimizer, const struct zk_params *params,
                             uint64_t t);

/*
 * WHAT A STEP FUNCTION gets: arrays of n elements, all beginning at the same element of their
 * planes. They do not overlap. A whole block comes with every array 64-byte aligned; a run inside
 * of a block with any alignment of the elements' own size, and any n. Stores are plain ones, in
 * place: those that bypass the cache were measured, and lose (bench/README.md).
 */
struct zk_step_arrays {
    void *param;  /* float[], or uint16_t[] of bf16 (hi of the split master) or fp16 */
    void *master; /* int16_t lo[] for bf16, float[] for fp16, NULL for fp32 */
    void *m, *v;  /* the moments, float[] or uint16_t[] of bf16; v is NULL if there is only one */
    float *to_m, *to_v; /* step_q8: where the new moments go; NULL in others */
    const void *grad;   /* in its own dtype */
    uint32_t key;       /* of bf16 moments: the first one's; element 0 of the arrays is number
                       * `first` of the block */
    uint32_t first;
};

/* One group of the moments of an optimizer, in 8 bits. */
struct zk_q8_group {
    unsigned n;                         /* moments */
    const float *value[ZB_MOMENTS_MAX]; /* ZB_Q8_GROUP of each */
    uint8_t *code[ZB_MOMENTS_MAX];
    float *scale[ZB_MOMENTS_MAX];
    bool is_signed[ZB_MOMENTS_MAX];
    uint32_t key;   /* the first one's */
    uint32_t first; /* element 0 is this number of the block */
};

/* Whole groups of elements and their moments in 8 bits, at the first of which the pointers point. */
struct zk_q8_run {
    const struct zk_scalars *scalars;
    enum zb_optimizer optimizer;
    enum zb_dtype dtype, grad_dtype;
    void *param, *master; /* as in zk_step_arrays */
    const void *grad;
    uint8_t *code[ZB_MOMENTS_MAX];
    float *scale[ZB_MOMENTS_MAX];
    uint32_t key;   /* the first moment's */
    uint32_t first; /* element 0 is this number of the block */
};

/*
 * A PRODUCT OF MATRICES, all row by row: out = fma(beta, add, alpha * (a b)), or alpha * (a b)
 * without `add`. An element of a b is the sum of its terms by k: each ZK_MATMUL_CHUNK of them from 0
 * up, by fma, and these sums are added in order. NaNs are not canonical.
 */
#define ZK_MATMUL_CHUNK 256

struct zk_matmul {
    const float *a;   /* rows of k */
    const float *b;   /* k rows of `cols`; or, transposed, `cols` rows of k */
    const float *add; /* rows of `cols`; NULL: none */
    float *out;       /* rows of `cols`; overlaps none of the others */
    size_t k, cols;
    float alpha, beta;
    bool b_transposed;
    bool bf16; /* the result is rounded to bf16 */
};

typedef void zk_step_fn(const struct zk_scalars *s, const struct zk_step_arrays *a, size_t n);

/** One implementation of every kernel. */
struct zk_ops {
    const char *name; /* "ref", "avx2", "avx512", "neon" */
    bool (*supported)(void);

    /* [optimizer][dtype of the parameter][dtype of the gradient], by their numbers: every known
     * triple has one. Moments are fp32 in `step`, and bf16 in `step_bf16`. In `step_q8` the old
     * moments are bf16, by decode_q8_bf16(), and the new ones fp32, for encode_q8_group(). */
    zk_step_fn *const (*step)[ZB_DTYPE_END][ZB_DTYPE_END];
    zk_step_fn *const (*step_bf16)[ZB_DTYPE_END][ZB_DTYPE_END];
    zk_step_fn *const (*step_q8)[ZB_DTYPE_END][ZB_DTYPE_END];

    /* The split master; a NaN comes out canonical. */
    void (*split)(const float *master, uint16_t *hi, int16_t *lo, size_t n);
    void (*merge)(const uint16_t *hi, const int16_t *lo, float *master, size_t n);

    /* lo in 8 bits, of one block (n <= ZB_BLOCK_ELEMS). widen_lo: to[i] = 256 * lo8[i]. The others round
     * masters, and change hi where that rounds to another bf16: round_lo as a step does, nearest_lo as
     * one that is written. No master is a NaN that is not canonical. */
    void (*widen_lo)(const int8_t *lo8, int16_t *lo, size_t n);
    void (*round_lo)(uint16_t *hi, const int16_t *lo, int8_t *lo8, uint32_t key, size_t n);
    void (*nearest_lo)(uint16_t *hi, const int16_t *lo, int8_t *lo8, size_t n);

    /* Casts for computing: round to nearest, ties to EVEN, NaN canonical. Not the split's cast. */
    void (*f32_to_bf16)(const float *from, uint16_t *to, size_t n);
    void (*bf16_to_f32)(const uint16_t *from, float *to, size_t n);
    void (*f32_to_f16)(const float *from, uint16_t *to, size_t n);
    void (*f16_to_f32)(const uint16_t *from, float *to, size_t n);

    /* acc[i] += x[i], one rounding. */
    void (*add_f32)(float *acc, const float *x, size_t n);
    void (*add_bf16)(float *acc, const uint16_t *x, size_t n);
    void (*add_f16)(float *acc, const uint16_t *x, size_t n);

    /* Reduced moments, as above; n is a multiple of ZB_Q8_GROUP, with a scale for each. */
    void (*encode_bf16)(const float *from, uint16_t *to, uint32_t key, size_t n);
    void (*encode_q8)(const float *from, uint8_t *code, float *scale, bool is_signed, uint32_t key,
                      size_t n);
    /* encode_q8() of one group of all moments, whose random bits are made once. */
    void (*encode_q8_group)(const struct zk_q8_group *group);
    /* Decodes, steps and encodes groups of n elements in one pass, with the results of decode_q8_bf16(),
     * step_q8 and encode_q8_group(). Returns how many elements it has stepped: it ends before a group
     * that it has no such pass for, which can be the first. */
    size_t (*step_q8_groups)(const struct zk_q8_run *run, size_t n);
    void (*decode_q8_bf16)(const uint8_t *code, const float *scale, uint16_t *to, bool is_signed,
                           size_t n);
    void (*decode_q8)(const uint8_t *code, const float *scale, float *to, bool is_signed, size_t n);

    /* Blockwise int8; n is a multiple of ZB_Q8_GROUP, with a scale for each. */
    void (*quantize_i8)(const float *from, int8_t *code, float *scale, size_t n);
    void (*dequantize_i8)(const int8_t *code, const float *scale, float *to, size_t n);

    /*
     * Sum of squares of one block (n <= ZB_BLOCK_ELEMS) in double. Each square is exact in double.
     * Element i goes to lane i % 16; lanes add in index order; then lane j += lane j + 8, + 4, + 2,
     * + 1. *nonfinite is increased by the number of elements that are infinite or NaN; where it
     * grows, the sum means nothing.
     */
    double (*sumsq)(const float *x, size_t n, uint64_t *nonfinite);

    /* to[i] = x[i], whatever it is, and sumsq() of that, in one pass. */
    double (*set_f32)(float *to, const float *x, size_t n, uint64_t *nonfinite);
    double (*set_bf16)(uint16_t *to, const uint16_t *x, size_t n, uint64_t *nonfinite);

    /* Muon's last pass, for fp32 parameters (or the fp32 masters of fp16), and split masters. */
    void (*weight_f32)(const struct zk_scalars *s, float *param, const float *by, size_t n);
    void (*weight_bf16)(const struct zk_scalars *s, uint16_t *hi, int16_t *lo, const float *by,
                        size_t n);

    /* Rows [row, row + rows) and columns [col, col + cols) of a product. */
    void (*matmul)(const struct zk_matmul *m, size_t row, size_t rows, size_t col, size_t cols);
};

/**
 * The implementations of this build, best last; "ref" is the first. Not all are supported by the
 * processor at hand.
 */
const struct zk_ops *const *zk_all(size_t *ret_count);

/**
 * The best supported implementation, or the one named by `force` (NULL or "auto": best).
 *
 * @return 0; -ENOENT no such name, -ENOTSUP this processor lacks what it needs: err has the text
 */
int zk_select(const char *force, const struct zk_ops **ret, struct zb_err *err);

/** Sets rounding to nearest and denormals on in the calling thread (another library may have
 *  changed them). Every worker calls it once before its first kernel. */
void zk_thread_init(void);

/*
 * AN EXACT SUM of doubles. Norms must not depend on how a unit is cut into shards or in which order
 * ranks report, so block sums are added exactly, as one wide integer: addition is associative, and
 * one rounding happens at the end. Range: every finite double from 2^-320 (smaller bits are cut, in
 * magnitude, always the same way) up to a total below 2^320, where it would wrap around; 2^64
 * squares of fp32 stay below it.
 */
#define ZK_XSUM_LIMBS 10

struct zk_xsum {
    uint64_t limb[ZK_XSUM_LIMBS]; /* little-endian fixed point: bit 0 of limb 0 is 2^-320 */
};

/** 0 <= x < 2^319, asserted (sumsq() gives less than 2^268). A zeroed zk_xsum is 0. */
void zk_xsum_add(struct zk_xsum *s, double x);
/** s += other; they may be the same. */
void zk_xsum_merge(struct zk_xsum *s, const struct zk_xsum *other);
/** s -= other, which was added before; they may be the same. */
void zk_xsum_take(struct zk_xsum *s, const struct zk_xsum *other);
/** Rounded once, to nearest even. Always finite: the top limb ends far below double's largest. */
double zk_xsum_value(const struct zk_xsum *s);
/** 80 bytes, little-endian limbs: the form on the wire. Any 80 bytes are a sum. */
#define ZK_XSUM_BYTES (ZK_XSUM_LIMBS * 8)
void zk_xsum_store(const struct zk_xsum *s, unsigned char out[ZK_XSUM_BYTES]);
void zk_xsum_load(struct zk_xsum *s, const unsigned char in[ZK_XSUM_BYTES]);

#endif
