/*
 * scrub_rows.c - the rows that a scrub reads: see scrub_rows.h.
 */
#include "daemon/show/scrub_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/show/scans.h"

struct zsd_scrub_version {
    struct zsd_version *version; /* NULL: all of its rows are finished */
    char job[ZP_NAME_MAX + 1];
};

static void rows_add(struct zsd_scrub_rows *l, const struct zsd_saved *saved, struct zsd_version *v)
{
    struct zsd_scrub_version *to = &l->versions[l->nversions];

    if (!v)
        return;
    zsd_version_look(v);
    to->version = v;
    memcpy(to->job, saved->name, sizeof(to->job));
    l->nversions++;
}

int zsd_scrub_rows_make(struct zsd_scrub_rows *l, struct zsd_core *core)
{
    uint32_t n = 0;

    zb_list_each(pos, &core->store->saved)
    {
        n += 2;
        zb_list_each(snap, &zb_container_of(pos, struct zsd_saved, node)->snaps) n++;
    }
    l->versions = calloc(zb_max_u64(n, 1), sizeof(*l->versions));
    if (!l->versions)
        return -ENOMEM;
    l->mark = ++core->scans->scrubs;
    zb_list_each(pos, &core->store->saved)
    {
        struct zsd_saved *saved = zb_container_of(pos, struct zsd_saved, node);

        if (saved->gone)
            continue;
        rows_add(l, saved, saved->committed);
        rows_add(l, saved, saved->prepared);
        zb_list_each(snap, &saved->snaps)
        {
            rows_add(l, saved, zb_container_of(snap, struct zsd_snap, node)->version);
        }
    }
    return 0;
}

static void row_mark(struct zsd_scrub_rows *l, struct zsd_row *r)
{
    if (r->refs == 0 || r->scrub == l->mark) /* dropped, or marked for another version */
        return;
    r->scrub = l->mark;
    l->nrows++;
    l->bytes += zsd_row_bytes(r);
}

bool zsd_scrub_rows_mark(struct zsd_scrub_rows *l, struct zsd_core *core)
{
    uint64_t most = zsd_turn_left(core), left = most;

    for (; l->version < l->nversions && left > 0; left--) {
        const struct zsd_version *v = l->versions[l->version].version;

        if (l->row < v->nrows) {
            row_mark(l, v->rows[l->row++]);
        } else {
            l->version++;
            l->row = 0;
        }
    }
    zsd_turn_count(core, most - left);
    if (l->version < l->nversions)
        return false;
    l->version = 0;
    return true;
}

struct zsd_row *zsd_scrub_row(struct zsd_scrub_rows *l)
{
    for (; l->version < l->nversions; l->version++, l->row = 0) {
        struct zsd_scrub_version *v = &l->versions[l->version];

        if (l->row < v->version->nrows)
            return v->version->rows[l->row];
        zsd_version_look_away(v->version);
        v->version = NULL;
    }
    return NULL;
}

const char *zsd_scrub_job(const struct zsd_scrub_rows *l)
{
    return l->versions[l->version].job;
}

void zsd_scrub_row_over(struct zsd_scrub_rows *l)
{
    struct zsd_row *r = zsd_scrub_row(l);

    if (r->scrub == l->mark)
        r->scrub = 0;
    l->row++;
}

void zsd_scrub_rows_drop(struct zsd_scrub_rows *l)
{
    for (uint32_t i = 0; i < l->nversions; i++)
        if (l->versions[i].version)
            zsd_version_look_away(l->versions[i].version);
    free(l->versions);
    l->versions = NULL;
    l->nversions = 0;
}
