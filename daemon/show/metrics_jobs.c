/*
 * metrics_jobs.c - the metrics of jobs, with the labels `job` and `uid`.
 */
#include "base/util.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/place.h"
#include "daemon/show/metrics.h"

#define SECONDS(ns) ((double)(ns) / 1e9)

/* ---- one value of each job */

static double job_ranks(const struct zsd_job *job)
{
    return job->world;
}

static double job_attached(const struct zsd_job *job)
{
    return zsd_job_attached(job);
}

static double job_iterations(const struct zsd_job *job)
{
    return (double)job->iterations;
}

static double job_applied(const struct zsd_job *job)
{
    return (double)job->applied;
}

/* What a job holds of a tier. */
static double held_bytes(const struct zsd_account *held)
{
    uint64_t sum = 0;

    for (unsigned use = 0; use < ZSD_USES; use++)
        sum += held->used[use];
    return (double)sum;
}

static double job_host_bytes(const struct zsd_job *job)
{
    return held_bytes(&job->host_held);
}

static double job_nvme_bytes(const struct zsd_job *job)
{
    return held_bytes(zsd_job_nvme(job));
}

static double job_fetched(const struct zsd_job *job)
{
    return (double)job->fetched_bytes;
}

static double job_pushed(const struct zsd_job *job)
{
    return (double)job->pushed_bytes;
}

static double job_read(const struct zsd_job *job)
{
    return (double)job->nvme_read_bytes;
}

static double job_written(const struct zsd_job *job)
{
    return (double)job->nvme_written_bytes;
}

static double job_fetches(const struct zsd_job *job)
{
    return (double)job->stats.fetches;
}

static double job_hits(const struct zsd_job *job)
{
    return (double)job->stats.hits;
}

static double job_misses(const struct zsd_job *job)
{
    return (double)job->stats.misses;
}

static double job_pushes(const struct zsd_job *job)
{
    return (double)job->stats.pushes;
}

static double job_pages(const struct zsd_job *job)
{
    return (double)job->stats.pages;
}

static double job_page_seconds(const struct zsd_job *job)
{
    return SECONDS(job->stats.page_ns);
}

static double job_compute_seconds(const struct zsd_job *job)
{
    return SECONDS(job->stats.compute_ns);
}

static double job_commits(const struct zsd_job *job)
{
    return (double)job->stats.commits.done;
}

static double job_commits_failed(const struct zsd_job *job)
{
    return (double)job->stats.commits.failed;
}

static double job_commit_failing(const struct zsd_job *job)
{
    return job->stats.commits.why.code != 0;
}

/* ---- others */

static void fill_gpu(struct zsd_metrics *m)
{
    for (unsigned i = 0; i < m->njobs; i++)
        for (unsigned g = 0; g < m->daemon->ngpus; g++) {
            const struct zsd_job *job = m->jobs[i];
            uint64_t bytes = job->gpu[g].held_bytes + job->params->on[g].booked +
                             (job->muon_gpu.g == g ? job->muon_gpu.booked : 0);

            zsd_label(zsd_sample_job(m, i, (double)bytes), "UUID", m->gpus[g]);
        }
}

static void fill_commit_time(struct zsd_metrics *m)
{
    for (unsigned i = 0; i < m->njobs; i++)
        if (m->jobs[i]->stats.commits.unix_s > 0)
            (void)zsd_sample_job(m, i, (double)m->jobs[i]->stats.commits.unix_s);
}

