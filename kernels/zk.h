/*
 * zk.h - what each kernel computes.
 *
 * MODEL. A kernel is a pure function over arrays: it allocates nothing, keeps nothing, calls nobody
 * and is safe in any thread that called zk_thread_init(). All implementations of one kernel give
 * the SAME BITS: ref/ says what is correct, in readable C, and is always built, also once more for
 * each instruction set that we know (zk_priv.h); cpu/ and cuda/ say what is fast. All are held to
 * "ref" bit for bit by tests/unit/kernels. So which machine, thread or backend ran a step can never
 * change a run.
 *
 * Arithmetic is IEEE 754 with rounding to nearest even and denormals on; fused multiply-adds are
 * written out and nothing else is fused (-ffp-contract=off). A result that is NaN is stored as
 * 0x7fc00000 (fp32) or 0x7fc0 (bf16): payloads differ between processors.
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
 * A STATE PAGE interleaves by block, so that one block is verified, updated and checksummed while
 * it is in the cache. A block of B = ZB_BLOCK_ELEMS elements is
 *     bf16:  int16 lo[B]; float m[B]; float v[B];        10 bytes an element
 *     fp32:  float m[B]; float v[B];                      8 bytes an element
 */
struct zk_state_block {
    int16_t *lo; /* NULL for fp32 parameters */
    float *m, *v;
};

/** The arrays of block number `block` (from 0) of a state page. */
static inline struct zk_state_block zk_state_block(enum zb_dtype dtype, void *page, size_t block)
{
    unsigned char *p = page;
    struct zk_state_block b = { 0 };

    if (dtype == ZB_BF16) {
        p += block * 10 * ZB_BLOCK_ELEMS;
        b.lo = (int16_t *)(void *)p;
        p += 2 * ZB_BLOCK_ELEMS;
    } else {
        p += block * 8 * ZB_BLOCK_ELEMS;
    }
    b.m = (float *)(void *)p;
    b.v = b.m + ZB_BLOCK_ELEMS;
    return b;
}

/*
 * ADAMW, with the semantics of torch.optim.AdamW. Host scalars are computed in double, in this
 * order, by zk_adamw_prepare(), and rounded once to float:
 *     c1 = 1 - beta1^t, c2 = 1 - beta2^t           powers by zk_powi(), t = 1 for the first step
 *     decay = 1 - lr * weight_decay
 *     one_minus_beta1 = 1 - beta1; one_minus_beta2 = 1 - beta2
 *     step_size = lr / c1
 *     rsqrt_c2 = 1 / sqrt(c2)
 * and for each element, all in float, in this order:
 *     g  = grad * scale
 *     p  = p * decay
 *     m  = fma(one_minus_beta1, g - m, m)
 *     v  = fma(one_minus_beta2 * g, g, beta2 * v)
 *     d  = fma(sqrt(v), rsqrt_c2, eps)
 *     p  = fma(-step_size, m / d, p)
 * The bf16 form does the same on the merged master, then splits it again.
 */
struct zk_adamw {
    float scale; /* of the gradient: 1 / (loss scale * averaging) times the clip coefficient */
    float decay, beta2, one_minus_beta1, one_minus_beta2, step_size, rsqrt_c2, eps;
};

struct zk_adamw_params {
    double lr, beta1, beta2, eps, weight_decay;
    double scale;
};

/** b^t in double by repeated squaring, from the lowest bit of t up: the same bits everywhere. */
double zk_powi(double b, uint64_t t);
/** t >= 1: the number of this step. The betas are in [0, 1): 1 would divide by zero. */
struct zk_adamw zk_adamw_prepare(const struct zk_adamw_params *params, uint64_t t);

/** One implementation of every kernel. */
struct zk_ops {
    const char *name; /* "ref", "avx2", "avx512", "neon" */
    bool (*supported)(void);

    void (*adamw_f32)(const struct zk_adamw *s, float *param, float *m, float *v, const float *grad,
                      size_t n);
    void (*adamw_bf16)(const struct zk_adamw *s, uint16_t *hi, int16_t *lo, float *m, float *v,
                       const float *grad, size_t n);

    /* The split master; a NaN comes out canonical. */
    void (*split)(const float *master, uint16_t *hi, int16_t *lo, size_t n);
    void (*merge)(const uint16_t *hi, const int16_t *lo, float *master, size_t n);

    /* Casts for computing: round to nearest, ties to EVEN, NaN canonical. Not the split's cast. */
    void (*f32_to_bf16)(const float *from, uint16_t *to, size_t n);
    void (*bf16_to_f32)(const uint16_t *from, float *to, size_t n);

    /* acc[i] += x[i], one rounding. */
    void (*add_f32)(float *acc, const float *x, size_t n);
    void (*add_bf16)(float *acc, const uint16_t *x, size_t n);

    /*
     * Sum of squares of one block (n <= ZB_BLOCK_ELEMS) in double. Each square is exact in double.
     * Element i goes to lane i % 16; lanes add in index order; then lane j += lane j + 8, + 4, + 2,
     * + 1. *nonfinite is increased by the number of elements that are infinite or NaN; where it
     * grows, the sum means nothing.
     */
    double (*sumsq)(const float *x, size_t n, uint64_t *nonfinite);
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
/** Rounded once, to nearest even. Always finite: the top limb ends far below double's largest. */
double zk_xsum_value(const struct zk_xsum *s);
/** 80 bytes, little-endian limbs: the form on the wire. Any 80 bytes are a sum. */
#define ZK_XSUM_BYTES (ZK_XSUM_LIMBS * 8)
void zk_xsum_store(const struct zk_xsum *s, unsigned char out[ZK_XSUM_BYTES]);
void zk_xsum_load(struct zk_xsum *s, const unsigned char in[ZK_XSUM_BYTES]);

#endif
