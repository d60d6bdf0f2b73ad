/*
 * kern.cu - the kernels of kern_priv.h on the device: a block of threads is a team, and nothing
 * else. No contraction, no flush to zero, and no part of C++ but templates. It is part of the
 * plugin for CUDA's devices (kernels/gpu_own.h), where dev.c looks it up.
 */
#include <cuda_runtime.h>
#include <stdint.h>

#include "examples/gpt/dev/kern_priv.h"

extern "C" {
#include "kernels/gpu_own.h"

extern ZK_GPU_EXPORT gpt_kern_cuda_fn gpt_kern_cuda;
}

template <int OP> static __global__ __launch_bounds__(TEAM) void kernel(const struct gpt_kern k)
{
    kern_team(&k, (enum gpt_kern_op)OP, blockIdx.x);
}

typedef void kernel_fn(const struct gpt_kern k);

/* [op - 1] */
static kernel_fn *const kernels[GPT_KERN_OP_END - 1] = {
    kernel<GPT_KERN_EMBED>,        kernel<GPT_KERN_EMBED_BACK>, kernel<GPT_KERN_POS_BACK>,
    kernel<GPT_KERN_NORM>,         kernel<GPT_KERN_NORM_BACK>,  kernel<GPT_KERN_COLS>,
    kernel<GPT_KERN_COLS_END>,     kernel<GPT_KERN_RESIDUAL>,   kernel<GPT_KERN_BIAS>,
    kernel<GPT_KERN_GELU>,         kernel<GPT_KERN_GELU_BACK>,  kernel<GPT_KERN_SOFTMAX>,
    kernel<GPT_KERN_SOFTMAX_BACK>, kernel<GPT_KERN_LOSS>,       kernel<GPT_KERN_LOSS_SUM>,
};

extern "C" int gpt_kern_cuda(const struct gpt_kern *k, uint64_t teams, void *stream,
                             const char **ret_text)
{
    cudaError_t e = cudaSuccess;

    for (int op = 1; !k && op < GPT_KERN_OP_END && e == cudaSuccess; op++) {
        struct cudaFuncAttributes unused;

        e = cudaFuncGetAttributes(&unused, (const void *)kernels[op - 1]);
    }
    if (teams > 0x7fffffff) {
        e = cudaErrorInvalidConfiguration;
    } else if (teams > 0) {
        kernels[k->op - 1]<<<(unsigned)teams, TEAM, 0, (cudaStream_t)stream>>>(*k);
        e = cudaGetLastError();
    }
    *ret_text = cudaGetErrorString(e);
    return e;
}
