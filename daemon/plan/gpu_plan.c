/*
 * plan/gpu_plan.c - optimizer state on the GPU: planned like state in host memory (plan/replan.c),
 * and moved by the same steps.
 *
 * MODEL. In order of registration, the GPU has the last pages of a job's state, host memory the
 * first ones, and NVMe those in between. So the budgets of GPU and host are independent. A job's
 * state is cut into runs of pages, from its end (base/place.h). A run is one allocation. Two
 * numbers of runs, counted from the end:
 *
 *     to    assigned by the division
 *     made  allocated, and booked in the tier's account with the exact bytes of the device
 *
 * Two pages per shard say where the GPU's part begins: gpu_from now, and gpu_next after the next
 * step.
 *
 *     grows     made ---> places promised ---> gpu_next ---> [a step] ---> gpu_from
 *     shrinks   to ---> gpu_next ---> [a step] ---> gpu_from ---> freed
 *
 * LOWER TIER. A page on the GPU keeps a promised place on a data file; or booked host memory, if
 * the job's state must not be on NVMe. So it can always leave, the GPU's budget can always be
 * lowered, and no job depends on the GPU to fit. Every job begins without the GPU, and its first
 * steps move state there.
 *
 * PINS. A step copies the job's parameters and its gradient directly, or through page buffers
 * (disk/buffers.c). All of this memory is pinned. Pinning takes long, so a separate task pins a
 * job's memory before its first page can move; no copy uses memory that is being pinned. (If the
 * job's parameters are on the GPU, a page that is stepped early is copied up from its gradient's
 * memory, which may happen at any time. So that job's memory is pinned when it is allocated,
 * job_arena.c.) State in host memory is not pinned, because it moves only once. Memory that the
 * driver refuses to pin is copied all the same, and `zctl tiers` reports it.
 *
 * A STEP of a page whose state is on the GPU, or moves there, or leaves it, runs on the GPU
 * (page/pageop.c). So a page that moves is stepped once, like any other.
 *
 * FAILURE of the device is final: jobs with state or parameters on it end, other jobs are not
 * affected. The tier stays empty until the daemon is restarted.
 *
 * INVARIANTS
 *
 *     G1  gpu_next does not change while a step runs, or while one has begun early (op/early.c).
 *     G2  Runs [0, made) are allocated, and all pages from the lesser of gpu_from and gpu_next on
 *         are inside them.
 *     G3  resident <= gpu_from; pages of state between the two are on NVMe.
 */
#include "daemon/plan/gpu_plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/plan/needs.h"
#include "daemon/plan/parts.h"
#include "daemon/plan/replan.h"
#include "daemon/run/gpu_tier.h"

/* ---- runs */

/* The allocation unit of the device. */
static uint64_t gpu_unit(const struct zsd_core *core)
{
    return zk_gpu_info(zsd_gpu_device(core->daemon->gpu))->granularity_bytes;
}

uint64_t zsd_gpu_units(const struct zsd_core *core, uint64_t bytes)
{
    return zb_round_up(bytes, gpu_unit(core));
}

static uint64_t run_booked(const struct zsd_job *job, uint32_t run)
{
    return zb_gpu_run_taken(&job->gpu->runs[run], gpu_unit(job->core));
}

static uint64_t runs_booked(const struct zsd_job *job, uint32_t from, uint32_t to)
{
    uint64_t bytes = 0;

    for (uint32_t i = from; i < to; i++)
        bytes += run_booked(job, i);
    return bytes;
}

/* Cuts the job's state into runs, once. 0 or -ENOMEM. */
static int runs_make(struct zsd_job *job)
{
    uint64_t unit = gpu_unit(job->core);
    uint32_t page_elems = job->core->page_elems;
    struct zb_place_shard *shards = job->gpu->runs ? NULL : zsd_place_shards(job);

    if (job->gpu->runs)
        return 0;
    if (shards)
        job->gpu->nruns = zb_gpu_runs(shards, job->nshards, page_elems, unit, NULL);
    job->gpu->runs = shards ? calloc(zb_max_u64(job->gpu->nruns, 1), sizeof(*job->gpu->runs))
                            : NULL;
    job->gpu->mems =
        job->gpu->runs ? calloc(zb_max_u64(job->gpu->nruns, 1), sizeof(struct zk_gpu_mem *)) : NULL;
    if (job->gpu->mems) {
        (void)zb_gpu_runs(shards, job->nshards, page_elems, unit, job->gpu->runs);
    } else {
        free(job->gpu->runs);
        job->gpu->runs = NULL;
    }
    free(shards);
    return job->gpu->mems ? 0 : -ENOMEM;
}

