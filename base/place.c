#include "base/place.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/slots.h"
#include "base/util.h"

#define BUFFER_ELEM_BYTES 18u /* all planes of one element, at most: fp16 2 + 4 + 12 */
#define BUFFERS_SHARE     16u /* page buffers take the budget divided by this */

/* ---- places of pages */

int zb_needs_reserve(struct zb_needs *p, uint32_t n)
{
    return zb_grow(&p->needs, &p->room, 0, n);
}

int zb_needs_add(struct zb_needs *p, uint64_t bytes, uint64_t count)
{
    uint32_t i = p->n;

    assert(bytes > 0 && bytes % ZB_PAGE_ALIGN == 0);
    while (i > 0 && p->needs[i - 1].bytes > bytes)
        i--;
    if (i > 0 && p->needs[i - 1].bytes == bytes) {
        p->needs[i - 1].count += count;
        return 0;
    }
    if (count == 0)
        return 0;
    if (zb_needs_reserve(p, p->n + 1) < 0)
        return -ENOMEM;
    memmove(p->needs + i + 1, p->needs + i, (p->n - i) * sizeof(*p->needs));
    p->needs[i] = (struct zb_need){ .bytes = bytes, .count = count };
    p->n++;
    return 0;
}

int zb_needs_sum(struct zb_needs *p, const struct zb_needs *other, uint64_t times)
{
    int rc = 0;

    for (uint32_t i = 0; i < other->n && rc == 0; i++)
        rc = zb_needs_add(p, other->needs[i].bytes, other->needs[i].count * times);
    return rc;
}

void zb_needs_take(struct zb_needs *p, const struct zb_needs *other)
{
    uint32_t n = 0;

    for (uint32_t i = 0, k = 0; i < p->n; i++) {
        struct zb_need need = p->needs[i];

        if (k < other->n && other->needs[k].bytes == need.bytes) {
            assert(other->needs[k].count <= need.count);
            need.count -= other->needs[k++].count;
        }
        assert(k == other->n || other->needs[k].bytes > need.bytes);
        if (need.count > 0)
            p->needs[n++] = need;
    }
    p->n = n;
}

int zb_needs_pages(struct zb_needs *p, const struct zb_layout *layout, enum zb_plane plane,
                   uint64_t count, uint32_t page_elems, uint32_t from, uint64_t times)
{
    uint32_t npages = zb_pages(count, page_elems);
    uint64_t tail = count - (uint64_t)(npages - 1) * page_elems;
    int rc = 0;

    if (from >= npages || times == 0 || zb_layout_page(layout, plane, tail) == 0)
        return 0;
    if (from + 1 < npages)
        rc =
            zb_needs_add(p, zb_layout_page(layout, plane, page_elems), (npages - 1 - from) * times);
    return rc < 0 ? rc : zb_needs_add(p, zb_layout_page(layout, plane, tail), times);
}

int zb_needs_spares(struct zb_needs *p, const struct zb_needs *streamed,
                    const struct zb_needs *early, uint32_t nbuffers)
{
    int rc = 0;

    for (uint32_t i = 0, k = 0; i < streamed->n && rc == 0; i++) {
        uint64_t bytes = streamed->needs[i].bytes;
        uint64_t count = zb_min_u64(streamed->needs[i].count, nbuffers);

        while (k < early->n && early->needs[k].bytes < bytes)
            k++;
        if (k < early->n && early->needs[k].bytes == bytes)
            count = zb_max_u64(count, early->needs[k].count);
        rc = zb_needs_add(p, bytes, count);
    }
    return rc;
}

uint64_t zb_needs_bytes(const struct zb_needs *p)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n; i++)
        sum += p->needs[i].bytes * p->needs[i].count;
    return sum;
}

void zb_needs_done(struct zb_needs *p)
{
    free(p->needs);
    *p = (struct zb_needs){ 0 };
}

/* ---- page buffers */

uint64_t zb_buffer_bytes(uint32_t page_elems)
{
    return (uint64_t)page_elems * BUFFER_ELEM_BYTES;
}

uint32_t zb_buffers(uint64_t host_bytes, uint64_t ring_bytes, uint64_t buffer_bytes)
{
    uint64_t want = ring_bytes > 0
                        ? ring_bytes / buffer_bytes
                        : zb_min_u64(host_bytes / BUFFERS_SHARE / buffer_bytes, ZB_BUFFERS_DEFAULT);

    return (uint32_t)zb_min_u64(zb_max_u64(want, 1), ZB_BUFFERS_MAX);
}

