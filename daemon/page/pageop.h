/*
 * pageop.h - one page of a shard: from where it lives, through a kernel, back to where it lives.
 *
 * The same path for everything that touches pages, resident or streamed:
 *
 *     STEP  read, verify, optimizer, seal, write to a fresh extent
 *     INIT  initial values from staging, seal, write; moments are set into what is read
 *     READ  read, verify, copy to staging
 *     FILL  read the parameters into the arena, verify
 *     SAVE  seal what is resident and dirty, write
 *     EARLY    as STEP, of a page whose state is streamed; but the shard keeps its bytes: the new
 *              ones are held aside, in fresh extents, and resident parameters in the page's
 *              gradient, which has been used then
 *     PUBLISH  makes what EARLY has left the page's own
 *     PUSH     a gradient that lives on NVMe: read and verified, if it is added to; taken in, seal,
 *              write. What is in memory is pushed without one (op/push.c)
 *
 * What is streamed is always written; what is resident only by SAVE, or by a STEP or PUBLISH that
 * saves.
 */
#ifndef ZSD_PAGEOP_H
#define ZSD_PAGEOP_H

#include "daemon/job/job.h"
#include "daemon/page/pagework.h"

/* What EARLY leaves of a page: page/held.h */
struct zsd_held;

/** What to do: the fields of its kind. Pointers stay valid until done. */
struct zsd_page_spec {
    enum zsd_page_kind kind;
    struct zsd_shard *shard;
    uint32_t page;
    /* STEP, EARLY: which elements of the unit are stepped, and with what */
    const struct zk_segment *segments;
    uint32_t nsegments, ngroups;
    const struct zk_scalars *by_group; /* [ngroups] */
    /* STEP, PUBLISH, SAVE: where a failure to write what is resident is recorded. The page stays
     * dirty; that alone is no failure of the operation. NULL, but for SAVE: resident pages are not
     * written. */
    struct zb_err *save_err;
    const float *values;       /* INIT: of this page */
    bool keep;                 /* INIT of masters: in place of others; moments stay */
    void *out;                 /* READ: for this page */
    enum zk_what what;         /* READ; INIT: the master, or a moment of a page that has one */
    uint8_t *fill;             /* FILL: of this page, in the arena */
    struct zsd_ingest *ingest; /* PUSH */
    /* PUBLISH: ours from zsd_pageop_start() on, if that returns 0. EARLY: whoever hears done() of a
     * success gets it here. */
    struct zsd_held *held;
    /* Runs once, on the loop thread, never from inside zsd_pageop_start(). err is NULL on success.
     */
    void (*done)(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err);
    void *owner;
};

/** 0, or -ENOMEM: done will not run. */
int zsd_pageop_start(const struct zsd_page_spec *spec);

#endif
