/*
 * pageop.h - one operation on one page of a shard: from its place, through a kernel, back to its
 * place.
 *
 * The same path for everything that touches pages, resident or streamed:
 *
 *     STEP  read, verify, optimizer, seal, write to a fresh extent
 *     INIT  initial values from staging, seal, write; moments, and masters with `keep`, are set in
 *           the state, which is read first
 *     READ  read, verify, copy to staging
 *     FILL  read the parameters into the arena, verify
 *     SAVE  seal what is resident and dirty, write
 *     EARLY    as STEP, for a page whose state is streamed; but the shard keeps its bytes: the new
 *              ones are held in fresh extents, and new resident parameters in the memory of the
 *              page's gradient, which is lost. With `ingest`, the gradient is not held anywhere: it
 *              comes from staging
 *     PUBLISH  makes the result of EARLY the contents of the page
 *     PUSH     a gradient on NVMe: read and verify, if it is added to; add, seal, write. A
 *              gradient in memory is pushed without a page operation (op/push.c)
 *
 * A streamed plane that changes is written, unless a STEP moves it into memory or to the GPU.
 * PUBLISH does not write again what EARLY has written. Other planes are written only by SAVE, by a
 * STEP or PUBLISH that saves, and by a STEP that moves state to the data file.
 */
#ifndef ZSD_PAGEOP_H
#define ZSD_PAGEOP_H

#include "daemon/job/job.h"
#include "daemon/page/pagework.h"

struct zsd_pageop;
/* The result of EARLY for a page: page/held.h */
struct zsd_held;

/** The operation to run. Each kind uses its own fields. Pointers must stay valid until done(). */
struct zsd_page_spec {
    enum zsd_page_kind kind;
    struct zsd_shard *shard;
    uint32_t page;
    /* STEP, EARLY: the elements of the unit to step, and their scalars */
    const struct zk_segment *segments;
    uint32_t nsegments, ngroups;
    const struct zk_scalars *by_group; /* [ngroups] */
    /* STEP, EARLY of a page of these matrices, by Muon. After the first pass, hold() runs, and the operation
     * waits for zsd_pageop_resume(): the matrices are orthogonalized. It keeps its page buffer, which
     * is `buffer`: memory of the caller's. */
    const struct zk_matrix *matrices;
    uint32_t nmatrices;
    void (*hold)(void *owner, struct zsd_pageop *op, const struct zsd_page_spec *spec);
    void *buffer;
    /* STEP, PUBLISH, SAVE: records a failure to write a resident page. The page then stays dirty,
     * but that alone does not fail the operation. NULL (not for SAVE): resident pages are not
     * written. */
    struct zb_err *save_err;
    const float *values; /* INIT: of this page */
    bool keep;           /* INIT of masters: replaces them, and keeps the moments */
    void *out;           /* READ: for this page */
    enum zk_what what;   /* READ; INIT: the master, or a moment of a page that has one */
    uint8_t *fill;       /* FILL: of this page, in the arena */
    /* PUSH. EARLY: NULL, or the gradient; its done() runs when it was taken in, and `ingest` is NULL from
     * then on. If the operation fails before that, done() below has to call it */
    struct zsd_ingest *ingest;
    uint8_t *grad; /* STEP, EARLY: the gradient is in this memory; NULL: in its own */
    /* PUBLISH: the result to publish; the operation owns it if zsd_pageop_start() returns 0. EARLY:
     * the new result; on success, done() takes ownership. */
    struct zsd_held *held;
    /* Runs once, on the loop thread, never inside zsd_pageop_start(). err NULL: success. */
    void (*done)(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err);
    void *owner;
};

/** 0; -ENOMEM: done() will not run. */
int zsd_pageop_start(const struct zsd_page_spec *spec);
/** Continues with the last pass; or ends the operation, if there is a reason why. */
void zsd_pageop_resume(struct zsd_pageop *op, const struct zb_err *why);

#endif
