/*
 * load.c - loads a saved version into memory, for a job that was placed and has the same elements,
 * however they were cut into shards and pages.
 *
 * MODEL. A shard that is cut as its row (zsd_row_fits) takes over the row's extents: streamed
 * planes need no I/O at all, and resident planes are read. Pages of any other shard are assembled
 * from the rows' pages that hold their elements: op/load_page.c. At most as many pages are in
 * progress as there are page buffers and compute threads. Each turn begins as many as it has room
 * for.
 *
 * INVARIANT
 *
 *     L2  The version is held until the load ends, so none of its extents is overwritten
 *         meanwhile.
 */
#include "daemon/op/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/load_priv.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/run/turn.h"

/* The shard takes over the next pages of the row, as many as the turn has room for. True: it has
 * all of them. */
static bool load_adopt(struct zsd_load_op *op, struct zsd_shard *s)
{
    struct zsd_core *core = s->job->core;
    struct zsd_row *r = op->adopting;
    uint32_t from = op->adopted,
             to = from + (uint32_t)zb_min_u64(zsd_turn_left(core), r->npages - from);

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_plane *plane = &s->planes[zsd_plane_of(p)];
        const struct zsd_row_plane *row = &r->planes[p];

        if (plane->block_bytes == 0 || !plane->extents)
            continue;
        for (uint32_t i = from; i < to; i++) {
            if (!s->job->durable && !zsd_page_streamed(s, zsd_plane_of(p), i))
                continue; /* it will be in memory only */
            zsd_extent_ref(core, row->extents[i].at);
            plane->extents[i] = row->extents[i];
        }
        memcpy(plane->crcs + (size_t)from * plane->crcs_per_page,
               row->crcs + (size_t)from * plane->crcs_per_page,
               (size_t)(to - from) * plane->crcs_per_page * sizeof(*plane->crcs));
    }
    zsd_turn_count(core, to - from);
    op->adopted = to;
    if (to < r->npages)
        return false;
    s->row = zsd_row_ref(r);
    op->adopting = NULL;
    return true;
}

/* Whether the page is loaded already: the shard has its row, and no plane must be read. */
static bool load_nothing(const struct zsd_shard *s, uint32_t page)
{
    return s->row && !zsd_params_there(s->job) &&
           (s->planes[ZB_PARAM].block_bytes == 0 || zsd_page_streamed(s, ZB_PARAM, page)) &&
           (s->planes[ZB_STATE].block_bytes == 0 || zsd_page_streamed(s, ZB_STATE, page));
}

static void load_whole(struct zsd_load_op *op, struct zsd_shard *s)
{
    memset(s->written, 0xff, zb_div_up(s->npages, 8));
    zsd_shard_written(s, s->npages);
    s->version = op->version->applied;
}

static void load_over(struct zsd_load_op *op)
{
    struct zsd_job *job = op->job;
    struct zb_err err = op->err;

    zb_list_remove(&op->work.node);
    zsd_version_unref(op->version);
    op->done(job, err.code != 0 ? &err : NULL);
    free(op);
    zsd_job_unhold(job);
}

/* The row of the version that is cut as the shard; NULL: there is none. */
static struct zsd_row *load_row(const struct zsd_load_op *op, const struct zsd_shard *s)
{
    uint32_t i = zsd_version_find(op->version, s->unit->index, s->first);

    return i < op->version->nrows && zsd_row_fits(op->version->rows[i], s) ? op->version->rows[i]
                                                                           : NULL;
}

/* Begins the pages of a shard, in order. True: all have begun. False: as many as allowed are in
 * progress, the turn has no more room, or the load has failed. */
static bool load_shard(struct zsd_load_op *op, struct zsd_shard *s)
{
    struct zsd_core *core = op->job->core;
    uint32_t max = core->disk->nbuffers + zsd_compute_threads(core->daemon->compute);

    if (op->next_page == 0 && !s->row && !op->adopting) {
        op->adopting = load_row(op, s);
        op->adopted = 0;
    }
    while (op->adopting && !load_adopt(op, s)) /* the turn is extended at each look at the clock */
        if (zsd_turn_left(core) == 0)
            return false;
    for (; op->next_page < s->npages; op->next_page++) {
        if (op->inflight >= max || op->err.code != 0 || zsd_turn_left(core) == 0)
            return false;
        zsd_turn_count(core, 1);
        if (!load_nothing(s, op->next_page))
            zsd_load_page_start(op, s, op->next_page);
    }
    return true;
}

static void load_pump(struct zsd_load_op *op)
{
    struct zsd_job *job = op->job;
    bool more;

    while (op->next_shard < job->nshards && op->err.code == 0 && job->state != ZSD_ENDED &&
           zsd_turn_left(job->core) > 0 && load_shard(op, job->shards[op->next_shard])) {
        zsd_turn_count(job->core, 1);
        load_whole(op, job->shards[op->next_shard]);
        op->next_shard++;
        op->next_page = 0;
    }
    more = op->next_shard < job->nshards && op->err.code == 0 && job->state != ZSD_ENDED;
    if (more && zsd_turn_left(job->core) == 0)
        zsd_defer(job->core, &op->work);
    else if (op->inflight == 0)
        load_over(op);
}

static void load_on_start(struct zsd_work *work)
{
    load_pump(zb_container_of(work, struct zsd_load_op, work));
}

void zsd_load_start(struct zsd_job *job, struct zsd_version *v,
                    void (*done)(struct zsd_job *job, const struct zb_err *err))
{
    struct zsd_load_op *op = calloc(1, sizeof(*op));
    struct zb_err err = { 0 };

    if (!op) {
        (void)zb_fail(&err, -ENOMEM, "loading job '%s': %m", job->name);
        done(job, &err);
        return;
    }
    op->job = job;
    op->version = zsd_version_ref(v);
    op->page_over = load_pump;
    op->done = done;
    op->work.run = load_on_start;
    zb_list_init(&op->work.node);
    zsd_job_hold(job);
    zsd_defer(job->core, &op->work);
}
