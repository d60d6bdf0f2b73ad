/*
 * sharers.c - which rows may share pages: see sharers.h.
 */
#include "daemon/store/sharers.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/store/store.h"

/* Adds the version's row of that shard, unless another version has had it. 0 or -ENOMEM. */
static int sharers_add(struct zsd_sharers *s, const struct zsd_version *v, uint64_t stamp)
{
    uint32_t i = v ? zsd_version_find(v, s->of->unit, s->of->first) : 0;
    struct zsd_row *row = v && i < v->nrows ? v->rows[i] : NULL;

    if (!row || row->first != s->of->first || row->kept == 0 || row->stamp == stamp)
        return 0;
    row->stamp = stamp;
    if (zb_grow(&s->rows, &s->room, s->n, 1) < 0)
        return -ENOMEM;
    zsd_row_look(row);
    s->rows[s->n++] = row;
    return 0;
}

int zsd_sharers_find(struct zsd_store *store, const struct zsd_row *row, struct zsd_sharers *s)
{
    uint64_t stamp = ++store->stamp, versions = 0;
    int rc = 0;

    zsd_sharers_forget(s);
    s->of = row;
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *saved = zb_container_of(pos, struct zsd_saved, node);

        rc = rc == 0 ? sharers_add(s, saved->committed, stamp) : rc;
        rc = rc == 0 ? sharers_add(s, saved->prepared, stamp) : rc;
        zb_list_each(at, (struct zb_list *)(uintptr_t)&saved->snaps)
        {
            rc = rc == 0
                     ? sharers_add(s, zb_container_of(at, struct zsd_snap, node)->version, stamp)
                     : rc;
            versions++;
        }
        versions += 2;
    }
    zsd_turn_count(store->core, versions);
    return rc;
}

uint32_t zsd_sharers_holders(const struct zsd_sharers *s, enum zsd_saved_plane plane, uint32_t page,
                             uint64_t at)
{
    uint32_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += zsd_row_page_is_at(s->rows[i], plane, page, at);
    return n;
}

void zsd_sharers_forget(struct zsd_sharers *s)
{
    while (s->n > 0)
        zsd_row_look_away(s->rows[--s->n]);
    s->of = NULL;
}

void zsd_sharers_done(struct zsd_sharers *s)
{
    zsd_sharers_forget(s);
    free(s->rows);
    *s = (struct zsd_sharers){ 0 };
}
