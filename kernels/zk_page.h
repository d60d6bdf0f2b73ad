/*
 * zk_page.h - operations on the pages of a shard: the same code for the daemon and for the engine's
 * store inside a process, so that results do not depend on where state is.
 *
 * A page is a run of elements of one shard, a whole number of blocks, with its planes as
 * base/plan.h lays them out: `param` (hi of the split master for bf16, the master for fp32; codes
 * and scales where it is quantized), `state` (interleaved by block, zk.h) and `grad`. Pure
 * functions over the caller's memory; any thread that called zk_thread_init().
 */
#ifndef ZK_PAGE_H
#define ZK_PAGE_H

#include "kernels/zk.h"

/** Assigns elements of a unit to a parameter group. Segments are ascending and do not overlap.
 * Elements in no segment (frozen tensors, padding) are never stepped. */
struct zk_segment {
    uint64_t first, count; /* of the unit's elements */
    uint32_t group;
    float scale; /* of the gradient, instead of the group's; 0: the group's */
};

/** A matrix that Muon steps: elements of the unit, row by row. */
struct zk_matrix {
    uint64_t first, count;
    uint64_t rows, cols;
    float *at;       /* its `count` floats between the two passes */
    float step_size; /* lr times the factor of its shape */
};

struct zk_page {
    void *param;                      /* 64-byte aligned, as all of them */
    void *state;                      /* NULL when frozen */
    void *grad;                       /* NULL: none */
    uint64_t first;                   /* of the unit's elements; a multiple of the block */
    uint64_t count;                   /* likewise */
    const struct zk_matrix *matrices; /* those that are stepped, ascending; NULL: none */
    size_t nmatrices;
};

/** Blockwise int8, as zb_layout_quantize() lays it out: codes and scales of `count` elements, whole
 * blocks, and back; 4-byte aligned. Exactly the kernels of zk.h, block by block. */
void zk_q8_write(const struct zk_ops *ops, enum zb_dtype dtype, const void *from, uint64_t count,
                 void *blocks);
void zk_q8_read(const struct zk_ops *ops, enum zb_dtype dtype, const void *blocks, uint64_t count,
                void *out);

/** Initial values: param and state's lo from fp32 masters, m and v zero. */
void zk_page_init(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const float *master);

/** One optimizer step; by_group[segment.group], with the segment's scale. Reads grad, changes param and state.
 *
 * Segments with scalars of Muon are parts of page->matrices. Of these only the momentum is stepped. It goes
 * to zk_matrix.at, too, as the matrix to orthogonalize. zk_page_weight() ends their step. */
void zk_page_step(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const struct zk_segment *segments, size_t nsegments,
                  const struct zk_scalars *by_group);

/** The last pass of Muon: the weights of the page's matrices, from their orthogonalized zk_matrix.at. */
void zk_page_weight(const struct zk_ops *ops, const struct zb_layout *layout,
                    const struct zk_page *page, const struct zk_segment *segments, size_t nsegments,
                    const struct zk_scalars *by_group);

/** What zk_page_read() reads; numbers as on the wire. EXP_AVG is the first moment and EXP_AVG_SQ
 * the second, whatever the optimizer calls them. */
enum zk_what { ZK_PARAM = 1, ZK_MASTER = 2, ZK_EXP_AVG = 3, ZK_EXP_AVG_SQ = 4, ZK_GRAD = 5 };

/** Whether this layout has it: frozen bf16 units have no master, frozen ones no moments or
 * gradient. */
bool zk_page_has(const struct zb_layout *layout, enum zk_what what);
/** ZK_PARAM gives elements in their own dtype; all others give fp32. */
void zk_page_read(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, enum zk_what what, void *out);

/** Sets the first or second moment, which the layout has; or the master, and with it the
 * parameters: the moments stay. */
void zk_page_set(const struct zk_ops *ops, const struct zb_layout *layout,
                 const struct zk_page *page, enum zk_what what, const float *values);

/**
 * Takes a gradient in: grad = from (set) or grad += from (add), in the plane's dtype; adds the sums
 * of squares of the result, block by block, to *sum and counts what is not finite. Blocks with a
 * non-finite value are left out of *sum. A bf16 plane takes only `set`.
 */
void zk_page_ingest(const struct zk_ops *ops, const struct zb_layout *layout,
                    const struct zk_page *page, const void *from, enum zb_dtype from_dtype,
                    bool add, struct zk_xsum *sum, uint64_t *nonfinite);

/** Sums of squares, tensor by tensor. */
struct zk_by_tensor {
    const struct zk_segment *tensors; /* ascending, without overlaps; of each, first and count */
    size_t n;
    struct zk_xsum *sums; /* [n] */
};

/**
 * zk_page_ingest(), and adds the squares of each tensor's elements to its sum. They are summed in
 * runs, each by sumsq(): a run ends where the tensor ends, and where a block of the unit ends. So a
 * tensor's sum is the same however its unit is cut. Runs with a value that is not finite are left
 * out.
 */
void zk_page_ingest_by(const struct zk_ops *ops, const struct zb_layout *layout,
                       const struct zk_page *page, const void *from, enum zb_dtype from_dtype,
                       bool add, struct zk_xsum *sum, uint64_t *nonfinite,
                       const struct zk_by_tensor *by);
/** The same runs, of fp32 values in memory: elements [first, first + n) of the unit, which begin at
 * a block of it. `*nonfinite` grows by the number of values of these tensors that are not finite. */
void zk_sums_by_tensor(const struct zk_ops *ops, const float *x, uint64_t first, uint64_t n,
                       const struct zk_by_tensor *by, uint64_t *nonfinite);

#endif
