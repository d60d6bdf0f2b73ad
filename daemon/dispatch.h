/*
 * dispatch.h - the table of methods and their handlers.
 */
#ifndef ZSD_DISPATCH_H
#define ZSD_DISPATCH_H

#include "daemon/net/conn.h"

/** Handles the frames of connections. Hello must come first, and once. An unknown method is
 * answered -ENOSYS, a malformed body -EPROTO, and the connection continues; such a one-way frame
 * is dropped. PROTOCOL.md, section 2, defines what is fatal and what is answered. */
extern const struct zsd_conn_ops zsd_dispatch_ops;

#endif
