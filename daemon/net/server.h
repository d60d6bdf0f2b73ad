/*
 * server.h - the socket that clients connect to, and the connections that came of it.
 *
 * MODEL. The socket's file and a lock file beside it (PATH.lock) belong to one daemon. A daemon that
 * holds the lock and finds a socket file on which nobody answers replaces it: the daemon of that file
 * is dead. The socket is made with mode 0600; after that a group may get access (socket_group: 0660).
 *
 * LIMITS. A client that net/limits.h refuses (clients_max, user_clients_max) is let into a waiting
 * room of ZSD_REFUSED_MAX places. Its first request is answered with the numbers, and then it is
 * disconnected. If the room is full, the client that has waited longest is disconnected. For root and
 * the daemon's own user ZSD_ADMIN_PLACES more connections are reserved, so that they can always inspect
 * and clean up; job-open and reader-open are refused there. When descriptors or memory run out, no
 * connection is accepted for ZSD_ACCEPT_PAUSE_MS.
 *
 * Loop thread only.
 */
#ifndef ZSD_SERVER_H
#define ZSD_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "daemon/run/daemon.h"

#define ZSD_REFUSED_MAX     16u
#define ZSD_ACCEPT_PAUSE_MS 100u
#define ZSD_ACCEPT_MAX      16u /* connections in one turn */

struct uv_loop_s; /* uv.h */
struct zsd_conn_ops;

/**
 * Listens. Needs the loop and the core. daemon->config.socket becomes the path.
 *
 * @param ops  what becomes of frames and connections; it outlives the server
 * @return 0; -ENAMETOOLONG, -ENOENT no such directory, -EADDRINUSE a daemon lives there, -EEXIST
 *         something that is no socket lies there, -EINVAL no such group, another: err has the
 *         sentence, and nothing of the path was changed
 */
int zsd_server_open(struct zsd *daemon, struct uv_loop_s *uv, const struct zsd_conn_ops *ops,
                    struct zb_err *err);
/** Drain, then every connection ends. Their memory goes when the loop closes. NULL server: fine. */
void zsd_server_close(struct zsd *daemon);

/** Stops listening and removes our socket file; connections stay. */
void zsd_server_drain(struct zsd *daemon);

/** Once a turn, behind zsd_core_turn(): sends what is queued, resumes connections that had to wait.
 *  @return true when that gave the core, or itself, something to do */
bool zsd_server_turn(struct zsd *daemon);

/** Bytes of answers that wait for their clients. */
size_t zsd_server_unsent(const struct zsd *daemon);

#endif
