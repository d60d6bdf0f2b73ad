/*
 * bench_commit.c - `zbench commit`: what it costs that a step survives; `zbench snapshot`: what a
 * snapshot costs the trainers.
 *
 * MODEL. A zshardd of our own holds a durable job of bf16 parameters, once with everything in
 * memory, once with everything that may be streamed on NVMe. Steps that commit and steps that do
 * not alternate,
 *
 *     commit  plain  plain  commit
 *
 * and each is timed from the request to its answer, with its gradients pushed before. A plain step
 * of a resident job touches no drive; one that commits writes all of the job's state: that ratio is
 * the drive's. Streamed, both write the state; what the commit adds is the parameters, the flush
 * and the catalog.
 *
 * A snapshot of the newest commit is taken by another client in the middle of a step that streams
 * the state; steps with one and steps without alternate. How long the snapshots themselves took, in
 * a step and beside none, is noted.
 *
 * The bytes that each kind of step wrote are counted by the daemon, and noted beside the table.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/job.h"
#include "bench/process.h"
#include "client/zclient.h"

#define COMMIT_UNITS   8u
#define COMMIT_STAGING (UINT64_C(8) << 20)

struct commit_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, page_elems;
    unsigned rounds;
    struct zbench_daemon daemon;
    struct zc_client *c;
    struct zc_job job;
    uint64_t ids[COMMIT_UNITS], count; /* elements of each unit, and of its one shard */
    uint64_t step;
};

static int commit_failed(struct commit_bench *b, int rc)
{
    return zb_fail(&b->z->err, rc, "%s", b->c ? zc_error(b->c) : zc_strerror(rc));
}

/* Initial values (step 0), or a gradient. */
static int commit_send(struct commit_bench *b, uint32_t unit, uint64_t step)
{
    int rc = zbench_send(b->c, &b->job, b->ids[unit], b->count, ZC_BF16, step);

    return rc < 0 ? commit_failed(b, rc) : 0;
}

static int commit_open(struct commit_bench *b, bool streamed)
{
    struct zc_job_options options = {
        .name = "bench",
        .world = 1,
        .groups = 1,
        .keep = true,
        .durable = true,
        .staging_bytes = COMMIT_STAGING,
        /* gradients, a ring of parameters, and no state: all else is streamed */
        .host_bytes_max = streamed ? COMMIT_STAGING + b->params * 2 + 3 * b->count * 2 : 0,
    };
    struct zc_placement placement;
    int rc =
        zc_open(&b->c, &(struct zc_options){ .socket = b->daemon.socket, .program = "zbench" });

    if (rc < 0 || (rc = zc_job_open_wait(b->c, &options, &b->job)) < 0)
        return commit_failed(b, rc);
    memset(b->job.staging, 0, b->job.staging_bytes);
    for (uint32_t u = 0; u < COMMIT_UNITS; u++) {
        if ((rc = zbench_unit_whole(b->c, b->job.id, u, b->count, ZC_BF16, &b->ids[u])) < 0)
            return commit_failed(b, rc);
    }
    if ((rc = zc_ready_wait(b->c, b->job.id, NULL, 0, &placement)) < 0)
        return commit_failed(b, rc);
    for (uint32_t u = 0; u < COMMIT_UNITS && rc == 0; u++)
        rc = commit_send(b, u, 0);
    return rc;
}

/* Bytes that the daemon has written for the job. */
static int commit_written(struct commit_bench *b, uint64_t *ret)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(b->c, "bench", &rows, &n);

    if (rc < 0)
        return commit_failed(b, rc);
    *ret = n > 0 ? rows[0].nvme_written_bytes : 0;
    zc_rows_free(rows);
    return 0;
}

static int commit_step(struct commit_bench *b, enum zc_commit commit, double *ret_ms,
                       uint64_t *ret_bytes)
{
    static const struct zc_group group = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    struct zc_step step = {
        .step = ++b->step, .scale = 1, .groups = &group, .ngroups = 1, .commit = commit
    };
    struct zc_stepped stepped;
    uint64_t begin_ns, before = 0, after = 0;
    int rc = 0;

    for (uint32_t u = 0; u < COMMIT_UNITS && rc == 0; u++)
        rc = commit_send(b, u, b->step);
    if (rc < 0 || (rc = commit_written(b, &before)) < 0)
        return rc;
    begin_ns = zb_now_ns();
    rc = zc_step_wait(b->c, b->job.id, &step, &stepped);
    *ret_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    if (rc == 0 && stepped.commit_code < 0)
        return zb_fail(&b->z->err, stepped.commit_code, "%s", stepped.commit_text);
    if (rc < 0)
        return commit_failed(b, rc);
    rc = commit_written(b, &after);
    *ret_bytes = after - before;
    return rc;
}

