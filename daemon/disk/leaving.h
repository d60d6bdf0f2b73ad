/*
 * leaving.h - frees the places of versions, rows and shards in parts.
 *
 * MODEL. A version, a row or a shard may hold as many places as a job has pages. When it is released it
 * is queued here, and each turn frees some of its places, as many as the turn has room for. Places that
 * are still queued are not missing: code that takes a place and finds none free, or that needs a
 * promise, frees more of them at once.
 *
 * Loop thread only.
 */
#ifndef ZSD_LEAVING_H
#define ZSD_LEAVING_H

#include "daemon/run/turn.h"

struct zsd_leaving {
    struct zb_list node;
    /* Lets go of some, and counts *left down by what it looked at, to 0 at the least; true: that was
     * all, and the struct is gone. *left is above 0. */
    bool (*part)(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left);
};

void zsd_leaving_init(struct zsd_core *core);
/** Lets go of it from the next turn on. */
void zsd_leave(struct zsd_core *core, struct zsd_leaving *l,
               bool (*part)(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left));
/** Lets go of so many now; false: there was nothing. */
bool zsd_leaving_some(struct zsd_core *core, uint64_t n);
/** Lets go of all of it now: before everything is counted, and at the end. */
void zsd_leaving_all(struct zsd_core *core);

#endif
