/*
 * load_priv.h - a load in progress, as op/load.c and op/load_page.c share it.
 */
#ifndef ZSD_OP_LOAD_PRIV_H
#define ZSD_OP_LOAD_PRIV_H

#include "daemon/job/shard.h"
#include "daemon/op/load.h"

struct zsd_load_op {
    struct zsd_job *job;
    struct zsd_version *version;
    struct zb_err err; /* the first failure */
    uint32_t next_shard, next_page, inflight;
    struct zsd_row *adopting; /* the row whose pages the next shard takes over... */
    uint32_t adopted;         /* ...so far, pages [0, adopted) */
    struct zsd_work work;
    void (*page_over)(struct zsd_load_op *op); /* a page has its bytes, or err says why not */
    void (*done)(struct zsd_job *job, const struct zb_err *err);
};

/** Begins to load a page. It counts in op->inflight until just before op->page_over(), which never
 * runs from inside this call. Out of memory: op->err is set. */
void zsd_load_page_start(struct zsd_load_op *op, struct zsd_shard *s, uint32_t page);

#endif