/* A daemon with so much of both tiers, and the job in it. */
static int commit_begin(struct commit_bench *b, uint64_t host_bytes, uint64_t nvme_bytes,
                        bool streamed)
{
    char host[32], nvme[32], page[32];
    const char *const options[] = { "--host-bytes", host,           "--nvme-bytes",
                                    nvme,           "--page-elems", page,
                                    "--log-level",  "warn",         NULL };
    int rc;

    (void)snprintf(host, sizeof(host), "%llu", (unsigned long long)host_bytes);
    (void)snprintf(nvme, sizeof(nvme), "%llu", (unsigned long long)nvme_bytes);
    (void)snprintf(page, sizeof(page), "%llu", (unsigned long long)b->page_elems);
    b->daemon = ZBENCH_NO_DAEMON;
    b->c = NULL;
    b->step = 0;
    rc = zbench_daemon_start(&b->daemon, b->dir, options, &b->z->err);
    return rc < 0 ? rc : commit_open(b, streamed);
}

static int commit_case(struct commit_bench *b, const char *name, bool streamed)
{
    struct zbench_row row = { .unit = "ms",
                              .reference_name = "a step that does not commit",
                              .lower = true };
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX], ms[4];
    uint64_t with = 0, without = 0;
    int rc;

    (void)snprintf(row.name, sizeof(row.name), "%s", name);
    rc = commit_begin(b, b->params * 16 + (UINT64_C(128) << 20),
                      b->params * 26 + (UINT64_C(256) << 20), streamed);
    if (rc == 0)
        rc = commit_step(b, ZC_COMMIT_STEP, &ms[0], &with); /* warms up; the first is not alike */
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        if ((rc = commit_step(b, ZC_COMMIT_STEP, &ms[0], &with)) < 0 ||
            (rc = commit_step(b, ZC_COMMIT_NO, &ms[1], &without)) < 0 ||
            (rc = commit_step(b, ZC_COMMIT_NO, &ms[2], &without)) < 0 ||
            (rc = commit_step(b, ZC_COMMIT_STEP, &ms[3], &with)) < 0)
            break;
        values[i] = (ms[0] + ms[3]) / 2;
        references[i] = (ms[1] + ms[2]) / 2;
    }
    if (rc == 0 && (rc = zc_job_close_wait(b->c, b->job.id)) < 0)
        (void)commit_failed(b, rc);
    zc_close(b->c);
    zbench_daemon_end(&b->daemon);
    if (rc < 0)
        return rc;
    zbench_note(
        b->z,
        "%s: %.1f million parameters; written by a step that commits %.2f, by one that does not "
        "%.2f bytes a parameter",
        name, (double)b->params / 1e6, (double)with / (double)(b->count * COMMIT_UNITS),
        (double)without / (double)(b->count * COMMIT_UNITS));
    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* ---- snapshot */

#define SNAPSHOT_AFTER_MS 20u /* into the step */

struct step_wait {
    bool over;
    int rc;
};

static void step_done(void *arg, int rc)
{
    struct step_wait *w = arg;

    w->over = true;
    w->rc = rc;
}

/* How long a snapshot takes that another client asks for; it replaces the one before. */
static int snapshot_take(struct commit_bench *b, struct zc_client *other, double *ret_ms)
{
    const struct zc_snapshot snapshot = { .job = "bench", .retain = 1 };
    struct zc_snapshot_row row;
    uint64_t begin_ns = zb_now_ns();
    int rc = zc_snapshot_wait(other, &snapshot, &row);

    *ret_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    return rc < 0 ? zb_fail(&b->z->err, rc, "%s", zc_error(other)) : 0;
}

/* How long page writes waited for changes of the catalog, since the daemon's start. */
static int snapshot_held(struct commit_bench *b, double *ret_ms)
{
    struct zc_counter *rows = NULL;
    size_t n = 0;
    int rc = zc_stat_wait(b->c, &rows, &n);

    if (rc < 0)
        return commit_failed(b, rc);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "write_hold_us") == 0)
            *ret_ms = (double)rows[i].value / 1e3;
    zc_rows_free(rows);
    return 0;
}

