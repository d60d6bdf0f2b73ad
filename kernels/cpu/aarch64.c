/*
 * aarch64.c - the implementation for aarch64 processors: all of them have NEON.
 */
#include "kernels/zk_priv.h"

static bool neon_supported(void)
{
    return true;
}

const struct zk_ops zk_neon = ZK_OPS(neon, neon_supported);
