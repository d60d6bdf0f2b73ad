/*
 * rows.h - a walk over all rows of the store, over several turns.
 *
 * Rows are added and freed meanwhile, by commits and by other changes. A walk returns each row once
 * that stays, and those that are added after it. If the row that it was at is freed, it continues
 * after the one before. There may be several walks at a time.
 *
 * Loop thread only.
 */
#ifndef ZSD_ROWS_H
#define ZSD_ROWS_H

#include "daemon/store/version.h"

struct zsd_store;

/** All zero: none has begun. */
struct zsd_row_walk {
    struct zsd_store *store;
    struct zb_list *last; /* the row that was returned last, or the list */
    struct zb_list node;  /* in store->walks */
};

void zsd_row_walk_begin(struct zsd_store *store, struct zsd_row_walk *w);
/** The next row, which may have no holders any more (refs 0); NULL: there is none now. */
struct zsd_row *zsd_row_walk_next(struct zsd_row_walk *w);
/** Call before the store is closed. All zero is fine. */
void zsd_row_walk_end(struct zsd_row_walk *w);

/** Adds a row that is complete. */
void zsd_rows_add(struct zsd_store *store, struct zsd_row *row);
/** Removes it, if it was added. */
void zsd_rows_remove(struct zsd_store *store, struct zsd_row *row);

#endif
