/*
 * gpu_map.h - maps the daemon's parameters in GPU memory, as a rank does.
 */
#ifndef GPU_MAP_H
#define GPU_MAP_H

#include "kernels/gpu.h"
#include "tests/integ/zinteg.h"

/** Maps the parameters of the rank's job on this device; zk_gpu_free() unmaps them. */
static inline struct zk_gpu_mem *gpu_map(struct zk_gpu *device, struct zi_rank *r)
{
    struct zc_gpu_memory memory;
    struct zk_gpu_share share;
    struct zk_gpu_mem *mem = NULL;
    struct zb_err err = { 0 };

    if (zc_gpu_share_wait(r->c, r->job.id, &memory) < 0)
        fail_msg("share: %s", zc_error(r->c));
    share = (struct zk_gpu_share){ memory.mem_fd, memory.mark_fd, memory.bytes };
    if (zk_gpu_import(device, &share, false, &mem, &err) < 0)
        fail_msg("import: %s", err.text);
    zk_gpu_share_close(&share);
    return mem;
}

#endif
