/*
 * place.c - admission and placement: where every byte of a job will live, decided once.
 *
 * MODEL. Every state page is touched once a step, so pinning what fits and streaming the rest has
 * the hit rate of the best possible cache, whatever the order. So nothing is moved later: the
 * planner spends the job's host bytes by value per byte, parameters first (several gathers a step),
 * then gradients (they must fit), then state.
 *
 *     needed      staging (booked when a rank arrives), gradients, and for parameters either all
 *                 of them or a ring for those that are streamed
 *     parameters  the longest prefix of shards, in order of registration, that can be resident
 *                 while the ring for the others still fits
 *     state       page by page, in order of registration, as long as bytes are left
 *
 * THE RING of streamed parameters has, for each rank and each size of shard, as many places as
 * there are such shards but at most ZSD_RING_PINS. So a rank can have that many shards pinned at
 * one time, whichever they are, and nothing fragments.
 *
 * ON THE DATA FILE each size of page has one place for each page, and as many spare ones as can be
 * in flight at one time (page buffers), because pages are always written to fresh places.
 *
 * A layout is computed without changing the job (struct plan), then booked in one go.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "daemon/job.h"

struct plan {
    uint32_t params_resident; /* shards [0, n) keep their parameters in memory */
    uint64_t param_bytes, ring_bytes, grad_bytes;
    uint64_t state_bytes; /* resident */
    uint64_t nvme_bytes;
    uint64_t least_params, least_host; /* the least that any layout of this job takes */
};

static uint64_t place_param_bytes(const struct zsd_shard *s)
{
    return s->count * s->planes[ZB_PARAM].elem_bytes;
}

static uint64_t place_state_bytes(const struct zsd_shard *s)
{
    return s->count * s->planes[ZB_STATE].elem_bytes;
}

/*
 * The longest resident prefix whose parameters and ring fit into `bytes`; -ENOSPC: not even all
 * streamed. Walked from the end: shard by shard, the suffix's ring is kept up to date.
 */
static int place_params(const struct zsd_job *job, uint64_t bytes, struct plan *plan)
{
    struct zsd_slots ring = { 0 };
    uint64_t resident = 0, ring_bytes = 0, least = UINT64_MAX;
    uint32_t class;
    int rc = 0;
    bool found = false;

    for (uint32_t i = 0; i < job->nshards; i++)
        resident += place_param_bytes(job->shards[i]);
    for (uint32_t n = job->nshards;; n--) { /* shards [0, n) resident */
        if (resident + ring_bytes <= bytes && !found) {
            found = true;
            plan->params_resident = n;
            plan->param_bytes = resident;
            plan->ring_bytes = ring_bytes;
        }
        least = zb_min_u64(least, resident + ring_bytes);
        if (n == 0 || job->offload_param == 1)
            break;
        rc = zsd_slots_count(&ring, place_param_bytes(job->shards[n - 1]), job->shards[n - 1]->rank,
                             &class);
        if (rc < 0)
            break;
        if (ring.classes[class].users <= ZSD_RING_PINS)
            ring_bytes += ring.classes[class].bytes;
        resident -= place_param_bytes(job->shards[n - 1]);
    }
    zsd_slots_done(&ring);
    plan->least_params = least;
    return rc < 0 ? rc : found ? 0 : -ENOSPC;
}

/* Sets each plane's resident pages for a plan that has `state_bytes` for state; counts extents. */
static int place_pages(struct zsd_job *job, const struct plan *plan, uint64_t state_left,
                       uint64_t *ret_state_bytes, struct zsd_slots *places)
{
    uint64_t state_bytes = 0;

    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        struct zsd_plane *state = &s->planes[ZB_STATE];

        s->planes[ZB_PARAM].resident = i < plan->params_resident ? s->npages : 0;
        state->resident = s->npages;
        for (uint32_t p = 0; p < s->npages && state->elem_bytes > 0; p++) {
            uint64_t bytes = zsd_page_bytes(s, ZB_STATE, p);

            if (bytes > state_left) {
                state->resident = p;
                break;
            }
            state_left -= bytes;
            state_bytes += bytes;
        }
        for (int p = 0; p < ZB_PLANES; p++) {
            struct zsd_plane *plane = &s->planes[p];

            for (uint32_t page = plane->resident; page < s->npages && plane->elem_bytes > 0;
                 page++) {
                bool tail = zsd_page_elems(s, page) < job->core->page_elems;
                int rc = zsd_slots_count(places, zsd_page_bytes(s, p, page), 0,
                                         tail ? &plane->class_tail : &plane->class_full);

                if (rc < 0)
                    return rc;
            }
        }
    }
    *ret_state_bytes = state_bytes;
    return 0;
}

