/*
 * top.c - what `zctl top` shows: who waits for what, how busy everything is, the oldest request.
 *
 * MODEL. Most of it is counted where it happens (stats.h). What a turn of the loop decides is
 * looked at here once a turn, before the loop waits: what is true then stays true until the next
 * turn, so the integrals are as good as if each place had told us, and no place has to.
 *
 * Loop thread only. Nothing here changes what the daemon does.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/paths.h"
#include "daemon/store.h"

#define SECOND_NS UINT64_C(1000000000)

/* ---- once a turn */

/* What the ranks wait for that asked for a step. */
static enum zsd_wait step_waits_for(const struct zsd_job *job)
{
    if (job->state != ZSD_STEPPING)
        return ZSD_WAIT_STEP_RANKS;
    if (job->step.committing || !job->step.draining)
        return job->step.committing ? ZSD_WAIT_COMMIT : ZSD_WAIT_STEP_PAGES;
    if (job->pins > 0 && !job->step.skip)
        return ZSD_WAIT_STEP_PINS;
    return job->active > 0 ? ZSD_WAIT_STEP_TRAFFIC : ZSD_WAIT_COMMIT;
}

static void turn_job(struct zsd_job *job, uint64_t now_ns)
{
    uint32_t waits[ZSD_WAITS] = { 0 }, asking = 0;
    enum zsd_wait step = step_waits_for(job);

    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        waits[step] += m->step_req != NULL;
        waits[ZSD_WAIT_READY] += m->ready_req != NULL;
        asking += m->conn && !zb_list_empty(&m->conn->reqs);
    }
    waits[ZSD_WAIT_COMMIT] += job->commit_req != NULL;
    for (unsigned i = ZSD_WAIT_STEP_RANKS; i < ZSD_WAITS; i++)
        zsd_gauge_set(&job->stats.waits[i], waits[i], now_ns);
    zsd_gauge_set(&job->stats.asking, asking, now_ns);
}

/* A second is over when a turn finds it so: a longer one only makes the rate smaller. */
static void turn_second(struct zsd_second *s, const struct zn_stats *io, uint64_t now_ns)
{
    uint64_t ns = now_ns - s->since_ns;

    if (ns < SECOND_NS)
        return;
    if (s->since_ns > 0) {
        double per_s = 1e9 / (double)ns;

        s->best_read =
            zb_max_u64(s->best_read, (uint64_t)((double)(io->read_bytes - s->read_bytes) * per_s));
        s->best_written = zb_max_u64(
            s->best_written, (uint64_t)((double)(io->written_bytes - s->written_bytes) * per_s));
    }
    s->since_ns = now_ns;
    s->read_bytes = io->read_bytes;
    s->written_bytes = io->written_bytes;
}

void zsd_top_turn(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns();

    zb_list_each(pos, &core->jobs) turn_job(zb_container_of(pos, struct zsd_job, node), now_ns);
    zsd_gauge_set(&core->buffers_used, core->nbuffers - core->nbuffers_free, now_ns);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zn_stats io = zn_stats(zsd_path_engine(core->daemon, i));

        zsd_gauge_set(&core->lines[i].depths, core->lines[i].depth, now_ns);
        turn_second(&core->lines[i].second, &io, now_ns);
    }
}
