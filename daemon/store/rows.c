/*
 * rows.c - walks over the rows of the store: see rows.h.
 */
#include "daemon/store/rows.h"

#include "base/slots.h"
#include "daemon/store/store.h"

void zsd_row_walk_begin(struct zsd_store *store, struct zsd_row_walk *w)
{
    *w = (struct zsd_row_walk){ .store = store, .last = &store->rows };
    zb_list_init(&w->node);
    zb_list_push_back(&store->walks, &w->node);
}

struct zsd_row *zsd_row_walk_next(struct zsd_row_walk *w)
{
    if (w->last->next == &w->store->rows)
        return NULL;
    w->last = w->last->next;
    return zb_container_of(w->last, struct zsd_row, node);
}

void zsd_row_walk_end(struct zsd_row_walk *w)
{
    if (w->store)
        zb_list_remove(&w->node);
    *w = (struct zsd_row_walk){ 0 };
}

void zsd_rows_add(struct zsd_store *store, struct zsd_row *row)
{
    zb_list_push_back(&store->rows, &row->node);
}

void zsd_rows_remove(struct zsd_store *store, struct zsd_row *row)
{
    zb_list_each(pos, &store->walks)
    {
        struct zsd_row_walk *w = zb_container_of(pos, struct zsd_row_walk, node);

        if (w->last == &row->node)
            w->last = row->node.prev;
    }
    zb_list_remove(&row->node);
}
