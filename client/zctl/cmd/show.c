/*
 * show.c - ls, jobs, tiers, stat: what the daemon has, in columns.
 */
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define COLUMN(type, member, how, row)                   \
    {                                                    \
#member, type, offsetof(struct row, member), how \
    }

static const struct zctl_column shard_columns[] = {
    COLUMN(ZCTL_TEXT, job, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_TEXT, unit, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_U32, rank, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_U64, first, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_U64, count, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_TEXT, dtype, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_U64, version, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_TEXT, tier, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_SIZE, bytes, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_SIZE, host_bytes, ZCTL_JSON_ONLY, zc_shard_row),
    COLUMN(ZCTL_SIZE, nvme_bytes, ZCTL_JSON_ONLY, zc_shard_row),
    COLUMN(ZCTL_U32, pins, ZCTL_SHOWN, zc_shard_row),
    COLUMN(ZCTL_U64, id, ZCTL_JSON_ONLY, zc_shard_row),
};

static const struct zctl_column job_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_TEXT, state, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U32, uid, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U32, world, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U32, attached, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U32, share, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_TEXT, optimizer, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_TEXT, moments, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_BOOL, keep, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U64, iterations, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U64, applied, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U64, shards, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_U64, params, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_SIZE, host_bytes, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_SIZE, host_state, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_SIZE, host_state_target, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_SIZE, gpu_bytes, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_SIZE, nvme_bytes, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_SIZE, grads_nvme_bytes, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_SIZE, fetched_bytes, ZCTL_JSON_ONLY, zc_job_row),
    COLUMN(ZCTL_SIZE, pushed_bytes, ZCTL_JSON_ONLY, zc_job_row),
    COLUMN(ZCTL_SIZE, nvme_read_bytes, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_SIZE, nvme_written_bytes, ZCTL_SHOWN, zc_job_row),
    COLUMN(ZCTL_BOOL, durable, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_BOOL, committed, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_U64, committed_iterations, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_U64, committed_applied, ZCTL_JSON_ONLY, zc_job_row),
    COLUMN(ZCTL_U32, snapshots, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_U64, epoch, ZCTL_WHEN_SET, zc_job_row),
    COLUMN(ZCTL_U64, id, ZCTL_JSON_ONLY, zc_job_row),
    COLUMN(ZCTL_TEXT, error, ZCTL_WHEN_SET, zc_job_row),
};

static const struct zctl_column tier_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, budget, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, used, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, target, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, moving, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, device_free, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, stranded, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_TEXT, stranded_by, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, params, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, grads, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, state, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, staging, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, rings, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, read_bytes_s, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, write_bytes_s, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, node_bytes, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_SIZE, spilled_bytes, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_TEXT, nodes, ZCTL_JSON_ONLY, zc_tier_row),
    COLUMN(ZCTL_TEXT, numa, ZCTL_WHEN_SET, zc_tier_row),
    COLUMN(ZCTL_TEXT, detail, ZCTL_SHOWN, zc_tier_row),
};

static const struct zctl_column counter_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_counter),
    COLUMN(ZCTL_U64, value, ZCTL_SHOWN, zc_counter),
};

/** Prints rows that the library gave, and frees them. */
#define SHOW(z, columns, rows, n) show(z, columns, ZB_COUNT(columns), rows, n, sizeof(*(rows)))

static int show(struct zctl *z, const struct zctl_column *columns, size_t ncolumns, void *rows,
                size_t n, size_t row_bytes)
{
    int rc = zctl_print(z, columns, ncolumns, rows, n, row_bytes);

    zc_rows_free(rows);
    return rc;
}

static int show_ls(struct zctl *z, int argc, char **argv)
{
    struct zc_shard_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_list_wait(z->client, argc > 0 ? argv[0] : NULL, &rows, &n));
    return rc < 0 ? rc : SHOW(z, shard_columns, rows, n);
}

static int show_jobs(struct zctl *z, int argc, char **argv)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_jobs_wait(z->client, argc > 0 ? argv[0] : NULL, &rows, &n));
    return rc < 0 ? rc : SHOW(z, job_columns, rows, n);
}

static int show_tiers(struct zctl *z, int argc, char **argv)
{
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed(z, zc_tiers_wait(z->client, &rows, &n));
    return rc < 0 ? rc : SHOW(z, tier_columns, rows, n);
}

static int show_stat(struct zctl *z, int argc, char **argv)
{
    struct zc_counter *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed(z, zc_stat_wait(z->client, &rows, &n));
    return rc < 0 ? rc : SHOW(z, counter_columns, rows, n);
}

const struct zctl_cmd zctl_jobs = {
    .name = "jobs",
    .args = "[JOB]",
    .help = "list jobs: state, ranks, steps, bytes",
    .argc_min = 0,
    .argc_max = 1,
    .run = show_jobs,
};

const struct zctl_cmd zctl_ls = {
    .name = "ls",
    .args = "[JOB]",
    .help = "list shards: where they are, their version, who pins them",
    .argc_min = 0,
    .argc_max = 1,
    .run = show_ls,
};

const struct zctl_cmd zctl_stat = {
    .name = "stat",
    .args = "",
    .help = "list the daemon's counters",
    .argc_min = 0,
    .argc_max = 0,
    .run = show_stat,
};

const struct zctl_cmd zctl_tiers = {
    .name = "tiers",
    .args = "",
    .help = "show each tier's budget and what it is used for",
    .argc_min = 0,
    .argc_max = 0,
    .run = show_tiers,
};
