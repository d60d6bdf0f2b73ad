/*
 * cuda_priv.h - the interfaces between the parts of the CUDA backend. Private to kernels/.
 */
#ifndef ZK_CUDA_PRIV_H
#define ZK_CUDA_PRIV_H

#include "kernels/gpu.h"

/** Loads all kernels to the thread's current device. Otherwise the driver loads each at its first
 * launch, and may wait for all running work. That can deadlock with collectives, which wait for
 * other ranks that load their kernels. Returns a cudaError_t. */
int zk_cuda_load(void);

/** Launches a checked work; stream is a cudaStream_t. Returns a cudaError_t. */
int zk_cuda_launch(const struct zk_gpu_work *work, void *stream);

/** Runs a checked work on the processor, with the code of the GPU kernels: for tests. */
void zk_cuda_host_run(const struct zk_gpu_work *work);

#endif
