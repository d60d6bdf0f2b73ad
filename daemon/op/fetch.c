/*
 * op/fetch.c - fetch pins the parameters of shards in memory that the client maps, and answers with
 * their offsets; release unpins them.
 *
 * MODEL. One struct zsd_fetch for each request. It pins the shards that it names, at a version or a
 * newer one, in order. It waits for one shard at a time: the first that is not available. A shard
 * that is streamed and not cached gets one struct zsd_fill, shared by all fetches that wait for it:
 *
 *     fill:   ROOM ---> READ ---> DONE     a place in the ring, then page operations
 *
 *     ROOM  waits for a place of its size in its rank's ring. The oldest cached shard of that size
 *           that is not pinned is dropped for it. If no fetch waits for the shard any longer, the
 *           fill ends
 *     READ  begins page operations (page/pageop.h), as many as each turn has room for, and waits
 *           for them
 *
 * All fills that a fetch needs are begun at once, so that their reads overlap.
 *
 * INVARIANTS
 *     F1  A fetch holds pins on items [0, held), and no others. If it fails, they are dropped at
 *         its end.
 *     F2  A fetch is answered once, and is in its member's list until then.
 *     F3  A fill that failed leaves the shard uncached and ends the fetches that wait for it.
 *     F4  A client learns the offset of a shard only after the checksum of every page matched.
 *     F5  A fetch waits for items[held] only while something is in progress that will wake it:
 *         a fill, a write, a step.
 */
#include "daemon/op/fetch.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

struct zsd_fill {
    struct zsd_shard *shard;
    uint64_t at;       /* in the arena; ZB_NO_PLACE while it waits for room */
    uint32_t inflight; /* page operations */
    struct zb_err err; /* the first failure */
    struct zb_list room_node;
    struct zsd_work work; /* begins the rest of its pages */
    uint32_t begun;       /* number of pages that have begun */
    struct zsd_work end;  /* ends it if no page operation is in flight when all have begun */
};

struct zsd_fetch {
    struct zsd_req *req;
    struct zsd_member *member;
    struct zsd_timed timed;
    struct zsd_work work; /* in the waiters of items[held] */
    struct zb_list node;  /* in member->fetches */
    uint64_t min_version;
    uint32_t n, held;
    enum zsd_wait wait; /* for zctl top */
    bool *missed;       /* [n], stored after the items: the shard was not in memory */
    struct zsd_shard *items[];
};

/* ---- fills */

static void fetch_end(struct zsd_fetch *f, const struct zb_err *why);
static void fetch_waits(struct zsd_fetch *f);

static void fill_done(struct zsd_fill *f)
{
    struct zsd_shard *s = f->shard;
    struct zsd_job *job = s->job;
    struct zb_list *node;

    s->fill = NULL;
    if (f->err.code == 0 && f->at != ZB_NO_PLACE && job->state != ZSD_ENDED) {
        s->arena_at = f->at;
        zb_list_push_back(&job->ring.classes[s->ring_class].cached, &s->lru);
    } else if (f->at != ZB_NO_PLACE) {
        zb_slots_give(&job->ring.classes[s->ring_class], f->at);
    }
    if (f->err.code != 0) { /* its waiters fail; a later fetch tries again */
        zb_log(ZB_LOG_ERROR, "fetch-failed", "why=\"%s\"", f->err.text);
        while ((node = zb_list_pop_front(&s->waiters)) != NULL)
            fetch_end(zb_container_of(node, struct zsd_fetch, work.node), &f->err);
    }
    free(f);
    zsd_shard_wake(s);
    zsd_fill_resume(job); /* after the fetches that were woken: they pin first */
    zsd_job_idle(job);
}

static void fill_on_end(struct zsd_work *work)
{
    struct zsd_fill *f = zb_container_of(work, struct zsd_fill, end);
    struct zsd_job *job = f->shard->job;

    fill_done(f);
    zsd_job_unhold(job);
}

