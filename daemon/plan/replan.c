/*
 * plan/replan.c - where optimizer state lives is planned again: what budgets and other jobs leave, a
 * job gets, and what they want it gives, page by page, between host memory and NVMe.
 *
 * MODEL. The host tier's bytes that nothing else holds are divided among the jobs that train, by
 * their shares, and nobody gets more than it can use. Of each shard the first pages of its state
 * are in memory, and four counts say how it comes to be as it is wanted:
 *
 *     to        wanted. It follows from the division
 *     booked    in the account of the host tier
 *     made      memory is there for them (a task makes it, and gives it back)
 *     next      that will be in memory when the next step has made them
 *     resident  (struct zsd_plane) that are
 *
 *     grows     booked ---> made ---> next ---> [a step] ---> resident ---> fewer places promised
 *     shrinks   places promised ---> to, next ---> [a step] ---> resident ---> made ---> booked
 *
 * A STEP MOVES. It touches every page anyway: one that leaves is written where it is stepped, one
 * that comes is read into its memory and not written (page/pageop.c). Nothing is moved twice, or apart
 * from a step; parameters and gradients stay where they were placed.
 *
 * PROMISES BEFORE BYTES. Places for what leaves are promised, and memory for what comes is booked
 * and made, before a step sees it: a move never lacks room in the middle. What fails leaves the
 * page where it is: no places, no memory: nothing was begun; a page that cannot be written stays,
 * and those in front of it, until the division is made again. A page that cannot be read fails the
 * step, as it would have.
 *
 * WHEN. After each step, and when memory came back, a job came, or a budget or a share was changed.
 * Who is far above its part shrinks (an eighth: else jobs would trade pages for little); who is
 * below takes what is free at that time, and waits for nobody. All must fit when the budget is
 * lower than what is used: then parts are exact. Who has not stepped for long, or has no ranks,
 * takes no part: it keeps what it has.
 *
 * WHO WAITS for memory (struct zsd_want: the staging of a rank, the planes of a job) is counted
 * before anything is divided, so others shrink, to the byte, and nobody else takes what comes back.
 * That begins only where all that can leave is enough, beside what others wait for; it ends when
 * the memory is there, at the deadline, or when who waited goes: then the others grow back.
 *
 * INVARIANTS
 *     R1  resident, next, to <= booked; resident, next <= made <= booked. Outside of moves they are
 *         all the same. Booked pages and what is being given back are the account's bytes.
 *     R2  next does not change while a step runs, and not towards more while one has begun early:
 *         op/early.c begins what lies behind it.
 *     R3  Places are promised for all pages from the least of resident, next and to on.
 */
#include "daemon/plan/replan.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/paths.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/place.h"

#define REPLAN_IDLE_NS UINT64_C(60000000000)

/* ---- counts and bytes */

uint64_t zsd_state_bytes(const struct zsd_shard *s, uint32_t n)
{
    uint64_t page_elems = s->job->core->page_elems;

    return zb_plane_bytes(s->planes[ZB_STATE].block_bytes, page_elems,
                          zb_min_u64(s->count, n * page_elems));
}

/* Its pages that host memory may have: the others are on the GPU, or will be (plan/gpu_plan.c). */
static uint32_t state_cap(const struct zsd_shard *s)
{
    return zsd_state_moves(s->job) ? s->gpu_next : s->npages;
}

/* All that is booked, but what the GPU has. */
static uint32_t state_most(const struct zsd_shard *s)
{
    return (uint32_t)zb_min_u64(s->state_booked, state_cap(s));
}

static uint64_t replan_held(const struct zsd_job *job)
{
    return job->host_held.used[ZSD_USE_STATE] - job->replan->giving_bytes;
}

/* Its state may be moved: there is somewhere to go, and somebody who steps. */
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

/* Staging of ranks that have left, and may come back: it is not for anybody's state. */
uint64_t zsd_replan_away(const struct zsd_job *job)
{
    return job->keep && job->state != ZSD_ENDED
               ? job->staging_most - job->host_held.used[ZSD_USE_STAGING]
               : 0;
}

