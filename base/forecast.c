#include "base/forecast.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/size.h"
#include "base/util.h"

#define DAY_S         86400.0
#define YEAR_DAYS     365.0
#define FLOPS_A_TOKEN 8.0  /* of a parameter: forward 2, backward 4, forward again 2 */
#define CRC_BYTES_S   10e9 /* of one core, in the cache: less than half of what it is alone */
#define GPU_UNIT      (2 * ZB_MIB) /* that a device's memory comes in */
#define FETCH_STEPS   2u           /* are walked through; the last one counts */
#define WALK_MICROS   4u           /* micro-steps of a step are walked through */

const char *zb_bound_name(enum zb_bound bound)
{
    static const char *const names[] = { "unknown", "drive-read", "drive-write", "kernel",
                                         "checksums" };

    return names[bound];
}

/* ---- fetches of streamed parameters: the ring, place by place */

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

/* The shards of one rank that are streamed, by unit. */
struct walk {
    const struct zb_place_job *job;
    const struct zb_model *model;
    uint32_t
        *shard_of; /* [nunits]: of the rank at hand; UINT32_MAX: it has none, or not streamed */
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

/* The shard is pinned: it is there, or read into the place that was given back first. */
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
        return; /* all are held: it is read when one is given back, by walk_put() */
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
 * One rank's gathers of some micro-steps, with the one that comes next ahead. Each gathers all
 * units in the same order, so what one leaves in the ring is the same for all but the first: of
 * those in the middle one is walked, and counts for all.
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
            continue; /* it is held on */
        walk_put(w, unit);
    }
}

/* A step makes what is cached old, but for what is frozen. */
static void walk_forget(struct walk *w)
{
    for (uint32_t r = 0; r < w->nrings; r++)
        for (uint32_t i = 0; i < w->rings[r].nplaces; i++) {
            struct ring_place *p = &w->rings[r].places[i];

            if (p->shard != UINT32_MAX && !w->job->shards[p->shard].layout->frozen)
                *p = (struct ring_place){ .shard = UINT32_MAX };
        }
}

/* The rings of the shards [from, n), as admission counts them. */
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

/* What one step's gathers read, over the ranks of this node. */
static int forecast_fetches(const struct zb_run *run, const struct zb_place_job *job,
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

/* ---- bytes */

static int forecast_check(const struct zb_run *run, const struct zb_node *node, struct zb_err *err)
{
    if (run->ranks < 1 || run->ranks > ZB_RANKS_MAX || run->nodes < 1 ||
        run->ranks % run->nodes != 0)
        return zb_fail(err, -EINVAL, "%u ranks on %u nodes: as many on each, and at most %u",
                       run->ranks, run->nodes, ZB_RANKS_MAX);
    if (run->micro_steps < 1 || run->model->nunits == 0 || run->prefetch_units > ZB_PREFETCH_MAX)
        return zb_fail(err, -EINVAL,
                       "a step of %u micro-steps, %u units, and %u of them (to %u) gathered ahead",
                       run->micro_steps, run->model->nunits, run->prefetch_units, ZB_PREFETCH_MAX);
    if (node->page_elems < ZB_BLOCK_ELEMS || node->page_elems > ZB_PAGE_ELEMS_MAX ||
        node->page_elems % ZB_BLOCK_ELEMS != 0)
        return zb_fail(err, -EINVAL, "pages of %u elements: a multiple of %u, at most %u",
                       node->page_elems, ZB_BLOCK_ELEMS, ZB_PAGE_ELEMS_MAX);
    return 0;
}

/* A node has more than the daemon takes of a job. */
static int forecast_shards(const struct zb_run *run, uint32_t local, struct zb_err *err)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    uint64_t n = 0;

    for (uint32_t u = 0; u < run->model->nunits; u++) {
        uint64_t slice, first, count;

        zb_slice(run->model->units[u], world, 0, &slice, &first, &count);
        n += zb_min_u64(local, zb_div_up(run->model->units[u], slice));
    }
    if (n <= ZB_SHARDS_MAX)
        return 0;
    return zb_fail(err, -EINVAL, "%llu shards on a node, of %u units and %u ranks: at most %u",
                   (unsigned long long)n, run->model->nunits, local, ZB_SHARDS_MAX);
}