static void fill_on_page(void *owner, const struct zsd_page_spec *spec, const struct zb_err *err)
{
    struct zsd_fill *f = owner;

    (void)spec;
    if (err)
        (void)zb_fail(&f->err, err->code, "%s", err->text);
    if (--f->inflight == 0)
        fill_done(f);
}

/* Begins its next pages, as many as the turn has room for. The job is held until all have begun. */
static void fill_on_work(struct zsd_work *work)
{
    struct zsd_fill *f = zb_container_of(work, struct zsd_fill, work);
    struct zsd_shard *s = f->shard;
    struct zsd_job *job = s->job;
    uint64_t page_bytes = zsd_page_bytes(s, ZB_PARAM, 0);

    for (; f->begun < s->npages && f->err.code == 0 && job->state != ZSD_ENDED; f->begun++) {
        struct zsd_page_spec spec = { .kind = ZSD_PAGE_FILL,
                                      .shard = s,
                                      .page = f->begun,
                                      .fill = job->arena.base + f->at + f->begun * page_bytes,
                                      .done = fill_on_page,
                                      .owner = f };
        int rc;

        if (zsd_turn_left(job->core) == 0) {
            zsd_defer(job->core, work);
            return;
        }
        zsd_turn_count(job->core, 1);
        rc = zsd_pageop_start(&spec);
        if (rc < 0)
            (void)zb_fail(&f->err, rc, "fetch a shard of job '%s': %m", job->name);
        else
            f->inflight++;
    }
    if (--f->inflight == 0)
        zsd_defer(job->core, &f->end); /* never answer a fetch inside the call that begins it */
    else
        zsd_job_unhold(job);
}

static void fill_read(struct zsd_fill *f)
{
    f->inflight = 1; /* for fill_on_work(), until all pages have begun */
    f->work.run = fill_on_work;
    zsd_job_hold(f->shard->job); /* no page operation holds it yet */
    fill_on_work(&f->work);
}

/* Takes a place of its size: a free one, or that of the oldest cached shard that is not pinned. */
static bool fill_room(struct zsd_fill *f)
{
    struct zb_slot_class *c = &f->shard->job->ring.classes[f->shard->ring_class];

    f->at = zb_slots_take(c);
    if (f->at == ZB_NO_PLACE && !zb_list_empty(&c->cached)) {
        zsd_shard_uncache(zb_container_of(c->cached.next, struct zsd_shard, lru));
        f->at = zb_slots_take(c);
    }
    return f->at != ZB_NO_PLACE;
}

static int fill_start(struct zsd_shard *s)
{
    struct zsd_fill *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->shard = s;
    f->end.run = fill_on_end;
    s->fill = f;
    zb_list_init(&f->room_node);
    zsd_job_active(s->job);
    if (fill_room(f))
        fill_read(f);
    else
        zb_list_push_back(&s->job->room_waiters, &f->room_node);
    return 0;
}

static void fill_on_room(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_job, room_work);

    if (job->state == ZSD_ENDED)
        return;
    zb_list_each(pos, &job->room_waiters)
    {
        struct zsd_fill *f = zb_container_of(pos, struct zsd_fill, room_node);

        zsd_turn_count(job->core, 1);
        if (fill_room(f)) {
            zb_list_remove(pos);
            zb_list_each(w, &f->shard->waiters)
                fetch_waits(zb_container_of(w, struct zsd_fetch, work.node));
            fill_read(f);
        }
    }
}

void zsd_fill_resume(struct zsd_job *job)
{
    job->room_work.run = fill_on_room;
    if (!zb_list_empty(&job->room_waiters))
        zsd_defer(job->core, &job->room_work);
}

/* Ends a fill that still waits for room, if no fetch waits for it. */
static void fill_abandon(struct zsd_shard *s)
{
    if (!s->fill || s->fill->at != ZB_NO_PLACE || !zb_list_empty(&s->waiters))
        return;
    zb_list_remove(&s->fill->room_node);
    fill_done(s->fill);
}