/* A budget of `bytes` and k buffers is enough if zb_buffers() does not choose more than k for it.
 * A larger budget never gets fewer buffers, so the first such k is the least. */
uint64_t zb_buffers_least(uint64_t bytes, uint64_t ring_bytes, uint64_t buffer_bytes)
{
    uint64_t least = bytes;

    for (uint64_t k = 1; k <= ZB_BUFFERS_MAX; k++) {
        least = bytes + k * buffer_bytes;
        if (zb_buffers(least, ring_bytes, buffer_bytes) <= k)
            break;
    }
    return least;
}

/* ---- placement */

static uint64_t shard_bytes(const struct zb_place_job *job, const struct zb_place_shard *s,
                            enum zb_plane plane)
{
    return zb_layout_bytes(s->layout, plane, job->page_elems, s->count);
}

/* Whether gradients of the shard's streamed pages are not held. */
static bool shard_rings(const struct zb_place_job *job, const struct zb_place_shard *s)
{
    const uint32_t *bytes = s->layout->block_bytes;

    return job->grad_ring && !(job->ring_limits && s->few) && !s->layout->frozen &&
           bytes[ZB_STATE] > 0 && bytes[ZB_PARAM] <= bytes[ZB_STATE] + bytes[ZB_GRAD];
}

/* Bytes of the first n pages of a plane. */
static uint64_t place_first(const struct zb_place_job *job, const struct zb_place_shard *s,
                            enum zb_plane plane, uint32_t n)
{
    return zb_layout_bytes(s->layout, plane, job->page_elems,
                           zb_min_u64(s->count, (uint64_t)n * job->page_elems));
}

/* Pages of a shard whose gradients are held in any case. */
static uint32_t shard_kept(const struct zb_place_job *job, const struct zb_place_shard *s)
{
    uint32_t npages = zb_pages(s->count, job->page_elems);

    return shard_rings(job, s) ? (uint32_t)((uint64_t)npages * job->ring_keep / 100) : npages;
}

/* Memory for new parameters of a shard whose state is all streamed, if its parameters are not. */
static uint64_t shard_aside(const struct zb_place_job *job, const struct zb_place_shard *s)
{
    return shard_rings(job, s)
               ? shard_bytes(job, s, ZB_PARAM) - place_first(job, s, ZB_PARAM, shard_kept(job, s))
               : 0;
}

static uint32_t place_units(const struct zb_place_shard *shards, uint32_t n)
{
    uint32_t nunits = 1;

    for (uint32_t i = 0; i < n; i++)
        nunits = (uint32_t)zb_max_u64(nunits, shards[i].unit + UINT64_C(1));
    return nunits;
}

int zb_place_few(struct zb_place_shard *shards, uint32_t n, uint32_t nranks)
{
    uint32_t *parts = calloc(place_units(shards, n), sizeof(*parts));

    if (!parts)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        parts[shards[i].unit]++;
    for (uint32_t i = 0; i < n; i++)
        shards[i].few = parts[shards[i].unit] < nranks;
    free(parts);
    return 0;
}

/* Sets room_bytes: memory for the gradients that are not held, of the two units that have most. It does
 * not depend on which pages of state are in memory, so not on the order of the shards. 0 or -ENOMEM. */
static int place_room(const struct zb_place_job *job, struct zb_place *ret)
{
    uint64_t *bytes, first = 0, second = 0;
    uint32_t nunits;

    if (!job->grad_ring || !job->ring_limits)
        return 0;
    nunits = place_units(job->shards, job->nshards);
    bytes = calloc(nunits, sizeof(*bytes));
    if (!bytes)
        return -ENOMEM;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zb_place_shard *s = &job->shards[i];

        if (shard_rings(job, s))
            bytes[s->unit] += shard_bytes(job, s, ZB_GRAD) -
                              place_first(job, s, ZB_GRAD, shard_kept(job, s));
    }
    for (uint32_t u = 0; u < nunits; u++) {
        second = zb_max_u64(second, zb_min_u64(first, bytes[u]));
        first = zb_max_u64(first, bytes[u]);
    }
    free(bytes);
    ret->room_bytes = first + second;
    return 0;
}

