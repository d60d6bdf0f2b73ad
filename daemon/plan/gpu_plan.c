/*
 * plan/gpu_plan.c - optimizer state on the GPU: planned like state in host memory (plan/replan.c),
 * and moved by the same steps.
 *
 * MODEL. Each GPU is planned by itself, for the shards whose ranks have it (plan/gpu_runs.c). In
 * order of registration, it has the last pages of their state, host memory the first ones, and NVMe
 * those in between. So the budgets of GPU and host are independent. This state is cut into runs of
 * pages, from its end; a run is one allocation. Two numbers of runs, counted from the end:
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
 * FAILURE of a device is final: jobs with state or parameters on it end, other jobs, and other
 * devices, are not affected. The tier stays empty until the daemon is restarted.
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

#include "daemon/plan/needs.h"
#include "daemon/plan/parts.h"
#include "daemon/plan/replan.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/store/saved.h"

/* ---- allocating and freeing memory */

struct gpu_task {
    struct zsd_task task;
    struct zsd_job *job;
    uint32_t g;        /* the device */
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
    struct zsd_gpu *gpu = t->job->core->daemon->gpus[t->g];

    if (zsd_gpu_pin(gpu, t->params, t->params_bytes, &t->pin_err) == 0)
        (void)zsd_gpu_pin(gpu, t->grads, t->grads_bytes, &t->pin_err);
}

static void task_run(struct zsd_task *task)
{
    struct gpu_task *t = zb_container_of(task, struct gpu_task, task);
    struct zk_gpu *device = zsd_gpu_device(t->job->core->daemon->gpus[t->g]);
    const struct zb_gpu_run *runs = t->job->gpu[t->g].runs;
    struct zk_gpu_mem **mems = t->job->gpu[t->g].mems;

    for (uint32_t i = t->from; i < t->to && t->makes && t->rc == 0; i++)
        t->rc = zk_gpu_alloc(device, runs[i].bytes, t->job->number, &mems[i], &t->err);
    for (uint32_t i = t->from; i < t->to && (!t->makes || t->rc < 0); i++) {
        zk_gpu_free(mems[i]);
        mems[i] = NULL;
    }
    if (t->pins && t->rc == 0)
        task_pin(t);
}

void zsd_gpu_pinned(struct zsd_job *job, uint32_t g, const struct zb_err *err)
{
    job->gpu[g].pinned = true;
    if (err->code == 0)
        return;
    zb_log(ZB_LOG_WARN, "gpu-unpinned", "gpu=%s job=\"%s\" uid=%u why=\"%s\"",
           zsd_gpu_name(job->core->daemon->gpus[g]), job->name, (unsigned)job->uid, err->text);
    (void)zb_fail(&job->core->tiers.gpus[g].unpinned, err->code, "%s", err->text);
}

static void task_made(struct gpu_task *t)
{
    struct zsd_job *job = t->job;
    struct zsd_job_gpu *gpu = &job->gpu[t->g];

    if (t->rc == 0) {
        gpu->made = gpu->to = t->to;
        gpu->refused = false;
        if (t->pins)
            zsd_gpu_pinned(job, t->g, &t->pin_err);
        return;
    }
    zsd_gpu_unbook(job, t->g, zsd_gpu_runs_bytes(job, t->g, t->from, t->to));
    if (t->rc == -EIO || t->rc == -EFAULT)
        zsd_gpu_fail(job->core, t->g, &t->err);
    else if (!gpu->refused)
        zb_log(ZB_LOG_WARN, "gpu-no-memory", "gpu=%s job=\"%s\" uid=%u why=\"%s\"",
               zsd_gpu_name(job->core->daemon->gpus[t->g]), job->name, (unsigned)job->uid,
               t->err.text);
    gpu->refused = true;
}

static void gpu_take(struct zsd_job *job);

static void task_done(struct zsd_task *task)
{
    struct gpu_task *t = zb_container_of(task, struct gpu_task, task);
    struct zsd_job *job = t->job;

    job->gpu[t->g].busy = false;
    if (t->makes)
        task_made(t);
    else
        zsd_gpu_unbook(job, t->g, zsd_gpu_runs_bytes(job, t->g, t->from, t->to));
    if (job->state != ZSD_ENDED) {
        gpu_take(job);
        if (t->rc == 0)
            zsd_replan(job->core);
    }
    free(t);
    zsd_job_unhold(job);
}

