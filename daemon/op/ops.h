/*
 * ops.h - data of the operations for the whole daemon.
 *
 * Loop thread only.
 */
#ifndef ZSD_OPS_H
#define ZSD_OPS_H

#include "daemon/run/turn.h"

struct zsd_ops {
    struct zb_list opens;   /* job-opens that wait (op/open.c) */
    struct zb_list readers; /* of saved versions (op/reader.c) */
    uint64_t next_reader;
};

static inline void zsd_ops_init(struct zsd_ops *ops, struct zsd_core *core)
{
    (void)core;
    zb_list_init(&ops->opens);
    zb_list_init(&ops->readers);
}

#endif
