/*
 * op/push.c - accepts gradients, and computes their norms.
 *
 * MODEL. A push is a run of pages of one shard. For a page whose gradient is in memory, a compute
 * task accumulates. In the same pass it makes the sum for the norm, and counts nonfinite values. A
 * page of a gradient on NVMe goes through a page operation (page/pageop.h, PUSH), which does the
 * same between a read and a write. The parts of a micro-step come in order, and so do micro-steps.
 * So (step, micro, first) tells whether a push is new, repeated or out of order.
 *
 *     zsd_push ---> [waits in its shard's queue] ---> pages, in parts ---> answer
 *
 * A page whose gradient is not held (zsd_page_rings()) is stepped instead (op/early.c). A push of such
 * pages waits until its step has been announced by all ranks.
 *
 * FAILURE of a page (its transfer, its checksum, or no memory for it) ends its push with that code,
 * and fails all other pushes of that shard that have begun or wait. The shard then has no gradient.
 * When the last of these pushes has ended, the shard accepts pushes again, from the first
 * micro-step on.
 *
 * INVARIANTS
 *
 *     G1  shard->grad_next counts accepted elements. shard->pushing counts, for pushes that have
 *         left the queue, the pages that have not ended, and one for each push that still begins
 *         pages. A gradient is complete when all elements were accepted, `pushing` is 0, and the
 *         queue is empty. After a failure (grad_rc), grad_next is 0 until `pushing` is.
 *     G2  No two tasks work on one page: a micro-step's pages begin after those of the previous one
 *         have ended. None works on a gradient that is being read.
 *     G3  The staging of a push stays until its pages have ended, whatever happens to the client.
 */
#include "daemon/op/push.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/early.h"
#include "daemon/op/member.h"
#include "daemon/op/requests.h"
#include "daemon/op/tensors.h"
#include "daemon/page/pageop.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

#define NORMS_LOOKED 1024u /* shards checked at most, to name one in an error message */

struct push;

struct push_page {
    struct push *push;
    struct zsd_ingest ingest;
    /* for a gradient in memory: */
    struct zsd_task task;
    struct zk_page page;
    bool roomed; /* it is in the room of its unit */
};

struct push {
    struct zsd_req *req;
    struct zsd_member *member;
    struct zsd_shard *shard;
    struct zb_list node;  /* in shard->push_waiters */
    struct zb_list waits; /* in job->pushes, at the same time */
    struct zsd_work work; /* begins the rest of its pages */
    uint32_t begun;       /* number of pages that have begun */
    enum zsd_wait wait;
    enum zb_dtype dtype;
    bool add;
    bool rings;     /* some of its pages are not held */
    uint64_t drops; /* early->drops when it came */
    uint64_t first, count;
    const uint8_t *from;
    struct zb_err err; /* of the first page that failed */
    uint32_t left;
    uint32_t npages;
    struct push_page pages[];
};

static void push_start(struct push *p);

static void push_waits(struct push *p, enum zsd_wait wait)
{
    zsd_wait_move(&p->shard->job->stats, p->wait, wait, zb_now_ns());
    p->wait = wait;
}

/* Queues the push in its shard. */
static void push_wait(struct push *p)
{
    zb_list_push_back(&p->shard->push_waiters, &p->node);
    zb_list_push_back(&p->shard->job->pushes, &p->waits);
}

static struct push *push_next(struct zsd_shard *s)
{
    struct push *p = zb_container_of(s->push_waiters.next, struct push, node);

    zb_list_remove(&p->node);
    zb_list_remove(&p->waits);
    return p;
}

static void push_end(struct push *p, const struct zb_err *why)
{
    struct zsd_job *job = p->shard->job;
    struct zsd_member *m = p->member;

    push_waits(p, ZSD_WAIT_NONE);
    if (why)
        zsd_reply_err(p->req, why);
    else
        zsd_reply(p->req, NULL, -1);
    free(p);
    zsd_staging_put(m);
    zsd_job_idle(job);
    zsd_job_unhold(job);
}

static void push_run_task(struct zsd_task *task)
{
    struct push_page *t = zb_container_of(task, struct push_page, task);
    const struct zsd_shard *s = t->push->shard;

    zk_page_ingest_by(s->job->core->daemon->kernels, &s->unit->layout, &t->page, t->ingest.from,
                      t->ingest.dtype, t->ingest.add, &t->ingest.sum, &t->ingest.nonfinite,
                      &t->ingest.by);
}

