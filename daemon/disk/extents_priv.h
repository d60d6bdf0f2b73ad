/*
 * extents_priv.h - the places: shared by extents.c (holders, promises) and places_copy.c.
 */
#ifndef ZSD_EXTENTS_PRIV_H
#define ZSD_EXTENTS_PRIV_H

#include "base/map.h"
#include "daemon/disk/extents.h"

/* A value of `held`: the length of the place in units, and the number of its holders. */
#define UNITS_BITS 12u
#define UNITS_MAX  ((1u << UNITS_BITS) - 1)
#define HOLDER     (1u << UNITS_BITS)
#define HOLDERS(v) ((v) >> UNITS_BITS)

/* The longest page: state of fp16, 12 bytes an element. */
_Static_assert(ZB_PAGE_ELEMS_MAX * 12u / ZB_PAGE_ALIGN <= UNITS_MAX, "a page fits a value of held");

struct place_class {
    uint64_t bytes;
    uint64_t total, promised;
    uint64_t wanted; /* while zsd_promise_set() runs: the new `promised`, if it succeeds */
    uint64_t nfree, room;
    uint64_t *free_at; /* [room] */
    uint64_t nlast;    /* the first so many of free_at are on drained drives: lent last */
};

struct zsd_extents {
    struct zb_map held;
    struct place_class *classes; /* by bytes, ascending */
    uint32_t n;
    size_t room;
    uint64_t total;        /* places of all classes */
    struct zb_list copies; /* struct zsd_places_copy that are being made */
};

/* ---- elsewhere.c */

/** Index of the first class with places of at least this size. */
uint32_t zsd_class_index(const struct zsd_extents *e, uint64_t bytes);
/** The class of that size; NULL: there is none. */
struct place_class *zsd_class_find(const struct zsd_extents *e, uint64_t bytes);
/** Adds a free place to its class. */
void zsd_class_push(const struct zsd_core *core, struct place_class *c, uint64_t at);
/** Takes a free place out of its class, which has one. */
uint64_t zsd_class_pop(struct zsd_core *core, struct place_class *c);
/** Puts those on drained drives among the last n free places, as far as possible. */
void zsd_class_drained_end(struct place_class *c, uint64_t n);

/* ---- places_copy.c */

/** Call before a place gets or loses a holder. value: its current one in `held`; 0: none. */
void zsd_places_changes(struct zsd_extents *e, uint64_t at, uint32_t value);
/** Call before the entry in this slot of `held` is removed: the entries after it may move. */
void zsd_places_moves(struct zsd_extents *e, size_t slot);

#endif