void zsd_fill_cancel(struct zsd_job *job)
{
    struct zb_list *node;

    while ((node = zb_list_pop_front(&job->room_waiters)) != NULL)
        fill_done(zb_container_of(node, struct zsd_fill, room_node));
}

/* ---- fetches */

static void fetch_waits_for(struct zsd_fetch *f, enum zsd_wait wait)
{
    if (f->wait != wait)
        zsd_wait_move(&f->member->job->stats, f->wait, wait, zb_now_ns());
    f->wait = wait;
}

static void fetch_end(struct zsd_fetch *f, const struct zb_err *why)
{
    fetch_waits_for(f, ZSD_WAIT_NONE);
    zsd_timed_disarm(&f->timed);
    zb_list_remove(&f->node);
    zb_list_remove(&f->work.node);
    if (why) {
        for (uint32_t i = 0; i < f->held; i++) /* F1 */
            (void)zsd_unpin(f->items[i], f->member);
        for (uint32_t i = f->held; i < f->n; i++)
            fill_abandon(f->items[i]);
        zsd_reply_err(f->req, why);
    }
    free(f);
}

static void fetch_answer(struct zsd_fetch *f)
{
    Zp__FetchReply reply = ZP__FETCH_REPLY__INIT;
    Zp__FetchItem *items = calloc(f->n, sizeof(*items)), **list = calloc(f->n, sizeof(*list));
    struct zb_err err = { 0 };

    if (!items || !list) {
        (void)zb_fail(&err, -ENOMEM, "the answer to a fetch: %m");
        fetch_end(f, &err);
        free(items);
        free(list);
        return;
    }
    for (uint32_t i = 0; i < f->n; i++) {
        const struct zsd_shard *s = f->items[i];

        zp__fetch_item__init(&items[i]);
        items[i].offset = s->arena_at;
        items[i].version = s->version;
        items[i].bytes = zsd_param_bytes(s);
        s->job->fetched_bytes += items[i].bytes;
        s->job->stats.misses += f->missed[i];
        s->job->stats.hits += !f->missed[i];
        list[i] = &items[i];
    }
    reply.n_items = f->n;
    reply.items = list;
    f->member->job->stats.fetches++;
    zsd_histogram_add(&f->req->daemon->times[ZSD_TIME_FETCH], zb_now_ns() - f->req->since_ns);
    zsd_reply(f->req, &reply.base, -1);
    free(items);
    free(list);
    fetch_end(f, NULL);
}

/* Whether the shard can be pinned as soon as its bytes are in memory. A draining step waits for all
 * pins, so a fetch that already holds some may take the rest. */
static bool fetch_allowed(const struct zsd_fetch *f, const struct zsd_shard *s)
{
    const struct zsd_job *job = s->job;
    bool stepping = job->state == ZSD_STEPPING && !job->step->committing &&
                    s->version == job->applied && !(job->draining && f->held > 0);

    return s->version >= f->min_version && !stepping && !s->writing;
}

static int fetch_unwritten(const struct zsd_shard *s, struct zb_err *err)
{
    return zsd_shard_live(s)
               ? 0
               : zb_fail(err, -EAGAIN, "shard %llu of unit '%s' has no initial values yet",
                         (unsigned long long)s->id, s->unit->name);
}

/* Begins the fill of every shard that will need one. 0 or -ENOMEM. */
static int fetch_fills(struct zsd_fetch *f)
{
    for (uint32_t i = f->held; i < f->n; i++) {
        struct zsd_shard *s = f->items[i];

        if (s->arena_at != ZB_NO_PLACE || !fetch_allowed(f, s))
            continue;
        if (!s->fill && fill_start(s) < 0)
            return -ENOMEM;
        f->missed[i] = true;
    }
    return 0;
}

