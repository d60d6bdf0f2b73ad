/*
 * sharers.h - the rows that may share pages: those of one shard, in all versions of all saved jobs.
 *
 * A page that no step has written in between is in the rows of several versions, with one place
 * (op/commit.c); so are all pages of a clone. Rows share pages only if they are of the same shard: its
 * identity is in the checksums.
 *
 * Loop thread only.
 */
#ifndef ZSD_SHARERS_H
#define ZSD_SHARERS_H

#include "daemon/store/saved.h"

/** Begins as all zero. */
struct zsd_sharers {
    const struct zsd_row *of;
    struct zsd_row **rows; /* each one once, looked at (version.h) */
    size_t n, room;
};

/** Finds the rows in the catalog that may share pages with this one, itself among them, in place of
 * what was found before. Takes time for each version of the store. 0 or -ENOMEM. */
int zsd_sharers_find(struct zsd_store *store, const struct zsd_row *row, struct zsd_sharers *s);
/** How many of them have this place for this page. */
uint32_t zsd_sharers_holders(const struct zsd_sharers *s, enum zsd_saved_plane plane, uint32_t page,
                             uint64_t at);
/** Forgets what was found; keeps the memory for the next ones. */
void zsd_sharers_forget(struct zsd_sharers *s);
void zsd_sharers_done(struct zsd_sharers *s);

static inline bool zsd_row_page_is_at(const struct zsd_row *r, enum zsd_saved_plane plane,
                                      uint32_t page, uint64_t at)
{
    return r->planes[plane].block_bytes > 0 && page < r->npages &&
           r->planes[plane].extents[page].at == at;
}

#endif
