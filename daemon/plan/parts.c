/*
 * plan/parts.c - divides a tier among jobs by their shares: host memory for plan/replan.c, the GPU
 * for plan/gpu_plan.c.
 *
 * MODEL. Each job gets its share of the whole. A job that cannot use more than that is sated: it
 * gets the bytes that it can use, and the rest is divided among the others in the same way, until
 * no further job is sated.
 */
#include "daemon/plan/parts.h"

#include "base/util.h"
#include "daemon/plan/replan.h"

#define PART_IDLE_NS UINT64_C(60000000000)

bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns)
{
    uint64_t since = now_ns - job->replan->stepped_ns;

    if (job->replan->stepped_ns == 0)
        return true;
    return job->state != ZSD_STEPPING && since > PART_IDLE_NS && since / 4 > job->replan->step_ns;
}

void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left)
{
    uint64_t shares;
    bool again;

    do {
        again = false;
        shares = 0;
        for (unsigned i = 0; i < n; i++)
            shares += parts[i].sated ? 0 : parts[i].job->payer.share;
        for (unsigned i = 0; i < n && !again; i++) {
            struct zsd_part *p = &parts[i];
            uint64_t share = p->job->payer.share;

            if (p->sated)
                continue;
            p->target = left / shares * share + left % shares * share / shares;
            if (p->target >= p->most) {
                p->target = p->most;
                p->sated = again = true;
                left -= p->most;
            }
        }
    } while (again);
}
