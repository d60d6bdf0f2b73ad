/*
 * extents.c - places of pages on the data files: see extents.h.
 *
 * MODEL. The map (paths.h) records which bytes are taken. A class owns places of one size, which it
 * took from the map, and lends them. `held` counts the holders of each place that is lent.
 *
 *     free in the map <---> free in a class <---> held, by one or more
 *
 * INVARIANTS
 *     E1  total = free + held, of each class. Every place of a class is taken in the map.
 *     E2  total >= promised. total > promised only while places are held without a promise (during
 *         recovery; or if a promise shrank before its pages were freed). Then a place returns to
 *         the map at once when its last holder releases it.
 *     E3  There is room in free_at and in `held` for all places of all classes, so lending a place
 *         and returning it needs no memory.
 *     E4  A place on an absent data file counts as promised while it is held, so that no promise
 *         relies on it; it is never lent again.
 *     E5  A free place on a drained drive (drives.h) is lent only if there is no other one, and the
 *         map has no room on other drives: elsewhere.c.
 */
#include "daemon/disk/extents.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/slots.h"
#include "daemon/disk/extents_priv.h"
#include "daemon/disk/leaving.h"
#include "daemon/disk/paths.h"

#define TAKE_LEAVES 64u /* leaving places that are freed at a time, until there is a free place */

int zsd_extents_new(struct zsd_core *core)
{
    core->disk->places = calloc(1, sizeof(*core->disk->places));
    if (!core->disk->places)
        return -ENOMEM;
    zb_list_init(&core->disk->places->copies);
    return 0;
}

void zsd_extents_free(struct zsd_core *core)
{
    struct zsd_extents *e = core->disk->places;

    if (!e)
        return;
    for (uint32_t i = 0; i < e->n; i++)
        free(e->classes[i].free_at);
    free(e->classes);
    zb_map_done(&e->held);
    free(e);
    core->disk->places = NULL;
}

/* ---- classes */

/* The class of that size, made if there is none; NULL: no memory. */
static struct place_class *class_get(struct zsd_extents *e, uint64_t bytes)
{
    uint32_t i = zsd_class_index(e, bytes);

    if (i < e->n && e->classes[i].bytes == bytes)
        return &e->classes[i];
    if (zb_grow(&e->classes, &e->room, e->n, 1) < 0)
        return NULL;
    memmove(e->classes + i + 1, e->classes + i, (e->n - i) * sizeof(*e->classes));
    e->classes[i] = (struct place_class){ .bytes = bytes };
    e->n++;
    return &e->classes[i];
}

static int class_reserve(struct place_class *c, uint64_t total)
{
    uint64_t room = zb_max_u64(total, zb_min_u64(2 * c->room, total + 4096));
    void *grown;

    if (total <= c->room)
        return 0;
    grown = realloc(c->free_at, room * sizeof(*c->free_at));
    if (!grown)
        return -ENOMEM;
    c->free_at = grown;
    c->room = room;
    return 0;
}

/* ---- holders */

void zsd_extent_ref(struct zsd_core *core, uint64_t at)
{
    uint32_t *v = zb_map_find(&core->disk->places->held, at);

    assert(v && HOLDERS(*v) < HOLDERS(UINT32_MAX));
    zsd_places_changes(core->disk->places, at, *v);
    *v += HOLDER;
}

void zsd_extent_unref(struct zsd_core *core, uint64_t at, uint64_t bytes)
{
    struct zsd_extents *e = core->disk->places;
    uint32_t *v = zb_map_find(&e->held, at);
    struct place_class *c = zsd_class_find(e, bytes);

    assert(v && c && (*v & UNITS_MAX) == bytes / ZB_PAGE_ALIGN);
    zsd_places_changes(e, at, *v);
    *v -= HOLDER;
    if (HOLDERS(*v) > 0)
        return;
    if (zsd_place_lost(core->daemon, at))
        c->promised--; /* E4: so it goes to the map */
    zsd_places_moves(e, (size_t)(v - e->held.values));
    (void)zb_map_remove(&e->held, at);
    core->disk->lines[ZN_AT_PATH(at)].drive.held_bytes -= bytes;
    if (c->total > c->promised) { /* E2 */
        zsd_map_give(core, at, bytes);
        c->total--;
        e->total--;
    } else {
        zsd_class_push(core, c, at);
    }
}

