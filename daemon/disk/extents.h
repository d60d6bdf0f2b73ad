/*
 * extents.h - places of pages on the data files, their holders, and promises of places.
 *
 * PLACES. Extents of one size are a class. A class owns `total` places, free or in use, and is
 * promised `promised` of them; total >= promised, so a job within its promise always finds one.
 * Promises change only here, with -ENOSPC when there is no room: never in the middle of a step.
 *
 * Loop thread only.
 */
#ifndef ZSD_EXTENTS_H
#define ZSD_EXTENTS_H

#include "base/map.h"
#include "base/place.h"
#include "daemon/disk/disk.h"

struct zsd_extent {
    uint64_t at; /* of the data file; ZB_NO_PLACE: not written yet */
    uint64_t generation;
    uint32_t job; /* number of the job that wrote it; in a clone, of the original */
};

/** Makes core->disk->places, without classes; they take their places from the map
 * (core->disk->maps). 0 or -ENOMEM. */
int zsd_extents_new(struct zsd_core *core);
void zsd_extents_free(struct zsd_core *core);
/** One more holder of an extent. */
void zsd_extent_ref(struct zsd_core *core, uint64_t at);
/** One holder less; without holders the place is free for its class. */
void zsd_extent_unref(struct zsd_core *core, uint64_t at, uint64_t bytes);
/** Takes a free place of that size, within a promise, so it never fails. The place is held once. */
uint64_t zsd_extent_take(struct zsd_core *core, uint64_t bytes);
/** Takes another place instead of one that is held once, on none of the data files in the set
 * `not_on` (bits), and frees that one. ZB_NO_PLACE: there is no room, and nothing was changed. */
uint64_t zsd_extent_elsewhere(struct zsd_core *core, uint64_t at, uint64_t bytes, unsigned not_on);
/** Call when the set of drained data files has changed: the classes find out again which of their
 * free places are lent last. */
void zsd_extents_sort(struct zsd_core *core);
uint32_t zsd_extent_refs(const struct zsd_core *core, uint64_t at); /* 0: free */
/** Recovery: takes a place that a row of the catalog names, and holds it once more. Another row may
 * name the same place with the same size. Promises are set after every row was read. 0; -ENOMEM;
 * -EBADMSG, with a message: not the size of a page, outside of the data file, or overlapping
 * another place. */
int zsd_extent_adopt(struct zsd_core *core, uint64_t at, uint64_t bytes, struct zb_err *err);

/*
 * A COPY of all places, as of the moment when it was begun, for fsck and df. It is made in parts,
 * over several turns: places_copy.c has the model. In each class, promised <= held + free.
 */
struct zsd_place_copy {
    uint64_t at;
    uint32_t bytes;
    uint32_t holders : 31;
    uint32_t changed : 1; /* it got or lost a holder while the copy was being made */
};
struct zsd_class_copy {
    uint64_t bytes, total, promised, nfree;
};
struct zsd_places_copy {
    struct zsd_place_copy *places; /* those with a holder; by address, once sorted */
    size_t nplaces;
    struct zsd_class_copy *classes; /* by bytes */
    uint32_t nclasses;
    struct zb_map changed; /* places that got or lost a holder, with their original values */
    /* while it is being made */
    struct zb_list node;
    size_t room;        /* allocated length of places */
    size_t slot, slots; /* of the map: the next one, and their number */
    bool failed;        /* no memory */
};
/** Copies the classes, and begins the copy of the places. 0 or -ENOMEM. */
int zsd_places_copy_begin(const struct zsd_core *core, struct zsd_places_copy *ret);
/** Copies more places: at most *left units of work, which it subtracts. True: all are copied. */
bool zsd_places_copy_part(const struct zsd_core *core, struct zsd_places_copy *c, uint64_t *left);
/** Stops recording changes: later ones do not set `changed`. 0; -ENOMEM: places are missing. */
int zsd_places_copy_end(struct zsd_places_copy *c);
/** Sorts the copy. Any thread. 0; -ENOMEM. */
int zsd_places_copy_sort(struct zsd_places_copy *c);
/** Makes a whole, sorted copy at once. 0 or -ENOMEM. */
int zsd_places_copy(const struct zsd_core *core, struct zsd_places_copy *ret);
/** Frees the copy. Loop thread. All zero is fine. */
void zsd_places_copy_done(struct zsd_places_copy *c);

/** Replaces the promise `now` with `want`. 0; -ENOSPC or -ENOMEM: *now is unchanged. A promise that
 * only shrinks never fails. `now` begins as all zero; an empty `want` ends it. */
int zsd_promise_set(struct zsd_core *core, struct zb_needs *now, const struct zb_needs *want,
                    struct zb_err *err);
/** The same, and books the promised bytes in the account: `planes` bytes by plane, the rest as
 * ring. -ENOSPC also if the account is full. */
int zsd_nvme_promise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now,
                     const struct zb_needs *want, const uint64_t planes[ZB_PLANES],
                     struct zb_err *err);
void zsd_nvme_unpromise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now);

#endif