/* The same of all jobs. */
static uint64_t host_away(const struct zsd_core *core)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->jobs->list)
        bytes += zsd_replan_away(zb_container_of(pos, struct zsd_job, node));
    return bytes;
}

uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but)
{
    uint64_t free_bytes = zsd_account_free(&core->tiers.host);

    return free_bytes - zb_min_u64(free_bytes, zsd_wanted(core, but) + host_away(core));
}

void zsd_host_settle(struct zsd_core *core)
{
    uint64_t needs = zsd_account_used(&core->tiers.host) + host_away(core);

    core->tiers.host.budget =
        zb_max_u64(core->tiers.host_target, zb_min_u64(core->tiers.host.budget, needs));
}

static void replan_unbook(struct zsd_job *job, uint64_t bytes)
{
    zsd_unbook(&job->core->tiers.host, &job->host_held, ZSD_USE_STATE, bytes);
    zsd_host_settle(job->core);
}

/* ---- the memory of a job */

void zsd_replan_begin(struct zsd_job *job)
{
    *job->replan = (struct zsd_replan){ 0 };
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t n = s->planes[ZB_STATE].resident;

        s->state_to = s->state_next = s->state_made = s->state_booked = n;
        s->gpu_from = s->gpu_next = s->npages;
        job->replan->all_bytes += zsd_state_bytes(s, s->npages);
    }
}

/* Where in the job's memory its state begins. */
static uint64_t replan_base(const struct zsd_job *job)
{
    return job->memory_bytes - job->replan->all_bytes;
}

/* Room for a range for each shard, and one more. */
static struct zsd_range *ranges_new(const struct zsd_job *job)
{
    return calloc((size_t)job->nshards + 1, sizeof(struct zsd_range));
}

/* One more range, behind those that there are. */
static void ranges_add(struct zsd_range *ranges, uint32_t *n, uint64_t at, uint64_t bytes)
{
    if (bytes == 0)
        return;
    if (*n > 0 && ranges[*n - 1].at + ranges[*n - 1].bytes == at)
        ranges[*n - 1].bytes += bytes;
    else
        ranges[(*n)++] = (struct zsd_range){ .at = at, .bytes = bytes };
}

int zsd_replan_ranges(const struct zsd_job *job, struct zsd_range **ret, uint32_t *ret_n)
{
    struct zsd_range *ranges = ranges_new(job);
    uint64_t at = replan_base(job);

    *ret = ranges;
    *ret_n = 0;
    if (!ranges)
        return -ENOMEM;
    ranges_add(ranges, ret_n, 0, at);
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        ranges_add(ranges, ret_n, at, zsd_state_bytes(s, s->state_made));
        at += zsd_state_bytes(s, s->npages);
    }
    return 0;
}

/* The engines keep memory in its place that they know. So they know what lies in front of the first
 * hole, which is nearly all: shards are placed in order. */
static uint64_t replan_used(const struct zsd_job *job)
{
    uint64_t bytes = replan_base(job);

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        bytes += zsd_state_bytes(s, s->state_made);
        if (zsd_state_is(s) && s->state_made < s->npages)
            break;
    }
    return bytes;
}

void zsd_replan_attach(struct zsd_job *job)
{
    uint64_t used = replan_used(job);

    if (used == job->replan->used_bytes)
        return;
    zsd_paths_unregister(job->core->daemon, job->memory);
    zsd_paths_register(job->core->daemon, job->memory, used);
    job->replan->used_bytes = used;
}

/* ---- memory is made, or given back */

struct replan_task {
    struct zsd_task task;
    struct zsd_job *job;
    struct zsd_range *ranges;
    uint32_t n;
    bool makes;
    uint64_t bytes;
    int rc;
};

static void memory_run(struct zsd_task *task)
{
    struct replan_task *t = zb_container_of(task, struct replan_task, task);
    uint8_t *memory = t->job->memory;

    for (uint32_t i = 0; i < t->n && t->makes && t->rc == 0; i++)
        t->rc = zsd_private_make(memory + t->ranges[i].at, t->ranges[i].bytes, true);
    for (uint32_t i = 0; i < t->n && (!t->makes || t->rc < 0); i++)
        zsd_private_drop(memory + t->ranges[i].at, t->ranges[i].bytes);
}

