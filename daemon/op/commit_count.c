/*
 * op/commit_count.c - counts commits, for `zctl status` and `zctl metrics`.
 */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "daemon/job/job.h"
#include "daemon/op/commit.h"
#include "daemon/op/ops.h"

/* Whether the caller is at fault, or the job has ended. */
static bool is_refusal(int code)
{
    return code == -EINVAL || code == -EAGAIN || code == -EBUSY || code == -ECANCELED;
}

void zsd_commit_count(struct zsd_job *job, uint64_t began_ns, const struct zb_err *err)
{
    struct zsd *daemon = job->core->daemon;
    struct zsd_commit_stats *c = &job->stats.commits;
    struct zsd_last_commit *last = &job->core->ops->last_commit;

    if (err) {
        if (is_refusal(err->code))
            return;
        c->failed++;
        c->why = *err;
        daemon->stats.commits_failed++;
        return;
    }
    c->done++;
    c->unix_s = (uint64_t)time(NULL);
    c->why.code = 0;
    daemon->stats.commits++;
    last->at_ns = zb_now_ns();
    last->took_ns = last->at_ns - began_ns;
    last->uid = job->uid;
    last->iterations = job->iterations;
    (void)snprintf(last->job, sizeof(last->job), "%s", job->name);
    zsd_histogram_add(&daemon->times[ZSD_TIME_COMMIT], last->took_ns);
}
