/*
 * place.c - admission of a job: the inputs of its placement, refusals, and what is booked.
 *
 * MODEL. The opening comment of base/place.h has the rules and the arithmetic. Its inputs come from
 * the daemon (free bytes of the accounts, places that a saved job already holds). The result is
 * booked at once: in the accounts, and as a promise of places on the data files (disk/extents.h).
 * Nothing is booked before the job is known to fit. Work proportional to the number of shards or
 * pages is done in parts: before that in plan/placing.c, after it in plan/tables.c.
 */
#include "daemon/plan/place.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/host.h"
#include "daemon/plan/muon.h"
#include "daemon/plan/muon_gpu.h"
#include "daemon/plan/needs.h"
#include "daemon/plan/place_priv.h"
#include "daemon/plan/replan.h"

/* Whether the job has places on the data files, or may get some. */
static bool place_holds(const struct zsd_job *job)
{
    return job->nshards > 0 && zsd_plane_tables(job->shards[0], ZB_PARAM);
}

/* Bytes of the host tier that the job's own limit leaves. */
static uint64_t place_limit(const struct zsd_job *job)
{
    uint64_t held = 0;

    if (job->host_bytes_max == 0)
        return UINT64_MAX;
    for (int use = 0; use < ZSD_USES; use++)
        held += job->host_held.used[use];
    return job->host_bytes_max > held ? job->host_bytes_max - held : 0;
}

/* Bytes of the host tier that the job may still use. */
static uint64_t place_host_free(const struct zsd_job *job)
{
    return zb_min_u64(zb_min_u64(zsd_host_free(job->core, &job->want), place_limit(job)),
                      zsd_limit_bytes_left(&job->quota, ZSD_HELD_HOST));
}

/* For an error message: the smallest host_bytes of the daemon, and the smallest limit of the job,
 * that would work for a job that needs so many bytes for planes and ring. "": it is large
 * enough. */
struct place_least {
    char budget[80], limit[80];
};

static struct place_least place_least(const struct zsd_job *job, uint64_t bytes)
{
    const struct zsd_core *core = job->core;
    uint64_t free_bytes = zsd_host_free(core, &job->want);
    uint64_t others = core->tiers.host.budget - free_bytes -
                      core->disk->nbuffers * core->disk->buffer_bytes;
    uint64_t all = job->host_held.used[ZSD_USE_STAGING] + bytes;
    struct place_least least = { "", "" };

    if (bytes > free_bytes)
        (void)snprintf(least.budget, sizeof(least.budget),
                       "; the smallest host_bytes that would work is %llu",
                       (unsigned long long)zsd_host_least(core, others + bytes));
    if (job->host_bytes_max > 0 && all > job->host_bytes_max)
        (void)snprintf(least.limit, sizeof(least.limit),
                       "; the smallest host_bytes_max that would work is %llu",
                       (unsigned long long)all);
    return least;
}

static int place_refuse_host(const struct zsd_job *job, const struct zb_place *plan,
                             struct zb_err *err)
{
    uint64_t all = plan->least_host + job->muon_room.bytes;
    struct place_least least = place_least(job, all);
    char muon[80] = "";

    if (zsd_limit_bytes(&job->quota, ZSD_HELD_HOST, all, err) < 0)
        return -EDQUOT;
    if (job->muon_room.bytes > 0)
        (void)snprintf(muon, sizeof(muon), ", Muon's matrices %s",
                       zb_size_text(job->muon_room.bytes).s);
    return zb_fail(err, -ENOSPC,
                   "job '%s' does not fit: it needs at least %s of host memory (gradients %s, "
                   "parameters or their ring %s, optimizer state %s%s), and %s are free%s%s",
                   job->name, zb_size_text(all).s, zb_size_text(plan->grad_bytes).s,
                   zb_size_text(plan->least_params).s,
                   zb_size_text(plan->least_host - plan->grad_bytes - plan->least_params).s, muon,
                   zb_size_text(place_host_free(job)).s, least.budget, least.limit);
}

