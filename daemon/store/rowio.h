/*
 * rowio.h - reads of pages of rows.
 */
#ifndef ZSD_ROWIO_H
#define ZSD_ROWIO_H

#include "daemon/store/version.h"

/**
 * Reads one page of one plane of a row and verifies it. The buffer is the caller's: aligned to
 * 4096, zsd_row_page_bytes() long, untouched until done.
 */
struct zsd_row_read {
    struct zsd_core *core;
    struct zsd_payer *payer; /* NULL: the house */
    struct zsd_row *row;     /* the caller holds it, or looks at it */
    enum zsd_saved_plane plane;
    uint32_t page;
    void *buf;
    void (*done)(struct zsd_row_read *r, const struct zb_err *err); /* loop thread, once */
    /* private */
    const char *who;
    struct zb_err err;
    struct zsd_pio pio;
    struct zsd_task task;
};
/** Never fails at once: done runs later. err is -EBADMSG, naming job, unit, shard and page, or what
 * the device said. `who` (a job's name) is for the sentence and lives until done. */
void zsd_row_read_start(struct zsd_row_read *r, const char *who);

#endif
