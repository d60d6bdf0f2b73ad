/*
 * op/step.c - the optimizer step of a job, or the skip of one, after all ranks have asked for it
 * (op/step_ask.c). The trainers' notes: op/note.c.
 *
 * MODEL. All ranks ask, with the same values. When the last one has asked, the step runs by itself:
 *
 *     ASKED ---> DRAIN ---> CHECK ---> BEGIN ---> PAGES ---> COMMIT ---> end: ranks are answered
 *
 *     ASKED  op/step_ask.c: each request waits for the other ranks, until its own deadline. If a
 *            rank leaves, here or in DRAIN, all ranks give up the step
 *     DRAIN  waits until no shard is pinned, no push, fill or copy is in progress (J3), no commit
 *            runs, and nothing is prepared. A step never changes bytes that are being read.
 *            If a deadline passes here, the error message says what the step waits for
 *     CHECK  only if a rank has more shards than a request may check: every shard must have its
 *            gradient, unless the step does not change it. Otherwise all ranks are refused, as in
 *            DRAIN
 *     BEGIN  drops cached copies of streamed parameters that the step changes, and gives frozen
 *            shards the new version
 *     PAGES  a page operation for each page of each trainable shard, in order of registration, many
 *            at a time. Pages that are stepped on each GPU, pages that pass through page buffers and
 *            pages in memory run in parallel, so that neither a GPU, nor the drive, nor the
 *            compute threads wait for another kind to end. A shard whose last page is done has the
 *            new version, and requests that wait for it continue. A page of which no tensor is
 *            stepped stays as it is, and moves no byte. Pages that were stepped early
 *            (op/early.c) are published, those still in flight as soon as they are done. Pages of
 *            matrices have a walk of their own (op/muon.c)
 *     COMMIT if the ranks asked for it: op/commit.c. PAGES has already saved the pages, each after
 *            its update. Fetches continue meanwhile. If the commit fails, the step is still
 *            complete: the ranks are told both
 *
 * A failure in PAGES ends the job: some pages have stepped and some have not, and this mix must not
 * be read. A durable job is rebuilt from its last commit when its ranks attach again.
 *
 * A skip, or a step with a page that failed early, is the same up to DRAIN, where a skip does not
 * wait for pins. Then:
 *
 *     UNDO   early steps are undone, in parts, and then all gradients are dropped. A skip ends
 *            here, or with its COMMIT. A step is refused with the error of the page
 *
 * INVARIANTS
 *     S1  job->state is STEPPING exactly from DRAIN to the end. CHECK, BEGIN and UNDO handle a part
 *         of the shards each turn. In CHECK the job still drains, and nothing has changed. From
 *         BEGIN on no shard that has the old version is pinned.
 *     S2  In PAGES shard->version is job->applied + 1 when all of its pages are stepped, else
 *         job->applied; frozen shards change theirs in BEGIN.
 *     S3  At most zsd_step_inflight_max() page operations of streamed pages are in progress, and as
 *         many of pages on each GPU. Of the other pages, as many if they are saved, else at most
 *         step_resident_max().
 */
#include "daemon/op/step.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "daemon/op/classes.h"
#include "daemon/op/commit.h"
#include "daemon/op/early.h"
#include "daemon/op/end.h"
#include "daemon/op/fetch.h"
#include "daemon/op/muon.h"
#include "daemon/op/note.h"
#include "daemon/op/push.h"
#include "daemon/op/tensors.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/plan/replan.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

static void step_pump(struct zsd_job *job);

/* ---- answers and gradients */

static void step_answer(struct zsd_job *job, const struct zb_err *why)
{
    Zp__StepReply reply = ZP__STEP_REPLY__INIT;

    reply.iterations = job->iterations;
    reply.applied = job->applied;
    reply.commit_code = job->step->commit_err.code;
    reply.commit_text = job->step->commit_err.text;
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);
        struct zsd_req *req = m->step_req;

        if (!req)
            continue;
        m->step_req = NULL;
        zsd_timed_disarm(&m->step_timed);
        if (why)
            zsd_reply_err(req, why);
        else
            zsd_reply(req, &reply.base, -1);
    }
}

/* Whether the step changes no tensor of the shard's unit. */
static bool step_unit_left(const struct zsd_shard *s, const struct zsd_classes *classes,
                           struct zsd_step_left *last)
{
    if (s->unit != last->unit)
        last->left = zsd_classes_leave(s->job, classes, s->unit);
    last->unit = s->unit;
    return last->left;
}

