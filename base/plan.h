/*
 * plan.h - sizes in bytes: the only source of these numbers for the planner, admission, and the
 * code that lays out pages.
 *
 * WORDS. An element is one parameter. A block is ZB_BLOCK_ELEMS elements: the unit of shard bounds,
 * norms, and interleaving inside a state page. A page is `page_elems` elements (a multiple of the
 * block; the last page of a shard may be shorter) of one plane: the unit of I/O.
 *
 * A shard's planes are cut at the same elements, so page i of `param` and page i of `state` belong
 * together.
 *
 * Bytes of one element (K and G of the usual formulas of ZeRO):
 *
 *     param dtype   param   master in state       grad
 *     fp32            4      0   param itself      2 or 4, as the unit asks
 *     bf16            2      2   lo (split)        the same
 *     fp16            2      4   all of it         the same
 *     frozen          param's bytes, 0, 0
 *     quantized       1, and 4 for each ZB_Q8_GROUP elements; frozen units only
 *
 * and in state also, for each moment of the optimizer
 *
 *     AdamW, Adam   exp_avg, exp_avg_sq            fp32    4
 *     Lion          exp_avg                        bf16    2
 *     SGD           momentum_buffer                8bit    1, and 4 for each ZB_Q8_GROUP elements
 *     Adagrad       sum
 *     Muon          momentum_buffer
 *
 * "8bit-lo" has moments of 8 bits, and of a bf16 parameter's lo only the upper 8 bits (kernels/zk.h).
 *
 * so AdamW with fp32 moments has 8, 10 and 12 bytes of state. Bytes are counted per block, because
 * some planes do not have a whole number of bytes per element.
 *
 * PAGES. A page of a plane is its blocks one after the other, padded with zeros to a multiple of 4
 * KiB (O_DIRECT). Only 8-bit planes need padding. In memory, page p of a shard's plane begins at p
 * times the bytes of a full page. Gradients, and parameters that are not quantized, are plain
 * arrays of elements: their blocks are multiples of 4 KiB, so there is no padding.
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

/* The numbers are those of the wire and of the public header; 0 is invalid. Tables indexed by them
 * have ZB_x_END rows. */
enum zb_dtype { ZB_F32 = 1, ZB_BF16 = 2, ZB_F16 = 3, ZB_DTYPE_END };
enum zb_optimizer {
    ZB_ADAMW = 1,
    ZB_ADAM = 2,
    ZB_LION = 3,
    ZB_SGD = 4,
    ZB_ADAGRAD = 5,
    ZB_MUON = 6,
    ZB_OPTIMIZER_END
};
/* How moments are stored; all arithmetic on them is in fp32. */
enum zb_moments {
    ZB_MOMENTS_F32 = 1,
    ZB_MOMENTS_BF16 = 2,
    ZB_MOMENTS_Q8 = 3,
    ZB_MOMENTS_Q8_LO = 4, /* and lo of split masters in 8 bits */
    ZB_MOMENTS_END
};
enum zb_plane { ZB_PARAM, ZB_GRAD, ZB_STATE, ZB_PLANES };

#define ZB_MOMENTS_MAX    2u   /* of one optimizer */
#define ZB_Q8_GROUP       256u /* 8 bits: elements that share a scale */
#define ZB_Q8_BLOCK_BYTES (ZB_BLOCK_ELEMS + ZB_BLOCK_ELEMS / ZB_Q8_GROUP * 4u) /* codes, scales */

/** The bytes of a unit's planes, and numbers derived from them. */
struct zb_layout {
    enum zb_dtype dtype, grad_dtype;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    uint32_t nmoments; /* of the optimizer; but a frozen unit stores none */
    bool frozen;
    bool quantized; /* frozen parameters in blockwise int8 (kernels/zk.h): a block is int8_t
                     * code[ZB_BLOCK_ELEMS], float scale[ZB_BLOCK_ELEMS / ZB_Q8_GROUP] */
    uint32_t block_bytes[ZB_PLANES]; /* 0: the plane does not exist */
    /* Bytes that one checksum of a page of this plane covers: the largest whole number of blocks
     * within ZB_CRC_BYTES_MAX, so they can be verified and updated while in the cache. */
    uint32_t crc_bytes[ZB_PLANES];
    bool low8; /* lo of the split master has 8 bits */
};

