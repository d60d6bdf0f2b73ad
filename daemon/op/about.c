/*
 * op/about.c - what a trainer says about itself, for users: how it clips, whether its steps begin early,
 * or why not, and what it does not train at present. The daemon only keeps and shows it.
 */
#include <errno.h>
#include <math.h>

#include "base/log.h"
#include "daemon/job/job.h"
#include "daemon/op/requests.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

ZSD_REQUEST(zsd_job_about, JobAbout)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_about *a;

    if (!m)
        return;
    a = &m->job->about;
    if (q->clip_mode < 1 || q->clip_mode > 3 || !(q->clip >= 0 && isfinite(q->clip)) ||
        !(q->clip_ratio >= 0 && isfinite(q->clip_ratio))) {
        zsd_refuse(
            req, -EINVAL,
            "clip mode %u with limits %g and %g: 1 (global), 2 (tensor), 3 (none), and 0 or above",
            q->clip_mode, q->clip, q->clip_ratio);
        return;
    }
    if (q->early > ZP_EARLY_YES && q->early != a->early)
        zb_log(ZB_LOG_INFO, "early-off", "job=\"%s\" uid=%u why=\"%s\"", m->job->name,
               (unsigned)m->job->uid, zp_early_text(q->early));
    *a = (struct zsd_about){ .clip_mode = q->clip_mode,
                             .early = q->early,
                             .clip = q->clip,
                             .clip_ratio = q->clip_ratio,
                             .clip_warm_until = q->clip_warm_until,
                             .frozen_tensors = q->frozen_tensors,
                             .frozen_bytes = q->frozen_bytes };
    zsd_reply(req, NULL, -1);
}