/* A step that does not commit, with a snapshot in its middle when there is another client. */
static int snapshot_step(struct commit_bench *b, struct zc_client *other, double *ret_step_ms,
                         double *ret_ms)
{
    static const struct zc_group group = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    struct zc_step step = { .step = ++b->step, .scale = 1, .groups = &group, .ngroups = 1 };
    struct zc_stepped stepped;
    struct step_wait wait = { 0 };
    uint64_t begin_ns;
    int rc = 0;

    for (uint32_t u = 0; u < COMMIT_UNITS && rc == 0; u++)
        rc = commit_send(b, u, b->step);
    if (rc < 0)
        return rc;
    begin_ns = zb_now_ns();
    rc = zc_step(b->c, b->job.id, &step, &stepped, step_done, &wait);
    if (rc == 0)
        rc = zc_poll(b->c, SNAPSHOT_AFTER_MS);
    if (rc < 0)
        return commit_failed(b, rc);
    if (other && (rc = snapshot_take(b, other, ret_ms)) < 0)
        return rc;
    while (!wait.over)
        if ((rc = zc_poll(b->c, 1000)) < 0)
            return commit_failed(b, rc);
    *ret_step_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    return wait.rc < 0 ? commit_failed(b, wait.rc) : 0;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Of values in their order. */
static double value_at(const double *values, unsigned n, double part)
{
    return values[(unsigned)(part * (n - 1) + 0.5)];
}

static int snapshot_rounds(struct commit_bench *b, struct zc_client *other, double *values,
                           double *references, double *idle, double *busy, double *held)
{
    uint64_t bytes;
    double ms, before = 0;
    int rc = 0;

    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        if ((rc = commit_step(b, ZC_COMMIT_STEP, &ms, &bytes)) < 0 ||
            (rc = snapshot_take(b, other, &idle[i])) < 0 ||
            (rc = commit_step(b, ZC_COMMIT_STEP, &ms, &bytes)) < 0)
            break;
        if (i % 2 == 0)
            rc = snapshot_step(b, NULL, &references[i], NULL);
        if (rc == 0 && (rc = snapshot_held(b, &before)) == 0 &&
            (rc = snapshot_step(b, other, &values[i], &busy[i])) == 0 &&
            (rc = snapshot_held(b, &held[i])) == 0)
            held[i] -= before;
        if (rc == 0 && i % 2 == 1)
            rc = snapshot_step(b, NULL, &references[i], NULL);
    }
    return rc;
}

static int snapshot_case(struct commit_bench *b)
{
    struct zbench_row row = { .name = "snapshot/streamed/plain-step",
                              .unit = "ms",
                              .reference_name = "a step without a snapshot in it",
                              .lower = true };
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX], idle[ZBENCH_ROUNDS_MAX],
        busy[ZBENCH_ROUNDS_MAX], held[ZBENCH_ROUNDS_MAX] = { 0 };
    struct zc_client *other = NULL;
    int rc;

    rc = commit_begin(b, b->params * 4 + (UINT64_C(256) << 20),
                      b->params * 50 + (UINT64_C(256) << 20), true);
    if (rc == 0 && (rc = zc_open(&other, &(struct zc_options){ .socket = b->daemon.socket,
                                                               .program = "zbench" })) < 0)
        (void)zb_fail(&b->z->err, rc, "%s", other ? zc_error(other) : zc_strerror(rc));
    if (rc == 0)
        rc = snapshot_rounds(b, other, values, references, idle, busy, held);
    zc_close(other);
    zc_close(b->c);
    zbench_daemon_end(&b->daemon);
    if (rc < 0)
        return rc;
    qsort(idle, b->rounds, sizeof(idle[0]), by_value);
    qsort(busy, b->rounds, sizeof(busy[0]), by_value);
    qsort(held, b->rounds, sizeof(held[0]), by_value);
    zbench_note(b->z,
                "%.1f million parameters, %.2f GB of them and their state; a snapshot beside no "
                "step took %.1f ms (9 of 10 at most %.1f, all %.1f), in a step %.1f ms (9 of 10 at "
                "most %.1f, all %.1f), for which page writes waited %.1f ms (all at most %.1f)",
                (double)b->params / 1e6, (double)b->params * 12 / 1e9,
                value_at(idle, b->rounds, 0.5), value_at(idle, b->rounds, 0.9),
                value_at(idle, b->rounds, 1), value_at(busy, b->rounds, 0.5),
                value_at(busy, b->rounds, 0.9), value_at(busy, b->rounds, 1),
                value_at(held, b->rounds, 0.5), value_at(held, b->rounds, 1));
    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct commit_bench, member)

static const struct zb_opt commit_options[] = {
    ZBENCH_DIR(struct commit_bench, "/var/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "16M", .min = COMMIT_UNITS * 4096,
      .max = UINT64_C(1) << 36 },
    { "page-elems", ZB_OPT_SIZE, AT(page_elems), .arg = "N", .def = "256K" }, /* the daemon's */
    ZBENCH_ROUNDS(struct commit_bench, "10"),
    { 0 },
};

static int commit_main(struct zbench *z, void *bench)
{
    struct commit_bench *b = bench;
    int rc;

    b->z = z;
    b->count = b->params / COMMIT_UNITS / 4096 * 4096;
    rc = commit_case(b, "commit/resident/plain-step", false);
    return rc < 0 ? rc : commit_case(b, "commit/streamed/plain-step", true);
}

static int snapshot_main(struct zbench *z, void *bench)
{
    struct commit_bench *b = bench;

    b->z = z;
    b->count = b->params / COMMIT_UNITS / 4096 * 4096;
    return snapshot_case(b);
}

const struct zbench_cmd zbench_commit = {
    .name = "commit",
    .help = "a step that commits, against one that does not",
    .options = commit_options,
    .bytes = sizeof(struct commit_bench),
    .run = commit_main,
};

const struct zbench_cmd zbench_snapshot = {
    .name = "snapshot",
    .help = "a step with a snapshot in its middle, against one without",
    .options = commit_options,
    .bytes = sizeof(struct commit_bench),
    .run = snapshot_main,
};
