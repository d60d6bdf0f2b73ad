/*
 * print.c - a view as tables for people, or as JSON for programs.
 *
 * Both come from the same columns (zctl.h). docs/reference/top.md documents the keys; a test
 * compares them.
 */
#include <errno.h>
#include <jansson.h>

#include "base/util.h"
#include "client/zctl/top/top.h"

#define COLUMN(type, member, how, row) HEADED(type, member, how, row, NULL)
#define HEADED(type, member, how, row, heading)                      \
    {                                                                \
#member, type, offsetof(struct row, member), how, heading, 0 \
    }

static const struct zctl_column node_columns[] = {
    COLUMN(ZCTL_U64, uptime_ms, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_U32, clients, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_U32, threads, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_SHARE, computing, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_DOUBLE, compute_line, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_U32, gpu_threads, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_SHARE, gpu, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_DOUBLE, gpu_line, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_U32, buffers, ZCTL_JSON_ONLY, top_view),
    COLUMN(ZCTL_DOUBLE, buffers_used, ZCTL_JSON_ONLY, top_view),
};

static const struct zctl_column tier_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, budget, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, used, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, target, ZCTL_SHOWN, zc_tier_row),
    COLUMN(ZCTL_SIZE, moving, ZCTL_SHOWN, zc_tier_row),
};

static const struct zctl_column path_columns[] = {
    COLUMN(ZCTL_U32, path, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SIZE, read_bytes_s, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SIZE, written_bytes_s, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SIZE, measured_read_bytes_s, ZCTL_JSON_ONLY, top_path),
    COLUMN(ZCTL_SIZE, measured_written_bytes_s, ZCTL_JSON_ONLY, top_path),
    COLUMN(ZCTL_SHARE, read_share, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SHARE, written_share, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SHARE, load, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_SHARE, busy, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_DOUBLE, queue, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_U64, depth, ZCTL_JSON_ONLY, top_path),
    COLUMN(ZCTL_DOUBLE, latency_us, ZCTL_SHOWN, top_path),
    COLUMN(ZCTL_U64, failed, ZCTL_SHOWN, top_path),
    { "device_over_ours", ZCTL_SHARE, offsetof(struct top_path, device_over_ours), ZCTL_SHOWN,
      "DEVICE", 0 },
    COLUMN(ZCTL_SHARE, wear, ZCTL_SHOWN, top_path),
};

/* A job has a row in each of two tables: its rates, and where its page operations are (waiting for
 * a buffer, being read, ...). */
static const struct zctl_column job_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_TEXT, state, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_U32, uid, ZCTL_JSON_ONLY, top_job),
    COLUMN(ZCTL_U32, world, ZCTL_JSON_ONLY, top_job),
    COLUMN(ZCTL_U32, attached, ZCTL_JSON_ONLY, top_job),
    HEADED(ZCTL_U64, iterations, ZCTL_SHOWN, top_job, "STEPS"),
    COLUMN(ZCTL_U64, applied, ZCTL_JSON_ONLY, top_job),
    COLUMN(ZCTL_DOUBLE, steps_s, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_SIZE, host_bytes, ZCTL_JSON_ONLY, top_job),
    COLUMN(ZCTL_SIZE, nvme_bytes, ZCTL_JSON_ONLY, top_job),
    HEADED(ZCTL_SIZE, nvme_read_bytes_s, ZCTL_SHOWN, top_job, "READ/S"),
    HEADED(ZCTL_SIZE, nvme_written_bytes_s, ZCTL_SHOWN, top_job, "WRITTEN/S"),
    COLUMN(ZCTL_SIZE, fetched_bytes_s, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_SIZE, pushed_bytes_s, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_DOUBLE, fetches_s, ZCTL_JSON_ONLY, top_job),
    COLUMN(ZCTL_DOUBLE, pushes_s, ZCTL_JSON_ONLY, top_job),
    HEADED(ZCTL_SHARE, hit_ratio, ZCTL_SHOWN, top_job, "HITS"),
};

static const struct zctl_column page_columns[] = {
    COLUMN(ZCTL_TEXT, name, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_DOUBLE, pages_s, ZCTL_SHOWN, top_job),
    HEADED(ZCTL_DOUBLE, in_buffer, ZCTL_SHOWN, top_job, "BUFFER"),
    HEADED(ZCTL_DOUBLE, in_read, ZCTL_SHOWN, top_job, "READ"),
    HEADED(ZCTL_DOUBLE, in_compute, ZCTL_SHOWN, top_job, "COMPUTE"),
    HEADED(ZCTL_DOUBLE, in_write, ZCTL_SHOWN, top_job, "WRITE"),
    HEADED(ZCTL_DOUBLE, in_gpu, ZCTL_SHOWN, top_job, "GPU"),
    COLUMN(ZCTL_DOUBLE, page_ms, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_DOUBLE, compute_ms, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_SHARE, drive_only, ZCTL_SHOWN, top_job),
    COLUMN(ZCTL_SHARE, asking, ZCTL_SHOWN, top_job),
};

