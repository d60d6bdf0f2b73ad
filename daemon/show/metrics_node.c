/*
 * metrics_node.c - the metrics of the daemon: its state, loop, tiers, drives and saved data.
 */
#include <stdio.h>

#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/show/inspect.h"
#include "daemon/show/metrics.h"
#include "daemon/show/scans.h"
#include "daemon/show/scrub.h"
#include "daemon/store/store.h"

#define SECONDS(ns) ((double)(ns) / 1e9)

/* ---- the daemon */

static void fill_build(struct zsd_metrics *m)
{
    Zp__MetricSample *s = zsd_sample(m, 1);

    zsd_label(s, "version", ZSHARD_VERSION);
    zsd_label(s, "kernels", m->daemon->kernels->name);
    zsd_label(s, "io", m->daemon->engine ? zn_info(m->daemon->engine)->io : "none");
}

static double node_uptime(const struct zsd *daemon)
{
    return SECONDS(zb_now_ns() - daemon->started_ns);
}

static void fill_degraded(struct zsd_metrics *m)
{
    (void)zsd_sample(m, m->health->errors > 0);
}

static void fill_reasons(struct zsd_metrics *m)
{
    for (unsigned i = 0; i < ZSD_REASONS; i++)
        zsd_label(zsd_sample(m, m->health->reasons[i].level), "id", m->health->reasons[i].id);
}

static void fill_files(struct zsd_metrics *m)
{
    (void)zsd_sample(m, (double)m->health->facts.files);
}

static void fill_files_max(struct zsd_metrics *m)
{
    (void)zsd_sample(m, (double)m->health->facts.files_max);
}

static void fill_filesystem(struct zsd_metrics *m)
{
    if (m->health->facts.filesystem_known)
        (void)zsd_sample(m, (double)m->health->facts.filesystem_left);
}

static void fill_memory(struct zsd_metrics *m)
{
    (void)zsd_sample(m, (double)m->health->facts.host_left);
}

static void fill_device(struct zsd_metrics *m)
{
    for (unsigned i = 0; i < zsd_paths(m->daemon); i++)
        if (m->health->facts.drives[i].device_known)
            zsd_label(zsd_sample(m, (double)m->health->facts.drives[i].device_written), "path",
                      m->paths[i]);
}

static double node_clients(const struct zsd *daemon)
{
    return daemon->clients;
}

static double node_clients_max(const struct zsd *daemon)
{
    return daemon->config.clients_max;
}

static double node_operations(const struct zsd *daemon)
{
    return daemon->core->in_progress;
}

static void fill_jobs(struct zsd_metrics *m)
{
    static const char *const names[] = {
        [ZSD_DEFINING] = "defining", [ZSD_PLACING] = "placing",   [ZSD_LOADING] = "loading",
        [ZSD_READY] = "ready",       [ZSD_STEPPING] = "stepping", [ZSD_ENDED] = "failed"
    };
    const struct zsd_core *core = m->daemon->core;
    unsigned counts[ZB_COUNT(names)] = { 0 };

    zb_list_each(pos, &core->jobs->list)
        counts[zb_container_of(pos, struct zsd_job, node)->state]++;
    for (unsigned i = 0; i < ZB_COUNT(names); i++)
        zsd_label(zsd_sample(m, counts[i]), "state", names[i]);
    zsd_label(zsd_sample(m, zsd_health_saved(core)), "state", "saved");
}

static double node_turn_max(const struct zsd *daemon)
{
    return SECONDS(daemon->stats.turn_max_ns);
}

/* ---- tiers, compute threads, GPU */

/* Samples of a GPU's tier have its UUID: the name of the tier is the same for all GPUs. */
static Zp__MetricSample *sample_tier(struct zsd_metrics *m, unsigned tier, uint64_t bytes)
{
    static const char *const names[ZSD_TIERS_LOWER] = { "host", "nvme" };
    Zp__MetricSample *s = zsd_sample(m, (double)bytes);

    zsd_label(s, "tier", tier < ZSD_TIERS_LOWER ? names[tier] : "gpu");
    if (tier >= ZSD_TIERS_LOWER)
        zsd_label(s, "UUID", m->gpus[tier - ZSD_TIERS_LOWER]);
    return s;
}

