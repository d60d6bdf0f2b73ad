/*
 * fake_nccl.h - a libnccl.so for tests: NCCL's interface, on the emulated GPU, between ranks that
 * are threads of one process. It is a library of its own, which comm_nccl.c loads as it would the
 * real one; the test reaches its settings by the symbol fake_nccl.
 *
 * MODEL. A collective does on each rank's stream, in the stream's order: copy down what the rank
 * sends; say that it is there; wait until all ranks have said so; copy up what it receives. So
 * nothing happens in the call, an engine that does not order its streams reads stale bytes, and a
 * rank that does not come holds up the streams of the others, as with the real one. Where the n-th
 * collective of a rank is of another kind or size than that of the others, neither ends.
 *
 * The communicator is one that does not block: opening is in progress until all ranks are there,
 * and every third collective until it was asked twice.
 */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

struct fake_nccl {
    /* What goes wrong; numbers count from 1, of all ranks together, 0: never. */
    uint32_t refuse_at; /* this and later collectives return an error */
    uint32_t lose_at;   /* from when that many were started, a peer is lost: asynchronously */
    uint32_t hang_at;   /* the n-th collective of the ranks never ends */
    bool hang_open;
    bool refuse_id;
    int version; /* 0: a good one */
    /* What was called. */
    uint32_t started, opened, finalized, destroyed, aborted;
};

extern struct fake_nccl fake_nccl;

#endif
