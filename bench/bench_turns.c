/*
 * bench_turns.c - `zbench turns`: no turn of the daemon's loop is long, however large a job is.
 *
 * MODEL. A zshardd of our own holds a durable job of many pages, in shards of a few pages each. It
 * goes through one phase after the other; for `attach`, the daemon is restarted on the same data.
 * After each phase the daemon reports its turns since the phase began (daemon/run/turns.h):
 *
 *     units   the most pages, rows, shards and requests of one turn; the bound is ZSD_TURN_WORK
 *     cpu     the most CPU time of the loop's thread in one turn
 *     p999    the time by the clock that 99.9 % of the turns did not exceed
 *
 * A phase ends SETTLE_MS after its last request, so that work which a request leaves for later
 * (places that are freed in parts) belongs to it.
 *
 * The references are promised bounds, not measurements: the ratio of a row is the part of its bound
 * that the longest turn takes. On a shared machine, times by the clock include the effect of other
 * load.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bench/job.h"
#include "bench/rig.h"

#define TURN_UNITS  4096.0 /* ZSD_TURN_WORK of daemon/run/turn.h */
#define TURN_MS     5.0
#define PAGE_ELEMS  UINT64_C(4096)
#define STAGING     (UINT64_C(16) << 20)
#define HOST_BYTES  10u /* per parameter: all of it is in memory */
#define LEAVE_BYTES 4u  /* per parameter: the budget shrinks by this, so that state leaves memory */
#define UNIT_PAGES  8192u
#define REGISTER    256u /* ranges of one request */
#define SETTLE_MS   200
#define DEADLINE_MS 600000u

enum turn_phase {
    PHASE_DEFINE,
    PHASE_WRITE,
    PHASE_PUSH,
    PHASE_STEP,
    PHASE_COMMIT,
    PHASE_LEAVE,  /* a budget shrinks: a step moves state to NVMe */
    PHASE_STREAM, /* a step with state on NVMe */
    PHASE_RETURN, /* the budget grows again */
    PHASE_SNAPSHOT,
    PHASE_FSCK,
    PHASE_DF,
    PHASE_ATTACH,
    PHASE_DESTROY,
    PHASES
};

enum { UNITS, CPU_MS, P999_MS, TURN_VALUES };

struct turn_bench {
    struct zbench *z;
    const char *dir;
    uint64_t pages, shard_pages, host_bytes;
    unsigned rounds;
    struct zbench_rig rig;
    uint64_t *ids; /* of the shards */
    uint64_t nshards;
    char daemon[256]; /* its options */
    double values[PHASES][TURN_VALUES][ZBENCH_ROUNDS_MAX];
};

/* ---- phases */

static int turn_unit(struct turn_bench *b, uint32_t unit, uint64_t pages)
{
    struct zc_range ranges[REGISTER];
    struct zbench_rig *r = &b->rig;
    int rc = zbench_unit(r->c, r->job.id, unit, pages * PAGE_ELEMS, ZC_BF16);

    for (uint64_t at = 0; at < pages && rc == 0;) {
        uint32_t n = 0;

        for (uint64_t count; at < pages && n < REGISTER; at += count) {
            count = zb_min_u64(b->shard_pages, pages - at);
            ranges[n++] = (struct zc_range){ .unit = unit,
                                             .first = at * PAGE_ELEMS,
                                             .count = count * PAGE_ELEMS };
        }
        rc = zc_register_wait(r->c, r->job.id, ranges, n, b->ids + b->nshards);
        b->nshards += n;
    }
    return rc;
}