/** "fp32", "bf16", "fp16"; NULL for anything else. */
const char *zb_dtype_name(enum zb_dtype dtype);
size_t zb_dtype_bytes(enum zb_dtype dtype); /* 0 for anything else */
/** "adamw", "adam", "lion", "sgd", "adagrad", "muon"; NULL for anything else. */
const char *zb_optimizer_name(enum zb_optimizer optimizer);
/** "fp32", "bf16", "8bit", "8bit-lo"; NULL for anything else. */
const char *zb_moments_name(enum zb_moments moments);
/** PyTorch's name for moment i of an optimizer: "exp_avg"; NULL: it has fewer. */
const char *zb_moment_name(enum zb_optimizer optimizer, unsigned i);
/** Whether moment i can be negative: exp_avg can, exp_avg_sq cannot. */
bool zb_moment_signed(enum zb_optimizer optimizer, unsigned i);
/** Whether moments are stored in 8 bits. */
static inline bool zb_moments_q8(enum zb_moments moments)
{
    return moments == ZB_MOMENTS_Q8 || moments == ZB_MOMENTS_Q8_LO;
}
/** Bytes of a block of one moment; 0 for anything else. */
uint32_t zb_moment_block_bytes(enum zb_moments moments);

/** 0, or -EINVAL with a message: an unknown number, or a pair without a layout. */
int zb_layout_of(enum zb_dtype dtype, enum zb_dtype grad_dtype, enum zb_optimizer optimizer,
                 enum zb_moments moments, bool frozen, struct zb_layout *ret, struct zb_err *err);

/** Changes the layout of a frozen unit to blockwise int8. Readers still get its parameters in
 * `dtype`. */
void zb_layout_quantize(struct zb_layout *layout);

/** Bytes of `elems` elements of a plane, a whole number of blocks; also the offset of element
 * `elems` in a page. */
static inline uint64_t zb_blocks_bytes(uint32_t block_bytes, uint64_t elems)
{
    return elems / ZB_BLOCK_ELEMS * block_bytes;
}

/** Bytes of a page of `elems` elements of a plane. */
static inline uint64_t zb_page_bytes(uint32_t block_bytes, uint64_t elems)
{
    uint64_t bytes = zb_blocks_bytes(block_bytes, elems);

    return (bytes + ZB_PAGE_ALIGN - 1) / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
}

/** Bytes of `elems` elements of a plane cut into pages of `page_elems`; also the offset in memory
 * of element `elems`, if it is the first of a page. */
static inline uint64_t zb_plane_bytes(uint32_t block_bytes, uint64_t page_elems, uint64_t elems)
{
    return elems / page_elems * zb_page_bytes(block_bytes, page_elems) +
           zb_page_bytes(block_bytes, elems % page_elems);
}

/** Bytes of a matrix of fp32 between the two passes of Muon. */
static inline uint64_t zb_matrix_bytes(uint64_t elems)
{
    return (elems * 4 + 63) / 64 * 64;
}

/** Bytes of scratch memory that orthogonalizes a matrix (kernels/ortho.h): another one, and two squares of its
 * smaller side. */
static inline uint64_t zb_ortho_bytes(uint64_t rows, uint64_t cols)
{
    uint64_t n = rows < cols ? rows : cols;

    return zb_matrix_bytes(rows * cols) + 2 * zb_matrix_bytes(n * n);
}

/** Device memory that cuBLASLt gets for each product (kernels/lt.h). */
#define ZB_LT_WORKSPACE_BYTES (UINT64_C(32) << 20)

/** Device memory that orthogonalizes a matrix on a GPU (kernels/gpu_ortho.h): two matrices and two squares of
 * fp32, one of each of bf16 if products are of bf16, sums of squares, and cuBLASLt's. */
static inline uint64_t zb_ortho_gpu_bytes(uint64_t rows, uint64_t cols, bool bf16)
{
    uint64_t elems = rows * cols, n = rows < cols ? rows : cols;
    uint64_t norms = (elems + ZB_BLOCK_ELEMS - 1) / ZB_BLOCK_ELEMS * 16;
    uint64_t align = 255;

    return 2 * ((elems * 4 + align) & ~align) + 2 * ((n * n * 4 + align) & ~align) +
           (bf16 ? ((elems * 2 + align) & ~align) + ((n * n * 2 + align) & ~align) : 0) +
           ((norms + align) & ~align) + ZB_LT_WORKSPACE_BYTES;
}

/** Elements stored for a unit or range that ends at `elems`: rounded up to whole blocks. */
static inline uint64_t zb_padded_elems(uint64_t elems)
{
    return (elems + ZB_BLOCK_ELEMS - 1) / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS;
}

/**
 * Cuts a unit of `elems` elements into equal slices for `world` ranks. Every slice has *ret_slice
 * elements (a multiple of the block), and a rank's slice begins at rank * slice. The stored part,
 * *ret_count elements, ends at the padded end of the unit; it may be 0 for the last ranks.
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
