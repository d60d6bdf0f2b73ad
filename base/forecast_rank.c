/*
 * forecast_rank.c - a rank's own memory: its copies of planes that are not sharded, and the
 * engine's buffers.
 */
#include <assert.h>
#include <errno.h>

#include "base/forecast_priv.h"
#include "base/size.h"
#include "base/util.h"

/* Planes that are whole on each rank are its own, padded to equal slices. The daemon has the
 * rank's slices of all three planes, and steps those. If nothing is offloaded, or no plane is
 * split, the daemon has nothing: slices are the rank's own, and a part of the whole if there is
 * one. */
static void rank_planes(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *f,
                        uint64_t *ret_slice)
{
    bool cuts = zb_mode_cuts(run->mode, ZB_STATE), keeps = zb_run_keeps(run);
    uint32_t world = cuts ? zb_mode_world(run->mode, run->ranks, run->nodes) : 1;

    *ret_slice = 0;
    for (uint32_t u = 0; u < run->model->nunits; u++) {
        const struct zb_layout *layout = zb_run_layout(run, u);
        uint64_t slice, first, count;

        zb_slice(run->model->units[u], world, 0, &slice, &first, &count);
        *ret_slice = zb_max_u64(*ret_slice, slice);
        for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
            uint32_t block = layout->block_bytes[p];

            if (keeps)
                f->kept[p] += zb_layout_bytes(layout, p, node->page_elems, count);
            if (!zb_mode_cuts(run->mode, p))
                f->own[p] += zb_blocks_bytes(block, slice * world);
            else if (!keeps)
                f->own[p] += zb_blocks_bytes(block, count);
        }
    }
    f->field = zb_mode_field(run->mode, (double)run->model->params, run->ranks, run->nodes);
}

/* The engine's buffers of gathered units: a released buffer serves the next unit of about its
 * size, and a few stay idle. */
struct pool {
    struct {
        uint64_t bytes;
        uint32_t unit; /* UINT32_MAX: idle */
        uint64_t since;
    } bufs[2 * ZB_PREFETCH_MAX + 8];
    uint32_t n, idle, keep;
    uint64_t now, bytes, most;
};

static void pool_get(struct pool *p, uint32_t unit, uint64_t bytes)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < p->n; i++) {
        bool fits = p->bufs[i].bytes >= bytes && p->bufs[i].bytes / 2 <= bytes;

        if (p->bufs[i].unit == unit)
            return;
        if (p->bufs[i].unit == UINT32_MAX && fits &&
            (best == UINT32_MAX || p->bufs[i].bytes < p->bufs[best].bytes))
            best = i;
    }
    if (best != UINT32_MAX) {
        p->idle--;
    } else {
        best = p->n++;
        assert(p->n <= ZB_COUNT(p->bufs));
        p->bufs[best].bytes = bytes;
        p->bytes += bytes;
        p->most = zb_max_u64(p->most, p->bytes);
    }
    p->bufs[best].unit = unit;
}

static void pool_put(struct pool *p, uint32_t unit)
{
    uint32_t oldest = UINT32_MAX;

    for (uint32_t i = 0; i < p->n; i++)
        if (p->bufs[i].unit == unit) {
            p->bufs[i].unit = UINT32_MAX;
            p->bufs[i].since = ++p->now;
            p->idle++;
        }
    if (p->idle <= p->keep)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->bufs[i].unit == UINT32_MAX &&
            (oldest == UINT32_MAX || p->bufs[i].since < p->bufs[oldest].since))
            oldest = i;
    p->bytes -= p->bufs[oldest].bytes;
    p->bufs[oldest] = p->bufs[--p->n];
    p->idle--;
}

static bool pool_ahead(const struct zb_run *run, uint64_t i, uint32_t unit)
{
    const struct zb_model *m = run->model;

    for (uint32_t k = 1; k <= run->prefetch_units && i + k < m->norder; k++)
        if (m->order[i + k] == unit)
            return true;
    return false;
}

/* Bytes of a unit gathered from `world` slices. */
static uint64_t gathered_bytes(const struct zb_run *run, uint32_t unit, uint32_t world)
{
    uint64_t slice, first, count;

    zb_slice(run->model->units[unit], world, 0, &slice, &first, &count);
    return zb_round_up(slice * world * zb_dtype_bytes(run->layout.dtype), ZB_PAGE_ALIGN);
}

/* Simulates one micro-step's gathers; returns the most bytes at a time. A single rank needs no
 * buffers: it uses the daemon's memory. */
static uint64_t rank_gathers(const struct zb_run *run, uint32_t world)
{
    struct pool p = { .keep = run->prefetch_units + ZB_GATHER_IDLE };
    const struct zb_model *m = run->model;

    for (uint32_t i = 0; i < m->norder && world > 1; i++) {
        pool_get(&p, m->order[i], gathered_bytes(run, m->order[i], world));
        for (uint32_t k = 1; k <= run->prefetch_units && i + k < m->norder; k++)
            pool_get(&p, m->order[i + k], gathered_bytes(run, m->order[i + k], world));
        if (!pool_ahead(run, i, m->order[i]))
            pool_put(&p, m->order[i]);
    }
    return p.most;
}

/* Buffers of fp32 gradients, at most: the one being computed, and those in transit. With several
 * ranks there are extra buffers: for received data if the dtype is fp32, for sums with ddp. Whole
 * gradients (zero1) are the rank's own plane: 16-bit data is received into it, but rounded in
 * extra buffers on a GPU. */
static void rank_buffers(const struct zb_run *run, const struct zb_node *node,
                         struct zb_forecast *f)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    uint64_t largest = zb_padded_elems(run->model->largest) * sizeof(float);
    bool ddp = !zb_mode_cuts(run->mode, ZB_STATE), f32 = run->layout.dtype == ZB_F32;
    uint64_t beside = world > 1 && (f32 || ddp) ? ZB_REDUCES_MAX * largest : 0;

    f->gather_bytes = zb_mode_cuts(run->mode, ZB_PARAM) ? rank_gathers(run, world) : 0;
    f->grad_bytes = (1 + ZB_REDUCES_MAX) * largest + beside;
    if (world > 1 && !ddp && !zb_mode_cuts(run->mode, ZB_GRAD))
        f->grad_bytes = f32 || (node->gpu_bytes == 0 && zb_run_keeps(run))
                            ? beside
                            : ZB_REDUCES_MAX * largest / 2;
}

void zb_forecast_rank(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *f,
                      uint64_t *ret_slice)
{
    rank_planes(run, node, f, ret_slice);
    rank_buffers(run, node, f);
}

void zb_forecast_gpu(const struct zb_node *node, struct zb_forecast *f)
{
    uint64_t need = f->own[ZB_PARAM] + f->own[ZB_GRAD] + f->own[ZB_STATE] + f->gather_bytes +
                    f->grad_bytes;

    if (node->gpus > 0)
        need *= zb_div_up(f->local, node->gpus); /* ranks that share a GPU */
    if (node->gpu_bytes == 0 || need <= node->gpu_bytes)
        return;
    f->fits = false;
    (void)zb_fail(&f->why, -ENOSPC,
                  "ranks' own copies and the engine's buffers need %s of a GPU's %s, without "
                  "activations; the smallest gpu_bytes that would work is %llu",
                  zb_size_text(need).s, zb_size_text(node->gpu_bytes).s, (unsigned long long)need);
}
