/*
 * floor.h - lower bounds for a step of streamed state: the kernels on pages that are in memory, and
 * a loop that only moves bytes on a device of a fixed rate. bench_step.c has the model.
 */
#ifndef ZBENCH_FLOOR_H
#define ZBENCH_FLOOR_H

#include "bench/zbench.h"
#include "kernels/zk_page.h"

#define STEP_HALF       2u               /* bytes of a parameter, and of a gradient */
#define STEP_STATE      10u              /* bytes of its state */
#define STEP_BYTES      (2 * STEP_STATE) /* per parameter, read and written */
#define STEP_DEPTH      16u              /* requests of the loop and of fio at one time */
#define STEP_LATENCY_US 100u
#define STEP_THREADS    64u

struct zbench_kernels {
    struct zbench *z;
    const struct zk_ops *ops;
    struct zb_layout layout;
    unsigned threads; /* at most STEP_THREADS */
    uint64_t page_elems, pages;
    uint8_t *memory;
    uint64_t memory_bytes;
};

/** Pages of at most so many parameters, filled. On failure, too, zbench_kernels_close() takes what
 *  is there. */
int zbench_kernels_open(struct zbench_kernels *k, struct zbench *z, uint64_t params,
                        uint64_t page_elems, unsigned threads);
/** Steps all pages: nanoseconds of a parameter, all threads together. sums: with checksums before
 *  and after each block. */
int zbench_kernels_measure(struct zbench_kernels *k, bool sums, double *ret_ns);
/** Orthogonalizes matrices of this shape, a thread a whole one at a time: nanoseconds of an element, all threads
 *  together. */
int zbench_ortho_measure(struct zbench_kernels *k, uint64_t rows, uint64_t cols, double *ret_ns);
void zbench_kernels_close(struct zbench_kernels *k); /* a zeroed one is fine */

/** Reads and writes pieces of `bytes` in turn on a device of this rate, STEP_DEPTH at a time:
 *  seconds of a byte. */
int zbench_loop_measure(struct zbench *z, uint64_t rate, uint32_t bytes, double *ret_s);

#endif
