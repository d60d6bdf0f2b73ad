/*
 * version.c - versions and rows, and their holders: see version.h. op/commit.c and recover.c make
 * rows.
 */
#include "daemon/store/version.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/array.h"
#include "base/slots.h"
#include "daemon/store/rows.h"
#include "daemon/store/store.h"

#define ROW_NOW 16u /* the places of a row with at most so many pages are freed at once */

/* ---- rows */

struct zsd_row *zsd_row_new(uint32_t unit, const struct zb_layout *layout, uint64_t first,
                            uint64_t count, uint32_t page_elems)
{
    struct zsd_row *r = calloc(1, sizeof(*r));
    bool whole = r != NULL;

    if (!r)
        return NULL;
    r->refs = 1;
    zb_list_init(&r->node);
    r->unit = unit;
    r->first = first;
    r->count = count;
    r->page_elems = page_elems;
    r->npages = (uint32_t)zb_div_up(count, page_elems);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r->planes[p];

        plane->block_bytes = layout->block_bytes[zsd_plane_of(p)];
        plane->crc_bytes = layout->crc_bytes[zsd_plane_of(p)];
        if (plane->block_bytes == 0)
            continue;
        plane->crcs_per_page =
            zn_crc_count((uint32_t)zb_page_bytes(plane->block_bytes, page_elems), plane->crc_bytes);
        plane->extents = malloc(r->npages * sizeof(*plane->extents));
        plane->crcs = calloc((size_t)r->npages * plane->crcs_per_page, sizeof(*plane->crcs));
        whole = whole && plane->extents && plane->crcs;
        for (uint32_t i = 0; plane->extents && i < r->npages; i++)
            plane->extents[i] = (struct zsd_extent){ .at = ZB_NO_PLACE };
    }
    if (!whole)
        zsd_row_unref(NULL, r);
    return whole ? r : NULL;
}

struct zsd_row *zsd_row_ref(struct zsd_row *r)
{
    r->refs++;
    return r;
}

/* Frees the places of the row's next pages. True: all are freed. */
static bool row_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct zsd_row *r = zb_container_of(l, struct zsd_row, leaving);
    uint32_t from = r->let_go, to = from + (uint32_t)zb_min_u64(*left, r->npages - from);

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r->planes[p];

        for (uint32_t i = from; plane->extents && i < to; i++)
            if (plane->extents[i].at != ZB_NO_PLACE)
                zsd_extent_unref(core, plane->extents[i].at, zsd_row_page_bytes(r, p, i));
    }
    *left -= to - from;
    r->let_go = to;
    if (to < r->npages)
        return false;
    if (core && core->store)
        zsd_rows_remove(core->store, r);
    r->gone = true;
    if (r->looks == 0)
        zsd_row_free(r);
    return true;
}

void zsd_row_unref(struct zsd_core *core, struct zsd_row *r)
{
    uint64_t all = UINT64_MAX;

    if (--r->refs > 0)
        return;
    if (core && r->npages > ROW_NOW)
        zsd_leave(core, &r->leaving, row_part);
    else
        (void)row_part(core, &r->leaving, &all);
}

uint64_t zsd_row_plane_bytes(const struct zsd_row *r, enum zsd_saved_plane plane)
{
    return zb_plane_bytes(r->planes[plane].block_bytes, r->page_elems, r->count);
}

uint64_t zsd_row_bytes(const struct zsd_row *r)
{
    return zsd_row_plane_bytes(r, ZSD_SAVED_PARAM) + zsd_row_plane_bytes(r, ZSD_SAVED_STATE);
}

void zsd_row_free(struct zsd_row *r)
{
    assert(r->refs == 0 && r->looks == 0);
    for (int p = 0; p < ZSD_SAVED_PLANES; p++) {
        free(r->planes[p].extents);
        free(r->planes[p].crcs);
    }
    free(r);
}

void zsd_row_look(struct zsd_row *r)
{
    assert(r->refs > 0);
    r->looks++;
}

void zsd_row_look_away(struct zsd_row *r)
{
    assert(r->looks > 0);
    if (--r->looks == 0 && r->gone)
        zsd_row_free(r);
}

int zsd_row_needs(struct zb_needs *p, const struct zsd_row *r, uint64_t times)
{
    int rc = 0;

    for (enum zsd_saved_plane plane = 0; plane < ZSD_SAVED_PLANES; plane++) {
        uint32_t bytes = r->planes[plane].block_bytes;
        uint64_t tail = zsd_row_page_elems(r, r->npages - 1);
        uint32_t full = r->npages - (tail < r->page_elems);

        if (bytes == 0 || times == 0)
            continue;
        if (rc == 0 && full > 0)
            rc = zb_needs_add(p, zb_page_bytes(bytes, r->page_elems), full * times);
        if (rc == 0 && full < r->npages)
            rc = zb_needs_add(p, zb_page_bytes(bytes, tail), times);
    }
    return rc;
}

/* ---- versions */