/* What the job may still take of the host tier. */
static uint64_t place_host_free(const struct zsd_job *job)
{
    uint64_t free_bytes = zsd_account_free(&job->core->host);

    if (job->host_bytes_max > 0) {
        uint64_t held = 0;

        for (int use = 0; use < ZSD_USES; use++)
            held += job->host_held.used[use];
        free_bytes =
            zb_min_u64(free_bytes, job->host_bytes_max > held ? job->host_bytes_max - held : 0);
    }
    return free_bytes;
}

/* Host memory lacks: in the daemon's budget, below the job's own limit, or both. */
static int place_refuse_host(const struct zsd_job *job, const struct plan *plan, struct zb_err *err)
{
    const struct zsd_core *core = job->core;
    uint64_t others = zsd_account_used(&core->host) - core->nbuffers * core->buffer_bytes;
    uint64_t all = job->host_held.used[ZSD_USE_STAGING] + plan->least_host;
    char budget[80] = "", limit[80] = "";

    if (plan->least_host > zsd_account_free(&core->host))
        (void)snprintf(budget, sizeof(budget), "; the least host_bytes that would do is %llu",
                       (unsigned long long)zsd_host_least(core, others + plan->least_host));
    if (job->host_bytes_max > 0 && all > job->host_bytes_max)
        (void)snprintf(limit, sizeof(limit), "; the least host_bytes_max that would do is %llu",
                       (unsigned long long)all);
    return zb_fail(err, -ENOSPC,
                   "job '%s' does not fit: it needs at least %s of host memory (gradients %s, "
                   "parameters or their ring %s, optimizer state %s), and %s are free%s%s",
                   job->name, zb_size_text(plan->least_host).s, zb_size_text(plan->grad_bytes).s,
                   zb_size_text(plan->least_params).s,
                   zb_size_text(plan->least_host - plan->grad_bytes - plan->least_params).s,
                   zb_size_text(place_host_free(job)).s, budget, limit);
}

static int place_refuse_nvme(const struct zsd_job *job, const struct plan *plan, struct zb_err *err)
{
    const struct zsd_core *core = job->core;
    uint64_t least = core->daemon->engine_base + zsd_account_used(&core->nvme) + plan->nvme_bytes;

    return zb_fail(err, -ENOSPC,
                   "job '%s' does not fit: with %s of host memory it needs %s of NVMe, and %s are "
                   "free; the least nvme_bytes that would do is %llu",
                   job->name, zb_size_text(place_host_free(job)).s,
                   zb_size_text(plan->nvme_bytes).s, zb_size_text(zsd_account_free(&core->nvme)).s,
                   (unsigned long long)least);
}

static int place_plan(struct zsd_job *job, struct plan *plan, struct zb_err *err)
{
    struct zsd_core *core = job->core;
    uint64_t host_free = place_host_free(job), needed, state_left;
    int rc;

    /* without a data file everything must be resident */
    if (!core->extents)
        job->offload_param = job->offload_optimizer = 1;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        plan->grad_bytes += s->count * s->planes[ZB_GRAD].elem_bytes;
        if (job->offload_optimizer == 1)
            plan->least_host += place_state_bytes(s);
    }
    needed = plan->least_host += plan->grad_bytes;
    rc = place_params(job, host_free > needed ? host_free - needed : 0, plan);
    if (rc == -ENOMEM)
        return zb_fail(err, rc, "placement of job '%s': %m", job->name);
    plan->least_host += plan->least_params;
    if (rc < 0 || plan->least_host > host_free)
        return place_refuse_host(job, plan, err);
    state_left = host_free - plan->grad_bytes - plan->param_bytes - plan->ring_bytes;
    zsd_slots_done(&job->places);
    rc = place_pages(job, plan, state_left, &plan->state_bytes, &job->places);
    if (rc < 0)
        return zb_fail(err, rc, "placement of job '%s': %m", job->name);
    plan->nvme_bytes = zsd_slots_bytes(&job->places, core->nbuffers);
    return plan->nvme_bytes <= zsd_account_free(&core->nvme) ? 0
                                                             : place_refuse_nvme(job, plan, err);
}

