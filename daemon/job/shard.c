/*
 * shard.c - shards: creation, pins, cached parameters, places, gradients. See job.h for the model.
 */
#include "daemon/job/shard.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct zsd_shard *zsd_shard_new(struct zsd_job *job, struct zsd_unit *unit, uint32_t rank,
                                uint64_t first, uint64_t count)
{
    struct zsd_shard *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->job = job;
    s->unit = unit;
    s->rank = rank;
    s->first = first;
    s->count = count;
    s->npages = (uint32_t)zb_div_up(count, job->core->page_elems);
    s->arena_at = ZB_NO_PLACE;
    zb_list_init(&s->lru);
    zb_list_init(&s->pin_list);
    zb_list_init(&s->waiters);
    zb_list_init(&s->push_waiters);
    zb_list_init(&s->early_node);
    zb_list_init(&s->early_all);
    zb_list_init(&s->rank_node);
    s->written = calloc(zb_div_up(s->npages, 8), 1);
    s->busy = calloc(zb_div_up(s->npages, 8), 1);
    if (!s->written || !s->busy) {
        zsd_shard_free(s);
        return NULL;
    }
    for (int p = 0; p < ZB_PLANES; p++) {
        struct zsd_plane *plane = &s->planes[p];

        plane->block_bytes = unit->layout.block_bytes[p];
        plane->crc_bytes = unit->layout.crc_bytes[p];
        plane->resident = s->npages; /* until zsd_place() decides */
    }
    s->gpu_from = s->gpu_next = s->npages;
    zb_list_push_back(&job->ranks[rank].shards, &s->rank_node);
    job->ranks[rank].trained += !unit->layout.frozen;
    return s;
}

void zsd_shard_free(struct zsd_shard *s)
{
    if (!s)
        return;
    if (!zb_list_empty(&s->rank_node))
        s->job->ranks[s->rank].trained -= !s->unit->layout.frozen;
    zb_list_remove(&s->rank_node);
    for (int p = 0; p < ZB_PLANES; p++) {
        free(s->planes[p].extents);
        free(s->planes[p].crcs);
    }
    free(s->held);
    free(s->tensor_sums);
    free(s->written);
    free(s->busy);
    free(s);
}

/* ---- pins */

static struct zsd_pin *pin_find(struct zsd_shard *s, const struct zsd_member *m)
{
    zb_list_each(pos, &s->pin_list)
    {
        struct zsd_pin *pin = zb_container_of(pos, struct zsd_pin, shard_node);

        if (pin->member == m)
            return pin;
    }
    return NULL;
}

int zsd_pin(struct zsd_shard *s, struct zsd_member *m)
{
    struct zsd_pin *pin = pin_find(s, m);

    assert(s->arena_at != ZB_NO_PLACE);
    if (s->job->pins >= ZSD_PINS_MAX)
        return -EBUSY;
    if (!pin) {
        pin = calloc(1, sizeof(*pin));
        if (!pin)
            return -ENOMEM;
        pin->shard = s;
        pin->member = m;
        zb_list_push_back(&s->pin_list, &pin->shard_node);
        zb_list_push_back(&m->pins, &pin->member_node);
    }
    pin->count++;
    s->pins++;
    s->job->pins++;
    zb_list_remove(&s->lru);
    return 0;
}

/* Drops `count` pins of one rank. A streamed shard without pins stays cached, as the newest. */
static void pin_drop(struct zsd_pin *pin, uint32_t count)
{
    struct zsd_shard *s = pin->shard;
    struct zsd_job *job = s->job;

    pin->count -= count;
    s->pins -= count;
    job->pins -= count;
    if (pin->count == 0) {
        zb_list_remove(&pin->shard_node);
        zb_list_remove(&pin->member_node);
        free(pin);
    }
    if (s->pins == 0 && !zsd_shard_resident(s)) {
        zb_list_push_back(&job->ring.classes[s->ring_class].cached, &s->lru);
        zsd_defer(job->core, &job->wake);
    }
    if (job->pins == 0)
        zsd_defer(job->core, &job->wake);
}

int zsd_unpin(struct zsd_shard *s, struct zsd_member *m)
{
    struct zsd_pin *pin = pin_find(s, m);

    if (!pin)
        return -ENOENT;
    pin_drop(pin, 1);
    return 0;
}

void zsd_unpin_all(struct zsd_member *m)
{
    while (!zb_list_empty(&m->pins)) {
        struct zsd_pin *pin = zb_container_of(m->pins.next, struct zsd_pin, member_node);

        pin_drop(pin, pin->count);
    }
}

