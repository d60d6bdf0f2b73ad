#include "base/map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAP_SLOTS_MIN 16u

static size_t map_home(size_t slots, uint64_t key)
{
    key ^= key >> 32;
    key *= UINT64_C(0x9e3779b97f4a7c15);
    key ^= key >> 29;
    key *= UINT64_C(0xbf58476d1ce4e5b9);
    return (size_t)(key >> 32) & (slots - 1);
}

/* The slot of the key, or the free one where it would go. There is always a free one. */
static size_t map_slot(const uint64_t *stored, size_t slots, uint64_t key)
{
    size_t i = map_home(slots, key);

    while (stored[i] != ~key && stored[i] != 0)
        i = (i + 1) & (slots - 1);
    return i;
}

static bool map_fits(size_t slots, size_t n)
{
    return n <= slots / 4 * 3;
}

int zb_map_reserve(struct zb_map *m, size_t n)
{
    size_t slots = m->slots > 0 ? m->slots : MAP_SLOTS_MIN;
    uint64_t *stored;
    uint32_t *values;

    while (!map_fits(slots, n))
        slots *= 2;
    if (slots == m->slots)
        return 0;
    stored = calloc(slots, sizeof(*stored));
    values = malloc(slots * sizeof(*values));
    if (!stored || !values) {
        free(stored);
        free(values);
        return -ENOMEM;
    }
    for (size_t i = 0; i < m->slots; i++)
        if (m->stored[i] != 0) {
            size_t to = map_slot(stored, slots, zb_map_key(m, i));

            stored[to] = m->stored[i];
            values[to] = m->values[i];
        }
    free(m->stored);
    free(m->values);
    m->stored = stored;
    m->values = values;
    m->slots = slots;
    return 0;
}

int zb_map_put(struct zb_map *m, uint64_t key, uint32_t value)
{
    uint32_t *have = zb_map_find(m, key);
    size_t i;

    assert(key != ZB_MAP_NO_KEY);
    if (have) {
        *have = value;
        return 0;
    }
    if (zb_map_reserve(m, m->n + 1) < 0)
        return -ENOMEM;
    i = map_slot(m->stored, m->slots, key);
    m->stored[i] = ~key;
    m->values[i] = value;
    m->n++;
    return 0;
}

uint32_t *zb_map_find(const struct zb_map *m, uint64_t key)
{
    size_t i;

    if (m->slots == 0)
        return NULL;
    i = map_slot(m->stored, m->slots, key);
    return m->stored[i] == ~key && key != ZB_MAP_NO_KEY ? &m->values[i] : NULL;
}

bool zb_map_remove(struct zb_map *m, uint64_t key)
{
    const uint32_t *have = zb_map_find(m, key);
    size_t hole, i;

    if (!have)
        return false;
    hole = (size_t)(have - m->values);
    /* entries whose probing passed the hole move up */
    for (i = (hole + 1) & (m->slots - 1); m->stored[i] != 0; i = (i + 1) & (m->slots - 1)) {
        size_t home = map_home(m->slots, zb_map_key(m, i));

        if (((i - home) & (m->slots - 1)) >= ((i - hole) & (m->slots - 1))) {
            m->stored[hole] = m->stored[i];
            m->values[hole] = m->values[i];
            hole = i;
        }
    }
    m->stored[hole] = 0;
    m->n--;
    return true;
}

void zb_map_done(struct zb_map *m)
{
    free(m->stored);
    free(m->values);
    *m = (struct zb_map){ 0 };
}