/* What a step leaves where is what is wanted, as far as its memory is there (R2). */
static void replan_take(struct zsd_job *job)
{
    bool early = job->early_said > 0 || job->early_inflight > 0;

    if (job->state == ZSD_STEPPING && !job->draining)
        return; /* zsd_replan_step_over() */
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t n = s->state_to < s->state_made ? s->state_to : s->state_made;
        uint32_t resident = s->planes[ZB_STATE].resident;

        if (!early || (n <= resident && s->state_next <= resident))
            s->state_next = n;
    }
}

static void memory_made(struct zsd_job *job, const struct replan_task *t)
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];

        if (t->rc == 0)
            s->state_made = s->state_booked;
        else
            s->state_booked = s->state_made;
        s->state_to = (uint32_t)zb_min_u64(s->state_to, state_most(s));
    }
    if (t->rc == 0)
        return;
    replan_unbook(job, t->bytes);
    zb_log(ZB_LOG_WARN, "replan-no-memory", "job=\"%s\" bytes=%llu", job->name,
           (unsigned long long)t->bytes);
}

static void memory_done(struct zsd_task *task)
{
    struct replan_task *t = zb_container_of(task, struct replan_task, task);
    struct zsd_job *job = t->job;

    job->replan->busy = false;
    if (t->makes) {
        memory_made(job, t);
    } else {
        job->replan->giving_bytes -= t->bytes;
        replan_unbook(job, t->bytes);
        zsd_room_changed(job->core);
    }
    if (job->state != ZSD_ENDED) {
        zsd_replan_attach(job);
        if (t->rc == 0)
            zsd_replan(job->core);
        replan_take(job);
    }
    free(t->ranges);
    free(t);
    zsd_job_unhold(job);
}

static struct replan_task *memory_new(struct zsd_job *job, bool makes)
{
    struct replan_task *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->task = (struct zsd_task){ .run = memory_run, .done = memory_done, .slow = true };
    t->job = job;
    t->makes = makes;
    t->ranges = ranges_new(job);
    if (t->ranges)
        return t;
    free(t);
    return NULL;
}

/* Starts it, if there is anything to do. */
static void memory_start(struct replan_task *t)
{
    struct zsd_job *job = t->job;

    if (t->n == 0) {
        free(t->ranges);
        free(t);
        return;
    }
    job->replan->busy = true;
    zsd_job_hold(job);
    zsd_task_start(job->core, &t->task);
}

/* Pages of state that are in memory, will be, or are wanted there. */
static uint32_t release_keep(const struct zsd_shard *s)
{
    uint32_t keep = s->planes[ZB_STATE].resident;

    keep = keep > s->state_next ? keep : s->state_next;
    return keep > s->state_to ? keep : s->state_to;
}

static bool release_any(const struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        if (release_keep(job->shards[i]) < job->shards[i]->state_booked)
            return true;
    return false;
}

/* What nobody wants or uses any more goes back. */
static void replan_release(struct zsd_job *job)
{
    struct replan_task *t;
    uint64_t at = replan_base(job);

    if (job->replan->busy || !release_any(job) || !(t = memory_new(job, false)))
        return; /* later, if there is anything */
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t keep = release_keep(s);

        if (keep < s->state_booked) {
            uint64_t from = zsd_state_bytes(s, keep),
                     bytes = zsd_state_bytes(s, s->state_made) - from;

            ranges_add(t->ranges, &t->n, at + from, bytes);
            t->bytes += bytes;
            s->state_made = s->state_booked = keep;
        }
        at += zsd_state_bytes(s, s->npages);
    }
    job->replan->giving_bytes += t->bytes;
    if (t->n > 0)
        zsd_replan_attach(job); /* before it is cut */
    memory_start(t);
}

/* It has no ranks: memory that no step has used yet goes back. */
static void replan_unused(struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t resident = s->planes[ZB_STATE].resident;

        s->state_to = s->state_to < resident ? s->state_to : resident;
    }
    replan_take(job);
    replan_release(job);
}

