/*
 * places_copy.c - a copy of all places at one moment, made over several turns: see extents.h.
 *
 * MODEL. The copy walks over the hash map of places (`held`), some slots each turn. Before a place
 * gets or loses a holder for the first time since the copy was begun, its original value is put
 * into the copy's `changed`. The result consists of `changed`, and of the places that the walk saw
 * and that are not in it.
 *
 * INVARIANTS
 *     K1  The walk sees every place that does not change. For that, before a removal moves entries
 *         of the map, entries that the walk has not reached are copied; and when the map has grown,
 *         the walk starts over. It may see some places twice.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/disk/extents_priv.h"

#define SLOTS_UNIT 8u /* slots of the map per unit of work: one cache line */

static struct zsd_place_copy place_of(uint64_t at, uint32_t value, bool changed)
{
    return (struct zsd_place_copy){ .at = at,
                                    .bytes = (value & UNITS_MAX) * ZB_PAGE_ALIGN,
                                    .holders = HOLDERS(value),
                                    .changed = changed };
}

static void copy_slot(const struct zsd_extents *e, struct zsd_places_copy *c, size_t slot)
{
    uint64_t at = zb_map_key(&e->held, slot);

    if (at == ZB_MAP_NO_KEY)
        return;
    if (zb_grow(&c->places, &c->room, c->nplaces, 1) < 0)
        c->failed = true;
    else
        c->places[c->nplaces++] = place_of(at, e->held.values[slot], false);
}

void zsd_places_changes(struct zsd_extents *e, uint64_t at, uint32_t value)
{
    zb_list_each(pos, &e->copies)
    {
        struct zsd_places_copy *c = zb_container_of(pos, struct zsd_places_copy, node);

        if (!zb_map_find(&c->changed, at) && zb_map_put(&c->changed, at, value) < 0)
            c->failed = true;
    }
}

void zsd_places_moves(struct zsd_extents *e, size_t slot)
{
    const struct zb_map *m = &e->held;

    if (zb_list_empty(&e->copies))
        return;
    for (size_t i = (slot + 1) & (m->slots - 1); zb_map_key(m, i) != ZB_MAP_NO_KEY;
         i = (i + 1) & (m->slots - 1))
        zb_list_each(pos, &e->copies)
        {
            struct zsd_places_copy *c = zb_container_of(pos, struct zsd_places_copy, node);

            if (i >= c->slot) /* it may move to a slot that the walk has passed */
                copy_slot(e, c, i);
        }
}

int zsd_places_copy_begin(const struct zsd_core *core, struct zsd_places_copy *c)
{
    struct zsd_extents *e = core->disk->places;

    *c = (struct zsd_places_copy){ 0 };
    zb_list_init(&c->node);
    if (!e)
        return 0;
    c->classes = malloc(zb_max_u64(e->n, 1) * sizeof(*c->classes));
    if (!c->classes || zb_grow(&c->places, &c->room, 0, e->held.n + 1) < 0) {
        zsd_places_copy_done(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < e->n; i++)
        c->classes[c->nclasses++] = (struct zsd_class_copy){ .bytes = e->classes[i].bytes,
                                                             .total = e->classes[i].total,
                                                             .promised = e->classes[i].promised,
                                                             .nfree = e->classes[i].nfree };
    c->slots = e->held.slots;
    zb_list_push_back(&e->copies, &c->node);
    return 0;
}

bool zsd_places_copy_part(const struct zsd_core *core, struct zsd_places_copy *c, uint64_t *left)
{
    const struct zsd_extents *e = core->disk->places;

    if (!e)
        return true;
    if (c->slots != e->held.slots) { /* K1 */
        c->slots = e->held.slots;
        c->slot = c->nplaces = 0;
    }
    for (; *left > 0 && c->slot < c->slots; --*left)
        for (unsigned i = 0; i < SLOTS_UNIT && c->slot < c->slots; i++)
            copy_slot(e, c, c->slot++);
    return c->slot == c->slots;
}

int zsd_places_copy_end(struct zsd_places_copy *c)
{
    zb_list_remove(&c->node);
    return c->failed ? -ENOMEM : 0;
}

static int place_by_at(const void *a, const void *b)
{
    const struct zsd_place_copy *x = a, *y = b;

    return (x->at > y->at) - (x->at < y->at);
}

int zsd_places_copy_sort(struct zsd_places_copy *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->nplaces; i++)
        if (!zb_map_find(&c->changed, c->places[i].at))
            c->places[n++] = c->places[i];
    c->nplaces = n;
    for (size_t i = 0; i < c->changed.slots; i++) {
        uint64_t at = zb_map_key(&c->changed, i);

        if (at == ZB_MAP_NO_KEY || c->changed.values[i] == 0)
            continue;
        if (zb_grow(&c->places, &c->room, c->nplaces, 1) < 0)
            return -ENOMEM;
        c->places[c->nplaces++] = place_of(at, c->changed.values[i], true);
    }
    if (c->nplaces > 0)
        qsort(c->places, c->nplaces, sizeof(*c->places), place_by_at);
    n = 0;
    for (size_t i = 0; i < c->nplaces; i++) /* removes duplicates */
        if (n == 0 || c->places[n - 1].at != c->places[i].at)
            c->places[n++] = c->places[i];
    c->nplaces = n;
    return 0;
}

int zsd_places_copy(const struct zsd_core *core, struct zsd_places_copy *c)
{
    uint64_t left = UINT64_MAX;
    int rc = zsd_places_copy_begin(core, c);

    if (rc < 0)
        return rc;
    (void)zsd_places_copy_part(core, c, &left);
    rc = zsd_places_copy_end(c);
    if (rc == 0)
        rc = zsd_places_copy_sort(c);
    if (rc < 0)
        zsd_places_copy_done(c);
    return rc;
}

void zsd_places_copy_done(struct zsd_places_copy *c)
{
    if (c->node.next)
        zb_list_remove(&c->node);
    zb_map_done(&c->changed);
    free(c->places);
    free(c->classes);
    *c = (struct zsd_places_copy){ 0 };
}
