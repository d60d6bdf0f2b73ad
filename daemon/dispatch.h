/*
 * dispatch.h - the rows of methods: which handler a frame goes to.
 */
#ifndef ZSD_DISPATCH_H
#define ZSD_DISPATCH_H

#include "daemon/net/conn.h"

/** What the server does with the frames of its connections. Hello comes first and once; a method
 * that we do not know is answered -ENOSYS, a body that is no such message -EPROTO, and the
 * connection goes on; a one-way frame like that is dropped. PROTOCOL.md, section 2, says what is
 * fatal and what is answered. */
extern const struct zsd_conn_ops zsd_dispatch_ops;

#endif
