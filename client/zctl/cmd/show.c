/*
 * show.c - ls, jobs, tiers, stat: tables of the daemon's objects. Details that have no room in a
 * table, or are rare, are lines below it; the JSON has all of them in the rows.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define COLUMN(type, member, how, row, heading)                      \
    {                                                                \
#member, type, offsetof(struct row, member), how, heading, 0 \
    }

/* ---- ls */

struct shard_row {
    struct zc_shard_row s;
    char tiers[16]; /* of its bytes: "host+nvme" */
};

static const struct zctl_column shard_columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct shard_row, s.job), ZCTL_SHOWN, NULL, 0 },
    { "unit", ZCTL_TEXT, offsetof(struct shard_row, s.unit), ZCTL_SHOWN, NULL, 0 },
    { "rank", ZCTL_U32, offsetof(struct shard_row, s.rank), ZCTL_SHOWN, NULL, 0 },
    { "first", ZCTL_U64, offsetof(struct shard_row, s.first), ZCTL_SHOWN, NULL, 0 },
    { "count", ZCTL_U64, offsetof(struct shard_row, s.count), ZCTL_SHOWN, NULL, 0 },
    { "dtype", ZCTL_TEXT, offsetof(struct shard_row, s.dtype), ZCTL_SHOWN, NULL, 0 },
    { "version", ZCTL_U64, offsetof(struct shard_row, s.version), ZCTL_SHOWN, NULL, 0 },
    { "tier", ZCTL_TEXT, offsetof(struct shard_row, s.tier), ZCTL_JSON_ONLY, NULL, 0 },
    { "bytes", ZCTL_SIZE, offsetof(struct shard_row, s.bytes), ZCTL_SHOWN, "BYTES", 0 },
    { "host_bytes", ZCTL_SIZE, offsetof(struct shard_row, s.host_bytes), ZCTL_JSON_ONLY, NULL, 0 },
    { "nvme_bytes", ZCTL_SIZE, offsetof(struct shard_row, s.nvme_bytes), ZCTL_JSON_ONLY, NULL, 0 },
    { "pins", ZCTL_U32, offsetof(struct shard_row, s.pins), ZCTL_SHOWN, NULL, 0 },
    { "id", ZCTL_U64, offsetof(struct shard_row, s.id), ZCTL_JSON_ONLY, NULL, 0 },
    { "tiers", ZCTL_TEXT, offsetof(struct shard_row, tiers), ZCTL_SHOWN, NULL, 0 },
    { "uid", ZCTL_U32, offsetof(struct shard_row, s.uid), ZCTL_JSON_ONLY, NULL, 0 },
};

static struct shard_row shard_row(const struct zc_shard_row *from)
{
    struct shard_row row = { .s = *from };
    uint64_t gpu = from->bytes - from->host_bytes - from->nvme_bytes;

    (void)snprintf(row.tiers, sizeof(row.tiers), "%s%s%s", gpu > 0 ? "+gpu" : "",
                   from->host_bytes > 0 ? "+host" : "", from->nvme_bytes > 0 ? "+nvme" : "");
    memmove(row.tiers, row.tiers + (*row.tiers == '+'), strlen(row.tiers) + (*row.tiers != '+'));
    return row;
}

static int show_ls(struct zctl *z, int argc, char **argv)
{
    struct zc_shard_row *from = NULL;
    struct shard_row *rows = NULL;
    const char *job = argc > 0 ? zctl_job(z, argv[0]) : NULL;
    size_t n = 0;
    int rc = argc > 0 && !job ? -EINVAL : zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_list_wait(z->client, job, &from, &n));
    if (rc == 0 && !(rows = calloc(n + 1, sizeof(*rows))))
        rc = zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rows[i] = shard_row(&from[i]);
    if (rc == 0)
        rc = zctl_print(z, shard_columns, ZB_COUNT(shard_columns), rows, n, sizeof(*rows));
    free(rows);
    zc_rows_free(from);
    return rc;
}

/* ---- jobs */

/* A job, and the name of its owner. */
struct job_row {
    struct zc_job_row j;
    struct zctl_user owner;
};

