/*
 * op/early_undo.c - the end of a shard's early steps (op/early.c has the model): they are a part of the step, or they
 * are undone.
 *
 * MODEL. An undo frees the results of a shard, in parts. Its bytes were never changed. If a page was begun, its gradient
 * is lost, so the shard has none afterwards. Operations in flight end later, and the shard accepts no
 * gradient before that (E3).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/leaving.h"
#include "daemon/op/early.h"
#include "daemon/op/step.h"
#include "daemon/page/held.h"
#include "daemon/run/turn.h"

#define EARLY_NOW 2u /* pages of a shard that are dropped at once */

const struct zb_err zsd_early_gone = {
    .code = -ECANCELED,
    .text = "its early steps have ended: one of them failed, it is skipped, or the daemon is ending"
};

void zsd_early_stepped(struct zsd_shard *s)
{
    if (!s->early && !s->ringed && !s->roomed)
        return;
    assert(s->early_held == 0 && s->early_inflight == 0);
    zb_list_remove(&s->early_node);
    zb_list_remove(&s->early_all);
    s->early = s->ringed = s->roomed = s->early_used = false;
}

/* Results of a shard that are dropped, and freed in parts: disk/leaving.h. */
struct early_gone {
    struct zsd_leaving leaving;
    struct zsd_shard *shard;
    struct zsd_held **held;
    uint32_t page, end; /* pages [page, end) are left */
};

static bool gone_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct early_gone *g = zb_container_of(l, struct early_gone, leaving);

    (void)core;
    for (; *left > 0 && g->page < g->end; g->page++, --*left)
        zsd_held_drop(g->shard, g->page, g->held[g->page]);
    if (g->page < g->end)
        return false;
    zsd_job_unhold(g->shard->job);
    free(g->held);
    free(g);
    return true;
}

/* Frees the results of a shard: in parts if there are many, unless there is no memory for that. They are
 * in pages whose state is streamed, or whose gradient is not held. */
static void early_give(struct zsd_shard *s)
{
    struct early_gone *g = s->early_held > EARLY_NOW ? calloc(1, sizeof(*g)) : NULL;
    uint32_t first = s->planes[ZB_STATE].resident;

    if (s->ringed)
        first = (uint32_t)zb_min_u64(first, s->planes[ZB_GRAD].resident);
    s->job->core->daemon->stats.pages_undone += s->early_held;
    if (g) {
        g->shard = s;
        g->held = s->held;
        g->page = first;
        g->end = s->npages;
        s->held = NULL;
        s->early_held = 0;
        zsd_job_hold(s->job);
        zsd_leave(s->job->core, &g->leaving, gone_part);
    }
    for (uint32_t page = first; page < s->npages && s->early_held > 0; page++) {
        s->early_held -= s->held[page] != NULL;
        zsd_held_drop(s, page, s->held[page]);
        s->held[page] = NULL;
    }
}

void zsd_early_drop_shard(struct zsd_shard *s)
{
    if (s->early_held > 0)
        early_give(s);
    zb_list_remove(&s->early_node);
    zb_list_remove(&s->early_all);
    s->early_dropped = s->early_inflight > 0;
    if (s->ringed || s->roomed || s->early_used) /* E1 */
        zsd_grad_reset(s);
    s->early = s->ringed = s->roomed = s->early_used = false;
}

bool zsd_early_undo(struct zsd_job *job)
{
    struct zsd_early *e = job->early;

    for (; !zb_list_empty(&e->begun); zsd_turn_count(job->core, 1)) {
        if (zsd_turn_left(job->core) == 0)
            return false;
        zsd_early_drop_shard(zb_container_of(e->begun.next, struct zsd_shard, early_all));
    }
    return true;
}

void zsd_early_limits_free(struct zsd_early *e)
{
    free(e->factors);
    free(e->decided);
    free(e->sums);
    free(e->summed);
    e->factors = NULL;
    e->decided = NULL;
    e->sums = NULL;
    e->summed = NULL;
}
