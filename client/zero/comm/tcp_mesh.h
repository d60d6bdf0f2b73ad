/*
 * tcp_mesh.h - how the ranks of comm_tcp.c find each other: a connection from each to each.
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
    int *fds;                         /* [world], the caller's; -1 for itself */
    char (*names)[ZC_TCP_NAME_BYTES]; /* [world], the caller's: addresses, for sentences */
};

/** Whether a launcher such as torchrun has left what is needed in the environment. */
bool zc_tcp_launched(void);

/**
 * Meets the other ranks, as the environment says (tcp_mesh.c). Blocks until all are there. The
 * connections do not block and are closed by exec.
 *
 * @return 0; -EINVAL the environment is not one, -EADDRINUSE, -EOWNERDEAD not all came, -EPROTO
 * they do not belong together, -ENOMEM, or what a socket said; nothing is open then
 */
int zc_tcp_meet(struct zc_tcp_mesh *ret, struct zb_err *err);
/** Closes what is open, and frees nothing: in a child right after fork(). */
void zc_tcp_mesh_shut(struct zc_tcp_mesh *mesh);
/** Closes what is open. A zeroed mesh is fine. */
void zc_tcp_mesh_close(struct zc_tcp_mesh *mesh);

#endif
