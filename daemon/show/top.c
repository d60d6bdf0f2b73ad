/*
 * top.c - the data of `zctl top`: causes of waiting, the load of each resource, the oldest request.
 *
 * MODEL. Most values are counted where they change (run/stats.h). State that only the loop changes
 * is sampled here once per turn, before the loop waits. It stays the same until the next turn, so
 * the integrals are as accurate as if every change were reported. If there are very many ranks, or
 * the turn is full, each turn samples only some of the jobs, in their order.
 *
 * Loop thread only. Nothing here changes the daemon's behaviour.
 */
#include "daemon/show/top.h"

#include <errno.h>

#include "daemon/disk/paths.h"
#include "daemon/op/early.h"
#include "daemon/op/fetch.h"
#include "daemon/op/step.h"
#include "daemon/plan/place.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/run/turn.h"
#include "daemon/show/inspect.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

#define SECOND_NS  UINT64_C(1000000000)
#define TURN_LOOKS 1024u /* ranks sampled per turn */
#define TOP_ROWS   32u   /* jobs of one reply: below 64 KiB with every number at its longest */

/* ---- once a turn */

/* What ranks that have asked for a step are waiting for. */
static enum zsd_wait step_waits_for(const struct zsd_job *job)
{
    if (job->state != ZSD_STEPPING)
        return ZSD_WAIT_STEP_RANKS;
    if (job->step->committing || !job->draining)
        return job->step->committing ? ZSD_WAIT_COMMIT : ZSD_WAIT_STEP_PAGES;
    if (job->pins > 0 && !job->step->skip)
        return ZSD_WAIT_STEP_PINS;
    if (job->active > 0)
        return ZSD_WAIT_STEP_TRAFFIC;
    return zsd_early_drained(job) ? ZSD_WAIT_COMMIT : ZSD_WAIT_STEP_PAGES;
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

/* A second ends with the first turn after it. A longer interval can only lower the rate. */
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

/* Samples the next jobs, as many as the turn has room for their ranks. */
static void turn_jobs(struct zsd_core *core, uint64_t now_ns)
{
    uint64_t left = zb_min_u64(zsd_turn_left(core), TURN_LOOKS), looked = 0;
    uint32_t at = 0;

    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        uint64_t looks = zb_min_u64(job->world, TURN_LOOKS);

        if (at++ < core->scans->top_at)
            continue; /* sampled in this round already */
        if (looked + looks > left)
            break;
        looked += looks;
        turn_job(job, now_ns);
        core->scans->top_at = at;
    }
    if (at <= core->scans->top_at)
        core->scans->top_at = 0; /* the next round */
    zsd_turn_count(core, looked);
}

void zsd_top_turn(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns();

    turn_jobs(core, now_ns);
    zsd_gauge_set(&core->disk->buffers_used, core->disk->nbuffers - core->disk->nbuffers_free,
                  now_ns);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zn_stats io = zn_stats(zsd_path_engine(core->daemon, i));

        zsd_gauge_set(&core->disk->lines[i].depths, core->disk->lines[i].depth, now_ns);
        turn_second(&core->disk->lines[i].second, &io, now_ns);
    }
}

/* ---- the oldest request */

static const char *const wait_texts[ZSD_WAITS] = {
    [ZSD_WAIT_FETCH_DRIVE] = "the drive",
    [ZSD_WAIT_FETCH_ROOM] = "a place in the ring",
    [ZSD_WAIT_FETCH_VERSION] = "the step that makes its version",
    [ZSD_WAIT_PUSH_TURN] = "the push before it",
    [ZSD_WAIT_PUSH_COMPUTE] = "compute threads",
    [ZSD_WAIT_STEP_RANKS] = "other ranks",
    [ZSD_WAIT_STEP_PINS] = "ranks to release what they fetched",
    [ZSD_WAIT_STEP_TRAFFIC] = "pushes, fetches and copies to end",
    [ZSD_WAIT_STEP_PAGES] = "its pages to be stepped",
    [ZSD_WAIT_COMMIT] = "a commit",
    [ZSD_WAIT_READY] = "the other ranks, or what is brought in",
};