/* The first page of shard i that is inside the first n runs. */
static uint32_t runs_page(const struct zsd_job *job, uint32_t n, uint32_t i)
{
    const struct zb_gpu_run *last = n > 0 ? &job->gpu->runs[n - 1] : NULL;

    if (!last || !zsd_state_is(job->shards[i]) || i < last->shard)
        return job->shards[i]->npages;
    return i == last->shard ? last->page : 0;
}

/* The number of runs that are in use, or will be after the next step (G2). */
static uint32_t runs_used(const struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];
        uint32_t page = zb_min_u64(s->gpu_from, s->gpu_next), n = 0;

        if (page == s->npages)
            continue;
        while (job->gpu->runs[n].shard > i ||
               (job->gpu->runs[n].shard == i && job->gpu->runs[n].page > page))
            n++;
        return n + 1;
    }
    return 0;
}

void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_job *job = s->job;
    uint64_t at = (uint64_t)(zsd_page_at(s, ZB_STATE, page) - job->memory) -
                  (job->memory_bytes - job->replan->all_bytes);
    uint32_t run;

    zb_lower_bound(run, job->gpu->made, job->gpu->runs[run].from > at); /* `from` descends */
    assert(run < job->gpu->made);
    return (uint8_t *)zk_gpu_addr(job->gpu->mems[run]) + (at - job->gpu->runs[run].from);
}

/* ---- accounts */

void zsd_gpu_settle(struct zsd_core *core)
{
    uint64_t used = 0;

    for (int use = 0; use < ZSD_USES; use++)
        used += core->tiers.gpu.used[use];
    core->tiers.gpu.budget = zb_max_u64(core->tiers.gpu_target, used);
}

void zsd_gpu_begin(struct zsd_core *core)
{
    struct zsd *daemon = core->daemon;

    if (!daemon->gpu)
        return;
    core->tiers.gpu.budget = core->tiers.gpu_target = daemon->config.gpu_bytes;
    zsd_book(&core->tiers.gpu, NULL, ZSD_USE_RING, zsd_gpu_own_bytes(daemon->gpu));
    zsd_gpu_settle(core);
}

static void gpu_book(struct zsd_job *job, uint64_t bytes)
{
    job->gpu->held_bytes += bytes;
    zsd_book(&job->core->tiers.gpu, &job->gpu_held, ZSD_USE_STATE, bytes);
}

static void gpu_unbook(struct zsd_job *job, uint64_t bytes)
{
    job->gpu->held_bytes -= bytes;
    zsd_unbook(&job->core->tiers.gpu, &job->gpu_held, ZSD_USE_STATE, bytes);
    zsd_gpu_settle(job->core);
}

uint64_t zsd_gpu_leaving(const struct zsd_job *job)
{
    return job->gpu->held_bytes - runs_booked(job, 0, zb_min_u64(job->gpu->to, job->gpu->made));
}

void zsd_gpu_drop(struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->gpu->made; i++)
        zk_gpu_free(job->gpu->mems[i]);
}

void zsd_gpu_unplace(struct zsd_job *job)
{
    gpu_unbook(job, job->gpu->held_bytes);
    free(job->gpu->runs);
    free(job->gpu->mems);
    *job->gpu = (struct zsd_job_gpu){ 0 };
}

/* ---- allocating and freeing memory */

struct gpu_task {
    struct zsd_task task;
    struct zsd_job *job;
    uint32_t from, to; /* runs */
    bool makes, pins;
    uint8_t *params, *grads; /* host memory to pin */
    uint64_t params_bytes, grads_bytes;
    int rc;
    struct zb_err err, pin_err;
};

