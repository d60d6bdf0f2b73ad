/*
 * ops.h - data of the operations for the whole daemon.
 *
 * Loop thread only.
 */
#ifndef ZSD_OPS_H
#define ZSD_OPS_H

#include <sys/types.h>

#include "daemon/run/turn.h"
#include "proto/frame.h"

/** The newest commit of any job. */
struct zsd_last_commit {
    char job[ZP_NAME_MAX + 1]; /* "": none since the start */
    uid_t uid;
    uint64_t iterations;
    uint64_t at_ns, took_ns; /* when it was durable; how long that took */
};

struct zsd_ops {
    struct zb_list opens;        /* job-opens that wait (op/open.c) */
    struct zb_list readers;      /* of saved versions (op/reader.c) */
    struct zb_list reader_waits; /* reader-opens that wait for memory (op/reader_wait.c) */
    uint64_t next_reader;
    struct zsd_last_commit last_commit; /* op/commit_count.c */
};

static inline void zsd_ops_init(struct zsd_ops *ops, struct zsd_core *core)
{
    (void)core;
    zb_list_init(&ops->opens);
    zb_list_init(&ops->readers);
    zb_list_init(&ops->reader_waits);
}

#endif
