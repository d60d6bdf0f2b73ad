/*
 * op/snapshot.c - snapshots of a saved job; op/clone.c has clones, op/rollback.c rollback and destroy.
 *
 * MODEL. Each request is one delta of a saved job (store/delta.h), decided when it is next in the
 * queue of changes:
 *
 *     snapshot   gives the commit a name, and in the same change removes the oldest snapshots
 *                beyond `retain`. With `next` it waits in saved->snap_waiters until a commit has
 *                ended, its deadline has passed, or no commit will come.
 *     destroy    removes a snapshot; or a job with all of its versions and snapshots
 *     clone      makes a saved job of its own, whose first version shares the rows
 *     rollback   first ends the incarnation in memory, and waits for that. Then the snapshot's
 *                version becomes the commit, and a prepared version is dropped
 *
 * A job that is rolled back or destroyed is saved->moving. Requests of clients that have gone go on.
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

/* ---- lookup, and rows of answers */

struct zsd_saved *zsd_snap_saved(struct zsd_req *req, uint64_t owner, const char *name, bool unkept)
{
    struct zsd_saved *saved;
    struct zsd_named named;
    struct zsd_job *job;

    if (!zsd_job_find(req, owner, name, &named, &saved, &job))
        return NULL;
    if ((!saved && !job) || !zsd_may(req->conn, saved ? saved->uid : job->uid))
        zsd_refuse(req, -ENOENT, "there is no job '%s'", name); /* or it is another user's */
    else if (!saved && !job->durable)
        zsd_refuse(req, -EINVAL, "job '%s' is not durable: it was opened without", name);
    else if (!saved && !(unkept && job->saved))
        zsd_refuse(req, -ENOENT, "job '%s' has no commit yet", name);
    else
        return saved ? saved : job->saved;
    return NULL;
}

/* snap NULL: a commit. */
static void snap_row(const struct zsd_saved *saved, const struct zsd_version *v,
                     const struct zsd_snap *snap, uint64_t own_bytes, Zp__SnapshotRow *row)
{
    zp__snapshot_row__init(row);
    row->job = zp_str(saved->name);
    row->name = zp_str(snap ? snap->name : "");
    row->iterations = v->iterations;
    row->applied = v->applied;
    row->created_unix = snap ? snap->created_unix : v->created_unix;
    row->bytes = v->bytes;
    row->own_bytes = own_bytes;
    row->world = v->world;
    row->uid = saved->uid;
}

void zsd_snap_reply(struct zsd_req *req, const struct zsd_saved *saved, const struct zsd_version *v,
                    const struct zsd_snap *snap)
{
    Zp__SnapshotRow row;

    snap_row(saved, v, snap, 0, &row); /* own_bytes 0: the commit holds them, too */
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

/* Marks the oldest snapshots for removal: `retain` of them stay, counting the new one. */
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
        zb_log(ZB_LOG_INFO, "snapshot", "job=\"%s\" uid=%u name=\"%s\" iterations=%llu",
               d->saved->name, (unsigned)d->saved->uid, d->snap_add->name,
               (unsigned long long)d->snap_add->version->iterations);
        zsd_snap_reply(op->req, d->saved, d->snap_add->version, d->snap_add);
    }
    free(op);
}

/* Rejects a request that waits for a commit. */
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
    struct zsd_saved *saved = zsd_snap_saved(req, q->owner, q->job, q->next);
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

/* A request for the list. For each snapshot, the bytes that only it holds are counted, in parts.
 * Snapshots may be added and removed meanwhile. Each takes its part of many turns, like a scan, so it is
 * charged as one. */
struct snap_list {
    struct zsd_work work;
    struct zsd_core *core;
    struct zsd_req *req;
    char *job; /* "": all jobs */
    uid_t uid; /* else of its owner */
    uint64_t cursor;
    uint64_t ids[SNAP_ROWS], own[SNAP_ROWS]; /* of the snapshots that are counted */
    size_t n;
    uint64_t id, sum; /* the snapshot that is being counted, and its bytes so far */
    uint32_t nrows;
};

/* Finds the oldest snapshots from the cursor (an id) on: as many as a reply can have, plus one. */
static size_t list_find(const struct snap_list *op, const struct zsd_snap **snaps)
{
    struct zsd_store *store = op->core->store;
    size_t n = 0;

    if (!store)
        return 0;
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (s->gone || !zsd_may(op->req->conn, s->uid) ||
            (*op->job && (s->uid != op->uid || strcmp(op->job, s->name) != 0)))
            continue;
        zb_list_each(at, &s->snaps)
        {
            const struct zsd_snap *snap = zb_container_of(at, struct zsd_snap, node);

            if (snap->id >= op->cursor)
                snaps_insert(snaps, &n, snap);
        }
    }
    return n;
}

