/*
 * plan/needs.c - the number of places on the data files that a job in memory needs, and the promise
 * of these.
 *
 * MODEL. base/place.h has the arithmetic. Its inputs come from the job: how its shards are cut, and
 * which of their pages are on the data files or may move there (zsd_plane_low()). For a saved job
 * these places are part of its promise, in addition to those of its versions (store/saved.h); any
 * other job has a promise of its own. Placement makes the promise (plan/place.c). Moves update it
 * (plan/replan.c, plan/gpu_plan.c): before the move if more places are needed, after it if fewer.
 */
#include "daemon/plan/needs.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/extents.h"
#include "daemon/plan/muon.h"

struct zb_place_shard *zsd_place_shards(const struct zsd_job *job)
{
    struct zb_place_shard *shards = calloc(zb_max_u64(job->nshards, 1), sizeof(*shards));

    for (uint32_t i = 0; shards && i < job->nshards; i++)
        shards[i] = (struct zb_place_shard){ .layout = &job->shards[i]->unit->layout,
                                             .count = job->shards[i]->count,
                                             .rank = job->shards[i]->rank };
    return shards;
}

/* Whether the plane has, or will have, places. While the job is PLACING, its tables are being
 * made. */
static bool needs_places(const struct zsd_shard *s, enum zb_plane plane)
{
    return s->planes[plane].extents || (s->job->state == ZSD_PLACING && zsd_plane_tables(s, plane));
}

/* Adds the needs of one shard. The pages of a trained unit are needed `times` times; if that is 0,
 * or the unit is not trained, once if no row holds them. */
static int needs_shard(const struct zsd_shard *s, unsigned times, bool going,
                       struct zsd_needs_walk *w)
{
    const struct zsd_job *job = s->job;
    const struct zb_layout *layout = &s->unit->layout;
    uint32_t page_elems = job->core->page_elems;
    bool trained = job->durable && !layout->frozen;
    int rc = 0;

    if (!trained)
        times = 0;
    if (times == 0 && !(s->row && job->saved && zsd_saved_has(job->saved, going, s->row, &w->at)))
        times = 1; /* no row holds its pages */
    for (int p = 0; p < ZB_PLANES && rc == 0; p++) {
        uint32_t low;

        if (!needs_places(s, p))
            continue;
        low = zsd_plane_low(s, p);
        if (p == ZB_GRAD) /* gradients are never saved */
            rc = zb_needs_pages(&w->sum, layout, p, s->count, page_elems, low, 1);
        else
            rc = zb_needs_pages(&w->sum, layout, p, s->count, page_elems, job->durable ? 0 : low,
                                times);
        if (rc == 0)
            rc = zb_needs_pages(&w->streamed[p], layout, p, s->count, page_elems, low, 1);
        if (rc == 0 && job->early_room && p != ZB_GRAD && !layout->frozen)
            rc = zb_needs_pages(&w->early[p], layout, p, s->count, page_elems, low, 1);
    }
    w->at++; /* usually, shards and rows have the same order */
    return rc;
}

int zsd_place_needs(const struct zsd_job *job, unsigned times, bool going, struct zsd_needs_walk *w,
                    uint64_t left)
{
    int rc = 0;

    for (; w->shard < job->nshards && left > 0 && rc == 0; w->shard++, left--)
        rc = needs_shard(job->shards[w->shard], times, going, w);
    if (rc == 0 && w->shard < job->nshards)
        return 1;
    for (int p = 0; p < ZB_PLANES && rc == 0; p++)
        rc = zb_needs_spares(&w->sum, &w->streamed[p], &w->early[p],
                             zsd_muon_buffers(job, &job->muon_room));
    return rc;
}

/* Bytes of the job's state that may be on NVMe, as booked in the account (R3). */
static uint64_t replan_streamed(const struct zsd_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        bytes += zsd_state_bytes(s, s->npages) - zsd_state_bytes(s, zsd_plane_low(s, ZB_STATE));
    }
    return bytes;
}

/* Whether the job's user may hold these places instead of those promised. 0 or -EDQUOT. */
static int needs_admit(const struct zsd_job *job, const struct zb_needs *want, struct zb_err *err)
{
    uint64_t has = zb_needs_bytes(job->promise), needs = zb_needs_bytes(want);

    return zsd_limit_bytes(&job->quota, ZSD_HELD_NVME, needs - zb_min_u64(needs, has), err);
}

int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err)
{
    struct zsd_saved *saved = job->saved;
    struct zsd_account *held = saved ? &saved->nvme_held : &job->nvme_held;
    const uint64_t planes[ZB_PLANES] = { held->used[ZSD_USE_PARAM], job->grads_nvme_bytes,
                                         saved ? held->used[ZSD_USE_STATE] : replan_streamed(job) };
    struct zsd_needs_walk w = { 0 };
    int rc;

    if (saved)
        zsd_saved_planned(saved);
    if (saved && (zsd_saved_kept(saved) || saved->doubt)) {
        if (more)
            return zsd_saved_raise(saved, err);
        return zsd_saved_changes(saved) ? 0 : zsd_saved_reserve(saved, err);
    }
    rc = zsd_place_needs(job, 2, true, &w, UINT64_MAX);
    if (rc < 0)
        (void)zb_fail(err, rc, "places for job '%s': %m", job->name);
    else if (more)
        rc = needs_admit(job, &w.sum, err);
    if (rc == 0)
        rc = zsd_nvme_promise(job->core, held, job->promise, &w.sum, planes, err);
    zsd_needs_walk_done(&w);
    return rc;
}