static unsigned tiers_of(const struct zsd_metrics *m, const struct zsd_account *ret[ZSD_TIERS_MAX])
{
    const struct zsd_tiers *t = &m->daemon->core->tiers;

    ret[0] = &t->host;
    ret[1] = &t->nvme;
    for (unsigned g = 0; g < m->daemon->ngpus; g++)
        ret[ZSD_TIERS_LOWER + g] = &t->gpus[g].account;
    return ZSD_TIERS_LOWER + m->daemon->ngpus;
}

static void fill_budget(struct zsd_metrics *m)
{
    const struct zsd_account *tiers[ZSD_TIERS_MAX];

    for (unsigned i = 0, n = tiers_of(m, tiers); i < n; i++)
        (void)sample_tier(m, i, tiers[i]->budget);
}

static void fill_used(struct zsd_metrics *m)
{
    static const char *const uses[ZSD_USES] = { [ZSD_USE_PARAM] = "params",
                                                [ZSD_USE_GRAD] = "grads",
                                                [ZSD_USE_STATE] = "state",
                                                [ZSD_USE_STAGING] = "staging",
                                                [ZSD_USE_RING] = "rings" };
    const struct zsd_account *tiers[ZSD_TIERS_MAX];

    for (unsigned i = 0, n = tiers_of(m, tiers); i < n; i++)
        for (unsigned use = 0; use < ZSD_USES; use++)
            zsd_label(sample_tier(m, i, tiers[i]->used[use]), "use", uses[use]);
}

static double node_buffers(const struct zsd *daemon)
{
    return daemon->core->disk->nbuffers;
}

static double node_buffers_free(const struct zsd *daemon)
{
    return daemon->core->disk->nbuffers_free;
}

static double node_threads(const struct zsd *daemon)
{
    return zsd_compute_threads(daemon->compute);
}

static double node_compute_busy(const struct zsd *daemon)
{
    struct zsd_gauge waiting, busy;

    zsd_compute_load(daemon->compute, &waiting, &busy);
    return SECONDS(busy.area_ns);
}

static double node_compute_waiting(const struct zsd *daemon)
{
    struct zsd_gauge waiting, busy;

    zsd_compute_load(daemon->compute, &waiting, &busy);
    return SECONDS(waiting.area_ns);
}

static void fill_gpu(struct zsd_metrics *m)
{
    for (unsigned g = 0; g < m->daemon->ngpus; g++) {
        const struct zk_gpu_info *info = zk_gpu_info(zsd_gpu_device(m->daemon->gpus[g]));
        Zp__MetricSample *s = zsd_sample(m, 1);

        zsd_label(s, "UUID", m->gpus[g]);
        zsd_label(s, "backend", info->backend);
        zsd_label(s, "device", info->name);
        zsd_label(s, "node", m->nodes[g]);
    }
}

static void fill_gpu_busy(struct zsd_metrics *m)
{
    for (unsigned g = 0; g < m->daemon->ngpus; g++) {
        struct zsd_gauge waiting, busy;

        zsd_compute_load(zsd_gpu_threads(m->daemon->gpus[g]), &waiting, &busy);
        zsd_label(zsd_sample(m, SECONDS(busy.area_ns)), "UUID", m->gpus[g]);
    }
}

/* ---- data files */

static double path_read_bytes(struct zsd *daemon, unsigned path)
{
    return (double)zn_stats(zsd_path_engine(daemon, path)).read_bytes;
}

static double path_written_bytes(struct zsd *daemon, unsigned path)
{
    return (double)zn_stats(zsd_path_engine(daemon, path)).written_bytes;
}

static double path_failures(struct zsd *daemon, unsigned path)
{
    return (double)zn_stats(zsd_path_engine(daemon, path)).failed;
}

static double path_speed(struct zsd *daemon, unsigned path)
{
    return (double)zsd_drive_rate(daemon->core, path);
}

static double path_held(struct zsd *daemon, unsigned path)
{
    return (double)daemon->core->disk->lines[path].drive.held_bytes;
}

static double path_discarded(struct zsd *daemon, unsigned path)
{
    return (double)daemon->core->disk->lines[path].discard.discarded_bytes;
}

static double path_holed(struct zsd *daemon, unsigned path)
{
    return (double)zsd_discard_holed_bytes(daemon->core, path);
}

