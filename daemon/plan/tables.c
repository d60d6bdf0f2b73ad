/*
 * tables.c - tables of pages and memory addresses of a job's shards: made after zsd_place(), and
 * freed when the job has ended.
 *
 * MODEL. All of this work is proportional to the shards and pages of a job, so it is done in parts.
 * The first two are walks (job/walk.h):
 *
 *     zsd_tables_make()    makes the tables of each plane that has pages on a data file, or may get
 *                          some; assigns offsets in the arena: resident shards, rank by rank, then
 *                          the ring
 *     zsd_tables_attach()  when the memory is allocated, assigns it: after the rooms (op/early_room.c),
 *                          gradients of all shards, rank by rank, then state in order of the shards
 *
 * So the parameters of a rank are one range, and so are its gradients: the rank pins no more than
 * that, and it can be on the NUMA node of the rank's GPU.
 *
 *     zsd_tables_leave()   frees the places of the pages, and the tables: disk/leaving.h
 *
 * A table is put into its plane when it is complete.
 */
#include "daemon/plan/tables.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/leaving.h"
#include "daemon/plan/gpu_params.h"

struct tables {
    struct zsd_walk walk;
    uint32_t shard, page;       /* the next ones; the shard only in walks in order of the shards */
    uint32_t rank;              /* in walks rank by rank: the next one, and where in its shards; */
    struct zb_list *pos;        /* NULL: it has not begun */
    enum zb_plane plane;        /* make: the next plane of that shard; attach: the current plane */
    struct zsd_extent *extents; /* make: the table of that plane, incomplete */
    uint64_t at;                /* the next offset: make: in the arena; attach: in job->memory */
    uint64_t gpu_at[ZSD_GPUS_MAX]; /* make: that of parameters on a GPU */
    uint64_t grads_at;             /* make: that of gradients, in job->memory */
};

/* The next shard of a walk rank by rank; NULL: there is none. */
static struct zsd_shard *tables_shard(struct tables *t)
{
    struct zsd_job *job = t->walk.job;

    for (; t->rank < job->world; t->rank++, t->pos = NULL) {
        struct zb_list *shards = &job->ranks[t->rank].shards;

        if (!t->pos)
            t->pos = shards->next;
        if (t->pos != shards)
            return zb_container_of(t->pos, struct zsd_shard, rank_node);
    }
    return NULL;
}

static void tables_over(struct zsd_walk *walk)
{
    struct tables *t = zb_container_of(walk, struct tables, walk);

    free(t->extents);
    free(t);
}

static void tables_begin(struct zsd_job *job, zsd_walked *done, bool (*part)(struct zsd_walk *walk),
                         enum zb_plane plane)
{
    struct tables *t = calloc(1, sizeof(*t));
    struct zb_err err = { 0 };

    if (!t) {
        (void)zb_fail(&err, -ENOMEM, "placement of job '%s': %m", job->name);
        zsd_job_fail(job, &err);
        return;
    }
    t->plane = plane;
    t->at = plane == ZB_GRAD ? job->room_bytes : 0;
    t->grads_at = job->room_bytes;
    t->walk = (struct zsd_walk){ .part = part, .over = tables_over, .done = done };
    zsd_walk_start(&t->walk, job);
}

/* ---- making */

static int tables_no_memory(struct tables *t)
{
    return zb_fail(&t->walk.err, -ENOMEM, "placement of job '%s': %m", t->walk.job->name);
}

static void table_free(struct zsd_plane *plane)
{
    free(plane->extents);
    free(plane->crcs);
    plane->extents = NULL;
    plane->crcs = NULL;
}

