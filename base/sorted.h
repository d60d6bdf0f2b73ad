/*
 * sorted.h - values by ascending keys, added and removed one at a time in any order.
 *
 * MODEL. The values are in chunks of at most ZB_SORTED_CHUNK, and the chunks in a list by key. So
 * adding or removing one moves a part of one chunk, and not half of all values: n of them, in
 * whatever order, cost n searches. A chunk that is full becomes two.
 *
 * Positions are good until the next change.
 */
#ifndef ZB_SORTED_H
#define ZB_SORTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_SORTED_CHUNK 128u

struct zb_sorted_item {
    uint64_t key;
    void *value;
};

struct zb_sorted_chunk {
    uint32_t n; /* never 0 */
    struct zb_sorted_item items[ZB_SORTED_CHUNK];
};

struct zb_sorted {
    struct zb_sorted_chunk **chunks;
    size_t nchunks, room;
    size_t n; /* values */
};

struct zb_sorted_pos {
    size_t chunk;
    uint32_t item;
};

/** The first value whose key is not below. */
struct zb_sorted_pos zb_sorted_at(const struct zb_sorted *s, uint64_t key);
/** The value there; NULL: after the last one. */
void *zb_sorted_get(const struct zb_sorted *s, struct zb_sorted_pos at);
/** The value before, or NULL: it is the first. */
void *zb_sorted_before(const struct zb_sorted *s, struct zb_sorted_pos at);
struct zb_sorted_pos zb_sorted_next(const struct zb_sorted *s, struct zb_sorted_pos at);
/** 0; -ENOMEM; -EEXIST: there is one with this key. */
int zb_sorted_put(struct zb_sorted *s, uint64_t key, void *value);
/** The value, or NULL: there is none with this key. */
void *zb_sorted_remove(struct zb_sorted *s, uint64_t key);
void zb_sorted_done(struct zb_sorted *s);

#endif