/* What is whole on each rank is its own, padded to equal slices; the daemon has its slices of all
 * three planes, which is what is stepped. Where nothing is cut, the daemon has nothing. */
static void forecast_rank(const struct zb_run *run, const struct zb_node *node,
                          struct zb_forecast *f, uint64_t *ret_slice)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);

    *ret_slice = 0;
    for (uint32_t u = 0; u < run->model->nunits; u++) {
        uint64_t slice, first, count;

        zb_slice(run->model->units[u], zb_mode_cuts(run->mode, ZB_STATE) ? world : 1, 0, &slice,
                 &first, &count);
        *ret_slice = zb_max_u64(*ret_slice, slice);
        for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
            uint32_t block = run->layout.block_bytes[p];

            if (zb_mode_cuts(run->mode, ZB_STATE))
                f->kept[p] += zb_layout_bytes(&run->layout, p, node->page_elems, count);
            if (!zb_mode_cuts(run->mode, ZB_STATE))
                f->own[p] += zb_blocks_bytes(block, slice);
            else if (!zb_mode_cuts(run->mode, p))
                f->own[p] += zb_blocks_bytes(block, slice * world);
        }
    }
    f->field = zb_mode_field(run->mode, (double)run->model->params, run->ranks, run->nodes);
}

/* The engine's buffers of gathered units: one that was given back serves the next unit of about its
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

/* Bytes of a unit that was gathered from `world` slices. */
static uint64_t gathered_bytes(const struct zb_run *run, uint32_t unit, uint32_t world)
{
    uint64_t slice, first, count;

    zb_slice(run->model->units[unit], world, 0, &slice, &first, &count);
    return zb_round_up(slice * world * zb_dtype_bytes(run->layout.dtype), ZB_PAGE_ALIGN);
}

/* One micro-step's gathers. A rank that is alone looks at the daemon's memory. */
static uint64_t forecast_gathers(const struct zb_run *run, uint32_t world)
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

/* Gradients in fp32, at most: one that is made and those on their way, over several ranks with what
 * lies beside: of fp32 ones what is received, of DDP's the sums. Whole gradients are the rank's
 * own: of 16 bits what is received is in them, but on a GPU, where they are rounded beside. */
static void forecast_engine(const struct zb_run *run, const struct zb_node *node,
                            struct zb_forecast *f)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    uint64_t largest = zb_padded_elems(run->model->largest) * sizeof(float);
    bool ddp = !zb_mode_cuts(run->mode, ZB_STATE), f32 = run->layout.dtype == ZB_F32;
    uint64_t beside = world > 1 && (f32 || ddp) ? ZB_REDUCES_MAX * largest : 0;

    f->gather_bytes = zb_mode_cuts(run->mode, ZB_PARAM) ? forecast_gathers(run, world) : 0;
    f->grad_bytes = (1 + ZB_REDUCES_MAX) * largest + beside;
    if (world > 1 && !ddp && !zb_mode_cuts(run->mode, ZB_GRAD))
        f->grad_bytes = f32 || node->gpu_bytes == 0 ? beside : ZB_REDUCES_MAX * largest / 2;
}

/* The least budget of a node in which a job takes so much for its planes and its ring. */
static uint64_t forecast_budget(const struct zb_node *node, const struct zb_forecast *f,
                                uint64_t bytes)
{
    uint64_t all = node->host_taken + f->host_staging + bytes;

    return node->nvme_bytes > 0
               ? zb_buffers_least(all, node->ring_bytes, zb_buffer_bytes(node->page_elems))
               : all;
}

