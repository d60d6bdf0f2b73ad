/*
 * comm_priv.h - the backends that are part of the library, for comm.c.
 */
#ifndef ZC_COMM_PRIV_H
#define ZC_COMM_PRIV_H

#include "base/err.h"
#include "client/zero/zc_zero.h"

/** comm_tcp.c; errors as zc_tcp_meet() (tcp_mesh.h). */
int zc_tcp_open(struct zc_comm **ret, struct zb_err *err);

/** comm_nccl.c: NCCL for devices, `host` for all else. host is the comm's from then on, after a
 * failure it is closed. -ENOTSUP no library, or one that does not do; as others of its ranks. */
int zc_nccl_open(struct zc_comm **ret, struct zc_comm *host, struct zb_err *err);

#endif