/* Pins parameters and gradients. The state after them is not pinned: it moves (plan/replan.c). */
static void task_pin(struct gpu_task *t)
{
    const struct zsd *daemon = t->job->core->daemon;

    if (zsd_gpu_pin(daemon, t->params, t->params_bytes, &t->pin_err) == 0)
        (void)zsd_gpu_pin(daemon, t->grads, t->grads_bytes, &t->pin_err);
}

static void task_run(struct zsd_task *task)
{
    struct gpu_task *t = zb_container_of(task, struct gpu_task, task);
    struct zk_gpu *device = zsd_gpu_device(t->job->core->daemon->gpu);
    const struct zb_gpu_run *runs = t->job->gpu->runs;
    struct zk_gpu_mem **mems = t->job->gpu->mems;

    for (uint32_t i = t->from; i < t->to && t->makes && t->rc == 0; i++)
        t->rc = zk_gpu_alloc(device, runs[i].bytes, t->job->number, &mems[i], &t->err);
    for (uint32_t i = t->from; i < t->to && (!t->makes || t->rc < 0); i++) {
        zk_gpu_free(mems[i]);
        mems[i] = NULL;
    }
    if (t->pins && t->rc == 0)
        task_pin(t);
}

void zsd_gpu_pinned(struct zsd_job *job, const struct zb_err *err)
{
    job->gpu->pinned = true;
    if (err->code == 0)
        return;
    zb_log(ZB_LOG_WARN, "gpu-unpinned", "job=\"%s\" uid=%u why=\"%s\"", job->name,
           (unsigned)job->uid, err->text);
    (void)zb_fail(&job->core->tiers.gpu_unpinned, err->code, "%s", err->text);
}

static void task_made(struct gpu_task *t)
{
    struct zsd_job *job = t->job;

    if (t->rc == 0) {
        job->gpu->made = job->gpu->to = t->to;
        job->gpu->refused = false;
        if (t->pins)
            zsd_gpu_pinned(job, &t->pin_err);
        return;
    }
    gpu_unbook(job, runs_booked(job, t->from, t->to));
    if (t->rc == -EIO || t->rc == -EFAULT)
        zsd_gpu_fail(job->core, &t->err);
    else if (!job->gpu->refused)
        zb_log(ZB_LOG_WARN, "gpu-no-memory", "job=\"%s\" uid=%u why=\"%s\"", job->name,
               (unsigned)job->uid, t->err.text);
    job->gpu->refused = true;
}

static void gpu_take(struct zsd_job *job);

static void task_done(struct zsd_task *task)
{
    struct gpu_task *t = zb_container_of(task, struct gpu_task, task);
    struct zsd_job *job = t->job;

    job->gpu->busy = false;
    if (t->makes)
        task_made(t);
    else
        gpu_unbook(job, runs_booked(job, t->from, t->to));
    if (job->state != ZSD_ENDED) {
        gpu_take(job);
        if (t->rc == 0)
            zsd_replan(job->core);
    }
    free(t);
    zsd_job_unhold(job);
}

/* 0 or -ENOMEM. */
static int task_start(struct zsd_job *job, uint32_t from, uint32_t to, bool makes)
{
    struct gpu_task *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    *t = (struct gpu_task){ .task = { .run = task_run, .done = task_done },
                            .job = job,
                            .from = from,
                            .to = to,
                            .makes = makes,
                            .pins = makes && !job->gpu->pinned,
                            .params = job->arena.base,
                            .params_bytes = job->arena.bytes,
                            .grads = job->memory,
                            .grads_bytes = job->memory_bytes - job->replan->all_bytes };
    t->task.slow = t->pins;
    job->gpu->busy = true;
    zsd_job_hold(job);
    if (t->pins) /* slow: it must not occupy a GPU thread */
        zsd_task_start(job->core, &t->task);
    else
        zsd_compute_post(job->core->daemon->gpu_threads, &t->task);
    return 0;
}

/* ---- what a job does with its part */

