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
 * ON THE DATA FILE a job is promised (store.h), for each size of page, one place for each page that
 * is streamed, and as many spare ones as can be in flight at one time (page buffers), because pages
 * are always written to fresh places. A durable job is promised places for all of its pages, twice:
 * for what is committed, and for what comes next; frozen pages, which do not change, once.
 *
 * A layout is computed without changing the job (struct plan), then booked in one go.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "daemon/store.h"

struct plan {
    uint32_t params_resident; /* shards [0, n) keep their parameters in memory */
    uint64_t param_bytes, ring_bytes, grad_bytes;
    uint64_t state_bytes;    /* resident */
    struct zsd_promise nvme; /* places of pages */
    uint64_t nvme_param,
        nvme_state; /* of them, the bytes of one version that live or are kept there */
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

/* Counts the places that the pages of one plane need. */
static int place_count(const struct zsd_job *job, const struct zsd_shard *s, enum zb_plane p,
                       struct plan *plan, struct zsd_promise *streamed)
{
    const struct zsd_plane *plane = &s->planes[p];
    /* what a saved version holds already is counted in its rows */
    unsigned times = !job->durable || s->unit->layout.frozen ? 1
                     : !job->again                           ? 2
                                   : (unsigned)zb_max_u64(zsd_saved_next(job->saved), 1);
    int rc = 0;

    for (uint32_t page = job->durable ? 0 : plane->resident;
         page < s->npages && plane->elem_bytes > 0 && rc == 0; page++) {
        uint64_t bytes = zsd_page_bytes(s, p, page);
        bool is_streamed = page >= plane->resident;

        *(p == ZB_PARAM ? &plan->nvme_param : &plan->nvme_state) += bytes;
        rc = zsd_need_add(&plan->nvme, bytes, times);
        if (rc == 0 && is_streamed)
            rc = zsd_need_add(streamed, bytes, 1);
    }
    return rc;
}

bool zsd_place_holds(const struct zsd_job *job)
{
    return job->nshards > 0 && job->shards[0]->planes[ZB_PARAM].extents;
}

/* The pages of one plane from page `from` on, so many times. */
static int place_needs(const struct zsd_shard *s, enum zb_plane p, uint32_t from, unsigned times,
                       struct zsd_promise *ret)
{
    uint64_t tail = zsd_page_bytes(s, p, s->npages - 1), full = zsd_page_bytes(s, p, 0);
    int rc = 0;

    if (from >= s->npages || times == 0)
        return 0;
    if (from + 1 < s->npages)
        rc = zsd_need_add(ret, full, (uint64_t)(s->npages - 1 - from) * times);
    return rc < 0 ? rc : zsd_need_add(ret, tail, times);
}

int zsd_place_needs(const struct zsd_job *job, unsigned times, uint64_t stamp,
                    struct zsd_promise *ret)
{
    struct zsd_promise streamed = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        const struct zsd_shard *s = job->shards[i];
        unsigned held = s->row && s->row->stamp == stamp ? 0 : 1;

        for (int p = 0; p < ZB_PLANES && rc == 0; p++) {
            if (!s->planes[p].extents)
                continue;
            rc = place_needs(
                s, p, 0, s->unit->layout.frozen ? held : (unsigned)zb_max_u64(times, held), ret);
            if (rc == 0)
                rc = place_needs(s, p, s->planes[p].resident, 1, &streamed);
        }
    }
    for (uint32_t i = 0; i < streamed.n && rc == 0; i++)
        rc = zsd_need_add(ret, streamed.needs[i].bytes,
                          zb_min_u64(streamed.needs[i].count, job->core->nbuffers));
    zsd_need_done(&streamed);
    return rc;
}

/* Sets each plane's resident pages for a plan that has `state_left` for state; counts places. */
static int place_pages(struct zsd_job *job, struct plan *plan, uint64_t state_left)
{
    struct zsd_promise streamed = { 0 };
    int rc = job->again ? zsd_saved_holds(job->saved, &plan->nvme) : 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
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
            plan->state_bytes += bytes;
        }
        rc = place_count(job, s, ZB_PARAM, plan, &streamed);
        if (rc == 0)
            rc = place_count(job, s, ZB_STATE, plan, &streamed);
    }
    for (uint32_t i = 0; i < streamed.n && rc == 0; i++)
        rc = zsd_need_add(&plan->nvme, streamed.needs[i].bytes,
                          zb_min_u64(streamed.needs[i].count, job->core->nbuffers));
    zsd_need_done(&streamed);
    return rc;
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

/* What is promised to it already: a saved job's. */
static uint64_t place_promised(const struct zsd_job *job)
{
    return job->promise ? zsd_need_bytes(job->promise) : 0;
}

