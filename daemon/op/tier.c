/*
 * tier.c - the requests that change the budget of a tier, and that drain a drive or use it again. What
 * follows from them: plan/replan.c, plan/gpu_plan.c; disk/drives.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/disk/drives.h"
#include "daemon/op/requests.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/replan.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/store/change.h"
#include "daemon/store/drains.h"
#include "daemon/store/store.h"
#include "proto/shard.pb-c.h"

/* Sets the budget of the tier with this name. Without a GPU there is "gpu" all the same, and an error
 * that says why it cannot be set. */
static int tier_set(struct zsd_core *core, const char *name, uint64_t bytes, struct zb_err *err)
{
    const struct zsd *daemon = core->daemon;
    uint32_t g = zsd_gpu_named(daemon, name);

    if (strcmp(name, "host") == 0)
        return zsd_host_set(core, bytes, err);
    if (g != ZSD_NO_GPU)
        return zsd_gpu_set(core, g, bytes, err);
    if (daemon->ngpus == 0 && strcmp(name, "gpu") == 0)
        return zsd_gpus_set(core, &daemon->config, err);
    if (daemon->ngpus > 1)
        return zb_fail(err, -EINVAL,
                       "the budget of tier '%s' cannot be changed: only those of host, and of gpu0 "
                       "to gpu%u",
                       name, daemon->ngpus - 1);
    return zb_fail(err, -EINVAL,
                   "the budget of tier '%s' cannot be changed: only those of host and gpu", name);
}

ZSD_REQUEST(zsd_tier_set, TierSet)
{
    struct zb_err err = { 0 };

    if (!zsd_admin(req->conn))
        zsd_refuse(req, -EPERM, "only an administrator may change a tier's budget");
    else if (q->bytes > UINT64_C(1) << 62)
        zsd_refuse(req, -EINVAL, "%s memory of %llu bytes", q->name, (unsigned long long)q->bytes);
    else if (tier_set(req->daemon->core, q->name, q->bytes, &err) < 0)
        zsd_reply_err(req, &err);
    else
        zsd_reply(req, NULL, -1);
}

/* A request that has drained a drive, or uses it again: answered when the catalog has that. */
struct drive_op {
    struct zsd_change change;
    struct zsd_req *req;
    unsigned path;
};

static int drive_begin(struct zsd_change *c, struct zb_err *err)
{
    (void)c; /* the queue puts the drained drives into every transaction: store/drains.h */
    (void)err;
    return 0;
}

static void drive_done(struct zsd_change *c, const struct zb_err *err)
{
    struct drive_op *op = zb_container_of(c, struct drive_op, change);

    if (err)
        zsd_refuse(op->req, err->code,
                   "data file number %u is %s until the next restart: that could not be "
                   "recorded: %s",
                   op->path + 1, zsd_path_drained(c->core, op->path) ? "drained" : "in use again",
                   err->text);
    else
        zsd_reply(op->req, NULL, -1);
    free(op);
}

static void drive_keep(struct zsd_req *req, unsigned path)
{
    struct zsd_core *core = req->daemon->core;
    struct drive_op *op;

    if (!core->store || zsd_drains_kept(core->store)) {
        zsd_reply(req, NULL, -1);
        return;
    }
    op = calloc(1, sizeof(*op));
    if (!op) {
        zsd_refuse(req, -ENOMEM, "recording that data file number %u is drained", path + 1);
        return;
    }
    op->req = req;
    op->path = path;
    op->change.begin = drive_begin;
    op->change.done = drive_done;
    zsd_change_start(core, &op->change);
}

ZSD_REQUEST(zsd_drive_set, DriveSet)
{
    struct zsd_core *core = req->daemon->core;
    struct zb_err err = { 0 };
    unsigned path = q->number - 1; /* 0 becomes a number that no file has */
    int rc;

    if (!zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may drain a drive, or use it again");
        return;
    }
    rc = q->drain ? zsd_drive_drain(core, path, ZSD_DRAIN_ASKED, "", &err)
                  : zsd_drive_use(core, path, &err);
    if (rc < 0)
        zsd_reply_err(req, &err);
    else
        drive_keep(req, path);
}
