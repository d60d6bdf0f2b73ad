/*
 * dispatch.h - the rows of methods: which handler a frame goes to.
 */
#ifndef ZSD_DISPATCH_H
#define ZSD_DISPATCH_H

#include "daemon/net/conn.h"
#include "proto/codec.h"

/**
 * Handles a request: it is answered here, or its handler has it. Hello comes first and once; what
 * we do not know is answered -ENOSYS, a body that is no such message -EPROTO, and the connection
 * goes on. PROTOCOL.md, section 2, says what is fatal and what is answered.
 *
 * @param arena  for the body; the message lives until the handler returns
 * @return 0; 1: nothing more is to be read behind the answer (no version in common, no hello)
 */
int zsd_dispatch(struct zsd_req *req, struct zp_arena *arena, const uint8_t *body,
                 size_t body_bytes);

/**
 * Handles a one-way frame. What we do not know and what is no such message is dropped.
 *
 * @return 0; -EPROTO the client does not keep to the protocol, hang up: err has the sentence
 */
int zsd_dispatch_oneway(struct zsd_conn *conn, struct zp_arena *arena, uint16_t method,
                        const uint8_t *body, size_t body_bytes, struct zb_err *err);

#endif