static int push_lost(const struct zsd_shard *s, struct zb_err *err)
{
    return zb_fail(
        err, s->grad_rc,
        "unit '%s' has lost its gradient of step %llu: a push failed, or the step was dropped",
        s->unit->name, (unsigned long long)s->job->iterations + 1);
}

/* Drops the shard's gradient, because a part of it is lost. Pushes that wait to add to it fail. */
static void push_lose(struct zsd_shard *s, int rc)
{
    struct zb_err err = { 0 };

    if (s->grad_rc == 0)
        s->grad_rc = rc;
    zsd_grad_reset(s);
    (void)push_lost(s, &err);
    while (!zb_list_empty(&s->push_waiters))
        push_end(push_next(s), &err);
}

void zsd_push_resume(struct zsd_shard *s)
{
    while (!zb_list_empty(&s->push_waiters) && s->grad_reads == 0 && !s->early_dropped) {
        const struct push *p = zb_container_of(s->push_waiters.next, struct push, node);

        if (p->rings && zsd_early_ring_waits(s))
            return; /* zsd_pushes_resume() */

        if (p->first == 0) { /* a new micro-step begins */
            if (s->pushing > 0)
                return; /* G2 */
            memset(&s->grad_sum, 0, sizeof(s->grad_sum));
            s->grad_nonfinite = 0;
            zsd_sums_reset(s);
        }
        push_start(push_next(s));
    }
}

/* Call when one page of the push has ended, and when all have begun. */
static void push_put(struct push *p)
{
    struct zsd_shard *s = p->shard;

    s->pushing--;
    s->job->grads_busy--;
    zsd_grad_changed(s);
    if (s->grad_rc < 0 && p->err.code == 0)
        (void)push_lost(s, &p->err);
    if (--p->left > 0)
        return;
    if (s->pushing == 0) {
        s->grad_rc = 0;
        zsd_push_resume(s);
        zsd_grad_changed(s);
    }
    zsd_early_offer(s);
    push_end(p, p->err.code < 0 ? &p->err : NULL);
}

static void push_page_done(struct push_page *t, const struct zb_err *err)
{
    struct push *p = t->push;
    struct zsd_shard *s = p->shard;

    zsd_sums_end(!err && s->grad_rc == 0 ? s : NULL, &t->ingest.by);
    if (err) {
        (void)zb_fail(&p->err, err->code, "%s", err->text);
        push_lose(s, err->code);
    } else if (s->grad_rc == 0) {
        zk_xsum_merge(&s->grad_sum, &t->ingest.sum);
        s->grad_nonfinite += t->ingest.nonfinite;
    }
    push_put(p);
}

static void push_on_task(struct zsd_task *task)
{
    struct push_page *t = zb_container_of(task, struct push_page, task);

    if (t->roomed)
        zsd_room_done(t->push->shard, false);
    push_page_done(t, NULL);
}

static void push_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    (void)spec;
    push_page_done(owner, err);
}

static void push_on_taken(struct zsd_ingest *ingest)
{
    push_page_done(zb_container_of(ingest, struct push_page, ingest), NULL);
}

/* Starts a task that adds a page to the gradient in memory. */
static void push_page_task(struct push_page *t, uint64_t at, uint8_t *grad)
{
    struct zsd_shard *s = t->push->shard;

    t->page =
        (struct zk_page){ .first = s->first + at,
                          .count = zsd_page_elems(s, (uint32_t)(at / s->job->core->page_elems)) };
    t->page.grad = grad;
    t->page.param = t->page.grad; /* not used */
    t->task = (struct zsd_task){ .run = push_run_task,
                                 .done = push_on_task,
                                 .payer = &s->job->payer,
                                 .bytes = t->page.count * zb_dtype_bytes(t->ingest.dtype) };
    zsd_task_start(s->job->core, &t->task);
}