/* Warns that gradients are on NVMe, with the cost, and the budget that would avoid it. Call before
 * the job is booked. */
static void place_warn(const struct zsd_job *job, const struct zb_place *plan)
{
    struct place_least least = place_least(job, plan->least_grads + job->muon_room.bytes);

    zb_log(ZB_LOG_WARN, "grads-on-nvme",
           "job=\"%s\" uid=%u bytes=%llu why=\"host memory holds %s of its gradients: each "
           "micro-step writes and reads the other %s%s%s\"",
           job->name, (unsigned)job->uid, (unsigned long long)plan->nvme_grad,
           zb_size_text(plan->grad_bytes).s, zb_size_text(plan->nvme_grad).s, least.budget,
           least.limit);
}

/* Bytes of places already promised to the job (if it is a saved job). */
static uint64_t place_promised(const struct zsd_job *job)
{
    return job->promise ? zb_needs_bytes(job->promise) : 0;
}

static int place_refuse_nvme(const struct zsd_job *job, const struct zb_place *plan,
                             struct zb_err *err)
{
    const struct zsd_core *core = job->core;
    uint64_t all = zb_needs_bytes(&plan->nvme), held = place_promised(job);
    uint64_t least = core->daemon->engine_base + zsd_account_used(&core->tiers.nvme) + all - held;

    return zb_fail(
        err, -ENOSPC,
        "job '%s' does not fit: with %s of host memory it needs %s of NVMe%s, and %s are "
        "free; the smallest nvme_bytes that would work is %llu",
        job->name, zb_size_text(place_host_free(job)).s, zb_size_text(all).s,
        job->durable ? ", being durable" : "",
        zb_size_text(zsd_account_free(&core->tiers.nvme) + held).s, (unsigned long long)least);
}

/* ---- inputs, and the plan */

static struct zb_place_job place_inputs(const struct zsd_placing *p)
{
    struct zsd_job *job = p->job;
    uint64_t free_bytes = place_host_free(job);

    return (struct zb_place_job){
        .shards = p->shards,
        .nshards = job->nshards,
        .page_elems = job->core->page_elems,
        .nbuffers = zsd_muon_buffers(job, &p->room),
        .params_resident = job->offload_param == ZP_HOST,
        .params_on_gpu = zsd_params_fit(job, p->param_bytes),
        .grads_resident = job->offload_grad == ZP_HOST || !p->spill,
        .state_resident = job->offload_optimizer == ZP_HOST,
        .durable = job->durable,
        .ring_keep = job->ring_keep,
        .ring_limits = job->limits_wish,
        /* places of saved versions are counted with their rows */
        .times = job->saved && job->again ? (unsigned)zb_max_u64(zsd_saved_next(job->saved), 1) : 2,
        .host_bytes = free_bytes - zb_min_u64(free_bytes, p->room.bytes)
    };
}

static uint64_t place_nvme_free(const struct zsd_job *job)
{
    return zsd_account_free(&job->core->tiers.nvme) + place_promised(job);
}

int zsd_placing_look(struct zsd_placing *p)
{
    p->room = (struct zb_muon_room){ 0 };
    p->in = place_inputs(p);
    p->nvme_free = place_nvme_free(p->job);
    zb_needs_done(&p->held);
    return p->job->again && p->job->saved ? zb_needs_sum(&p->held, &p->job->saved->held, 1) : 0;
}

/* Makes a plan, with or without room for early steps. 0, -ENOMEM, or -ENOSPC: too little host
 * memory. */
static int place_try(struct zsd_placing *p, bool early)
{
    int rc;

    zb_place_done(&p->plan);
    p->in.early = early;
    p->in.grad_ring = early && p->rings;
    rc = zb_needs_sum(&p->plan.nvme, &p->held, 1);
    return rc < 0 ? rc : zb_place(&p->in, &p->plan);
}

