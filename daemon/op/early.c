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
 * (zsd_early_check()), which the ranks compute from the same sums. If other nodes have shards of the
 * units (step-begin with `sums`), the unit also waits for the sums over all of them (unit-sums).
 *
 * MUON steps whole matrices. So a unit with matrices waits until all its shards have their gradients, and its
 * pages of matrices begin in an order of their own (op/muon.c). Its other pages, and other units, are stepped as with any
 * optimizer. If pages may not be begun any more, those that wait for a matrix end: the others of
 * the matrix would not come. They have failed then, as to the step.
 *
 * A RING OF GRADIENTS (job->grad_ring). Gradients of pages with streamed state are then not held. Such
 * a page is begun by its push: one operation takes a page buffer, takes the gradient in from the rank's
 * staging, and steps the page. So the ring is the daemon's page buffers, and if none is free, the push
 * waits. It also waits until all ranks have announced the step. The push ends when the gradient was
 * taken in. An operation waits for a buffer, the drive and the compute threads, and for no rank. So a
 * page that was begun always ends, in whatever order ranks push. A step cannot be made from gradients
 * that are lost: if pages may not be begun (a page has failed, a rank skips the step, the daemon ends),
 * pushes are taken and discarded, and the step fails with early.err. If a rank leaves, pushes that
 * wait fail.
 *
 * ROOM. If the job was opened for it, it was placed with a spare place for each page that can be
 * stepped early (plan/place.c).
 *
 * UNDO, and the end of a shard's early steps: op/early_undo.c.
 *
 * FAILURE of a page does not change the shard either. No more pages are begun, and the step fails
 * with that error when all ranks have asked for it. Some gradients are lost by then, so all are
 * dropped, and the job continues. A page that fails while the step runs ends the job, as any page
 * does.
 *
 * INVARIANTS
 *
 *     E1  s->early: the gradient of s is complete (what of it is held). Only early operations and, at the barrier, those
 *         of the step read or write it. After an undo the shard has no gradient.
 *     E2  If s->early or s->ringed, each page p that was begun is in flight, has its result in s->held[p], was
 *         taken by the step, or has failed (early.err, or the job has ended).
 *     E3  An operation that was dropped in flight ends before the shard accepts a new gradient
 *         (early_inflight), before its page is stepped, before zsd_step_prepare() changes the
 *         table, and before the job resumes from another point.
 */
#include "daemon/op/early.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/op/end.h"
#include "daemon/op/muon.h"
#include "daemon/op/push.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "daemon/page/held.h"
#include "daemon/page/pageop.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

static void early_on_work(struct zsd_work *work);

static void early_work(struct zsd_job *job)
{
    job->early->work.run = early_on_work;
    zsd_defer(job->core, &job->early->work);
}

