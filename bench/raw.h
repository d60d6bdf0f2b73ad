/*
 * raw.h - a connection to a daemon below the client library, for a bench that does what the library
 * does not: requests whose answers are never read, and endless requests on one connection.
 *
 * Non-blocking, one thread. If the daemon closes a connection, every call reports it as lost, and
 * the caller connects again.
 */
#ifndef ZBENCH_RAW_H
#define ZBENCH_RAW_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/codec.h"
#include "proto/stream.h"

struct zbench_raw {
    struct zp_stream *stream; /* NULL: not connected */
    uint64_t tag;             /* of the last request */
    unsigned unanswered;
};

/** Connects, and sends hello where `hello`; its answer is one of those that zbench_raw_read()
 *  counts. 0 or a negative errno. */
int zbench_raw_open(struct zbench_raw *r, const char *socket, bool hello);
void zbench_raw_close(struct zbench_raw *r);
/** Queues a request, and sends what the socket takes. 0; -EAGAIN: enough waits to be sent, nothing
 *  was queued; another code: lost. */
int zbench_raw_send(struct zbench_raw *r, unsigned method, const ProtobufCMessage *message);
/** Takes what has come, and counts it: answers since the last call; refusals of them in
 *  *ret_refused. -ECONNRESET: lost. Descriptors that came are closed. */
int zbench_raw_read(struct zbench_raw *r, unsigned *ret_refused);
/** Waits until the socket takes something, or something can be read. */
void zbench_raw_poll(struct zbench_raw *all, unsigned n, bool reads, int timeout_ms);

#endif
