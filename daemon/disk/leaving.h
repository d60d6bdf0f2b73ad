/*
 * leaving.h - what held places of pages, and lets go of them in parts.
 *
 * MODEL. Versions, rows and shards hold as many places as a job has pages. Whoever lets go of one hands
 * it in here, and in each turn some of their places go back, as many as the turn has room for. Nobody
 * misses those that are still to come: who takes a place and finds none free, or is promised some,
 * lets go of more at once.
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