void zsd_early_said(struct zsd_job *job)
{
    job->early->offer = job->nshards;
    early_work(job);
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

/* The end of the pages that can be begun when the gradient is complete. Those from there on are on the
 * GPU, or will be; or they are begun by their pushes. */
static uint32_t early_end(const struct zsd_shard *s)
{
    uint32_t end = (uint32_t)zb_min_u64(s->gpu_from, s->gpu_next);

    return s->job->grad_ring && !zsd_rooms_on(s->job)
               ? (uint32_t)zb_min_u64(end, s->planes[ZB_GRAD].resident)
               : end;
}

/* The first page that can be begun; npages: none. Pages before it have resident state, or state
 * that the step moves into memory. It does not change while early pages exist. */
static uint32_t early_first(const struct zsd_shard *s)
{
    uint32_t page = (uint32_t)zb_max_u64(s->planes[ZB_STATE].resident, s->state_next);

    return page < early_end(s) && zsd_page_early(s, page) ? page : s->npages;
}

/* ROOMS. Number of the shard's pages in a room. They are begun first. */
static uint32_t early_roomed(const struct zsd_shard *s)
{
    return zsd_rooms_on(s->job) ? s->npages - s->planes[ZB_GRAD].resident : 0;
}

/* The page that is begun as number `at`, counted from early_first() on. */
static uint32_t early_page(const struct zsd_shard *s, uint32_t at)
{
    uint32_t first = early_first(s), roomed = early_roomed(s);

    return at < first + roomed ? at - first + s->planes[ZB_GRAD].resident : at - roomed;
}

/* The opposite. */
static uint32_t early_number(const struct zsd_shard *s, uint32_t page)
{
    uint32_t roomed = early_roomed(s), held = s->npages - roomed;

    return page >= held ? early_first(s) + page - held : page + roomed;
}

bool zsd_early_begun(const struct zsd_shard *s, uint32_t page)
{
    if (zsd_muon_page(s, page))
        return zsd_muon_early(s, page);
    return (s->ringed && zsd_page_rings(s, page)) ||
           (s->early && page >= early_first(s) && early_number(s, page) < s->early_next);
}

/* Whether the table of the step says which shards may be stepped. */
static bool early_asks(const struct zsd_job *job)
{
    return job->early->limited || job->optimizer == ZB_MUON;
}

/* Makes the table of the step. False: not yet, or there is no memory. */
static bool early_prepare(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    if (e->prepared)
        return true;
    if (job->early_inflight > 0)
        return false; /* E3; the end of the last one defers early_on_work() again */
    e->prepared = zsd_step_prepare(job, e->scale, e->params, e->classes, e->factors) == 0 &&
                  zsd_muon_begin(job) == 0;
    return e->prepared;
}

/* Whether the shard has its whole gradient of the last micro-step. */
static bool early_whole(const struct zsd_shard *s)
{
    return s->micro + 1 == s->job->early->micros && zsd_grad_complete(s);
}

/* Pages are not begun any more: the step fails with `why`, unless it has an error already. */
static void ring_close(struct zsd_job *job, int code, const char *why)
{
    if (job->early->err.code != 0)
        return;
    early_work(job); /* pushes that wait are discarded */
    (void)zb_fail(&job->early->err, code, "step %llu of job '%s': %s",
                  (unsigned long long)job->iterations + 1, job->name, why);
}

/* LIMITS. Whether the factors of this shard's unit are known; decides them if they can be, and
 * offers the unit's other shards. */
static bool early_decide(const struct zsd_shard *of)
{
    struct zsd_job *job = of->job;
    struct zsd_early *e = job->early;
    const struct zsd_unit *unit = of->unit;
    bool finite = true;
    struct zsd_shard *s;

    if (unit->layout.frozen || !e->prepared)
        return false;
    if (e->decided[unit->index])
        return true;
    if (e->sums && e->summed[unit->index] < zsd_unit_tensors(job, unit))
        return false;
    zb_sorted_each (s, pos, &unit->shards) {
        if (!early_whole(s) || !s->tensor_sums)
            return false;
        finite = finite && s->grad_nonfinite == 0;
    }
    if (!finite && zsd_rooms_on(job))
        ring_close(job, -EDOM, "a gradient that is not held is not finite: it can only be skipped");
    if (!finite)
        return false;
    zsd_limits_apply(job, unit, &job->step->table, e->sums, e->factors);
    zsd_table_scale(&job->step->table, job, unit->index, e->factors);
    e->decided[unit->index] = 1;
    zb_sorted_each (s, pos, &unit->shards)
        if (s != of)
            zsd_early_offer(s);
    return true;
}

/* Makes the table of the shard's results. 0 or -ENOMEM. */
static int early_table(struct zsd_shard *s)
{
    if (!s->held)
        s->held = calloc(s->npages, sizeof(struct zsd_held *));
    return s->held ? 0 : -ENOMEM;
}

/* MUON. Whether this shard's unit has no matrices, or all of its shards may be stepped; offers them, and
 * the matrices, if they may be now. */
static bool early_matrices(const struct zsd_shard *of)
{
    struct zsd_job *job = of->job;
    const struct zsd_unit *unit = of->unit;
    struct zsd_shard *s;

    if (!zsd_muon_unit(unit, job) || zsd_muon_offered(job, unit))
        return true;
    zb_sorted_each (s, pos, &unit->shards)
        if (s->early_dropped || !early_whole(s) || s->grad_reads > 0 || early_table(s) < 0)
            return false;
    zsd_muon_offer(job, unit);
    zb_sorted_each (s, again, &unit->shards)
        if (s != of)
            zsd_early_offer(s);
    return true;
}

/* Its first pages are begun. */
static void early_list(struct zsd_shard *s)
{
    if (!s->early && !s->ringed && !s->roomed)
        zb_list_push_back(&s->job->early->begun, &s->early_all);
}

/* MUON. Passes the pages that begin in another order. */
static void early_pass(struct zsd_shard *s)
{
    for (; s->early_next < early_end(s) && zsd_muon_page(s, s->early_next); s->early_next++)
        zsd_turn_count(s->job->core, 1);
}

/* Queues the shard for its next page: ORDER. Pages in rooms go first, in the order in which their units
 * were complete. */
static void early_queue(struct zsd_shard *s)
{
    struct zsd_early *e = s->job->early;

    zb_list_remove(&s->early_node);
    if (s->early_next < early_first(s) + early_roomed(s))
        zb_list_push_back(&e->roomed, &s->early_node);
    else if (s->early_next < early_end(s))
        zb_list_push_back(e->shards.next, &s->early_node);
}

void zsd_early_offer(struct zsd_shard *s)
{
    struct zsd_early *e = s->job->early;

    if (s->job->early_said == 0 || !early_open(s->job))
        return;
    if (early_asks(s->job) && !e->prepared) { /* all, when the table is made */
        e->offer = s->job->nshards;
        early_work(s->job);
        return;
    }
    if (s->early || s->early_dropped || !early_whole(s) || (e->limited && !early_decide(s)) ||
        s->grad_reads > 0 || !early_matrices(s) || s->early || early_first(s) == s->npages)
        return;
    if (early_table(s) < 0) {
        if (early_roomed(s) > 0)
            ring_close(s->job, -ENOMEM, "no memory for a unit");
        return; /* it is stepped at the barrier */
    }
    early_list(s);
    s->early = true;
    s->early_next = early_first(s);
    early_pass(s);
    early_queue(s);
    early_work(s->job);
}

static void early_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct zsd_shard *s = owner;
    struct zsd_job *job = s->job;
    bool runs = job->state == ZSD_STEPPING && !job->draining;

    s->early_inflight--;
    job->early_inflight--;
    job->early->ringed -= zsd_page_rings(s, spec->page);
    if (spec->hold)
        zsd_muon_page_over(job, spec);
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
    if (spec->ingest)
        spec->ingest->done(spec->ingest); /* the page failed before it was taken in */
    if (spec->grad)
        zsd_room_done(s, !err);
    if (job->state == ZSD_ENDED)
        return;
    if (job->early_inflight == 0)
        zsd_defer(job->core, &job->wake);
    if (runs && spec->hold)
        zsd_defer(job->core, &job->step->work); /* the next pages of matrices */
    early_work(job);
}