/* Opens or attaches the job, defines its units, and makes it ready. */
static int turn_describe(struct turn_bench *b, bool attach)
{
    const struct zc_job_options options = { .keep = true,
                                            .durable = true,
                                            .attach = attach,
                                            .staging_bytes = STAGING,
                                            .moments = ZC_MOMENTS_Q8 };
    struct zc_placement placement;
    struct zbench_rig *r = &b->rig;
    int rc = zbench_rig_open(r, &options);

    if (rc < 0)
        return rc;
    b->nshards = 0;
    for (uint64_t at = 0, n; at < b->pages && rc == 0; at += n) {
        n = zb_min_u64(UNIT_PAGES, b->pages - at);
        rc = turn_unit(b, (uint32_t)(at / UNIT_PAGES), n);
    }
    if (rc == 0)
        rc = zc_ready_wait(r->c, r->job.id, NULL, DEADLINE_MS, &placement);
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

/* Sends initial values (step 0), or gradients, of all shards. */
static int turn_send(struct turn_bench *b)
{
    struct zbench_rig *r = &b->rig;
    uint64_t left = b->pages, of_unit = UNIT_PAGES;
    int rc = 0;

    for (uint64_t i = 0; i < b->nshards && rc == 0; i++) {
        uint64_t pages = zb_min_u64(b->shard_pages, zb_min_u64(of_unit, left));

        rc = zbench_send(r->c, &r->job, b->ids[i], pages * PAGE_ELEMS, ZC_BF16, r->step);
        left -= pages;
        of_unit = of_unit == pages ? UNIT_PAGES : of_unit - pages;
    }
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

static int turn_snapshot(struct zbench_rig *r)
{
    const struct zc_snapshot snapshot = { .job = "bench", .retain = 1 };
    struct zc_snapshot_row row;
    int rc = zc_snapshot_wait(r->c, &snapshot, &row);

    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

static int turn_fsck(struct zbench_rig *r)
{
    struct zc_message *problems = NULL;
    struct zc_fsck fsck;
    size_t n = 0;
    int rc = zc_fsck_wait(r->c, &fsck, &problems, &n);

    if (rc < 0)
        return zbench_rig_failed(r, rc);
    if (n > 0)
        rc = zb_fail(&r->z->err, -EBADMSG, "fsck: %s", problems[0].text);
    zc_rows_free(problems);
    return rc;
}

static int turn_df(struct zbench_rig *r)
{
    struct zc_df_row *rows = NULL;
    struct zc_df df;
    size_t n = 0;
    int rc = zc_df_wait(r->c, &df, &rows, &n);

    zc_rows_free(rows);
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

static int turn_destroy(struct zbench_rig *r)
{
    int rc = zc_job_close_wait(r->c, r->job.id);

    if (rc == 0)
        r->job.id = 0;
    if (rc == 0)
        rc = zc_job_destroy_wait(r->c, "bench");
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

static int turn_commit(struct zbench_rig *r)
{
    struct zc_point point;
    int rc = zc_commit_wait(r->c, r->job.id, ZC_COMMIT_STEP, r->step, DEADLINE_MS, &point);

    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

/* A step after new gradients. */
static int turn_step(struct turn_bench *b)
{
    double ignored;
    int rc;

    b->rig.step++;
    rc = turn_send(b);
    return rc < 0 ? rc : zbench_rig_step(&b->rig, ZC_COMMIT_NO, &ignored);
}

/* Sets the budget of host memory, and makes a step, which moves the optimizer state. */
static int turn_move(struct turn_bench *b, uint64_t host_bytes)
{
    struct zbench_rig *r = &b->rig;
    int rc = zc_tier_set_wait(r->c, "host", host_bytes);

    return rc < 0 ? zbench_rig_failed(r, rc) : turn_step(b);
}

static int turn_phase(struct turn_bench *b, enum turn_phase phase)
{
    struct zbench_rig *r = &b->rig;
    double ignored;

    switch (phase) {
    case PHASE_DEFINE:
        return turn_describe(b, false);
    case PHASE_PUSH:
        r->step++;
        return turn_send(b);
    case PHASE_WRITE:
        return turn_send(b);
    case PHASE_STEP:
        return zbench_rig_step(r, ZC_COMMIT_NO, &ignored);
    case PHASE_COMMIT:
        return turn_commit(r);
    case PHASE_LEAVE:
        return turn_move(b, b->host_bytes - b->pages * PAGE_ELEMS * LEAVE_BYTES);
    case PHASE_STREAM:
        return turn_step(b);
    case PHASE_RETURN:
        return turn_move(b, b->host_bytes);
    case PHASE_SNAPSHOT:
        return turn_snapshot(r);
    case PHASE_FSCK:
        return turn_fsck(r);
    case PHASE_DF:
        return turn_df(r);
    case PHASE_ATTACH:
        return turn_describe(b, true);
    case PHASE_DESTROY:
        return turn_destroy(r);
    case PHASES:
        break;
    }
    return 0;
}

/* ---- a round */

/* The turns since the last call. */
static int turn_look(struct turn_bench *b, struct zc_client *look, double ret[TURN_VALUES])
{
    static const char *const names[TURN_VALUES] = { "turn_recent_work", "turn_recent_ns",
                                                    "turn_recent_p999_ns" };
    uint64_t v[TURN_VALUES];
    int rc = zbench_counters(b->z, look, names, TURN_VALUES, v);

    if (rc < 0)
        return rc;
    ret[UNITS] = (double)v[UNITS];
    ret[CPU_MS] = (double)v[CPU_MS] / 1e6;
    ret[P999_MS] = (double)v[P999_MS] / 1e6;
    return 0;
}

/* Closes all connections, and restarts the daemon on the same data. */
static int turn_again(struct turn_bench *b, struct zc_client **look)
{
    struct zbench_rig *r = &b->rig;
    int rc = zc_job_close_wait(r->c, r->job.id);

    if (rc < 0)
        return zbench_rig_failed(r, rc);
    zc_close(r->c);
    zc_close(*look);
    r->c = *look = NULL;
    r->job.id = 0;
    rc = zbench_daemon_again(&r->daemon, &b->z->err, "%s", b->daemon);
    return rc < 0 ? rc : zbench_rig_connect(r, look);
}

static int turn_phases(struct turn_bench *b, unsigned round, struct zc_client **look)
{
    double ret[TURN_VALUES] = { 0 };
    int rc = 0;

    for (unsigned phase = 0; phase < PHASES && rc == 0; phase++) {
        if (phase == PHASE_ATTACH)
            rc = turn_again(b, look);
        if (rc == 0)
            rc = turn_look(b, *look, ret); /* resets the figures */
        if (rc == 0)
            rc = turn_phase(b, phase);
        (void)poll(NULL, 0, SETTLE_MS);
        if (rc == 0)
            rc = turn_look(b, *look, ret);
        for (unsigned v = 0; v < TURN_VALUES; v++)
            b->values[phase][v][round] = ret[v];
    }
    return rc;
}

static int turn_round(struct turn_bench *b, unsigned round)
{
    struct zc_client *look = NULL;
    int rc = zbench_rig_start(&b->rig, b->z, b->dir, "%s", b->daemon);

    if (rc == 0)
        rc = zbench_rig_connect(&b->rig, &look);
    if (rc == 0)
        rc = turn_phases(b, round, &look);
    zc_close(look);
    return zbench_rig_end(&b->rig, rc);
}

static int turn_rows(struct turn_bench *b)
{
    static const char *const phases[PHASES] = {
        [PHASE_DEFINE] = "define",  [PHASE_WRITE] = "write",   [PHASE_PUSH] = "push",
        [PHASE_STEP] = "step",      [PHASE_COMMIT] = "commit", [PHASE_LEAVE] = "leave",
        [PHASE_STREAM] = "stream",  [PHASE_RETURN] = "return", [PHASE_SNAPSHOT] = "snapshot",
        [PHASE_FSCK] = "fsck",      [PHASE_DF] = "df",         [PHASE_ATTACH] = "attach",
        [PHASE_DESTROY] = "destroy"
    };
    static const struct {
        const char *name, *unit;
        double bound;
    } values[TURN_VALUES] = { { "units", "units", TURN_UNITS },
                              { "cpu", "ms", TURN_MS },
                              { "p999", "ms", TURN_MS } };
    int rc = 0;

    for (unsigned phase = 0; phase < PHASES; phase++)
        for (unsigned v = 0; v < TURN_VALUES && rc == 0; v++) {
            struct zbench_row row = zbench_row(values[v].unit, true, "the bound", "turns/%s/%s",
                                               phases[phase], values[v].name);

            rc = zbench_add_fixed(b->z, &row, b->values[phase][v], values[v].bound, b->rounds);
        }
    return rc;
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct turn_bench, member)

static const struct zb_opt turn_options[] = {
    ZBENCH_DIR(struct turn_bench, "/var/tmp"),
    { "pages", ZB_OPT_SIZE, AT(pages), .arg = "N", .def = "100000", .min = 1, .max = 1u << 24 },
    { "shard-pages", ZB_OPT_SIZE, AT(shard_pages), .arg = "N", .def = "8", .min = 1,
      .max = UNIT_PAGES },
    ZBENCH_ROUNDS(struct turn_bench, "3"),
    { 0 },
};

static int turn_main(struct zbench *z, void *bench)
{
    struct turn_bench *b = bench;
    uint64_t elems = b->pages * PAGE_ELEMS;
    int rc = 0;

    b->z = z;
    b->host_bytes = elems * HOST_BYTES + 4 * STAGING + (UINT64_C(128) << 20);
    b->ids = calloc(b->pages, sizeof(*b->ids)); /* at most one shard per page */
    if (!b->ids)
        return zb_fail(&z->err, -ENOMEM, "shards: %m");
    (void)snprintf(b->daemon, sizeof(b->daemon),
                   "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --page-elems %" PRIu64
                   " --log-level error",
                   b->host_bytes, elems * 32 + (UINT64_C(256) << 20), PAGE_ELEMS);
    for (unsigned round = 0; round < b->rounds && rc == 0; round++)
        rc = turn_round(b, round);
    if (rc == 0)
        rc = turn_rows(b);
    if (rc == 0)
        zbench_note(z, "%" PRIu64 " pages in %" PRIu64 " shards", b->pages, b->nshards);
    free(b->ids);
    return rc;
}

const struct zbench_cmd zbench_turn_bounds = {
    .name = "turns",
    .help = "the longest turn of the daemon's loop, against what bounds it",
    .options = turn_options,
    .bytes = sizeof(struct turn_bench),
    .run = turn_main,
};