/*
 * Finds the longest resident prefix whose parameters, memory aside and ring fit into `bytes`; -ENOSPC:
 * they do not fit even if all are streamed. Walks from the end, and adds one shard at a time to the ring of
 * the suffix.
 */
static int place_params(const struct zb_place_job *job, uint64_t bytes, struct zb_place *ret)
{
    struct zb_slots ring = { 0 };
    uint64_t resident = 0, aside = 0, ring_bytes = 0, least = UINT64_MAX;
    uint32_t class;
    int rc = 0;
    bool found = false;

    for (uint32_t i = 0; i < job->nshards && job->params_on_gpu; i++)
        aside += shard_aside(job, &job->shards[i]);
    if (job->params_on_gpu) {
        ret->params_resident = job->nshards;
        ret->least_params = ret->aside_bytes = aside;
        return aside <= bytes ? 0 : -ENOSPC;
    }
    for (uint32_t i = 0; i < job->nshards; i++) {
        resident += shard_bytes(job, &job->shards[i], ZB_PARAM);
        aside += shard_aside(job, &job->shards[i]);
    }
    for (uint32_t n = job->nshards;; n--) { /* shards [0, n) resident */
        const struct zb_place_shard *last;

        if (resident + aside + ring_bytes <= bytes && !found) {
            found = true;
            ret->params_resident = n;
            ret->param_bytes = resident;
            ret->ring_bytes = ring_bytes;
            ret->aside_bytes = aside;
        }
        least = zb_min_u64(least, resident + aside + ring_bytes);
        if (n == 0 || job->params_resident)
            break;
        last = &job->shards[n - 1];
        rc = zb_slots_count(&ring, shard_bytes(job, last, ZB_PARAM), last->rank, &class);
        if (rc < 0)
            break;
        if (ring.classes[class].users <= ZB_RING_PINS)
            ring_bytes += ring.classes[class].bytes;
        resident -= shard_bytes(job, last, ZB_PARAM);
        aside -= shard_aside(job, last);
    }
    zb_slots_done(&ring);
    ret->least_params = least;
    return rc < 0 ? rc : found ? 0 : -ENOSPC;
}

/* Number of pages of a shard's plane that fit into *left; subtracts their bytes. */
static uint32_t place_fit(const struct zb_place_job *job, const struct zb_place_shard *s,
                          enum zb_plane plane, uint64_t *left)
{
    uint64_t full = zb_layout_page(s->layout, plane, job->page_elems), tail;
    uint32_t npages = zb_pages(s->count, job->page_elems), page;

    if (npages == 0)
        return 0;
    page = npages - 1;
    tail = zb_layout_page(s->layout, plane, s->count - (uint64_t)page * job->page_elems);
    if (full > 0)
        page = (uint32_t)zb_min_u64(page, *left / full);
    *left -= page * full;
    if (page < npages - 1 || tail > *left)
        return page;
    *left -= tail;
    return npages;
}

/* What a shard with a ring of gradients takes in addition, if its first pages of state are in memory. */
struct place_ringed {
    uint32_t state, grads; /* pages in memory */
    uint64_t state_bytes, grad_bytes, aside_less;
};

static struct place_ringed ringed_with(const struct zb_place_job *job,
                                       const struct zb_place_shard *s, bool aside, uint32_t n)
{
    uint32_t kept = shard_kept(job, s);
    struct place_ringed r = { .state = n,
                              .grads = (uint32_t)zb_min_u64((uint64_t)n + kept,
                                                            zb_pages(s->count, job->page_elems)),
                              .state_bytes = place_first(job, s, ZB_STATE, n) };

    r.grad_bytes = place_first(job, s, ZB_GRAD, r.grads) - place_first(job, s, ZB_GRAD, kept);
    if (aside)
        r.aside_less = place_first(job, s, ZB_PARAM, r.grads) - place_first(job, s, ZB_PARAM, kept);
    return r;
}

static uint64_t ringed_bytes(const struct place_ringed *r)
{
    return r->state_bytes + r->grad_bytes - r->aside_less;
}