uint64_t zsd_extent_take(struct zsd_core *core, uint64_t bytes)
{
    struct zsd_extents *e = core->disk->places;
    struct place_class *c = zsd_class_find(e, bytes);
    uint64_t at;
    int rc;

    assert(c);
    while (c->nfree == 0 && zsd_leaving_some(core, TAKE_LEAVES))
        ;
    assert(c->nfree > 0); /* callers stay within their promise */
    at = zsd_class_pop(core, c);
    zsd_places_changes(e, at, 0);
    rc = zb_map_put(&e->held, at, HOLDER | (uint32_t)(bytes / ZB_PAGE_ALIGN));
    assert(rc == 0); /* E3 */
    core->disk->lines[ZN_AT_PATH(at)].drive.held_bytes += bytes;
    return at;
}

uint32_t zsd_extent_refs(const struct zsd_core *core, uint64_t at)
{
    const uint32_t *v = zb_map_find(&core->disk->places->held, at);

    return v ? HOLDERS(*v) : 0;
}

int zsd_extent_adopt(struct zsd_core *core, uint64_t at, uint64_t bytes, struct zb_err *err)
{
    struct zsd_extents *e = core->disk->places;
    uint32_t *v;
    struct place_class *c;
    int rc;

    if (!e)
        return zb_fail(err, -EBADMSG, "a page at %#llx, and there is no data file",
                       (unsigned long long)at);
    if (bytes == 0 || bytes % ZB_PAGE_ALIGN != 0 || bytes / ZB_PAGE_ALIGN > UNITS_MAX)
        return zb_fail(err, -EBADMSG, "a page of %llu bytes at %#llx: no page is as long",
                       (unsigned long long)bytes, (unsigned long long)at);
    v = zb_map_find(&e->held, at);
    if (v) {
        if ((*v & UNITS_MAX) != bytes / ZB_PAGE_ALIGN || HOLDERS(*v) == HOLDERS(UINT32_MAX))
            return zb_fail(err, -EBADMSG,
                           "a page of %llu bytes at %#llx, where another one has %llu",
                           (unsigned long long)bytes, (unsigned long long)at,
                           (unsigned long long)(*v & UNITS_MAX) * ZB_PAGE_ALIGN);
        *v += HOLDER;
        return 0;
    }
    c = class_get(e, bytes);
    rc = c ? class_reserve(c, c->total + 1) : -ENOMEM;
    if (rc == 0)
        rc = zb_map_reserve(&e->held, e->total + 1);
    if (rc < 0)
        return zb_fail(err, rc, "places of pages: %m");
    rc = zsd_map_take_at(core, at, bytes);
    if (rc < 0)
        return zb_fail(err, -EBADMSG, "a page of %llu bytes at %#llx %s", (unsigned long long)bytes,
                       (unsigned long long)at,
                       rc == -EBUSY ? "overlaps another one" : "is outside of the data file");
    c->total++;
    c->promised += zsd_place_lost(core->daemon, at); /* E4 */
    e->total++;
    rc = zb_map_put(&e->held, at, HOLDER | (uint32_t)(bytes / ZB_PAGE_ALIGN));
    assert(rc == 0);
    core->disk->lines[ZN_AT_PATH(at)].drive.held_bytes += bytes;
    return 0;
}

/* ---- promises */