/* Makes the tables of the next plane. 1: complete; 0: continue in the next turn; or -ENOMEM. */
static int make_plane(struct tables *t, struct zsd_shard *s)
{
    struct zsd_plane *plane = &s->planes[t->plane];
    struct zsd_core *core = t->walk.job->core;
    uint32_t to;

    if (!zsd_plane_tables(s, t->plane))
        table_free(plane); /* from an earlier placement */
    if (!zsd_plane_tables(s, t->plane) || plane->extents)
        return 1;
    if (!t->extents)
        t->extents = malloc(s->npages * sizeof(*t->extents));
    if (!t->extents)
        return tables_no_memory(t);
    to = t->page + (uint32_t)zb_min_u64(zsd_turn_left(core), s->npages - t->page);
    zsd_turn_count(core, to - t->page);
    for (; t->page < to; t->page++)
        t->extents[t->page] = (struct zsd_extent){ .at = ZB_NO_PLACE };
    if (to < s->npages)
        return 0;
    plane->crcs_per_page = zn_crc_count(
        (uint32_t)zb_page_bytes(plane->block_bytes, core->page_elems), plane->crc_bytes);
    plane->crcs = calloc((size_t)s->npages * plane->crcs_per_page, sizeof(*plane->crcs));
    if (!plane->crcs)
        return tables_no_memory(t);
    plane->extents = t->extents;
    t->extents = NULL;
    t->page = 0;
    return 1;
}

/* The memory of a shard's gradient, and of new parameters beside it. */
static uint64_t grad_bytes(const struct zsd_shard *s)
{
    const struct zsd_plane *grad = &s->planes[ZB_GRAD];

    if (grad->block_bytes == 0)
        return 0;
    return zsd_plane_first(s, ZB_GRAD, grad->resident) + zsd_aside_bytes(s);
}

/* Adds what a shard takes to the ranges of its rank. */
static void make_range(struct tables *t, const struct zsd_shard *s, uint64_t param_bytes)
{
    struct zsd_rank *rank = &t->walk.job->ranks[s->rank];
    uint64_t grads = grad_bytes(s);

    if (s->rank_node.prev == &rank->shards) { /* its first */
        rank->arena_at = t->at;
        rank->grads_at = t->grads_at;
        rank->arena_bytes = rank->grads_bytes = 0;
    }
    rank->arena_bytes += param_bytes;
    rank->grads_bytes += grads;
    t->grads_at += grads;
}

/* The same for the next shard. */
static int make_shard(struct tables *t, struct zsd_shard *s)
{
    bool there = zsd_params_there(t->walk.job);
    int rc = 1;

    while (t->plane < ZB_PLANES && (rc = make_plane(t, s)) > 0)
        t->plane++;
    if (rc <= 0)
        return rc;
    t->plane = 0;
    make_range(t, s, zsd_shard_resident(s) && !there ? zsd_param_bytes(s) : 0);
    if (zsd_shard_resident(s)) {
        uint64_t *at = there ? &t->gpu_at[zsd_shard_gpu(s)] : &t->at;

        s->arena_at = *at;
        *at += zsd_param_bytes(s);
    } else if (zb_slots_count(&t->walk.job->ring, zsd_param_bytes(s), s->rank, &s->ring_class) <
               0) {
        return tables_no_memory(t);
    } else {
        s->arena_at = ZB_NO_PLACE; /* an earlier placement may have set it */
    }
    return 1;
}

/* Lays out the ring after the resident shards. 0 or -ENOMEM. */
static int make_ring(struct tables *t)
{
    struct zsd_job *job = t->walk.job;
    int rc = 0;

    for (uint32_t i = 0; i < job->ring.nclasses && rc == 0; i++) {
        struct zb_slot_class *c = &job->ring.classes[i];

        rc = zb_slots_lay(c, (uint32_t)zb_min_u64(c->users, ZB_RING_PINS));
        for (uint32_t n = 0; rc == 0 && n < c->total; n++, t->at += c->bytes)
            zb_slots_give(c, t->at);
    }
    assert(rc < 0 || t->at == job->arena_bytes);
    for (uint32_t g = 0; rc == 0 && g < job->core->daemon->ngpus; g++)
        assert(t->gpu_at[g] == job->params->on[g].bytes);
    return rc < 0 ? tables_no_memory(t) : 0;
}

