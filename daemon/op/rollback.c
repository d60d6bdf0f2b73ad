/*
 * op/rollback.c - a saved job goes back to a snapshot, or is destroyed. snapshot.c has the model.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/job.h"
#include "daemon/op/requests.h"
#include "daemon/op/snapshot.h"
#include "daemon/store/delta.h"
#include "daemon/store/lost.h"
#include "daemon/store/store.h"
#include "proto/shard.pb-c.h"

/* ---- rollback */

struct rollback {
    struct zsd_delta delta;
    struct zsd_req *req;
    char name[ZP_NAME_MAX + 1];
    struct zsd_work work;
};

static int rollback_plan(struct zsd_delta *d, struct zb_err *err)
{
    const struct rollback *op = zb_container_of(d, struct rollback, delta);
    struct zsd_version *v = zsd_snap_version(d->saved, op->name, err);

    if (!v)
        return err->code;
    d->committed = v;
    d->prepared = NULL;
    return 0;
}

static void rollback_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct rollback *op = zb_container_of(d, struct rollback, delta);
    struct zsd_saved *saved = d->saved;

    saved->moving = false;
    if (err) {
        zsd_reply_err(op->req, err);
    } else {
        zb_log(ZB_LOG_INFO, "rollback", "job=\"%s\" uid=%u snapshot=\"%s\" iterations=%llu",
               saved->name, (unsigned)saved->uid, op->name,
               (unsigned long long)saved->committed->iterations);
        zsd_snap_reply(op->req, saved, saved->committed,
                       *op->name ? zsd_snap_by_name(saved, op->name) : NULL);
    }
    zsd_room_changed(saved->store->core);
    zsd_saved_unhold(saved);
    free(op);
}

/* The incarnation in memory has ended. */
static void rollback_on_ended(struct zsd_work *work)
{
    struct rollback *op = zb_container_of(work, struct rollback, work);

    op->delta.saved->ended = NULL;
    zsd_delta_start(&op->delta);
}

ZSD_REQUEST(zsd_rollback, SnapshotRef)
{
    struct zsd_saved *saved = zsd_snap_saved(req, q->owner, q->job, false);
    struct zb_err err = { 0 };
    struct rollback *op;
    struct zsd_version *v;

    if (!saved)
        return;
    v = zsd_snap_version(saved, q->name, &err);
    if (v && zsd_version_whole(req->daemon->core, v, &err) < 0)
        v = NULL;
    if (v && saved->store->poisoned.code != 0)
        (void)zb_fail(&err, saved->store->poisoned.code, "%s", saved->store->poisoned.text);
    else if (v && saved->moving)
        (void)zb_fail(&err, -EBUSY, "job '%s' is being rolled back or destroyed", saved->name);
    else if (v && saved->job && zsd_job_attached(saved->job) > 0)
        (void)zb_fail(&err, -EBUSY, "job '%s' has %u ranks attached", saved->name,
                      zsd_job_attached(saved->job));
    op = err.code == 0 ? calloc(1, sizeof(*op)) : NULL;
    if (err.code == 0 && !op)
        (void)zb_fail(&err, -ENOMEM, "a rollback of job '%s': %m", saved->name);
    if (err.code != 0) {
        zsd_reply_err(req, &err);
        return;
    }
    op->req = req;
    (void)snprintf(op->name, sizeof(op->name), "%s", q->name);
    op->work.run = rollback_on_ended;
    zb_list_init(&op->work.node);
    op->delta = (struct zsd_delta){ .saved = saved, .plan = rollback_plan, .done = rollback_done };
    saved->moving = true;
    zsd_saved_hold(saved);
    if (!saved->job) {
        zsd_delta_start(&op->delta);
        return;
    }
    saved->ended = &op->work;
    (void)zb_fail(
        &err, -ECANCELED,
        "job '%s' is rolled back to step %llu: newer state in memory, up to step %llu, is dropped",
        saved->name, (unsigned long long)v->iterations, (unsigned long long)saved->job->iterations);
    zsd_job_fail(saved->job, &err);
}

/* ---- destroy */

struct destroy {
    struct zsd_delta delta;
    struct zsd_req *req;
};

static int destroy_plan(struct zsd_delta *d, struct zb_err *err)
{
    if (!zsd_saved_kept(d->saved)) /* its first commit has failed */
        return zb_fail(err, -ENOENT, "job '%s' has nothing that is saved", d->saved->name);
    d->destroy = true;
    return 0;
}

static void destroy_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct destroy *x = zb_container_of(d, struct destroy, delta);
    struct zsd_saved *saved = d->saved;
    bool over = !err || !zsd_saved_kept(saved);
    struct zb_err why = { 0 };

    saved->moving = false;
    if (over) {
        saved->gone = true; /* no other change of it follows */
        (void)zb_fail(&why, -ECANCELED, "job '%s' was destroyed", saved->name);
        zsd_snap_cancel(saved, &why);
    }
    if (over && saved->job)
        zsd_job_fail(saved->job, &why);
    if (over)
        zsd_reply(x->req, NULL, -1);
    else
        zsd_reply_err(x->req, err);
    zsd_room_changed(saved->store->core);
    free(x);
}

void zsd_saved_destroy(struct zsd_req *req, struct zsd_saved *saved)
{
    struct destroy *x;

    if (saved->moving) {
        zsd_refuse(req, -EBUSY, "job '%s' is being rolled back or destroyed", saved->name);
        return;
    }
    x = calloc(1, sizeof(*x));
    if (!x) {
        zsd_refuse(req, -ENOMEM, "job '%s'", saved->name);
        return;
    }
    x->req = req;
    x->delta = (struct zsd_delta){ .saved = saved, .plan = destroy_plan, .done = destroy_done };
    saved->moving = true;
    zsd_delta_start(&x->delta);
}