static const struct zctl_column job_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, state, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_U32, uid, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U32, world, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_U32, attached, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_U32, share, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, optimizer, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, moments, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, muon, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, muon_engine, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, muon_gpu_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, muon_params, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, muon_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, muon_most_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, clip, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, clip_warm_left, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, early, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, frozen_tensors, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, frozen_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_BOOL, keep, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_U64, iterations, ZCTL_SHOWN, zc_job_row, "STEPS"),
    COLUMN(ZCTL_U64, applied, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, shards, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, params, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, host_bytes, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, host_state, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, host_state_target, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, gpu_bytes, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, nvme_bytes, ZCTL_SHOWN, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, grads_nvme_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_BOOL, grad_ring, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U32, grad_ring_keep, ZCTL_JSON_ONLY, zc_job_row, "KEEP%"),
    COLUMN(ZCTL_SIZE, grads_ringed, ZCTL_JSON_ONLY, zc_job_row, "RINGED"),
    COLUMN(ZCTL_SIZE, fetched_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, pushed_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, nvme_read_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_SIZE, nvme_written_bytes, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_BOOL, durable, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_BOOL, committed, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, committed_iterations, ZCTL_SHOWN, zc_job_row, "COMMITTED"),
    COLUMN(ZCTL_U64, committed_applied, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U32, snapshots, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, epoch, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_U64, id, ZCTL_JSON_ONLY, zc_job_row, NULL),
    COLUMN(ZCTL_TEXT, error, ZCTL_JSON_ONLY, zc_job_row, NULL),
    { "owner", ZCTL_TEXT, offsetof(struct job_row, owner), ZCTL_JSON_ONLY, NULL, 0 },
};

/** Adjusts a row for display: a ready job without attached ranks is "idle". The error of a job
 * becomes a line below the table. */
static void job_settle(struct job_row *row, FILE *below)
{
    if (row->j.attached == 0 && strcmp(row->j.state, "ready") == 0)
        (void)snprintf(row->j.state, sizeof(row->j.state), "idle");
    if (*row->j.error)
        (void)fprintf(below, "job '%s': %s\n", row->j.name, row->j.error);
}

/** How a job clips, and what it does not train: below the table of this job alone. */
static void job_about(const struct zc_job_row *j, FILE *below)
{
    if (*j->clip)
        (void)fprintf(below, "clips: %s; steps begin during the backward pass: %s\n", j->clip,
                      *j->early ? j->early : "unknown");
    if (j->frozen_tensors > 0)
        (void)fprintf(below, "frozen: %llu tensors, %llu bytes of state\n",
                      (unsigned long long)j->frozen_tensors, (unsigned long long)j->frozen_bytes);
}

/** Shows how much of its gradients a job does not hold. */
static void jobs_show_ring(struct zctl_column *columns)
{
    for (size_t i = 0; i < ZB_COUNT(job_columns); i++)
        if (strcmp(columns[i].key, "grad_ring_keep") == 0 ||
            strcmp(columns[i].key, "grads_ringed") == 0)
            columns[i].shown = ZCTL_SHOWN;
}

/** With an owner in the table if there are jobs of other users, and with the ring of gradients if a
 * job has one. */
static int jobs_print(struct zctl *z, const struct zc_job_row *from, size_t n, bool named,
                      struct zctl_below *below)
{
    struct zctl_column columns[ZB_COUNT(job_columns)];
    struct job_row *rows = calloc(n + 1, sizeof(*rows));
    int rc;

    if (!rows)
        return zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    memcpy(columns, job_columns, sizeof(columns));
    for (size_t i = 0; i < n; i++) {
        rows[i] = (struct job_row){ .j = from[i], .owner = zctl_user(from[i].uid) };
        job_settle(&rows[i], below->out);
        if (named)
            job_about(&from[i], below->out);
        if (from[i].grad_ring)
            jobs_show_ring(columns);
        if (from[i].uid != geteuid())
            columns[ZB_COUNT(job_columns) - 1].shown = ZCTL_SHOWN;
    }
    rc = zctl_print_below(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows), below);
    free(rows);
    return rc;
}

