/*
 * job_arena.c - allocates and frees the memory of jobs and ranks, on a compute thread because that
 * touches every page. Each task holds its job (J1) while it runs.
 */
#include "daemon/plan/job_arena.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "daemon/disk/paths.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/muon_gpu.h"
#include "daemon/plan/place.h"
#include "daemon/plan/tables.h"
#include "daemon/run/gpu_tier.h"

/* Memory of a rank that was not allocated yet gets its node; if it has one. */
static void near_bind(struct zsd_arena_task *t, uint8_t *memory, uint64_t bytes, int node)
{
    const struct zsd_near *near = &t->job->core->daemon->near;
    int rc;

    if (bytes == 0 || !zsd_near_uses(near, node))
        return;
    rc = zsd_near_bind(near, memory, bytes, node);
    *(rc == 0 ? &t->near_bytes : &t->refused_bytes) += bytes;
    if (rc == 0)
        return;
    t->near_rc = rc;
    t->near_node = node;
}

static void near_staging(void *arg, uint8_t *base)
{
    struct zsd_arena_task *t = arg;

    near_bind(t, base, t->bytes, t->member->near);
}

static void near_params(void *arg, uint8_t *base)
{
    struct zsd_arena_task *t = arg;
    const struct zsd_rank *ranks = t->job->ranks;

    for (uint32_t r = 0; r < t->job->world; r++)
        near_bind(t, base + ranks[r].arena_at, ranks[r].arena_bytes, ranks[r].near);
}

static void near_grads(struct zsd_arena_task *t)
{
    const struct zsd_rank *ranks = t->job->ranks;

    for (uint32_t r = 0; r < t->job->world; r++)
        near_bind(t, t->memory + ranks[r].grads_at, ranks[r].grads_bytes, ranks[r].near);
}

/* On the loop: counts what the task has placed, and reports the first refusal. */
static void near_done(struct zsd *daemon, const struct zsd_arena_task *t)
{
    daemon->stats.near_bytes += t->near_bytes;
    daemon->stats.near_refused_bytes += t->refused_bytes;
    if (t->near_rc == 0 || daemon->near_refused)
        return;
    daemon->near_refused = true;
    errno = -t->near_rc;
    zb_log(ZB_LOG_WARN, "near-refused", "node=%d bytes=%llu why=\"%m\"", t->near_node,
           (unsigned long long)t->refused_bytes);
}

/* Reserves addresses for all of the memory, and allocates the ranges that will be used. */
static void arena_memory(struct zsd_arena_task *t)
{
    int rc = 0;

    t->memory = zsd_private_reserve(t->memory_bytes);
    if (t->memory)
        near_grads(t);
    for (uint32_t i = 0; t->memory && i < t->nranges && rc == 0; i++)
        rc = zsd_private_make(t->memory + t->ranges[i].at, t->ranges[i].bytes, t->touch);
    if (t->memory && rc == 0)
        return;
    zsd_private_free(t->memory, t->memory_bytes);
    t->memory = NULL;
    (void)zb_fail(&t->err, -ENOMEM, "%s for gradients and optimizer state: %m",
                  zb_size_text(t->memory_bytes).s);
}

/* The memory of a job with Muon. It is used from the first step on. */
static void arena_muon(struct zsd_arena_task *t)
{
    const struct zb_muon_room *room = &t->job->muon_room;

    if (room->bytes == 0)
        return;
    t->muon = zsd_private_new(room->bytes);
    if (!t->muon)
        (void)zb_fail(&t->err, -ENOMEM, "%s for the matrices of Muon: %m",
                      zb_size_text(room->bytes).s);
    else
        (void)zsd_muon_make(t->job, t->muon, &t->on_gpu, &t->err);
}

/* Pins the gradients, not the state, for each GPU that has parameters of the job. */
static void arena_pin(struct zsd_arena_task *t)
{
    const struct zsd_job *job = t->job;
    const struct zsd *daemon = job->core->daemon;

    for (uint32_t g = 0; g < daemon->ngpus; g++) {
        struct zb_err err = { 0 };

        if (job->params->on[g].booked == 0 ||
            zsd_gpu_pin(daemon->gpus[g], t->memory, t->memory_bytes - job->replan->all_bytes,
                        &err) == 0 ||
            t->pin_err.code != 0)
            continue;
        t->pin_err = err;
        t->gpu = g;
    }
}

