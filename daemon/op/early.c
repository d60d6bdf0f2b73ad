/*
 * op/early.c - steps that begin early, shard by shard, during the backward pass.
 *
 * MODEL. Every rank announces the step (step-begin): its number of micro-steps, and its scalars,
 * which rules out clipping. From then on, a shard with streamed state is stepped, page by page, as
 * soon as its gradient of the last micro-step is complete:
 *
 *     gradient complete ---> [queued] ---> EARLY pages ---> held ---> the step: PUBLISH
 *                                                            \---> skip, a rank that leaves, ...
 *                                                                  dropped
 *
 * ORDER. The newest gradient goes first: in a backward pass it belongs to the unit that the next
 * forward pass needs first. If the drive is slower than the passes, a part of every shard is then
 * left at the barrier, so that the forward pass never waits for long.
 *
 * EARLY (page/pageop.h) leaves the shard's bytes unchanged. So its results are invisible, the last
 * commit is unaffected, and an undo only frees the new extents. Pages with resident state are
 * stepped at the barrier, at the speed of memory: without a copy they could not be undone. So are
 * pages with resident parameters that do not fit into their gradient's memory.
 *
 * LIMITS. A step that limits the norm of each tensor is announced with these limits. A unit is then
 * `decided` as soon as all of its shards have their gradients: the norms of its tensors are known, and
 * their factors follow (op/tensors.c). Only then are its shards stepped. If some gradient is not
 * finite, the unit waits for the barrier, where the step will be skipped. Step has the same factors
 * (zsd_early_check()), which the ranks compute from the same sums.
 *
 * ROOM. If the job was opened for it, it was placed with a spare place for each page that can be
 * stepped early (plan/place.c).
 *
 * FAILURE of a page does not change the shard either. No more pages are begun, and the step fails
 * with that error when all ranks have asked for it. Some gradients are lost by then, so all are
 * dropped, and the job continues. A page that fails while the step runs ends the job, as any page
 * does.
 *
 * INVARIANTS
 *
 *     E1  s->early: the gradient of s is complete. Only early operations and, at the barrier, those
 *         of the step read or write it. After an undo the shard has no gradient.
 *     E2  If s->early, each page p that was begun is in flight, has its result in s->held[p], was
 *         taken by the step, or has failed (early.err, or the job has ended).
 *     E3  An operation that was dropped in flight ends before the shard accepts a new gradient
 *         (early_inflight), before its page is stepped, before zsd_step_prepare() changes the
 *         table, and before the job resumes from another point.
 */
#include "daemon/op/early.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/disk/leaving.h"
#include "daemon/op/end.h"
#include "daemon/op/push.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "daemon/page/held.h"
#include "daemon/page/pageop.h"
#include "proto/shard.pb-c.h"

#define EARLY_NOW 2u /* pages of a shard that are dropped at once */

static void early_work(struct zsd_job *job);

/* ---- announcements */

/* Whether a step has the factors that its limits gave, as far as they are decided. */
static bool early_factors_same(const struct zsd_job *job, bool factors)
{
    const struct zsd_early *e = job->early;

    if (factors != e->limited)
        return false;
    for (uint32_t i = 0; factors && i < job->tensors->n; i++)
        if (!isnan(e->factors[i]) &&
            memcmp(&e->factors[i], &job->tensors->factors.v[i], sizeof(double)) != 0)
            return false;
    return true;
}

static bool early_same(const struct zsd_early *e, double scale, const struct zk_params *params,
                       const struct zsd_classes *classes)
{
    return memcmp(&e->scale, &scale, sizeof(scale)) == 0 &&
           memcmp(e->params, params, sizeof(e->params)) == 0 &&
           zsd_classes_same(e->classes, classes);
}

int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err)
{
    if (job->early_said == 0 || want->skip ||
        (early_same(job->early, want->scale, want->params, want->classes) &&
         early_factors_same(job, want->factors)))
        return 0;
    return zb_fail(
        err, -EINVAL,
        "rank %u asks for step %llu of job '%s' with different values from those it was begun with",
        rank, (unsigned long long)want->step, job->name);
}