static int show_jobs(struct zctl *z, int argc, char **argv)
{
    const char *job = argc > 0 ? zctl_job(z, argv[0]) : NULL;
    struct zctl_below below = { 0 };
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = argc > 0 && !job ? -EINVAL : zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_jobs_wait(z->client, job, &rows, &n));
    if (rc == 0)
        rc = zctl_below_open(z, &below);
    if (rc == 0)
        rc = jobs_print(z, rows, n, job != NULL, &below);
    zc_rows_free(rows);
    return rc;
}

/* ---- tiers */

static const struct zctl_column tier_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, budget, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, used, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, target, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, moving, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, device_free, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, stranded, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_TEXT, stranded_by, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, params, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, grads, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, state, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, staging, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, rings, ZCTL_SHOWN, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, read_bytes_s, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, write_bytes_s, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, node_bytes, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_SIZE, spilled_bytes, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_TEXT, nodes, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_TEXT, numa, ZCTL_JSON_ONLY, zc_tier_row, NULL),
    COLUMN(ZCTL_TEXT, detail, ZCTL_JSON_ONLY, zc_tier_row, NULL),
};

/** Writes the details of a tier that have no column. */
static void tier_below(const struct zc_tier_row *r, FILE *out)
{
    (void)fprintf(out, "%s: %s", r->name, r->detail);
    if (r->read_bytes_s > 0)
        (void)fprintf(out, "; reads %s/s, writes %s/s", zb_size_text(r->read_bytes_s).s,
                      zb_size_text(r->write_bytes_s).s);
    if (*r->numa)
        (void)fprintf(out, "; numa %s", r->numa);
    if (r->node_bytes + r->spilled_bytes > 0)
        (void)fprintf(out, " (%s there, %s elsewhere)", zb_size_text(r->node_bytes).s,
                      zb_size_text(r->spilled_bytes).s);
    if (r->device_free > 0)
        (void)fprintf(out, "; the device has %s free", zb_size_text(r->device_free).s);
    if (r->stranded > 0)
        (void)fprintf(out, "; %s stranded, still mapped by %s", zb_size_text(r->stranded).s,
                      r->stranded_by);
    (void)fputc('\n', out);
}

static int show_tiers(struct zctl *z, int argc, char **argv)
{
    struct zctl_below below = { 0 };
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed(z, zc_tiers_wait(z->client, &rows, &n));
    if (rc == 0)
        rc = zctl_below_open(z, &below);
    if (rc == 0) {
        for (size_t i = 0; i < n; i++)
            tier_below(&rows[i], below.out);
        rc = zctl_print_below(z, tier_columns, ZB_COUNT(tier_columns), rows, n, sizeof(*rows),
                              &below);
    }
    zc_rows_free(rows);
    return rc;
}

/* ---- stat */

static const struct zctl_column counter_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_counter, NULL),
    COLUMN(ZCTL_U64, value, ZCTL_SHOWN, zc_counter, NULL),
};

static int show_stat(struct zctl *z, int argc, char **argv)
{
    struct zc_counter *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed(z, zc_stat_wait(z->client, &rows, &n));
    if (rc == 0)
        rc = zctl_print(z, counter_columns, ZB_COUNT(counter_columns), rows, n, sizeof(*rows));
    zc_rows_free(rows);
    return rc;
}

const struct zctl_cmd zctl_jobs = {
    .name = "jobs",
    .args = "[JOB]",
    .help = "list jobs: state, ranks, steps, bytes",
    .argc_min = 0,
    .argc_max = 1,
    .run = show_jobs,
    ZCTL_COLUMNS(job_columns),
};

const struct zctl_cmd zctl_ls = {
    .name = "ls",
    .args = "[JOB]",
    .help = "list shards: tier, version, pins",
    .argc_min = 0,
    .argc_max = 1,
    .run = show_ls,
    ZCTL_COLUMNS(shard_columns),
};

const struct zctl_cmd zctl_stat = {
    .name = "stat",
    .args = "",
    .help = "list the daemon's counters",
    .argc_min = 0,
    .argc_max = 0,
    .run = show_stat,
    ZCTL_COLUMNS(counter_columns),
};

const struct zctl_cmd zctl_tiers = {
    .name = "tiers",
    .args = "",
    .help = "show each tier's budget and use",
    .argc_min = 0,
    .argc_max = 0,
    .run = show_tiers,
    ZCTL_COLUMNS(tier_columns),
};