static int place_refuse_nvme(const struct zsd_job *job, const struct plan *plan, struct zb_err *err)
{
    const struct zsd_core *core = job->core;
    uint64_t all = zsd_need_bytes(&plan->nvme), held = place_promised(job);
    uint64_t least = core->daemon->engine_base + zsd_account_used(&core->nvme) + all - held;

    return zb_fail(
        err, -ENOSPC,
        "job '%s' does not fit: with %s of host memory it needs %s of NVMe%s, and %s are "
        "free; the least nvme_bytes that would do is %llu",
        job->name, zb_size_text(place_host_free(job)).s, zb_size_text(all).s,
        job->durable ? ", being durable" : "", zb_size_text(zsd_account_free(&core->nvme) + held).s,
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
    rc = place_pages(job, plan, state_left);
    if (rc < 0)
        return zb_fail(err, rc, "placement of job '%s': %m", job->name);
    return zsd_need_bytes(&plan->nvme) <= zsd_account_free(&core->nvme) + place_promised(job)
               ? 0
               : place_refuse_nvme(job, plan, err);
}

/* Tables for the pages of one plane, when any of them goes to the data file. */
static int place_tables(struct zsd_shard *s, struct zsd_plane *plane, uint32_t full_bytes)
{
    if (plane->elem_bytes == 0 || (plane->resident == s->npages && !s->job->durable))
        return 0;
    plane->crcs_per_page = zn_crc_count(full_bytes, plane->crc_bytes);
    plane->extents = malloc(s->npages * sizeof(*plane->extents));
    for (uint32_t i = 0; plane->extents && i < s->npages; i++) /* zsd_unplace() looks at them */
        plane->extents[i] = (struct zsd_extent){ .at = ZSD_NO_PLACE };
    plane->crcs = calloc((size_t)s->npages * plane->crcs_per_page, sizeof(*plane->crcs));
    return plane->extents && plane->crcs ? 0 : -ENOMEM;
}

/* Lets go of the places of all pages, and of the tables. */
static void place_give_extents(struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];

        zsd_shard_forget(s);
        for (int p = 0; p < ZB_PLANES; p++) {
            struct zsd_plane *plane = &s->planes[p];

            free(plane->extents);
            free(plane->crcs);
            plane->extents = NULL;
            plane->crcs = NULL;
        }
    }
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

static void place_book(struct zsd_job *job, enum zsd_use use, uint64_t bytes)
{
    job->core->host.used[use] += bytes;
    job->host_held.used[use] += bytes;
}

/* The places on the data file: the saved job's, when it is durable. */
static int place_promise(struct zsd_job *job, const struct plan *plan, struct zb_err *err)
{
    struct zsd_core *core = job->core;
    int rc;

    if (job->durable && !job->saved) {
        rc = zsd_saved_new(job, err);
        if (rc < 0)
            return rc;
    } else if (!job->durable) {
        job->promise = calloc(1, sizeof(*job->promise));
        if (!job->promise)
            return zb_fail(err, -ENOMEM, "placement of job '%s': %m", job->name);
    }
    return zsd_nvme_promise(core, job->durable ? &job->saved->nvme_held : &job->nvme_held,
                            job->promise, &plan->nvme, plan->nvme_param, plan->nvme_state, err);
}

int zsd_place(struct zsd_job *job, struct zb_err *err)
{
    struct plan plan = { 0 };
    int rc;

    rc = place_plan(job, &plan, err);
    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        struct zsd_shard *s = job->shards[i];

        for (int p = 0; p < ZB_PLANES && rc == 0; p++)
            if (p != ZB_GRAD)
                rc =
                    place_tables(s, &s->planes[p], job->core->page_elems * s->planes[p].elem_bytes);
    }
    if (rc == 0)
        rc = place_arena(job, &plan);
    if (rc == 0 && job->core->extents)
        rc = place_promise(job, &plan, err);
    zsd_need_done(&plan.nvme);
    if (rc < 0) {
        (void)zb_fail(err, rc, "placement of job '%s': %m", job->name);
        zsd_unplace(job);
        return rc;
    }
    job->arena_bytes = plan.param_bytes + plan.ring_bytes;
    job->ring_bytes = plan.ring_bytes;
    job->memory_bytes = plan.grad_bytes + plan.state_bytes;
    place_book(job, ZSD_USE_PARAM, plan.param_bytes);
    place_book(job, ZSD_USE_RING, plan.ring_bytes);
    place_book(job, ZSD_USE_GRAD, plan.grad_bytes);
    place_book(job, ZSD_USE_STATE, plan.state_bytes);
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
    place_give_extents(job);
    zsd_slots_done(&job->ring);
    for (int use = 0; use < ZSD_USES; use++) {
        if (use == ZSD_USE_STAGING) /* booked and returned with the rank */
            continue;
        job->core->host.used[use] -= job->host_held.used[use];
        job->host_held.used[use] = 0;
    }
    if (job->saved && !zsd_saved_kept(job->saved) && !job->saved->doubt) {
        zsd_nvme_unpromise(job->core, &job->saved->nvme_held, &job->saved->promise);
    } else if (job->saved) {
        struct zb_err err = { 0 };

        (void)zsd_saved_reserve(job->saved, &err); /* it shrinks; or keeps what it has */
    } else if (job->promise) {
        zsd_nvme_unpromise(job->core, &job->nvme_held, job->promise);
        free(job->promise);
    }
    job->promise = job->saved ? &job->saved->promise : NULL;
    job->placed = false;
}

const struct zsd_account *zsd_job_nvme(const struct zsd_job *job)
{
    return job->saved ? &job->saved->nvme_held : &job->nvme_held;
}

int zsd_place_staging(struct zsd_job *job, uint64_t bytes, struct zb_err *err)
{
    uint64_t free_bytes = place_host_free(job);

    if (bytes > free_bytes)
        return zb_fail(
            err, -ENOSPC,
            "staging of %s for a rank of job '%s' does not fit: %s of host memory are free",
            zb_size_text(bytes).s, job->name, zb_size_text(free_bytes).s);
    place_book(job, ZSD_USE_STAGING, bytes);
    return 0;
}

void zsd_unplace_staging(struct zsd_job *job, uint64_t bytes)
{
    job->core->host.used[ZSD_USE_STAGING] -= bytes;
    job->host_held.used[ZSD_USE_STAGING] -= bytes;
}