/* "": the request is in progress, or nothing is known beyond its method. */
static const char *req_waits_for(const struct zsd_req *req)
{
    const struct zsd_member *m = req->conn->member;
    enum zsd_wait wait = ZSD_WAIT_NONE;

    if (m && req == m->step_req)
        wait = step_waits_for(m->job);
    else if (m && req == m->ready_req)
        wait = ZSD_WAIT_READY;
    else if (m && req == m->job->commit_req)
        wait = ZSD_WAIT_COMMIT;
    else if (m && req->method == ZP_FETCH)
        wait = zsd_fetch_wait(m, req);
    return wait == ZSD_WAIT_NONE ? "" : wait_texts[wait];
}

/* The oldest request that the client of `asker` may see, except `asker` itself; or NULL. */
static const struct zsd_req *oldest_find(const struct zsd_req *asker)
{
    const struct zb_list *all = &asker->daemon->unanswered;

    if (!all->next)
        return NULL;
    zb_list_each(pos, all)
    {
        const struct zsd_req *req = zb_container_of(pos, struct zsd_req, daemon_node);

        if (req != asker && req->conn && zsd_may(asker->conn, req->conn->uid))
            return req;
    }
    return NULL;
}

static void oldest_fill(const struct zsd_req *req, uint64_t now_ns, Zp__TopOldest *ret)
{
    const struct zsd_member *m = req->conn->member;
    const struct zp_method_info *info = zp_method_info(req->method);

    zp__top_oldest__init(ret);
    ret->method = zp_str(info ? info->name : "");
    if (m) {
        ret->job = m->job->name;
        ret->rank = m->rank;
    }
    ret->pid = (uint64_t)req->conn->pid;
    ret->age_ms = now_ns > req->since_ns ? (now_ns - req->since_ns) / 1000000 : 0;
    ret->waits = zp_str(req_waits_for(req));
}

/* ---- rows */

/* Gauges of a message, with the pointers that protobuf-c needs. For waits, and for stages, of which
 * there are fewer. */
struct gauges {
    Zp__TopGauge rows[ZSD_WAITS], *list[ZSD_WAITS];
};

static Zp__TopGauge *gauge_fill(const struct zsd_gauge *from, Zp__TopGauge *to)
{
    zp__top_gauge__init(to);
    to->now = from->now;
    to->area_ns = from->area_ns;
    to->busy_ns = from->busy_ns;
    return to;
}

/* Gauges 1 to n - 1: 0 stands for no stage, or no wait. */
static void gauges_fill(const struct zsd_gauge *from, unsigned n, struct gauges *to)
{
    for (unsigned i = 1; i < n; i++)
        to->list[i - 1] = gauge_fill(&from[i], &to->rows[i - 1]);
}

struct top_row {
    Zp__TopJob job;
    Zp__TopGauge drive_only, asking;
    struct gauges stages, waits;
};

/* Fills in the ranks that a step waits for: those that have not asked, or that pin a shard. */
static void late_fill(const struct zsd_job *job, uint64_t now_ns, Zp__TopJob *row)
{
    bool asked[2] = { false }; /* some rank has not asked; some rank has */
    uint64_t since_ns = UINT64_MAX;
    enum zsd_wait wait = step_waits_for(job);

    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);
        bool late = wait == ZSD_WAIT_STEP_RANKS ? !m->step_req : !zb_list_empty(&m->pins);

        asked[m->step_req != NULL] = true;
        if (m->step_req)
            since_ns = zb_min_u64(since_ns, m->step_req->since_ns);
        if (!late)
            continue;
        if (row->late_ranks++ == 0 || m->rank < row->late_rank) {
            row->late_rank = m->rank;
            row->late_pid = m->conn ? (uint64_t)m->conn->pid : 0;
        }
    }
    if (!asked[true] || (wait != ZSD_WAIT_STEP_RANKS && wait != ZSD_WAIT_STEP_PINS)) {
        row->late_rank = row->late_ranks = 0;
        row->late_pid = 0;
        return;
    }
    row->late = wait == ZSD_WAIT_STEP_RANKS ? ZP_LATE_STEP : ZP_LATE_PINS;
    row->late_ms = now_ns > since_ns ? (now_ns - since_ns) / 1000000 : 0;
}

