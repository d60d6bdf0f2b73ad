/*
 * fake_cuda.c - plugins that replace CUDA's: one of this build, whose device opens but can do
 * nothing (plain), one of another build (FAKE_OTHER), and a library that is not a plugin
 * (FAKE_NONE).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/gpu_priv.h"

extern ZK_GPU_EXPORT int fake_seven(void);
int fake_seven(void)
{
    return 7;
}

#ifndef FAKE_NONE
static int fake_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    struct zk_gpu *g = calloc(1, sizeof(*g));

    if (!g)
        return zb_fail(err, -ENOMEM, "a fake: %m");
    g->info.total_bytes = ZB_MIB;
    (void)snprintf(g->info.name, sizeof(g->info.name), "fake %s", args);
    *ret = g;
    return 0;
}

static void fake_close(struct zk_gpu *g)
{
    free(g);
}

static const struct zk_gpu_backend fake = { .name = "cuda",
                                            .open = fake_open,
                                            .close = fake_close };

extern ZK_GPU_EXPORT const struct zk_gpu_plugin zk_gpu_plugin;
const struct zk_gpu_plugin zk_gpu_plugin = {
#ifdef FAKE_OTHER
    .abi = "0.0.9-0123456789abcdef",
#else
    .abi = ZK_GPU_ABI,
#endif
    .backend = &fake,
};
#endif
