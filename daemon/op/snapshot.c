/*
 * op/snapshot.c - snapshots and clones of a saved job; op/rollback.c has rollback and destroy.
 *
 * MODEL. Each request is one delta of a saved job (store/delta.h), decided when it is next in the
 * queue of changes:
 *
 *     snapshot   gives the commit a name; in the same change the oldest beyond `retain` are
 *     removed.
 *                With `next` it waits in saved->snap_waiters until a commit has ended, its deadline
 *                has passed, or no commit will come.
 *     destroy    of a snapshot; or of a job with all that it has
 *     clone      a saved job of its own, whose first version shares the rows
 *     rollback   first ends the incarnation in memory, and waits for that; then the commit is the
 *                snapshot's version, and what was prepared is dropped
 *
 * While a job is rolled back or destroyed (saved->moving), an open of it waits (op/open.c). A
 * client that goes away does not stop its request, except a snapshot that still waits.
 */
#include "daemon/op/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/job/job.h"
#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "daemon/store/delta.h"
#include "daemon/store/store.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define SNAP_ROWS 100u /* of one reply: below 64 KiB with the longest names */

/* ---- finding, and rows */

/* The saved job that a request may change; a job in memory that has never committed, too, if
 * `unkept`. NULL: answered. */
struct zsd_saved *zsd_snap_saved(struct zsd_req *req, const char *name, bool unkept)
{
    struct zsd_core *core = req->daemon->core;
    struct zsd_saved *saved = zsd_saved_by_name(core, name);
    const struct zsd_job *job = zsd_job_by_name(core, name);

    if ((!saved && !job) || !zsd_may(req->conn, saved ? saved->uid : job->uid))
        zsd_refuse(req, -ENOENT, "there is no job '%s'", name); /* others are not told which */
    else if (!saved && !job->durable)
        zsd_refuse(req, -EINVAL, "job '%s' is not durable: it was opened without", name);
    else if (!saved && !(unkept && job->saved))
        zsd_refuse(req, -ENOENT, "job '%s' has no commit yet", name);
    else
        return saved ? saved : job->saved;
    return NULL;
}

/* Bytes that nobody else holds. */
static uint64_t snap_own_bytes(const struct zsd_snap *snap)
{
    const struct zsd_version *v = snap->version;
    uint64_t sum = 0;

    if (v->snapshots > 1 || v == v->saved->committed || v == v->saved->prepared)
        return 0;
    for (uint32_t i = 0; i < v->nrows; i++)
        if (v->rows[i]->refs == 1)
            sum += zsd_row_bytes(v->rows[i]);
    return sum;
}

/* snap NULL: a commit. */
static void snap_row(const struct zsd_saved *saved, const struct zsd_version *v,
                     const struct zsd_snap *snap, Zp__SnapshotRow *row)
{
    zp__snapshot_row__init(row);
    row->job = zp_str(saved->name);
    row->name = zp_str(snap ? snap->name : "");
    row->iterations = v->iterations;
    row->applied = v->applied;
    row->created_unix = snap ? snap->created_unix : v->created_unix;
    row->bytes = v->bytes;
    row->own_bytes = snap ? snap_own_bytes(snap) : 0;
    row->world = v->world;
}

void zsd_snap_reply(struct zsd_req *req, const struct zsd_saved *saved, const struct zsd_version *v,
                    const struct zsd_snap *snap)
{
    Zp__SnapshotRow row;

    snap_row(saved, v, snap, &row);
    zsd_reply(req, &row.base, -1);
}

/* ---- snapshot */

struct snap_op {
    struct zsd_delta delta;
    struct zsd_req *req;
    char name[ZP_NAME_MAX + 1]; /* "": made from the step */
    uint32_t retain;
    struct zsd_timed timed; /* with next */
    struct zb_list node;    /* in saved->snap_waiters */
};

/* All but the newest `retain`, of which one is to come. */
static void snap_retain(struct zsd_saved *saved, uint32_t retain)
{
    uint32_t n = 1;

    zb_list_each(pos, &saved->snaps) n++;
    zb_list_each(pos, &saved->snaps)
    {
        if (n-- <= retain)
            break;
        zb_container_of(pos, struct zsd_snap, node)->going = true;
    }
}

