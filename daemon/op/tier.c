/*
 * tier.c - the request that changes the budget of a tier. What follows from it: plan/replan.c,
 * plan/gpu_plan.c.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/op/requests.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/replan.h"
#include "proto/shard.pb-c.h"

ZSD_REQUEST(zsd_tier_set, TierSet)
{
    struct zsd_core *core = req->daemon->core;
    bool gpu = strcmp(q->name, "gpu") == 0;
    struct zb_err err = { 0 };

    if (!zsd_admin(req->conn))
        zsd_refuse(req, -EPERM, "only an administrator may change a tier's budget");
    else if (!gpu && strcmp(q->name, "host") != 0)
        zsd_refuse(req, -EINVAL,
                   "the budget of tier '%s' cannot be changed: only those of host and gpu",
                   q->name);
    else if (q->bytes > UINT64_C(1) << 62)
        zsd_refuse(req, -EINVAL, "%s memory of %llu bytes", q->name, (unsigned long long)q->bytes);
    else if ((gpu ? zsd_gpu_set(core, q->bytes, &err) : zsd_host_set(core, q->bytes, &err)) < 0)
        zsd_reply_err(req, &err);
    else
        zsd_reply(req, NULL, -1);
}
