/*
 * ortho.h - orthogonalizes a matrix by Newton-Schulz iterations, as Muon does.
 *
 * MODEL. X is the matrix, or its transpose if it has more rows than columns. First X is divided by
 * its Frobenius norm, or by eps if that is larger. Then, `iterations` times, with a, b and c
 * (3.4445, -4.7750, 2.0315: K. Jordan, "Muon", 2024):
 *
 *     A = X X^T          B = b A + c A A          X = a X + B X
 *
 * So singular values move close to 1; those that are 0 stay 0. All of it is fp32. The norm is an
 * exact sum of squares (zk_xsum), rounded once; the products add their terms in the order that zk.h
 * defines. So the bits depend on the matrix alone: neither on the processor, nor on the number of
 * threads. With `bf16`, X, A and B are rounded to bf16 after each operation, as a product of bf16
 * matrices with sums in fp32 would give them.
 *
 * PHASES. A matrix takes several phases, and each phase consists of tiles. Tiles of one phase may
 * run in any order, on any threads, at the same time. The next phase begins when all have ended:
 *
 *     for (n = zk_ortho_begin(&o, ...); n > 0; n = zk_ortho_next(&o))
 *         each tile t < n: zk_ortho_tile(&o, t)
 */
#ifndef ZK_ORTHO_H
#define ZK_ORTHO_H

#include "kernels/zk.h"

#define ZK_ORTHO_ITERATIONS 5
#define ZK_ORTHO_EPS        1e-7

struct zk_ortho_how {
    double a, b, c, eps;
    uint32_t iterations;
    bool bf16;
};

/** The usual values: 5 iterations of fp32. */
extern const struct zk_ortho_how zk_ortho_muon;

struct zk_ortho {
    const struct zk_ops *ops;
    struct zk_ortho_how how;
    size_t rows, cols;         /* of the matrix */
    size_t n, m;               /* of X: n <= m */
    float *matrix;             /* the caller's, changed in place */
    float *x, *to;             /* X, and where the next one goes: matrix and other, in turn */
    float *other;              /* rows * cols elements */
    float *gram, *poly;        /* n * n each */
    double norm;               /* of the matrix */
    uint32_t phase, iteration; /* written between phases */
};

/** Begins with a matrix of at least one element, row by row. `scratch` has zb_ortho_bytes() (base/plan.h)
 * and is 64-byte aligned. It and the matrix are used until the last phase has ended. Returns the number
 * of tiles of the first phase. */
size_t zk_ortho_begin(struct zk_ortho *o, const struct zk_ops *ops, const struct zk_ortho_how *how,
                      float *matrix, size_t rows, size_t cols, void *scratch);
void zk_ortho_tile(struct zk_ortho *o, size_t tile);
/** All tiles of the phase have ended. The number of tiles of the next one; 0: the matrix is
 * orthogonalized. */
size_t zk_ortho_next(struct zk_ortho *o);
/** All of it, in the calling thread. */
void zk_ortho(const struct zk_ops *ops, const struct zk_ortho_how *how, float *matrix, size_t rows,
              size_t cols, void *scratch);

#endif