int zsd_early_page(struct zsd_job *job, struct zsd_page_spec *spec)
{
    struct zsd_shard *s = spec->shard;

    spec->kind = ZSD_PAGE_EARLY;
    spec->done = early_on_page;
    spec->owner = s;
    zsd_step_with(s, spec);
    if (zsd_pageop_start(spec) < 0)
        return -ENOMEM;
    s->early_used = true;
    job->early_inflight++;
    s->early_inflight++;
    job->early->ringed += zsd_page_rings(s, spec->page);
    return 0;
}

/* Begins the next page of the first shard in a queue. 0 or -ENOMEM. */
static int early_begin(struct zsd_job *job, const struct zb_list *queue)
{
    struct zsd_shard *s = zb_container_of(queue->next, struct zsd_shard, early_node);
    struct zsd_page_spec spec = { .shard = s, .page = early_page(s, s->early_next) };

    spec.grad = zsd_room_at(s, spec.page);
    if (zsd_early_page(job, &spec) < 0)
        return -ENOMEM;
    if (spec.grad)
        zsd_room_use(s);
    s->early_next++;
    early_pass(s);
    if (s->early_next == early_first(s) + early_roomed(s) || s->early_next == early_end(s))
        early_queue(s);
    return 0;
}

/* MUON. Begins the next pages of matrices. */
static void early_muon(struct zsd_job *job)
{
    struct zsd_page_spec spec = { 0 };

    while (zsd_muon_next(job, &spec)) {
        if (zsd_turn_left(job->core) == 0) {
            early_work(job);
            return;
        }
        zsd_turn_count(job->core, 1);
        if (zsd_early_page(job, &spec) < 0) {
            if (zsd_muon_pages(job) > 0) { /* they would wait for this one */
                ring_close(job, -ENOMEM, "no memory for a page");
                early_work(job);
            }
            return;
        }
        zsd_muon_begun(job, &spec);
    }
}

/* Whether early pages cannot become a part of the step. */
static bool early_lost(const struct zsd_job *job)
{
    return job->early->err.code != 0 || (job->step->asked && job->step->skip) ||
           (job->core->draining && job->state == ZSD_READY);
}

/* ---- a ring of gradients */

bool zsd_early_ring_waits(struct zsd_shard *s)
{
    struct zsd_job *job = s->job;
    struct zsd_early *e = job->early;
    struct zb_err err = { 0 };

    if (job->core->draining || (job->step->asked && job->step->skip))
        ring_close(job, -ECANCELED, "it was skipped, or the daemon is ending");
    if (e->err.code != 0)
        return false; /* zsd_early_take() discards them */
    if (job->early_said < job->world)
        return true;
    if (zsd_saved_room(job->saved, &err) < 0)
        ring_close(job, err.code, err.text);
    else if (!early_prepare(job) && job->early_inflight > 0)
        return true; /* its end resumes pushes */
    else if (!e->prepared)
        ring_close(job, -ENOMEM, "no memory to begin it");
    return e->err.code == 0 && zsd_rooms_on(job) && !zsd_room_has(s);
}