/* Records what the fetch waits for. */
static void fetch_waits(struct zsd_fetch *f)
{
    const struct zsd_shard *s = f->items[f->held];

    if (!fetch_allowed(f, s) || !s->fill)
        fetch_waits_for(f, ZSD_WAIT_FETCH_VERSION);
    else
        fetch_waits_for(f, s->fill->at == ZB_NO_PLACE ? ZSD_WAIT_FETCH_ROOM : ZSD_WAIT_FETCH_DRIVE);
}

/* Whether the fetch waits for another request of its own client: a step, or a release. */
static bool fetch_owed(const struct zsd_fetch *f)
{
    const struct zsd_shard *s = f->items[f->held];
    bool asked = f->member->step_req || s->job->state == ZSD_STEPPING;

    if (s->version < f->min_version)
        return f->min_version - s->version > asked;
    return s->fill && s->fill->at == ZB_NO_PLACE;
}

/* Pins as many shards as it can, in order, and only then begins fills: a fill may take the place of
 * an unpinned shard. */
static void fetch_run(struct zsd_work *work)
{
    struct zsd_fetch *f = zb_container_of(work, struct zsd_fetch, work);
    struct zsd_job *job = f->member->job;
    struct zb_err err = { 0 };
    int rc;

    for (; f->held < f->n; f->held++) {
        struct zsd_shard *s = f->items[f->held];

        if (fetch_unwritten(s, &err) < 0) { /* a write failed meanwhile */
            fetch_end(f, &err);
            return;
        }
        if (!fetch_allowed(f, s) || s->arena_at == ZB_NO_PLACE)
            break;
        rc = zsd_pin(s, f->member);
        if (rc < 0) {
            (void)zb_fail(&err, rc,
                          "a pin on a shard of job '%s': %m; its ranks have %u pins, %u at most",
                          job->name, job->pins, ZSD_PINS_MAX);
            fetch_end(f, &err);
            return;
        }
    }
    if (f->held == f->n) {
        fetch_answer(f);
    } else if (fetch_fills(f) < 0) {
        (void)zb_fail(&err, -ENOMEM, "a fetch of %u shards of job '%s': %m", f->n, job->name);
        fetch_end(f, &err);
    } else if (fetch_owed(f) && zsd_req_waits(f->req, &err) < 0) {
        fetch_end(f, &err);
    } else {
        zb_list_init(&f->work.node);
        zb_list_push_back(&f->items[f->held]->waiters, &f->work.node); /* F5 */
        fetch_waits(f);
    }
}

static void fetch_expire(struct zsd_timed *timed)
{
    struct zsd_fetch *f = zb_container_of(timed, struct zsd_fetch, timed);
    const struct zsd_shard *s = f->items[f->held];
    const struct zsd_job *job = s->job;
    struct zb_err err = { 0 };

    if (!fetch_allowed(f, s))
        (void)zb_fail(&err, -ETIMEDOUT,
                      "fetch of unit '%s' of job '%s' waits for version %llu; it has %llu",
                      s->unit->name, job->name, (unsigned long long)f->min_version,
                      (unsigned long long)s->version);
    else if (s->fill && s->fill->at == ZB_NO_PLACE)
        (void)zb_fail(&err, -ETIMEDOUT,
                      "fetch of unit '%s' of job '%s' waits for room in the ring: rank %u pins %u "
                      "shards of this size, and no more fit; release some",
                      s->unit->name, job->name, s->rank, job->ring.classes[s->ring_class].total);
    else
        (void)zb_fail(&err, -ETIMEDOUT, "fetch of unit '%s' of job '%s' waits for the data file",
                      s->unit->name, job->name);
    fetch_end(f, &err);
}

enum zsd_wait zsd_fetch_wait(const struct zsd_member *m, const struct zsd_req *req)
{
    zb_list_each(pos, &m->fetches)
    {
        const struct zsd_fetch *f = zb_container_of(pos, struct zsd_fetch, node);

        if (f->req == req)
            return f->wait;
    }
    return ZSD_WAIT_NONE;
}