/* Tables for the pages of one plane that are streamed. */
static int place_tables(struct zsd_shard *s, struct zsd_plane *plane, uint32_t full_bytes)
{
    uint32_t n = s->npages - plane->resident;

    if (plane->elem_bytes == 0 || n == 0)
        return 0;
    plane->crcs_per_page = zn_crc_count(full_bytes, plane->crc_bytes);
    plane->extents = malloc(n * sizeof(*plane->extents));
    for (uint32_t i = 0; plane->extents && i < n; i++) /* zsd_unplace() looks at them */
        plane->extents[i] = (struct zsd_extent){ .at = ZSD_NO_PLACE };
    plane->crcs = calloc((size_t)n * plane->crcs_per_page, sizeof(*plane->crcs));
    return plane->extents && plane->crcs ? 0 : -ENOMEM;
}

/* Takes every place on the data file that the job can need. */
static int place_take_extents(struct zsd_job *job)
{
    struct zsd_core *core = job->core;

    for (uint32_t i = 0; i < job->places.nclasses; i++) {
        struct zsd_slot_class *c = &job->places.classes[i];
        uint64_t first;
        int rc = zsd_slots_lay(c, c->users + (uint32_t)zb_min_u64(c->users, core->nbuffers));

        for (uint32_t n = 0; n < c->total && rc == 0; n++) {
            rc = zb_space_take(core->extents, c->bytes / ZB_PAGE_ALIGN, &first);
            if (rc == 0)
                zsd_slots_give(c, first * ZB_PAGE_ALIGN);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Gives all places back, free or in use. */
static void place_give_extents(struct zsd_job *job)
{
    struct zsd_core *core = job->core;

    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];

        for (int p = 0; p < ZB_PLANES; p++) {
            struct zsd_plane *plane = &s->planes[p];

            for (uint32_t page = plane->resident; plane->extents && page < s->npages; page++) {
                struct zsd_extent *e = &plane->extents[page - plane->resident];

                if (e->at != ZSD_NO_PLACE)
                    zb_space_give(core->extents, e->at / ZB_PAGE_ALIGN,
                                  zsd_page_bytes(s, p, page) / ZB_PAGE_ALIGN);
                e->at = ZSD_NO_PLACE;
            }
        }
    }
    for (uint32_t i = 0; i < job->places.nclasses; i++) {
        struct zsd_slot_class *c = &job->places.classes[i];

        for (uint64_t at; c->free_at && (at = zsd_slots_take(c)) != ZSD_NO_PLACE;)
            zb_space_give(core->extents, at / ZB_PAGE_ALIGN, c->bytes / ZB_PAGE_ALIGN);
    }
    zsd_slots_done(&job->places);
}

/* Offsets in the arena: the resident shards in order, then the ring's places. */
static int place_arena(struct zsd_job *job, const struct plan *plan)
{
    uint64_t at = 0;
    int rc = 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        struct zsd_shard *s = job->shards[i];

        if (i < plan->params_resident) {
            s->arena_at = at;
            at += place_param_bytes(s);
        } else {
            rc = zsd_slots_count(&job->ring, place_param_bytes(s), s->rank, &s->ring_class);
        }
    }
    for (uint32_t i = 0; i < job->ring.nclasses && rc == 0; i++) {
        struct zsd_slot_class *c = &job->ring.classes[i];

        rc = zsd_slots_lay(c, (uint32_t)zb_min_u64(c->users, ZSD_RING_PINS));
        for (uint32_t n = 0; rc == 0 && n < c->total; n++, at += c->bytes)
            zsd_slots_give(c, at);
    }
    assert(rc < 0 || at == plan->param_bytes + plan->ring_bytes);
    return rc;
}

static void place_book(struct zsd_job *job, enum zsd_use use, uint64_t bytes, bool nvme)
{
    struct zsd_account *tier = nvme ? &job->core->nvme : &job->core->host;
    struct zsd_account *held = nvme ? &job->nvme_held : &job->host_held;

    tier->used[use] += bytes;
    held->used[use] += bytes;
}