/* Sets gpu_next of each shard to the wanted page, as far as memory is allocated (G1). */
static void gpu_take(struct zsd_job *job)
{
    uint32_t n = (uint32_t)zb_min_u64(job->gpu->to, job->gpu->made);
    struct zb_err err = { 0 };
    bool more = false;

    if ((job->state == ZSD_STEPPING && !job->draining) || job->early_said > 0 ||
        job->early_inflight > 0 || !job->placed)
        return;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t page = runs_page(job, n, i);

        more = more || page < s->gpu_next;
        job->replan->settled = job->replan->settled && page == s->gpu_next;
        s->gpu_next = page;
    }
    if (!more || !zsd_state_moves(job) || zsd_replan_promise(job, true, &err) == 0)
        return;
    if (!job->gpu->refused)
        zb_log(ZB_LOG_WARN, "gpu-no-places", "job=\"%s\" uid=%u why=\"%s\"", job->name,
               (unsigned)job->uid, err.text);
    job->gpu->refused = true;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->gpu_next = job->shards[i]->gpu_from;
    job->gpu->to = runs_used(job);
}

/* Frees runs that are neither wanted nor used. */
static void gpu_release(struct zsd_job *job)
{
    uint32_t used = runs_used(job), made = job->gpu->made;
    uint32_t keep = (uint32_t)zb_max_u64(used, zb_min_u64(job->gpu->to, made));

    if (job->gpu->busy || keep >= made || (job->state == ZSD_STEPPING && !job->draining))
        return;
    job->gpu->made = keep;
    if (task_start(job, keep, made, false) < 0)
        job->gpu->made = made; /* no memory: the next plan tries again */
}

/* Allocates more runs, as many as fit the job's part and the tier. */
static void gpu_grow(struct zsd_job *job, uint64_t target)
{
    uint64_t left = zb_min_u64(zsd_account_free(&job->core->tiers.gpu),
                               zsd_limit_bytes_left(&job->quota, ZSD_HELD_GPU)),
             all = runs_booked(job, 0, job->gpu->made);
    uint32_t n = job->gpu->made;

    while (n < job->gpu->nruns) {
        uint64_t bytes = run_booked(job, n);

        if (all + bytes > target || bytes > left)
            break;
        all += bytes;
        left -= bytes;
        n++;
    }
    if (n == job->gpu->made || job->gpu->busy)
        return;
    gpu_book(job, runs_booked(job, job->gpu->made, n));
    if (task_start(job, job->gpu->made, n, true) < 0)
        gpu_unbook(job, runs_booked(job, job->gpu->made, n));
}

static void gpu_job(struct zsd_job *job, uint64_t target, bool exact)
{
    uint64_t held = runs_booked(job, 0, job->gpu->made);
    uint64_t much = exact ? 0 : held / ZSD_REPLAN_LEAVE_BE;

    job->gpu->to = job->gpu->made;
    if (held > target && held - target > much)
        while (job->gpu->to > 0 && runs_booked(job, 0, job->gpu->to) > target)
            job->gpu->to--;
    gpu_take(job);
    gpu_release(job);
    if (job->gpu->to == job->gpu->made)
        gpu_grow(job, target);
}

/* ---- the division */

/* Whether the job's state may move: it has ranks that step. */
static bool gpu_moves(const struct zsd_job *job)
{
    return (job->state == ZSD_READY || job->state == ZSD_STEPPING) && job->replan->all_bytes > 0 &&
           !job->retiring && zsd_job_attached(job) > 0;
}

void zsd_gpu_plan(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns(), left;
    struct zsd_part *parts;
    unsigned n = 0;

    if (!core->daemon->gpu || core->tiers.gpu_err.code != 0)
        return;
    zsd_gpu_settle(core);
    zb_list_each(pos, &core->jobs->list) n++;
    parts = calloc(zb_max_u64(n, 1), sizeof(*parts));
    if (!parts)
        return;
    left = zsd_account_used(&core->tiers.gpu);
    n = 0;
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (!gpu_moves(job) || runs_make(job) < 0)
            continue;
        parts[n++] = (struct zsd_part){ .job = job,
                                        .most = zsd_part_idle(job, now_ns)
                                                    ? job->gpu->held_bytes
                                                    : runs_booked(job, 0, job->gpu->nruns) };
        left -= job->gpu->held_bytes;
    }
    left = core->tiers.gpu_target > left ? core->tiers.gpu_target - left : 0;
    zsd_parts_fill(parts, n, left);
    for (unsigned i = 0; i < n; i++)
        gpu_job(parts[i].job, parts[i].target,
                zsd_account_used(&core->tiers.gpu) > core->tiers.gpu_target);
    free(parts);
}