/* Starts a page whose gradient is not held. */
static int push_page_ring(struct push_page *t, uint64_t at, uint32_t page)
{
    struct zsd_shard *s = t->push->shard;
    uint8_t *grad;

    if (t->push->drops != s->job->early->drops) {
        struct zb_err err = { 0 };

        (void)zb_fail(&err, -ECANCELED, "the step of this push for unit '%s' was dropped",
                      s->unit->name);
        push_page_done(t, &err);
        return 0;
    }
    if (zsd_rooms_on(s->job)) {
        grad = zsd_early_room(s, page);
        t->roomed = grad != NULL;
        if (grad)
            push_page_task(t, at, grad);
        else
            push_page_done(t, NULL);
        return 0;
    }
    t->ingest.done = push_on_taken;
    if (zsd_early_take(s, page, &t->ingest) == 0)
        push_page_done(t, NULL);
    return 0;
}

/* Starts a page: a task, or a page operation if it is on NVMe, or not held. 0 or -ENOMEM. */
static int push_page_start(struct push_page *t, uint64_t at)
{
    struct zsd_shard *s = t->push->shard;
    const struct zsd_page_spec spec = { .kind = ZSD_PAGE_PUSH,
                                        .shard = s,
                                        .page = (uint32_t)(at / s->job->core->page_elems),
                                        .ingest = &t->ingest,
                                        .done = push_on_page,
                                        .owner = t };

    if (t->push->rings && zsd_page_rings(s, spec.page))
        return push_page_ring(t, at, spec.page);
    if (zsd_page_streamed(s, ZB_GRAD, spec.page))
        return zsd_pageop_start(&spec);
    push_page_task(t, at, zsd_page_at(s, ZB_GRAD, spec.page));
    return 0;
}

/* Begins the next pages of a push, as many as the turn has room for. */
static void push_on_work(struct zsd_work *work)
{
    struct push *p = zb_container_of(work, struct push, work);
    struct zsd_shard *s = p->shard;
    struct zsd_core *core = s->job->core;
    uint64_t per_page = core->page_elems;

    for (; p->begun < p->npages; p->begun++) {
        struct push_page *t = &p->pages[p->begun];
        uint64_t at = p->first + p->begun * per_page; /* element of the shard */

        if (zsd_turn_left(core) == 0) {
            zsd_defer(core, work);
            return;
        }
        zsd_turn_count(core, 1);
        t->push = p;
        t->ingest =
            (struct zsd_ingest){ .from = p->from + p->begun * per_page * zb_dtype_bytes(p->dtype),
                                 .dtype = p->dtype,
                                 .add = p->add };
        if (zsd_sums_begin(s, s->first + at, zb_min_u64(per_page, s->count - at), &t->ingest.by) <
                0 ||
            push_page_start(t, at) < 0) {
            struct zb_err err = { 0 };

            (void)zb_fail(&err, -ENOMEM, "a page of the gradient of unit '%s'", s->unit->name);
            push_page_done(t, &err);
        }
    }
    push_put(p);
}

static void push_start(struct push *p)
{
    struct zsd_shard *s = p->shard;

    push_waits(p, ZSD_WAIT_PUSH_COMPUTE);
    p->left = p->npages + 1;
    s->pushing += p->left;
    s->job->grads_busy += p->left;
    s->job->pushed_bytes += p->count * zb_dtype_bytes(p->dtype);
    p->work.run = push_on_work;
    push_on_work(&p->work);
}

/* Whether the pages of a push that are not held can be stepped. 0; -EINVAL: the step is not begun; or
 * -EDEADLK. */
static int push_admit_ring(struct zsd_shard *s, const struct zsd_member *m, uint64_t end,
                           struct zb_err *err)
{
    uint64_t held = (uint64_t)s->planes[ZB_GRAD].resident * s->job->core->page_elems;

    if (!s->job->grad_ring || (s->job->ring_limits && s->job->early_said == 0))
        return 0;
    if (m->begun || end <= held)
        return zsd_rooms_on(s->job) ? zsd_room_ask(s, err) : 0;
    return zb_fail(err, -EINVAL,
                   "a push for unit '%s', which does not hold this part of its gradient: step %llu "
                   "must be begun first",
                   s->unit->name, (unsigned long long)s->job->iterations + 1);
}

