/*
 * matmul.h - a matrix product of the model, and its implementations.
 *
 * MODEL. For each of `batch`: d = alpha * op(a) op(b) + beta * d + bias, all row-major: op(a) is
 * [m, k], op(b) [k, n], d [m, n], and bias, where there is one, is [n] and added to each row. A
 * matrix with `t` is stored transposed: a is [k, m], b is [n, k]. ld is the distance of rows,
 * `step` that of the batch's matrices, in elements. Products are summed in fp32, whatever
 * the dtypes. Matrices of one batch may interleave (heads are columns of one array), and share no
 * element of d. What is added to (beta is not 0) is fp32: cuBLASLt may round a product to 16 bits
 * before it adds it to an array of 16 bits (seen with 13.0 on an H200).
 */
#ifndef GPT_MATMUL_H
#define GPT_MATMUL_H

#include "base/err.h"
#include "examples/gpt/dev/kern.h"

struct gpt_mat {
    const void *at;
    uint64_t ld, step;
    bool t; /* stored transposed: not of d */
};

struct gpt_matmul {
    struct gpt_mat a, b, d;
    const void *bias;           /* of d's dtype, or NULL; only where batch is 1 */
    enum gpt_dtype_dev dtype;   /* of a and b */
    enum gpt_dtype_dev d_dtype; /* fp32 where the dtype is */
    float alpha, beta;          /* beta: 0 unless d is fp32 */
    uint32_t m, n, k, batch;
};

/** Arrays of it, in bytes from the first element to the last. */
uint64_t gpt_mat_bytes(const struct gpt_mat *mat, uint64_t rows, uint64_t cols, uint32_t batch,
                       enum gpt_dtype_dev dtype);

/** Computes a product (struct gpt_matmul) in host memory, by BLAS. 0, or -ENOMEM. */
int gpt_matmul_host(void *matmul);

/* ---- by cuBLASLt, which is looked up when it is needed. lt.c */

struct gpt_lt;

/**
 * Loads the library: $ZSHARD_CUBLASLT if it is set, else libcublasLt.so.13 or .12, from the
 * loader's path.
 *
 * @return 0; -ENODEV it is not there, or lacks a function; -EIO it does not start; -ENOMEM
 */
int gpt_lt_open(struct gpt_lt **ret, struct zb_err *err);
/** NULL is allowed. */
void gpt_lt_close(struct gpt_lt *lt);

#define GPT_LT_WORKSPACE_BYTES (UINT64_C(32) << 20)

/**
 * Enqueues one. What there is to know about a shape is asked once, and kept.
 *
 * @param workspace  device memory, GPT_LT_WORKSPACE_BYTES, of this stream alone
 * @param stream     a cudaStream_t
 * @return 0; -ENOTSUP cuBLASLt has no way for this product; -EIO, -ENOMEM
 */
int gpt_lt_matmul(struct gpt_lt *lt, const struct gpt_matmul *mm, void *workspace, void *stream,
                  struct zb_err *err);

#endif
