/*
 * pagework.h - what is done to the bytes of one page, off the loop: verified, changed, sealed.
 *
 * A pure function over memory that pageop.c names: it knows no job, no queue and no drive. Any
 * thread that called zk_thread_init().
 */
#ifndef ZSD_PAGEWORK_H
#define ZSD_PAGEWORK_H

#include "kernels/zk_page.h"
#include "nvme/zn.h"

enum zsd_page_kind {
    ZSD_PAGE_STEP,
    ZSD_PAGE_INIT,
    ZSD_PAGE_READ,
    ZSD_PAGE_FILL,
    ZSD_PAGE_SAVE,
    ZSD_PAGE_EARLY,
    ZSD_PAGE_PUBLISH,
    ZSD_PAGE_PUSH,
};

/* The planes, all of which can be streamed. */
enum zsd_work_plane { ZSD_WORK_PARAM, ZSD_WORK_STATE, ZSD_WORK_GRAD, ZSD_WORK_PLANES };

/* A gradient that comes in. */
struct zsd_ingest {
    const void *from; /* of this page */
    enum zb_dtype dtype;
    bool add;
    /* filled: of what the page has then */
    struct zk_xsum sum;
    uint64_t nonfinite;
};

/* What is to be done with a plane's checksums. */
struct zsd_pagework_plane {
    uint32_t len_bytes, crc_bytes;
    bool verify, seal;
    bool absent;               /* was never written: zeros */
    struct zn_page_id was;     /* verify: who the bytes must be */
    const uint32_t *crcs;      /* verify: of `was` */
    struct zn_page_id becomes; /* seal */
    uint32_t *new_crcs;        /* seal: filled */
    /* seal: others may write to the plane's memory meanwhile, so it is copied here, and the copy is
     * sealed. NULL: nobody does, and the plane is sealed where it is */
    uint8_t *copy;
};

struct zsd_pagework {
    enum zsd_page_kind kind;
    enum zk_what what; /* INIT, READ: as in zsd_page_spec */
    const struct zk_ops *ops;
    const struct zb_layout *layout;
    const struct zk_segment *segments; /* STEP, EARLY */
    uint32_t nsegments;
    const struct zk_scalars *by_group; /* STEP, EARLY */
    const float *values;               /* INIT */
    bool keep;                         /* INIT: as in zsd_page_spec */
    void *out;                         /* READ */
    struct zsd_ingest *ingest;         /* PUSH */
    struct zk_page page;
    /* EARLY, PUBLISH: parameters that live in memory. EARLY reads them, and leaves what they become
     * in page.param and aside, which is where the gradient is: it has been used then. From
     * there PUBLISH brings them here. NULL: they are streamed; param alone: they live on the GPU */
    void *param, *aside;
    struct zsd_pagework_plane planes[ZSD_WORK_PLANES];
};

/** A checksum that does not match. */
struct zsd_pagework_bad {
    enum zsd_work_plane plane;
    uint32_t crc; /* which one, from 0 */
};

/**
 * @return 0; -EBADMSG: a plane is not what it must be, and *ret_bad says where. Nothing was read
 * out then; of a STEP, elements before those may have been changed in memory, in resident planes
 *         too: no one may go on with the page
 */
int zsd_pagework_run(const struct zsd_pagework *w, struct zsd_pagework_bad *ret_bad);

#endif