/* State and gradients of shard i, which uses the ring: as many pages of state as fit. Their number. */
static uint32_t place_ringed(const struct zb_place_job *job, uint32_t i, struct zb_place *ret,
                             uint64_t *left)
{
    const struct zb_place_shard *s = &job->shards[i];
    bool aside = i < ret->params_resident;
    uint32_t n = 0, end = zb_pages(s->count, job->page_elems) + 1; /* n fit, end do not */
    struct place_ringed r = ringed_with(job, s, aside, 0);

    while (end - n > 1) {
        uint32_t middle = n + (end - n) / 2;
        struct place_ringed more = ringed_with(job, s, aside, middle);

        if (ringed_bytes(&more) > *left) {
            end = middle;
            continue;
        }
        n = middle;
        r = more;
    }
    *left -= ringed_bytes(&r);
    ret->grads_resident[i] = r.grads;
    ret->state_bytes += r.state_bytes;
    ret->grad_bytes += r.grad_bytes - r.aside_less;
    ret->aside_bytes -= r.aside_less;
    ret->grads_ringed += shard_bytes(job, s, ZB_GRAD) - place_first(job, s, ZB_GRAD, r.grads);
    return n;
}

/* Streamed pages of a plane, and those of them that exist twice when a step begins early. */
struct place_streams {
    struct zb_needs all, early;
};

/* Puts pages of gradients that must be held into memory as long as `left` bytes last. */
static void place_grads(const struct zb_place_job *job, struct zb_place *ret, uint64_t bytes)
{
    uint64_t left = bytes;

    for (uint32_t i = 0; i < job->nshards; i++)
        if (!shard_rings(job, &job->shards[i]))
            ret->grads_resident[i] = place_fit(job, &job->shards[i], ZB_GRAD, &left);
    ret->grad_bytes = bytes - left;
}

/* Counts the places for the pages of one plane, of which the first `resident` live in memory. */
static int place_count(const struct zb_place_job *job, const struct zb_place_shard *s,
                       enum zb_plane plane, uint32_t resident, struct zb_place *ret,
                       struct place_streams *streams)
{
    uint64_t *const bytes[ZB_PLANES] = { &ret->nvme_param, &ret->nvme_grad, &ret->nvme_state };
    bool kept = job->durable && plane != ZB_GRAD;
    uint32_t from = kept ? 0 : resident;
    uint64_t before = zb_min_u64(s->count, (uint64_t)from * job->page_elems);
    uint64_t times = kept && !s->layout->frozen ? job->times : 1;
    int rc = zb_needs_pages(&ret->nvme, s->layout, plane, s->count, job->page_elems, from, times);

    *bytes[plane] += zb_layout_bytes(s->layout, plane, job->page_elems, s->count - before);
    if (rc == 0)
        rc =
            zb_needs_pages(&streams->all, s->layout, plane, s->count, job->page_elems, resident, 1);
    if (rc == 0 && job->early && plane != ZB_GRAD && !s->layout->frozen)
        rc = zb_needs_pages(&streams->early, s->layout, plane, s->count, job->page_elems, resident,
                            1);
    return rc;
}

/* State of a shard whose gradients are placed already: as many pages as fit. Their number. */
static uint32_t place_held(const struct zb_place_job *job, const struct zb_place_shard *s,
                           struct zb_place *ret, uint64_t *left)
{
    uint32_t n = place_fit(job, s, ZB_STATE, left);

    ret->state_bytes += place_first(job, s, ZB_STATE, n);
    return n;
}

/* Counts all places. Gradients that go through the ring have none, unless steps without limits hold
 * them. */
static int place_pages(const struct zb_place_job *job, struct zb_place *ret)
{
    struct place_streams streams[ZB_PLANES] = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        const struct zb_place_shard *s = &job->shards[i];
        uint32_t npages = zb_pages(s->count, job->page_elems);
        uint32_t grads = shard_rings(job, s) && !job->ring_limits ? npages : ret->grads_resident[i];
        uint32_t resident[ZB_PLANES] = { i < ret->params_resident ? npages : 0, grads,
                                         ret->state_resident[i] };

        for (enum zb_plane p = 0; p < ZB_PLANES && rc == 0; p++)
            rc = place_count(job, s, p, resident[p], ret, &streams[p]);
    }
    for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
        if (rc == 0)
            rc = zb_needs_spares(&ret->nvme, &streams[p].all, &streams[p].early, job->nbuffers);
        zb_needs_done(&streams[p].all);
        zb_needs_done(&streams[p].early);
    }
    return rc;
}

