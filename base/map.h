/*
 * map.h - a hash map from 64-bit keys to 32-bit values: counters of places, sets of ids.
 *
 * MODEL. Open addressing, linear probing, at most three quarters full. A removal moves later
 * entries up, so there are no tombstones, and an old map is as fast as a new one. It takes 16 to 32
 * bytes per entry. Keys are mixed, so that multiples of large powers of two do not collide. Memory
 * that no entry has used yet is not touched, so making room for many entries takes no time. One
 * thread at a time.
 */
#ifndef ZB_MAP_H
#define ZB_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_MAP_NO_KEY UINT64_MAX /* the one key that no entry can have */

/** All zeros is an empty map. */
struct zb_map {
    uint64_t *stored; /* complements of the keys: 0 is a free slot, zb_map_key() */
    uint32_t *values;
    size_t slots; /* 0, or a power of two */
    size_t n;
};

/** The key in a slot; ZB_MAP_NO_KEY: the slot is free. */
static inline uint64_t zb_map_key(const struct zb_map *m, size_t slot)
{
    return ~m->stored[slot];
}

/** Makes room for n entries in all, so that adding up to n cannot fail. 0; -ENOMEM: nothing has
 * changed. */
int zb_map_reserve(struct zb_map *m, size_t n);

/** Adds or replaces: 0 or -ENOMEM. */
int zb_map_put(struct zb_map *m, uint64_t key, uint32_t value);

/** The value, to read or change; valid until the next put or remove. NULL: no such key. */
uint32_t *zb_map_find(const struct zb_map *m, uint64_t key);

/** False: no such key. */
bool zb_map_remove(struct zb_map *m, uint64_t key);

void zb_map_done(struct zb_map *m);

#endif
