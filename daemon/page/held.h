/*
 * held.h - results of pages that are stepped early: page/held.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_HELD_H
#define ZSD_HELD_H

#include "daemon/job/shard.h"

/* The result of EARLY for a page. */
struct zsd_held;

/** Whether this page can be stepped early: it is not frozen, and its state is streamed. Its
 * parameters must be streamed, too; or all of the shard's gradient must be in memory, with room for
 * the new parameters in that memory. */
bool zsd_page_early(const struct zsd_shard *s, uint32_t page);
/** The place of a plane's new bytes on the data file; ZB_NO_PLACE: they are in memory. */
uint64_t zsd_held_at(const struct zsd_held *held, enum zb_plane plane);
/** Frees a held result and its places on the data file. held may be NULL. */
void zsd_held_drop(struct zsd_shard *s, uint32_t page, struct zsd_held *held);

#endif
