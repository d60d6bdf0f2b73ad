/*
 * bench_commit.c - `zbench commit`: the cost of committing a step; `zbench snapshot`: the cost of a
 * snapshot for the trainers.
 *
 * MODEL. A zshardd of our own holds a durable job of bf16 parameters: in one case all of it in
 * memory, in the other everything on NVMe that can be streamed. Steps that commit and steps that do
 * not alternate,
 *
 *     commit  plain  plain  commit
 *
 * and each is timed from the request to its answer, with its gradients pushed before. A plain step
 * of a resident job touches no drive, and one that commits writes all parameters and state: that
 * ratio depends on the drive. In a streamed job both write the state; the commit adds the
 * parameters, the flush and the catalog.
 *
 * Another client takes a snapshot of the newest commit in the middle of a step that streams the
 * state; steps with and without a snapshot alternate. Notes report the time of the snapshots,
 * during a step and without one.
 *
 * Notes also report the bytes that each kind of step wrote, as counted by the daemon, and the
 * longest turn of its loop (daemon/run/turns.h). --page-elems 4096 makes many small pages.
 */
#include "bench/zbench.h"

#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define COMMIT_UNITS   8u
#define COMMIT_STAGING (UINT64_C(8) << 20)

struct commit_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, page_elems;
    unsigned rounds;
    uint64_t count; /* elements of each unit */
    struct zbench_rig rig;
    uint64_t written[2]; /* by the last step with a commit, and the last without */
};

/* Starts a daemon with these budgets, and the job. */
static int commit_begin(struct commit_bench *b, uint64_t host_bytes, uint64_t nvme_bytes,
                        bool streamed)
{
    const struct zc_job_options options = {
        .keep = true,
        .durable = true,
        .staging_bytes = COMMIT_STAGING,
        /* room for gradients and a ring of parameters: all else is streamed */
        .host_bytes_max = streamed ? COMMIT_STAGING + b->params * 2 + 3 * b->count * 2 : 0,
    };
    struct zc_placement placement;
    int rc = zbench_rig_start(&b->rig, b->z, b->dir,
                              "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64
                              " --page-elems %" PRIu64 " --log-level warn",
                              host_bytes, nvme_bytes, b->page_elems);

    if (rc == 0)
        rc = zbench_rig_open(&b->rig, &options);
    return rc < 0 ? rc : zbench_rig_define(&b->rig, COMMIT_UNITS, b->count, ZC_BF16, &placement);
}

static int commit_step(struct commit_bench *b, enum zc_commit commit, double *ret_ms)
{
    struct zc_job_row before, after;
    double s = 0;
    int rc = zbench_rig_push(&b->rig);

    if (rc == 0)
        rc = zbench_rig_row(&b->rig, &before);
    if (rc == 0)
        rc = zbench_rig_step(&b->rig, commit, &s);
    if (rc == 0)
        rc = zbench_rig_row(&b->rig, &after);
    if (rc == 0)
        b->written[commit == ZC_COMMIT_NO] = after.nvme_written_bytes - before.nvme_written_bytes;
    *ret_ms = s * 1e3;
    return rc;
}

/* Notes how long the turns of the daemon's loop have been. */
static int commit_turns(struct commit_bench *b, const char *name)
{
    static const char *const names[] = { "turns", "turn_max_work", "turn_max_ns", "turn_p999_ns" };
    uint64_t v[ZB_COUNT(names)];
    int rc = zbench_counters(b->z, b->rig.c, names, ZB_COUNT(names), v);

    if (rc == 0)
        zbench_note(b->z,
                    "%s: the longest of %" PRIu64 " turns of the loop handled %" PRIu64
                    " pages, rows and shards; the longest took %.2f ms of its CPU time; 99.9 %% "
                    "took at most %.2f ms by the clock",
                    name, v[0], v[1], (double)v[2] / 1e6, (double)v[3] / 1e6);
    return rc;
}

static int commit_slice(void *bench, unsigned who, double *ret_ms)
{
    return commit_step(bench, who == 0 ? ZC_COMMIT_STEP : ZC_COMMIT_NO, ret_ms);
}

static int commit_case(struct commit_bench *b, const char *name, bool streamed)
{
    const struct zbench_row row = zbench_row("ms", true, "a step that does not commit", "%s", name);
    double params = (double)(b->count * COMMIT_UNITS), ms;
    int rc = commit_begin(b, b->params * 16 + (UINT64_C(128) << 20),
                          b->params * 26 + (UINT64_C(256) << 20), streamed);

    if (rc == 0)
        rc = commit_step(b, ZC_COMMIT_STEP, &ms); /* warms up; the first commit is different */
    if (rc == 0)
        rc = zbench_compare(b->z, &row, "ABBA", b->rounds, commit_slice, b);
    if (rc == 0)
        rc = commit_turns(b, name);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc == 0)
        zbench_note(b->z,
                    "%s: %.1f million parameters; a step that commits writes %.2f, one that "
                    "does not %.2f bytes per parameter",
                    name, (double)b->params / 1e6, (double)b->written[0] / params,
                    (double)b->written[1] / params);
    return rc;
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