void zsd_shard_wake(struct zsd_shard *s)
{
    struct zb_list *node;

    while ((node = zb_list_pop_front(&s->waiters)) != NULL)
        zsd_defer(s->job->core, zb_container_of(node, struct zsd_work, node));
}

void zsd_shard_uncache(struct zsd_shard *s)
{
    assert(s->pins == 0 && !zsd_shard_resident(s));
    if (s->arena_at == ZB_NO_PLACE)
        return;
    zb_list_remove(&s->lru);
    zb_slots_give(&s->job->ring.classes[s->ring_class], s->arena_at);
    s->arena_at = ZB_NO_PLACE;
}

/* Releases the extents of one page, in all planes. */
static void shard_forget_page(struct zsd_shard *s, uint32_t page)
{
    for (int p = 0; p < ZB_PLANES; p++) {
        struct zsd_extent *e = s->planes[p].extents;

        if (!e || e[page].at == ZB_NO_PLACE)
            continue;
        zsd_extent_unref(s->job->core, e[page].at, zsd_page_bytes(s, p, page));
        e[page].at = ZB_NO_PLACE;
    }
}

bool zsd_shard_forget(struct zsd_shard *s, uint32_t *page, uint64_t *left)
{
    bool tables = false;

    for (int p = 0; p < ZB_PLANES; p++)
        tables = tables || s->planes[p].extents;
    for (; tables && *page < s->npages; ++*page, --*left) {
        if (*left == 0)
            return false;
        shard_forget_page(s, *page);
    }
    if (s->row)
        zsd_row_unref(s->job->core, s->row);
    s->row = NULL;
    if (!zsd_shard_resident(s) && s->pins == 0)
        zsd_shard_uncache(s);
    return true;
}

void zsd_shard_written(struct zsd_shard *s, uint32_t pages)
{
    s->job->live -= zsd_shard_live(s);
    s->pages_written = pages;
    s->job->live += zsd_shard_live(s);
}

void zsd_shard_writing(struct zsd_shard *s, bool writing)
{
    s->job->writing += writing;
    s->job->writing -= s->writing;
    s->writing = writing;
}

static void grad_none(struct zsd_shard *s)
{
    s->micro = 0;
    s->grad_next = 0;
    s->grad_nonfinite = 0;
    memset(&s->grad_sum, 0, sizeof(s->grad_sum));
}

void zsd_grad_look(struct zsd_shard *s)
{
    if (s->grad_of == s->job->grads_of)
        return;
    assert(s->pushing == 0);
    grad_none(s);
    s->grad_begun = s->grad_whole = false; /* zsd_grads_reset() has reset the counts */
    s->grad_of = s->job->grads_of;
}

void zsd_grad_changed(struct zsd_shard *s)
{
    struct zsd_rank *rank = &s->job->ranks[s->rank];
    bool trained = !s->unit->layout.frozen, begun, whole;

    zsd_grad_look(s);
    begun = trained && !zsd_grad_absent(s);
    whole = trained && zsd_grad_complete(s);
    rank->begun += begun;
    rank->begun -= s->grad_begun;
    s->grad_begun = begun;
    if (whole == s->grad_whole)
        return;
    s->grad_whole = whole;
    if (whole) {
        rank->whole++;
        rank->nonfinite += s->grad_nonfinite;
        zk_xsum_merge(&rank->sum, &s->grad_sum);
    } else {
        rank->whole--;
        rank->nonfinite -= s->grad_nonfinite;
        zk_xsum_take(&rank->sum, &s->grad_sum);
    }
}

void zsd_grad_micro(struct zsd_shard *s, uint32_t micro)
{
    s->micro = micro;
    s->grad_next = 0;
    s->job->micro_most = (uint32_t)zb_max_u64(s->job->micro_most, micro);
}

void zsd_grad_reset(struct zsd_shard *s)
{
    zsd_grad_look(s);
    s->micro = 0;
    s->grad_next = 0;
    zsd_grad_changed(s); /* subtracts its sum from that of the rank */
    grad_none(s);
}

void zsd_grads_reset(struct zsd_job *job)
{
    job->grads_of++;
    for (uint32_t i = 0; i < job->world; i++) {
        struct zsd_rank *rank = &job->ranks[i];

        rank->begun = rank->whole = 0;
        rank->nonfinite = 0;
        memset(&rank->sum, 0, sizeof(rank->sum));
    }
    job->micro_most = 0;
}