static void fill_waits(struct zsd_metrics *m)
{
    static const char *const causes[ZSD_WAITS] = {
        [ZSD_WAIT_FETCH_DRIVE] = "fetch_drive",
        [ZSD_WAIT_FETCH_ROOM] = "fetch_room",
        [ZSD_WAIT_FETCH_VERSION] = "fetch_version",
        [ZSD_WAIT_PUSH_TURN] = "push_turn",
        [ZSD_WAIT_PUSH_COMPUTE] = "push_compute",
        [ZSD_WAIT_STEP_RANKS] = "step_ranks",
        [ZSD_WAIT_STEP_PINS] = "step_pins",
        [ZSD_WAIT_STEP_TRAFFIC] = "step_traffic",
        [ZSD_WAIT_STEP_PAGES] = "step_pages",
        [ZSD_WAIT_COMMIT] = "commit",
        [ZSD_WAIT_READY] = "ready",
    };
    uint64_t now_ns = zb_now_ns();

    for (unsigned i = 0; i < m->njobs; i++)
        for (unsigned w = ZSD_WAIT_NONE + 1; w < ZSD_WAITS; w++) {
            struct zsd_gauge wait = m->jobs[i]->stats.waits[w];

            zsd_gauge_at(&wait, now_ns);
            zsd_label(zsd_sample_job(m, i, SECONDS(wait.area_ns)), "cause", causes[w]);
        }
}

/* ---- the table */

const struct zsd_family zsd_job_families[] = {
    { "job_ranks", ZSD_GAUGE, "", "Ranks of the job.", .job = job_ranks },
    { "job_ranks_attached", ZSD_GAUGE, "", "Ranks that are connected.", .job = job_attached },
    { "job_iterations", ZSD_GAUGE, "", "Steps, skipped ones too.", .job = job_iterations },
    { "job_steps_applied", ZSD_GAUGE, "", "Steps that changed parameters.", .job = job_applied },
    { "job_host_bytes", ZSD_GAUGE, "bytes", "Promised in the host tier.", .job = job_host_bytes },
    { "job_nvme_bytes", ZSD_GAUGE, "bytes", "Promised in the NVMe tier.", .job = job_nvme_bytes },
    { "job_gpu_bytes", ZSD_GAUGE, "bytes", "In the GPU tier.", .fill = fill_gpu },
    { "job_fetched_bytes", ZSD_COUNTER, "bytes", "Parameters fetched.", .job = job_fetched },
    { "job_pushed_bytes", ZSD_COUNTER, "bytes", "Gradients pushed.", .job = job_pushed },
    { "job_nvme_read_bytes", ZSD_COUNTER, "bytes", "Read for the job.", .job = job_read },
    { "job_nvme_written_bytes", ZSD_COUNTER, "bytes", "Written for the job.", .job = job_written },
    { "job_fetches", ZSD_COUNTER, "", "Fetch requests answered.", .job = job_fetches },
    { "job_fetch_hits", ZSD_COUNTER, "", "Shards fetched from memory.", .job = job_hits },
    { "job_fetch_misses", ZSD_COUNTER, "", "Shards that had to be read first.", .job = job_misses },
    { "job_pushes", ZSD_COUNTER, "", "Push requests answered.", .job = job_pushes },
    { "job_pages", ZSD_COUNTER, "", "Page operations that ended.", .job = job_pages },
    { "job_page_seconds", ZSD_COUNTER, "seconds", "Total time of page operations.",
      .job = job_page_seconds },
    { "job_compute_seconds", ZSD_COUNTER, "seconds", "Time of page operations on compute threads.",
      .job = job_compute_seconds },
    { "job_wait_seconds", ZSD_COUNTER, "seconds", "Time that requests waited, by cause.",
      .fill = fill_waits },
    { "job_commits", ZSD_COUNTER, "", "Commits, prepared ones too.", .job = job_commits },
    { "job_commits_failed", ZSD_COUNTER, "", "Commits that failed.", .job = job_commits_failed },
    { "job_commit_failing", ZSD_GAUGE, "", "1: the last commit failed.",
      .job = job_commit_failing },
    { "job_commit_timestamp_seconds", ZSD_GAUGE, "seconds",
      "When the last commit ended that did not fail, since the job is in memory.",
      .fill = fill_commit_time },
};

const unsigned zsd_job_nfamilies = ZB_COUNT(zsd_job_families);