/* Checks that this part comes next, and then advances grad_next and micro. */
static int push_admit(struct zsd_shard *s, const Zp__Push *q, struct zb_err *err)
{
    const struct zsd_job *job = s->job;
    uint64_t step = job->iterations + 1, per_page = job->core->page_elems;
    const char *unit = s->unit->name;

    zsd_grad_look(s);
    if (s->unit->layout.frozen)
        return zb_fail(err, -EINVAL, "unit '%s' is frozen: it has no gradient", unit);
    if (zb_dtype_bytes(q->dtype) == 0)
        return zb_fail(err, -EINVAL, "a gradient of dtype number %u", q->dtype);
    if (q->mode != ZP_PUSH_SET && q->mode != ZP_PUSH_ADD)
        return zb_fail(err, -EINVAL, "push mode %u: must be 1 (set) or 2 (add)", q->mode);
    if ((q->mode == ZP_PUSH_ADD) != (q->micro > 0))
        return zb_fail(err, -EINVAL, "micro-step %u %s: the first sets, the others add", q->micro,
                       q->mode == ZP_PUSH_ADD ? "adds" : "sets");
    if (q->mode == ZP_PUSH_ADD && s->unit->layout.grad_dtype != ZB_F32)
        return zb_fail(err, -EINVAL, "unit '%s' has a %s gradient plane, which cannot accumulate",
                       unit, zb_dtype_name(s->unit->layout.grad_dtype));
    if (q->count < 1 || q->first % per_page != 0 ||
        !zb_range_inside(q->first, q->count, s->count) ||
        (q->count % per_page != 0 && q->first + q->count != s->count))
        return zb_fail(err, -EINVAL,
                       "a push of elements %llu to %llu of a shard of %llu: parts begin and end at "
                       "multiples of %llu, or at its end",
                       (unsigned long long)q->first, (unsigned long long)(q->first + q->count),
                       (unsigned long long)s->count, (unsigned long long)per_page);
    if (q->step < step)
        return zb_fail(err, -EEXIST, "a push for step %llu, and %llu is done",
                       (unsigned long long)q->step, (unsigned long long)job->iterations);
    if (q->step > step)
        return zb_fail(err, -EINVAL, "a push for step %llu, and step %llu comes next",
                       (unsigned long long)q->step, (unsigned long long)step);
    if (s->grad_rc < 0)
        return push_lost(s, err);
    if (job->early_said > 0 && q->micro >= job->early->micros)
        return zb_fail(err, -EINVAL,
                       "a push for micro-step %u: step %llu was begun as one of %u micro-steps",
                       q->micro, (unsigned long long)step, job->early->micros);
    if (q->micro < s->micro || (q->micro == s->micro && q->first < s->grad_next))
        return zb_fail(
            err, -EEXIST,
            "unit '%s' has its gradient of step %llu, micro-step %u, from element %llu: it is "
            "not added twice",
            unit, (unsigned long long)step, q->micro, (unsigned long long)q->first);
    if (q->micro == s->micro + 1 && s->grad_next == s->count && q->first == 0) {
        zsd_grad_micro(s, q->micro);
    }
    if (q->micro != s->micro || q->first != s->grad_next)
        return zb_fail(
            err, -EINVAL,
            "a push for micro-step %u from element %llu: micro-step %u from %llu comes next",
            q->micro, (unsigned long long)q->first, s->micro, (unsigned long long)s->grad_next);
    s->grad_next += q->count;
    return 0;
}

ZSD_REQUEST(zsd_push, Push)
{
    struct zsd_shard *s = zsd_shard_own(req, q->shard, "push to");
    struct zb_err err = { 0 };
    const uint8_t *from;
    struct push *p;
    uint64_t bytes;
    uint32_t npages;

    if (!s)
        return;
    if (s->job->state != ZSD_READY) {
        zsd_refuse(req, -EBUSY, "job '%s' is stepping", s->job->name);
        return;
    }
    if (!zb_mul_fits(q->count, zb_dtype_bytes(q->dtype), &bytes) ||
        !(from = zsd_staging_at(req->conn->member, q->staging, bytes))) {
        zsd_refuse(
            req, -EINVAL,
            "a push of %llu elements at %llu is not inside the staging of %llu bytes, or not at a "
            "multiple of 64",
            (unsigned long long)q->count, (unsigned long long)q->staging,
            (unsigned long long)req->conn->member->staging.bytes);
        return;
    }
    npages = (uint32_t)zb_div_up(zb_min_u64(q->count, s->count), s->job->core->page_elems);
    p = calloc(1, sizeof(*p) + npages * sizeof(p->pages[0]));
    if (!p || zsd_sums_room(s) < 0) {
        free(p);
        zsd_refuse(req, -ENOMEM, "a push of %llu elements", (unsigned long long)q->count);
        return;
    }
    if (push_admit_ring(s, req->conn->member, q->first + q->count, &err) < 0 ||
        push_admit(s, q, &err) < 0) {
        zsd_reply_err(req, &err);
        free(p);
        return;
    }
    p->req = req;
    p->member = req->conn->member;
    p->shard = s;
    p->dtype = q->dtype;
    p->add = q->mode == ZP_PUSH_ADD;
    p->first = q->first;
    p->count = q->count;
    p->from = from;
    p->npages = npages;
    p->drops = s->job->early->drops;
    p->rings = s->job->early_said > 0 &&
               zsd_page_rings(s, (uint32_t)((q->first + q->count - 1) / s->job->core->page_elems));
    if (zsd_rooms_on(s->job))
        zsd_room_want(s);
    s->job->stats.pushes++;
    push_waits(p, ZSD_WAIT_PUSH_TURN);
    p->member->staging_users++; /* G3 */
    zsd_job_hold(s->job);
    zsd_job_active(s->job);
    push_wait(p);
    zsd_grad_changed(s);
    zsd_push_resume(s);
}

