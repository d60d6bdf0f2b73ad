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
 *
 * What is streamed is always written; what is resident only by SAVE, or by a STEP that saves.
 */
#ifndef ZSD_PAGEOP_H
#define ZSD_PAGEOP_H

#include "daemon/job.h"
#include "daemon/pagework.h"

/** What to do: the fields of its kind. Pointers stay valid until done. */
struct zsd_page_spec {
    enum zsd_page_kind kind;
    struct zsd_shard *shard;
    uint32_t page;
    const struct zk_scalars *by_group; /* STEP */
    /* STEP, SAVE: where a failure to write what is resident is recorded. The page stays dirty; that
     * alone is no failure of the operation. STEP: NULL, resident pages are not written. */
    struct zb_err *save_err;
    const float *values; /* INIT: of this page */
    void *out;           /* READ: for this page */
    enum zk_what what;   /* READ; INIT: the master, or a moment of a page that has one */
    uint8_t *fill;       /* FILL: of this page, in the arena */
    /* Runs once, on the loop thread, never from inside zsd_pageop_start(). err is NULL on success.
     */
    void (*done)(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err);
    void *owner;
};

/** 0, or -ENOMEM: done will not run. */
int zsd_pageop_start(const struct zsd_page_spec *spec);

#endif