int zsd_step_check_grad(const struct zsd_shard *s, const struct zsd_classes *classes,
                        struct zsd_step_left *last, struct zb_err *err)
{
    const struct zsd_job *job = s->job;

    if (!zsd_shard_live(s))
        return zb_fail(err, -EAGAIN, "unit '%s' of job '%s' has no initial values yet",
                       s->unit->name, job->name);
    if (zsd_grad_complete(s))
        return 0;
    if (zsd_grad_absent(s) && step_unit_left(s, classes, last))
        return 0;
    return zb_fail(err, -EBUSY, "unit '%s' of job '%s' has no whole gradient of step %llu yet",
                   s->unit->name, job->name, (unsigned long long)job->iterations + 1);
}

/* ---- running */

static void step_on_work(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_step_op, work)->job;

    if (job->state == ZSD_STEPPING && !job->draining && !job->step->committing)
        step_pump(job); /* continues where the last turn stopped */
    else if (job->state == ZSD_STEPPING && job->draining && job->active == 0 &&
             (job->pins == 0 || job->step->skip) && !job->commit &&
             !(job->saved && job->saved->prepared) && zsd_early_drained(job))
        step_pump(job);
}

void zsd_step_resume(struct zsd_job *job)
{
    if (job->state == ZSD_STEPPING && job->draining)
        zsd_defer(job->core, &job->step->work);
}

void zsd_step_drain(struct zsd_job *job)
{
    zsd_job_to(job, ZSD_STEPPING);
    job->draining = true;
    job->step->work.run = step_on_work;
    zsd_step_resume(job);
}

static void step_end(struct zsd_job *job)
{
    zsd_job_to(job, ZSD_READY);
    job->step->asked = job->step->committing = false;
    zsd_replan_step_over(job);
    step_answer(job, NULL);
    zsd_fetch_resume(job);
    zsd_job_stepped(job);
    if (job->core->draining)
        zsd_commit_last(job);
}

static void step_on_commit(struct zsd_job *job, const struct zb_err *err)
{
    if (job->state == ZSD_ENDED)
        return; /* its ranks were told */
    if (err)
        job->step->commit_err = *err;
    step_end(job);
}

/* Early operations that were dropped in flight may still use the table of a skipped step. */
static void step_classes_done(struct zsd_job *job, bool applied)
{
    zsd_classes_drop(job);
    zsd_classes_put(job->step->classes);
    job->step->classes = NULL;
    if (applied)
        zsd_table_done(&job->step->table);
}

static void step_over(struct zsd_job *job, bool applied)
{
    job->iterations++;
    if (applied)
        job->applied++;
    zsd_early_drop(job);
    zsd_grads_reset(job);
    step_classes_done(job, applied);
    zb_log(ZB_LOG_DEBUG, "step", "job=\"%s\" uid=%u iterations=%llu applied=%llu", job->name,
           (unsigned)job->uid, (unsigned long long)job->iterations,
           (unsigned long long)job->applied);
    job->step->committing = job->step->commit != ZSD_COMMIT_NONE;
    if (job->step->committing)
        zsd_commit_start(job, job->step->commit, &job->step->commit_err, step_on_commit);
    else
        step_end(job);
}

static void step_shard_done(struct zsd_shard *s)
{
    s->version = s->job->applied + 1;
    zsd_early_stepped(s);
    zsd_replan_stepped(s);
    zsd_shard_wake(s);
}

/* The walk that steps a page: the same until all pages of its shard are stepped (plan/replan.c). */
static struct zsd_step_walk *step_walk_of(struct zsd_job *job, const struct zsd_shard *s,
                                          uint32_t page)
{
    if (zsd_page_on_gpu(s, page) || zsd_page_to_gpu(s, page))
        return &job->step->gpus[zsd_shard_gpu(s)];
    return zsd_page_streamed(s, ZB_PARAM, page) || zsd_page_streamed(s, ZB_GRAD, page) ||
                   zsd_page_streamed(s, ZB_STATE, page) || zsd_page_leaves(s, page) ||
                   zsd_params_there(job) /* they pass through a page buffer, too */
               ? &job->step->streamed
               : &job->step->resident;
}

