/*
 * cuda_priv.h - the interfaces between the parts of the CUDA backend. Private to kernels/.
 */
#ifndef ZK_CUDA_PRIV_H
#define ZK_CUDA_PRIV_H

#include "kernels/gpu.h"

/** Loads all kernels to the device that is the thread's: the driver would load each when it is
 * first launched, and may wait for all that runs then, collectives too, which wait for other ranks
 * that load theirs. Returns a cudaError_t. */
int zk_cuda_load(void);

/** Launches a checked work; stream is a cudaStream_t. Returns a cudaError_t. */
int zk_cuda_launch(const struct zk_gpu_work *work, void *stream);

/** Does a checked work on the processor, by the code of the kernels for GPUs: for tests. */
void zk_cuda_host_run(const struct zk_gpu_work *work);

#endif
