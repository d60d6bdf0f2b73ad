/*
 * buf.c - buffers that collectives read and write.
 *
 * MODEL. Units of one size come and go, so a buffer that was returned serves the next unit of its
 * size. A buffer is reused for a smaller size only down to half of its own, and at most `keep` idle
 * ones stay: those returned last. So the engine holds what is gathered at one time and a few more
 * buffers, for any model.
 *
 * ON A DEVICE, enqueued work may still use a returned buffer: `last` is an event after that work.
 * The buffer is freed only when the event is reached; until then there may be more than `keep`.
 *
 * HOST MEMORY that a device copies from and to is pinned while the buffer lives. Otherwise a copy
 * down would block its caller until the device has done all earlier work.
 *
 * ORPHANS. A backend owns a collective's memory until test() reports completion, and after a
 * failure test() is no longer called: a peer may still write there. Such buffers are never freed;
 * the list keeps them reachable. This happens at most once per process, at its end.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "client/zero/core/zero.h"

static _Atomic(struct zcz_buf *) orphans;

static void buf_pin(const struct zcz_pool *p, struct zcz_buf *b)
{
    b->pinned = p->pins && p->pins->gpu &&
                zk_gpu_pin(p->pins->gpu, b->data, b->bytes, false, NULL) == 0;
}

static void buf_unpin(const struct zcz_pool *p, struct zcz_buf *b)
{
    if (b->pinned)
        (void)zk_gpu_unpin(p->pins->gpu, b->data, NULL);
    b->pinned = false;
}

/* NULL while the engine closes. */
static void *device_stream(const struct zcz_device *d)
{
    return d->compute ? zk_gpu_stream_native(d->compute) : NULL;
}

static void buf_free(struct zcz_pool *p, struct zcz_buf *b)
{
    p->bytes -= b->bytes;
    zb_list_remove(&b->node);
    if (p->device) {
        zk_gpu_event_free(b->last);
        if (p->device->free)
            p->device->free(p->device->memory_arg, b->data, b->bytes, device_stream(p->device));
        zk_gpu_free(b->mem);
    } else {
        buf_unpin(p, b);
        free(b->data);
    }
    free(b);
}

void zcz_pool_init(struct zcz_pool *p, uint32_t keep, const struct zcz_device *device)
{
    *p = (struct zcz_pool){ .keep = keep, .device = device };
    zb_list_init(&p->used);
    zb_list_init(&p->idle);
}

void zcz_pool_init_pinned(struct zcz_pool *p, uint32_t keep, const struct zcz_device *pins)
{
    zcz_pool_init(p, keep, NULL);
    p->pins = pins;
}

/* The smallest idle buffer that fits. */
static struct zcz_buf *pool_find(struct zcz_pool *p, size_t bytes)
{
    struct zcz_buf *best = NULL;

    zb_list_each(pos, &p->idle)
    {
        struct zcz_buf *b = zb_container_of(pos, struct zcz_buf, node);

        if (b->bytes >= bytes && b->bytes / 2 <= bytes && (!best || b->bytes < best->bytes))
            best = b;
    }
    return best;
}

/* Memory from the caller's alloc. It may be written after the work that is on the trainer's stream
 * now. */
static bool buf_fill_by_caller(struct zcz_pool *p, struct zcz_buf *b)
{
    const struct zcz_device *device = p->device;

    b->data = device->alloc(device->memory_arg, b->bytes, device_stream(device));
    if (!b->data) {
        (void)zb_fail(&p->why, -ENOSPC, "the caller's alloc has no %zu bytes", b->bytes);
        return false;
    }
    if (zk_gpu_event_record(b->last, device->compute, &p->why) == 0)
        return true;
    device->free(device->memory_arg, b->data, b->bytes, device_stream(device));
    return false;
}

/* Allocates b->bytes. */
static bool buf_fill(struct zcz_pool *p, struct zcz_buf *b)
{
    const struct zcz_device *device = p->device;
    bool filled;

    p->why = (struct zb_err){ 0 };
    if (!device) {
        b->data = aligned_alloc(ZB_PAGE_ALIGN, b->bytes);
        return b->data;
    }
    if (zk_gpu_event_new(device->gpu, &b->last, &p->why) < 0)
        return false;
    if (device->alloc)
        filled = buf_fill_by_caller(p, b);
    else
        filled = zk_gpu_alloc(device->gpu, b->bytes, 0, &b->mem, &p->why) == 0;
    if (!filled)
        zk_gpu_event_free(b->last);
    else if (b->mem)
        b->data = zk_gpu_addr(b->mem);
    return filled;
}

struct zcz_buf *zcz_buf_get(struct zcz_pool *p, size_t bytes)
{
    uint64_t whole = p->device && !p->device->alloc ? zk_gpu_info(p->device->gpu)->granularity_bytes
                                                    : (uint64_t)ZB_PAGE_ALIGN;
    struct zcz_buf *b;

    bytes = zb_round_up(bytes, whole);
    b = pool_find(p, bytes);
    if (b) {
        p->nidle--;
        zb_list_remove(&b->node);
    } else {
        b = calloc(1, sizeof(*b));
        if (!b)
            return NULL;
        b->bytes = bytes;
        if (!buf_fill(p, b)) {
            free(b);
            return NULL;
        }
        buf_pin(p, b);
        p->bytes += b->bytes;
        p->bytes_most = zb_max_u64(p->bytes_most, p->bytes);
    }
    zb_list_push_back(&p->used, &b->node);
    return b;
}

/* Whether no enqueued work uses it any more. After a device failure, none matters. */
static bool buf_quiet(const struct zcz_buf *b)
{
    return !b->last || zk_gpu_event_query(b->last, NULL) != -EAGAIN;
}

void zcz_buf_put(struct zcz_pool *p, struct zcz_buf *b)
{
    if (!b)
        return;
    zb_list_remove(&b->node);
    zb_list_push_back(&p->idle, &b->node);
    p->nidle++;
    zb_list_each(pos, &p->idle)
    {
        struct zcz_buf *oldest = zb_container_of(pos, struct zcz_buf, node);

        if (p->nidle <= p->keep || !buf_quiet(oldest))
            break; /* still in use: freed later */
        p->nidle--;
        buf_free(p, oldest);
    }
}

void zcz_pool_trim(struct zcz_pool *p)
{
    zb_list_each(pos, &p->idle)
    {
        struct zcz_buf *b = zb_container_of(pos, struct zcz_buf, node);

        if (!buf_quiet(b))
            continue; /* still in use: freed later */
        p->nidle--;
        buf_free(p, b);
    }
}

static void buf_orphan(struct zcz_buf *b)
{
    struct zcz_buf *head = atomic_load(&orphans);

    zb_list_remove(&b->node);
    do
        b->node.next = head ? &head->node : NULL;
    while (!atomic_compare_exchange_weak(&orphans, &head, b));
}

void zcz_pool_done(struct zcz_pool *p, bool keep_used)
{
    if (!p->used.next)
        return; /* was not initialised */
    zb_list_each(pos, &p->idle) buf_free(p, zb_container_of(pos, struct zcz_buf, node));
    zb_list_each(pos, &p->used)
    {
        struct zcz_buf *b = zb_container_of(pos, struct zcz_buf, node);

        if (keep_used) {
            buf_unpin(p, b); /* the device is closed, and copies nothing any more */
            buf_orphan(b);
        } else {
            buf_free(p, b);
        }
    }
}