static int begin_check(const struct zsd_member *m, const Zp__StepBegin *q, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    uint64_t step = job->iterations + 1;

    if (job->core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new steps");
    if (job->optimizer == ZB_MUON)
        return zb_fail(err, -ENOTSUP, "job '%s' with Muon cannot begin its steps early", job->name);
    if (!job->early_room)
        return zb_fail(err, -EINVAL, "job '%s' was opened without room for early steps", job->name);
    if (job->state != ZSD_READY || zsd_job_writing(job))
        return zb_fail(err, -EBUSY, "job '%s' is stepping, or initial values are being written",
                       job->name);
    if (job->left > 0)
        return zb_fail(err, -EOWNERDEAD, "%u ranks have left job '%s'", job->left, job->name);
    if (q->step != step)
        return zb_fail(err, q->step < step ? -EEXIST : -EINVAL,
                       "step %llu of job '%s' begins: step %llu comes next",
                       (unsigned long long)q->step, job->name, (unsigned long long)step);
    if (!zsd_job_live(job))
        return zb_fail(err, -EAGAIN, "job '%s' has no initial values yet", job->name);
    if (q->micros < 1)
        return zb_fail(err, -EINVAL, "a step of 0 micro-steps: at least 1");
    for (uint32_t i = 0; i < job->nshards && job->micro_most >= q->micros; i++)
        if (!zsd_grad_absent(job->shards[i]) && job->shards[i]->micro >= q->micros)
            return zb_fail(err, -EINVAL,
                           "a step of %u micro-steps, and unit '%s' has one with number %u",
                           q->micros, job->shards[i]->unit->name, job->shards[i]->micro);
    return 0;
}

/* Memory for a step with limits of tensors. 0 or -ENOMEM. */
static int begin_limits(struct zsd_job *job)
{
    struct zsd_early *e = job->early;
    uint32_t n = job->tensors->n;

    e->factors = calloc(zb_max_u64(n, 1), sizeof(*e->factors));
    e->decided = calloc(zb_max_u64(job->nunits, 1), sizeof(*e->decided));
    if (!e->factors || !e->decided) {
        free(e->factors);
        free(e->decided);
        e->factors = NULL;
        e->decided = NULL;
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++)
        e->factors[i] = (double)NAN;
    return 0;
}

ZSD_REQUEST(zsd_step_begin, StepBegin)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zk_params params[ZP_GROUPS_MAX] = { 0 };
    struct zsd_classes *classes = NULL;
    struct zb_err err = { 0 };
    struct zsd_early *e;
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    e = job->early;
    if (begin_check(m, q, &err) < 0 ||
        zsd_step_values(m, q->scale, q->groups, q->n_groups, q->by_classes ? q->step : 0, params,
                        &classes, &err) < 0 ||
        (q->limits && zsd_values_check(m, true, q->step, &err) < 0)) {
        zsd_reply_err(req, &err);
        return;
    }
    if (job->early_said > 0 && (!early_same(e, q->scale, params, classes) ||
                                e->micros != q->micros || e->limited != q->limits)) {
        zsd_refuse(req, -EINVAL,
                   "rank %u begins step %llu of job '%s' with different values from its peers",
                   m->rank, (unsigned long long)q->step, job->name);
        return;
    }
    if (job->early_said == 0 && q->limits && begin_limits(job) < 0) {
        zsd_refuse(req, -ENOMEM, "limits of tensors: %m");
        return;
    }
    e->micros = q->micros;
    e->limited = q->limits;
    e->scale = q->scale;
    memcpy(e->params, params, sizeof(params));
    if (job->early_said == 0)
        e->classes = zsd_classes_get(classes);
    job->early_said += !m->begun;
    m->begun = true;
    zsd_reply(req, NULL, -1);
    if (job->early_said == job->world) { /* offer the shards that are complete, in parts */
        e->offer = job->nshards;
        early_work(job);
    }
}

/* ---- pages before the barrier */

/* Whether pages may be begun: all ranks have announced the step, which does not run yet, was not
 * requested as a skip, and has no failed page. */
static bool early_open(const struct zsd_job *job)
{
    return job->early_said == job->world && job->early->err.code == 0 && !job->core->draining &&
           (job->state == ZSD_READY || (job->state == ZSD_STEPPING && job->draining)) &&
           !(job->step->asked && job->step->skip);
}

bool zsd_early_drained(const struct zsd_job *job)
{
    const struct zsd_early *e = job->early;

    return job->early_inflight == 0 || (e->prepared && e->err.code == 0 && !job->step->skip);
}

/* The end of the pages that can be begun. Those from there on are on the GPU, or will be. */
static uint32_t early_end(const struct zsd_shard *s)
{
    return (uint32_t)zb_min_u64(s->gpu_from, s->gpu_next);
}

/* The first page that can be begun; npages: none. Pages before it have resident state, or state
 * that the step moves into memory. It does not change while early pages exist. */
