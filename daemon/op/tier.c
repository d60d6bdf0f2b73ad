/*
 * tier.c - the requests that change the budget of a tier, and that drain a drive or use it again. What
 * follows from them: plan/replan.c, plan/gpu_plan.c; disk/drives.c.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/disk/drives.h"
#include "daemon/op/requests.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/replan.h"
#include "daemon/run/gpu_tier.h"
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
        zsd_reply(req, NULL, -1);
}