static void forecast_least(const struct zb_node *node, const struct zb_place *place,
                           struct zb_forecast *f)
{
    f->host_least = forecast_budget(node, f, place->least_host);
    f->host_least_grads = forecast_budget(node, f, place->least_grads);
    f->nvme_least = ZB_DATA_START + node->nvme_taken + zb_needs_bytes(&place->nvme);
}

static void forecast_refuse(const struct zb_node *node, const struct zb_place *place, bool placed,
                            struct zb_forecast *f)
{
    uint64_t need = f->host_staging + place->least_host;

    f->fits = false;
    if (placed)
        (void)zb_fail(&f->why, -ENOSPC,
                      "it needs %s of NVMe, and %s are free; the least nvme_bytes that would do is "
                      "%llu",
                      zb_size_text(zb_needs_bytes(&place->nvme)).s,
                      zb_size_text(node->nvme_bytes - node->nvme_taken).s,
                      (unsigned long long)f->nvme_least);
    else
        (void)zb_fail(&f->why, -ENOSPC,
                      "it needs at least %s of host memory (gradients %s, parameters or their ring "
                      "%s, state %s, staging %s) and the budget is %s; the least host_bytes that "
                      "would do is %llu",
                      zb_size_text(need).s, zb_size_text(place->grad_bytes).s,
                      zb_size_text(place->least_params).s,
                      zb_size_text(place->least_host - place->grad_bytes - place->least_params).s,
                      zb_size_text(f->host_staging).s, zb_size_text(node->host_bytes).s,
                      (unsigned long long)f->host_least);
}

/* State that goes to the GPU tier, as many runs as fit. 0 or -ENOMEM. */
static int forecast_gpu_tier(const struct zb_node *node, const struct zb_place_job *job,
                             struct zb_forecast *f)
{
    uint32_t n = zb_gpu_runs(job->shards, job->nshards, job->page_elems, GPU_UNIT, NULL);
    struct zb_gpu_run *runs = calloc(zb_max_u64(n, 1), sizeof(*runs));

    if (!runs)
        return -ENOMEM;
    (void)zb_gpu_runs(job->shards, job->nshards, job->page_elems, GPU_UNIT, runs);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t taken = zb_gpu_run_taken(&runs[i], GPU_UNIT);

        if (f->gpu_used + taken > node->gpu_tier_bytes)
            break;
        f->gpu_used += taken;
        f->gpu_state += runs[i].bytes;
    }
    free(runs);
    return 0;
}

/* The bytes that the step itself moves. */
static void forecast_step(const struct zb_run *run, const struct zb_place_job *job,
                          const struct zb_place *place, struct zb_forecast *f)
{
    uint64_t all[ZB_PLANES] = { 0 }, here; /* state that is on no drive */

    for (uint32_t i = 0; i < job->nshards; i++)
        for (enum zb_plane p = 0; p < ZB_PLANES; p++)
            all[p] +=
                zb_layout_bytes(job->shards[i].layout, p, job->page_elems, job->shards[i].count);
    if (run->layout.frozen)
        return;
    here = zb_min_u64(all[ZB_STATE], place->state_bytes + f->gpu_state);
    f->step_read = all[ZB_PARAM] - place->param_bytes + all[ZB_STATE] - here;
    f->step_written = f->step_read;
    f->step_read += place->nvme_grad;
    f->push_read = (uint64_t)(run->micro_steps - 1) * place->nvme_grad;
    f->push_written = (uint64_t)run->micro_steps * place->nvme_grad;
    if (run->durable && run->commit_every > 0) {
        f->commit_written = place->param_bytes + here;
        f->commit_share = 1.0 / (double)run->commit_every;
    }
    f->kernel_bytes = 2 * (all[ZB_PARAM] + all[ZB_STATE] - f->gpu_state) + all[ZB_GRAD];
    f->crc_bytes = f->step_read + f->step_written;
}

/* ---- time */