static uint32_t early_first(const struct zsd_shard *s)
{
    uint32_t page = (uint32_t)zb_max_u64(s->planes[ZB_STATE].resident, s->state_next);

    return page < early_end(s) && zsd_page_early(s, page) ? page : s->npages;
}

bool zsd_early_begun(const struct zsd_shard *s, uint32_t page)
{
    return s->early && page >= early_first(s) && page < s->early_next;
}

/* Makes the table of the step. False: not yet, or there is no memory. */
static bool early_prepare(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    if (e->prepared)
        return true;
    if (job->early_inflight > 0)
        return false; /* E3; the end of the last one defers early_on_work() again */
    e->prepared = zsd_step_prepare(job, e->scale, e->params, e->classes, e->factors) == 0;
    return e->prepared;
}

/* Whether the shard has its whole gradient of the last micro-step. */
static bool early_whole(const struct zsd_shard *s)
{
    return s->micro + 1 == s->job->early->micros && zsd_grad_complete(s);
}

/* LIMITS. Whether the factors of this shard's unit are known; decides them if they can be, and
 * offers the unit's other shards. */
static bool early_decide(const struct zsd_shard *of)
{
    struct zsd_job *job = of->job;
    struct zsd_early *e = job->early;
    const struct zsd_unit *unit = of->unit;
    struct zsd_shard *s;

    if (unit->layout.frozen || !e->prepared)
        return false;
    if (e->decided[unit->index])
        return true;
    zb_sorted_each (s, pos, &unit->shards)
        if (!early_whole(s) || s->grad_nonfinite > 0 || !s->tensor_sums)
            return false;
    zsd_limits_apply(job, unit, &job->step->table, e->factors);
    zsd_table_scale(&job->step->table, job, unit->index, e->factors);
    e->decided[unit->index] = 1;
    zb_sorted_each (s, pos, &unit->shards)
        if (s != of)
            zsd_early_offer(s);
    return true;
}

void zsd_early_offer(struct zsd_shard *s)
{
    struct zsd_early *e = s->job->early;

    if (s->job->early_said == 0 || !early_open(s->job))
        return;
    if (e->limited && !e->prepared) { /* all, when the table is made */
        e->offer = s->job->nshards;
        early_work(s->job);
        return;
    }
    if (s->early || s->early_inflight > 0 || !early_whole(s) || (e->limited && !early_decide(s)) ||
        s->grad_reads > 0 || early_first(s) == s->npages)
        return;
    if (!s->held)
        s->held = calloc(s->npages, sizeof(struct zsd_held *));
    if (!s->held)
        return; /* it is stepped at the barrier */
    s->early = true;
    s->early_next = early_first(s);
    zb_list_push_back(e->shards.next, &s->early_node); /* the newest first: ORDER */
    zb_list_push_back(&e->begun, &s->early_all);
    early_work(s->job);
}

static void early_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct zsd_shard *s = owner;
    struct zsd_job *job = s->job;
    bool runs = job->state == ZSD_STEPPING && !job->draining;

    s->early_inflight--;
    job->early_inflight--;
    if (s->early_dropped) {
        job->core->daemon->stats.pages_early += !err;
        job->core->daemon->stats.pages_undone += !err;
        zsd_held_drop(s, spec->page, spec->held);
        s->early_dropped = s->early_inflight > 0;
        if (!s->early_dropped)
            zsd_push_resume(s);
    } else if (err && runs) {
        zsd_job_end(job, err);
    } else if (err) {
        (void)zb_fail(&job->early->err, err->code, "%s", err->text);
    } else {
        job->core->daemon->stats.pages_early++;
        s->held[spec->page] = spec->held;
        s->early_held += spec->held != NULL;
        if (runs)
            zsd_step_publish(s, spec->page);
    }
    if (job->state == ZSD_ENDED)
        return;
    if (job->early_inflight == 0)
        zsd_defer(job->core, &job->wake);
    early_work(job);
}

/* Begins the next page of the first shard in the queue. 0 or -ENOMEM. */
static int early_begin(struct zsd_job *job)
{
    struct zsd_shard *s = zb_container_of(job->early->shards.next, struct zsd_shard, early_node);
    struct zsd_page_spec spec = {
        .kind = ZSD_PAGE_EARLY, .shard = s, .page = s->early_next, .done = early_on_page, .owner = s
    };

    zsd_step_with(s, &spec);
    if (zsd_pageop_start(&spec) < 0)
        return -ENOMEM;
    job->early_inflight++;
    s->early_inflight++;
    if (++s->early_next == early_end(s))
        zb_list_remove(&s->early_node);
    return 0;
}