/* 0 or -ENOMEM. */
static int task_start(struct zsd_job *job, uint32_t g, uint32_t from, uint32_t to, bool makes)
{
    struct gpu_task *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    *t = (struct gpu_task){ .task = { .run = task_run, .done = task_done },
                            .job = job,
                            .g = g,
                            .from = from,
                            .to = to,
                            .makes = makes,
                            .pins = makes && !job->gpu[g].pinned,
                            .params = job->arena.base,
                            .params_bytes = job->arena.bytes,
                            .grads = job->memory,
                            .grads_bytes = job->memory_bytes - job->replan->all_bytes };
    t->task.slow = t->pins;
    job->gpu[g].busy = true;
    zsd_job_hold(job);
    if (t->pins) /* slow: it must not occupy a GPU thread */
        zsd_task_start(job->core, &t->task);
    else
        zsd_compute_post(zsd_gpu_threads(job->core->daemon->gpus[g]), &t->task);
    return 0;
}

/* ---- what a job does with its part */

/* There is no place in a lower tier: nothing moves. */
static void gpu_stay(struct zsd_job *job, const struct zb_err *why)
{
    if (!job->gpu[0].refused)
        zb_log(ZB_LOG_WARN, "gpu-no-places", "job=\"%s\" uid=%u why=\"%s\"", job->name,
               (unsigned)job->uid, why->text);
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->gpu_next = job->shards[i]->gpu_from;
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        job->gpu[g].refused = true;
        job->gpu[g].to = zsd_gpu_runs_used(job, g);
    }
}

/* Sets gpu_next of each shard to the wanted page, as far as memory is allocated (G1). */
static void gpu_take(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    bool more = false;

    if ((job->state == ZSD_STEPPING && !job->draining) || job->early_said > 0 ||
        job->early_inflight > 0 || !job->placed)
        return;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t g = zsd_shard_gpu(s);
        uint32_t n = (uint32_t)zb_min_u64(job->gpu[g].to, job->gpu[g].made);
        uint32_t page = zsd_gpu_runs_page(job, g, n, i);

        more = more || page < s->gpu_next;
        job->replan->settled = job->replan->settled && page == s->gpu_next;
        s->gpu_next = page;
    }
    if (more && zsd_state_moves(job) && zsd_replan_promise(job, true, &err) < 0)
        gpu_stay(job, &err);
}

/* Frees runs that are neither wanted nor used. */
static void gpu_release(struct zsd_job *job, uint32_t g)
{
    struct zsd_job_gpu *gpu = &job->gpu[g];
    uint32_t used = zsd_gpu_runs_used(job, g), made = gpu->made;
    uint32_t keep = (uint32_t)zb_max_u64(used, zb_min_u64(gpu->to, made));

    if (gpu->busy || keep >= made || (job->state == ZSD_STEPPING && !job->draining))
        return;
    gpu->made = keep;
    if (task_start(job, g, keep, made, false) < 0)
        gpu->made = made; /* no memory: the next plan tries again */
}

/* Allocates more runs, as many as fit the job's part and the tier. */
static void gpu_grow(struct zsd_job *job, uint32_t g, uint64_t target)
{
    struct zsd_job_gpu *gpu = &job->gpu[g];
    uint64_t left = zb_min_u64(zsd_account_free(&job->core->tiers.gpus[g].account),
                               zsd_limit_bytes_left(&job->quota, ZSD_HELD_GPU)),
             all = zsd_gpu_runs_bytes(job, g, 0, gpu->made);
    uint32_t n = gpu->made;

    while (n < gpu->nruns) {
        uint64_t bytes = zsd_gpu_runs_bytes(job, g, n, n + 1);

        if (all + bytes > target || bytes > left)
            break;
        all += bytes;
        left -= bytes;
        n++;
    }
    if (n == gpu->made || gpu->busy)
        return;
    zsd_gpu_book(job, g, zsd_gpu_runs_bytes(job, g, gpu->made, n));
    if (task_start(job, g, gpu->made, n, true) < 0)
        zsd_gpu_unbook(job, g, zsd_gpu_runs_bytes(job, g, gpu->made, n));
}