static double path_drained(struct zsd *daemon, unsigned path)
{
    return zsd_path_drained(daemon->core, path);
}

static double path_waits(struct zsd *daemon, unsigned path)
{
    return SECONDS(zsd_drive_waits_ns(daemon->core, path, zb_now_ns()));
}

static double path_short(struct zsd *daemon, unsigned path)
{
    return (double)zn_stats(zsd_path_engine(daemon, path)).short_transfers;
}

static double path_inflight(struct zsd *daemon, unsigned path)
{
    return zn_stats(zsd_path_engine(daemon, path)).inflight;
}

static struct zsd_gauge path_depths(struct zsd *daemon, unsigned path)
{
    struct zsd_gauge *g = &daemon->core->disk->lines[path].depths;

    zsd_gauge_at(g, zb_now_ns());
    return *g;
}

static double path_queue(struct zsd *daemon, unsigned path)
{
    return SECONDS(path_depths(daemon, path).area_ns);
}

static double path_busy(struct zsd *daemon, unsigned path)
{
    return SECONDS(path_depths(daemon, path).busy_ns);
}

static void path_ops(struct zsd_metrics *m, bool seconds)
{
    static const char *const ops[] = {
        [ZSD_TIME_READ] = "read", [ZSD_TIME_WRITE] = "write", [ZSD_TIME_FLUSH] = "flush"
    };

    for (unsigned i = 0; i < zsd_paths(m->daemon); i++) {
        const struct zn_stats io = zn_stats(zsd_path_engine(m->daemon, i));
        const uint64_t counts[] = { io.reads, io.writes, io.flushes };

        for (unsigned op = 0; op < ZB_COUNT(ops); op++) {
            uint64_t spent_ns = m->daemon->core->disk->lines[i].spent_ns[op];
            Zp__MetricSample *s = zsd_sample(m, seconds ? SECONDS(spent_ns) : (double)counts[op]);

            zsd_label(s, "path", m->paths[i]);
            zsd_label(s, "op", ops[op]);
        }
    }
}

static void fill_transfers(struct zsd_metrics *m)
{
    path_ops(m, false);
}

static void fill_transfer_time(struct zsd_metrics *m)
{
    path_ops(m, true);
}

/* ---- saved data */

static double node_scrub_running(const struct zsd *daemon)
{
    return zsd_scrub_running(daemon->core);
}

static void fill_scrub_time(struct zsd_metrics *m)
{
    const struct zsd_scrubbed *s = &m->daemon->core->scans->scrubbed;

    if (s->unix_s > 0)
        (void)zsd_sample(m, (double)s->unix_s);
}

/* ---- the table */

