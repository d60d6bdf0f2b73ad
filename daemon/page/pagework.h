/*
 * pagework.h - work on the bytes of one page, off the loop: verify, change, seal.
 *
 * A pure function on memory that pageop.c names: it does not depend on jobs, queues or drives. Runs
 * on any thread that called zk_thread_init().
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
    ZSD_PAGE_WEIGHT, /* the second pass of a STEP or EARLY by Muon */
};

/* The planes of a page. Each of them can be streamed. */
enum zsd_work_plane { ZSD_WORK_PARAM, ZSD_WORK_STATE, ZSD_WORK_GRAD, ZSD_WORK_PLANES };

/* An incoming gradient. */
struct zsd_ingest {
    const void *from; /* of this page */
    enum zb_dtype dtype;
    bool add;
    /* results, of the page's gradient afterwards: */
    struct zk_xsum sum;
    uint64_t nonfinite;
    struct zk_by_tensor by; /* n 0: not by tensor */
    /* EARLY: runs on the loop thread when the bytes at `from` are no longer needed. The struct may be
     * freed then */
    void (*done)(struct zsd_ingest *ingest);
};

/* What to do with the checksums of a plane. */
struct zsd_pagework_plane {
    uint32_t len_bytes, crc_bytes;
    bool verify, seal;
    bool absent;               /* never written: zeros */
    struct zn_page_id was;     /* verify: the expected identity */
    const uint32_t *crcs;      /* verify: of `was` */
    struct zn_page_id becomes; /* seal */
    uint32_t *new_crcs;        /* seal: filled */
    /* seal: the plane is copied here and the copy is sealed, because clients may write to the
     * plane's memory meanwhile. NULL: no client can, and the plane is sealed in place */
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
    struct zsd_ingest *ingest;         /* PUSH; EARLY of a gradient that is not held, else NULL */
    struct zk_page page;
    /* EARLY, PUBLISH: param is the address of resident parameters, and aside that of the gradient.
     * EARLY reads param, and stores the new parameters in page.param and in aside; the gradient is
     * lost. PUBLISH copies aside to param. Both NULL: the parameters are streamed. Only param NULL:
     * they are on the GPU */
    void *param, *aside;
    struct zsd_pagework_plane planes[ZSD_WORK_PLANES];
};

/** A checksum that does not match. */
struct zsd_pagework_bad {
    enum zsd_work_plane plane;
    uint32_t crc; /* its index in the plane */
};

/**
 * @return 0; -EBADMSG: a checksum of a plane does not match, and *ret_bad is the first one. A READ
 *         has then stored nothing. A STEP may have changed the elements before it, in resident
 *         planes too, so the page must not be used afterwards
 */
int zsd_pagework_run(const struct zsd_pagework *w, struct zsd_pagework_bad *ret_bad);

#endif
