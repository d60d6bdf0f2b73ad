/*
 * slots.h - an allocator of places of equal size, for regions of a parameter arena. (Places on data
 * files: daemon/disk/extents.c.)
 *
 * MODEL. When a job is placed, all places that it can ever need are reserved, by size. So an
 * admitted job cannot fail later for lack of room, and nothing fragments. Loop thread only.
 */
#ifndef ZB_SLOTS_H
#define ZB_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

#define ZB_NO_PLACE UINT64_MAX

/** All places of one size. `tag` distinguishes classes of the same size (a rank; or 0). */
struct zb_slot_class {
    uint64_t bytes;
    uint32_t tag;
    uint32_t users; /* pages or shards that use places of this class */
    uint32_t total; /* places; set when laid out */
    uint32_t free;
    uint64_t *free_at;     /* [total]: the first `free` are the offsets of free places */
    struct zb_list cached; /* owner's list: entries that may give up their place, oldest first */
};

struct zb_slots {
    struct zb_slot_class *classes;
    uint32_t nclasses;
    size_t room;
};

/** Counts one more user of places of this size: 0 or -ENOMEM. *ret_class is its index. */
int zb_slots_count(struct zb_slots *s, uint64_t bytes, uint32_t tag, uint32_t *ret_class);
/** Makes room for a class's places; all count as taken until given: 0 or -ENOMEM. */
int zb_slots_lay(struct zb_slot_class *c, uint32_t total);
/** ZB_NO_PLACE when none is free. */
uint64_t zb_slots_take(struct zb_slot_class *c);
void zb_slots_give(struct zb_slot_class *c, uint64_t at);
void zb_slots_done(struct zb_slots *s);

#endif
