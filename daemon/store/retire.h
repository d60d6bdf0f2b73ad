/*
 * retire.h - moves all saved pages off one data file, so that it is no longer needed; or those beyond
 * an offset, so that it can be made shorter. Offline: no job is in memory, and the store was opened
 * with core->daemon->config.retire, or shrink, so that nothing new is placed there.
 *
 * Each step is a change of the catalog: a row names its page at the new place only when the page
 * there was flushed. So it may stop at any moment; the next run moves what is left. No byte is
 * written there.
 */
#ifndef ZSD_RETIRE_H
#define ZSD_RETIRE_H

#include "daemon/store/change.h"
#include "daemon/store/rowio.h"
#include "daemon/store/store.h"

#define ZSD_RETIRE_ROWS 256u /* of a change */

struct zsd_retire {
    struct zsd_core *core;
    unsigned path;
    uint64_t stay_bytes;   /* pages that end within so many bytes of the file stay; 0: all move */
    uint64_t pages, bytes; /* moved */
    struct zb_err err;     /* why it stopped; code 0: all are moved */
    /* its own */
    struct zb_list *at; /* the row in store->rows */
    enum zsd_saved_plane plane;
    uint32_t page;
    bool touched; /* a page of this row was moved, and is not committed */
    struct zsd_row *rows[ZSD_RETIRE_ROWS];
    unsigned nrows;
    uint64_t place; /* the new one of the page that is moved */
    void *buf;
    struct zb_needs promise;
    struct zsd_row_read read;
    struct zsd_pio write;
    struct zsd_change change;
};

/** Begins, with core and path set and the rest zero. It has ended when nothing is in progress any
 * more (zsd_core_settle()). 0; -ENOSPC with the numbers: nothing was moved; -ENOMEM. */
int zsd_retire_start(struct zsd_retire *r, struct zb_err *err);
void zsd_retire_done(struct zsd_retire *r);

#endif