int zsd_early_take(struct zsd_shard *s, uint32_t page, struct zsd_ingest *ingest)
{
    struct zsd_job *job = s->job;
    struct zsd_page_spec spec = { .kind = ZSD_PAGE_EARLY,
                                  .shard = s,
                                  .page = page,
                                  .ingest = ingest,
                                  .done = early_on_page,
                                  .owner = s };

    early_list(s);
    s->ringed = true; /* even if it is discarded: the gradient is lost in both cases */
    if (job->early->err.code != 0)
        return 0;
    zsd_step_with(s, &spec);
    if (early_table(s) < 0 || zsd_pageop_start(&spec) < 0) {
        ring_close(job, -ENOMEM, "no memory for a page");
        return 0;
    }
    job->early_inflight++;
    job->early->ringed++;
    s->early_inflight++;
    return 1;
}

uint8_t *zsd_early_room(struct zsd_shard *s, uint32_t page)
{
    early_list(s);
    s->roomed = true; /* even if it is discarded, as in zsd_early_take() */
    if (s->job->early->err.code != 0)
        return NULL;
    zsd_room_use(s);
    return zsd_room_at(s, page);
}

void zsd_early_resume(struct zsd_job *job)
{
    if (job->grad_ring || zsd_muon_pages(job) > 0)
        early_work(job);
}

/* The queue whose first shard is next; NULL: none. Pages with held gradients wait for those without: a
 * rank waits for these. */
static const struct zb_list *early_queued(const struct zsd_early *e)
{
    if (!zb_list_empty(&e->roomed))
        return &e->roomed;
    return e->ringed == 0 && !zb_list_empty(&e->shards) ? &e->shards : NULL;
}

static void early_on_work(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_early, work)->job;
    struct zsd_early *e = job->early;
    const struct zb_list *queue;
    struct zb_err err = { 0 };

    if (job->grad_ring)
        zsd_pushes_resume(job);
    if (!early_open(job))
        e->offer = 0;
    if (job->early_said > 0 && early_lost(job))
        zsd_muon_stop(job, &zsd_early_gone);
    if (early_asks(job) && e->offer > 0 && !early_prepare(job))
        return;
    while (e->offer > 0 && zsd_turn_left(job->core) > 0) {
        zsd_turn_count(job->core, 1);
        zsd_early_offer(job->shards[--e->offer]);
    }
    if (e->offer > 0)
        zsd_defer(job->core, work);
    if (!early_open(job) || zsd_saved_room(job->saved, &err) < 0 ||
        !(early_queued(e) || (e->prepared && job->optimizer == ZB_MUON)))
        return; /* pages that are not begun are stepped at the barrier */
    if (!early_prepare(job))
        return; /* nothing is begun */
    early_muon(job);
    while ((queue = early_queued(e)) &&
           job->early_inflight - zsd_muon_pages(job) < zsd_step_inflight_max(job->core))
        if (early_begin(job, queue) < 0) {
            if (job->early_inflight == 0 && queue == &e->roomed)
                ring_close(job, -ENOMEM, "no memory for a page");
            return; /* no memory: the next page that ends tries again */
        }
}

void zsd_early_factors(struct zsd_job *job, const double *factors)
{
    for (uint32_t u = 0; u < job->nunits; u++)
        if (!job->early->decided || !job->early->decided[u])
            zsd_table_scale(&job->step->table, job, u, factors);
}

void zsd_early_drop(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    if (job->early_said == 0)
        return;
    e->drops++;
    if (job->grad_ring)
        zsd_pushes_drop(job);
    while (!zb_list_empty(&e->begun))
        zsd_early_drop_shard(zb_container_of(e->begun.next, struct zsd_shard, early_all));
    zb_list_each(pos, &job->members) zb_container_of(pos, struct zsd_member, node)->begun = false;
    assert(zb_list_empty(&e->shards) && zb_list_empty(&e->roomed));
    zsd_muon_stop(job, &zsd_early_gone);
    zsd_rooms_drop(job);
    zsd_classes_put(e->classes);
    e->classes = NULL;
    zsd_early_limits_free(e);
    e->limited = false;
    job->early_said = 0;
    e->offer = 0;
    e->prepared = false;
    e->err = (struct zb_err){ 0 };
}