/* Allocates all memory that the change can need (E3), and computes `wanted` of each class. */
static int promise_prepare(struct zsd_extents *e, struct zb_needs *now, const struct zb_needs *want)
{
    uint64_t total = e->total;
    int rc = zb_needs_reserve(now, want->n);

    for (uint32_t i = 0; i < want->n && rc == 0; i++)
        if (!class_get(e, want->needs[i].bytes))
            rc = -ENOMEM;
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < e->n; i++)
        e->classes[i].wanted = e->classes[i].promised;
    for (uint32_t i = 0; i < want->n; i++)
        zsd_class_find(e, want->needs[i].bytes)->wanted += want->needs[i].count;
    for (uint32_t i = 0; i < now->n; i++) {
        struct place_class *c = zsd_class_find(e, now->needs[i].bytes);

        assert(c && c->promised >= now->needs[i].count);
        c->wanted -= now->needs[i].count;
    }
    for (uint32_t i = 0; i < e->n && rc == 0; i++) {
        struct place_class *c = &e->classes[i];

        if (c->wanted > c->total) {
            rc = class_reserve(c, c->wanted);
            total += c->wanted - c->total;
        }
    }
    return rc < 0 ? rc : zb_map_reserve(&e->held, total);
}

/* Number of free places that a class owns in excess of `wanted`. */
static uint64_t class_surplus(const struct place_class *c)
{
    return c->total > c->wanted ? zb_min_u64(c->nfree, c->total - c->wanted) : 0;
}

static uint64_t class_lacks(const struct place_class *c)
{
    return c->wanted > c->total ? c->wanted - c->total : 0;
}

/* Returns n free places of a class to the map, first those on drained drives. */
static void class_give(struct zsd_core *core, struct place_class *c, uint64_t n)
{
    zsd_class_drained_end(c, n);
    c->nfree -= n;
    c->nlast = zb_min_u64(c->nlast, c->nfree);
    c->total -= n;
    core->disk->places->total -= n;
    zsd_map_give_many(core, c->bytes, n, c->free_at + c->nfree);
}

/* Returns surplus free places to the map, because another class may need their bytes. Their
 * addresses stay in free_at after nfree, for promise_undo(). */
static void promise_give(struct zsd_core *core)
{
    struct zsd_extents *e = core->disk->places;

    for (uint32_t i = 0; i < e->n; i++) {
        struct place_class *c = &e->classes[i];

        class_give(core, c, class_surplus(c));
    }
}

/* Reverts: returns the places that were taken, and takes back those that were given. */
static void promise_undo(struct zsd_core *core, const struct place_class *before)
{
    struct zsd_extents *e = core->disk->places;

    for (uint32_t i = 0; i < e->n; i++)
        if (e->classes[i].nfree > before[i].nfree)
            class_give(core, &e->classes[i], e->classes[i].nfree - before[i].nfree);
    for (uint32_t i = 0; i < e->n; i++)
        for (struct place_class *c = &e->classes[i]; c->nfree < before[i].nfree;) {
            int rc = zsd_map_take_at(core, c->free_at[c->nfree++], c->bytes);

            assert(rc == 0);
            c->total++;
            e->total++;
        }
}

/* What is free on drained drives, for messages; "": nothing is. */
struct drained_text {
    char s[64];
};

static struct drained_text drained_text(const struct zsd_core *core)
{
    uint64_t bytes = zsd_map_drained_bytes(core);
    struct drained_text t = { "" };

    if (bytes > 0)
        (void)snprintf(t.s, sizeof(t.s), " (and %s on drained drives)", zb_size_text(bytes).s);
    return t;
}

/* Takes the places that the classes lack, the longest first, because short ones fit into gaps that
 * are too small for long ones. 0 or -ENOSPC. */
static int promise_take(struct zsd_core *core, struct zb_err *err)
{
    struct zsd_extents *e = core->disk->places;
    uint64_t lacks = 0, left = zsd_map_free_bytes(core);
    uint64_t least = core->daemon->engine_base;

    for (uint32_t i = 0; i < e->n; i++)
        lacks += class_lacks(&e->classes[i]) * e->classes[i].bytes;
    least += zsd_map_total_bytes(core);
    if (lacks > left)
        return zb_fail(
            err, -ENOSPC,
            "%s more of NVMe are needed, and %s are free%s; the smallest nvme_bytes that "
            "would work is %llu",
            zb_size_text(lacks).s, zb_size_text(left).s, drained_text(core).s,
            (unsigned long long)(least + lacks - left));
    for (uint32_t i = e->n; i-- > 0;) {
        struct place_class *c = &e->classes[i];
        uint64_t want = class_lacks(c);
        uint64_t took = zsd_map_take_many(core, c->bytes, want, c->free_at + c->nfree);

        c->nfree += took;
        c->total += took;
        e->total += took;
        if (took < want)
            return zb_fail(err, -ENOSPC,
                           "%s more of NVMe are needed, and %s are free, but in pieces: no "
                           "place of %s for a page is left",
                           zb_size_text(lacks).s, zb_size_text(left).s, zb_size_text(c->bytes).s);
    }
    return 0;
}