static bool make_part(struct zsd_walk *walk)
{
    struct tables *t = zb_container_of(walk, struct tables, walk);
    struct zsd_job *job = t->walk.job;
    struct zsd_shard *s;

    for (; (s = tables_shard(t)) != NULL; t->pos = t->pos->next) {
        uint64_t left = zsd_turn_left(job->core);
        int rc = left > 0 ? make_shard(t, s) : 0;

        if (rc <= 0)
            return rc < 0;
        if (zsd_turn_left(job->core) == left) /* without tables it counted nothing */
            zsd_turn_count(job->core, 1);
    }
    (void)make_ring(t);
    return true;
}

void zsd_tables_make(struct zsd_job *job, zsd_walked *done)
{
    tables_begin(job, done, make_part, ZB_PARAM);
}

static bool save_part(struct zsd_walk *walk)
{
    struct tables *t = zb_container_of(walk, struct tables, walk);
    struct zsd_job *job = t->walk.job;

    for (; t->shard < job->nshards; t->shard++, t->plane = ZB_PARAM) {
        if (zsd_turn_left(job->core) == 0)
            return false;
        zsd_turn_count(job->core, 1);
        for (; t->plane < ZB_PLANES; t->plane++) {
            int rc = t->plane == ZB_GRAD ? 1 : make_plane(t, job->shards[t->shard]);

            if (rc <= 0)
                return rc < 0;
        }
    }
    return true;
}

void zsd_tables_save(struct zsd_job *job, zsd_walked *done)
{
    tables_begin(job, done, save_part, ZB_PARAM);
}

void zsd_tables_again(struct zsd_job *job)
{
    zb_slots_done(&job->ring);
}

/* ---- attaching memory */

static void attach_grad(struct tables *t, struct zsd_shard *s)
{
    uint64_t bytes = grad_bytes(s);

    if (zsd_shard_resident(s) && !zsd_params_there(t->walk.job))
        s->planes[ZB_PARAM].mem = t->walk.job->arena.base + s->arena_at;
    if (bytes == 0)
        return;
    s->planes[ZB_GRAD].mem = t->walk.job->memory + t->at;
    t->at += bytes;
}

static void attach_state(struct tables *t, struct zsd_shard *s)
{
    if (!zsd_state_is(s))
        return;
    s->planes[ZB_STATE].mem = t->walk.job->memory + t->at;
    t->at += zsd_state_bytes(s, s->npages);
}

/* Gradients first: they precede the state in memory. */
static bool attach_part(struct zsd_walk *walk)
{
    struct tables *t = zb_container_of(walk, struct tables, walk);
    struct zsd_job *job = t->walk.job;
    struct zsd_shard *s;

    for (; (s = tables_shard(t)) != NULL; t->pos = t->pos->next) {
        if (zsd_turn_left(job->core) == 0)
            return false;
        zsd_turn_count(job->core, 1);
        attach_grad(t, s);
    }
    for (; t->shard < job->nshards; t->shard++) {
        if (zsd_turn_left(job->core) == 0)
            return false;
        zsd_turn_count(job->core, 1);
        attach_state(t, job->shards[t->shard]);
    }
    assert(t->at == job->memory_bytes);
    return true;
}

void zsd_tables_attach(struct zsd_job *job, zsd_walked *done)
{
    tables_begin(job, done, attach_part, ZB_GRAD);
}

/* ---- freeing */

static bool leave_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct zsd_job *job = zb_container_of(l, struct zsd_job, leaving);

    for (; job->left_shard < job->nshards; job->left_shard++) {
        struct zsd_shard *s = job->shards[job->left_shard];

        if (*left == 0 || !zsd_shard_forget(s, &job->left_page, left))
            return false;
        for (int p = 0; p < ZB_PLANES; p++)
            table_free(&s->planes[p]);
        job->left_page = 0;
        *left -= *left > 0;
    }
    zb_slots_done(&job->ring);
    zsd_room_changed(core); /* requests that wait for the end of the job check again */
    zsd_job_unhold(job);
    return true;
}

void zsd_tables_leave(struct zsd_job *job)
{
    zsd_job_hold(job);
    zsd_leave(job->core, &job->leaving, leave_part);
}