static int snap_plan(struct zsd_delta *d, struct zb_err *err)
{
    struct snap_op *op = zb_container_of(d, struct snap_op, delta);
    struct zsd_saved *saved = d->saved;
    struct zsd_snap *snap;

    if (!d->committed)
        return zb_fail(err, -ENOENT, "job '%s' has no commit yet", saved->name);
    if (op->name[0] == '\0')
        (void)snprintf(op->name, sizeof(op->name), "step-%llu",
                       (unsigned long long)d->committed->iterations);
    if (zsd_snap_by_name(saved, op->name))
        return zb_fail(err, -EEXIST, "job '%s' has a snapshot '%s' already", saved->name, op->name);
    snap = calloc(1, sizeof(*snap));
    if (!snap)
        return zb_fail(err, -ENOMEM, "a snapshot of job '%s': %m", saved->name);
    memcpy(snap->name, op->name, sizeof(snap->name));
    snap->id = saved->store->next_id++;
    snap->created_unix = (uint64_t)time(NULL);
    snap->version = d->committed;
    zb_list_init(&snap->node);
    if (zsd_snap_charge(saved, snap, err) < 0) {
        free(snap);
        return err->code;
    }
    d->snap_add = snap;
    if (op->retain > 0)
        snap_retain(saved, op->retain);
    return 0;
}

static void snap_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct snap_op *op = zb_container_of(d, struct snap_op, delta);

    if (err) {
        if (d->snap_add)
            zsd_snap_discharge(d->saved, d->snap_add);
        free(d->snap_add);
        zsd_reply_err(op->req, err);
    } else {
        zb_log(ZB_LOG_INFO, "snapshot", "job=\"%s\" name=\"%s\" iterations=%llu", d->saved->name,
               d->snap_add->name, (unsigned long long)d->snap_add->version->iterations);
        zsd_snap_reply(op->req, d->saved, d->snap_add->version, d->snap_add);
    }
    free(op);
}

/* A waiter gives up. */
static void snap_give_up(struct snap_op *op, const struct zb_err *why)
{
    zsd_timed_disarm(&op->timed);
    zb_list_remove(&op->node);
    zsd_reply_err(op->req, why);
    free(op);
}

static void snap_expire(struct zsd_timed *timed)
{
    struct snap_op *op = zb_container_of(timed, struct snap_op, timed);
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ETIMEDOUT, "job '%s' has not committed meanwhile", op->delta.saved->name);
    snap_give_up(op, &why);
}

void zsd_snap_next(struct zsd_saved *saved)
{
    struct zb_err gone = { 0 };

    (void)zb_fail(&gone, -ENOTCONN, "the client has gone");
    zb_list_each(pos, &saved->snap_waiters)
    {
        struct snap_op *op = zb_container_of(pos, struct snap_op, node);

        if (!op->req->conn) {
            snap_give_up(op, &gone);
            continue;
        }
        zsd_timed_disarm(&op->timed);
        zb_list_remove(&op->node);
        zsd_delta_start(&op->delta);
    }
}

void zsd_snap_cancel(struct zsd_saved *saved, const struct zb_err *why)
{
    zb_list_each(pos, &saved->snap_waiters)
        snap_give_up(zb_container_of(pos, struct snap_op, node), why);
}

ZSD_REQUEST(zsd_snapshot, SnapshotTake)
{
    struct zsd_saved *saved = zsd_snap_saved(req, q->job, q->next);
    struct zb_err err = { 0 };
    struct snap_op *op;

    if (!saved)
        return;
    if (q->name[0] != '\0' && !zp_name_valid(q->name)) {
        zsd_refuse(req, -EINVAL,
                   "'%s' is not a valid snapshot name: 1 to %u letters, digits, '.', '_' or '-'",
                   q->name, ZP_NAME_MAX);
        return;
    }
    op = calloc(1, sizeof(*op));
    if (!op) {
        zsd_refuse(req, -ENOMEM, "a snapshot of job '%s'", saved->name);
        return;
    }
    op->req = req;
    (void)snprintf(op->name, sizeof(op->name), "%s", q->name);
    op->retain = q->retain;
    op->delta = (struct zsd_delta){ .saved = saved, .plan = snap_plan, .done = snap_done };
    if (!q->next) {
        zsd_delta_start(&op->delta);
        return;
    }
    if (zsd_req_waits(req, &err) < 0) {
        free(op);
        zsd_reply_err(req, &err);
        return;
    }
    zb_list_init(&op->node);
    saved->snap_cancel = zsd_snap_cancel;
    zb_list_push_back(&saved->snap_waiters, &op->node);
    zsd_timed_arm(saved->store->core, &op->timed, q->timeout_ms, snap_expire);
}

/* ---- the list: by age, over all jobs */

