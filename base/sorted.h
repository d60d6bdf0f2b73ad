/*
 * sorted.h - values sorted by key, added and removed one at a time in any order.
 *
 * MODEL. Values are in chunks of at most ZB_SORTED_CHUNK, and chunks are in an array sorted by key.
 * So an insertion or a removal moves a part of one chunk, not half of all values: n insertions, in
 * any order, cost about n searches. A full chunk is split in two.
 *
 * Positions are valid until the next change.
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

/** The position of the first value with this key or a greater one. */
struct zb_sorted_pos zb_sorted_at(const struct zb_sorted *s, uint64_t key);
/** The value at a position; NULL: past the end. */
void *zb_sorted_get(const struct zb_sorted *s, struct zb_sorted_pos at);
/** The value before a position; NULL: `at` is the first. */
void *zb_sorted_before(const struct zb_sorted *s, struct zb_sorted_pos at);
struct zb_sorted_pos zb_sorted_next(const struct zb_sorted *s, struct zb_sorted_pos at);
/** Loops over all values by key; `pos` is declared by it. Nothing may be added or removed meanwhile. */
#define zb_sorted_each(value, pos, s)                                                              \
    for (struct zb_sorted_pos pos = zb_sorted_at(s, 0); ((value) = zb_sorted_get(s, pos)) != NULL; \
         pos = zb_sorted_next(s, pos))

/** 0; -ENOMEM; -EEXIST: the key is taken. */
int zb_sorted_put(struct zb_sorted *s, uint64_t key, void *value);
/** The removed value; NULL: no such key. */
void *zb_sorted_remove(struct zb_sorted *s, uint64_t key);
void zb_sorted_done(struct zb_sorted *s);

#endif
