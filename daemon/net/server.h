/*
 * server.h - the socket that clients connect to, and its connections.
 *
 * MODEL. The socket's file and a lock file next to it (PATH.lock) belong to one daemon. A daemon
 * that holds the lock and finds a socket file at which no process answers replaces it: the daemon
 * that made it is dead. The socket is made with mode 0600; after that a group may get access
 * (socket_group: 0660).
 *
 * LIMITS. A client that exceeds a limit (clients_max, user_clients_max: net/limits.h) gets into a
 * waiting room of ZSD_REFUSED_MAX places. Its first request is answered with the numbers, and then
 * it is disconnected. If the room is full, the client that has waited longest is disconnected. For
 * root and the daemon's own user ZSD_ADMIN_PLACES more connections are reserved, so that they can
 * always inspect and clean up; job-open and reader-open are refused there. When descriptors or
 * memory run out, no connection is accepted for ZSD_ACCEPT_PAUSE_MS.
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
 * Starts to listen. Needs the loop and the core. Sets daemon->config.socket to the path.
 *
 * @param ops  handlers for frames and connections; must outlive the server
 * @return 0; -ENAMETOOLONG; -ENOENT no such directory; -EADDRINUSE another daemon serves it;
 *         -EEXIST the path is not a socket; -EINVAL no such group; another error: err has the
 *         message
 */
int zsd_server_open(struct zsd *daemon, struct uv_loop_s *uv, const struct zsd_conn_ops *ops,
                    struct zb_err *err);
/** Drains, then ends every connection. Their memory is freed when the loop closes them. NULL
 * server: fine. */
void zsd_server_close(struct zsd *daemon);

/** Finds the group of the administrators (""; there is none), also for the clients that are
 * connected. 0; -EINVAL: no such group, and nothing has changed. */
int zsd_server_admins(struct zsd *daemon, const char *name, struct zb_err *err);

/** Stops listening and removes our socket file; connections stay. */
void zsd_server_drain(struct zsd *daemon);

/** Call once per turn, after zsd_core_turn(): sends queued data, and resumes connections that had
 * to wait. Stops after ZSD_NET_NS; the next turn begins with the connections that are left. True:
 * the core or the server has more to do. */
bool zsd_server_turn(struct zsd *daemon);

/** For a forced end: sends as much as the sockets take at once. No connection ends. */
void zsd_server_flush(struct zsd *daemon);

/** Bytes of answers that wait for their clients. */
size_t zsd_server_unsent(const struct zsd *daemon);

#endif
