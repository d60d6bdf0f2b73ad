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
    struct zsd_row *adopting; /* the row whose pages the next shard takes over */
    uint32_t adopted;         /* it has taken over pages [0, adopted) */
    struct zsd_work work;
    void (*page_over)(struct zsd_load_op *op); /* a page is loaded, or has failed (err) */
    void (*done)(struct zsd_job *job, const struct zb_err *err);
};

/** Begins to load a page, and counts it in op->inflight. When it ends, it is no longer counted, and
 * op->page_over() runs, never inside this call. Without memory, only sets op->err. */
void zsd_load_page_start(struct zsd_load_op *op, struct zsd_shard *s, uint32_t page);

#endif
