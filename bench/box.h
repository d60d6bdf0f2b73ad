/*
 * box.h - a simulated node: GPUs with duplex links to one host memory, which share its bandwidth.
 *
 * MODEL. A flow moves bytes between the host memory and one GPU, in one direction of its link, at a
 * constant rate until another flow ends. All flows that are in progress share each direction of a
 * link, and the host memory, fairly (max-min). Time is computed, so that results are exact.
 */
#ifndef ZBENCH_BOX_H
#define ZBENCH_BOX_H

#include <stdbool.h>
#include <stdint.h>

#define ZBENCH_BOX_MAX 16u /* GPUs */

struct zbench_box {
    uint32_t gpus;
    double link; /* bytes a second, of each direction of a link */
    double host; /* of the host memory, reads and writes together; 0: unlimited */

    /* what was moved so far */
    double seconds, up, down, host_bytes; /* up: from a GPU to the host memory; sums over GPUs */
};

struct zbench_flow {
    uint32_t gpu;
    bool up;
    double bytes;
    bool lasts; /* used by zbench_box_move() */
    double rate;
};

/** Moves n flows that begin together, until all have ended; adds to box->seconds and the bytes. */
void zbench_box_move(struct zbench_box *box, struct zbench_flow *flows, uint32_t n);

/** Gathers a unit of `bytes` to all GPUs. Each reads it in host memory; */
void zbench_box_shared(struct zbench_box *box, double bytes);
/** or each reads its slice, and then they pass slices on in a ring, through host memory, as NCCL
 * does between GPUs without a link of their own. */
void zbench_box_ring(struct zbench_box *box, double bytes);

#endif