/* Makes a plan, with room for early steps if that is wished for and fits. */
static void plan_try(struct zsd_placing *p)
{
    p->rc = place_try(p, p->early);
    if (p->rc == 0 && p->in.early && zb_needs_bytes(&p->plan.nvme) > p->nvme_free)
        p->rc = place_try(p, false);
}

/* With Muon: tries the most room first. If gradients may go to NVMe for lack of memory, the least at once. */
static void plan_muon(struct zsd_placing *p)
{
    uint64_t host_bytes = p->in.host_bytes;
    uint32_t nbuffers = p->in.nbuffers;

    for (unsigned spans = p->spill ? 1 : ZB_MUON_SPANS_MAX; spans > 0; spans--) {
        p->room = zb_muon_room(&p->muon, spans, p->muon_streams);
        p->in.host_bytes = host_bytes - zb_min_u64(host_bytes, p->room.bytes);
        p->in.nbuffers = nbuffers + p->room.slots;
        p->rc = -ENOSPC;
        if (p->room.bytes <= host_bytes || spans == 1)
            plan_try(p);
        if (p->rc == -ENOMEM || !zsd_placing_refused(p))
            return;
    }
}

void zsd_placing_plan(struct zsd_placing *p)
{
    p->rc = zb_place_few(p->shards, p->job->nshards, p->job->world);
    if (p->rc == 0 && p->muon.all_bytes > 0) {
        plan_muon(p);
        return;
    }
    if (p->rc == 0)
        plan_try(p);
}

bool zsd_placing_refused(const struct zsd_placing *p)
{
    return p->rc < 0 || zb_needs_bytes(&p->plan.nvme) > p->nvme_free;
}

static bool needs_same(const struct zb_needs *a, const struct zb_needs *b)
{
    bool same = a->n == b->n;

    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->needs[i].bytes == b->needs[i].bytes && a->needs[i].count == b->needs[i].count;
    return same;
}

bool zsd_placing_current(const struct zsd_placing *p)
{
    const struct zb_place *plan = &p->plan;
    const struct zsd_job *job = p->job;
    struct zb_place_job now = place_inputs(p);
    uint64_t nvme_free = place_nvme_free(job);

    if (now.params_on_gpu != p->in.params_on_gpu || now.times != p->in.times ||
        (job->again && job->saved && !needs_same(&p->held, &job->saved->held)))
        return false;
    if (zsd_placing_refused(p))
        return now.host_bytes == p->in.host_bytes && nvme_free == p->nvme_free;
    return plan->param_bytes + plan->ring_bytes + plan->grad_bytes + plan->state_bytes <=
               now.host_bytes &&
           zb_needs_bytes(&plan->nvme) <= nvme_free;
}

/* ---- booking */

/* Whether the plan fits. 0; -ENOSPC, -EDQUOT, -ENOMEM: err. */
static int place_admit(const struct zsd_placing *p, struct zb_err *err)
{
    const struct zb_place *plan = &p->plan;
    struct zsd_job *job = p->job;
    uint64_t needs = zb_needs_bytes(&plan->nvme);

    job->place_least = 0;
    if (zsd_muon_whole(job, err) < 0 || zsd_muon_fits(job, &p->muon, err) < 0)
        return err->code;
    if (p->rc == -ENOSPC) {
        uint64_t least = plan->least_host + job->muon_room.bytes;
        uint64_t all = job->host_held.used[ZSD_USE_STAGING] + least;

        if (job->host_bytes_max == 0 || all <= job->host_bytes_max)
            job->place_least = least;
        return place_refuse_host(job, plan, err);
    }
    if (p->rc < 0)
        return zb_fail(err, p->rc, "placement of job '%s': %m", job->name);
    if (needs > place_nvme_free(job))
        return place_refuse_nvme(job, plan, err);
    return zsd_limit_bytes(&job->quota, ZSD_HELD_NVME,
                           needs - zb_min_u64(needs, place_promised(job)), err);
}

struct zsd_saved *zsd_place_saved(const struct zsd_job *job)
{
    struct zsd_saved *s = zsd_saved_new(job->core->store, job->units, job->nunits);