void zb_forecast_time(const struct zb_node *node, struct zb_forecast *f)
{
    double read = 0, write = 0, kernel = 0, crc = 0;

    f->drive_seconds = f->kernel_seconds = f->step_seconds = 0;
    f->bound = ZB_BOUND_UNKNOWN;
    if ((f->step_read > 0 && node->drive_read <= 0) ||
        (f->step_written > 0 && node->drive_write <= 0))
        return;
    if (f->step_read > 0)
        read = (double)f->step_read / node->drive_read;
    if (f->step_written > 0)
        write = ((double)f->step_written + (double)f->commit_written * f->commit_share) /
                node->drive_write;
    f->drive_seconds = read + write;
    if (node->memory > 0)
        kernel = (double)f->kernel_bytes / node->memory;
    if (node->cores > 0)
        crc = (double)f->crc_bytes / (CRC_BYTES_S * node->cores);
    f->kernel_seconds = kernel + crc;
    f->step_seconds = f->drive_seconds > f->kernel_seconds ? f->drive_seconds : f->kernel_seconds;
    if (f->step_seconds == 0)
        return;
    if (f->drive_seconds >= f->kernel_seconds)
        f->bound = read >= write ? ZB_BOUND_READ : ZB_BOUND_WRITE;
    else
        f->bound = kernel >= crc ? ZB_BOUND_KERNEL : ZB_BOUND_CRC;
}

/* Computing takes 8 operations a parameter and
 * token; so many tokens take as long as the drive. */
static void forecast_wear(const struct zb_run *run, const struct zb_node *node,
                          struct zb_forecast *f)
{
    double written = (double)(f->step_written + f->push_written) +
                     (double)f->commit_written * f->commit_share;
    double fetch = node->drive_read > 0 ? (double)(f->fetch_read + f->push_read) / node->drive_read
                                        : 0;
    double push = node->drive_write > 0 ? (double)f->push_written / node->drive_write : 0;
    double seconds = run->seconds > 0 ? run->seconds : f->step_seconds;

    if (run->flops > 0 && f->drive_seconds > 0)
        f->hide_tokens = (f->drive_seconds + fetch + push) * run->flops * run->ranks /
                         (FLOPS_A_TOKEN * (double)run->model->params);
    if (seconds > 0 && written > 0) {
        f->written_day = written / seconds * DAY_S;
        if (node->endurance > 0)
            f->endurance_years = node->endurance / f->written_day / YEAR_DAYS;
    }
}

/* ---- all of it */

/* As admission does: rather without early steps than not at all. */
static int forecast_try(const struct zb_run *run, const struct zb_node *node,
                        struct zb_place_job *job, struct zb_place *place, struct zb_forecast *f)
{
    uint64_t room = node->nvme_bytes - zb_min_u64(node->nvme_bytes, node->nvme_taken);
    int rc;

    job->early = run->early;
    rc = zb_place(job, place);
    if (rc == 0 && job->early && zb_needs_bytes(&place->nvme) > room) {
        zb_place_done(place);
        job->early = false;
        rc = zb_place(job, place);
    }
    f->early = job->early;
    return rc;
}

static int forecast_place(const struct zb_run *run, const struct zb_node *node,
                          struct zb_place_job *job, struct zb_place *place, struct zb_forecast *f)
{
    int rc = forecast_try(run, node, job, place, f);

    if (rc == -ENOMEM)
        return rc;
    forecast_least(node, place, f);
    if (rc < 0 || zb_needs_bytes(&place->nvme) > node->nvme_bytes - node->nvme_taken) {
        forecast_refuse(node, place, rc == 0, f);
        return 0;
    }
    f->fits = true;
    f->host_param = place->param_bytes;
    f->host_ring = place->ring_bytes;
    f->host_grad = place->grad_bytes;
    f->host_state = place->state_bytes;
    f->host_used = node->host_taken + f->host_staging + f->host_buffers + f->host_param +
                   f->host_ring + f->host_grad + f->host_state;
    f->nvme_param = place->nvme_param;
    f->nvme_state = place->nvme_state;
    f->nvme_grad = place->nvme_grad;
    f->nvme_spare = zb_needs_bytes(&place->nvme) - f->nvme_param - f->nvme_state - f->nvme_grad;
    f->nvme_used = node->nvme_taken + zb_needs_bytes(&place->nvme);
    if (node->gpu_tier_bytes > 0 && (rc = forecast_gpu_tier(node, job, f)) < 0)
        return rc;
    forecast_step(run, job, place, f);
    return forecast_fetches(run, job, place, f->local, &f->fetch_read);
}

