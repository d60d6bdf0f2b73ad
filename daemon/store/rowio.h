/*
 * rowio.h - reads of pages of rows.
 */
#ifndef ZSD_ROWIO_H
#define ZSD_ROWIO_H

#include "daemon/store/version.h"

/** Elements of a unit in one page of one row. */
struct zsd_row_piece {
    struct zsd_row *row;
    uint32_t page;
    uint64_t from, take; /* of the page's elements */
};
/** The piece that begins at element `elem` of a unit, with at most `most` elements. The version
 * must have that element. */
struct zsd_row_piece zsd_row_piece(const struct zsd_version *v, uint32_t unit, uint64_t elem,
                                   uint64_t most);

/** Memory into which to read `bytes` of saved pages: the page buffer; or *ret_scratch, which the
 * caller frees, if these pages were saved with a larger page_elems. NULL: no memory. Scratch memory
 * is not in the host account. It is bounded all the same: its owner also holds a page buffer, and a
 * page has at most ZB_PAGE_ELEMS_MAX elements. */
void *zsd_row_room(const struct zsd_core *core, void *buffer, uint64_t bytes, void **ret_scratch);

/**
 * Reads one page of one plane of a row and verifies it. The buffer is the caller's: aligned to
 * 4096, zsd_row_page_bytes() long, untouched until done.
 */
struct zsd_row_read {
    struct zsd_core *core;
    struct zsd_payer *payer; /* NULL: the house */
    struct zsd_row *row;     /* held by the caller, or kept allocated by zsd_row_look() */
    enum zsd_saved_plane plane;
    uint32_t page;
    void *buf;
    void (*done)(struct zsd_row_read *r, const struct zb_err *err); /* loop thread, once */
    /* private */
    const char *who;
    uint64_t at; /* where it is read */
    struct zb_err err;
    struct zsd_pio pio;
    struct zsd_task task;
};
/** Starts the read. Never fails at once: done runs later. err is -EBADMSG, with job, unit, shard
 * and page, or an error of the device. `who` (a job's name) is for the message, and must be valid
 * until done. */
void zsd_row_read_start(struct zsd_row_read *r, const char *who);

#endif
