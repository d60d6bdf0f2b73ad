/*
 * op/reader.c - reading saved state, by a client that is not a rank: reader-open, -unit, -read,
 * -close. How a read runs: op/reader_read.c.
 *
 * MODEL. A struct zsd_reader (op/reader_priv.h) belongs to a connection, holds one version, and has
 * its own staging, which compute threads create and free.
 *
 *     OPENING ---> OPEN ---> CLOSING     by reader-close, or at the end of the connection or daemon
 *
 * WHAT A READER HOLDS. While the saved job also holds the version, the job's promise covers its
 * places. When only readers hold it (zsd_readers_orphaned), each reader gets its own promise, if
 * there is room. Otherwise the reader releases the version, so that the job has the room that it
 * was promised, and the remaining reads fail with -ESTALE. Reads do not hold rows.
 *
 * INVARIANTS (R1: op/reader_read.c)
 *
 *     R2  version->readers is the number of readers that hold it.
 *     R3  A reader is freed when no lane and no task of it runs; its saved job is held until then.
 */
#include "daemon/op/reader.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/op/ops.h"
#include "daemon/op/reader_priv.h"
#include "daemon/op/requests.h"
#include "daemon/plan/host.h"
#include "daemon/store/lost.h"
#include "proto/codec.h"

#define TENSORS_PART 200u /* of one reply: below 64 KiB with the longest names and shapes */

/* ---- what a reader holds */

static void reader_drop(struct zsd_reader *r)
{
    struct zsd_version *v = r->version;

    if (!v)
        return;
    r->version = NULL;
    v->readers--;
    zsd_version_unref(v);
    if (r->covered)
        zsd_nvme_unpromise(r->core, &r->nvme_held, &r->promise);
    r->covered = false;
}

/* Promises the reader room for its version, in addition to the job's promise. 0, -ENOSPC or
 * -ENOMEM. */
static int reader_cover(struct zsd_reader *r, struct zb_err *err)
{
    const uint64_t planes[ZB_PLANES] = { 0 };
    int rc = zsd_nvme_promise(r->core, &r->nvme_held, &r->promise, &r->version->needs, planes, err);

    if (rc < 0)
        zb_needs_done(&r->promise);
    r->covered = rc == 0;
    return rc;
}

static void reader_orphaned(struct zsd_reader *r)
{
    struct zb_err err = { 0 };

    /* a job that was destroyed keeps its promise until its struct is released */
    if (r->saved->gone) {
        r->covered = true;
        return;
    }
    if (reader_cover(r, &err) == 0)
        return;
    (void)zb_fail(&r->why, -ESTALE,
                  "iteration %llu of job '%s' was replaced by a newer one, and there is no room to "
                  "keep it for its reader (%s): read a snapshot",
                  (unsigned long long)r->version->iterations, r->saved->name, err.text);
    zb_log(ZB_LOG_WARN, "reader-lost", "job=\"%s\" uid=%u why=\"%s\"", r->saved->name,
           (unsigned)r->saved->uid, r->why.text);
    reader_drop(r);
}

void zsd_readers_orphaned(struct zsd_version *v)
{
    struct zsd_core *core = v->core;

    /* the last reader that releases v frees it: from here on only its address is compared */
    zb_list_each(pos, &core->ops->readers)
    {
        struct zsd_reader *r = zb_container_of(pos, struct zsd_reader, node);

        if (r->version == v && !r->covered)
            reader_orphaned(r);
    }
}

/* ---- opening and closing */

static void reader_free(struct zsd_reader *r)
{
    reader_drop(r);
    zsd_unbook(&r->core->tiers.host, &r->host_held, ZSD_USE_STAGING, r->booked);
    zsd_host_settle(r->core);
    zsd_room_changed(r->core);
    zsd_saved_unhold(r->saved);
    zb_list_remove(&r->node);
    free(r);
}

static void close_run(struct zsd_task *task)
{
    zsd_arena_close(&zb_container_of(task, struct zsd_reader, task)->staging);
}

static void close_done(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);

    r->core->in_progress--;
    reader_free(r);
}

/* Frees a closed reader when none of its lanes runs (R3). */
static void reader_free_if_over(struct zsd_reader *r)
{
    if (r->state != READER_CLOSING || r->lanes_busy > 0)
        return;
    r->task = (struct zsd_task){ .run = close_run, .done = close_done, .slow = true };
    r->core->in_progress++;
    zsd_task_start(r->core, &r->task);
}

/* Closes it. A read in progress ends by itself. */
static void reader_end(struct zsd_reader *r, const struct zb_err *why)
{
    bool opening = r->state == READER_OPENING;

    if (r->state == READER_CLOSING)
        return;
    zsd_limit_give(&r->conn->quota, ZSD_LIMIT_READERS, 1);
    r->conn->reader = NULL;
    r->conn = NULL;
    r->state = READER_CLOSING;
    r->why = *why;
    reader_drop(r);
    if (r->open_req)
        zsd_reply_err(r->open_req, why);
    r->open_req = NULL;
    zsd_reader_reads_end(r, why);
    if (!opening) /* else open_done() */
        reader_free_if_over(r);
}

