/*
 * plan/gpu_runs.c - the GPU of each rank; and the state of a job on each GPU: how it is cut, what it
 * takes, and where a page is.
 *
 * MODEL. Each rank has one GPU: the one that it computes on, if that is one of the daemon's; else
 * one by its place among the ranks of this node, so that they are spread over all devices. State and
 * parameters of a rank's shards are on its GPU and on no other: what a step needs crosses the link
 * of that GPU alone. The choice is made when the job is placed, and stays while the job is in
 * memory, even if a rank attaches again from another device.
 *
 * The state of the shards of one GPU, in order of registration, is cut into runs of pages from its
 * end (base/place.h). A run is one allocation.
 */
#include "daemon/plan/gpu_runs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/plan/needs.h"
#include "daemon/run/gpu_tier.h"

/* ---- the GPU of each rank */

void zsd_gpu_bind(struct zsd_job *job)
{
    uint64_t n = job->core->daemon->ngpus;
    struct zsd_rank *ranks = job->ranks;

    for (uint32_t r = 0; r < job->world; r++) {
        ranks[r].gpu = (uint32_t)(r * n / job->world);
        ranks[r].near = ZSD_NEAR_NONE;
    }
    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && m->gpu != ZSD_NO_GPU)
            ranks[m->rank].gpu = m->gpu;
        if (m->conn)
            ranks[m->rank].near = m->near;
    }
    for (uint32_t r = 0; r < job->world; r++) {
        if (n > 0 && ranks[r].near == ZSD_NEAR_NONE)
            ranks[r].near = zsd_gpu_node(job->core->daemon, ranks[r].gpu);
        if (!zsd_near_uses(&job->core->daemon->near, ranks[r].near))
            ranks[r].near = ZSD_NEAR_NONE;
    }
}

/* ---- runs */

/* The allocation unit of the device. */
static uint64_t gpu_unit(const struct zsd_core *core, uint32_t g)
{
    return zk_gpu_info(zsd_gpu_device(core->daemon->gpus[g]))->granularity_bytes;
}

uint64_t zsd_gpu_units(const struct zsd_core *core, uint32_t g, uint64_t bytes)
{
    return zb_round_up(bytes, gpu_unit(core, g));
}

uint64_t zsd_gpu_runs_bytes(const struct zsd_job *job, uint32_t g, uint32_t from, uint32_t to)
{
    uint64_t bytes = 0;

    for (uint32_t i = from; i < to; i++)
        bytes += zb_gpu_run_taken(&job->gpu[g].runs[i], gpu_unit(job->core, g));
    return bytes;
}

/* The shards of one GPU, as the plan counts them; those of the others have no elements. */
static struct zb_place_shard *runs_shards(const struct zsd_job *job, uint32_t g)
{
    struct zb_place_shard *shards = zsd_place_shards(job);

    for (uint32_t i = 0; shards && i < job->nshards; i++)
        if (zsd_shard_gpu(job->shards[i]) != g)
            shards[i].count = 0;
    return shards;
}

static void runs_free(struct zsd_job_gpu *gpu)
{
    free(gpu->runs);
    free(gpu->mems);
    gpu->runs = NULL;
    gpu->mems = NULL;
}

/* Cuts the state of one GPU. 0 or -ENOMEM. */
static int runs_cut(struct zsd_job *job, uint32_t g)
{
    uint64_t unit = gpu_unit(job->core, g), at = 0;
    uint32_t page_elems = job->core->page_elems;
    struct zsd_job_gpu *gpu = &job->gpu[g];
    struct zb_place_shard *shards = runs_shards(job, g);

    if (!shards)
        return -ENOMEM;
    gpu->nruns = zb_gpu_runs(shards, job->nshards, page_elems, unit, NULL);
    gpu->runs = calloc(zb_max_u64(gpu->nruns, 1), sizeof(*gpu->runs));
    gpu->mems = calloc(zb_max_u64(gpu->nruns, 1), sizeof(*gpu->mems));
    if (gpu->runs && gpu->mems)
        (void)zb_gpu_runs(shards, job->nshards, page_elems, unit, gpu->runs);
    free(shards);
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];

        if (zsd_shard_gpu(s) != g)
            continue;
        s->gpu_at = at;
        at += zsd_state_bytes(s, s->npages);
    }
    if (gpu->runs && gpu->mems)
        return 0;
    runs_free(gpu);
    return -ENOMEM;
}

