/*
 * lt.h - products of matrices by cuBLASLt, for those who compute on a device "cuda" (gpu.h). gpu/lt.c
 *
 * MODEL. For each of `batch`: d = alpha * op(a) op(b) + beta * add + bias, all row-major: op(a) is [m, k],
 * op(b) [k, n], d and add [m, n], and bias, where there is one, is [n] and added to each row. A matrix
 * with `t` is stored transposed: a is [k, m], b is [n, k]. ld is the distance of rows, `step` that of
 * the batch's matrices, in elements. Products are summed in fp32, never in TF32, whatever the dtypes.
 * Matrices of one batch may interleave, and share no element of d. What is added to (beta is not 0) is
 * fp32: cuBLASLt may round a product to 16 bits before it adds it to an array of 16 bits (seen with
 * 13.0 on an H200).
 *
 * BITS. The algorithm is the first one of the library's heuristic, for a workspace of one size, without
 * sums in an order that is not fixed. So a product has the same bits whenever it is repeated with the same
 * library, on the same kind of device, with the same shape and alignments. Another release of the library,
 * or another kind of device, may have other bits.
 *
 * The library is looked up when it is needed. THREADS. One at a time for each struct zk_lt.
 */
#ifndef ZK_LT_H
#define ZK_LT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/plan.h"

struct zk_lt_mat {
    const void *at;
    uint64_t ld, step;
    bool t; /* stored transposed: not of d */
};

struct zk_lt_product {
    struct zk_lt_mat a, b, d;
    const void *add;       /* stored as d is, whose dtype it has; NULL: d itself */
    const void *bias;      /* of d's dtype, or NULL; only where batch is 1 */
    enum zb_dtype dtype;   /* of a and b */
    enum zb_dtype d_dtype; /* fp32 where the dtype is */
    float alpha, beta;     /* beta: 0 unless d is fp32 */
    uint32_t m, n, k, batch;
};

struct zk_lt;

/**
 * Loads the library: $ZSHARD_CUBLASLT if it is set, else libcublasLt.so.13 or .12, from the
 * loader's path.
 *
 * @return 0; -ENODEV it is not there, or lacks a function; -EIO it does not start; -ENOMEM
 */
int zk_lt_open(struct zk_lt **ret, struct zb_err *err);
/** NULL is allowed. */
void zk_lt_close(struct zk_lt *lt);

/**
 * Enqueues a product. What there is to know about a shape is asked once, and kept.
 *
 * @param workspace  device memory, ZB_LT_WORKSPACE_BYTES, of this stream alone
 * @param stream     a cudaStream_t; its device is current (zk_gpu_enter())
 * @return 0; -ENOTSUP cuBLASLt has no way for this product; -EIO, -ENOMEM
 */
int zk_lt_matmul(struct zk_lt *lt, const struct zk_lt_product *mm, void *workspace, void *stream,
                 struct zb_err *err);

#endif