void zsd_reader_gone(struct zsd_conn *conn)
{
    struct zb_err why = { 0 };

    zsd_reader_waits_gone(conn);
    if (!conn->reader)
        return;
    (void)zb_fail(&why, -ECANCELED, "the reader of job '%s' disconnected",
                  conn->reader->saved->name);
    reader_end(conn->reader, &why);
}

int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held)
{
    int rc = 0;

    zb_list_each(pos, &core->ops->readers)
    {
        const struct zsd_reader *r = zb_container_of(pos, struct zsd_reader, node);

        if (rc == 0)
            rc = zb_needs_sum(promise, &r->promise, 1);
        for (int use = 0; use < ZSD_USES; use++)
            held->used[use] += r->nvme_held.used[use];
    }
    return rc;
}

void zsd_readers_end(struct zsd_core *core)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zb_list_each(pos, &core->ops->readers)
    {
        reader_end(zb_container_of(pos, struct zsd_reader, node), &why);
    }
}

static void open_run(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);

    (void)zsd_arena_open(&r->staging, "zshard-reader", r->booked, false, &r->open_err);
}

static void open_done(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);
    Zp__ReaderOpenReply reply = ZP__READER_OPEN_REPLY__INIT;
    struct zsd_req *req = r->open_req;

    r->core->in_progress--;
    if (r->state == READER_OPENING && r->open_err.code != 0)
        reader_end(r, &r->open_err);
    if (r->state == READER_OPENING && !r->version) /* released meanwhile */
        reader_end(r, &r->why);
    if (r->state == READER_CLOSING) {
        reader_free_if_over(r);
        return;
    }
    r->state = READER_OPEN;
    r->open_req = NULL;
    reply.reader = r->id;
    reply.optimizer = r->saved->optimizer;
    reply.moments = r->saved->moments;
    reply.iterations = r->version->iterations;
    reply.applied = r->version->applied;
    reply.units = r->saved->nunits;
    reply.groups = r->saved->groups;
    reply.world = r->version->world;
    reply.staging_bytes = r->staging.bytes;
    zsd_reply(req, &reply.base, r->staging.fd);
}

/* The requested version, or NULL. */
static struct zsd_version *open_find(struct zsd_req *req, const Zp__ReaderOpen *q,
                                     struct zb_err *err)
{
    struct zsd_saved *saved;
    struct zsd_named named;
    struct zsd_snap *snap;

    if (zsd_job_named(req, q->owner, q->job, &named, err) < 0)
        return NULL;
    saved = zsd_saved_by_name(req->daemon->core, named.uid, q->job);
    if (!saved || !zsd_may(req->conn, saved->uid)) { /* the same for another user's job */
        (void)zb_fail(err, -ENOENT, "there is no saved job '%s'", q->job);
        return NULL;
    }
    if (q->snapshot[0] == '\0') {
        if (!saved->committed)
            (void)zb_fail(err, -ENOENT, "job '%s' has no commit yet", q->job);
        return saved->committed;
    }
    snap = zsd_snap_by_name(saved, q->snapshot);
    if (!snap)
        (void)zb_fail(err, -ENOENT, "job '%s' has no snapshot '%s'", q->job, q->snapshot);
    return snap ? snap->version : NULL;
}

/* Host memory that a reader may take: not what others wait for, but also what is kept for ranks
 * that have left a job. A rank that rejoins then waits until the reader has closed (op/open.c). */
static uint64_t open_host_free(const struct zsd_core *core)
{
    uint64_t free_bytes = zsd_account_free(&core->tiers.host);

    return free_bytes - zb_min_u64(free_bytes, zsd_wanted(core, NULL));
}

static int open_check(const struct zsd_core *core, struct zsd_conn *conn, const Zp__ReaderOpen *q,
                      struct zb_err *err)
{
    if (core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new readers");
    if (conn->reader)
        return zb_fail(err, -EBUSY, "this connection reads job '%s' already",
                       conn->reader->saved->name);
    if (!zsd_limit_room(&conn->quota, ZSD_LIMIT_READERS, 1))
        return zsd_limit_take(&conn->quota, ZSD_LIMIT_READERS, 1, err);
    if (q->staging_bytes < 1 || q->staging_bytes > INT64_MAX - ZB_PAGE_ALIGN)
        return zb_fail(err, -EINVAL, "staging of %llu bytes", (unsigned long long)q->staging_bytes);
    if (zsd_limit_bytes(&conn->quota, ZSD_HELD_HOST, zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN),
                        err) < 0)
        return -EDQUOT;
    return 0;
}

/* Whether there is memory for the staging; else err has the numbers. */
static bool open_fits(const struct zsd_core *core, const Zp__ReaderOpen *q, struct zb_err *err)
{
    if (zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN) <= open_host_free(core))
        return true;
    (void)zb_fail(err, -ENOSPC,
                  "staging of %s for a reader does not fit: %s of host memory are free",
                  zb_size_text(q->staging_bytes).s, zb_size_text(open_host_free(core)).s);
    return false;
}