/* First those of the system, which only the first part has. */
const struct zsd_family zsd_node_families[] = {
    { "degraded", ZSD_GAUGE, "", "1: there is an error: zctl status names it.",
      .fill = fill_degraded },
    { "reason_level", ZSD_GAUGE, "", "Reasons of zctl status: 0 none, 1 advice, 2 error.",
      .fill = fill_reasons },
    { "open_files", ZSD_GAUGE, "", "Open descriptors.", .fill = fill_files },
    { "open_files_max", ZSD_GAUGE, "", "Limit of descriptors.", .fill = fill_files_max },
    { "data_filesystem_free_bytes", ZSD_GAUGE, "bytes",
      "Free space of the data directory's file system.", .fill = fill_filesystem },
    { "memory_available_bytes", ZSD_GAUGE, "bytes", "Memory that the daemon can still take.",
      .fill = fill_memory },
    { "path_device_written_bytes", ZSD_COUNTER, "bytes",
      "Bytes that the block device of a data file has written, for everybody.",
      .fill = fill_device },
    { "build", ZSD_INFO, "", "Version, kernels and I/O engine.", .fill = fill_build },
    { "uptime_seconds", ZSD_GAUGE, "seconds", "Time since the start.", .node = node_uptime },
    { "clients", ZSD_GAUGE, "", "Connected clients.", .node = node_clients },
    { "clients_max", ZSD_GAUGE, "", "The option clients_max.", .node = node_clients_max },
    { "jobs", ZSD_GAUGE, "", "Jobs of all users, by state.", .fill = fill_jobs },
    { "operations", ZSD_GAUGE, "", "Operations in progress.", .node = node_operations },
    { "clients_accepted", ZSD_COUNTER, "", "Connections accepted.", ZSD_STAT(clients_accepted) },
    { "clients_refused", ZSD_COUNTER, "", "Connections refused.", ZSD_STAT(clients_refused) },
    { "clients_dropped", ZSD_COUNTER, "", "Connections closed by the daemon.",
      ZSD_STAT(clients_dropped) },
    { "requests", ZSD_COUNTER, "", "Requests and one-way messages.", ZSD_STAT(requests) },
    { "requests_malformed", ZSD_COUNTER, "", "Requests that could not be decoded.",
      ZSD_STAT(requests_malformed) },
    { "requests_unknown", ZSD_COUNTER, "", "Requests of an unknown method.",
      ZSD_STAT(requests_unknown) },
    { "replies_failed", ZSD_COUNTER, "", "Answers with an error.", ZSD_STAT(replies_failed) },
    { "replies_lost", ZSD_COUNTER, "", "Answers to clients that had gone.",
      ZSD_STAT(replies_lost) },
    { "send_stalls", ZSD_COUNTER, "", "Times that a client did not read its answers.",
      ZSD_STAT(sent_stalls) },
    { "log_lines_dropped", ZSD_COUNTER, "", "Log lines about clients that were left out.",
      ZSD_STAT(log_lines_dropped) },
    { "turns", ZSD_COUNTER, "", "Turns of the loop.", ZSD_STAT(turns) },
    { "turn_longest_seconds", ZSD_GAUGE, "seconds", "CPU time of the longest turn since the start.",
      .node = node_turn_max },
    { "turn_cpu_seconds", ZSD_HISTOGRAM, "seconds", "CPU time of turns of the loop.",
      ZSD_TIMES_OF(TURN_CPU) },
    { "turn_seconds", ZSD_HISTOGRAM, "seconds", "Elapsed time of turns, without waiting.",
      ZSD_TIMES_OF(TURN_WALL) },
    { "tier_budget_bytes", ZSD_GAUGE, "bytes", "Size of a tier.", .fill = fill_budget },
    { "tier_used_bytes", ZSD_GAUGE, "bytes", "Promised bytes of a tier, by use.",
      .fill = fill_used },
    { "page_buffers", ZSD_GAUGE, "", "Page buffers.", .node = node_buffers },
    { "page_buffers_free", ZSD_GAUGE, "", "Free page buffers.", .node = node_buffers_free },
    { "compute_threads", ZSD_GAUGE, "", "Compute threads.", .node = node_threads },
    { "compute_busy_seconds", ZSD_COUNTER, "seconds", "Time of tasks on compute threads.",
      .node = node_compute_busy },
    { "compute_queue_seconds", ZSD_COUNTER, "seconds", "Time that tasks waited for a thread.",
      .node = node_compute_waiting },
    { "gpu", ZSD_INFO, "", "The devices of the GPU tiers.", .fill = fill_gpu },
    { "gpu_busy_seconds", ZSD_COUNTER, "seconds", "Time of page operations on the GPU.",
      .fill = fill_gpu_busy },
    { "path_read_bytes", ZSD_COUNTER, "bytes", "Bytes read from a data file.",
      .path = path_read_bytes },
    { "path_written_bytes", ZSD_COUNTER, "bytes", "Bytes written to a data file.",
      .path = path_written_bytes },
    { "path_transfers", ZSD_COUNTER, "", "Transfers of a data file, by kind.",
      .fill = fill_transfers },
    { "path_transfer_seconds", ZSD_COUNTER, "seconds", "Total time of these transfers.",
      .fill = fill_transfer_time },
    { "path_failures", ZSD_COUNTER, "", "Transfers that failed.", .path = path_failures },
    { "path_short_transfers", ZSD_COUNTER, "", "Transfers that were made in parts.",
      .path = path_short },
    { "path_speed_bytes", ZSD_GAUGE, "bytes", "Measured speed of a drive, in bytes per second.",
      .path = path_speed },
    { "path_held_bytes", ZSD_GAUGE, "bytes", "Pages on a data file.", .path = path_held },
    { "path_discarded_bytes", ZSD_COUNTER, "bytes",
      "Free bytes of a data file that were discarded.", .path = path_discarded },
    { "path_discard_holed_bytes", ZSD_GAUGE, "bytes",
      "Bytes of a data file whose space others took during a discard.", .path = path_holed },
    { "path_drained", ZSD_GAUGE, "", "1: nothing new is placed on a data file.",
      .path = path_drained },
    { "path_stall_seconds", ZSD_GAUGE, "seconds",
      "How long no transfer has ended, although there are some.", .path = path_waits },
    { "path_inflight", ZSD_GAUGE, "", "Transfers at the drive.", .path = path_inflight },
    { "path_queue_seconds", ZSD_COUNTER, "seconds",
      "Time that transfers were in the queue or at the drive.", .path = path_queue },
    { "path_busy_seconds", ZSD_COUNTER, "seconds", "Time in which there were transfers.",
      .path = path_busy },
    { "read_seconds", ZSD_HISTOGRAM, "seconds", "Time of a read at the drive.",
      ZSD_TIMES_OF(READ) },
    { "write_seconds", ZSD_HISTOGRAM, "seconds", "Time of a write at the drive.",
      ZSD_TIMES_OF(WRITE) },
    { "flush_seconds", ZSD_HISTOGRAM, "seconds", "Time of a flush at the drive.",
      ZSD_TIMES_OF(FLUSH) },
    { "fetch_wait_seconds", ZSD_HISTOGRAM, "seconds", "Time from a fetch to its answer.",
      ZSD_TIMES_OF(FETCH) },
    { "commit_seconds", ZSD_HISTOGRAM, "seconds", "Time of a commit until it is durable.",
      ZSD_TIMES_OF(COMMIT) },
    { "commits", ZSD_COUNTER, "", "Commits of jobs, prepared ones too.", ZSD_STAT(commits) },
    { "commits_failed", ZSD_COUNTER, "", "Commits that failed.", ZSD_STAT(commits_failed) },
    { "catalog_changes", ZSD_COUNTER, "", "Changes that the catalog saved.",
      ZSD_STAT(catalog_changes) },
    { "catalog_failures", ZSD_COUNTER, "", "Changes that could not be written.",
      ZSD_STAT(catalog_failed) },
    { "near_bytes", ZSD_COUNTER, "bytes", "Host memory that was placed on the node of a GPU.",
      ZSD_STAT(near_bytes) },
    { "near_refused_bytes", ZSD_COUNTER, "bytes", "That the kernel did not place there.",
      ZSD_STAT(near_refused_bytes) },
    { "write_holds", ZSD_COUNTER, "", "Pauses of page writes for the catalog.",
      ZSD_STAT(write_holds) },
    { "write_hold_seconds", ZSD_COUNTER, "seconds", "Their total length.", ZSD_STAT(write_hold_us),
      .scale = 1e-6 },
    { "pages_corrupt", ZSD_COUNTER, "", "Pages that were corrupt when read.",
      ZSD_STAT(pages_corrupt) },
    { "pages_early", ZSD_COUNTER, "", "Pages stepped ahead of the barrier.",
      ZSD_STAT(pages_early) },
    { "pages_undone", ZSD_COUNTER, "", "Of these, pages whose result was dropped.",
      ZSD_STAT(pages_undone) },
    { "muon_pages_ahead", ZSD_COUNTER, "",
      "Pages of Muon begun before earlier matrices were orthogonalized.",
      ZSD_STAT(muon_pages_ahead) },
    { "pages_elsewhere", ZSD_COUNTER, "", "Pages written to another drive, after a failure.",
      ZSD_STAT(pages_elsewhere) },
    { "releases_bad", ZSD_COUNTER, "", "Releases of what was not fetched.",
      ZSD_STAT(releases_bad) },
    { "scrub_running", ZSD_GAUGE, "", "1: a scrub runs.", .node = node_scrub_running },
    { "scrub_read_bytes", ZSD_COUNTER, "bytes", "Saved pages read by scrubs.",
      ZSD_STAT(scrub_bytes) },
    { "scrub_bad_pages", ZSD_COUNTER, "", "Bad pages found by scrubs.", ZSD_STAT(scrub_bad_pages) },
    { "scrub_timestamp_seconds", ZSD_GAUGE, "seconds",
      "When the last complete scrub ended, since the start.", .fill = fill_scrub_time },
};

const unsigned zsd_node_nfamilies = ZB_COUNT(zsd_node_families);
