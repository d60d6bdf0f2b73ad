/*
 * forecast_fetch.c - simulates fetches of streamed parameters, place by place of the ring.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/forecast_priv.h"

#define FETCH_STEPS 2u /* steps simulated; the last one counts */
#define WALK_MICROS 4u /* micro-steps simulated per step */

struct ring_place {
    uint32_t shard;
    uint64_t used; /* when it was last unpinned */
    bool held;     /* pinned */
};

struct ring {
    uint64_t bytes; /* of each of its places */
    uint32_t rank, nplaces;
    struct ring_place places[ZB_RING_PINS];
};

/* The simulation of one rank's streamed shards. */
struct walk {
    const struct zb_place_job *job;
    const struct zb_model *model;
    uint32_t *shard_of; /* [nunits]: of the current rank; UINT32_MAX: no streamed shard */
    struct ring *rings;
    uint32_t nrings, *ring_of; /* [nshards] */
    uint64_t now, read;
};

static uint64_t walk_bytes(const struct walk *w, uint32_t shard)
{
    const struct zb_place_shard *s = &w->job->shards[shard];

    return zb_layout_bytes(s->layout, ZB_PARAM, w->job->page_elems, s->count);
}

static struct ring_place *walk_find(struct walk *w, uint32_t shard)
{
    struct ring *r = &w->rings[w->ring_of[shard]];

    for (uint32_t i = 0; i < r->nplaces; i++)
        if (r->places[i].shard == shard)
            return &r->places[i];
    return NULL;
}

/* Pins a unit's shard. If it is not in the ring, it is read into the place that was unpinned
 * longest ago. */
static void walk_get(struct walk *w, uint32_t unit)
{
    uint32_t shard = w->shard_of[unit];
    struct ring_place *p, *oldest = NULL;
    struct ring *r;

    if (shard == UINT32_MAX)
        return;
    p = walk_find(w, shard);
    if (p) {
        p->held = true;
        return;
    }
    r = &w->rings[w->ring_of[shard]];
    for (uint32_t i = 0; i < r->nplaces; i++)
        if (!r->places[i].held && (!oldest || r->places[i].used < oldest->used))
            oldest = &r->places[i];
    if (!oldest)
        return; /* all places are held */
    *oldest = (struct ring_place){ .shard = shard, .held = true };
    w->read += walk_bytes(w, shard);
}

static void walk_put(struct walk *w, uint32_t unit)
{
    uint32_t shard = w->shard_of[unit];
    struct ring_place *p = shard == UINT32_MAX ? NULL : walk_find(w, shard);

    if (p) {
        p->held = false;
        p->used = ++w->now;
    }
}

/*
 * Simulates one rank's gathers of a step, with `ahead` also the prefetch of the next unit. Every
 * micro-step gathers the units in the same order, so each one after the first finds the same ring.
 * Of those in the middle, one is simulated and counts for all.
 */
static void walk_step(struct walk *w, uint32_t micro_steps, bool ahead)
{
    uint32_t walked = micro_steps < WALK_MICROS ? micro_steps : WALK_MICROS;
    uint64_t n = (uint64_t)w->model->norder * walked;
    uint64_t middle = (uint64_t)w->model->norder * (WALK_MICROS - 2), before = 0;
    const uint32_t *order = w->model->order;

    for (uint64_t i = 0; i < n; i++) {
        if (i == middle)
            before = w->read;
        if (i == middle + w->model->norder)
            w->read += (w->read - before) * (micro_steps - walked);
        uint32_t unit = order[i % w->model->norder];

        walk_get(w, unit);
        if (ahead && i + 1 < n)
            walk_get(w, order[(i + 1) % w->model->norder]);
        if (i + 1 < n && order[(i + 1) % w->model->norder] == unit)
            continue; /* still held */
        walk_put(w, unit);
    }
}

/* A step makes cached shards stale, except frozen ones. */
static void walk_forget(struct walk *w)
{
    for (uint32_t r = 0; r < w->nrings; r++)
        for (uint32_t i = 0; i < w->rings[r].nplaces; i++) {
            struct ring_place *p = &w->rings[r].places[i];

            if (p->shard != UINT32_MAX && !w->job->shards[p->shard].layout->frozen)
                *p = (struct ring_place){ .shard = UINT32_MAX };
        }
}

/* Sets up the rings of the shards [from, n), as admission counts them. */
static int walk_rings(struct walk *w, uint32_t from)
{
    size_t room = 0;

    for (uint32_t s = from; s < w->job->nshards; s++) {
        uint64_t bytes = walk_bytes(w, s);
        uint32_t i = 0;

        while (i < w->nrings &&
               (w->rings[i].bytes != bytes || w->rings[i].rank != w->job->shards[s].rank))
            i++;
        if (zb_grow(&w->rings, &room, i, 1) < 0)
            return -ENOMEM;
        if (i == w->nrings)
            w->rings[w->nrings++] = (struct ring){ .bytes = bytes, .rank = w->job->shards[s].rank };
        w->ring_of[s] = i;
        if (w->rings[i].nplaces < ZB_RING_PINS)
            w->rings[i].places[w->rings[i].nplaces++] = (struct ring_place){ .shard = UINT32_MAX };
    }
    return 0;
}

int zb_forecast_fetches(const struct zb_run *run, const struct zb_place_job *job,
                        const struct zb_place *place, uint32_t local, uint64_t *ret)
{
    struct walk w = { .job = job, .model = run->model };
    int rc;

    *ret = 0;
    if (place->params_resident == job->nshards)
        return 0;
    w.shard_of = calloc(run->model->nunits, sizeof(*w.shard_of));
    w.ring_of = calloc(job->nshards, sizeof(*w.ring_of));
    rc = w.shard_of && w.ring_of ? walk_rings(&w, place->params_resident) : -ENOMEM;
    for (uint32_t r = 0; r < local && rc == 0; r++) {
        for (uint32_t u = 0; u < run->model->nunits; u++)
            w.shard_of[u] = UINT32_MAX;
        for (uint32_t s = place->params_resident; s < job->nshards; s++)
            if (job->shards[s].rank == r)
                w.shard_of[job->shards[s].unit] = s;
        for (unsigned step = 0; step < FETCH_STEPS; step++) {
            w.read = 0;
            walk_step(&w, run->micro_steps, run->prefetch_units > 0);
            walk_forget(&w);
        }
        *ret += w.read;
    }
    free(w.shard_of);
    free(w.ring_of);
    free(w.rings);
    return rc;
}