static void snaps_insert(const struct zsd_snap **snaps, size_t *n, const struct zsd_snap *snap)
{
    size_t at = *n;

    if (at > SNAP_ROWS && snaps[at - 1]->id < snap->id)
        return;
    if (at <= SNAP_ROWS)
        ++*n;
    else
        at--;
    for (; at > 0 && snaps[at - 1]->id > snap->id; at--)
        snaps[at] = snaps[at - 1];
    snaps[at] = snap;
}

/* The oldest from `cursor` on, which is an id: as many as fit, and one more. */
static size_t snaps_find(const struct zsd_req *req, const char *job, uint64_t cursor,
                         const struct zsd_snap **snaps)
{
    struct zsd_store *store = req->daemon->core->store;
    size_t n = 0;

    if (!store)
        return 0;
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (s->gone || !zsd_may(req->conn, s->uid) || (*job && strcmp(job, s->name) != 0))
            continue;
        zb_list_each(at, &s->snaps)
        {
            const struct zsd_snap *snap = zb_container_of(at, struct zsd_snap, node);

            if (snap->id >= cursor)
                snaps_insert(snaps, &n, snap);
        }
    }
    return n;
}

ZSD_REQUEST(zsd_snapshots, SnapshotsRequest)
{
    const struct zsd_snap *snaps[SNAP_ROWS + 1];
    Zp__SnapshotRow rows[SNAP_ROWS], *list[SNAP_ROWS];
    Zp__SnapshotsReply reply = ZP__SNAPSHOTS_REPLY__INIT;
    const struct zsd_saved *saved = zsd_saved_by_name(req->daemon->core, q->job);
    const struct zsd_job *job = zsd_job_by_name(req->daemon->core, q->job);
    size_t n;

    if (*q->job && q->cursor == 0 && !(saved && zsd_may(req->conn, saved->uid)) &&
        !(job && zsd_may(req->conn, job->uid))) {
        zsd_refuse(req, -ENOENT, "there is no job '%s'", q->job);
        return;
    }
    n = snaps_find(req, q->job, q->cursor, snaps);
    if (n > SNAP_ROWS)
        reply.cursor = snaps[--n]->id;
    for (size_t i = 0; i < n; i++) {
        snap_row(snaps[i]->version->saved, snaps[i]->version, snaps[i], &rows[i]);
        list[i] = &rows[i];
        zsd_turn_count(req->daemon->core, snaps[i]->version->nrows);
        if (i + 1 < n && zsd_turn_full(req->daemon)) { /* the rest is asked for */
            n = i + 1;
            reply.cursor = snaps[n]->id;
        }
    }
    reply.n_rows = n;
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}

/* ---- snapshot-destroy */

struct snap_end {
    struct zsd_delta delta;
    struct zsd_req *req;
    char name[ZP_NAME_MAX + 1];
};

/* The version that a request names: of a snapshot, or ("") the commit. NULL: err. */
struct zsd_version *zsd_snap_version(const struct zsd_saved *saved, const char *name,
                                     struct zb_err *err)
{
    const struct zsd_snap *snap = *name ? zsd_snap_by_name(saved, name) : NULL;

    if (snap)
        return snap->version;
    if (*name)
        (void)zb_fail(err, -ENOENT, "job '%s' has no snapshot '%s'", saved->name, name);
    else if (!saved->committed)
        (void)zb_fail(err, -ENOENT, "job '%s' has no commit yet", saved->name);
    return *name ? NULL : saved->committed;
}

static int snap_end_plan(struct zsd_delta *d, struct zb_err *err)
{
    const struct snap_end *op = zb_container_of(d, struct snap_end, delta);
    struct zsd_snap *snap = zsd_snap_by_name(d->saved, op->name);

    if (!snap)
        return zb_fail(err, -ENOENT, "job '%s' has no snapshot '%s'", d->saved->name, op->name);
    snap->going = true;
    return 0;
}

static void snap_end_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct snap_end *op = zb_container_of(d, struct snap_end, delta);

    if (err) {
        zsd_reply_err(op->req, err);
    } else {
        zb_log(ZB_LOG_INFO, "snapshot-destroy", "job=\"%s\" name=\"%s\"", d->saved->name, op->name);
        zsd_reply(op->req, NULL, -1);
        zsd_room_changed(d->saved->store->core); /* places came back */
    }
    free(op);
}

