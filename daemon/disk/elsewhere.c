/*
 * elsewhere.c - free places of a class, with drained drives (drives.h): those on other drives are
 * lent first.
 *
 * MODEL. The free places of a class are a stack. A place on a drained drive that comes to the top is
 * exchanged for a range of the map, on another drive; so the drive empties as its places are used.
 * If the map has none, the place goes to the bottom: the first `nlast` of the stack are on drained
 * drives. They are lent when nothing else is left.
 */
#include <assert.h>

#include "base/array.h"
#include "base/slots.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/extents_priv.h"
#include "daemon/disk/paths.h"

#define ELSEWHERE_LOOKS 64u /* free places that are looked at for one on another drive */

uint32_t zsd_class_index(const struct zsd_extents *e, uint64_t bytes)
{
    uint32_t at;

    zb_lower_bound(at, e->n, e->classes[at].bytes < bytes);
    return at;
}

struct place_class *zsd_class_find(const struct zsd_extents *e, uint64_t bytes)
{
    uint32_t at = zsd_class_index(e, bytes);

    return at < e->n && e->classes[at].bytes == bytes ? &e->classes[at] : NULL;
}

/* Puts the last free place at the end of those that are lent last. */
static void class_put_last(struct place_class *c)
{
    uint64_t at = c->free_at[c->nfree - 1];

    c->free_at[c->nfree - 1] = c->free_at[c->nlast];
    c->free_at[c->nlast++] = at;
}

void zsd_class_push(const struct zsd_core *core, struct place_class *c, uint64_t at)
{
    c->free_at[c->nfree++] = at;
    if (zsd_path_drained(core, ZN_AT_PATH(at)))
        class_put_last(c);
}

/* Exchanges a place on a drained drive for one on another drive; ZB_NO_PLACE: there is none. */
static uint64_t place_exchange(struct zsd_core *core, uint64_t at, uint64_t bytes)
{
    uint64_t other = zsd_map_take(core, bytes);

    if (other != ZB_NO_PLACE)
        zsd_map_give(core, at, bytes);
    return other;
}

uint64_t zsd_class_pop(struct zsd_core *core, struct place_class *c)
{
    for (;;) {
        bool last = c->nfree == c->nlast;
        uint64_t at, other;

        assert(c->nfree > 0);
        at = c->free_at[c->nfree - 1];
        other = zsd_path_drained(core, ZN_AT_PATH(at)) ? place_exchange(core, at, c->bytes) : at;
        if (other == ZB_NO_PLACE && !last) {
            class_put_last(c);
            continue;
        }
        c->nfree--;
        c->nlast = zb_min_u64(c->nlast, c->nfree);
        return other != ZB_NO_PLACE ? other : at;
    }
}

void zsd_class_drained_end(struct place_class *c, uint64_t n)
{
    for (uint64_t i = c->nfree; n > 0 && c->nlast > 0 && i > c->nlast; n--, i--) {
        uint64_t at = c->free_at[--c->nlast];

        c->free_at[c->nlast] = c->free_at[i - 1];
        c->free_at[i - 1] = at;
    }
}

void zsd_extents_sort(struct zsd_core *core)
{
    const struct zsd_extents *e = core->disk->places;

    for (uint32_t i = 0; e && i < e->n; i++)
        e->classes[i].nlast = 0;
}

/* Another place of this size, taken in the map or out of the class, for which `at` is given in
 * exchange. */
static uint64_t elsewhere_find(struct zsd_core *core, struct place_class *c, uint64_t at,
                               unsigned not_on)
{
    uint64_t other = zsd_map_take_on(core, c->bytes, ~not_on), looks = 0;

    if (other != ZB_NO_PLACE) {
        zsd_map_give(core, at, c->bytes);
        return other;
    }
    for (uint64_t i = c->nfree; i > c->nlast && looks < ELSEWHERE_LOOKS; i--, looks++) {
        other = c->free_at[i - 1];
        if (not_on >> ZN_AT_PATH(other) & 1 || zsd_path_drained(core, ZN_AT_PATH(other)))
            continue;
        c->free_at[i - 1] = c->free_at[--c->nfree];
        zsd_class_push(core, c, at);
        return other;
    }
    return ZB_NO_PLACE;
}

uint64_t zsd_extent_elsewhere(struct zsd_core *core, uint64_t at, uint64_t bytes, unsigned not_on)
{
    struct zsd_extents *e = core->disk->places;
    uint32_t *v = zb_map_find(&e->held, at), value;
    uint64_t other;
    int rc;

    assert(v && HOLDERS(*v) == 1 && (*v & UNITS_MAX) == bytes / ZB_PAGE_ALIGN);
    value = *v;
    other = elsewhere_find(core, zsd_class_find(e, bytes), at, not_on | 1u << ZN_AT_PATH(at));
    if (other == ZB_NO_PLACE)
        return ZB_NO_PLACE;
    zsd_places_changes(e, at, value);
    zsd_places_moves(e, (size_t)(v - e->held.values));
    (void)zb_map_remove(&e->held, at);
    zsd_places_changes(e, other, 0);
    rc = zb_map_put(&e->held, other, value);
    assert(rc == 0); /* one was removed */
    core->disk->lines[ZN_AT_PATH(at)].drive.held_bytes -= bytes;
    core->disk->lines[ZN_AT_PATH(other)].drive.held_bytes += bytes;
    return other;
}
