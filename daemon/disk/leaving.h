/*
 * leaving.h - frees the places of versions, rows, shards and early pages in parts.
 *
 * MODEL. A version, a row or a shard may hold as many places as a job has pages, and so may the
 * early results of a shard. When it is released it is queued here, and each turn frees some of its
 * places, as many as the turn has room for. Places that are still queued are not missing: code that
 * takes a place and finds none free, or that needs a promise, frees more of them at once.
 *
 * Loop thread only.
 */
#ifndef ZSD_LEAVING_H
#define ZSD_LEAVING_H

#include "daemon/run/turn.h"

struct zsd_leaving {
    struct zb_list node;
    /* Releases some places, and decreases *left by the number of places that it checked, but not
     * below 0. True: these were all, and the struct is freed. *left is above 0. */
    bool (*part)(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left);
};

void zsd_leaving_init(struct zsd_core *core);
/** Queues it: its places are released from the next turn on. */
void zsd_leave(struct zsd_core *core, struct zsd_leaving *l,
               bool (*part)(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left));
/** Releases n places now; false: the queue was empty. */
bool zsd_leaving_some(struct zsd_core *core, uint64_t n);
/** Releases all of them now: before everything is counted, and at the end. */
void zsd_leaving_all(struct zsd_core *core);

#endif
