/*
 * dispatch.h - the table of methods and their handlers.
 */
#ifndef ZSD_DISPATCH_H
#define ZSD_DISPATCH_H

#include "daemon/net/conn.h"

/** Handles the frames of connections. Hello must come first, and once. An unknown method is
 * answered with -ENOSYS, a malformed body with -EPROTO, and the connection continues; such a
 * one-way frame is dropped. PROTOCOL.md, section 2, defines which errors are fatal and which are
 * answered. */
extern const struct zsd_conn_ops zsd_dispatch_ops;

#endif
