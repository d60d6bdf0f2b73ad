/*
 * view.c - computes a view from two samples of the daemon's counters.
 *
 * A pure function: no clock, no daemon. Times are the daemon's; each job's row has its own. A job
 * that is new, or whose counters are lower than before, counts from zero: it came into memory
 * meanwhile.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zctl/top/top.h"

const char *const top_wait_names[ZC_WAITS] = {
    [ZC_WAIT_FETCH_DRIVE] = "fetch_drive",
    [ZC_WAIT_FETCH_ROOM] = "fetch_room",
    [ZC_WAIT_FETCH_VERSION] = "fetch_version",
    [ZC_WAIT_PUSH_TURN] = "push_turn",
    [ZC_WAIT_PUSH_COMPUTE] = "push_compute",
    [ZC_WAIT_STEP_RANKS] = "step_ranks",
    [ZC_WAIT_STEP_PINS] = "step_pins",
    [ZC_WAIT_STEP_TRAFFIC] = "step_traffic",
    [ZC_WAIT_STEP_PAGES] = "step_pages",
    [ZC_WAIT_COMMIT] = "commit",
    [ZC_WAIT_READY] = "ready",
};

/** a - b, or a if the counter restarted. */
static double less(uint64_t a, uint64_t b)
{
    return (double)(a >= b ? a - b : a);
}

