/*
 * tcp_mesh.h - connects the ranks of comm_tcp.c: one connection for each pair of ranks.
 */
#ifndef ZC_TCP_MESH_H
#define ZC_TCP_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/zero/comm/tcp_socket.h"

struct zc_tcp_mesh {
    uint32_t rank, world;
    uint64_t patience_s;              /* how long ranks wait for each other */
    int *fds;                         /* [world], the caller's; -1 for this rank */
    char (*names)[ZC_TCP_NAME_BYTES]; /* [world], the caller's: addresses, for error messages */
};

/** Whether a launcher such as torchrun has set the environment that is needed. */
bool zc_tcp_launched(void);

/**
 * Connects to all other ranks, as the environment says (tcp_mesh.c). Blocks until all are
 * connected. The sockets are non-blocking and closed by exec.
 *
 * @return 0; -EINVAL a variable is wrong, -EADDRINUSE, -EOWNERDEAD ranks did not come, -EPROTO
 *         ranks of different runs met, -ENOMEM, or an error of a socket; nothing is open then
 */
int zc_tcp_meet(struct zc_tcp_mesh *ret, struct zb_err *err);
/** Closes all sockets, and frees nothing: for a child process, right after fork(). */
void zc_tcp_mesh_shut(struct zc_tcp_mesh *mesh);
/** Closes all sockets, and frees the mesh. A zeroed mesh is allowed. */
void zc_tcp_mesh_close(struct zc_tcp_mesh *mesh);

#endif