/* Places parameters, their ring and gradients; *ret_left is left for state. */
static int place_needed(const struct zb_place_job *job, struct zb_place *ret, uint64_t *ret_left)
{
    bool spills = !job->params_resident && !job->grads_resident && !job->state_resident &&
                  !job->grad_ring;
    uint64_t grads = 0, state = 0;
    int rc = place_room(job, ret);

    if (rc < 0)
        return rc;
    grads = ret->room_bytes;
    for (uint32_t i = 0; i < job->nshards; i++) {
        grads += place_first(job, &job->shards[i], ZB_GRAD, shard_kept(job, &job->shards[i]));
        if (job->state_resident)
            state += shard_bytes(job, &job->shards[i], ZB_STATE);
    }
    rc = place_params(job, job->host_bytes - zb_min_u64(job->host_bytes, state + grads), ret);
    if (rc < 0 && rc != -ENOSPC)
        return rc;
    ret->least_grads = ret->least_params + state + grads;
    ret->least_host = spills ? ret->least_params : ret->least_grads;
    ret->grad_bytes = spills ? 0 : grads;
    if (job->host_bytes < ret->least_host)
        return -ENOSPC;
    if (job->host_bytes < ret->least_grads) {
        rc = place_params(job, ret->least_params, ret);
        if (rc < 0)
            return rc;
        place_grads(job, ret, job->host_bytes - ret->least_params);
        *ret_left = job->host_bytes - ret->least_params - ret->grad_bytes; /* less than a page of
                                                                              gradients */
        return 0;
    }
    place_grads(job, ret, grads);
    ret->grad_bytes = grads + ret->aside_bytes;
    *ret_left = job->host_bytes - ret->grad_bytes - ret->param_bytes - ret->ring_bytes;
    return 0;
}

int zb_place(const struct zb_place_job *job, struct zb_place *ret)
{
    uint64_t left;
    int rc;

    ret->grads_resident = calloc(zb_max_u64(job->nshards, 1), sizeof(*ret->grads_resident));
    ret->state_resident = calloc(zb_max_u64(job->nshards, 1), sizeof(*ret->state_resident));
    if (!ret->grads_resident || !ret->state_resident)
        return -ENOMEM;
    rc = place_needed(job, ret, &left);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < job->nshards; i++) { /* state takes the rest of the host bytes */
        const struct zb_place_shard *s = &job->shards[i];

        ret->state_resident[i] = shard_rings(job, s) ? place_ringed(job, i, ret, &left)
                                                     : place_held(job, s, ret, &left);
    }
    if (ret->grads_ringed == 0) { /* nothing needs the room */
        ret->grad_bytes -= ret->room_bytes;
        ret->room_bytes = 0;
    }
    return place_pages(job, ret);
}

int zb_place_moved(const struct zb_place_job *job, const struct zb_place *before,
                   const uint32_t *from, struct zb_place *ret)
{
    uint64_t left = job->host_bytes - before->grad_bytes - before->param_bytes - before->ring_bytes;
    size_t bytes = job->nshards * sizeof(*from);

    ret->grads_resident = malloc(zb_max_u64(bytes, 1));
    ret->state_resident = malloc(zb_max_u64(bytes, 1));
    if (!ret->grads_resident || !ret->state_resident)
        return -ENOMEM;
    memcpy(ret->grads_resident, before->grads_resident, bytes);
    ret->params_resident = before->params_resident;
    for (uint32_t i = 0; i < job->nshards; i++) {
        ret->state_resident[i] = (uint32_t)zb_min_u64(before->state_resident[i], from[i]);
        left -= place_first(job, &job->shards[i], ZB_STATE, ret->state_resident[i]);
    }
    for (uint32_t i = 0; i < job->nshards; i++) { /* memory that state has left */
        const struct zb_place_shard *s = &job->shards[i];
        uint64_t held = place_first(job, s, ZB_STATE, ret->state_resident[i]), more = held;

        while (ret->state_resident[i] < from[i] &&
               (more = place_first(job, s, ZB_STATE, ret->state_resident[i] + 1)) - held <= left) {
            ret->state_resident[i]++;
            left -= more - held;
            held = more;
        }
        ret->state_bytes += held;
    }
    return place_pages(job, ret);
}

void zb_place_done(struct zb_place *place)
{
    free(place->state_resident);
    free(place->grads_resident);
    zb_needs_done(&place->nvme);
    *place = (struct zb_place){ 0 };
}
