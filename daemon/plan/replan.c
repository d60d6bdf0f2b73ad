/*
 * plan/replan.c - replanning of optimizer state: divides the host memory that is left among jobs,
 * and moves pages between host memory and NVMe accordingly.
 *
 * MODEL. The host memory that is not used otherwise is divided among the jobs that train, by their
 * shares. No job gets more than it can use. The first pages of each shard's state are in memory.
 * Each shard has five counts of pages, from the wanted number to the actual one:
 *
 *     to        wanted, from the division
 *     booked    in the account of the host tier
 *     made      allocated (a task allocates and frees the memory)
 *     next      in memory after the next step
 *     resident  (struct zsd_plane) in memory now
 *
 *     grows     booked ---> made ---> next ---> [a step] ---> resident ---> fewer places promised
 *     shrinks   places promised ---> to, next ---> [a step] ---> resident ---> made ---> booked
 *
 * A STEP MOVES PAGES. It touches every page anyway. A page that leaves memory is written after it
 * is stepped; a page that moves to memory is read into its memory and not written (page/pageop.c).
 * No page is moved twice, or outside of a step. Parameters and gradients stay where they were
 * placed.
 *
 * RESERVE FIRST. Before a step moves pages, places for leaving pages are promised, and memory for
 * arriving pages is booked and allocated. So a move never lacks room half way. If there are no
 * places or no memory, the move does not begin. A page that cannot be written stays in memory, and
 * so do the pages before it, until the next division. A page that cannot be read fails the step, as
 * always.
 *
 * WHEN. After each step, and when memory was freed, a job came, or a budget or a share changed. A
 * job whose state exceeds its part by more than an eighth shrinks (with a smaller limit, jobs would
 * trade pages for little gain). A job below its part takes memory that is free now, and does not
 * wait for more. If more than the budget is used, all jobs must fit, so parts are exact. A job that
 * has not stepped for long, or has no ranks, keeps its memory and does not grow.
 *
 * WANTS. Memory that a request waits for (struct zsd_want: the staging of a rank, the planes of a
 * job) is subtracted before the division. So other jobs shrink, to the byte, and only the waiting
 * request gets the freed memory. A want begins only if all memory that can be freed is enough for
 * it and for the other wants. It ends when the memory is available, at its deadline, or when its
 * request ends; then the others grow again.
 *
 * SETTLED. While no state of a job moves (replan->settled), a plan does not look at its shards: a
 * job may have very many of them. A change of any of the counts ends that. zsd_replan_release()
 * finds out when all moves are complete.
 *
 * A RING OF GRADIENTS (job->grad_ring): pages whose gradients are not held cannot move into memory,
 * because their gradients would have no place. Pages with held gradients move as always.
 *
 * NOT HERE. Allocating and freeing memory: plan/replan_memory.c. Free memory of the host tier:
 * plan/host.c. The division: plan/parts.c. Promises of places: plan/needs.c.
 *
 * INVARIANTS
 *
 *     R1  resident, next, to <= booked; resident, next <= made <= booked. Outside of moves all are
 *         equal. The account holds the booked pages, and memory that is being freed.
 *     R2  next does not change while a step runs, and does not grow while one has begun early:
 *         op/early.c begins the pages after it.
 *     R3  Places are promised for all pages from the least of resident, next and to on.
 */
#include "daemon/plan/replan.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/host.h"
#include "daemon/plan/needs.h"
#include "daemon/plan/parts.h"
#include "daemon/plan/replan_priv.h"

/* ---- counts */

static uint64_t replan_held(const struct zsd_job *job)
{
    return job->host_held.used[ZSD_USE_STATE] - job->replan->giving_bytes;
}

/* Whether the job's state may move: it may be on NVMe, and the job has ranks that step. */
static bool replan_moves(const struct zsd_job *job)
{
    return (job->state == ZSD_READY || job->state == ZSD_STEPPING) && job->replan->all_bytes > 0 &&
           zsd_state_moves(job) && !job->retiring && zsd_job_attached(job) > 0;
}

uint64_t zsd_replan_leaving(const struct zsd_job *job)
{
    uint64_t bytes = job->replan->giving_bytes;

    if (job->placed && job->replan->shrinks)
        for (uint32_t i = 0; i < job->nshards; i++) {
            const struct zsd_shard *s = job->shards[i];

            bytes += zsd_state_bytes(s, s->state_booked) - zsd_state_bytes(s, s->state_to);
        }
    return bytes;
}

/* ---- what a job does with its part */

/* Cancels pages that were to leave memory. */
static void replan_stay(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    if (!job->replan->shrinks)
        return;
    job->replan->shrinks = job->replan->settled = false;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->state_to = zsd_state_most(job->shards[i]);
    zsd_replan_take(job);
    (void)zsd_replan_promise(job, false, &err);
}