/* Whether the step leaves all bytes of the page as and where they are: no tensor in it is stepped, and
 * its state does not move. Segments are in the order of their elements. */
static bool step_page_still(const struct zsd_page_spec *spec)
{
    const struct zsd_shard *s = spec->shard;
    const struct zk_segment *segments = spec->segments;
    uint64_t first = zsd_page_first(s, spec->page);
    uint64_t end = first + zsd_page_elems(s, spec->page);
    size_t at;

    if (zsd_page_leaves(s, spec->page) || zsd_page_comes(s, spec->page) ||
        zsd_page_on_gpu(s, spec->page) != zsd_page_to_gpu(s, spec->page))
        return false;
    zb_lower_bound(at, spec->nsegments, segments[at].first + segments[at].count <= first);
    return at == spec->nsegments || segments[at].first >= end;
}

static void step_page_done(struct zsd_shard *s)
{
    uint32_t index = (uint32_t)(s->id & UINT32_MAX);

    assert(s->job->step->pages_left[index] > 0); /* no page is stepped twice */
    if (--s->job->step->pages_left[index] == 0)
        step_shard_done(s);
}

/* The number of pages in flight that this operation is counted in. */
static uint32_t *step_counter(struct zsd_job *job, const struct zsd_page_spec *spec)
{
    return spec->hold ? &job->step->muon_inflight
                      : &step_walk_of(job, spec->shard, spec->page)->inflight;
}

static void step_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct zsd_job *job = owner;
    struct zsd_shard *s = spec->shard;

    --*step_counter(job, spec);
    if (job->state == ZSD_ENDED)
        return;
    if (spec->hold)
        zsd_muon_page_over(job, spec);
    if (err) {
        zsd_job_end(job, err); /* zsd_step_cancel() answers */
        return;
    }
    step_page_done(s);
    step_pump(job);
}

/* The limit for pages in memory (S3): enough to feed every compute thread, and no more, because
 * streamed pages wait in the same queue. */
static uint32_t step_resident_max(const struct zsd_core *core)
{
    return 2 * zsd_compute_threads(core->daemon->compute) + 2;
}

/* The limit for other pages, and for pages in memory that are saved (S3): enough to feed the drive
 * and every compute thread, and no more. */
uint32_t zsd_step_inflight_max(const struct zsd_core *core)
{
    return core->disk->nbuffers + step_resident_max(core);
}

/* CHECK of the next shards. 1: all have their gradients; 0: continues in the next turn; negative:
 * the step cannot be made. */
static int step_check_part(struct zsd_job *job, struct zb_err *err)
{
    struct zsd_step_op *op = job->step;
    struct zsd_step_left last = { 0 };

    for (; op->checked < job->nshards; op->checked++) {
        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, &op->work);
            return 0;
        }
        zsd_turn_count(job->core, 1);
        if (zsd_step_check_grad(job->shards[op->checked], op->classes, &last, err) < 0)
            return err->code;
    }
    return 1;
}

/* Page operations of all walks. */
static uint32_t step_inflight(const struct zsd_step_op *op)
{
    uint32_t n = op->resident.inflight + op->streamed.inflight + op->muon_inflight;

    for (uint32_t g = 0; g < ZSD_GPUS_MAX; g++)
        n += op->gpus[g].inflight;
    return n;
}

/* BEGIN. 0; -ENOMEM: nothing has begun. */
static int step_begin(struct zsd_job *job)
{
    struct zsd_step_op *op = job->step;
    const double *factors = op->factors ? job->tensors->factors.v : NULL;

    free(op->pages_left);
    op->pages_left = calloc(zb_max_u64(job->nshards, 1), sizeof(*op->pages_left));
    if (!op->pages_left)
        return -ENOMEM;
    if (!job->early->prepared &&
        (zsd_step_prepare(job, op->scale, op->params, op->classes, factors) < 0 ||
         zsd_muon_begin(job) < 0))
        return -ENOMEM;
    if (job->early->prepared && factors)
        zsd_early_factors(job, factors);
    zsd_muon_all(job);
    zsd_notes_keep(job, job->step->step);
    job->draining = false;
    op->commit_err = (struct zb_err){ 0 };
    assert(step_inflight(op) == 0);
    op->muon_inflight = 0;
    op->resident = op->streamed = (struct zsd_step_walk){ 0 };
    memset(op->gpus, 0, sizeof(op->gpus));
    op->begun = 0;
    return 0;
}

