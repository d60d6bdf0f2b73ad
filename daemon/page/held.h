/*
 * held.h - what a page that is stepped early is held in: page/held.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_HELD_H
#define ZSD_HELD_H

#include "daemon/job/shard.h"

/* What EARLY leaves of a page. */
struct zsd_held;

/** May this page be stepped early: its state is streamed, and its parameters are, too, or have a
 * place aside: where its gradient is, in memory as all of its shard's. */
bool zsd_page_early(const struct zsd_shard *s, uint32_t page);
/** Where a plane is in it; ZB_NO_PLACE: in memory. */
uint64_t zsd_held_at(const struct zsd_held *held, enum zb_plane plane);
/** Gives its places back. NULL is fine. */
void zsd_held_drop(struct zsd_shard *s, uint32_t page, struct zsd_held *held);

#endif