/* Lets pages leave memory, the last ones first, until at most `target` bytes stay. */
static void replan_shrink(struct zsd_job *job, uint64_t target)
{
    uint64_t held = replan_held(job);
    bool leaves = false;
    struct zb_err err = { 0 };

    job->replan->settled = false;
    for (uint32_t i = job->nshards; i-- > 0;) {
        struct zsd_shard *s = job->shards[i];
        uint64_t all = zsd_state_bytes(s, s->state_booked);

        s->state_to = zsd_state_most(s);
        while (zsd_state_is(s) && s->state_to > 0 &&
               held - (all - zsd_state_bytes(s, s->state_to)) > target)
            s->state_to--;
        held -= all - zsd_state_bytes(s, s->state_to);
        leaves = leaves || s->state_to < s->planes[ZB_STATE].resident;
    }
    job->replan->shrinks = true;
    if (leaves && zsd_replan_promise(job, true, &err) < 0) {
        if (!job->replan->refused)
            zb_log(ZB_LOG_WARN, "replan-no-places", "job=\"%s\" uid=%u why=\"%s\"", job->name,
                   (unsigned)job->uid, err.text);
        job->replan->refused = true;
        replan_stay(job);
        return;
    }
    job->replan->refused = false;
    zsd_replan_take(job);
}

/* Applies the job's part. `spare`: free bytes that are reserved for others. */
static void replan_job(struct zsd_job *job, uint64_t target, uint64_t spare, bool exact)
{
    uint64_t unused = zsd_account_free(&job->core->tiers.host);
    uint64_t room = zsd_limit_bytes_left(&job->quota, ZSD_HELD_HOST);
    uint64_t held = replan_held(job), much = exact ? 0 : held / ZSD_REPLAN_LEAVE_BE;

    job->replan->target_bytes = target;
    if (held > target && held - target > much)
        replan_shrink(job, target);
    else
        replan_stay(job);
    zsd_replan_release(job);
    if (target > held && !job->replan->shrinks)
        zsd_replan_grow(
            job, zb_min_u64(zb_min_u64(target - held, room), unused > spare ? unused - spare : 0));
}

/* ---- the division */

static uint64_t part_most(const struct zsd_job *job, uint64_t now_ns)
{
    uint64_t room = zsd_limit_bytes_left(&job->quota, ZSD_HELD_HOST);
    uint64_t most = 0, others = 0;

    if (job->replan->settled)
        most = job->replan->most_bytes;
    for (uint32_t i = 0; i < job->nshards && !job->replan->settled; i++)
        most += zsd_state_bytes(job->shards[i], zsd_state_cap(job->shards[i]));
    if (job->host_bytes_max > 0) {
        for (int use = 0; use < ZSD_USES; use++)
            others += use == ZSD_USE_STATE ? 0 : job->host_held.used[use];
        others += zsd_replan_away(job);
        most = zb_min_u64(most, job->host_bytes_max > others ? job->host_bytes_max - others : 0);
    }
    if (room != UINT64_MAX)
        most = zb_min_u64(most, replan_held(job) + room);
    if (zsd_part_idle(job, now_ns))
        most = zb_min_u64(most, replan_held(job)); /* it would not use more */
    return most;
}

/* Divides the memory, and applies to every job what is possible at once. */
static void replan_all(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns(), fixed, moves = 0, left;
    uint64_t spare = zsd_wanted(core, NULL) + zsd_host_away(core);
    struct zsd_part *parts;
    unsigned n = 0;

    zsd_host_settle(core);
    zb_list_each(pos, &core->jobs->list) n++;
    parts = core->draining ? NULL : calloc(zb_max_u64(n, 1), sizeof(*parts));
    if (!parts)
        return;
    n = 0;
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_READY && zsd_job_attached(job) == 0)
            zsd_replan_unused(job);
        if (!replan_moves(job))
            continue;
        parts[n++] = (struct zsd_part){ .job = job, .most = part_most(job, now_ns) };
        moves += job->host_held.used[ZSD_USE_STATE];
    }
    fixed = zsd_account_used(&core->tiers.host) - moves + spare;
    left = core->tiers.host_target > fixed ? core->tiers.host_target - fixed : 0;
    zsd_parts_fill(parts, n, left);
    for (unsigned i = 0; i < n; i++)
        replan_job(parts[i].job, parts[i].target, spare,
                   zsd_account_used(&core->tiers.host) + spare > core->tiers.host_target);
    free(parts);
    zsd_gpu_plan(core);
}

void zsd_replan_on_work(struct zsd_work *work)
{
    replan_all(zb_container_of(work, struct zsd_planner, replan)->core);
}

/* ---- around a step */

