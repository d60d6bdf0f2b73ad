/*
 * gpu_ortho.h - orthogonalizes matrices on a GPU, as ortho.h does on the processor.
 *
 * MODEL. A matrix of host memory is copied to the device, orthogonalized there, and copied back. The norm
 * is the exact sum of ortho.h, so X begins with the same bits. X is not transposed: of a matrix with
 * more rows than columns, X^T X is the smaller product. Products are cuBLASLt's on "cuda" (lt.h, which says
 * what repeats their bits), and those of zk.h on "emulated", which therefore has the bits of ortho.h.
 *
 *     fp32   products of fp32, never of TF32
 *     bf16   factors are rounded to bf16, products are summed in fp32
 *
 * MEMORY. All that the device needs is allocated when the object is made, for the largest matrix:
 * zb_ortho_gpu_bytes() (base/plan.h). The host's may be any; copies run in parallel if it is pinned.
 *
 * ERRORS as in gpu.h. After an error the contents of the matrix are undefined, and nothing uses it any more.
 *
 * THREADS. Any thread, one at a time for each object. Every call may wait.
 */
#ifndef ZK_GPU_ORTHO_H
#define ZK_GPU_ORTHO_H

#include "kernels/gpu.h"
#include "kernels/ortho.h"

struct zk_gpu_ortho;

/**
 * @param bytes  of device memory: the largest zb_ortho_gpu_bytes() of all matrices
 * @param tag    as in zk_gpu_alloc()
 * @return 0; -ENODEV no cuBLASLt, -ENOSPC, -ENOMEM, -EIO
 */
int zk_gpu_ortho_open(struct zk_gpu *g, uint64_t bytes, uint64_t tag, struct zk_gpu_ortho **ret,
                      struct zb_err *err);
/** NULL is allowed. */
void zk_gpu_ortho_close(struct zk_gpu_ortho *o);
/** Bytes of device memory that it has. */
uint64_t zk_gpu_ortho_bytes(const struct zk_gpu_ortho *o);

/**
 * Orthogonalizes a matrix of at least one element, row by row, in place, and waits for that.
 *
 * @return 0; -ENOTSUP cuBLASLt has no way for a product; -ENOMEM; -EIO, -EFAULT the device is lost
 */
int zk_gpu_ortho(struct zk_gpu_ortho *o, const struct zk_ortho_how *how, float *matrix, size_t rows,
                 size_t cols, struct zb_err *err);

#endif
