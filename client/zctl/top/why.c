/*
 * why.c - what limits the node, in words: a pure function of a view.
 *
 * RULES, the first that holds:
 *
 *     idle          no requests, and no drive or thread is busy
 *     compute       the threads are busy SATURATED of the time, and no drive is nearer to its limit
 *     gpu           the same for the threads of the GPU tier
 *     nvme-*        a drive does SATURATED of what was measured, or more
 *     rank          a step has waited LATE_MS or longer for a rank: to ask, or to release
 *     page-buffers  a drive is far from its limit, no thread is busy, and pages wait for buffers
 *     nvme-latency  a drive is busy SATURATED of the time, with too few transfers in flight
 *     commit, ring  requests wait MOST of the time for that
 *     ranks         ranks wait MOST of the time for each other, each time less than LATE_MS
 *     nvme-latency  fetches wait MOST of the time for the drive
 *     trainers      most of the time no rank of any job has a request
 *     mixed         none of these: the largest shares are named
 *
 * Saturated resources come first: a request that waits for a rank would otherwise wait for the
 * drive. With several drives or jobs the worst one is named.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "client/zctl/top/top.h"

#define SATURATED 0.85
#define MOST      0.5
#define QUIET     0.02 /* less is nothing */
#define ONE_SIDED 1.5  /* ratio of reads to writes, or writes to reads, for one direction */
#define LATE_MS   1000u
#define IN_LINE   1.0 /* pages, the mean number */

const char *top_bound_name(enum top_bound bound)
{
    static const char *const names[] = {
        [TOP_IDLE] = "idle",
        [TOP_COMPUTE] = "compute",
        [TOP_GPU] = "gpu",
        [TOP_NVME_READ] = "nvme-read",
        [TOP_NVME_WRITE] = "nvme-write",
        [TOP_NVME] = "nvme",
        [TOP_NVME_LATENCY] = "nvme-latency",
        [TOP_BUFFERS] = "page-buffers",
        [TOP_RANK] = "rank",
        [TOP_COMMIT] = "commit",
        [TOP_RING] = "ring",
        [TOP_RANKS] = "ranks",
        [TOP_TRAINERS] = "trainers",
        [TOP_MIXED] = "mixed",
    };

    return names[bound];
}

static unsigned percent(double share)
{
    return share <= 0 ? 0 : (unsigned)(100 * share + 0.5);
}

static const struct top_path *path_worst(const struct top_view *v, bool by_load)
{
    const struct top_path *worst = NULL;

    for (uint32_t i = 0; i < v->npaths; i++) {
        const struct top_path *p = &v->paths[i];

        if (!worst || (by_load ? p->load > worst->load : p->busy > worst->busy))
            worst = p;
    }
    return worst;
}

/* The job that waits most for `wait` (ZC_WAITS: for the drive alone). NULL: none does. */
static const struct top_job *job_worst(const struct top_view *v, int wait, double *ret_share)
{
    const struct top_job *worst = NULL;

    *ret_share = 0;
    for (size_t i = 0; i < v->njobs; i++) {
        double share = wait == ZC_WAITS ? v->jobs[i].drive_only : v->jobs[i].waits[wait];

        if (share > *ret_share) {
            *ret_share = share;
            worst = &v->jobs[i];
        }
    }
    return worst;
}