static int promise_set(struct zsd_core *core, struct zb_needs *now, const struct zb_needs *want,
                       struct zb_err *err)
{
    struct zsd_extents *e = core->disk->places;
    struct place_class *before = NULL;
    bool grows = false;
    int rc;

    if (!e)
        return want->n == 0 ? 0
                            : zb_fail(err, -ENOSPC, "%s of NVMe are needed, and there is none",
                                      zb_size_text(zb_needs_bytes(want)).s);
    rc = promise_prepare(e, now, want);
    for (uint32_t i = 0; i < e->n && rc == 0; i++)
        grows |= class_lacks(&e->classes[i]) > 0;
    if (grows) {
        before = malloc(e->n * sizeof(*before));
        if (before)
            memcpy(before, e->classes, e->n * sizeof(*before));
        else
            rc = -ENOMEM;
    }
    if (rc < 0)
        return zb_fail(err, rc, "places of pages: %m");
    promise_give(core);
    if (grows) {
        rc = promise_take(core, err);
        if (rc < 0)
            promise_undo(core, before);
        free(before);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < e->n; i++)
        e->classes[i].promised = e->classes[i].wanted;
    if (want->n > 0)
        memmove(now->needs, want->needs, want->n * sizeof(*now->needs));
    now->n = want->n;
    return 0;
}

int zsd_promise_set(struct zsd_core *core, struct zb_needs *now, const struct zb_needs *want,
                    struct zb_err *err)
{
    struct zb_err why = { 0 };
    int rc = promise_set(core, now, want, &why);

    if (rc == -ENOSPC && !zb_list_empty(&core->disk->leaving)) {
        zsd_leaving_all(core);
        why = (struct zb_err){ 0 };
        rc = promise_set(core, now, want, &why);
    }
    return rc < 0 ? zb_fail(err, rc, "%s", why.text) : 0;
}

/* ---- promises, booked in the account */

int zsd_nvme_promise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now,
                     const struct zb_needs *want, const uint64_t planes[ZB_PLANES],
                     struct zb_err *err)
{
    uint64_t all = planes[ZB_PARAM] + planes[ZB_GRAD] + planes[ZB_STATE];
    uint64_t has = zb_needs_bytes(now), needs = zb_needs_bytes(want);
    int rc;

    assert(all <= needs);
    if (needs > has && needs - has > zsd_account_free(&core->tiers.nvme))
        return zb_fail(err, -ENOSPC, "%s of NVMe are needed, and %s are free%s",
                       zb_size_text(needs - has).s,
                       zb_size_text(zsd_account_free(&core->tiers.nvme)).s, drained_text(core).s);
    rc = zsd_promise_set(core, now, want, err);
    if (rc < 0)
        return rc;
    for (int use = 0; use < ZSD_USES; use++) {
        uint64_t bytes = use == ZSD_USE_PARAM   ? planes[ZB_PARAM]
                         : use == ZSD_USE_GRAD  ? planes[ZB_GRAD]
                         : use == ZSD_USE_STATE ? planes[ZB_STATE]
                         : use == ZSD_USE_RING  ? needs - all
                                                : 0;

        zsd_unbook(&core->tiers.nvme, held, use, held->used[use]);
        zsd_book(&core->tiers.nvme, held, use, bytes);
    }
    return 0;
}

void zsd_nvme_unpromise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now)
{
    const struct zb_needs none = { 0 };
    const uint64_t planes[ZB_PLANES] = { 0 };

    (void)zsd_nvme_promise(core, held, now, &none, planes, NULL); /* it shrinks: never fails */
    zb_needs_done(now);
}