void zsd_fetch_resume(struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        zb_list_each(at, &m->fetches)
        {
            struct zsd_fetch *f = zb_container_of(at, struct zsd_fetch, node);

            zb_list_remove(&f->work.node); /* it waits for a shard, or is deferred already */
            zsd_defer(job->core, &f->work);
        }
    }
}

void zsd_fetch_cancel(struct zsd_member *m, const struct zb_err *why)
{
    while (!zb_list_empty(&m->fetches))
        fetch_end(zb_container_of(m->fetches.next, struct zsd_fetch, node), why);
}

/* Whether the rank can read the shard's parameters: on GPUs, each rank maps only those of its own. */
static int fetch_reaches(const struct zsd_member *m, const struct zsd_shard *s, struct zb_err *err)
{
    const struct zsd_job *job = s->job;

    if (!zsd_params_there(job) || zsd_shard_gpu(s) == job->ranks[m->rank].gpu)
        return 0;
    return zb_fail(err, -ENOTSUP,
                   "the parameters of unit '%s' of job '%s' that rank %u registered are on a GPU "
                   "that rank %u is not on",
                   s->unit->name, job->name, s->rank, m->rank);
}

ZSD_REQUEST(zsd_fetch, Fetch)
{
    struct zb_err err = { 0 };
    struct zsd_fetch *f;

    if (q->n_shards < 1 || q->n_shards > ZP_SHARDS_MAX) {
        zsd_refuse(req, -EINVAL, "%zu shards in one request: must be 1 to %u", q->n_shards,
                   ZP_SHARDS_MAX);
        return;
    }
    f = calloc(1, sizeof(*f) + q->n_shards * (sizeof(f->items[0]) + sizeof(f->missed[0])));
    if (!f) {
        zsd_refuse(req, -ENOMEM, "a fetch of %zu shards", q->n_shards);
        return;
    }
    for (size_t i = 0; i < q->n_shards; i++) {
        struct zsd_shard *s = zsd_shard_of(req, q->shards[i]);

        if (!s) {
            free(f);
            return;
        }
        if (fetch_unwritten(s, &err) < 0 || fetch_reaches(req->conn->member, s, &err) < 0) {
            zsd_reply_err(req, &err);
            free(f);
            return;
        }
        f->items[i] = s;
    }
    f->n = (uint32_t)q->n_shards;
    f->missed = (bool *)&f->items[f->n];
    f->req = req;
    f->member = req->conn->member;
    f->min_version = q->min_version;
    f->work.run = fetch_run;
    zb_list_init(&f->work.node);
    zb_list_push_back(&f->member->fetches, &f->node);
    zsd_timed_arm(req->daemon->core, &f->timed, q->timeout_ms, fetch_expire);
    fetch_run(&f->work);
}

void zsd_release(struct zsd_conn *conn, const ProtobufCMessage *message)
{
    const Zp__Release *q = (const Zp__Release *)(const void *)message;
    struct zb_err first = { 0 }; /* of the refused shards */
    uint64_t shard = 0;
    unsigned bad = 0;

    for (size_t i = 0; i < q->n_shards; i++) {
        /* format only the first message: a thousand would take longer than all the rest */
        struct zb_err err = { .code = bad > 0 ? -ENOENT : 0 };
        struct zsd_shard *s = zsd_shard_find(conn, q->shards[i], &err);

        if (s && zsd_unpin(s, conn->member) == 0)
            continue;
        if (!s && err.code != -ENOENT)
            continue; /* the job has ended, and its pins with it */
        if (bad++ == 0) {
            shard = q->shards[i];
            (void)zb_fail(&first, -EINVAL, "%s", s ? "this rank has not pinned it" : err.text);
        }
    }
    if (bad == 0)
        return;
    conn->daemon->stats.releases_bad += bad;
    zsd_conn_log(conn, ZB_LOG_WARN, "release-refused", "shards=%u first=%llu why=\"%s\"", bad,
                 (unsigned long long)shard, first.text);
}
