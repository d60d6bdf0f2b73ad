/*
 * shard.h - shards: ranges of a unit, the place of each page of their planes, and their pins.
 *
 * See job.h for the model and its invariants. Loop thread only.
 */
#ifndef ZSD_SHARD_H
#define ZSD_SHARD_H

#include "base/slots.h"
#include "daemon/job/job.h"

#define ZSD_PINS_MAX (UINT32_C(1) << 24) /* of a job: the counts cannot overflow */

/** Its number in its job, for messages. */
static inline unsigned zsd_shard_number(const struct zsd_shard *s)
{
    return (unsigned)(s->id & UINT32_MAX);
}

/** Whether the row has the same elements and pages as the shard. */
static inline bool zsd_row_fits(const struct zsd_row *r, const struct zsd_shard *s)
{
    return r->unit == s->unit->index && r->first == s->first && r->count == s->count &&
           r->page_elems == s->job->core->page_elems;
}

static inline uint64_t zsd_page_elems(const struct zsd_shard *s, uint32_t page)
{
    uint64_t per_page = s->job->core->page_elems;

    return zb_min_u64(per_page, s->count - (uint64_t)page * per_page);
}

/** The page's first element, of the unit. */
static inline uint64_t zsd_page_first(const struct zsd_shard *s, uint32_t page)
{
    return s->first + (uint64_t)page * s->job->core->page_elems;
}

static inline uint32_t zsd_page_bytes(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return (uint32_t)zb_page_bytes(s->planes[plane].block_bytes, zsd_page_elems(s, page));
}

/** Bytes of its parameters in an arena, where its pages are contiguous. */
static inline uint64_t zsd_param_bytes(const struct zsd_shard *s)
{
    return zb_plane_bytes(s->planes[ZB_PARAM].block_bytes, s->job->core->page_elems, s->count);
}

/** Bytes of the first n pages of its state. */
static inline uint64_t zsd_state_bytes(const struct zsd_shard *s, uint32_t n)
{
    uint64_t page_elems = s->job->core->page_elems;

    return zb_plane_bytes(s->planes[ZB_STATE].block_bytes, page_elems,
                          zb_min_u64(s->count, n * page_elems));
}

/** Whether it has state. */
static inline bool zsd_state_is(const struct zsd_shard *s)
{
    return s->planes[ZB_STATE].block_bytes > 0;
}

/** The GPU of the shard's rank, where its state and its parameters may be: a number in
 * daemon->gpus. */
static inline uint32_t zsd_shard_gpu(const struct zsd_shard *s)
{
    return s->job->ranks[s->rank].gpu;
}

/** Address of a page that is in memory. */
static inline uint8_t *zsd_page_at(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return s->planes[plane].mem +
           page * zb_page_bytes(s->planes[plane].block_bytes, s->job->core->page_elems);
}

/** Whether the next step writes this page of state, which is in memory or on the GPU, to the data
 * file (plan/replan.c). */
static inline bool zsd_page_leaves(const struct zsd_shard *s, uint32_t page)
{
    return (page < s->planes[ZB_STATE].resident || page >= s->gpu_from) && page >= s->state_next &&
           page < s->gpu_next;
}

/** Whether the next step moves this page of state from the data file into memory. */
static inline bool zsd_page_comes(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->planes[ZB_STATE].resident && page < s->state_next;
}

/** Whether this page of state is on the GPU (plan/gpu_plan.c). */
static inline bool zsd_page_on_gpu(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->gpu_from;
}

/** Whether it will be on the GPU after the next step. */
static inline bool zsd_page_to_gpu(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->gpu_next;
}

/** Whether state of the job may be on the data files, or move there. */
static inline bool zsd_state_moves(const struct zsd_job *job)
{
    return job->core->disk->extents && job->offload_optimizer != ZP_HOST;
}

/** Whether the pages of a plane need tables in a job that was just placed: some are on the data
 * file, or may move there (plan/tables.h). */
static inline bool zsd_plane_tables(const struct zsd_shard *s, enum zb_plane plane)
{
    const struct zsd_plane *p = &s->planes[plane];

    return p->block_bytes > 0 && !(plane == ZB_GRAD && s->job->grad_ring && !s->job->ring_limits) &&
           (p->resident < s->npages || (plane != ZB_GRAD && s->job->durable) ||
            (plane == ZB_STATE && zsd_state_moves(s->job)));
}

/** The first page of a plane that is on the data file, may move there before the next plan, or
 * keeps its place there while it is on the GPU. The same holds for all pages after it. */