static void say(struct top_verdict *ret, enum top_bound bound, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void say(struct top_verdict *ret, enum top_bound bound, const char *fmt, ...)
{
    va_list ap;

    ret->bound = bound;
    va_start(ap, fmt);
    (void)vsnprintf(ret->text, sizeof(ret->text), fmt, ap);
    va_end(ap);
}

static void add(struct top_verdict *ret, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct top_verdict *ret, const char *fmt, ...)
{
    size_t len = strlen(ret->text);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(ret->text + len, sizeof(ret->text) - len, fmt, ap);
    va_end(ap);
}

/* Adds the job that waits most for the drive alone. */
static void add_drive_waits(const struct top_view *v, struct top_verdict *ret)
{
    double share;
    const struct top_job *j = job_worst(v, ZC_WAITS, &share);

    if (j && percent(share) > 0)
        add(ret, "; job '%s' only waits for it %u %% of the time", j->name, percent(share));
}

/* Adds which data file it is, if there are several. */
static void add_path(const struct top_view *v, const struct top_path *p, struct top_verdict *ret)
{
    if (v->npaths > 1)
        add(ret, " (data file %u of %u)", p->path, v->npaths);
}

/* ---- the rules */

static bool why_idle(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, false);

    for (size_t i = 0; i < v->njobs; i++)
        if (v->jobs[i].asking >= QUIET || v->jobs[i].pages_s > 0 || v->jobs[i].fetches_s > 0 ||
            v->jobs[i].pushes_s > 0 || v->jobs[i].late != ZC_LATE_NOBODY)
            return false;
    if (v->computing >= QUIET || v->gpu >= QUIET || (p && p->busy >= QUIET))
        return false;
    if (v->njobs == 0)
        say(ret, TOP_IDLE, "idle: no job is in memory");
    else
        say(ret, TOP_IDLE, "idle: none of %zu job%s has a request", v->njobs,
            v->njobs > 1 ? "s" : "");
    return true;
}

static bool why_compute(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, true);

    if (v->computing < SATURATED || v->gpu > v->computing || (p && p->load > v->computing))
        return false;
    if (v->threads == 1)
        say(ret, TOP_COMPUTE, "bound by compute: the one thread is busy %u %%",
            percent(v->computing));
    else
        say(ret, TOP_COMPUTE, "bound by compute: all %u threads are busy %u %%", v->threads,
            percent(v->computing));
    if (v->compute_line >= IN_LINE)
        add(ret, "; %.1f tasks wait for one", v->compute_line);
    return true;
}

/* GPU threads only issue work and wait for it, so their busy share is that of the GPU. */
static bool why_gpu(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, true);

    if (v->gpu < SATURATED || (p && p->load > v->gpu))
        return false;
    say(ret, TOP_GPU, "bound by the GPU: pages are stepped and copied %u %% of the time",
        percent(v->gpu));
    if (v->gpu_line >= IN_LINE)
        add(ret, "; %.1f pages wait for it", v->gpu_line);
    return true;
}

static bool why_drive(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, true);

    if (!p || p->load < SATURATED)
        return false;
    if (p->written_share >= ONE_SIDED * p->read_share)
        say(ret, TOP_NVME_WRITE, "bound by NVMe writes: %u %% of the measured %s/s",
            percent(p->written_share), zb_size_text(p->measured_written_bytes_s).s);
    else if (p->read_share >= ONE_SIDED * p->written_share)
        say(ret, TOP_NVME_READ, "bound by NVMe reads: %u %% of the measured %s/s",
            percent(p->read_share), zb_size_text(p->measured_read_bytes_s).s);
    else
        say(ret, TOP_NVME,
            "bound by NVMe: %s/s read and %s/s written, together %u %% of what was measured",
            zb_size_text(p->read_bytes_s).s, zb_size_text(p->written_bytes_s).s, percent(p->load));
    add_path(v, p, ret);
    add_drive_waits(v, ret);
    return true;
}

static bool why_rank(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_job *j = NULL;

    for (size_t i = 0; i < v->njobs; i++)
        if (v->jobs[i].late != ZC_LATE_NOBODY && v->jobs[i].late_ms >= LATE_MS &&
            (!j || v->jobs[i].late_ms > j->late_ms))
            j = &v->jobs[i];
    if (!j)
        return false;
    say(ret, TOP_RANK, "waiting for rank %u of job '%s' ", j->late_rank, j->name);
    if (j->late_pid == 0)
        add(ret, "(not attached)");
    else
        add(ret, "(process %llu)", (unsigned long long)j->late_pid);
    if (j->late_ranks > 1)
        add(ret, " and %u more", j->late_ranks - 1);
    add(ret, "%s: %.1f s",
        j->late == ZC_LATE_PINS ? ", to release what it fetched" : ", to ask for the step",
        (double)j->late_ms / 1e3);
    return true;
}

