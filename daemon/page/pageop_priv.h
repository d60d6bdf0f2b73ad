/*
 * pageop_priv.h - one page operation, as shared by pageop.c (its states), pageplan.c (its actions
 * for each plane) and held.c (results of early steps).
 */
#ifndef ZSD_PAGEOP_PRIV_H
#define ZSD_PAGEOP_PRIV_H

#include "daemon/page/pageop.h"
#include "daemon/run/gpu_tier.h"

enum zsd_page_state {
    PAGE_BUFFER,
    PAGE_READ,
    PAGE_READ_WAIT,
    PAGE_CHECK,
    PAGE_DEVICE,
    PAGE_COMPUTE,
    PAGE_HOLD,
    PAGE_STORE,
    PAGE_WRITE,
    PAGE_SETTLE
};

/* A page has at most this many checksums: one for each block. */
#define ZSD_PAGE_CRCS_MAX (ZB_PAGE_ELEMS_MAX / ZB_BLOCK_ELEMS)

static const enum zb_plane zsd_page_planes[] = {
    [ZSD_WORK_PARAM] = ZB_PARAM,
    [ZSD_WORK_STATE] = ZB_STATE,
    [ZSD_WORK_GRAD] = ZB_GRAD,
};
#define ZSD_HELD_PLANES 2 /* the first of these planes: those that a step changes */

struct zsd_page_io {
    struct zsd_pio pio;
    struct zsd_pageop *op;
    enum zb_plane plane;
    bool streamed, read, changed, written; /* actions on the plane */
    bool taken;                            /* PUBLISH: EARLY has written the fresh extent */
    bool leaves, comes; /* STEP: state that moves to or from the data file (plan/replan.c) */
    bool passes;        /* its bytes are in the page buffer during the operation */
    bool copied;        /* a copy in the page buffer is sealed and written: P6 */
    bool failed;        /* the page is in memory, and its write failed: that alone is no error */
    bool absent;        /* a gradient to read that nobody has pushed: zeros */
    unsigned tried;     /* data files on which the write of the fresh page has failed, as bits */
    uint8_t *copy;      /* address of that copy, from zsd_page_locate() on; NULL: no copy */
    struct zsd_extent fresh;
    uint32_t crcs[ZSD_PAGE_CRCS_MAX]; /* of the fresh page */
};

struct zsd_held {
    struct zsd_extent fresh[ZSD_HELD_PLANES]; /* of the planes that are streamed */
    uint32_t crcs[];                          /* of these planes, one after the other */
};

struct zsd_pageop {
    struct zsd_page_spec spec;
    enum zsd_page_state state; /* written by page_run() only */
    enum zsd_stage stage;      /* for zctl top */
    uint64_t began_ns, compute_ns;
    struct zb_err err; /* the first failure */
    struct zsd_work work;
    struct zsd_task task;
    struct zsd_pagework pagework;
    struct zsd_gpu_work gpu;
    bool on_gpu, to_gpu; /* its state is on the GPU before, and after, the operation */
    bool there;          /* it is stepped on the GPU */
    void *param_there;   /* its parameters on the GPU; NULL: they are not there */
    int work_rc;
    struct zsd_pagework_bad bad;
    struct zsd_claim claim;
    void *buffer;
    struct zk_page page;
    uint8_t *param; /* EARLY, PUBLISH: resident parameters; NULL: they are streamed */
    uint8_t *aside; /* EARLY, PUBLISH: the new resident parameters, in the gradient's memory */
    unsigned ios_left;
    struct zsd_page_io io[ZSD_WORK_PLANES];
};

static inline struct zsd_plane *zsd_page_plane(const struct zsd_pageop *op, enum zb_plane plane)
{
    return &op->spec.shard->planes[plane];
}

/* ---- pageplan.c */

/** Fills io[], on_gpu, to_gpu, there and param_there from the spec. Changes nothing else. True: the
 * bytes of the shard will differ from its saved row. */
bool zsd_pageplan(struct zsd_pageop *op);
/** Whether this kind of operation reads the plane's bytes, wherever they are. */
bool zsd_page_wants(const struct zsd_pageop *op, enum zb_plane plane);
/** Whether any plane is read, or written. */
bool zsd_page_any(const struct zsd_pageop *op, bool written);
/** Whether a plane on the GPU is copied to the host before COMPUTE; or back after it. */
bool zsd_plane_comes_down(const struct zsd_pageop *op, const struct zsd_page_io *io);
bool zsd_plane_goes_up(const struct zsd_pageop *op, const struct zsd_page_io *io);
/** The same for any plane of the page. */
bool zsd_page_comes_down(const struct zsd_pageop *op);
bool zsd_page_goes_up(const struct zsd_pageop *op);
bool zsd_page_needs_buffer(const struct zsd_pageop *op);
/** Whether the compute thread has nothing to do. */
bool zsd_page_publishes_nothing(const struct zsd_pageop *op);
/** Sets the addresses of all planes, once the operation has the page buffer that it may need. */
void zsd_page_locate(struct zsd_pageop *op);

/* ---- held.c */

/** An empty result of EARLY. NULL: no memory. */
struct zsd_held *zsd_held_new(const struct zsd_shard *s, uint32_t page);
/** The checksums of a streamed plane in spec.held. */
uint32_t *zsd_held_crcs(struct zsd_pageop *op, const struct zsd_page_io *io);

#endif
