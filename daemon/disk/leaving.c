/*
 * leaving.c - frees places of pages in parts: see leaving.h.
 */
#include "daemon/disk/leaving.h"

#include "daemon/disk/disk.h"

/* Frees up to n places of the first object in the list; returns the number that it checked. */
static uint64_t leaving_part(struct zsd_core *core, uint64_t n)
{
    struct zb_list *list = &core->disk->leaving;
    struct zb_list *first = list->next;
    struct zsd_leaving *l = zb_container_of(first, struct zsd_leaving, node);
    uint64_t left = n;

    zb_list_remove(first); /* part() may queue other objects, and may free this one */
    if (!l->part(core, l, &left)) {
        first->next = list->next;
        first->prev = list;
        list->next->prev = first;
        list->next = first;
    }
    zsd_turn_count(core, n - left);
    return n - left;
}

bool zsd_leaving_some(struct zsd_core *core, uint64_t n)
{
    bool some = !zb_list_empty(&core->disk->leaving);

    while (n > 0 && !zb_list_empty(&core->disk->leaving))
        n -= leaving_part(core, n);
    return some;
}

void zsd_leaving_all(struct zsd_core *core)
{
    while (zsd_leaving_some(core, ZSD_TURN_WORK))
        ;
}

static void leaving_on_work(struct zsd_work *work)
{
    struct zsd_core *core = zb_container_of(work, struct zsd_disk, leaving_work)->core;

    while (zsd_turn_left(core) > 0 && zsd_leaving_some(core, zsd_turn_left(core)))
        ;
    if (!zb_list_empty(&core->disk->leaving))
        zsd_defer(core, work);
}

void zsd_leaving_init(struct zsd_core *core)
{
    zb_list_init(&core->disk->leaving);
    core->disk->leaving_work.run = leaving_on_work;
}

void zsd_leave(struct zsd_core *core, struct zsd_leaving *l,
               bool (*part)(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left))
{
    l->part = part;
    zb_list_push_back(&core->disk->leaving, &l->node);
    zsd_defer(core, &core->disk->leaving_work);
}
