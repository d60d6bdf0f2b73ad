/*
 * op/ortho.c - orthogonalizes the matrices of a job on the compute threads, or has op/ortho_gpu.c do it.
 *
 * MODEL. kernels/ortho.h divides a matrix into phases of tiles. The tasks of a job (twice as many as compute
 * threads) take tiles, and the oldest matrix that has one is served first:
 *
 *     start ---> waiting ---> running, with scratch memory ---> done()
 *
 * A matrix that waits begins when a task finds no tile in those that run, and scratch memory is free. So the
 * threads have work although a phase may have few tiles, and ends when its last tile does. A small matrix is
 * one tile: all of its phases, by one task.
 *
 * The scratch memory has room for the largest matrix, or for more. Matrices begin in order, so one
 * that waits for memory is not overtaken, and nothing else is waited for: all of them are orthogonalized.
 *
 * SHARE. A tile of a large matrix takes tens of milliseconds. Under a backward pass, gradients are taken in, pages are
 * stepped and parameters are fetched by the same threads. So there is at most one tile for each thread but one then: a
 * thread is always free for what ranks wait for. With one thread, others take their turn after each tile.
 *
 * STOP. Matrices that no task uses are dropped at once. For the others done() is called when their tasks have ended.
 */
#include "daemon/op/ortho.h"

#include <stdlib.h>

#include "daemon/op/ortho_gpu.h"
#include "daemon/run/turn.h"

#define WHOLE_ELEMS 65536u /* a matrix that is not larger is one tile */

struct ortho_task {
    struct zsd_task task;
    struct zsd_orthos *of;
    struct zsd_ortho *matrix;
    size_t tile;
};

struct zsd_orthos {
    struct zsd_job *job;
    struct zb_list waiting, running; /* struct zsd_ortho, the oldest first */
    struct zsd_ortho_gpu gpu;        /* takes them all, if the job has an engine on a GPU */
    struct ortho_task **idle;        /* tasks without a tile */
    unsigned nidle, ntasks;
    unsigned most; /* tiles at the same time */
    struct ortho_task tasks[];
};

/* ---- compute thread */

static void ortho_run(struct zsd_task *task)
{
    const struct ortho_task *t = zb_container_of(task, struct ortho_task, task);
    struct zk_ortho *o = &t->matrix->ortho;
    size_t n = t->matrix->first_tiles;

    if (!t->matrix->whole) {
        zk_ortho_tile(o, t->tile);
        return;
    }
    do
        for (size_t tile = 0; tile < n; tile++)
            zk_ortho_tile(o, tile);
    while ((n = zk_ortho_next(o)) > 0);
}

/* ---- loop thread */

/* A place for so many bytes of scratch memory: the first one between those of the matrices that run.
 * UINT64_MAX: there is none. */
static uint64_t scratch_find(const struct zsd_orthos *e, uint64_t bytes)
{
    uint64_t at = 0, before = UINT64_MAX;

    while (at != before) {
        before = at;
        zb_list_each(pos, &e->running)
        {
            const struct zsd_ortho *o = zb_container_of(pos, struct zsd_ortho, node);

            if (at < o->scratch_end && at + bytes > o->scratch_at)
                at = o->scratch_end;
        }
    }
    return at + bytes <= e->job->muon_room.scratch_bytes ? at : UINT64_MAX;
}

/* Begins with the oldest matrix that waits. NULL: none waits, or there is no memory. */
static struct zsd_ortho *ortho_begin(struct zsd_orthos *e)
{
    const struct zb_muon_room *room = &e->job->muon_room;
    const struct zk_matrix *m;
    struct zsd_ortho *o;

    if (zb_list_empty(&e->waiting))
        return NULL;
    o = zb_container_of(e->waiting.next, struct zsd_ortho, node);
    m = o->matrix;
    o->scratch_at = scratch_find(e, zb_ortho_bytes(m->rows, m->cols));
    if (o->scratch_at == UINT64_MAX)
        return NULL;
    o->scratch_end = o->scratch_at + zb_ortho_bytes(m->rows, m->cols);
    o->whole = m->count <= WHOLE_ELEMS;
    o->running = 0;
    o->next_tile = 0;
    o->first_tiles = o->tiles = zk_ortho_begin(
        &o->ortho, e->job->core->daemon->kernels, &zk_ortho_muon, m->at, m->rows, m->cols,
        e->job->muon_at + room->matrices_bytes + room->slots * room->slot_bytes + o->scratch_at);
    if (o->whole)
        o->tiles = 1;
    zb_list_remove(&o->node);
    zb_list_push_back(&e->running, &o->node);
    return o;
}