static void open_try(struct zsd_req *req, const Zp__ReaderOpen *q, uint64_t deadline_ns)
{
    struct zsd_core *core = req->daemon->core;
    struct zb_err err = { 0 };
    struct zsd_version *v = NULL;
    struct zsd_reader *r = NULL;

    if (open_check(core, req->conn, q, &err) == 0)
        v = open_find(req, q, &err);
    if (v && !open_fits(core, q, &err)) {
        if (q->staging_bytes <= core->tiers.host_target &&
            zsd_reader_wait(req, q, deadline_ns, open_try))
            return;
        v = NULL;
    }
    if (zsd_version_whole(core, v, &err) < 0)
        v = NULL;
    if (v) {
        r = calloc(1, sizeof(*r));
        if (!r)
            (void)zb_fail(&err, -ENOMEM, "a reader of job '%s': %m", q->job);
    }
    if (!r) {
        zsd_reply_err(req, &err);
        return;
    }
    zsd_limit_add(&req->conn->quota, ZSD_LIMIT_READERS, 1); /* open_check() saw room */
    r->core = core;
    r->conn = req->conn;
    r->conn->reader = r;
    r->id = ++core->ops->next_reader;
    r->saved = v->saved;
    zsd_saved_hold(r->saved);
    r->version = zsd_version_ref(v);
    v->readers++;
    v->orphaned = zsd_readers_orphaned;
    r->staging = ZSD_ARENA_NONE;
    r->booked = zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN);
    r->host_held.user = zsd_user_held(&req->conn->quota, ZSD_HELD_HOST);
    zsd_book(&core->tiers.host, &r->host_held, ZSD_USE_STAGING, r->booked);
    r->open_req = req;
    r->idle = reader_free_if_over;
    zb_list_init(&r->reads);
    zsd_reader_lanes_init(r);
    zb_list_push_back(&core->ops->readers, &r->node);
    r->task = (struct zsd_task){ .run = open_run, .done = open_done, .slow = true };
    core->in_progress++;
    zsd_task_start(core, &r->task);
}

ZSD_REQUEST(zsd_reader_open, ReaderOpen)
{
    if (zsd_reader_parked(req->conn))
        zsd_refuse(req, -EBUSY, "this connection is opening a reader already");
    else
        open_try(req, q, 0);
}

/* The open reader of this connection, by its id; NULL: req was answered. */
static struct zsd_reader *reader_of(struct zsd_req *req, uint64_t id)
{
    struct zsd_reader *r = req->conn->reader;

    if (!r || r->id != id || r->state != READER_OPEN) {
        zsd_refuse(req, -ENOENT, "this connection has no open reader %llu", (unsigned long long)id);
        return NULL;
    }
    return r;
}

ZSD_REQUEST(zsd_reader_close, ReaderRef)
{
    struct zsd_reader *r = reader_of(req, q->reader);
    struct zb_err why = { 0 };

    if (!r)
        return;
    (void)zb_fail(&why, -ECANCELED, "the reader of job '%s' was closed", r->saved->name);
    reader_end(r, &why);
    zsd_reply(req, NULL, -1);
}

/* ---- the manifest */

ZSD_REQUEST(zsd_reader_unit, ReaderUnit)
{
    struct zsd_reader *r = reader_of(req, q->reader);
    Zp__ReaderUnitReply reply = ZP__READER_UNIT_REPLY__INIT;
    Zp__Tensor rows[TENSORS_PART], *list[TENSORS_PART];
    const struct zsd_unit *unit;

    if (!r)
        return;
    if (q->unit >= r->saved->nunits) {
        zsd_refuse(req, -ENOENT, "job '%s' has no unit %u", r->saved->name, q->unit);
        return;
    }
    unit = r->saved->units[q->unit];
    if (q->cursor > unit->ntensors) {
        zsd_refuse(req, -EINVAL, "unit '%s' has %u tensors, and none from %u on", unit->name,
                   unit->ntensors, q->cursor);
        return;
    }
    reply.name = zp_str(unit->name);
    reply.elems = unit->elems;
    reply.dtype = unit->layout.dtype;
    reply.grad_dtype = unit->layout.grad_dtype;
    reply.frozen = unit->layout.frozen;
    reply.quantized = unit->layout.quantized;
    for (uint32_t i = q->cursor; i < unit->ntensors && reply.n_tensors < TENSORS_PART; i++) {
        const struct zsd_tensor *t = &unit->tensors[i];
        Zp__Tensor *row = &rows[reply.n_tensors];

        zp__tensor__init(row);
        row->name = zp_str(t->name);
        row->first = t->first;
        row->n_dims = t->ndims;
        row->dims = (uint64_t *)(uintptr_t)t->dims;
        row->group = t->group;
        row->muon = t->muon;
        list[reply.n_tensors++] = row;
    }
    reply.tensors = list;
    if (q->cursor + reply.n_tensors < unit->ntensors)
        reply.cursor = q->cursor + (uint32_t)reply.n_tensors;
    zsd_reply(req, &reply.base, -1);
}

/* ---- reads */

ZSD_REQUEST(zsd_reader_read, ReaderRead)
{
    struct zsd_reader *r = reader_of(req, q->reader);

    if (r)
        zsd_reader_read_start(r, req, q);
}