/* Takes a snapshot, which replaces the previous one. */
static int snapshot_take(struct commit_bench *b, struct zc_client *other, double *ret_ms)
{
    const struct zc_snapshot snapshot = { .job = "bench", .retain = 1 };
    struct zc_snapshot_row row;
    uint64_t begin_ns = zb_now_ns();
    int rc = zc_snapshot_wait(other, &snapshot, &row);

    *ret_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    return rc < 0 ? zb_fail(&b->z->err, rc, "%s", zc_error(other)) : 0;
}

/* The time that page writes have waited for changes of the catalog since the daemon's start. */
static int snapshot_held(struct commit_bench *b, double *ret_ms)
{
    static const char *const name = "write_hold_us";
    uint64_t us = 0;
    int rc = zbench_counters(b->z, b->rig.c, &name, 1, &us);

    *ret_ms = (double)us / 1e3;
    return rc;
}

/* A step that does not commit. If `other` is not NULL, it takes a snapshot during the step. */
static int snapshot_step(struct commit_bench *b, struct zc_client *other, double *ret_step_ms,
                         double *ret_ms)
{
    struct zbench_rig *r = &b->rig;
    struct zc_stepped stepped;
    struct step_wait wait = { 0 };
    uint64_t begin_ns;
    int rc = zbench_rig_push(r);
    const struct zc_step step = {
        .step = r->step, .scale = 1, .groups = &zbench_group, .ngroups = 1
    };

    if (rc < 0)
        return rc;
    begin_ns = zb_now_ns();
    rc = zc_step(r->c, r->job.id, &step, &stepped, step_done, &wait);
    if (rc == 0)
        rc = zc_poll(r->c, SNAPSHOT_AFTER_MS);
    if (rc < 0)
        return zbench_rig_failed(&b->rig, rc);
    if (other && (rc = snapshot_take(b, other, ret_ms)) < 0)
        return rc;
    while (!wait.over)
        if ((rc = zc_poll(r->c, 1000)) < 0)
            return zbench_rig_failed(&b->rig, rc);
    *ret_step_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    return wait.rc < 0 ? zbench_rig_failed(&b->rig, wait.rc) : 0;
}

static int snapshot_rounds(struct commit_bench *b, struct zc_client *other, double *values,
                           double *references, double *idle, double *busy, double *held)
{
    double ms, before = 0;
    int rc = 0;

    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        if ((rc = commit_step(b, ZC_COMMIT_STEP, &ms)) < 0 ||
            (rc = snapshot_take(b, other, &idle[i])) < 0 ||
            (rc = commit_step(b, ZC_COMMIT_STEP, &ms)) < 0)
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
    const struct zbench_row row =
        zbench_row("ms", true, "a step without a snapshot in it", "snapshot/streamed/plain-step");
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX], idle[ZBENCH_ROUNDS_MAX],
        busy[ZBENCH_ROUNDS_MAX], held[ZBENCH_ROUNDS_MAX] = { 0 };
    struct zc_client *other = NULL;
    int rc;

    rc = commit_begin(b, b->params * 4 + (UINT64_C(256) << 20),
                      b->params * 50 + (UINT64_C(256) << 20), true);
    if (rc == 0)
        rc = zbench_rig_connect(&b->rig, &other);
    if (rc == 0)
        rc = snapshot_rounds(b, other, values, references, idle, busy, held);
    if (rc == 0)
        rc = commit_turns(b, "snapshot");
    zc_close(other);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc < 0)
        return rc;
    zbench_note(
        b->z,
        "%.1f million parameters, %.2f GB of them and their state; a snapshot without a "
        "step took %.1f ms (9 of 10 at most %.1f, all %.1f), during a step %.1f ms (9 of 10 at "
        "most %.1f, all %.1f); page writes waited %.1f ms for it (all at most %.1f)",
        (double)b->params / 1e6, (double)b->params * 12 / 1e9,
        zbench_quantile(idle, b->rounds, 0.5), zbench_quantile(idle, b->rounds, 0.9),
        zbench_quantile(idle, b->rounds, 1), zbench_quantile(busy, b->rounds, 0.5),
        zbench_quantile(busy, b->rounds, 0.9), zbench_quantile(busy, b->rounds, 1),
        zbench_quantile(held, b->rounds, 0.5), zbench_quantile(held, b->rounds, 1));
    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct commit_bench, member)

static const struct zb_opt commit_options[] = {
    ZBENCH_DIR(struct commit_bench, "/var/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "16M", .min = COMMIT_UNITS * 4096,
      .max = UINT64_C(1) << 36 },
    { "page-elems", ZB_OPT_SIZE, AT(page_elems), .arg = "N", .def = "256K" },
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
    .help = "a step during which a snapshot is taken, against one without",
    .options = commit_options,
    .bytes = sizeof(struct commit_bench),
    .run = snapshot_main,
};
