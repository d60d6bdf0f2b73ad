/*
 * dispatch.h - the rows of methods: which handler a frame goes to.
 */
#ifndef ZSD_DISPATCH_H
#define ZSD_DISPATCH_H

#include "daemon/conn.h"
#include "proto/codec.h"

/**
 * Handles one frame of a client. Hello comes first and once; what we do not know is answered
 * -ENOSYS (dropped when one-way), a body that is no such message -EPROTO: the connection goes on.
 * PROTOCOL.md, section 2, says what is fatal and what is answered.
 *
 * @param arena  for the body; the message lives until the handler returns
 * @return 0; 1: answered, and nothing more is to be read (no version in common, no hello);
 *         -EPROTO the client does not keep to the protocol, -ENOMEM: err has the sentence, hang up
 */
int zsd_dispatch(struct zsd_conn *conn, struct zp_arena *arena, const struct zp_frame *frame,
                 const uint8_t *body, struct zb_err *err);

#endif
