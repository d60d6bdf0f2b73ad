/*
 * links.c - counts gathers of units in a step, and what each of them moves.
 */
#include "base/links.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

#define WALK_MICROS 4u /* micro-steps walked per step: one of those in the middle counts for all */

/* ---- how often each unit is gathered */

/* The gathers of one step: units that are gathered now, and how often each was. */
struct walk {
    const struct zb_model *model;
    uint32_t ahead;   /* units of the window */
    uint64_t *times;  /* [nunits] */
    uint32_t *window; /* [nunits]: number of the last window that the unit was in */
    uint32_t *here;   /* gathered: the unit in use, and those of the window before */
    uint32_t nhere, now;
};

static bool walk_has(const struct walk *w, uint32_t unit)
{
    for (uint32_t i = 0; i < w->nhere; i++)
        if (w->here[i] == unit)
            return true;
    return false;
}

static void walk_get(struct walk *w, uint32_t unit)
{
    if (walk_has(w, unit))
        return;
    w->times[unit]++;
    w->here[w->nhere++] = unit;
}

/* Gathers the next units of the order after place `at`; in the last micro-step, up to its end. */
static void walk_ahead(struct walk *w, uint32_t at, bool last)
{
    const struct zb_model *m = w->model;
    uint32_t units = 0;

    w->now++;
    for (uint32_t i = at; i < at + m->norder && units < w->ahead; i++) {
        uint32_t unit = m->order[i % m->norder];

        if (i >= m->norder && last)
            break;
        if (w->window[unit] == w->now)
            continue;
        w->window[unit] = w->now;
        walk_get(w, unit);
        units++;
    }
}

/* Drops what is neither `held` nor in the window. */
static void walk_drop(struct walk *w, uint32_t held)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->nhere; i++)
        if (w->here[i] == held || w->window[w->here[i]] == w->now)
            w->here[n++] = w->here[i];
    w->nhere = n;
}

static void walk_micro(struct walk *w, bool last)
{
    const struct zb_model *m = w->model;

    for (uint32_t i = 0; i < m->norder; i++) {
        walk_get(w, m->order[i]);
        walk_ahead(w, i + 1, last);
        walk_drop(w, m->order[i]);
        walk_drop(w, UINT32_MAX); /* released */
    }
}

/* Micro-steps of a step: `before` is scratch memory. */
static void walk_step(struct walk *w, uint32_t micro_steps, uint64_t *before)
{
    uint32_t walked = (uint32_t)zb_min_u64(micro_steps, WALK_MICROS), units = w->model->nunits;

    for (uint32_t m = 0; m < walked; m++) {
        if (m == WALK_MICROS - 2)
            for (uint32_t u = 0; u < units; u++)
                before[u] = w->times[u];
        walk_micro(w, m + 1 == walked);
        if (m == WALK_MICROS - 2)
            for (uint32_t u = 0; u < units; u++)
                w->times[u] += (w->times[u] - before[u]) * (micro_steps - walked);
    }
}

/* Sets times[u]. 0 or -ENOMEM. */
static int links_times(const struct zb_run *run, uint64_t *times)
{
    uint32_t n = run->model->nunits;
    struct walk w = { .model = run->model, .ahead = run->prefetch_units, .times = times };
    uint64_t *before = calloc(n, sizeof(*before));
    int rc = -ENOMEM;

    w.window = calloc(n, sizeof(*w.window));
    w.here = calloc((size_t)run->prefetch_units * 2 + 2, sizeof(*w.here));
    if (before && w.window && w.here) {
        walk_step(&w, run->micro_steps, before);
        rc = 0;
    }
    for (uint32_t u = 0; u < n && rc == 0; u++)
        if (!zb_mode_cuts(run->mode, ZB_PARAM)) /* whole parameters stay until the step */
            times[u] = zb_min_u64(times[u], 1);
    free(before);
    free(w.window);
    free(w.here);
    return rc;
}

/* ---- what a gather moves */

/* One gather of a unit by a rank: the slice has `own` bytes, all slices `all`, and each padded one
 * `slice`. */
static struct zb_link link_of(const struct zb_run *run, bool on_gpus, uint32_t world, uint64_t own,
                              uint64_t all, uint64_t slice)
{
    uint64_t here = world > 1 && zb_run_reads(run) ? all : own;
    struct zb_link l = { .up = on_gpus ? 0 : here, .within = on_gpus ? here : 0 };

    if (world == 1 || zb_run_reads(run))
        return l;
    l.sent = (world - 1) * slice;
    if (run->comm == ZB_COMM_HOST) {
        l.up = world * slice;
        l.down = on_gpus ? own : 0;
        l.within = 0;
    }
    return l;
}

static void link_add(struct zb_link *sum, const struct zb_link *l, uint64_t times)
{
    sum->up += l->up * times;
    sum->down += l->down * times;
    sum->within += l->within * times;
    sum->sent += l->sent * times;
}

/* All ranks' gathers of one unit. */
static void links_unit(const struct zb_run *run, const struct zb_gpus *gpus, uint32_t page_elems,
                       uint32_t unit, uint64_t times, struct zb_links *ret)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    uint64_t elem = zb_dtype_bytes(run->layout.dtype), all = 0, stored = 0;
    uint64_t slice, first, count;

    for (uint32_t r = 0; r < world; r++) {
        zb_slice(run->model->units[unit], world, r, &slice, &first, &count);
        all += count * elem;
        stored += zb_layout_bytes(&run->layout, ZB_PARAM, page_elems, count);
    }
    for (uint32_t r = 0; r < world; r++) {
        struct zb_link l;

        zb_slice(run->model->units[unit], world, r, &slice, &first, &count);
        l = link_of(run, ret->on_gpus, world, count * elem, all, slice * elem);
        link_add(&ret->gpu[zb_gpu_of(gpus, r)], &l, times);
        link_add(&ret->all, &l, times);
    }
    ret->fetched += stored * times * (world > 1 && zb_run_reads(run) ? world : 1);
    ret->gathers += times;
}

bool zb_links_known(const struct zb_run *run)
{
    return run->nodes == 1 && run->computes_on && zb_run_keeps(run) && run->comm != ZB_COMM_RING;
}

int zb_links(const struct zb_run *run, const struct zb_node *node, const struct zb_forecast *f,
             struct zb_links *ret)
{
    struct zb_gpus gpus = zb_run_gpus(run, node, f->local);
    uint64_t *times = calloc(run->model->nunits, sizeof(*times));
    int rc = times ? links_times(run, times) : -ENOMEM;

    *ret = (struct zb_links){ .on_gpus = f->gpu_params > 0 };
    for (uint32_t u = 0; u < run->model->nunits && rc == 0; u++)
        links_unit(run, &gpus, node->page_elems, u, times[u], ret);
    ret->memory = ret->all.up + ret->all.down + ret->all.sent * (run->comm == ZB_COMM_HOST ? 1 : 2);
    free(times);
    return rc;
}
