/*
 * placing.c - placement of a job: decides once where every byte is, in parts.
 *
 * MODEL. The arithmetic takes as long as the job has shards. So it is divided:
 *
 *     GATHER ---> PLAN ---> APPLY ---> BOOK ---> done()
 *                  ^          |          |
 *                  +----------+----------+  the accounts have changed, so that the plan does not fit
 *
 *     GATHER  copies what the plan needs of each shard; in parts
 *     PLAN    reads the accounts, then makes the plan on a compute thread. That sees only the copy
 *     APPLY   sets the number of resident pages of each shard; in parts. Nobody uses these numbers
 *             before the job is placed
 *     BOOK    in one turn: checks that the plan still fits, then books all of it, or nothing. A
 *             refusal is final only if nothing has changed since the plan was made, or after
 *             PLACE_TRIES plans
 *
 * The job is held meanwhile (J1). If it ends, the placement ends with its current part, has booked
 * nothing, and does not call done(). A job of few shards does all of this in the call.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/plan/muon.h"
#include "daemon/plan/place_priv.h"
#include "daemon/plan/replan.h"

#define PLACE_NOW   64u /* shards of a job that is placed in the call; they are not counted */
#define PLACE_TRIES 8u

static void placing_check(struct zsd_placing *p);

static void placing_free(struct zsd_placing *p)
{
    if (!p)
        return;
    zb_place_done(&p->plan);
    zb_needs_done(&p->held);
    free(p->shards);
    free(p);
}

static bool placing_now(const struct zsd_placing *p)
{
    return p->job->nshards <= PLACE_NOW;
}

/* The end: frees the struct, then calls done(), unless the job has ended. */
static void placing_over(struct zsd_placing *p, int rc, const struct zb_err *err)
{
    struct zsd_job *job = p->job;
    zsd_placed *done = p->done;

    placing_free(p);
    if (job->state != ZSD_ENDED)
        done(job, rc, err);
    zsd_job_unhold(job);
}

static void placing_book(struct zsd_placing *p)
{
    struct zb_err err = { 0 };
    int rc = zsd_placing_book(p, &err);

    placing_over(p, rc, &err);
}

/* ---- PLAN */

static void plan_run(struct zsd_task *task)
{
    zsd_placing_plan(zb_container_of(task, struct zsd_placing, task));
}

static void plan_done(struct zsd_task *task)
{
    placing_check(zb_container_of(task, struct zsd_placing, task));
}

static void placing_plan(struct zsd_placing *p)
{
    p->tries++;
    p->rc = zsd_placing_look(p);
    if (p->rc < 0) {
        placing_book(p); /* which refuses */
    } else if (placing_now(p)) {
        zsd_placing_plan(p);
        placing_check(p);
    } else {
        p->task = (struct zsd_task){ .run = plan_run, .done = plan_done, .slow = true };
        zsd_task_start(p->job->core, &p->task);
    }
}

/* ---- GATHER and APPLY */

static void gather_shard(struct zsd_placing *p, const struct zsd_shard *s)
{
    p->shards[p->shard] = (struct zb_place_shard){
        .layout = &s->unit->layout, .count = s->count, .rank = s->rank, .unit = s->unit->index
    };
    p->param_bytes[zsd_shard_gpu(s)] += zsd_param_bytes(s);
}

static void apply_shard(const struct zsd_placing *p, struct zsd_shard *s)
{
    const struct zb_place *plan = &p->plan;

    s->planes[ZB_PARAM].resident = p->shard < plan->params_resident ? s->npages : 0;
    s->planes[ZB_GRAD].resident = plan->grads_resident[p->shard];
    s->planes[ZB_STATE].resident = plan->state_resident[p->shard];
    zsd_replan_begin_shard(s);
}

/* Handles the next shards. True: of all. */
static bool placing_part(struct zsd_placing *p)
{
    struct zsd_job *job = p->job;

    for (; p->shard < job->nshards; p->shard++) {
        if (!placing_now(p) && zsd_turn_left(job->core) == 0)
            return false;
        zsd_turn_count(job->core, placing_now(p) ? 0 : 1);
        if (p->applies)
            apply_shard(p, job->shards[p->shard]);
        else
            gather_shard(p, job->shards[p->shard]);
    }
    return true;
}

static void placing_walk(struct zsd_placing *p)
{
    if (!placing_part(p))
        zsd_defer(p->job->core, &p->work);
    else if (!p->applies)
        placing_plan(p);
    else if (zsd_placing_current(p))
        placing_book(p);
    else
        placing_plan(p);
}

static void placing_on_work(struct zsd_work *work)
{
    struct zsd_placing *p = zb_container_of(work, struct zsd_placing, work);

    if (p->job->state == ZSD_ENDED)
        placing_over(p, 0, NULL);
    else
        placing_walk(p);
}

/* The plan is made. */
static void placing_check(struct zsd_placing *p)
{
    if (p->job->state == ZSD_ENDED) {
        placing_over(p, 0, NULL);
    } else if (zsd_placing_refused(p)) {
        if (p->tries < PLACE_TRIES && !zsd_placing_current(p))
            placing_plan(p);
        else
            placing_book(p); /* which refuses */
    } else {
        p->applies = true;
        p->shard = 0;
        p->job->grad_ring = p->in.grad_ring;
        p->job->ring_limits = p->in.grad_ring && p->in.ring_limits;
        zsd_replan_begin(p->job);
        placing_walk(p);
    }
}

void zsd_place(struct zsd_job *job, bool spill, zsd_placed *done)
{
    struct zsd_placing *p = calloc(1, sizeof(*p));
    struct zb_err err = { 0 };

    if (p)
        p->shards = calloc(zb_max_u64(job->nshards, 1), sizeof(*p->shards));
    if (!p || !p->shards || zsd_muon_size(job, &p->muon) < 0) {
        placing_free(p);
        done(job, zb_fail(&err, -ENOMEM, "placement of job '%s': %m", job->name), &err);
        return;
    }
    p->job = job;
    p->spill = spill;
    p->early = job->early_wish;
    p->rings = p->early && job->ring_wish && zsd_state_moves(job) && job->optimizer != ZB_MUON;
    p->done = done;
    p->work.run = placing_on_work;
    p->muon_streams = zsd_muon_streams(job);
    zsd_job_hold(job);
    placing_walk(p);
}