    if (!s)
        return NULL;
    s->number = job->number;
    memcpy(s->name, job->name, sizeof(s->name));
    s->uid = job->uid;
    zsd_saved_own(s);
    s->groups = job->groups;
    s->optimizer = job->optimizer;
    s->moments = job->moments;
    s->muon_engine = job->muon_engine;
    s->offload_param = job->offload_param;
    s->offload_optimizer = job->offload_optimizer;
    s->host_bytes_max = job->host_bytes_max;
    s->epoch = job->epoch;
    return s;
}

/* Makes the saved job of a durable job that is placed for the first time. 0 or -ENOMEM. */
static int place_saved(struct zsd_job *job, struct zb_err *err)
{
    struct zsd_saved *s = zsd_place_saved(job);

    if (!s)
        return zb_fail(err, -ENOMEM, "the manifest of job '%s': %m", job->name);
    s->job = job;
    job->saved = s;
    job->promise = &s->promise;
    return 0;
}

/* Promises the places on the data files: to the saved job, if the job is durable. */
static int place_promise(struct zsd_job *job, const struct zb_place *plan, struct zb_err *err)
{
    const uint64_t planes[ZB_PLANES] = { plan->nvme_param, plan->nvme_grad, plan->nvme_state };
    struct zsd_core *core = job->core;
    int rc;

    if (job->durable && !job->saved) {
        rc = place_saved(job, err);
        if (rc < 0)
            return rc;
    } else if (!job->durable) {
        job->promise = calloc(1, sizeof(*job->promise));
        if (!job->promise)
            return zb_fail(err, -ENOMEM, "placement of job '%s': %m", job->name);
    }
    if (job->saved) {
        job->saved->needs = place_holds(job) ? zsd_place_needs : NULL;
        zsd_saved_planned(job->saved);
    }
    return zsd_nvme_promise(core, job->durable ? &job->saved->nvme_held : &job->nvme_held,
                            job->promise, &plan->nvme, planes, err);
}

static void place_grads(struct zsd_job *job, uint64_t nvme_bytes)
{
    job->grads_nvme_bytes = nvme_bytes;
    if (job->saved)
        job->saved->grads_bytes = nvme_bytes;
}

int zsd_placing_book(const struct zsd_placing *p, struct zb_err *err)
{
    const struct zb_place *plan = &p->plan;
    struct zsd_job *job = p->job;
    int rc;

    job->muon_room = p->room;
    job->muon_most_bytes = zb_muon_room(&p->muon, ZB_MUON_SPANS_MAX, p->muon_streams).bytes;
    rc = place_admit(p, err);

    if (rc == 0 && job->core->disk->extents)
        rc = place_promise(job, plan, err);
    if (rc < 0) {
        (void)zb_fail(err, rc, "placement of job '%s': %m", job->name);
        zsd_unplace(job);
        return rc;
    }
    job->early_room = p->in.early;
    job->grads_ringed = plan->grads_ringed;
    job->room_bytes = plan->room_bytes;
    job->arena_bytes = plan->param_bytes + plan->ring_bytes;
    job->ring_bytes = plan->ring_bytes;
    job->memory_bytes = plan->grad_bytes + job->replan->all_bytes;
    place_grads(job, plan->nvme_grad);
    if (plan->nvme_grad > 0 && !job->ring_limits)
        place_warn(job, plan);
    zsd_params_book(job, p->in.params_on_gpu ? p->param_bytes : NULL);
    zsd_muon_book(job);
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_PARAM, plan->param_bytes);
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_RING,
             plan->ring_bytes + job->muon_room.bytes);
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_GRAD, plan->grad_bytes);
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_STATE, plan->state_bytes);
    job->placed = true;
    return 0;
}