/* ---- around a step */

uint32_t zsd_gpu_stepped(const struct zsd_shard *s)
{
    /* a page that could not be written stays on the GPU, and so do all pages after it */
    for (uint32_t page = s->gpu_from; page < s->gpu_next; page++)
        if (page >= s->state_next && s->planes[ZB_STATE].extents[page].at == ZB_NO_PLACE)
            return page;
    return s->gpu_next;
}

void zsd_gpu_step_over(struct zsd_job *job)
{
    if (!job->gpu->runs)
        return;
    job->gpu->to = (uint32_t)zb_max_u64(zb_min_u64(job->gpu->to, job->gpu->made), runs_used(job));
    gpu_take(job);
    gpu_release(job);
}

/* ---- budgets */

int zsd_gpu_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err)
{
    uint64_t was = core->tiers.gpu_target, stays, total;

    if (!core->daemon->gpu)
        return zb_fail(err, -EINVAL, "the daemon was started without a GPU tier (gpu_bytes)");
    if (core->tiers.gpu_err.code != 0)
        return zb_fail(err, -EIO, "the GPU has failed: %s", core->tiers.gpu_err.text);
    total = zk_gpu_info(zsd_gpu_device(core->daemon->gpu))->total_bytes;
    if (bytes > total)
        return zb_fail(err, -ENOSPC, "%s of GPU memory are too much: the device has %s",
                       zb_size_text(bytes).s, zb_size_text(total).s);
    core->tiers.gpu_target = bytes;
    zsd_gpu_plan(core);
    stays = zsd_account_used(&core->tiers.gpu);
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        stays -= gpu_moves(job) ? zsd_gpu_leaving(job) : 0;
    }
    if (stays > bytes) {
        core->tiers.gpu_target = was;
        zsd_gpu_plan(core);
        return zb_fail(
            err, -ENOSPC,
            "%s of GPU memory are less than what cannot be moved: the smallest that would work "
            "is %llu",
            zb_size_text(bytes).s, (unsigned long long)stays);
    }
    zb_log(ZB_LOG_INFO, "tier-set", "tier=gpu bytes=%llu was=%llu used=%llu leaves=%llu",
           (unsigned long long)bytes, (unsigned long long)was,
           (unsigned long long)zsd_account_used(&core->tiers.gpu),
           (unsigned long long)(zsd_account_used(&core->tiers.gpu) - stays));
    return 0;
}

/* ---- the device fails */

/* Whether the job has bytes on the GPU, or some are moving there. */
static bool gpu_holds(const struct zsd_job *job)
{
    bool steps = job->state == ZSD_STEPPING && !job->draining;

    if (job->params->mem)
        return true;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        if (s->gpu_from < s->npages || (steps && s->gpu_next < s->npages))
            return true;
    }
    return false;
}

static void gpu_on_failed(struct zsd_work *work)
{
    struct zsd_core *core = zb_container_of(work, struct zsd_planner, gpu_failed)->core;

    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        struct zb_err why = { 0 };

        if (job->state == ZSD_ENDED || !job->placed)
            continue;
        if (!gpu_holds(job)) {
            job->gpu->to = 0;
            job->replan->settled = false;
            for (uint32_t i = 0; i < job->nshards; i++)
                job->shards[i]->gpu_next = job->shards[i]->npages;
            continue;
        }
        (void)zb_fail(&why, core->tiers.gpu_err.code,
                      "%s of job '%s' %s on the GPU, which failed: %s; %s",
                      job->params->mem ? "parameters" : "optimizer state", job->name,
                      job->params->mem ? "were" : "was", core->tiers.gpu_err.text,
                      job->durable ? "it resumes from its last commit" : "it is lost");
        zsd_job_fail(job, &why);
    }
}

void zsd_gpu_fail(struct zsd_core *core, const struct zb_err *err)
{
    if (core->tiers.gpu_err.code != 0)
        return;
    core->tiers.gpu_err = *err;
    zb_log(ZB_LOG_ERROR, "gpu-failed", "why=\"%s\"", err->text);
    core->planner->gpu_failed.run = gpu_on_failed;
    zsd_defer(core, &core->planner->gpu_failed);
}