int zsd_place(struct zsd_job *job, struct zb_err *err)
{
    struct plan plan = { 0 };
    uint64_t nvme_state = 0, nvme_all;
    int rc;

    rc = place_plan(job, &plan, err);
    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        struct zsd_shard *s = job->shards[i];

        for (int p = 0; p < ZB_PLANES && rc == 0; p++)
            rc = place_tables(s, &s->planes[p], job->core->page_elems * s->planes[p].elem_bytes);
        for (uint32_t page = s->planes[ZB_STATE].resident; page < s->npages; page++)
            nvme_state += zsd_page_bytes(s, ZB_STATE, page);
    }
    if (rc == 0)
        rc = place_arena(job, &plan);
    if (rc == 0 && job->core->extents)
        rc = place_take_extents(job);
    if (rc == -ENOSPC)
        (void)zb_fail(err, rc,
                      "job '%s' does not fit: %s of NVMe are free, but in pieces, and no place of "
                      "the size of a page is left",
                      job->name, zb_size_text(zsd_account_free(&job->core->nvme)).s);
    if (rc < 0) {
        (void)zb_fail(err, rc, "placement of job '%s': %m", job->name);
        zsd_unplace(job);
        return rc;
    }
    job->arena_bytes = plan.param_bytes + plan.ring_bytes;
    job->ring_bytes = plan.ring_bytes;
    job->memory_bytes = plan.grad_bytes + plan.state_bytes;
    nvme_all = plan.nvme_bytes;
    place_book(job, ZSD_USE_PARAM, plan.param_bytes, false);
    place_book(job, ZSD_USE_RING, plan.ring_bytes, false);
    place_book(job, ZSD_USE_GRAD, plan.grad_bytes, false);
    place_book(job, ZSD_USE_STATE, plan.state_bytes, false);
    place_book(job, ZSD_USE_STATE, nvme_state, true);
    /* parameters that are streamed, and the spare places of both planes, which are the ring's use
     */
    nvme_all -= nvme_state;
    for (uint32_t i = plan.params_resident; i < job->nshards; i++) {
        uint64_t bytes = place_param_bytes(job->shards[i]);

        place_book(job, ZSD_USE_PARAM, bytes, true);
        nvme_all -= bytes;
    }
    place_book(job, ZSD_USE_RING, nvme_all, true);
    job->placed = true;
    return 0;
}

void zsd_place_attach(struct zsd_job *job)
{
    uint8_t *at = job->memory;

    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        struct zsd_plane *grad = &s->planes[ZB_GRAD];

        if (zsd_shard_resident(s))
            s->planes[ZB_PARAM].mem = job->arena.base + s->arena_at;
        if (grad->elem_bytes > 0) {
            grad->mem = at;
            at += s->count * grad->elem_bytes;
        }
    }
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_plane *state = &job->shards[i]->planes[ZB_STATE];

        for (uint32_t p = 0; p < state->resident && state->elem_bytes > 0; p++) {
            if (p == 0)
                state->mem = at;
            at += zsd_page_bytes(job->shards[i], ZB_STATE, p);
        }
    }
    assert(at == job->memory + job->memory_bytes);
}

void zsd_unplace(struct zsd_job *job)
{
    if (job->core->extents)
        place_give_extents(job);
    zsd_slots_done(&job->ring);
    for (int use = 0; use < ZSD_USES; use++) {
        if (use != ZSD_USE_STAGING) { /* booked and returned with the rank */
            job->core->host.used[use] -= job->host_held.used[use];
            job->host_held.used[use] = 0;
        }
        job->core->nvme.used[use] -= job->nvme_held.used[use];
        job->nvme_held.used[use] = 0;
    }
    job->placed = false;
}

int zsd_place_staging(struct zsd_job *job, uint64_t bytes, struct zb_err *err)
{
    uint64_t free_bytes = place_host_free(job);

    if (bytes > free_bytes)
        return zb_fail(
            err, -ENOSPC,
            "staging of %s for a rank of job '%s' does not fit: %s of host memory are free",
            zb_size_text(bytes).s, job->name, zb_size_text(free_bytes).s);
    place_book(job, ZSD_USE_STAGING, bytes, false);
    return 0;
}

void zsd_unplace_staging(struct zsd_job *job, uint64_t bytes)
{
    job->core->host.used[ZSD_USE_STAGING] -= bytes;
    job->host_held.used[ZSD_USE_STAGING] -= bytes;
}