static const struct zctl_column stall_columns[] = {
    COLUMN(ZCTL_TEXT, job, ZCTL_SHOWN, top_stall),
    COLUMN(ZCTL_TEXT, cause, ZCTL_SHOWN, top_stall),
    COLUMN(ZCTL_U64, now, ZCTL_SHOWN, top_stall),
    COLUMN(ZCTL_SHARE, share, ZCTL_SHOWN, top_stall),
    COLUMN(ZCTL_DOUBLE, seconds, ZCTL_SHOWN, top_stall),
    COLUMN(ZCTL_DOUBLE, total_s, ZCTL_SHOWN, top_stall),
};

static const struct zctl_column oldest_columns[] = {
    COLUMN(ZCTL_TEXT, method, ZCTL_JSON_ONLY, zc_top_oldest),
    COLUMN(ZCTL_TEXT, job, ZCTL_JSON_ONLY, zc_top_oldest),
    COLUMN(ZCTL_U32, rank, ZCTL_JSON_ONLY, zc_top_oldest),
    COLUMN(ZCTL_U64, pid, ZCTL_JSON_ONLY, zc_top_oldest),
    COLUMN(ZCTL_U64, age_ms, ZCTL_JSON_ONLY, zc_top_oldest),
    COLUMN(ZCTL_TEXT, waits, ZCTL_JSON_ONLY, zc_top_oldest),
};

/* ---- tables */

static void print_oldest(FILE *out, const struct zc_top_oldest *o)
{
    (void)fprintf(out, "oldest request: ");
    if (o->pid == 0) {
        (void)fprintf(out, "none\n");
        return;
    }
    (void)fprintf(out, "%s", o->method);
    if (o->job[0])
        (void)fprintf(out, " of job '%s', rank %u", o->job, o->rank);
    (void)fprintf(out, " (process %llu), %.1f s", (unsigned long long)o->pid,
                  (double)o->age_ms / 1e3);
    (void)fprintf(out, "%s%s\n", o->waits[0] ? ", waits for " : "", o->waits);
}

#define TABLE(out, columns, rows, n) \
    print_table(out, columns, ZB_COUNT(columns), rows, n, sizeof(*(rows)))

static int print_table(FILE *out, const struct zctl_column *columns, size_t ncolumns,
                       const void *rows, size_t n, size_t row_bytes)
{
    if (n == 0)
        return 0;
    (void)fputc('\n', out);
    return zctl_table(out, columns, ncolumns, rows, n, row_bytes);
}

int top_table(FILE *out, const struct top_view *v)
{
    struct top_verdict why;
    int rc;

    top_why(v, &why);
    (void)fprintf(out, "%s\n", why.text);
    (void)fprintf(out,
                  "%.1f s: %u compute threads busy %.0f%%, %.1f tasks in line; %.1f of %u page "
                  "buffers used; %u clients",
                  v->interval_s, v->threads, 100 * v->computing, v->compute_line, v->buffers_used,
                  v->buffers, v->clients);
    if (v->gpu_threads > 0)
        (void)fprintf(out, "; GPU busy %.0f%%, %.1f pages in line", 100 * v->gpu, v->gpu_line);
    (void)fputc('\n', out);
    print_oldest(out, &v->oldest);
    rc = TABLE(out, tier_columns, v->tiers, v->ntiers);
    if (rc == 0)
        rc = TABLE(out, path_columns, v->paths, v->npaths);
    if (rc == 0)
        rc = TABLE(out, job_columns, v->jobs, v->njobs);
    if (rc == 0)
        rc = TABLE(out, page_columns, v->jobs, v->njobs);
    return rc == 0 ? TABLE(out, stall_columns, v->stalls, v->nstalls) : rc;
}

/* ---- JSON */

#define ROWS_JSON(columns, rows, n) rows_json(columns, ZB_COUNT(columns), rows, n, sizeof(*(rows)))

static json_t *rows_json(const struct zctl_column *columns, size_t ncolumns, const void *rows,
                         size_t n, size_t row_bytes)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(
                all, zctl_row_json(columns, ncolumns, (const char *)rows + i * row_bytes)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* A job is one object, of both its sets of columns. */
static json_t *jobs_json(const struct top_view *v)
{
    json_t *all = ROWS_JSON(job_columns, v->jobs, v->njobs);

    for (size_t i = 0; all && i < v->njobs; i++) {
        json_t *more = zctl_row_json(page_columns, ZB_COUNT(page_columns), &v->jobs[i]);

        if (!more || json_object_update(json_array_get(all, i), more) < 0) {
            json_decref(all);
            all = NULL;
        }
        json_decref(more);
    }
    return all;
}

int top_json(FILE *out, const struct top_view *v)
{
    struct top_verdict why;
    json_t *all;

    top_why(v, &why);
    all = json_pack("{s:i, s:s, s:s, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "schema", ZCTL_SCHEMA,
                    "bound", top_bound_name(why.bound), "why", why.text, "interval_s",
                    v->interval_s, "node", zctl_row_json(node_columns, ZB_COUNT(node_columns), v),
                    "tiers", ROWS_JSON(tier_columns, v->tiers, v->ntiers), "paths",
                    ROWS_JSON(path_columns, v->paths, v->npaths), "jobs", jobs_json(v), "stalls",
                    ROWS_JSON(stall_columns, v->stalls, v->nstalls), "oldest",
                    v->oldest.pid == 0
                        ? json_null()
                        : zctl_row_json(oldest_columns, ZB_COUNT(oldest_columns), &v->oldest));
    return zctl_dump(out, all, JSON_COMPACT | JSON_REAL_PRECISION(6));
}