/* BEGIN of the next shards. True: of all. */
static bool step_begin_part(struct zsd_job *job)
{
    struct zsd_step_op *op = job->step;
    struct zsd_step_left last = { 0 };

    for (; op->begun < job->nshards; op->begun++) {
        struct zsd_shard *s = job->shards[op->begun];

        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, &op->work);
            return false;
        }
        zsd_turn_count(job->core, 1);
        op->pages_left[op->begun] = s->npages;
        if (s->unit->layout.frozen)
            step_shard_done(s); /* S2 */
        else if (!zsd_shard_resident(s) && !step_unit_left(s, op->classes, &last))
            zsd_shard_uncache(s);
    }
    return true;
}

/* Publishes the page if it was stepped early, or else steps it, unless the step leaves it alone. If its
 * early step is in flight, does nothing: zsd_step_publish() follows. 0 or -ENOMEM. */
static int step_page(struct zsd_job *job, struct zsd_page_spec spec)
{
    struct zsd_step_op *op = job->step;
    struct zsd_shard *s = spec.shard;
    uint32_t page = spec.page;

    spec.kind = ZSD_PAGE_STEP;
    spec.save_err = op->commit ? &op->commit_err : NULL;
    spec.done = step_on_page;
    spec.owner = job;
    zsd_step_with(s, &spec);
    if (zsd_early_begun(s, page)) {
        spec.kind = ZSD_PAGE_PUBLISH;
        spec.held = s->held[page];
        if (!spec.held)
            return 0; /* zsd_step_publish() */
    } else if (step_page_still(&spec)) {
        step_page_done(s);
        return 0;
    } else {
        spec.grad = zsd_room_at(s, page);
    }
    if (zsd_pageop_start(&spec) < 0)
        return -ENOMEM;
    if (spec.held) {
        s->held[page] = NULL;
        s->early_held--;
    }
    ++*step_counter(job, &spec);
    return 0;
}

static void step_no_memory(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    (void)zb_fail(&err, -ENOMEM, "step %llu of job '%s': %m", (unsigned long long)job->step->step,
                  job->name);
    zsd_job_end(job, &err);
}

void zsd_step_publish(struct zsd_shard *s, uint32_t page)
{
    struct zsd_job *job = s->job;
    const struct zsd_step_walk *walk = step_walk_of(job, s, page);
    uint32_t index = (uint32_t)(s->id & UINT32_MAX);

    if (index > walk->next_shard || (index == walk->next_shard && page >= walk->next_page))
        return; /* the walk has not reached the page yet */
    if (step_page(job, (struct zsd_page_spec){ .shard = s, .page = page }) < 0)
        step_no_memory(job);
}

/* Whether no page of the shard is of this walk: the shard is of another GPU. */
static bool walk_skips(const struct zsd_step_op *op, const struct zsd_step_walk *walk,
                       const struct zsd_shard *s)
{
    return walk != &op->resident && walk != &op->streamed && walk != &op->gpus[zsd_shard_gpu(s)];
}

/* Starts pages of one walk: at most `max` in flight, and as many as the turn has room for. 0 or
 * -ENOMEM. */
static int step_walk(struct zsd_job *job, struct zsd_step_walk *walk, uint32_t max)
{
    while (walk->next_shard < job->nshards && walk->inflight < max) {
        struct zsd_shard *s = job->shards[walk->next_shard];

        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, &job->step->work);
            return 0;
        }
        zsd_turn_count(job->core, 1);
        if (s->unit->layout.frozen || walk->next_page == s->npages ||
            job->step->pages_left[walk->next_shard] == 0 || walk_skips(job->step, walk, s)) {
            walk->next_shard++;
            walk->next_page = 0;
            continue;
        }
        if (step_walk_of(job, s, walk->next_page) == walk &&
            (!zsd_muon_page(s, walk->next_page) || zsd_muon_early(s, walk->next_page)) &&
            step_page(job, (struct zsd_page_spec){ .shard = s, .page = walk->next_page }) < 0)
            return -ENOMEM;
        walk->next_page++;
    }
    return 0;
}

/* Starts pages whose matrices are orthogonalized, as many as may begin. A unit whose early steps have begun is
 * ended in that way. 0 or -ENOMEM. */