struct zsd_version *zsd_version_new(struct zsd_saved *saved, uint32_t world, uint32_t nrows)
{
    struct zsd_version *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->core = saved->store->core;
    v->saved = saved;
    v->refs = 1;
    v->world = world;
    v->nrows = nrows;
    v->id = saved->store->next_id++;
    v->created_unix = (uint64_t)time(NULL);
    v->rows = calloc(zb_max_u64(nrows, 1), sizeof(struct zsd_row *));
    v->notes = calloc(zb_max_u64(world, 1), sizeof(*v->notes));
    if (!v->rows || !v->notes) {
        free(v->rows);
        free(v->notes);
        free(v);
        return NULL;
    }
    return v;
}

/* Memory of a row's struct and tables. */
static uint64_t row_table_bytes(const struct zsd_row *r)
{
    uint64_t page = 0;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        if (r->planes[p].block_bytes > 0)
            page += sizeof(*r->planes[p].extents) +
                    (uint64_t)r->planes[p].crcs_per_page * sizeof(*r->planes[p].crcs);
    return sizeof(*r) + r->npages * page;
}

uint64_t zsd_version_table_bytes(const struct zsd_version *v)
{
    return sizeof(*v) + v->nrows * sizeof(*v->rows) + v->world * sizeof(*v->notes) + v->table_bytes;
}

int zsd_version_put(struct zsd_version *v, uint32_t i, struct zsd_row *r)
{
    int rc = zsd_row_needs(&v->needs, r, 1);

    if (rc == 0 && !v->saved->units[r->unit]->layout.frozen)
        rc = zsd_row_needs(&v->trained, r, 1);
    if (rc < 0)
        return rc;
    v->table_bytes += row_table_bytes(r);
    v->rows[i] = zsd_row_ref(r);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        uint64_t bytes = zsd_row_plane_bytes(r, p);

        v->plane_bytes[p] += bytes;
        v->bytes += bytes;
    }
    return 0;
}

struct zsd_version *zsd_version_ref(struct zsd_version *v)
{
    v->refs++;
    return v;
}

static void version_free(struct zsd_version *v)
{
    for (uint32_t i = 0; v->notes && i < v->world; i++)
        zsd_note_done(&v->notes[i]);
    zsd_note_done(&v->job_note);
    zb_needs_done(&v->needs);
    zb_needs_done(&v->trained);
    free(v->rows);
    free(v->notes);
    free(v);
}

/* Releases the version's next rows, and frees it after the last. True: it is freed, or it is still
 * looked at after the last row. */
static bool version_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct zsd_version *v = zb_container_of(l, struct zsd_version, leaving);

    for (; *left > 0 && v->let_go < v->nrows; v->let_go++) {
        struct zsd_row *r = v->rows[v->let_go];
        uint64_t looked = r && r->refs == 1 ? 1 + zb_min_u64(r->npages, ROW_NOW) : 1;

        if (r && v->looks > 0) { /* once the looks have ended, later rows are not kept */
            zsd_row_look(r);
            v->looked = v->let_go + 1;
        }
        if (r)
            zsd_row_unref(core, r);
        *left -= zb_min_u64(*left, looked);
    }
    if (v->let_go < v->nrows)
        return false;
    v->gone = true;
    if (v->looks > 0)
        return true; /* zsd_version_look_away() resumes */
    for (; *left > 0 && v->looked > 0; --*left)
        if (v->rows[--v->looked])
            zsd_row_look_away(v->rows[v->looked]);
    if (v->looked > 0)
        return false;
    version_free(v);
    return true;
}

void zsd_version_look(struct zsd_version *v)
{
    assert(v->refs > 0);
    v->looks++;
}

void zsd_version_look_away(struct zsd_version *v)
{
    assert(v->looks > 0);
    if (--v->looks == 0 && v->gone)
        zsd_leave(v->core, &v->leaving, version_part);
}

void zsd_version_unref(struct zsd_version *v)
{
    if (!v)
        return;
    if (--v->refs == 0)
        zsd_leave(v->core, &v->leaving, version_part);
    else if (v->refs == v->readers)
        v->orphaned(v);
}

uint32_t zsd_version_find(const struct zsd_version *v, uint32_t unit, uint64_t first)
{
    const struct zsd_row *r;
    uint32_t at; /* the first row after (unit, first) */

    zb_lower_bound(at, v->nrows,
                   v->rows[at]->unit < unit ||
                       (v->rows[at]->unit == unit && v->rows[at]->first <= first));
    if (at == 0)
        return v->nrows;
    r = v->rows[--at];
    return r->unit == unit && first - r->first < r->count ? at : v->nrows;
}

bool zsd_version_has(const struct zsd_version *v, const struct zsd_row *r, uint32_t *at)
{
    uint32_t i = *at;

    if (i >= v->nrows || v->rows[i]->unit != r->unit || v->rows[i]->first != r->first)
        i = zsd_version_find(v, r->unit, r->first);
    if (i >= v->nrows || v->rows[i] != r)
        return false;
    *at = i;
    return true;
}
