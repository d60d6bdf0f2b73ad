/*
 * space.h - an allocator of contiguous ranges of equal units: extents of a data file, regions of an
 * arena.
 *
 * MODEL. One bit for each unit, next-fit from where the last range ended. Nothing is stored inside
 * the space itself, so it serves memory and devices alike. One thread at a time.
 */
#ifndef ZB_SPACE_H
#define ZB_SPACE_H

#include <stdint.h>

struct zb_space;

/** A space of `units` free units (at most 2^40): 0 or -ENOMEM. */
int zb_space_new(struct zb_space **ret, uint64_t units);
void zb_space_free(struct zb_space *s);

/** Takes `count` (>= 1) units in a row: 0, or -ENOSPC when no gap is as long. */
int zb_space_take(struct zb_space *s, uint64_t count, uint64_t *ret_first);

/** Takes at most `most` (>= 1) ranges of `count` units, one after another, from the first gap: the
 * same ones as zb_space_take() would, called as many times. Returns how many; 0: no gap is as
 * long as one. */
uint64_t zb_space_take_some(struct zb_space *s, uint64_t count, uint64_t most, uint64_t *ret_first);

/** Takes exactly these units: 0; -ERANGE: not all are inside; -EBUSY: one is already taken. */
int zb_space_take_at(struct zb_space *s, uint64_t first, uint64_t count);

/** Takes all free units from `first` to the end. */
void zb_space_take_rest(struct zb_space *s, uint64_t first);

/*
 * STALE UNITS. A free unit is clean if it was given back as clean, and not taken since; the others are
 * stale. This is known from zb_space_track() on, which makes all units stale.
 */
/** 0 or -ENOMEM. Calling it again changes nothing. */
int zb_space_track(struct zb_space *s);

/** What zb_space_take_stale() takes: `least` to `most` units. The range begins and ends where
 * (unit + phase) is a multiple of `align`. It looks at 64 * `words` units, about. */
struct zb_stale {
    uint64_t align, phase, least, most, words;
};
/** Takes the first gap of stale units at or after *at, and moves *at after it. Returns its units; 0:
 * there is none before the new *at. *at is that of the end (zb_space_total_units()), and not more. */
uint64_t zb_space_take_stale(struct zb_space *s, const struct zb_stale *want, uint64_t *at,
                             uint64_t *ret_first);
/** Gives a taken range back, clean. */
void zb_space_give_clean(struct zb_space *s, uint64_t first, uint64_t count);

/** Gives a taken range back; all of it must be taken (asserted). */
void zb_space_give(struct zb_space *s, uint64_t first, uint64_t count);

uint64_t zb_space_free_units(const struct zb_space *s);
uint64_t zb_space_total_units(const struct zb_space *s);

#endif