static void arena_run(struct zsd_task *task)
{
    struct zsd_arena_task *t = zb_container_of(task, struct zsd_arena_task, task);

    switch (t->what) {
    case ZSD_STAGING_OPEN:
        (void)zsd_arena_open_with(&t->arena, "zshard-staging", t->bytes, false, near_staging, t,
                                  &t->err);
        break;
    case ZSD_ARENA_OPEN:
        if (zsd_params_there(t->job) &&
            zsd_params_make(t->job, t->params, &t->gpu, &t->gpu_err) < 0)
            break; /* the job will be placed without parameters on the GPU */
        if (zsd_arena_open_with(&t->arena, "zshard-params", t->bytes, true, near_params, t,
                                &t->err) == 0 &&
            t->memory_bytes > 0)
            arena_memory(t);
        if (t->err.code == 0)
            arena_muon(t);
        if (t->err.code == 0 && zsd_gpu_pins_early(t->job))
            arena_pin(t);
        break;
    case ZSD_STAGING_CLOSE:
    case ZSD_ARENA_CLOSE:
        zsd_gpu_unpin(t->job->core->daemon, t->arena.base, t->arena.bytes);
        zsd_gpu_unpin(t->job->core->daemon, t->memory, t->memory_bytes);
        zsd_arena_close(&t->arena);
        zsd_private_free(t->memory, t->memory_bytes);
        if (t->what == ZSD_ARENA_CLOSE) {
            zsd_muon_drop(t->job);
            zsd_gpu_drop(t->job);
            zsd_params_drop(t->job);
        }
        break;
    }
}

static void arena_gone(struct zsd_job *job)
{
    zsd_tables_leave(job); /* first: if zsd_unplace() lacks places, it can free leaving ones */
    zsd_unplace(job);
}

static void arena_done(struct zsd_task *task)
{
    struct zsd_arena_task *t = zb_container_of(task, struct zsd_arena_task, task);
    struct zsd_job *job = t->job;

    near_done(job->core->daemon, t);
    switch (t->what) {
    case ZSD_ARENA_OPEN:
        job->arena = t->arena;
        job->memory = t->memory;
        job->muon_at = t->muon;
        job->muon_gpu.ortho = t->on_gpu;
        if (t->err.code == -EIO && job->muon_gpu.bytes > 0 && !t->on_gpu)
            zsd_gpu_fail(job->core, job->muon_gpu.g, &t->err);
        for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
            job->params->on[g].mem = t->params[g];
        t->opened(t);
        break;
    case ZSD_STAGING_OPEN:
        t->opened(t);
        break;
    case ZSD_STAGING_CLOSE:
        job->core->planner->closing--;
        zsd_unplace_staging(job, t->bytes);
        break;
    case ZSD_ARENA_CLOSE:
        job->core->planner->closing--;
        arena_gone(job);
        break;
    }
    zsd_room_changed(job->core);
    zsd_arena_task_free(t);
    zsd_job_unhold(job);
}

struct zsd_arena_task *zsd_arena_task_new(struct zsd_job *job, enum zsd_arena_what what,
                                          void (*opened)(struct zsd_arena_task *t))
{
    struct zsd_arena_task *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->task = (struct zsd_task){ .run = arena_run, .done = arena_done, .slow = true };
    t->what = what;
    t->opened = opened;
    t->job = job;
    t->arena = ZSD_ARENA_NONE;
    return t;
}

void zsd_arena_task_free(struct zsd_arena_task *t)
{
    if (t)
        free(t->ranges);
    free(t);
}

void zsd_arena_task_start(struct zsd_arena_task *t)
{
    zsd_job_hold(t->job);
    zsd_task_start(t->job->core, &t->task);
}

void zsd_arena_end(struct zsd_job *job, enum zsd_arena_what what, struct zsd_arena arena,
                   uint8_t *memory, uint64_t memory_bytes, uint64_t booked)
{
    struct zsd_arena_task here = { 0 }, *t = zsd_arena_task_new(job, what, NULL);

    zsd_paths_unregister(job->core->daemon, arena.base);
    zsd_paths_unregister(job->core->daemon, memory);
    if (!t)
        t = &here;
    t->what = what;
    t->job = job;
    t->arena = arena;
    t->memory = memory;
    t->memory_bytes = memory_bytes;
    t->bytes = booked;
    if (t != &here) {
        job->core->planner->closing++;
        zsd_arena_task_start(t);
        return;
    }
    arena_run(&here.task);
    if (what == ZSD_STAGING_CLOSE)
        zsd_unplace_staging(job, booked);
    else
        arena_gone(job);
}

void zsd_job_arena_end(struct zsd_job *job)
{
    struct zsd_arena arena = job->arena;
    uint8_t *memory = job->memory;

    job->arena = ZSD_ARENA_NONE;
    job->memory = NULL;
    job->placed = false; /* the task calls zsd_unplace(), once */
    zsd_arena_end(job, ZSD_ARENA_CLOSE, arena, memory, job->memory_bytes, 0);
}