static double over(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static uint64_t rate(uint64_t to, uint64_t from, double ns)
{
    return (uint64_t)over(1e9 * less(to, from), ns);
}

static double mean(const struct zc_gauge *to, const struct zc_gauge *from, double ns)
{
    return over(less(to->area_ns, from->area_ns), ns);
}

static double busy(const struct zc_gauge *to, const struct zc_gauge *from, double ns)
{
    double share = over(less(to->busy_ns, from->busy_ns), ns);

    return share < 1 ? share : 1;
}

static double share_of(uint64_t rate_s, uint64_t measured_s)
{
    double share = over((double)rate_s, (double)measured_s);

    if (measured_s == 0)
        return -1;
    return share < 1 ? share : 1;
}

static void view_path(const struct zc_top_path *from, const struct zc_top_path *to, double ns,
                      struct top_path *p)
{
    p->read_bytes_s = rate(to->read_bytes, from->read_bytes, ns);
    p->written_bytes_s = rate(to->written_bytes, from->written_bytes, ns);
    p->measured_read_bytes_s = to->read_bytes_s;
    p->measured_written_bytes_s = to->write_bytes_s;
    p->read_share = share_of(p->read_bytes_s, to->read_bytes_s);
    p->written_share = share_of(p->written_bytes_s, to->write_bytes_s);
    p->load = p->read_share < 0 || p->written_share < 0 ? -1 : p->read_share + p->written_share;
    p->load = p->load < 1 ? p->load : 1;
    p->busy = busy(&to->queue, &from->queue, ns);
    p->queue = mean(&to->queue, &from->queue, ns);
    p->latency_us = over(less(to->queue.area_ns, from->queue.area_ns) / 1e3,
                         less(to->transfers, from->transfers));
    p->depth = to->depth;
    p->failed = to->failed;
}

/* Data files on one device are compared with it together. */
static void view_device(const struct top_sample *from, const struct top_sample *to, uint32_t path,
                        struct top_path *p)
{
    const struct zctl_device *a = &from->devices[path], *b = &to->devices[path];
    double ours = 0;

    for (uint32_t i = 0; i < to->node.npaths; i++)
        if (strcmp(to->devices[i].name, b->name) == 0)
            ours += less(to->node.paths[i].written_bytes, from->node.paths[i].written_bytes);
    p->device_over_ours = zctl_device_over(a->known && b->known && strcmp(a->name, b->name) == 0,
                                           b->written_bytes - a->written_bytes, (uint64_t)ours);
    p->wear = b->name[0] ? b->wear : -1;
}

static void view_job(const struct zc_top_job *from, const struct zc_top_job *to, double ns,
                     struct top_job *j)
{
    double hits = less(to->hits, from->hits), misses = less(to->misses, from->misses);
    double pages = less(to->pages, from->pages);
    double in[ZC_PAGE_PLACES];

    (void)snprintf(j->name, sizeof(j->name), "%s", to->name);
    (void)snprintf(j->state, sizeof(j->state), "%s", to->state);
    j->uid = to->uid;
    j->world = to->world;
    j->attached = to->attached;
    j->iterations = to->iterations;
    j->applied = to->applied;
    j->steps_s = over(1e9 * less(to->iterations, from->iterations), ns);
    j->host_bytes = to->host_bytes;
    j->nvme_bytes = to->nvme_bytes;
    j->nvme_read_bytes_s = rate(to->nvme_read_bytes, from->nvme_read_bytes, ns);
    j->nvme_written_bytes_s = rate(to->nvme_written_bytes, from->nvme_written_bytes, ns);
    j->fetched_bytes_s = rate(to->fetched_bytes, from->fetched_bytes, ns);
    j->pushed_bytes_s = rate(to->pushed_bytes, from->pushed_bytes, ns);
    j->fetches_s = over(1e9 * less(to->fetches, from->fetches), ns);
    j->pushes_s = over(1e9 * less(to->pushes, from->pushes), ns);
    j->pages_s = over(1e9 * pages, ns);
    j->hit_ratio = hits + misses > 0 ? hits / (hits + misses) : -1;
    for (int i = 0; i < ZC_PAGE_PLACES; i++)
        in[i] = mean(&to->stages[i], &from->stages[i], ns);
    j->in_buffer = in[ZC_PAGE_BUFFER];
    j->in_read = in[ZC_PAGE_READ];
    j->in_compute = in[ZC_PAGE_COMPUTE];
    j->in_write = in[ZC_PAGE_WRITE];
    j->in_gpu = in[ZC_PAGE_GPU];
    j->page_ms = over(less(to->page_ns, from->page_ns) / 1e6, pages);
    j->compute_ms = over(less(to->compute_ns, from->compute_ns) / 1e6, pages);
    j->drive_only = busy(&to->drive_only, &from->drive_only, ns);
    j->asking = busy(&to->asking, &from->asking, ns);
    for (int i = 0; i < ZC_WAITS; i++)
        j->waits[i] = busy(&to->waits[i], &from->waits[i], ns);
    j->late = to->late;
    j->late_ranks = to->late_ranks;
    j->late_rank = to->late_rank;
    j->late_pid = to->late_pid;
    j->late_ms = to->late_ms;
}

/** Adds the causes that requests waited for in this interval, or wait for now. */
static void view_stalls(const struct zc_top_job *from, const struct zc_top_job *to,
                        const struct top_job *j, struct top_view *v)
{
    for (int i = 0; i < ZC_WAITS; i++) {
        double ns = less(to->waits[i].area_ns, from->waits[i].area_ns);
        struct top_stall *s = &v->stalls[v->nstalls];

        if (ns <= 0 && to->waits[i].now == 0)
            continue;
        v->nstalls++;
        (void)snprintf(s->job, sizeof(s->job), "%s", to->name);
        (void)snprintf(s->cause, sizeof(s->cause), "%s", top_wait_names[i]);
        s->now = to->waits[i].now;
        s->share = j->waits[i];
        s->seconds = ns / 1e9;
        s->total_s = (double)to->waits[i].area_ns / 1e9;
    }
}

/** The job's row in the earlier sample, or zeros at the time of that sample. */
static struct zc_top_job job_before(const struct top_sample *from, const struct zc_top_job *job)
{
    struct zc_top_job none = { .now_ns = from->node.now_ns };

    for (size_t i = 0; i < from->njobs; i++) {
        const struct zc_top_job *f = &from->jobs[i];

        if (f->id == job->id && f->pages <= job->pages && f->fetches <= job->fetches &&
            f->asking.area_ns <= job->asking.area_ns)
            return *f;
    }
    return none;
}

int top_view_make(const struct top_sample *from, const struct top_sample *to, struct top_view *ret)
{
    const struct zc_top *a = &from->node, *b = &to->node;
    double ns = less(b->now_ns, a->now_ns);

    *ret = (struct top_view){
        .interval_s = ns / 1e9,
        .uptime_ms = b->uptime_ms,
        .clients = b->clients,
        .threads = b->threads,
        .buffers = b->buffers,
        .computing = over(mean(&b->computing, &a->computing, ns), b->threads),
        .compute_line = mean(&b->compute_line, &a->compute_line, ns),
        .gpu_threads = b->gpu_threads,
        .gpu = over(mean(&b->gpu, &a->gpu, ns), b->gpu_threads),
        .gpu_line = mean(&b->gpu_line, &a->gpu_line, ns),
        .buffers_used = mean(&b->buffers_used, &a->buffers_used, ns),
        .ntiers = b->ntiers,
        .npaths = b->npaths,
        .oldest = b->oldest,
    };
    memcpy(ret->tiers, b->tiers, sizeof(ret->tiers));
    for (uint32_t i = 0; i < b->npaths; i++) {
        ret->paths[i].path = i + 1;
        view_path(&a->paths[i], &b->paths[i], ns, &ret->paths[i]);
        view_device(from, to, i, &ret->paths[i]);
    }
    ret->jobs = calloc(to->njobs + 1, sizeof(*ret->jobs));
    ret->stalls = calloc(to->njobs * ZC_WAITS + 1, sizeof(*ret->stalls));
    if (!ret->jobs || !ret->stalls) {
        top_view_done(ret);
        return -ENOMEM;
    }
    for (size_t i = 0; i < to->njobs; i++) {
        struct zc_top_job before = job_before(from, &to->jobs[i]);

        view_job(&before, &to->jobs[i], less(to->jobs[i].now_ns, before.now_ns), &ret->jobs[i]);
        view_stalls(&before, &to->jobs[i], &ret->jobs[i], ret);
    }
    ret->njobs = to->njobs;
    return 0;
}

void top_view_done(struct top_view *v)
{
    free(v->jobs);
    free(v->stalls);
    v->jobs = NULL;
    v->stalls = NULL;
    v->njobs = v->nstalls = 0;
}