void zsd_unplace(struct zsd_job *job)
{
    bool own = job->promise && !(job->saved && job->promise == &job->saved->promise);

    if (job->saved) {
        job->saved->needs = NULL;
        zsd_saved_planned(job->saved);
    }
    place_grads(job, 0);
    for (int use = 0; use < ZSD_USES; use++) {
        if (use == ZSD_USE_STAGING) /* booked and unbooked with the rank */
            continue;
        zsd_unbook(&job->core->tiers.host, &job->host_held, use, job->host_held.used[use]);
    }
    zsd_host_settle(job->core);
    zsd_gpu_unplace(job);
    zsd_params_unplace(job);
    zsd_muon_unbook(job);
    if (job->saved && !zsd_saved_kept(job->saved) && !job->saved->doubt && !job->saved->gone) {
        zsd_nvme_unpromise(job->core, &job->saved->nvme_held, &job->saved->promise);
    } else if (job->saved) {
        struct zb_err err = { 0 };

        /* shrinks the promise; that of a destroyed job may stay, because readers may use its
         * places */
        (void)zsd_saved_reserve(job->saved, &err);
    }
    if (own) { /* also of a job with an image */
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

bool zsd_place_staging_fits(const struct zsd_job *job, uint64_t bytes, uint64_t *ret_lacks)
{
    uint64_t kept = zsd_replan_away(job);

    *ret_lacks = bytes > kept ? bytes - kept : 0;
    return bytes <= kept || bytes <= place_limit(job);
}

int zsd_place_staging(struct zsd_job *job, uint64_t bytes, struct zb_err *err)
{
    uint64_t kept = zsd_replan_away(job); /* reserved for ranks; a reader may use it for a while */
    uint64_t free_bytes = zb_min_u64(zsd_host_free(job->core, &job->want) + kept,
                                     zsd_account_free(&job->core->tiers.host));

    if (zsd_limit_bytes(&job->quota, ZSD_HELD_HOST, bytes, err) < 0)
        return -EDQUOT;
    if (bytes > kept)
        free_bytes = zb_min_u64(free_bytes, place_limit(job));
    if (bytes > free_bytes)
        return zb_fail(
            err, -ENOSPC,
            "staging of %s for a rank of job '%s' does not fit: %s of host memory are free",
            zb_size_text(bytes).s, job->name, zb_size_text(free_bytes).s);
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_STAGING, bytes);
    job->staging_most = zb_max_u64(job->staging_most, job->host_held.used[ZSD_USE_STAGING]);
    return 0;
}

void zsd_unplace_staging(struct zsd_job *job, uint64_t bytes)
{
    zsd_unbook(&job->core->tiers.host, &job->host_held, ZSD_USE_STAGING, bytes);
    zsd_host_settle(job->core);
}

void zsd_shard_bytes(const struct zsd_shard *s, uint64_t *ret_host, uint64_t *ret_nvme,
                     uint64_t *ret_gpu)
{
    uint64_t host = 0, nvme = 0, gpu = 0;

    for (int p = 0; p < ZB_PLANES; p++) {
        const struct zsd_plane *plane = &s->planes[p];
        uint64_t page_elems = s->job->core->page_elems;
        uint64_t resident = zb_min_u64(s->count, plane->resident * page_elems);

        uint64_t end = p == ZB_STATE ? zb_min_u64(s->count, s->gpu_from * page_elems) : s->count;

        if (p == ZB_PARAM && zsd_params_there(s->job)) {
            gpu += zb_plane_bytes(plane->block_bytes, page_elems, s->count);
            continue;
        }
        host += zb_plane_bytes(plane->block_bytes, page_elems, resident);
        if (p == ZB_GRAD && s->job->grad_ring) {
            host += zsd_aside_bytes(s);
            if (!s->job->ring_limits)
                continue; /* the others are nowhere */
        }
        nvme += zb_plane_bytes(plane->block_bytes, page_elems, end - resident);
        gpu += zb_plane_bytes(plane->block_bytes, page_elems, s->count - end);
    }
    *ret_gpu = gpu;
    *ret_host = host;
    *ret_nvme = nvme;
}
