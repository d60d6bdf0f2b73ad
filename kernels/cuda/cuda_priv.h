/*
 * cuda_priv.h - what the parts of the CUDA backend know of each other. Private to kernels/.
 */
#ifndef ZK_CUDA_PRIV_H
#define ZK_CUDA_PRIV_H

#include "kernels/gpu.h"

/** Launches a checked work; stream is a cudaStream_t. Returns a cudaError_t. */
int zk_cuda_launch(const struct zk_gpu_work *work, void *stream);

/** Does a checked work on the processor, by the code of the kernels for GPUs: for tests. */
void zk_cuda_host_run(const struct zk_gpu_work *work);

#endif
