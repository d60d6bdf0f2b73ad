/*
 * plan/replan_memory.c - allocates and frees the memory of a job's state, as the job's part of the
 * host tier grows and shrinks. plan/replan.c decides the parts; it also explains the counts of a
 * shard (to, booked, made, next), and has R1 and R2.
 *
 * MODEL. A job's memory is one range of addresses: the planes that do not move, then room for all
 * of the state of all shards, in order. The first `made` pages of each shard's state have memory.
 * One task at a time (replan->busy), on a slow compute thread, allocates or frees memory:
 *
 *     grows     booked ---> [the task allocates] ---> made ---> next
 *     shrinks   made and booked decrease ---> [the task frees] ---> unbooked in the account
 *
 * If the task finds no memory, the bytes are unbooked. Memory that is being freed stays in the
 * account until it is free (replan->giving_bytes). If a task cannot be started, because one is
 * running or there is no memory for it, the next plan of the job tries again.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/disk/paths.h"
#include "daemon/plan/host.h"
#include "daemon/plan/replan_priv.h"

/* ---- the memory of a job */

void zsd_replan_begin(struct zsd_job *job)
{
    *job->replan = (struct zsd_replan){ .settled = true };
}

void zsd_replan_begin_shard(struct zsd_shard *s)
{
    s->state_to = s->state_next = s->state_made = s->state_booked = s->planes[ZB_STATE].resident;
    s->gpu_from = s->gpu_next = s->npages;
    s->job->replan->all_bytes += zsd_state_bytes(s, s->npages);
    s->job->replan->most_bytes += zsd_state_bytes(s, zsd_state_cap(s));
}

/* Whether all of the state is in memory, and stays there. */
static bool replan_whole(const struct zsd_job *job)
{
    return job->replan->settled && job->host_held.used[ZSD_USE_STATE] == job->replan->all_bytes;
}

/* The offset of the state in the job's memory. */
static uint64_t replan_base(const struct zsd_job *job)
{
    return job->memory_bytes - job->replan->all_bytes;
}

/* An array with room for one range per shard, and one more. */
static struct zsd_range *ranges_new(const struct zsd_job *job)
{
    return calloc((size_t)job->nshards + 1, sizeof(struct zsd_range));
}

/* Appends a range, or extends the last one. */
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
    bool whole = replan_whole(job);
    struct zsd_range *ranges = whole ? calloc(1, sizeof(*ranges)) : ranges_new(job);
    uint64_t at = replan_base(job);

    *ret = ranges;
    *ret_n = 0;
    if (!ranges)
        return -ENOMEM;
    ranges_add(ranges, ret_n, 0, whole ? job->memory_bytes : at);
    if (whole)
        return 0;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        ranges_add(ranges, ret_n, at, zsd_state_bytes(s, s->state_made));
        at += zsd_state_bytes(s, s->npages);
    }
    return 0;
}

/* Bytes of memory to register with the I/O engines. Registration pins memory, so it ends at the
 * first hole. That is nearly all of it, because shards are placed in order. */
static uint64_t replan_used(const struct zsd_job *job)
{
    uint64_t bytes = replan_base(job);

    if (replan_whole(job))
        return job->memory_bytes;
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

/* ---- allocating and freeing */

static void replan_unbook(struct zsd_job *job, uint64_t bytes)
{
    zsd_unbook(&job->core->tiers.host, &job->host_held, ZSD_USE_STATE, bytes);
    zsd_host_settle(job->core);
}

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

void zsd_replan_take(struct zsd_job *job)
{
    bool early = job->early_said > 0 || job->early_inflight > 0;

    if (job->replan->settled || (job->state == ZSD_STEPPING && !job->draining))
        return; /* zsd_replan_step_over() will do it */
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
        s->state_to = (uint32_t)zb_min_u64(s->state_to, zsd_state_most(s));
    }
    if (t->rc == 0)
        return;
    replan_unbook(job, t->bytes);
    zb_log(ZB_LOG_WARN, "replan-no-memory", "job=\"%s\" uid=%u bytes=%llu", job->name,
           (unsigned)job->uid, (unsigned long long)t->bytes);
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
        zsd_replan_take(job);
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

/* Starts the task, or frees it if it has no ranges. */
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

/* Number of pages of state that are in memory, will be, or are wanted there. */
static uint32_t release_keep(const struct zsd_shard *s)
{
    uint32_t keep = s->planes[ZB_STATE].resident;

    keep = keep > s->state_next ? keep : s->state_next;
    return keep > s->state_to ? keep : s->state_to;
}

/* Whether memory can be freed. Sets replan->settled, which only this function does. */
static bool release_any(struct zsd_job *job)
{
    bool same = true;

    if (job->replan->settled)
        return false;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];
        uint32_t n = s->planes[ZB_STATE].resident;

        if (release_keep(s) < s->state_booked)
            return true;
        same = same && s->state_to == n && s->state_next == n && s->state_made == n &&
               s->state_booked == n && s->gpu_from == s->npages && s->gpu_next == s->npages;
    }
    job->replan->settled = same;
    return false;
}

void zsd_replan_release(struct zsd_job *job)
{
    struct replan_task *t;
    uint64_t at = replan_base(job);

    if (job->replan->busy || !release_any(job) || !(t = memory_new(job, false)))
        return; /* nothing to do; or the next plan tries again */
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
        zsd_replan_attach(job); /* unregister the memory before it is freed */
    memory_start(t);
}

void zsd_replan_unused(struct zsd_job *job)
{
    if (job->replan->settled)
        return;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint32_t resident = s->planes[ZB_STATE].resident;

        s->state_to = s->state_to < resident ? s->state_to : resident;
    }
    zsd_replan_take(job);
    zsd_replan_release(job);
}

void zsd_replan_grow(struct zsd_job *job, uint64_t most)
{
    struct replan_task *t = job->replan->busy ? NULL : memory_new(job, true);
    uint64_t at = replan_base(job);

    if (!t)
        return;
    job->replan->settled = false;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];
        uint64_t from = zsd_state_bytes(s, s->state_booked), to = from;

        while (zsd_state_is(s) && s->state_booked < zsd_state_cap(s) &&
               zsd_state_bytes(s, s->state_booked + 1) - from <= most)
            to = zsd_state_bytes(s, ++s->state_booked);
        s->state_to = zsd_state_most(s);
        ranges_add(t->ranges, &t->n, at + from, to - from);
        t->bytes += to - from;
        most -= to - from;
        at += zsd_state_bytes(s, s->npages);
    }
    zsd_book(&job->core->tiers.host, &job->host_held, ZSD_USE_STATE, t->bytes);
    memory_start(t);
}