static void gpu_job(struct zsd_job *job, uint32_t g, uint64_t target, bool exact)
{
    struct zsd_job_gpu *gpu = &job->gpu[g];
    uint64_t held = zsd_gpu_runs_bytes(job, g, 0, gpu->made);
    uint64_t much = exact ? 0 : held / ZSD_REPLAN_LEAVE_BE;

    gpu->to = gpu->made;
    if (held > target && held - target > much)
        while (gpu->to > 0 && zsd_gpu_runs_bytes(job, g, 0, gpu->to) > target)
            gpu->to--;
    gpu_take(job);
    gpu_release(job, g);
    if (gpu->to == gpu->made)
        gpu_grow(job, g, target);
}

/* ---- the division */

/* Whether the job's state may move: it has ranks that step. */
static bool gpu_moves(const struct zsd_job *job)
{
    return (job->state == ZSD_READY || job->state == ZSD_STEPPING) && job->replan->all_bytes > 0 &&
           job->optimizer != ZB_MUON && /* its matrices are orthogonalized in host memory */
           !job->grad_ring && /* a page there is stepped at the barrier, by a held gradient */
           !job->retiring && zsd_job_attached(job) > 0;
}

/* Divides one GPU, and applies to every job what is possible at once. */
static void gpu_divide(struct zsd_core *core, uint32_t g)
{
    struct zsd_gpu_tier *tier = &core->tiers.gpus[g];
    uint64_t now_ns = zb_now_ns(), left;
    struct zsd_part *parts;
    unsigned n = 0;

    if (tier->err.code != 0)
        return;
    zsd_gpu_settle(core, g);
    zb_list_each(pos, &core->jobs->list) n++;
    parts = calloc(zb_max_u64(n, 1), sizeof(*parts));
    if (!parts)
        return;
    left = zsd_account_used(&tier->account);
    n = 0;
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (!gpu_moves(job) || zsd_gpu_runs_make(job) < 0 || job->gpu[g].nruns == 0)
            continue;
        parts[n++] =
            (struct zsd_part){ .job = job,
                               .most = zsd_part_idle(job, now_ns)
                                           ? job->gpu[g].held_bytes
                                           : zsd_gpu_runs_bytes(job, g, 0, job->gpu[g].nruns) };
        left -= job->gpu[g].held_bytes;
    }
    left = zsd_gpu_left(tier, left);
    zsd_parts_fill(parts, n, left);
    for (unsigned i = 0; i < n; i++)
        gpu_job(parts[i].job, g, parts[i].target, zsd_account_used(&tier->account) > tier->target);
    free(parts);
}

void zsd_gpu_plan(struct zsd_core *core)
{
    for (uint32_t g = 0; g < core->daemon->ngpus; g++)
        gpu_divide(core, g);
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
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        struct zsd_job_gpu *gpu = &job->gpu[g];

        if (gpu->runs)
            gpu->to =
                (uint32_t)zb_max_u64(zb_min_u64(gpu->to, gpu->made), zsd_gpu_runs_used(job, g));
    }
    if (!job->gpu[0].runs)
        return;
    gpu_take(job);
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        gpu_release(job, g);
}

/* ---- budgets */

int zsd_gpu_set(struct zsd_core *core, uint32_t g, uint64_t bytes, struct zb_err *err)
{
    struct zsd_gpu_tier *tier = &core->tiers.gpus[g];
    struct zsd_gpu *gpu = core->daemon->gpus[g];
    uint64_t was = tier->target, stays, total;

    if (tier->err.code != 0)
        return zb_fail(err, -EIO, "the GPU has failed: %s", tier->err.text);
    total = zk_gpu_info(zsd_gpu_device(gpu))->total_bytes;
    if (bytes > total)
        return zb_fail(err, -ENOSPC, "%s of GPU memory are too much: the device has %s",
                       zb_size_text(bytes).s, zb_size_text(total).s);
    tier->target = bytes;
    gpu_divide(core, g);
    stays = zsd_account_used(&tier->account);
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        stays -= gpu_moves(job) ? zsd_gpu_leaving(job, g) : 0;
    }
    if (stays > bytes) {
        tier->target = was;
        gpu_divide(core, g);
        return zb_fail(
            err, -ENOSPC,
            "%s of GPU memory are less than what cannot be moved: the smallest that would work "
            "is %llu",
            zb_size_text(bytes).s, (unsigned long long)stays);
    }
    zb_log(ZB_LOG_INFO, "tier-set", "tier=%s bytes=%llu was=%llu used=%llu leaves=%llu",
           zsd_gpu_name(gpu), (unsigned long long)bytes, (unsigned long long)was,
           (unsigned long long)zsd_account_used(&tier->account),
           (unsigned long long)(zsd_account_used(&tier->account) - stays));
    return 0;
}

