/*
 * fake_nccl.h - a libnccl.so for tests: NCCL's interface on the emulated GPU, between ranks that
 * are threads of one process. It is a separate library, which comm_nccl.c loads like the real one.
 * The test reaches its settings through the symbol fake_nccl.
 *
 * MODEL. A collective does this on each rank's stream, in the stream's order: it copies down what
 * the rank sends, announces that, waits until all ranks have announced theirs, and copies up what
 * it receives. So nothing happens in the call itself, an engine that does not order its streams
 * reads stale bytes, and a missing rank blocks the streams of the others, as with the real one. If
 * the nth collective of one rank differs in kind or size from that of another, neither ends.
 *
 * The communicator is nonblocking: opening is in progress until all ranks are there, and every
 * third collective until it has been asked twice.
 */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

struct fake_nccl {
    /* Failures. The numbers count collectives of all ranks together from 1; 0: never. */
    uint32_t refuse_at; /* this and later collectives return an error */
    uint32_t lose_at;   /* after this many starts, a peer is lost: reported asynchronously */
    uint32_t hang_at;   /* the n-th collective of the ranks never ends */
    bool hang_open;
    bool refuse_id;
    int version; /* 0: a supported one */
    /* Counts of calls. */
    uint32_t started, opened, finalized, destroyed, aborted;
};

extern struct fake_nccl fake_nccl;

#endif