static void top_job(struct zsd_job *job, uint64_t now_ns, struct top_row *row)
{
    struct zsd_job_stats *s = &job->stats;
    Zp__TopJob *to = &row->job;

    zsd_job_stats_at(s, now_ns);
    zp__top_job__init(to);
    to->id = job->number;
    to->name = job->name;
    to->uid = job->uid;
    to->state = zp_str(zsd_job_state_name(job));
    to->world = job->world;
    to->attached = zsd_job_attached(job);
    to->iterations = job->iterations;
    to->applied = job->applied;
    for (int use = 0; use < ZSD_USES; use++) {
        to->host_bytes += job->host_held.used[use];
        to->nvme_bytes += zsd_job_nvme(job)->used[use];
    }
    to->fetched_bytes = job->fetched_bytes;
    to->pushed_bytes = job->pushed_bytes;
    to->nvme_read_bytes = job->nvme_read_bytes;
    to->nvme_written_bytes = job->nvme_written_bytes;
    to->fetches = s->fetches;
    to->hits = s->hits;
    to->misses = s->misses;
    to->pushes = s->pushes;
    to->pages = s->pages;
    to->page_ns = s->page_ns;
    to->compute_ns = s->compute_ns;
    gauges_fill(s->stages, ZSD_STAGES, &row->stages);
    to->n_stages = ZSD_STAGES - 1;
    to->stages = row->stages.list;
    gauges_fill(s->waits, ZSD_WAITS, &row->waits);
    to->n_waits = ZSD_WAITS - 1;
    to->waits = row->waits.list;
    to->drive_only = gauge_fill(&s->drive_only, &row->drive_only);
    to->asking = gauge_fill(&s->asking, &row->asking);
    late_fill(job, now_ns, to);
}

struct top_paths {
    Zp__TopPath rows[ZN_PATHS_MAX], *list[ZN_PATHS_MAX];
    Zp__TopGauge queues[ZN_PATHS_MAX];
};

static void top_path(struct zsd_core *core, unsigned path, uint64_t now_ns, struct top_paths *to)
{
    struct zn_stats io = zn_stats(zsd_path_engine(core->daemon, path));
    struct zsd_rates best = zsd_path_best(core, path);
    Zp__TopPath *row = to->list[path] = &to->rows[path];

    zsd_gauge_at(&core->disk->lines[path].depths, now_ns);
    zp__top_path__init(row);
    row->read_bytes = io.read_bytes;
    row->written_bytes = io.written_bytes;
    row->transfers = io.reads + io.writes + io.flushes;
    row->failed = io.failed;
    row->queue = gauge_fill(&core->disk->lines[path].depths, &to->queues[path]);
    row->depth = zn_info(zsd_path_engine(core->daemon, path))->depth;
    row->read_bytes_s = best.read;
    row->write_bytes_s = best.written;
}

/* The job in memory with the smallest number, from `number` on, that this client sees; or NULL. If
 * an ended job and its successor have the same number, the live one. */
static struct zsd_job *top_next(const struct zsd_req *req, const struct zsd_named *named,
                                uint64_t number)
{
    struct zsd_job *found = NULL;

    zb_list_each(pos, &req->daemon->core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->number < number || !zsd_job_seen(req->conn, job, named))
            continue;
        if (!found || job->number < found->number ||
            (job->number == found->number && found->state == ZSD_ENDED))
            found = job;
    }
    return found;
}