static inline uint32_t zsd_plane_low(const struct zsd_shard *s, enum zb_plane plane)
{
    uint32_t low = s->planes[plane].resident;

    if (plane != ZB_STATE)
        return low;
    if (!zsd_state_moves(s->job))
        return s->npages;
    low = low < s->state_to ? low : s->state_to;
    low = low < s->gpu_next ? low : s->gpu_next;
    return low < s->state_next ? low : s->state_next;
}

static inline bool zsd_page_streamed(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return s->planes[plane].block_bytes > 0 && page >= s->planes[plane].resident &&
           (plane != ZB_STATE || page < s->gpu_from);
}

/** Whether the gradient of this page is not held in an announced step (op/early.c). */
static inline bool zsd_page_rings(const struct zsd_shard *s, uint32_t page)
{
    return s->job->grad_ring && page >= s->planes[ZB_GRAD].resident;
}

/** Bytes of the first n pages of a plane in memory. */
static inline uint64_t zsd_plane_first(const struct zsd_shard *s, enum zb_plane plane, uint32_t n)
{
    uint64_t page_elems = s->job->core->page_elems;

    return zb_plane_bytes(s->planes[plane].block_bytes, page_elems,
                          zb_min_u64(s->count, n * page_elems));
}

/** Bytes of memory for new parameters of the pages whose gradients are not held. It follows the
 * gradients that are. */
static inline uint64_t zsd_aside_bytes(const struct zsd_shard *s)
{
    if (!s->job->grad_ring || s->planes[ZB_PARAM].resident < s->npages)
        return 0;
    return zsd_plane_first(s, ZB_PARAM, s->npages) -
           zsd_plane_first(s, ZB_PARAM, s->planes[ZB_GRAD].resident);
}

static inline uint8_t *zsd_page_aside(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_plane *grad = &s->planes[ZB_GRAD];

    return grad->mem + zsd_plane_first(s, ZB_GRAD, grad->resident) +
           zsd_plane_first(s, ZB_PARAM, page) - zsd_plane_first(s, ZB_PARAM, grad->resident);
}

static inline bool zsd_shard_live(const struct zsd_shard *s)
{
    return s->pages_written == s->npages;
}

static inline bool zsd_grad_complete(const struct zsd_shard *s)
{
    return s->unit->layout.frozen || (s->grad_of == s->job->grads_of && s->grad_next == s->count &&
                                      s->pushing == 0 && zb_list_empty(&s->push_waiters));
}

/** Whether no part of a gradient for the next step has arrived or is in flight. */
static inline bool zsd_grad_absent(const struct zsd_shard *s)
{
    return s->grad_of != s->job->grads_of ||
           (s->grad_next == 0 && s->micro == 0 && s->grad_rc == 0 && s->pushing == 0 &&
            zb_list_empty(&s->push_waiters));
}

/** Whether its parameters are always in memory, and need no ring. */
static inline bool zsd_shard_resident(const struct zsd_shard *s)
{
    return s->planes[ZB_PARAM].resident == s->npages;
}

struct zsd_shard *zsd_shard_new(struct zsd_job *job, struct zsd_unit *unit, uint32_t rank,
                                uint64_t first, uint64_t count);
void zsd_shard_free(struct zsd_shard *s);
/** 0 or -ENOMEM. */
int zsd_pin(struct zsd_shard *s, struct zsd_member *m);
/** 0, or -ENOENT: this rank does not pin it. */
int zsd_unpin(struct zsd_shard *s, struct zsd_member *m);
void zsd_unpin_all(struct zsd_member *m);
/** Resumes requests that wait for this shard. */
void zsd_shard_wake(struct zsd_shard *s);
/** Forgets the cached parameters of a streamed, unpinned shard. */
void zsd_shard_uncache(struct zsd_shard *s);
/** Releases the extents of at most *left pages from *page on, and updates both. After the last page
 * it releases the row, too. True: done; its pages are only in memory, or nowhere. */
bool zsd_shard_forget(struct zsd_shard *s, uint32_t *page, uint64_t *left);
/** Sets the number of its pages that have values. */
void zsd_shard_written(struct zsd_shard *s, uint32_t pages);
void zsd_shard_writing(struct zsd_shard *s, bool writing);
/** Call before reading the fields of its gradient: applies an earlier zsd_grads_reset(). */
void zsd_grad_look(struct zsd_shard *s);
/** Call after a change of anything that zsd_grad_complete() and zsd_grad_absent() read: updates the
 * counts of its rank. The sum of a complete gradient must not have changed. */
void zsd_grad_changed(struct zsd_shard *s);
/** Begins a micro-step. */
void zsd_grad_micro(struct zsd_shard *s, uint32_t micro);
/** Drops its gradient, even an incomplete one. */
void zsd_grad_reset(struct zsd_shard *s);
/** Drops all gradients of the job, without a loop over shards. No push is in flight. */
void zsd_grads_reset(struct zsd_job *job);

#endif
