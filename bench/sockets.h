/*
 * sockets.h - the links of a node with two sockets, simulated in real time: GPUs on links of their
 * own, a host memory on each socket, and the link between the sockets.
 *
 * MODEL. Bytes flow from the host memories to a GPU, at a constant rate until another flow begins
 * or ends. A flow takes a share of its bytes from each socket's memory. Bytes of the other socket
 * also cross the link between the sockets, in their direction. All flows in progress share each
 * link and each memory fairly (max-min). The flows of one GPU run one after the other, in the order
 * in which they were queued, without a gap: a flow begins when the one before has ended, whenever
 * anyone learns of that.
 *
 * THREADS. Any thread may call any function.
 */
#ifndef ZBENCH_SOCKETS_H
#define ZBENCH_SOCKETS_H

#include <pthread.h>
#include <stdint.h>

#include "base/err.h"

#define ZBENCH_SOCKETS      2u
#define ZBENCH_SOCKETS_GPUS 16u
#define ZBENCH_SOCKETS_FLOW 16u /* flows of one GPU that are queued at a time */

/** Bytes a second. */
struct zbench_rates {
    double link;   /* from host memory to one GPU */
    double memory; /* of the host memory of one socket */
    double cross;  /* between the sockets, each direction */
};

/** The share of a flow's bytes that each socket's memory gives; the sum is 1. */
struct zbench_shares {
    double of[ZBENCH_SOCKETS];
};

struct zbench_flows {
    uint32_t socket; /* of the GPU */
    struct zbench_shares shares;
    double left[ZBENCH_SOCKETS_FLOW]; /* bytes, by number of the flow */
    uint64_t queued, done;            /* flows */
    double rate;
};

struct zbench_sockets {
    struct zbench_rates rates;
    uint32_t gpus;
    struct zbench_flows flows[ZBENCH_SOCKETS_GPUS];
    double now; /* seconds: everything before has happened */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/** The first half of the GPUs is on socket 0, the others on socket 1. */
void zbench_sockets_init(struct zbench_sockets *s, const struct zbench_rates *rates, uint32_t gpus);
void zbench_sockets_done(struct zbench_sockets *s);
/** Where the bytes of the GPU's next flows are. */
void zbench_sockets_place(struct zbench_sockets *s, uint32_t gpu,
                          const struct zbench_shares *shares);
/** Queues a flow; *ret is its number. -EAGAIN: too many are queued. */
int zbench_sockets_queue(struct zbench_sockets *s, uint32_t gpu, double bytes, uint64_t *ret);
/** Waits until the flow has ended. */
void zbench_sockets_wait(struct zbench_sockets *s, uint32_t gpu, uint64_t number);

/**
 * The rate of each of `gpus` GPUs that all have a flow: the least of
 *
 *     link                    its own
 *     memory / (sum of shares)   of each host memory
 *     cross / (sum of shares)    of each direction between the sockets, shares that cross
 *
 * Holds if all have the same placement: near, spread evenly, or on the other socket.
 */
double zbench_sockets_formula(const struct zbench_sockets *s, const char **ret_limit);

#endif