void zsd_pushes_resume(struct zsd_job *job)
{
    uint32_t n = 0;

    zb_list_each(pos, &job->pushes) n++;
    for (; n > 0 && !zb_list_empty(&job->pushes); n--) { /* each of them once */
        struct push *p = zb_container_of(zb_list_pop_front(&job->pushes), struct push, waits);

        zb_list_push_back(&job->pushes, &p->waits);
        zsd_push_resume(p->shard);
    }
}

/* The first push that waits for the ring; NULL: none does. */
static struct push *push_ring_first(const struct zsd_job *job)
{
    zb_list_each(pos, &job->pushes)
    {
        struct push *p = zb_container_of(pos, struct push, waits);

        if (p->rings)
            return p;
    }
    return NULL;
}

void zsd_pushes_drop(struct zsd_job *job)
{
    struct push *p;

    while ((p = push_ring_first(job)) != NULL) {
        struct zsd_shard *s = p->shard;

        push_lose(s, -ECANCELED);
        s->grad_rc = s->pushing > 0 ? s->grad_rc : 0;
        zsd_grad_changed(s);
    }
}

void zsd_push_cancel(struct zsd_job *job, const struct zb_err *why)
{
    while (!zb_list_empty(&job->pushes))
        push_end(push_next(zb_container_of(job->pushes.next, struct push, waits)->shard), why);
}

/* Refuses norms, because a shard of the rank has an incomplete gradient. The answer names its unit,
 * if the first NORMS_LOOKED shards include it. */
static void norms_refuse(struct zsd_req *req, struct zsd_member *m, uint64_t step)
{
    const char *unit = "?";
    uint32_t looked = 0;

    zb_list_each(pos, &m->job->ranks[m->rank].shards)
    {
        const struct zsd_shard *s = zb_container_of(pos, struct zsd_shard, rank_node);

        if (++looked > NORMS_LOOKED)
            break;
        if (s->unit->layout.frozen || zsd_grad_absent(s) || zsd_grad_complete(s))
            continue;
        unit = s->unit->name;
        break;
    }
    zsd_turn_count(m->job->core, looked);
    zsd_refuse(req, -EBUSY, "unit '%s' of job '%s' has no whole gradient of step %llu yet", unit,
               m->job->name, (unsigned long long)step);
}

ZSD_REQUEST(zsd_norms, Norms)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    Zp__NormsReply reply = ZP__NORMS_REPLY__INIT;
    uint8_t bytes[ZK_XSUM_BYTES];
    const struct zsd_rank *rank;

    if (!m)
        return;
    if (q->step != m->job->iterations + 1) {
        zsd_refuse(req, -EINVAL, "norms of step %llu, and step %llu comes next",
                   (unsigned long long)q->step, (unsigned long long)m->job->iterations + 1);
        return;
    }
    rank = &m->job->ranks[m->rank];
    if (rank->begun > rank->whole) {
        norms_refuse(req, m, q->step);
        return;
    }
    zk_xsum_store(&rank->sum, bytes);
    reply.nonfinite = rank->nonfinite;
    reply.sum_of_squares.data = bytes;
    reply.sum_of_squares.len = sizeof(bytes);
    zsd_reply(req, &reply.base, -1);
}