int zsd_gpus_set(struct zsd_core *core, const struct zsd_config *config, struct zb_err *err)
{
    uint64_t was[ZSD_GPUS_MAX];
    struct zb_err undo = { 0 };
    uint32_t n = core->daemon->ngpus;

    if (n == 0)
        return zb_fail(err, -EINVAL, "the daemon was started without a GPU tier (gpu_bytes)");
    if (zsd_gpu_budgets_fit(config, n, err) < 0)
        return err->code;
    for (uint32_t g = 0; g < n; g++) {
        was[g] = core->tiers.gpus[g].target;
        if (core->tiers.gpus[g].err.code != 0 && n > 1)
            continue; /* it is of no use until a restart */
        if (zsd_gpu_set(core, g, zsd_gpu_budget(config, g), err) == 0)
            continue;
        while (g-- > 0)
            (void)zsd_gpu_set(core, g, was[g], &undo);
        return err->code;
    }
    return 0;
}

/* ---- a device fails */

/* Whether the job has bytes on the GPU, or some are moving there. */
static bool gpu_holds(const struct zsd_job *job, uint32_t g)
{
    bool steps = job->state == ZSD_STEPPING && !job->draining;

    if (job->params->on[g].mem || (job->muon_gpu.ortho && job->muon_gpu.g == g))
        return true;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        if (zsd_shard_gpu(s) == g &&
            (s->gpu_from < s->npages || (steps && s->gpu_next < s->npages)))
            return true;
    }
    return false;
}

/* What the failure means for one job. */
static void failed_job(struct zsd_job *job, uint32_t g)
{
    const struct zb_err *failed = &job->core->tiers.gpus[g].err;
    bool resumes = job->saved && job->saved->committed;
    struct zb_err why = { 0 };

    if (!gpu_holds(job, g)) {
        job->gpu[g].to = 0;
        job->replan->settled = false;
        for (uint32_t i = 0; i < job->nshards; i++)
            if (zsd_shard_gpu(job->shards[i]) == g)
                job->shards[i]->gpu_next = job->shards[i]->npages;
        return;
    }
    (void)zb_fail(&why, failed->code, "%s of job '%s' %s on the GPU, which failed: %s; %s",
                  job->muon_gpu.ortho      ? "matrices"
                  : job->params->on[g].mem ? "parameters"
                                           : "optimizer state",
                  job->name,
                  job->muon_gpu.ortho      ? "were orthogonalized"
                  : job->params->on[g].mem ? "were"
                                           : "was",
                  failed->text,
                  resumes        ? "it resumes from its last commit"
                  : job->durable ? "it had no commit yet, and is lost"
                                 : "it is lost");
    zsd_job_fail(job, &why);
}

static void gpu_on_failed(struct zsd_work *work)
{
    struct zsd_core *core = zb_container_of(work, struct zsd_planner, gpu_failed)->core;

    for (uint32_t g = 0; g < core->daemon->ngpus; g++)
        zb_list_each(pos, &core->jobs->list)
        {
            struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

            if (core->tiers.gpus[g].err.code != 0 && job->state != ZSD_ENDED && job->placed)
                failed_job(job, g);
        }
}

void zsd_gpu_fail(struct zsd_core *core, uint32_t g, const struct zb_err *err)
{
    struct zsd_gpu_tier *tier = &core->tiers.gpus[g];
    const char *name = zsd_gpu_name(core->daemon->gpus[g]);

    if (tier->err.code != 0)
        return;
    if (core->daemon->ngpus > 1)
        (void)zb_fail(&tier->err, err->code, "%s: %s", name, err->text);
    else
        tier->err = *err;
    zb_log(ZB_LOG_ERROR, "gpu-failed", "gpu=%s why=\"%s\"", name, err->text);
    core->planner->gpu_failed.run = gpu_on_failed;
    zsd_defer(core, &core->planner->gpu_failed);
}
