/*
 * comm_priv.h - the backends that are built into the library, for comm.c.
 */
#ifndef ZC_COMM_PRIV_H
#define ZC_COMM_PRIV_H

#include "base/err.h"
#include "client/zero/zc_zero.h"

/** comm_tcp.c. Errors are those of zc_tcp_meet() (tcp_mesh.h). */
int zc_tcp_open(struct zc_comm **ret, struct zb_err *err);

/** comm_nccl.c: NCCL for devices, `host` for everything else. The comm takes over `host`, which is
 * closed on failure. -ENOTSUP: no library, or an unsuitable one, also if only another rank reports
 * it. */
int zc_nccl_open(struct zc_comm **ret, struct zc_comm *host, struct zb_err *err);

#endif