void zsd_replan_stepped(struct zsd_shard *s)
{
    struct zsd_plane *state = &s->planes[ZB_STATE];
    uint32_t gpu, n, end;

    if (!zsd_state_is(s))
        return;
    gpu = zsd_gpu_stepped(s);
    n = (uint32_t)zb_min_u64(s->state_next, gpu);
    if (n == state->resident && gpu == s->gpu_from)
        return;
    s->job->replan->moved = true;
    s->job->replan->settled = false;
    end = (uint32_t)zb_min_u64(state->resident, gpu); /* the others moved to the GPU */
    if (n < end) /* a page that could not be written stays, and so do the pages before it */
        for (n = end; n > s->state_next && state->extents[n - 1].at != ZB_NO_PLACE;)
            n--;
    if (n > s->state_next || gpu > s->gpu_next)
        zb_log(ZB_LOG_WARN, "replan-failed", "job=\"%s\" uid=%u unit=\"%s\" pages=%u", s->job->name,
               (unsigned)s->job->uid, s->unit->name,
               n > s->state_next ? n - s->state_next : s->npages - gpu);
    s->state_next = (uint32_t)zb_max_u64(s->state_next, n);
    s->state_to = (uint32_t)zb_max_u64(s->state_to, n);
    state->resident = n;
    s->gpu_from = s->gpu_next = gpu;
}

void zsd_replan_step_over(struct zsd_job *job)
{
    struct zsd_replan *r = job->replan;
    uint64_t now_ns = zb_now_ns();
    struct zb_err err = { 0 };

    r->step_ns = r->stepped_ns > 0 ? now_ns - r->stepped_ns : 0;
    r->stepped_ns = now_ns;
    if (r->moved) {
        uint64_t resident = 0, gpu = 0;

        for (uint32_t i = 0; i < job->nshards; i++) {
            const struct zsd_shard *s = job->shards[i];

            resident += zsd_state_bytes(s, s->planes[ZB_STATE].resident);
            gpu += zsd_state_bytes(s, s->npages) - zsd_state_bytes(s, s->gpu_from);
        }
        if (zsd_state_moves(job))
            (void)zsd_replan_promise(job, false, &err);
        zb_log(ZB_LOG_INFO, "job-replan",
               "job=\"%s\" uid=%u host_state=%llu nvme_state=%llu gpu_state=%llu", job->name,
               (unsigned)job->uid, (unsigned long long)resident,
               (unsigned long long)(r->all_bytes - resident - gpu), (unsigned long long)gpu);
    }
    r->moved = false;
    for (uint32_t i = 0; i < job->nshards && !r->settled; i++)
        job->shards[i]->state_to =
            (uint32_t)zb_min_u64(job->shards[i]->state_to, zsd_state_cap(job->shards[i]));
    zsd_replan_take(job);
    zsd_replan_release(job);
    zsd_gpu_step_over(job);
    zsd_replan(job->core);
}

/* ---- budgets */

/* Bytes of the host tier that will be in use when all leaving pages have left. */
static uint64_t replan_stays(const struct zsd_core *core)
{
    uint64_t bytes = zsd_account_used(&core->tiers.host);

    zb_list_each(pos, &core->jobs->list)
        bytes -= zsd_replan_leaving(zb_container_of(pos, struct zsd_job, node));
    return bytes;
}

/* Whether there will be room, when all leaving pages have left, for all wants, and for ranks that
 * have left and may return. */
static bool replan_enough(const struct zsd_core *core)
{
    return replan_stays(core) + zsd_wanted(core, NULL) + zsd_host_away(core) <=
           core->tiers.host_target;
}

bool zsd_want_begin(struct zsd_core *core, struct zsd_want *want, uint64_t bytes)
{
    if (bytes == 0 || core->draining || zsd_wanted(core, want) > core->tiers.host_target ||
        bytes > core->tiers.host_target)
        return false;
    want->bytes = bytes;
    zb_list_init(&want->node);
    zb_list_push_back(&core->planner->wants, &want->node);
    replan_all(core);
    if (replan_enough(core)) {
        zb_log(ZB_LOG_INFO, "replan-want", "bytes=%llu", (unsigned long long)bytes);
        return true;
    }
    zb_list_remove(&want->node);
    want->bytes = 0;
    replan_all(core);
    return false;
}

void zsd_want_end(struct zsd_core *core, struct zsd_want *want)
{
    if (want->bytes == 0)
        return;
    zb_list_remove(&want->node);
    want->bytes = 0;
    zsd_replan(core);
}

int zsd_host_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err)
{
    uint64_t was = core->tiers.host_target, stays;

    core->tiers.host_target = bytes;
    replan_all(core);
    stays = replan_stays(core) + zsd_wanted(core, NULL);
    if (stays > bytes) {
        core->tiers.host_target = was;
        replan_all(core);
        return zb_fail(err, -ENOSPC,
                       "%s of host memory are less than what cannot be moved elsewhere: the "
                       "smallest that would work is %llu",
                       zb_size_text(bytes).s, (unsigned long long)stays);
    }
    zb_log(ZB_LOG_INFO, "tier-set", "tier=host bytes=%llu was=%llu used=%llu leaves=%llu",
           (unsigned long long)bytes, (unsigned long long)was,
           (unsigned long long)zsd_account_used(&core->tiers.host),
           (unsigned long long)(zsd_account_used(&core->tiers.host) - replan_stays(core)));
    return 0;
}
