/* op_snapshot.c - snapshots, rollback, clone, destroy. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/store.h"
#include "proto/shard.pb-c.h"

void zsd_snapshot(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_snapshots(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_rollback(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_clone(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_snapshot_destroy(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_refuse(req, -ENOSYS, "this daemon cannot do that yet");
}

void zsd_snap_next(struct zsd_saved *saved)
{
    (void)saved;
}

/* ---- destroy */

struct destroy {
    struct zsd_delta delta;
    struct zsd_req *req;
};

static int destroy_plan(struct zsd_delta *d, struct zb_err *err)
{
    (void)err;
    d->destroy = true;
    return 0;
}

static void destroy_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct destroy *x = zb_container_of(d, struct destroy, delta);
    struct zb_err why = { 0 };

    if (!err && d->saved->job) {
        (void)zb_fail(&why, -ECANCELED, "job '%s' was destroyed", d->saved->name);
        zsd_job_end(d->saved->job, &why);
    }
    if (err)
        zsd_reply_err(x->req, err);
    else
        zsd_reply(x->req, NULL, -1);
    free(x);
}

void zsd_saved_destroy(struct zsd_req *req, struct zsd_saved *saved)
{
    struct destroy *x;

    if (!zsd_saved_may(req->conn, saved)) {
        zsd_refuse(req, -EPERM, "job '%s' belongs to user %u", saved->name, (unsigned)saved->uid);
        return;
    }
    x = calloc(1, sizeof(*x));
    if (!x) {
        zsd_refuse(req, -ENOMEM, "job '%s'", saved->name);
        return;
    }
    x->req = req;
    x->delta = (struct zsd_delta){ .saved = saved, .plan = destroy_plan, .done = destroy_done };
    zsd_delta_start(&x->delta);
}
