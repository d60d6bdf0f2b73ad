/*
 * limbo.h - what a pass reads when the daemon was lost in the middle of it.
 */
#ifndef ZC_ZERO_LIMBO_H
#define ZC_ZERO_LIMBO_H

#include <stddef.h>

/** Maps `bytes` bytes that are all 0xff: NaN in every dtype. Read-only; the same 2 MiB of memory
 * again and again. NULL: no memory. */
void *zcz_limbo_map(size_t bytes);
/** NULL is allowed. */
void zcz_limbo_unmap(void *at, size_t bytes);

#endif