/* Takes at most so many bytes more. */
static void replan_grow(struct zsd_job *job, uint64_t most)
{
    struct replan_task *t = job->replan->busy ? NULL : memory_new(job, true);
    uint64_t at = replan_base(job);

    if (!t)
        return;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint64_t from = zsd_state_bytes(s, s->state_booked), to = from;

        while (zsd_state_is(s) && s->state_booked < state_cap(s) &&
               zsd_state_bytes(s, s->state_booked + 1) - from <= most)
            to = zsd_state_bytes(s, ++s->state_booked);
        s->state_to = state_most(s);
        ranges_add(t->ranges, &t->n, at + from, to - from);
        t->bytes += to - from;
        most -= to - from;
        at += zsd_state_bytes(s, s->npages);
    }
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_STATE, t->bytes);
    memory_start(t);
}

/* ---- places on the data files */

/* Streamed bytes of its state, as the account has them (R3). */
static uint64_t replan_streamed(const struct zsd_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        bytes += zsd_state_bytes(s, s->npages) - zsd_state_bytes(s, zsd_plane_low(s, ZB_STATE));
    }
    return bytes;
}

int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err)
{
    struct zsd_saved *saved = job->saved;
    struct zsd_account *held = saved ? &saved->nvme_held : &job->nvme_held;
    const uint64_t planes[ZB_PLANES] = { held->used[ZSD_USE_PARAM], job->grads_nvme_bytes,
                                         saved ? held->used[ZSD_USE_STATE] : replan_streamed(job) };
    struct zb_needs want = { 0 };
    int rc;

    if (saved && (zsd_saved_kept(saved) || saved->doubt)) {
        if (more)
            return zsd_saved_raise(saved, saved->committed, err);
        return zsd_saved_changes(saved) ? 0 : zsd_saved_reserve(saved, err);
    }
    rc = zsd_place_needs(job, 2, UINT64_MAX, &want);
    if (rc < 0)
        (void)zb_fail(err, rc, "places for job '%s': %m", job->name);
    else
        rc = zsd_nvme_promise(job->core, held, job->promise, &want, planes, err);
    zb_needs_done(&want);
    return rc;
}

/* ---- what a job does with its part */

/* Nothing of it leaves, if that was wanted. */
static void replan_stay(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    if (!job->replan->shrinks)
        return;
    job->replan->shrinks = false;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->state_to = state_most(job->shards[i]);
    replan_take(job);
    (void)zsd_replan_promise(job, false, &err);
}

/* Pages leave, the last ones first, until it has no more than `target`. */
static void replan_shrink(struct zsd_job *job, uint64_t target)
{
    uint64_t held = replan_held(job);
    bool leaves = false;
    struct zb_err err = { 0 };

    for (uint32_t i = job->nshards; i-- > 0;) {
        struct zsd_shard *s = job->shards[i];
        uint64_t all = zsd_state_bytes(s, s->state_booked);

        s->state_to = state_most(s);
        while (zsd_state_is(s) && s->state_to > 0 &&
               held - (all - zsd_state_bytes(s, s->state_to)) > target)
            s->state_to--;
        held -= all - zsd_state_bytes(s, s->state_to);
        leaves = leaves || s->state_to < s->planes[ZB_STATE].resident;
    }
    job->replan->shrinks = true;
    if (leaves && zsd_replan_promise(job, true, &err) < 0) {
        if (!job->replan->refused)
            zb_log(ZB_LOG_WARN, "replan-no-places", "job=\"%s\" why=\"%s\"", job->name, err.text);
        job->replan->refused = true;
        replan_stay(job);
        return;
    }
    job->replan->refused = false;
    replan_take(job);
}

/* `spare` is not there for it, though it is free. */
static void replan_job(struct zsd_job *job, uint64_t target, uint64_t spare, bool exact)
{
    uint64_t unused = zsd_account_free(&job->core->tiers.host);
    uint64_t held = replan_held(job), much = exact ? 0 : held / ZSD_REPLAN_LEAVE_BE;

    job->replan->target_bytes = target;
    if (held > target && held - target > much)
        replan_shrink(job, target);
    else
        replan_stay(job);
    replan_release(job);
    if (target > held && !job->replan->shrinks)
        replan_grow(job, zb_min_u64(target - held, unused > spare ? unused - spare : 0));
}

/* ---- the division */

bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns)
{
    uint64_t since = now_ns - job->replan->stepped_ns;

    if (job->replan->stepped_ns == 0)
        return true;
    return job->state != ZSD_STEPPING && since > REPLAN_IDLE_NS && since / 4 > job->replan->step_ns;
}

static uint64_t part_most(const struct zsd_job *job, uint64_t now_ns)
{
    uint64_t most = 0, others = 0;

    for (uint32_t i = 0; i < job->nshards; i++)
        most += zsd_state_bytes(job->shards[i], state_cap(job->shards[i]));
    if (job->host_bytes_max > 0) {
        for (int use = 0; use < ZSD_USES; use++)
            others += use == ZSD_USE_STATE ? 0 : job->host_held.used[use];
        others += zsd_replan_away(job);
        most = zb_min_u64(most, job->host_bytes_max > others ? job->host_bytes_max - others : 0);
    }
    if (zsd_part_idle(job, now_ns))
        most = zb_min_u64(most, replan_held(job)); /* it has no use for more */
    return most;
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

/* Divides, and lets every job do what it can at once. */
static void replan_all(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns(), fixed, moves = 0, left;
    uint64_t spare = zsd_wanted(core, NULL) + host_away(core);
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
            replan_unused(job);
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

static void replan_on_work(struct zsd_work *work)
{
    replan_all(zb_container_of(work, struct zsd_planner, replan)->core);
}

void zsd_replan(struct zsd_core *core)
{
    core->planner->replan.run = replan_on_work;
    zsd_defer(core, &core->planner->replan);
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
    end = (uint32_t)zb_min_u64(state->resident, gpu); /* the others went to the GPU */
    if (n < end) /* what could not be written stays, and what is in front of it */
        for (n = end; n > s->state_next && state->extents[n - 1].at != ZB_NO_PLACE;)
            n--;
    if (n > s->state_next || gpu > s->gpu_next)
        zb_log(ZB_LOG_WARN, "replan-failed", "job=\"%s\" unit=\"%s\" pages=%u", s->job->name,
               s->unit->name, n > s->state_next ? n - s->state_next : s->npages - gpu);
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
               "job=\"%s\" host_state=%llu nvme_state=%llu gpu_state=%llu", job->name,
               (unsigned long long)resident, (unsigned long long)(r->all_bytes - resident - gpu),
               (unsigned long long)gpu);
    }
    r->moved = false;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i]->state_to =
            (uint32_t)zb_min_u64(job->shards[i]->state_to, state_cap(job->shards[i]));
    replan_take(job);
    replan_release(job);
    zsd_gpu_step_over(job);
    zsd_replan(job->core);
}

/* ---- budgets */

/* Bytes of the host tier that are used, and will be when all has left that shall. */
static uint64_t replan_stays(const struct zsd_core *core)
{
    uint64_t bytes = zsd_account_used(&core->tiers.host);

    zb_list_each(pos, &core->jobs->list)
        bytes -= zsd_replan_leaving(zb_container_of(pos, struct zsd_job, node));
    return bytes;
}

/* When all has left that shall, is there room for everybody who waits, and for who comes back? */
static bool replan_enough(const struct zsd_core *core)
{
    return replan_stays(core) + zsd_wanted(core, NULL) + host_away(core) <= core->tiers.host_target;
}

uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->planner->wants)
    {
        const struct zsd_want *w = zb_container_of(pos, struct zsd_want, node);

        bytes += w == but ? 0 : w->bytes;
    }
    return bytes;
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

bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want)
{
    return want->bytes <= zsd_host_free(core, want);
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
        return zb_fail(
            err, -ENOSPC,
            "%s of host memory are less than what cannot move, or has nowhere to go: the "
            "least that would do is %llu",
            zb_size_text(bytes).s, (unsigned long long)stays);
    }
    zb_log(ZB_LOG_INFO, "tier-set", "tier=host bytes=%llu was=%llu used=%llu leaves=%llu",
           (unsigned long long)bytes, (unsigned long long)was,
           (unsigned long long)zsd_account_used(&core->tiers.host),
           (unsigned long long)(zsd_account_used(&core->tiers.host) - replan_stays(core)));
    return 0;
}