static int step_muon(struct zsd_job *job)
{
    struct zsd_page_spec spec = { 0 };

    while (zsd_muon_next(job, &spec)) {
        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, &job->step->work);
            return 0;
        }
        zsd_turn_count(job->core, 1);
        if ((spec.kind == ZSD_PAGE_EARLY ? zsd_early_page(job, &spec) : step_page(job, spec)) < 0)
            return -ENOMEM;
        zsd_muon_begun(job, &spec);
    }
    return zsd_muon_walked(job) || zsd_muon_pages(job) > 0 ? 0 : -ENOMEM;
}

static bool step_walked(const struct zsd_job *job, const struct zsd_step_walk *walk)
{
    return walk->next_shard == job->nshards && walk->inflight == 0;
}

/* Begins pages of all walks, as many as S3 allows. 0 or -ENOMEM. */
static int step_walks(struct zsd_job *job)
{
    struct zsd_step_op *op = job->step;
    uint32_t max = zsd_step_inflight_max(job->core);

    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        if (step_walk(job, &op->gpus[g], max) < 0)
            return -ENOMEM;
    if (step_muon(job) < 0 || step_walk(job, &op->streamed, max) < 0)
        return -ENOMEM;
    return step_walk(job, &op->resident, op->commit ? max : step_resident_max(job->core));
}

static bool step_all_walked(const struct zsd_job *job)
{
    const struct zsd_step_op *op = job->step;
    bool walked = step_walked(job, &op->streamed) && step_walked(job, &op->resident) &&
                  zsd_muon_walked(job) && op->muon_inflight == 0;

    for (uint32_t g = 0; g < job->core->daemon->ngpus && walked; g++)
        walked = step_walked(job, &op->gpus[g]);
    return walked;
}

/* UNDO, as far as the turn has room. */
static void step_undo(struct zsd_job *job)
{
    struct zsd_step_op *op = job->step;
    struct zb_err err = job->early->err;

    if (!zsd_early_undo(job)) {
        zsd_defer(job->core, &op->work);
        return;
    }
    op->undoing = false;
    if (op->skip) {
        op->commit_err = (struct zb_err){ 0 };
        zsd_notes_keep(job, op->step);
        step_over(job, false);
        return;
    }
    zsd_early_drop(job);
    zsd_grads_reset(job);
    zsd_values_drop(job);
    job->draining = true; /* so that the step can be given up */
    zsd_step_give_up(job, &err);
    zsd_replan(job->core);
}

static void step_pump(struct zsd_job *job)
{
    struct zsd_step_op *op = job->step;
    struct zb_err err = { 0 };
    int rc;

    if (job->draining && (op->skip || job->early->err.code != 0)) {
        job->draining = false;
        op->undoing = true;
    }
    if (op->undoing) {
        step_undo(job);
        return;
    }
    if (job->draining && zsd_saved_room(job->saved, &err) < 0) { /* it had room when asked */
        zsd_step_give_up(job, &err);
        return;
    }
    if (job->draining && op->check && (rc = step_check_part(job, &err)) <= 0) {
        if (rc < 0)
            zsd_step_give_up(job, &err);
        return;
    }
    if (job->draining && step_begin(job) < 0) {
        (void)zb_fail(&err, -ENOMEM, "step %llu of job '%s': %m", (unsigned long long)op->step,
                      job->name);
        zsd_step_give_up(job, &err);
        return;
    }
    if (!step_begin_part(job))
        return;
    if (step_walks(job) < 0) {
        if (step_inflight(op) == 0)
            step_no_memory(job);
        return; /* the next page that is done tries again */
    }
    if (step_all_walked(job) && job->early_inflight == 0)
        step_over(job, true);
}

/* ---- ending */

void zsd_step_cancel(struct zsd_job *job, const struct zb_err *why)
{
    job->step->asked = job->draining = false;
    zb_list_remove(&job->step->work.node);
    if (job->state == ZSD_ENDED)
        zsd_muon_stop(job, why);
    step_answer(job, why);
}

void zsd_step_give_up(struct zsd_job *job, const struct zb_err *why)
{
    bool drained = job->state == ZSD_STEPPING && job->draining;

    if (!drained && (job->state != ZSD_READY || !job->step->asked))
        return;
    zsd_job_to(job, ZSD_READY);
    zsd_step_cancel(job, why);
    if (drained) {
        zsd_fetch_resume(job);
        zsd_job_stepped(job);
    }
}
