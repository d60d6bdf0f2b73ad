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
#include "kernels/lt.h"

struct gpt_matmul {
    struct zk_lt_mat a, b, d;
    const void *bias;           /* of d's dtype, or NULL; only where batch is 1 */
    enum gpt_dtype_dev dtype;   /* of a and b */
    enum gpt_dtype_dev d_dtype; /* fp32 where the dtype is */
    float alpha, beta;          /* beta: 0 unless d is fp32 */
    uint32_t m, n, k, batch;
};

/** Arrays of it, in bytes from the first element to the last. */
uint64_t gpt_mat_bytes(const struct zk_lt_mat *mat, uint64_t rows, uint64_t cols, uint32_t batch,
                       enum gpt_dtype_dev dtype);

/** Computes a product (struct gpt_matmul) in host memory, by BLAS. 0, or -ENOMEM. */
int gpt_matmul_host(void *matmul);

/** The same for cuBLASLt. */
static inline struct zk_lt_product gpt_matmul_lt(const struct gpt_matmul *mm)
{
    static const enum zb_dtype dtypes[] = {
        [GPT_DEV_F32] = ZB_F32, [GPT_DEV_BF16] = ZB_BF16, [GPT_DEV_FP16] = ZB_F16
    };

    return (struct zk_lt_product){ .a = mm->a,
                                   .b = mm->b,
                                   .d = mm->d,
                                   .bias = mm->bias,
                                   .dtype = dtypes[mm->dtype],
                                   .d_dtype = dtypes[mm->d_dtype],
                                   .alpha = mm->alpha,
                                   .beta = mm->beta,
                                   .m = mm->m,
                                   .n = mm->n,
                                   .k = mm->k,
                                   .batch = mm->batch };
}

#endif