static void gauge_add(struct zsd_gauge *sum, const struct zsd_gauge *add)
{
    sum->now += add->now;
    sum->area_ns += add->area_ns;
    sum->busy_ns = zb_max_u64(sum->busy_ns, add->busy_ns);
}

/* The load of the threads of all GPUs. Returns their number. */
static uint32_t gpus_load(const struct zsd *daemon, struct zsd_gauge *waiting,
                          struct zsd_gauge *busy)
{
    uint32_t threads = 0;

    *waiting = *busy = (struct zsd_gauge){ 0 };
    for (unsigned g = 0; g < daemon->ngpus; g++) {
        struct zsd_compute *pool = zsd_gpu_threads(daemon->gpus[g]);
        struct zsd_gauge w, b;

        zsd_compute_load(pool, &w, &b);
        gauge_add(waiting, &w);
        gauge_add(busy, &b);
        threads += zsd_compute_threads(pool);
    }
    return threads;
}

/* A cursor is the number of the next job. */
ZSD_REQUEST(zsd_top, TopRequest)
{
    struct zsd *daemon = req->daemon;
    struct zsd_core *core = daemon->core;
    const struct zsd_req *oldest = q->cursor == 0 ? oldest_find(req) : NULL;
    uint64_t now_ns = zb_now_ns();
    Zp__TopReply reply = ZP__TOP_REPLY__INIT;
    Zp__TopJob *jobs[TOP_ROWS];
    Zp__TopGauge computing, line, buffers, gpu, gpu_line;
    Zp__TopOldest oldest_row;
    struct zsd_gauge waiting, busy, gpu_waiting, gpu_busy;
    struct zsd_tier_rows tiers;
    struct top_row rows[TOP_ROWS];
    struct top_paths paths;
    struct zsd_named named;
    struct zb_err err = { 0 };
    struct zsd_job *job;

    if (zsd_job_named(req, q->owner, q->job, &named, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (q->job[0] != '\0' && q->cursor == 0 && !top_next(req, &named, 0)) {
        zsd_refuse(req, -ENOENT, "there is no job '%s' in memory", q->job);
        return;
    }
    zsd_compute_load(daemon->compute, &waiting, &busy);
    zsd_gauge_at(&core->disk->buffers_used, now_ns);
    zsd_tier_rows(daemon, &tiers);
    reply.now_ns = now_ns;
    reply.uptime_ms = (now_ns - daemon->started_ns) / 1000000;
    reply.clients = daemon->clients;
    reply.threads = zsd_compute_threads(daemon->compute);
    reply.computing = gauge_fill(&busy, &computing);
    reply.compute_line = gauge_fill(&waiting, &line);
    reply.buffers = core->disk->nbuffers;
    reply.buffers_used = gauge_fill(&core->disk->buffers_used, &buffers);
    if (daemon->ngpus > 0) {
        reply.gpu_threads = gpus_load(daemon, &gpu_waiting, &gpu_busy);
        reply.gpu = gauge_fill(&gpu_busy, &gpu);
        reply.gpu_line = gauge_fill(&gpu_waiting, &gpu_line);
    }
    reply.n_tiers = tiers.n;
    reply.tiers = tiers.list;
    for (unsigned i = 0; i < zsd_paths(daemon); i++)
        top_path(core, i, now_ns, &paths);
    reply.n_paths = zsd_paths(daemon);
    reply.paths = paths.list;
    if (oldest) {
        oldest_fill(oldest, now_ns, &oldest_row);
        reply.oldest = &oldest_row;
    }
    for (uint64_t at = q->cursor; (job = top_next(req, &named, at)) != NULL; at = job->number + 1) {
        if (reply.n_jobs == TOP_ROWS) {
            reply.cursor = job->number;
            break;
        }
        jobs[reply.n_jobs] = &rows[reply.n_jobs].job;
        top_job(job, now_ns, &rows[reply.n_jobs++]);
    }
    reply.jobs = jobs;
    zsd_reply(req, &reply.base, -1);
}
