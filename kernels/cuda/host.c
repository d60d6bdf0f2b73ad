/*
 * host.c - runs the GPU kernels on the processor, one warp after the other, so that only launch.cu
 * must be tested on a GPU. In every build; only tests call it.
 */
#include "kernels/cuda/cuda_priv.h"
#include "kernels/cuda/warp_work_priv.h"

void zk_cuda_host_run(const struct zk_gpu_work *w)
{
    uint64_t chunks = warp_chunks(w);
    bool sums = w->op == ZK_GPU_INGEST || w->op == ZK_GPU_NORM;
    struct step_kind kind = { 0 };
    struct warp_step step = { 0 };
    struct warp_sums of = { 0 };
    struct sums_kind sums_kind = { 0 };
    struct quad32 tile[SUM_TILE_QUADS];

    if (w->op == ZK_GPU_STEP) {
        step = warp_step_of(&w->step);
        kind = (struct step_kind){ w->step.layout.optimizer, w->step.layout.dtype,
                                   w->step.layout.moments, w->step.layout.nmoments };
    } else if (sums) {
        of = warp_sums_of(w);
        sums_kind = warp_sums_kind(w);
    }
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        if (w->op == ZK_GPU_STEP)
            warp_step(&step, &kind, chunk);
        else if (sums)
            warp_sums(&of, &sums_kind, chunk, tile);
        else
            warp_array(&w->array, w->op, warp_vector(w->op, &w->array), chunk);
    }
}
