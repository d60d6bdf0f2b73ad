/*
 * pageop.h - one page of a shard: from where it lives, through a kernel, back to where it lives.
 *
 * The same path for everything that touches pages, resident or streamed:
 *
 *     STEP  read, verify, optimizer, seal, write to a fresh extent
 *     INIT  initial values from staging, seal, write
 *     READ  read, verify, copy to staging
 *     FILL  read the parameters into the arena, verify
 */
#ifndef ZSD_PAGEOP_H
#define ZSD_PAGEOP_H

#include "daemon/job.h"

enum zsd_page_kind { ZSD_PAGE_STEP, ZSD_PAGE_INIT, ZSD_PAGE_READ, ZSD_PAGE_FILL };

/** What to do: the fields of its kind. Pointers stay valid until done. */
struct zsd_page_spec {
    enum zsd_page_kind kind;
    struct zsd_shard *shard;
    uint32_t page;
    const struct zk_adamw *by_group; /* STEP */
    const float *master;             /* INIT: of this page */
    void *out;                       /* READ: for this page */
    enum zk_what what;               /* READ */
    uint8_t *fill;                   /* FILL: of this page, in the arena */
    /* Runs once, on the loop thread, never from inside zsd_pageop_start(). err is NULL on success.
     */
    void (*done)(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err);
    void *owner;
};

/** 0, or -ENOMEM: done will not run. */
int zsd_pageop_start(const struct zsd_page_spec *spec);

#endif
