/*
 * plan/needs.c - how many places on the data files a job in memory needs, and the promise of them.
 *
 * MODEL. base/place.h has the arithmetic. Here its inputs come from the job: how its shards are
 * cut, and which of their pages are on the data file, or may move there (zsd_plane_low()). A saved
 * job is promised places in addition to its versions (store/saved.h); any other job has a promise
 * of its own. Placement makes the promise (plan/place.c). Moves update it (plan/replan.c,
 * plan/gpu_plan.c): before the move if more places are needed, after it if fewer.
 */
#include "daemon/plan/needs.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/extents.h"

struct zb_place_shard *zsd_place_shards(const struct zsd_job *job)
{
    struct zb_place_shard *shards = calloc(zb_max_u64(job->nshards, 1), sizeof(*shards));

    for (uint32_t i = 0; shards && i < job->nshards; i++)
        shards[i] = (struct zb_place_shard){ .layout = &job->shards[i]->unit->layout,
                                             .count = job->shards[i]->count,
                                             .rank = job->shards[i]->rank };
    return shards;
}

/* While it is PLACING, tables are still being made. */
static bool needs_places(const struct zsd_shard *s, enum zb_plane plane)
{
    return s->planes[plane].extents || (s->job->state == ZSD_PLACING && zsd_plane_tables(s, plane));
}

int zsd_place_needs(const struct zsd_job *job, unsigned times, uint64_t stamp, struct zb_needs *ret)
{
    struct zb_needs streamed[ZB_PLANES] = { 0 }, early[ZB_PLANES] = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        const struct zsd_shard *s = job->shards[i];
        unsigned held = s->row && s->row->stamp == stamp ? 0 : 1;
        uint32_t low;

        for (int p = 0; p < ZB_PLANES && rc == 0; p++) {
            if (!needs_places(s, p))
                continue;
            low = zsd_plane_low(s, p);
            if (p == ZB_GRAD) /* nothing saved holds any */
                rc = zb_needs_pages(ret, &s->unit->layout, p, s->count, job->core->page_elems, low,
                                    1);
            else
                rc = zb_needs_pages(
                    ret, &s->unit->layout, p, s->count, job->core->page_elems,
                    job->durable ? 0 : low,
                    s->unit->layout.frozen || !job->durable ? held : zb_max_u64(times, held));
            if (rc == 0)
                rc = zb_needs_pages(&streamed[p], &s->unit->layout, p, s->count,
                                    job->core->page_elems, low, 1);
            if (rc == 0 && job->early_room && p != ZB_GRAD && !s->unit->layout.frozen)
                rc = zb_needs_pages(&early[p], &s->unit->layout, p, s->count, job->core->page_elems,
                                    low, 1);
        }
    }
    for (int p = 0; p < ZB_PLANES; p++) {
        if (rc == 0)
            rc = zb_needs_spares(ret, &streamed[p], &early[p], job->core->disk->nbuffers);
        zb_needs_done(&streamed[p]);
        zb_needs_done(&early[p]);
    }
    return rc;
}

/* Streamed bytes of its state, as the account has them (R3). */
static uint64_t replan_streamed(const struct zsd_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        bytes += zsd_state_bytes(s, s->npages) - zsd_state_bytes(s, zsd_plane_low(s, ZB_STATE));
    }
    return bytes;
}

int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err)
{
    struct zsd_saved *saved = job->saved;
    struct zsd_account *held = saved ? &saved->nvme_held : &job->nvme_held;
    const uint64_t planes[ZB_PLANES] = { held->used[ZSD_USE_PARAM], job->grads_nvme_bytes,
                                         saved ? held->used[ZSD_USE_STATE] : replan_streamed(job) };
    struct zb_needs want = { 0 };
    int rc;

    if (saved && (zsd_saved_kept(saved) || saved->doubt)) {
        if (more)
            return zsd_saved_raise(saved, saved->committed, err);
        return zsd_saved_changes(saved) ? 0 : zsd_saved_reserve(saved, err);
    }
    rc = zsd_place_needs(job, 2, UINT64_MAX, &want);
    if (rc < 0)
        (void)zb_fail(err, rc, "places for job '%s': %m", job->name);
    else
        rc = zsd_nvme_promise(job->core, held, job->promise, &want, planes, err);
    zb_needs_done(&want);
    return rc;
}
