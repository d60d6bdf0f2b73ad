/*
 * plan.h - how many bytes things take: the one place where the planner, admission and the code that
 * lays out pages get their numbers.
 *
 * WORDS. An element is one parameter. A block is ZB_BLOCK_ELEMS elements: the unit of shard bounds,
 * of norms and of the interleaving inside a state page. A page is `page_elems` elements (a multiple
 * of the block; the last page of a shard may be shorter) of one plane: the unit of I/O.
 *
 * A shard's planes are cut at the same elements, so page i of `param` and page i of `state` belong
 * together.
 *
 * Bytes of one element (DESIGN section 6; K and G of the field's formulas):
 *
 *     param dtype   param   state (AdamW)                     grad
 *     fp32            4      8   m 4, v 4                      4
 *     bf16            2     10   lo 2, m 4, v 4 (split)        2 or 4, as the unit asks
 *     frozen          param's bytes, 0, 0
 *
 * A block is 4,096 elements, so every page of every plane is a multiple of 4 KiB.
 */
#ifndef ZB_PLAN_H
#define ZB_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ZB_BLOCK_ELEMS        4096u
#define ZB_PAGE_ALIGN         4096u   /* bytes: arenas, extents and pages begin and end on it */
#define ZB_CRC_BYTES_MAX      65536u  /* a checksum covers at most this much */
#define ZB_PAGE_ELEMS_DEFAULT 262144u /* 64 blocks: 2 to 2.5 MiB of state */
#define ZB_PAGE_ELEMS_MAX     1048576u

/* The numbers are those of the wire and of the public header. */
enum zb_dtype { ZB_F32 = 1, ZB_BF16 = 2 };
enum zb_plane { ZB_PARAM, ZB_GRAD, ZB_STATE, ZB_PLANES };

/** Bytes of one element in each plane. */
struct zb_layout {
    enum zb_dtype dtype, grad_dtype;
    bool frozen;
    uint32_t elem_bytes[ZB_PLANES];
    /* What one checksum of a page of this plane covers: the largest whole number of blocks that
     * fits ZB_CRC_BYTES_MAX, so a block can be verified and updated while it is in the cache. */
    uint32_t crc_bytes[ZB_PLANES];
};

/** "fp32", "bf16"; NULL for anything else. */
const char *zb_dtype_name(enum zb_dtype dtype);
size_t zb_dtype_bytes(enum zb_dtype dtype); /* 0 for anything else */

/** 0, or -EINVAL with a sentence: a dtype that we do not know, or a pair that has no layout. */
int zb_layout_of(enum zb_dtype dtype, enum zb_dtype grad_dtype, bool frozen, struct zb_layout *ret,
                 struct zb_err *err);

/** Elements stored for a unit or range that ends at `elems`: rounded up to whole blocks. */
static inline uint64_t zb_padded_elems(uint64_t elems)
{
    return (elems + ZB_BLOCK_ELEMS - 1) / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS;
}

/**
 * The equal slices that a unit of `elems` elements is cut into over `world` ranks: every slice is
 * *ret_slice elements (a multiple of the block), rank's slice begins at rank * slice, and what is
 * stored of it is cut at the padded end of the unit (*ret_count, may be 0 for the last ranks).
 */
static inline void zb_slice(uint64_t elems, uint32_t world, uint32_t rank, uint64_t *ret_slice,
                            uint64_t *ret_first, uint64_t *ret_count)
{
    uint64_t blocks = (elems + ZB_BLOCK_ELEMS - 1) / ZB_BLOCK_ELEMS;
    uint64_t per_rank = (blocks + world - 1) / world;
    uint64_t first = (uint64_t)rank * per_rank;
    uint64_t end = first + per_rank;

    first = first < blocks ? first : blocks;
    end = end < blocks ? end : blocks;
    *ret_slice = per_rank * ZB_BLOCK_ELEMS;
    *ret_first = first * ZB_BLOCK_ELEMS;
    *ret_count = (end - first) * ZB_BLOCK_ELEMS;
}

#endif