/* Removes the counts of snapshots that were destroyed. */
static void list_keep(struct snap_list *op, const struct zsd_snap *const *snaps, size_t nsnaps)
{
    size_t n = 0;

    for (size_t i = 0, at = 0; i < op->n; i++) {
        while (at < nsnaps && snaps[at]->id < op->ids[i])
            at++;
        if (at == nsnaps || snaps[at]->id > op->ids[i])
            continue;
        op->ids[n] = op->ids[i];
        op->own[n++] = op->own[i];
    }
    op->n = n;
}

/* Counts the bytes that only this snapshot holds. True: all of its rows are counted. */
static bool list_count(struct snap_list *op, const struct zsd_snap *snap)
{
    const struct zsd_version *v = snap->version;
    bool shared = v->snapshots > 1 || v == v->saved->committed || v == v->saved->prepared;

    if (op->id != snap->id || op->nrows == 0) {
        op->id = snap->id;
        op->sum = op->nrows = 0;
    }
    for (; !shared && op->nrows < v->nrows; op->nrows++) {
        if (zsd_turn_left(op->core) == 0)
            return false;
        zsd_turn_count(op->core, 1);
        if (v->rows[op->nrows]->refs == 1)
            op->sum += zsd_row_bytes(v->rows[op->nrows]);
    }
    op->ids[op->n] = snap->id;
    op->own[op->n++] = shared ? 0 : op->sum;
    op->nrows = 0;
    return true;
}

static void list_free(struct snap_list *op)
{
    free(op->job);
    free(op);
}

static void list_reply(const struct snap_list *op, const struct zsd_snap *const *snaps, size_t n)
{
    Zp__SnapshotRow rows[SNAP_ROWS], *list[SNAP_ROWS];
    Zp__SnapshotsReply reply = ZP__SNAPSHOTS_REPLY__INIT;

    if (n > op->n)
        reply.cursor = snaps[op->n]->id;
    for (size_t i = 0; i < op->n; i++) {
        snap_row(snaps[i]->version->saved, snaps[i]->version, snaps[i], op->own[i], &rows[i]);
        list[i] = &rows[i];
    }
    reply.n_rows = op->n;
    reply.rows = list;
    zsd_reply(op->req, &reply.base, -1);
}

static void list_on_work(struct zsd_work *work)
{
    struct snap_list *op = zb_container_of(work, struct snap_list, work);
    const struct zsd_snap *snaps[SNAP_ROWS + 1];
    size_t n;

    if (!op->req->conn) {
        zsd_refuse(op->req, -ENOTCONN, "the client has gone");
        list_free(op);
        return;
    }
    n = list_find(op, snaps);
    list_keep(op, snaps, n);
    while (op->n < n && op->n < SNAP_ROWS) {
        if (!list_count(op, snaps[op->n])) {
            zsd_defer(op->core, &op->work);
            return;
        }
    }
    zsd_limit_give(&op->req->conn->quota, ZSD_LIMIT_SCANS, 1);
    list_reply(op, snaps, n);
    list_free(op);
}

ZSD_REQUEST(zsd_snapshots, SnapshotsRequest)
{
    struct zsd_saved *saved;
    struct zb_err err = { 0 };
    struct zsd_named named;
    struct snap_list *op;
    struct zsd_job *job;

    if (!zsd_job_find(req, q->owner, q->job, &named, &saved, &job))
        return;
    if (*q->job && q->cursor == 0 && !(saved && zsd_may(req->conn, saved->uid)) &&
        !(job && zsd_may(req->conn, job->uid))) {
        zsd_refuse(req, -ENOENT, "there is no job '%s'", q->job);
        return;
    }
    if (zsd_limit_take(&req->conn->quota, ZSD_LIMIT_SCANS, 1, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    op = calloc(1, sizeof(*op));
    if (op)
        op->job = strdup(q->job);
    if (!op || !op->job) {
        free(op);
        zsd_limit_give(&req->conn->quota, ZSD_LIMIT_SCANS, 1);
        zsd_refuse(req, -ENOMEM, "the list of snapshots");
        return;
    }
    op->core = req->daemon->core;
    op->req = req;
    op->uid = named.uid;
    op->cursor = q->cursor;
    op->work.run = list_on_work;
    zb_list_init(&op->work.node);
    list_on_work(&op->work);
}

/* ---- snapshot-destroy */

struct snap_end {
    struct zsd_delta delta;
    struct zsd_req *req;
    char name[ZP_NAME_MAX + 1];
};

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
        zb_log(ZB_LOG_INFO, "snapshot-destroy", "job=\"%s\" uid=%u name=\"%s\"", d->saved->name,
               (unsigned)d->saved->uid, op->name);
        zsd_reply(op->req, NULL, -1);
        zsd_room_changed(d->saved->store->core); /* places are free again */
    }
    free(op);
}

ZSD_REQUEST(zsd_snapshot_destroy, SnapshotRef)
{
    struct zsd_saved *saved = zsd_snap_saved(req, q->owner, q->job, false);
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