int zsd_gpu_runs_make(struct zsd_job *job)
{
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        if (!job->gpu[g].runs && runs_cut(job, g) < 0)
            return -ENOMEM;
    return 0;
}

uint32_t zsd_gpu_runs_page(const struct zsd_job *job, uint32_t g, uint32_t n, uint32_t i)
{
    const struct zb_gpu_run *last = n > 0 ? &job->gpu[g].runs[n - 1] : NULL;

    if (!last || !zsd_state_is(job->shards[i]) || i < last->shard)
        return job->shards[i]->npages;
    return i == last->shard ? last->page : 0;
}

uint32_t zsd_gpu_runs_used(const struct zsd_job *job, uint32_t g)
{
    const struct zb_gpu_run *runs = job->gpu[g].runs;

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];
        uint32_t page = (uint32_t)zb_min_u64(s->gpu_from, s->gpu_next), n = 0;

        if (page == s->npages || zsd_shard_gpu(s) != g)
            continue;
        while (runs[n].shard > i || (runs[n].shard == i && runs[n].page > page))
            n++;
        return n + 1;
    }
    return 0;
}

void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_job_gpu *gpu = &s->job->gpu[zsd_shard_gpu(s)];
    uint64_t at = s->gpu_at +
                  (uint64_t)(zsd_page_at(s, ZB_STATE, page) - zsd_page_at(s, ZB_STATE, 0));
    uint32_t run;

    zb_lower_bound(run, gpu->made, gpu->runs[run].from > at); /* `from` descends */
    assert(run < gpu->made);
    return (uint8_t *)zk_gpu_addr(gpu->mems[run]) + (at - gpu->runs[run].from);
}

/* ---- accounts */

void zsd_gpu_settle(struct zsd_core *core, uint32_t g)
{
    struct zsd_gpu_tier *tier = &core->tiers.gpus[g];

    tier->account.budget = zb_max_u64(tier->target, zsd_account_used(&tier->account));
}

void zsd_gpu_begin(struct zsd_core *core)
{
    struct zsd *daemon = core->daemon;

    for (uint32_t g = 0; g < daemon->ngpus; g++) {
        struct zsd_gpu_tier *tier = &core->tiers.gpus[g];

        tier->account.budget = tier->target = zsd_gpu_budget(&daemon->config, g);
        zsd_book(&tier->account, NULL, ZSD_USE_RING, zsd_gpu_own_bytes(daemon->gpus[g]));
        zsd_gpu_settle(core, g);
    }
}

void zsd_gpu_book(struct zsd_job *job, uint32_t g, uint64_t bytes)
{
    job->gpu[g].held_bytes += bytes;
    zsd_book(&job->core->tiers.gpus[g].account, &job->gpu_held, ZSD_USE_STATE, bytes);
}

void zsd_gpu_unbook(struct zsd_job *job, uint32_t g, uint64_t bytes)
{
    job->gpu[g].held_bytes -= bytes;
    zsd_unbook(&job->core->tiers.gpus[g].account, &job->gpu_held, ZSD_USE_STATE, bytes);
    zsd_gpu_settle(job->core, g);
}

uint64_t zsd_gpu_leaving(const struct zsd_job *job, uint32_t g)
{
    const struct zsd_job_gpu *gpu = &job->gpu[g];

    return gpu->held_bytes -
           zsd_gpu_runs_bytes(job, g, 0, (uint32_t)zb_min_u64(gpu->to, gpu->made));
}

uint64_t zsd_gpu_held(const struct zsd_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        bytes += job->gpu[g].held_bytes;
    return bytes;
}

void zsd_gpu_drop(struct zsd_job *job)
{
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        for (uint32_t i = 0; i < job->gpu[g].made; i++)
            zk_gpu_free(job->gpu[g].mems[i]);
}

void zsd_gpu_unplace(struct zsd_job *job)
{
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        zsd_gpu_unbook(job, g, job->gpu[g].held_bytes);
        runs_free(&job->gpu[g]);
        job->gpu[g] = (struct zsd_job_gpu){ 0 };
    }
}
