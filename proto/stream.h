/*
 * stream.h - one end of a connection: frames and descriptors over a non-blocking Unix stream
 * socket.
 *
 * MODEL. Bytes and descriptors arrive into an input buffer of one frame's size; frames leave
 * through a queue. Daemon and client both use it. Nothing blocks and nothing waits: the owner polls
 * the socket and calls zp_stream_read() when it is readable, zp_stream_write() when it is writable
 * and zp_stream_pending() is not 0. One thread at a time.
 *
 * Descriptors travel by SCM_RIGHTS with the first byte of the frame that announces them. More than
 * announced, or than ZP_FDS_MAX, or a truncated control message (MSG_CTRUNC), is -EPROTO; every
 * descriptor that was received and not taken is closed.
 */
#ifndef ZP_STREAM_H
#define ZP_STREAM_H

#include <protobuf-c/protobuf-c.h>

#include "base/err.h"
#include "proto/frame.h"

#define ZP_STREAM_OUT_MAX (8u << 20) /* bytes queued towards a peer that does not read */

struct zp_stream;

/** Takes over fd, which becomes non-blocking and close-on-exec: 0 or -ENOMEM (fd is still the
 *  caller's then). */
int zp_stream_new(struct zp_stream **ret, int fd);
/** Closes the socket and every descriptor held; NULL is fine. */
void zp_stream_free(struct zp_stream *s);
/** Closes them and keeps the object, with fd -1. May be called in a child right after fork(). */
void zp_stream_shut(struct zp_stream *s);
int zp_stream_fd(const struct zp_stream *s);

/**
 * Receives once, as much as is available and fits. While a complete frame waits for
 * zp_stream_next(), nothing is received and 0 is returned: take every frame, then read again.
 *
 * @return 0 something arrived; -EAGAIN nothing is available, or no memory for it; -ECONNRESET the
 *         peer closed or died, -EPROTO descriptors that were not announced: err has the message,
 *         and the stream is unusable
 */
int zp_stream_read(struct zp_stream *s, struct zb_err *err);

/**
 * The next complete frame: 1; 0: none yet; -EPROTO or -EMSGSIZE as zp_frame_next(), and if the
 * descriptors are not those that the frame announces: the stream is unusable then. *ret_body is
 * valid until the next zp_stream_read(), zp_stream_next() or zp_stream_free() of this stream
 * (sending is fine). fds[0 .. frame.fds) become the caller's.
 */
int zp_stream_next(struct zp_stream *s, struct zp_frame *ret, const uint8_t **ret_body,
                   int fds[ZP_FDS_MAX], struct zb_err *err);

/**
 * Queues a frame (its body_bytes and fds are filled in here) whose body is the message, the text,
 * or empty if both are NULL; not both. Descriptors (at most ZP_FDS_MAX) are duplicated: the
 * caller keeps its own.
 *
 * @return 0; -EMSGSIZE the body is longer than ZP_BODY_MAX, -ENOBUFS too much waits to be sent,
 *         -ENOMEM, -EMFILE: nothing was queued
 */
int zp_stream_send(struct zp_stream *s, struct zp_frame frame, const ProtobufCMessage *message,
                   const char *text, const int *fds, unsigned nfds);

/** Sends what the socket accepts, without raising a signal. 0: see zp_stream_pending(). 1: the
 *  system has no memory for it, or too many descriptors are in transit (ENOBUFS, ENOMEM,
 *  ETOOMANYREFS); no poll reports the end of that, so try again a little later. -EPIPE,
 *  -ECONNRESET: the peer is gone; what it sent before can still be read. */
int zp_stream_write(struct zp_stream *s);
/** Bytes that wait to be sent. */
size_t zp_stream_pending(const struct zp_stream *s);
/** Descriptors that wait to be sent, or that were sent and the peer may not have read. */
unsigned zp_stream_fds(struct zp_stream *s);

#endif