static void forecast_gpu(const struct zb_node *node, struct zb_forecast *f)
{
    uint64_t need = f->own[ZB_PARAM] + f->own[ZB_GRAD] + f->own[ZB_STATE] + f->gather_bytes +
                    f->grad_bytes;

    if (node->gpu_bytes == 0 || need <= node->gpu_bytes)
        return;
    f->fits = false;
    (void)zb_fail(&f->why, -ENOSPC,
                  "a rank's own copies and the engine's buffers need %s of its GPU's %s, without "
                  "activations; the least gpu_bytes that would do is %llu",
                  zb_size_text(need).s, zb_size_text(node->gpu_bytes).s, (unsigned long long)need);
}

int zb_forecast(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *ret,
                struct zb_err *err)
{
    struct zb_layout layout = run->layout;
    struct zb_place_job job = { .page_elems = node->page_elems,
                                .durable = run->durable,
                                .times = 2 };
    struct zb_place_shard *shards = NULL;
    struct zb_place place = { 0 };
    uint64_t slice, taken;
    int rc = forecast_check(run, node, err);

    *ret = (struct zb_forecast){ 0 };
    if (rc < 0)
        return rc;
    ret->params = run->model->params;
    ret->local = run->ranks / run->nodes;
    rc = forecast_shards(run, ret->local, err);
    if (rc < 0)
        return rc;
    forecast_rank(run, node, ret, &slice);
    forecast_engine(run, node, ret);
    for (enum zb_plane p = 0; p < ZB_PLANES; p++)
        if (!zb_mode_cuts(run->mode, ZB_STATE)) /* nothing goes to the daemon */
            layout.block_bytes[p] = 0;
    if (zb_mode_cuts(run->mode, ZB_STATE))
        ret->host_staging = ret->local * zb_staging_bytes(zb_piece_elems(slice, node->page_elems));
    if (node->nvme_bytes > 0)
        ret->nbuffers = node->nbuffers > 0 ? node->nbuffers
                                           : zb_buffers(node->host_bytes, node->ring_bytes,
                                                        zb_buffer_bytes(node->page_elems));
    ret->host_buffers = ret->nbuffers * zb_buffer_bytes(node->page_elems);
    taken = node->host_taken + ret->host_staging + ret->host_buffers;
    job.nbuffers = ret->nbuffers;
    job.host_bytes = node->host_bytes > taken ? node->host_bytes - taken : 0;
    job.params_resident = run->param != ZB_OFFLOAD_NVME || node->nvme_bytes == 0 ||
                          !zb_mode_cuts(run->mode, ZB_PARAM); /* only stage 3 offloads them */
    job.grads_resident = run->grad == ZB_OFFLOAD_HOST || node->nvme_bytes == 0;
    job.state_resident = run->optimizer != ZB_OFFLOAD_NVME || node->nvme_bytes == 0;
    if (zb_model_shards(run->model, &layout, zb_mode_world(run->mode, run->ranks, run->nodes),
                        ret->local, &shards, &job.nshards) < 0)
        return zb_fail(err, -ENOMEM, "a plan of %u units over %u ranks: %m", run->model->nunits,
                       run->ranks);
    job.shards = shards;
    rc = forecast_place(run, node, &job, &place, ret);
    if (rc < 0)
        rc = zb_fail(err, rc, "a plan of %u shards: %m", job.nshards);
    if (rc == 0 && ret->fits)
        forecast_gpu(node, ret);
    if (rc == 0) {
        zb_forecast_time(node, ret);
        forecast_wear(run, node, ret);
    }
    zb_place_done(&place);
    free(shards);
    return rc;
}