ZSD_REQUEST(zsd_snapshot_destroy, SnapshotRef)
{
    struct zsd_saved *saved = zsd_snap_saved(req, q->job, false);
    struct snap_end *op;

    if (!saved)
        return;
    if (!zsd_snap_by_name(saved, q->name)) {
        zsd_refuse(req, -ENOENT, "job '%s' has no snapshot '%s'", saved->name, q->name);
        return;
    }
    op = calloc(1, sizeof(*op));
    if (!op) {
        zsd_refuse(req, -ENOMEM, "a snapshot of job '%s'", saved->name);
        return;
    }
    op->req = req;
    (void)snprintf(op->name, sizeof(op->name), "%s", q->name);
    op->delta = (struct zsd_delta){ .saved = saved, .plan = snap_end_plan, .done = snap_end_done };
    zsd_delta_start(&op->delta);
}

/* ---- clone */

struct clone {
    struct zsd_delta delta; /* of the new one */
    struct zsd_req *req;
    struct zsd_saved *from; /* held */
    struct zsd_version *fresh;
    char name[ZP_NAME_MAX + 1]; /* of the snapshot */
};

/* The same rows and notes, as a version of another job. NULL: no memory. */
static struct zsd_version *clone_version(struct zsd_saved *saved, const struct zsd_version *from)
{
    struct zsd_version *v = zsd_version_new(saved, from->world, from->nrows);
    int rc = v ? zsd_note_copy(&v->job_note, &from->job_note) : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < from->world; i++)
        rc = zsd_note_copy(&v->notes[i], &from->notes[i]);
    if (rc < 0) {
        zsd_version_unref(v);
        return NULL;
    }
    for (uint32_t i = 0; i < from->nrows; i++)
        zsd_version_put(v, i, from->rows[i]);
    v->iterations = from->iterations;
    v->applied = from->applied;
    return v;
}

static int clone_plan(struct zsd_delta *d, struct zb_err *err)
{
    struct clone *op = zb_container_of(d, struct clone, delta);
    const struct zsd_version *from;

    if (op->from->gone)
        return zb_fail(err, -ENOENT, "job '%s' was destroyed", op->from->name);
    from = zsd_snap_version(op->from, op->name, err);
    if (!from)
        return err->code;
    op->fresh = clone_version(d->saved, from);
    if (!op->fresh)
        return zb_fail(err, -ENOMEM, "job '%s': %m", d->saved->name);
    d->committed = op->fresh;
    d->grows = true;
    return 0;
}

static void clone_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct clone *op = zb_container_of(d, struct clone, delta);
    struct zsd_core *core = d->saved->store->core;

    d->saved->coming = false;
    if (err) {
        zsd_reply_err(op->req, err);
    } else {
        zb_log(ZB_LOG_INFO, "clone", "job=\"%s\" from=\"%s\" snapshot=\"%s\" iterations=%llu",
               d->saved->name, op->from->name, op->name, (unsigned long long)op->fresh->iterations);
        zsd_snap_reply(op->req, d->saved, d->saved->committed, NULL);
    }
    zsd_version_unref(op->fresh);
    zsd_saved_unhold(op->from);
    zsd_room_changed(core); /* the name is decided */
    free(op);
}

ZSD_REQUEST(zsd_clone, Clone)
{
    struct zsd_core *core = req->daemon->core;
    struct zsd_saved *from = zsd_snap_saved(req, q->job, false), *saved = NULL;
    struct zb_err err = { 0 };
    struct clone *op = NULL;

    if (!from)
        return;
    if (core->draining)
        (void)zb_fail(&err, -ECANCELED, "the daemon is ending: it takes no new jobs");
    else if (!zp_name_valid(q->name))
        (void)zb_fail(&err, -EINVAL,
                      "'%s' is not a valid job name: 1 to %u letters, digits, '.', '_' or '-'",
                      q->name, ZP_NAME_MAX);
    else if (zsd_job_by_name(core, q->name) || zsd_saved_by_name(core, q->name) ||
             zsd_job_name_coming(core, q->name))
        (void)zb_fail(&err, -EEXIST, "job '%s' exists already", q->name);
    else
        (void)zsd_snap_version(from, q->snapshot, &err);
    if (err.code == 0) {
        op = calloc(1, sizeof(*op));
        saved = op ? zsd_saved_like(from, q->name, req->conn->uid) : NULL;
        if (!saved)
            (void)zb_fail(&err, -ENOMEM, "job '%s': %m", q->name);
    }
    if (err.code != 0) {
        free(op);
        zsd_reply_err(req, &err);
        return;
    }
    saved->coming = true;
    op->req = req;
    op->from = from;
    zsd_saved_hold(from);
    (void)snprintf(op->name, sizeof(op->name), "%s", q->snapshot);
    op->delta = (struct zsd_delta){ .saved = saved, .plan = clone_plan, .done = clone_done };
    zsd_delta_start(&op->delta);
}
