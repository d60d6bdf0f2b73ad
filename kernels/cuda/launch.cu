/*
 * launch.cu - the kernels of warp_work_priv.h on the device: which warp does which chunk, and
 * nothing else. No contraction, no flush to zero, and of C++ only templates.
 *
 * MODEL. A block of threads is 8 warps (4 in steps); warp number i of the grid does chunk i, or the
 * i-th span of an array, and there are as many warps as these. What a kernel would otherwise test
 * for every element (optimizer, dtype, moments, kind of work) is a template parameter. The dtype of
 * gradients in a step, and of arrays, is not: that keeps the number of kernels small, and costs one
 * branch that all threads take alike.
 *
 * OCCUPANCY. Sizes of blocks, and how many of them a multiprocessor holds, were measured on an
 * H200: bench/README.md, "zbench gpu".
 */
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/warp_work_priv.h"
}

#define THREADS      256u
#define WARPS        (THREADS / 32u)
#define STEP_THREADS 128u
#define STEP_WARPS   (STEP_THREADS / 32u)
#define ARRAY_BLOCKS 6u /* resident on a multiprocessor: limits the registers */

static __device__ __forceinline__ uint64_t chunk_of_warp(void)
{
    return (uint64_t)blockIdx.x * (blockDim.x / 32u) + threadIdx.x / 32u;
}

/* Blocks of a step that are resident on a multiprocessor. Two moments of fp32 are many bytes for
 * each warp, so that fewer warps keep the memory busy. */
static constexpr unsigned step_blocks(int optimizer, int moments)
{
    return (optimizer == ZB_ADAMW || optimizer == ZB_ADAM) && moments == ZB_MOMENTS_F32 ? 6 : 8;
}

template <int OPTIMIZER, int DTYPE, int MOMENTS>
static __global__ __launch_bounds__(STEP_THREADS, step_blocks(OPTIMIZER, MOMENTS)) void step_kernel(
    const struct warp_step a, uint64_t chunks)
{
    const struct step_kind kind = { (enum zb_optimizer)OPTIMIZER, (enum zb_dtype)DTYPE,
                                    (enum zb_moments)MOMENTS,
                                    OPTIMIZER == ZB_ADAMW || OPTIMIZER == ZB_ADAM ? 2u : 1u };

    if (chunk_of_warp() < chunks)
        warp_step(&a, &kind, chunk_of_warp());
}

template <int OP>
static __global__ __launch_bounds__(THREADS,
                                    ARRAY_BLOCKS) void array_kernel(const struct zk_gpu_array a,
                                                                    bool vector, uint64_t chunks)
{
    if (chunk_of_warp() < chunks)
        warp_array(&a, (enum zk_gpu_op)OP, vector, chunk_of_warp());
}

/* Warps beyond the last chunk run, too: they find no block of theirs. */
template <int FROM, int GRAD, bool INGEST, bool ADD>
static __global__ __launch_bounds__(THREADS) void sums_kernel(const struct warp_sums a)
{
    const struct sums_kind kind = { (enum zb_dtype)FROM, (enum zb_dtype)GRAD, INGEST, ADD };
    const unsigned bytes = SUM_TILE_QUADS * 4 * ((INGEST ? GRAD : FROM) == ZB_F32 ? 4 : 2);
    static __shared__ struct quad32 tiles[WARPS][bytes / sizeof(struct quad32)];

    warp_sums(&a, &kind, chunk_of_warp(), tiles[threadIdx.x / 32u]);
}

typedef void step_fn(const struct warp_step a, uint64_t chunks);
typedef void array_fn(const struct zk_gpu_array a, bool vector, uint64_t chunks);
typedef void sums_fn(const struct warp_sums a);

/* [optimizer - 1][dtype - 1][moments - 1] */
#define STEPS_OF_DTYPE(o, d)                                                                   \
    {                                                                                          \
        step_kernel<o, d, 1>, step_kernel<o, d, 2>, step_kernel<o, d, 3>, step_kernel<o, d, 4> \
    }
#define STEPS_OF(o)                                                      \
    {                                                                    \
        STEPS_OF_DTYPE(o, 1), STEPS_OF_DTYPE(o, 2), STEPS_OF_DTYPE(o, 3) \
    }

static step_fn *const steps[ZB_OPTIMIZER_END - 1][ZB_DTYPE_END - 1][ZB_MOMENTS_END - 1] = {
    STEPS_OF(ZB_ADAMW), STEPS_OF(ZB_ADAM),    STEPS_OF(ZB_LION),
    STEPS_OF(ZB_SGD),   STEPS_OF(ZB_ADAGRAD), STEPS_OF(ZB_MUON)
};

/* [from - 1] and [grad - 1] */
#define SUMS_SET(from)                                                        \
    {                                                                         \
        sums_kernel<from, 1, true, false>, sums_kernel<from, 2, true, false>, \
            sums_kernel<from, 3, true, false>                                 \
    }