static void early_on_work(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_early, work)->job;
    struct zsd_early *e = job->early;
    struct zb_err err = { 0 };

    if (!early_open(job))
        e->offer = 0;
    if (e->limited && e->offer > 0 && !early_prepare(job))
        return;
    while (e->offer > 0 && zsd_turn_left(job->core) > 0) {
        zsd_turn_count(job->core, 1);
        zsd_early_offer(job->shards[--e->offer]);
    }
    if (e->offer > 0)
        zsd_defer(job->core, work);
    if (!early_open(job) || zsd_saved_room(job->saved, &err) < 0 || zb_list_empty(&e->shards))
        return; /* pages that are not begun are stepped at the barrier */
    if (!early_prepare(job))
        return; /* nothing is begun */
    while (!zb_list_empty(&e->shards) && job->early_inflight < zsd_step_inflight_max(job->core))
        if (early_begin(job) < 0)
            return; /* no memory: the next page that ends tries again */
}

static void early_work(struct zsd_job *job)
{
    job->early->work.run = early_on_work;
    zsd_defer(job->core, &job->early->work);
}

void zsd_early_factors(struct zsd_job *job, const double *factors)
{
    for (uint32_t u = 0; u < job->nunits; u++)
        if (!job->early->decided || !job->early->decided[u])
            zsd_table_scale(&job->step->table, job, u, factors);
}

/* ---- undo */

void zsd_early_stepped(struct zsd_shard *s)
{
    if (!s->early)
        return;
    assert(s->early_held == 0 && s->early_inflight == 0);
    zb_list_remove(&s->early_node);
    zb_list_remove(&s->early_all);
    s->early = false;
}

/* Results of a shard that are dropped, and freed in parts: disk/leaving.h. */
struct early_gone {
    struct zsd_leaving leaving;
    struct zsd_shard *shard;
    struct zsd_held **held;
    uint32_t page, end; /* pages [page, end) are left */
};

static bool gone_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct early_gone *g = zb_container_of(l, struct early_gone, leaving);

    (void)core;
    for (; *left > 0 && g->page < g->end; g->page++, --*left)
        zsd_held_drop(g->shard, g->page, g->held[g->page]);
    if (g->page < g->end)
        return false;
    zsd_job_unhold(g->shard->job);
    free(g->held);
    free(g);
    return true;
}

/* Frees the results of a shard: in parts if there are many, unless there is no memory for that. */
static void early_give(struct zsd_shard *s)
{
    uint32_t first = early_first(s);
    struct early_gone *g = s->early_next > first + EARLY_NOW ? calloc(1, sizeof(*g)) : NULL;

    s->job->core->daemon->stats.pages_undone += s->early_held;
    if (g) {
        g->shard = s;
        g->held = s->held;
        g->page = first;
        g->end = s->early_next;
        s->held = NULL;
        s->early_held = 0;
        zsd_job_hold(s->job);
        zsd_leave(s->job->core, &g->leaving, gone_part);
    }
    for (uint32_t page = first; page < s->early_next && s->early_held > 0; page++) {
        s->early_held -= s->held[page] != NULL;
        zsd_held_drop(s, page, s->held[page]);
        s->held[page] = NULL;
    }
}

static void early_drop_shard(struct zsd_shard *s)
{
    if (s->early_held > 0)
        early_give(s);
    zb_list_remove(&s->early_node);
    zb_list_remove(&s->early_all);
    s->early_dropped = s->early_inflight > 0;
    s->early = false;
    if (s->early_next > early_first(s)) /* E1 */
        zsd_grad_reset(s);
}

bool zsd_early_undo(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    for (; !zb_list_empty(&e->begun); zsd_turn_count(job->core, 1)) {
        if (zsd_turn_left(job->core) == 0)
            return false;
        early_drop_shard(zb_container_of(e->begun.next, struct zsd_shard, early_all));
    }
    return true;
}

void zsd_early_drop(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    if (job->early_said == 0)
        return;
    while (!zb_list_empty(&e->begun))
        early_drop_shard(zb_container_of(e->begun.next, struct zsd_shard, early_all));
    zb_list_each(pos, &job->members) zb_container_of(pos, struct zsd_member, node)->begun = false;
    assert(zb_list_empty(&e->shards));
    zsd_classes_put(e->classes);
    e->classes = NULL;
    free(e->factors);
    free(e->decided);
    e->factors = NULL;
    e->decided = NULL;
    e->limited = false;
    job->early_said = 0;
    e->offer = 0;
    e->prepared = false;
    e->err = (struct zb_err){ 0 };
}