/* A drive that could do more with more transfers in flight. */
static bool why_latency(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, false);
    double in_line = 0;

    if (!p || p->busy < SATURATED)
        return false;
    for (size_t i = 0; i < v->njobs; i++)
        in_line += v->jobs[i].in_buffer;
    if (in_line >= IN_LINE && v->buffers_used >= SATURATED * v->buffers)
        say(ret, TOP_BUFFERS, "bound by page buffers: %.1f pages wait for one of %u", in_line,
            v->buffers);
    else
        say(ret, TOP_NVME_LATENCY, "bound by the latency of NVMe: %.1f transfers in flight",
            p->queue);
    add(ret, ", and the drive is busy %u %% of the time", percent(p->busy));
    if (p->load >= 0)
        add(ret, " with %u %% of what was measured", percent(p->load));
    add_path(v, p, ret);
    if (ret->bound == TOP_BUFFERS)
        add(ret, "; raise ring_bytes");
    else
        add_drive_waits(v, ret);
    return true;
}

static bool why_wait(const struct top_view *v, enum zc_wait_for wait, enum top_bound bound,
                     const char *what, struct top_verdict *ret)
{
    double share;
    const struct top_job *j = job_worst(v, wait, &share);

    if (!j || share < MOST)
        return false;
    say(ret, bound, "job '%s' waits %u %% of the time %s", j->name, percent(share), what);
    return true;
}

static bool why_trainers(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_job *most = NULL;

    for (size_t i = 0; i < v->njobs; i++)
        if (!most || v->jobs[i].asking > most->asking)
            most = &v->jobs[i];
    if (!most || most->asking >= MOST)
        return false;
    say(ret, TOP_TRAINERS, "bound by the trainers: job '%s' has no request %u %% of the time",
        most->name, percent(1 - most->asking));
    return true;
}

static void why_mixed(const struct top_view *v, struct top_verdict *ret)
{
    const struct top_path *p = path_worst(v, true);
    const struct top_job *j = NULL;
    double most = 0, share;
    int cause = 0;

    say(ret, TOP_MIXED, "no resource is at its limit: compute %u %%", percent(v->computing));
    if (v->gpu_threads > 0)
        add(ret, ", the GPU %u %%", percent(v->gpu));
    if (p && p->load >= 0)
        add(ret, ", NVMe %u %% of what was measured", percent(p->load));
    for (int i = 0; i < ZC_WAITS; i++) {
        const struct top_job *worst = job_worst(v, i, &share);

        if (worst && share > most) {
            j = worst;
            most = share;
            cause = i;
        }
    }
    if (j)
        add(ret, "; job '%s' waits most for %s, %u %% of the time", j->name, top_wait_names[cause],
            percent(most));
}

void top_why(const struct top_view *v, struct top_verdict *ret)
{
    if (!why_idle(v, ret) && !why_compute(v, ret) && !why_gpu(v, ret) && !why_drive(v, ret) &&
        !why_rank(v, ret) && !why_latency(v, ret) &&
        !why_wait(v, ZC_WAIT_COMMIT, TOP_COMMIT, "for a commit", ret) &&
        !why_wait(v, ZC_WAIT_FETCH_ROOM, TOP_RING,
                  "for room in the ring: release earlier, or give the job more host memory", ret) &&
        !why_wait(v, ZC_WAIT_STEP_RANKS, TOP_RANKS, "for its slowest rank", ret) &&
        !why_wait(v, ZC_WAIT_FETCH_DRIVE, TOP_NVME_LATENCY,
                  "for the drive, which is not busy: prefetch more", ret) &&
        !why_trainers(v, ret))
        why_mixed(v, ret);
}