static sums_fn *const norms[ZB_DTYPE_END - 1] = { sums_kernel<1, 1, false, false>,
                                                  sums_kernel<2, 1, false, false>,
                                                  sums_kernel<3, 1, false, false> };
static sums_fn *const adds[ZB_DTYPE_END - 1] = { sums_kernel<1, ZB_F32, true, true>,
                                                 sums_kernel<2, ZB_F32, true, true>,
                                                 sums_kernel<3, ZB_F32, true, true> };
static sums_fn *const sets[ZB_DTYPE_END - 1][ZB_DTYPE_END - 1] = { SUMS_SET(1), SUMS_SET(2),
                                                                   SUMS_SET(3) };

static sums_fn *sums_of(const struct sums_kind *kind)
{
    if (!kind->ingest)
        return norms[kind->from - 1];
    return kind->add ? adds[kind->from - 1] : sets[kind->from - 1][kind->grad - 1];
}

static array_fn *array_of(enum zk_gpu_op op)
{
    switch (op) {
    case ZK_GPU_CAST:
        return array_kernel<ZK_GPU_CAST>;
    case ZK_GPU_SPLIT:
        return array_kernel<ZK_GPU_SPLIT>;
    case ZK_GPU_MERGE:
        return array_kernel<ZK_GPU_MERGE>;
    case ZK_GPU_ADD:
        return array_kernel<ZK_GPU_ADD>;
    case ZK_GPU_SCALE:
        return array_kernel<ZK_GPU_SCALE>;
    case ZK_GPU_ENCODE_BF16:
        return array_kernel<ZK_GPU_ENCODE_BF16>;
    case ZK_GPU_ENCODE_Q8:
        return array_kernel<ZK_GPU_ENCODE_Q8>;
    case ZK_GPU_DECODE_Q8:
        return array_kernel<ZK_GPU_DECODE_Q8>;
    case ZK_GPU_QUANTIZE_I8:
        return array_kernel<ZK_GPU_QUANTIZE_I8>;
    case ZK_GPU_DEQUANTIZE_I8:
        return array_kernel<ZK_GPU_DEQUANTIZE_I8>;
    default:
        return NULL;
    }
}

/* Asking for a kernel's attributes loads it. */
template <typename FN> static cudaError_t load(FN *const *kernels, size_t n)
{
    cudaError_t e = cudaSuccess;

    for (size_t i = 0; i < n && e == cudaSuccess; i++) {
        struct cudaFuncAttributes unused;

        e = cudaFuncGetAttributes(&unused, (const void *)kernels[i]);
    }
    return e;
}

extern "C" int zk_cuda_load(void)
{
    array_fn *arrays[ZK_GPU_OP_END];
    size_t n = 0;
    cudaError_t e = load(&steps[0][0][0], sizeof(steps) / sizeof(steps[0][0][0]));

    for (int op = 1; op < ZK_GPU_OP_END; op++)
        if (array_of((enum zk_gpu_op)op))
            arrays[n++] = array_of((enum zk_gpu_op)op);
    if (e == cudaSuccess)
        e = load(arrays, n);
    if (e == cudaSuccess)
        e = load(norms, sizeof(norms) / sizeof(norms[0]));
    if (e == cudaSuccess)
        e = load(adds, sizeof(adds) / sizeof(adds[0]));
    return e == cudaSuccess ? load(&sets[0][0], sizeof(sets) / sizeof(sets[0][0])) : e;
}

extern "C" int zk_cuda_launch(const struct zk_gpu_work *w, void *stream)
{
    cudaStream_t on = (cudaStream_t)stream;
    bool sums = w->op == ZK_GPU_INGEST || w->op == ZK_GPU_NORM;
    unsigned warps = w->op == ZK_GPU_STEP ? STEP_WARPS : WARPS;
    uint64_t chunks = warp_chunks(w), blocks = (chunks + warps - 1) / warps;
    const struct zb_layout *layout = &w->step.layout;

    if (chunks == 0)
        return cudaSuccess;
    if (blocks > 0x7fffffff)
        return cudaErrorInvalidConfiguration;
    if (w->op == ZK_GPU_STEP)
        steps[layout->optimizer - 1][layout->dtype - 1]
             [layout->moments - 1]<<<(unsigned)blocks, STEP_THREADS, 0, on>>>(
                 warp_step_of(&w->step), chunks);
    else if (sums) {
        const struct sums_kind kind = warp_sums_kind(w);

        sums_of(&kind)<<<(unsigned)blocks, THREADS, 0, on>>>(warp_sums_of(w));
    } else
        array_of(w->op)<<<(unsigned)blocks, THREADS, 0, on>>>(
            w->array, warp_vector(w->op, &w->array), chunks);
    return cudaGetLastError();
}