/* The oldest matrix that has a tile which no task has taken, or NULL. */
static struct zsd_ortho *ortho_next(struct zsd_orthos *e)
{
    zb_list_each(pos, &e->running)
    {
        struct zsd_ortho *o = zb_container_of(pos, struct zsd_ortho, node);

        if (o->next_tile < o->tiles)
            return o;
    }
    return ortho_begin(e);
}

/* Gives tiles to tasks that have none. */
static void ortho_pump(struct zsd_orthos *e)
{
    struct zsd_ortho *o;

    while (e->ntasks - e->nidle < e->most && (o = ortho_next(e)) != NULL) {
        struct ortho_task *t = e->idle[--e->nidle];

        t->matrix = o;
        t->tile = o->next_tile++;
        o->running++;
        zsd_job_hold(e->job);
        zsd_task_start(e->job->core, &t->task);
    }
}

static void ortho_on_task(struct zsd_task *task)
{
    struct ortho_task *t = zb_container_of(task, struct ortho_task, task);
    struct zsd_orthos *e = t->of;
    struct zsd_ortho *o = t->matrix;
    struct zsd_job *job = e->job;

    e->idle[e->nidle++] = t;
    o->running--;
    if (o->stopped && o->running == 0) {
        zb_list_remove(&o->node);
        o->done(o);
    } else if (job->state != ZSD_ENDED && !o->stopped) {
        if (o->running == 0 && o->next_tile == o->tiles) {
            o->next_tile = 0;
            o->tiles = o->whole ? 0 : zk_ortho_next(&o->ortho);
            if (o->tiles == 0) {
                zb_list_remove(&o->node);
                o->done(o);
            }
        }
        ortho_pump(e);
    }
    zsd_job_unhold(job);
}

void zsd_ortho_start(struct zsd_orthos *e, struct zsd_ortho *o)
{
    zb_list_push_back(&e->waiting, &o->node);
    if (zsd_ortho_on_gpu(e->job))
        zsd_ortho_gpu_pump(&e->gpu);
    else
        ortho_pump(e);
}

void zsd_orthos_share(struct zsd_orthos *e, bool on)
{
    e->most = on ? (unsigned)zb_max_u64(e->ntasks / 2, 2) - 1 : e->ntasks;
    if (!zsd_ortho_on_gpu(e->job))
        ortho_pump(e);
}

void zsd_orthos_stop(struct zsd_orthos *e)
{
    while (zb_list_pop_front(&e->waiting) != NULL)
        ;
    zb_list_each(pos, &e->running)
    {
        struct zsd_ortho *o = zb_container_of(pos, struct zsd_ortho, node);

        o->tiles = o->next_tile;
        o->stopped = true;
        if (o->running == 0)
            zb_list_remove(&o->node);
    }
    zsd_ortho_gpu_stop(&e->gpu);
}

bool zsd_ortho_busy(const struct zsd_orthos *e, const struct zsd_ortho *o)
{
    return o->running > 0 || e->gpu.matrix == o;
}

struct zsd_orthos *zsd_orthos_new(struct zsd_job *job)
{
    unsigned ntasks = 2 * zsd_compute_threads(job->core->daemon->compute);
    struct zsd_orthos *e = calloc(1, sizeof(*e) + ntasks * sizeof(e->tasks[0]));

    if (!e)
        return NULL;
    e->idle = calloc(ntasks, sizeof(struct ortho_task *));
    if (!e->idle) {
        free(e);
        return NULL;
    }
    e->job = job;
    e->most = e->ntasks = ntasks;
    zb_list_init(&e->waiting);
    zb_list_init(&e->running);
    zsd_ortho_gpu_init(&e->gpu, job, &e->waiting);
    for (unsigned i = 0; i < ntasks; i++) {
        e->tasks[i] = (struct ortho_task){ .of = e,
                                           .task = { .run = ortho_run,
                                                     .done = ortho_on_task,
                                                     .payer = &job->payer,
                                                     .bytes = WHOLE_ELEMS * sizeof(float) } };
        e->idle[e->nidle++] = &e->tasks[i];
    }
    return e;
}

void zsd_orthos_free(struct zsd_orthos *e)
{
    if (e)
        free(e->idle);
    free(e);
}
