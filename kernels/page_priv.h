/*
 * page_priv.h - positions within a page: for page.c and page_step.c.
 */
#ifndef ZK_PAGE_PRIV_H
#define ZK_PAGE_PRIV_H

#include <assert.h>

#include "base/util.h"
#include "kernels/zk_page.h"

#define B ZB_BLOCK_ELEMS

static inline void *page_at(void *plane, const struct zb_layout *layout, enum zb_plane which,
                            uint64_t elem)
{
    return (char *)plane + zb_blocks_bytes(layout->block_bytes[which], elem);
}

static inline void page_check(const struct zk_page *page)
{
    assert(page->first % B == 0 && page->count % B == 0 && page->param);
}

#endif
