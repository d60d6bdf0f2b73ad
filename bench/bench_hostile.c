/*
 * bench_hostile.c - `zbench hostile`: one client never slows another.
 *
 * MODEL. Two daemons of our own. A training job, the neighbour, runs in one of them, with its state
 * streamed. At the same time an attack (attack.h) runs, in turn
 *
 *     near  far  far  near
 *
 * on the neighbour's daemon, and on the other one, which is idle. The attack uses processors and
 * the file system both times; the difference is what it costs the neighbour through the daemon.
 * A slice starts the attack, times rounds of the neighbour for a while, ends the attack, and waits
 * until the daemons have dropped its clients. A round is everything that a step involves: push all
 * gradients, step, fetch and release all parameters. The control has its attack far each time.
 *
 * TWO PASSES. The first times steps, on a device of a fixed rate (nvme/zn_fixed.h), which saves
 * nothing. The second times commits, of every second step of a durable job on the file system of
 * --dir. Attacks on saved jobs run in the second pass only, which also times their steps.
 *
 * CHECKS. In each slice the neighbour's daemon keeps its host account within the budget, and its
 * memory within that plus an allowance. After each pass a third daemon trains the same job alone,
 * with all of it in memory and without commits: parameters and moments must be the same, bit for
 * bit.
 *
 * The attacker is the same user as this process, root or the daemon's user: limits per user do not
 * apply to it.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/size.h"
#include "base/sysmem.h"
#include "base/util.h"
#include "bench/attack.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define HOSTILE_UNITS     8u
#define HOSTILE_STAGING   (UINT64_C(4) << 20)
#define HOSTILE_SAMPLES   1024u
#define HOSTILE_SETTLE_MS 20000u /* until a daemon has dropped an attacker's clients */
#define HOSTILE_BESIDE \
    (UINT64_C(128) << 20) /* memory that a daemon may use beyond its budget, at least */
#define HOSTILE_BESIDE_PCT 15u

#if defined(__SANITIZE_ADDRESS__)
#define HOSTILE_JUDGES_MEMORY false /* ASan uses memory of its own */
#else
#define HOSTILE_JUDGES_MEMORY true
#endif

enum { NEAR, FAR, SIDES };
enum { STEP_MS, COMMIT_MS, WORST_MS, HOSTILE_VALUES };

struct hostile_side {
    struct zbench_rig rig;
    struct zc_client *look; /* a second client, which observes */
    uint32_t clients;       /* without an attacker */
    double seconds;         /* that the attack of the case ran */
    uint64_t done, refused; /* by it */
};

struct hostile_bench {
    struct zbench *z;
    const char *dir, *only;
    uint64_t params, page_elems, rate;
    unsigned rounds, window_ms;
    struct hostile_side sides[SIDES];
    struct zbench_harm *harm;
    const struct zbench_attack *attack;       /* of the case */
    bool control, saves;                      /* of the pass: the neighbour commits */
    uint64_t host_bytes, host_used, resident; /* of the neighbour's daemon; the most seen */
};

/* ---- daemons */

static int hostile_clients(struct hostile_bench *b, struct hostile_side *s, uint32_t *ret)
{
    struct zc_top_job *rows = NULL;
    struct zc_top top;
    size_t n = 0;
    int rc = zc_top_wait(s->look, NULL, &top, &rows, &n);

    if (rc < 0)
        return zb_fail(&b->z->err, rc, "%s", zc_error(s->look));
    zc_rows_free(rows);
    *ret = top.clients;
    return 0;
}

static int hostile_daemon(struct hostile_bench *b, int side)
{
    struct hostile_side *s = &b->sides[side];
    uint64_t state = b->params * 10, ring = 16 * b->page_elems * 18;
    char io[64] = "";
    int rc;

    b->host_bytes = ring + b->params * 16 + 2 * HOSTILE_STAGING + 128 * ZB_MIB;
    if (!b->saves)
        (void)snprintf(io, sizeof(io), "--io fixed --fixed-rate %" PRIu64, b->rate);
    rc = zbench_rig_start(&s->rig, b->z, b->dir,
                          "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --page-elems %" PRIu64
                          " --ring-bytes %" PRIu64 " --log-level error %s",
                          b->host_bytes, 4 * (state + b->params * 4) + 8 * ring + 256 * ZB_MIB,
                          b->page_elems, ring, io);
    if (rc == 0)
        rc = zbench_rig_connect(&s->rig, &s->look);
    return rc < 0 ? rc : hostile_clients(b, s, &s->clients);
}

/* Waits until only our own clients are connected. */
static int hostile_settle(struct hostile_bench *b, struct hostile_side *s)
{
    uint64_t until_ns = zb_now_ns() + HOSTILE_SETTLE_MS * UINT64_C(1000000);
    uint32_t clients;

    for (;;) {
        int rc = hostile_clients(b, s, &clients);

        if (rc < 0 || clients <= s->clients)
            return rc;
        if (zb_now_ns() > until_ns)
            return zb_fail(&b->z->err, -ETIMEDOUT,
                           "the daemon still has %u clients of an attack that ended %u s ago",
                           clients - s->clients, HOSTILE_SETTLE_MS / 1000);
        (void)poll(NULL, 0, 2);
    }
}

/* ---- the neighbour */

/* Fills staging with initial values, or a gradient, of a unit. */
static void hostile_fill(struct zbench_rig *r, bool values)
{
    float *f = r->job.staging;
    uint16_t *half = r->job.staging;

    for (uint64_t i = 0; values && i < r->job.staging_bytes / sizeof(*f); i++)
        f[i] = (float)(i % 1021) / 1021 - 0.5f;
    for (uint64_t i = 0; !values && i < r->job.staging_bytes / sizeof(*half); i++)
        half[i] =
            (uint16_t)(0x3c00 + i % 509 + (i % 2) * 0x8000); /* bf16: 0.0078 to 0.03, both signs */
}

static int hostile_open(struct hostile_bench *b, struct zbench_rig *r, bool streamed)
{
    const struct zc_job_options options = {
        .keep = streamed && b->saves,
        .durable = streamed && b->saves,
        .staging_bytes = HOSTILE_STAGING,
        /* room for parameters and gradients, and none for state */
        .host_bytes_max = streamed ? HOSTILE_STAGING + b->params * 4 : 0,
    };
    struct zc_placement placement;
    int rc = zbench_rig_open(r, &options);

    if (rc < 0)
        return rc;
    hostile_fill(r, true);
    rc = zbench_rig_define(r, HOSTILE_UNITS, b->params / HOSTILE_UNITS, ZC_BF16, &placement);
    hostile_fill(r, false);
    return rc;
}

/* *ret_ms: the time of the round. */
static int hostile_round(struct zbench_rig *r, enum zc_commit commit, double *ret_ms)
{
    struct zc_view views[HOSTILE_UNITS];
    uint64_t begin_ns = zb_now_ns();
    double ignored;
    int rc;

    *(uint16_t *)r->job.staging = (uint16_t)(0x3c00 + r->step % 251); /* each step is different */
    rc = zbench_rig_push(r);
    if (rc == 0)
        rc = zbench_rig_step(r, commit, &ignored);
    if (rc < 0)
        return rc;
    rc = zc_fetch_wait(r->c, r->ids, r->units, r->step, 0, views);
    if (rc == 0)
        rc = zc_release(r->c, r->ids, r->units);
    *ret_ms = (double)(zb_now_ns() - begin_ns) / 1e6;
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

/* Rounds for the time of a slice; in the second pass without and with a commit, in turn. */
static int hostile_rounds(struct hostile_bench *b, double *ret)
{
    uint64_t until_ns = zb_now_ns() + b->window_ms * UINT64_C(1000000);
    static double ms[2][HOSTILE_SAMPLES];
    unsigned n = 0;
    int rc = 0;

    do
        for (unsigned k = 0; k < (b->saves ? 2u : 1u) && rc == 0; k++) {
            rc = hostile_round(&b->sides[NEAR].rig, k == 0 ? ZC_COMMIT_NO : ZC_COMMIT_STEP,
                               &ms[k][n]);
            ret[WORST_MS] = ms[k][n] > ret[WORST_MS] ? ms[k][n] : ret[WORST_MS];
        }
    while (rc == 0 && ++n < HOSTILE_SAMPLES && zb_now_ns() < until_ns);
    if (rc < 0)
        return rc;
    ret[STEP_MS] = zbench_median(ms[0], n);
    ret[COMMIT_MS] = b->saves ? zbench_median(ms[1], n) : 0;
    return 0;
}

/* ---- limits of the attacked daemon */

static int hostile_account(struct hostile_bench *b)
{
    struct hostile_side *s = &b->sides[NEAR];
    uint64_t most = b->host_bytes +
                    zb_max_u64(HOSTILE_BESIDE, b->host_bytes / 100 * HOSTILE_BESIDE_PCT);
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zc_tiers_wait(s->look, &rows, &n);

    if (rc < 0)
        return zb_fail(&b->z->err, rc, "%s", zc_error(s->look));
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (strcmp(rows[i].name, "host") != 0)
            continue;
        b->host_used = zb_max_u64(b->host_used, rows[i].used);
        if (rows[i].used > rows[i].budget || rows[i].budget > b->host_bytes)
            rc = zb_fail(&b->z->err, -EOVERFLOW, "%s: the host account uses %s of %s (%s)",
                         b->attack->name, zb_size_text(rows[i].used).s,
                         zb_size_text(b->host_bytes).s, rows[i].detail);
    }
    zc_rows_free(rows);
    b->resident = zb_max_u64(b->resident, zb_sysmem_resident((int)s->rig.daemon.pid));
    if (rc == 0 && HOSTILE_JUDGES_MEMORY && b->resident > most)
        rc = zb_fail(&b->z->err, -EOVERFLOW,
                     "%s: the daemon uses %s of memory, with a budget of %s", b->attack->name,
                     zb_size_text(b->resident).s, zb_size_text(b->host_bytes).s);
    return rc;
}

/* ---- the cases */

static int hostile_slice(void *bench, unsigned who, double *ret)
{
    struct hostile_bench *b = bench;
    struct hostile_side *s = &b->sides[who == 0 && !b->control ? NEAR : FAR];
    struct zbench_child child = ZBENCH_NO_CHILD;
    uint64_t begin_ns;
    int rc;

    atomic_store(&b->harm->done, 0);
    atomic_store(&b->harm->refused, 0);
    begin_ns = zb_now_ns();
    rc = zbench_attack_start(&child, b->attack, s->rig.daemon.socket, b->harm, &b->z->err);
    if (rc < 0)
        return rc;
    rc = hostile_rounds(b, ret);
    if (rc == 0)
        rc = hostile_account(b);
    zbench_child_end(&child);
    s = &b->sides[who]; /* the control's attack is counted as if it had changed sides */
    s->seconds += (double)(zb_now_ns() - begin_ns) / 1e9;
    s->done += atomic_load(&b->harm->done);
    s->refused += atomic_load(&b->harm->refused);
    for (int i = 0; i < SIDES && rc == 0; i++)
        rc = hostile_settle(b, &b->sides[i]);
    return rc;
}

static int hostile_case(struct hostile_bench *b, const char *name)
{
    static const char *const values[] = { "step", "commit" };
    struct hostile_side *near = &b->sides[NEAR], *far = &b->sides[FAR];
    struct zbench_series s;
    int rc;

    if (!zbench_wants(b->only, name))
        return 0;
    for (int i = 0; i < SIDES; i++)
        b->sides[i].seconds = (double)(b->sides[i].done = b->sides[i].refused = 0);
    rc = zbench_turns(&s, "ABBA", HOSTILE_VALUES, b->rounds, hostile_slice, b);
    for (int v = STEP_MS; v <= COMMIT_MS && rc == 0; v++) {
        if (v == STEP_MS ? b->saves && !b->attack->saves : !b->saves)
            continue;
        struct zbench_row row = zbench_row("ms", true, "the attack on another daemon",
                                           "hostile/%s/%s", name, values[v]);

        rc = zbench_add(b->z, &row, s.of[0][v], s.of[1][v], b->rounds);
    }
    if (rc == 0)
        zbench_note(
            b->z,
            "%s, %s: %.0f and %.0f %s per second (%.0f and %.0f %% of them refused); the worst "
            "rounds took %.1f and %.1f ms",
            name, b->saves ? "commits" : "steps", (double)near->done / near->seconds,
            (double)far->done / far->seconds, b->attack->counts,
            100.0 * (double)near->refused / (double)near->done,
            100.0 * (double)far->refused / (double)far->done,
            zbench_median(s.of[0][WORST_MS], b->rounds),
            zbench_median(s.of[1][WORST_MS], b->rounds));
    return rc;
}

/* ---- the same job, alone */

static int hostile_same(struct hostile_bench *b, struct zbench_rig *alone)
{
    static const enum zc_what planes[] = { ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
    struct zbench_rig *r = &b->sides[NEAR].rig;
    uint64_t part =
        zb_min_u64(HOSTILE_STAGING / sizeof(float) / b->page_elems * b->page_elems, r->count);

    for (uint32_t u = 0; u < r->units; u++)
        for (size_t p = 0; p < ZB_COUNT(planes); p++)
            for (uint64_t at = 0; at < r->count; at += part) {
                uint64_t n = zb_min_u64(part, r->count - at);
                int rc = zc_read_wait(r->c, r->ids[u], planes[p], at, n, r->job.staging);

                if (rc < 0)
                    return zbench_rig_failed(r, rc);
                rc = zc_read_wait(alone->c, alone->ids[u], planes[p], at, n, alone->job.staging);
                if (rc < 0)
                    return zbench_rig_failed(alone, rc);
                if (memcmp(r->job.staging, alone->job.staging, n * sizeof(float)) != 0)
                    return zb_fail(&b->z->err, -EBADMSG,
                                   "next to attackers, the training job got other values: unit "
                                   "%u, plane %d, from element %" PRIu64 " on",
                                   u, (int)planes[p], at);
            }
    return 0;
}

static int hostile_alone(struct hostile_bench *b)
{
    uint64_t steps = b->sides[NEAR].rig.step;
    struct zbench_rig alone;
    double ms;
    int rc = zbench_rig_start(&alone, b->z, b->dir,
                              "--host-bytes %" PRIu64 " --nvme-bytes 0 --page-elems %" PRIu64
                              " --log-level error",
                              b->params * 16 + 2 * HOSTILE_STAGING + 64 * ZB_MIB, b->page_elems);

    if (rc == 0)
        rc = hostile_open(b, &alone, false);
    for (uint64_t i = 0; i < steps && rc == 0; i++)
        rc = hostile_round(&alone, ZC_COMMIT_NO, &ms);
    if (rc == 0)
        rc = hostile_same(b, &alone);
    rc = zbench_rig_end(&alone, rc);
    if (rc == 0)
        zbench_note(b->z,
                    "%s: after %" PRIu64
                    " steps the training job's values are those of a run alone, bit for bit; "
                    "of the host tier's %s at most %s were in use, of memory %s",
                    b->saves ? "commits" : "steps", steps, zb_size_text(b->host_bytes).s,
                    zb_size_text(b->host_used).s, zb_size_text(b->resident).s);
    return rc;
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct hostile_bench, member)

static const struct zb_opt hostile_options[] = {
    ZBENCH_DIR(struct hostile_bench, "/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "1M", .min = HOSTILE_UNITS * 4096,
      .max = UINT64_C(1) << 36, .multiple = HOSTILE_UNITS * 4096 },
    { "page-elems", ZB_OPT_SIZE, AT(page_elems), .arg = "N", .def = "16K", .min = 4096,
      .multiple = 4096 },
    { "rate", ZB_OPT_SIZE, AT(rate), .arg = "SIZE", .def = "1G", .min = ZB_MIB },
    ZBENCH_ROUNDS(struct hostile_bench, "6"),
    { "window-ms", ZB_OPT_COUNT, AT(window_ms), .arg = "MS", .def = "400", .min = 1,
      .max = 600000 },
    ZBENCH_ONLY(struct hostile_bench, "ATTACK"),
    { 0 },
};

static int hostile_cases(struct hostile_bench *b)
{
    double warm[HOSTILE_VALUES] = { 0 };
    int rc = hostile_rounds(b, warm);

    b->control = true;
    b->attack = &zbench_attacks[0];
    if (rc == 0)
        rc = hostile_case(b, "control");
    b->control = false;
    for (; b->attack->name && rc == 0; b->attack++)
        if (b->saves || !b->attack->saves)
            rc = hostile_case(b, b->attack->name);
    return rc;
}

static int hostile_pass(struct hostile_bench *b)
{
    size_t before = b->z->count;
    int rc = 0;

    b->host_used = b->resident = 0;
    for (int i = 0; i < SIDES; i++)
        b->sides[i] = (struct hostile_side){ .rig = { .z = b->z, .daemon = ZBENCH_NO_DAEMON } };
    for (int i = 0; i < SIDES && rc == 0; i++)
        rc = hostile_daemon(b, i);
    if (rc == 0)
        rc = hostile_open(b, &b->sides[NEAR].rig, true);
    b->sides[NEAR].clients++;
    if (rc == 0)
        rc = hostile_cases(b);
    if (rc == 0 && b->z->count > before)
        rc = hostile_alone(b);
    for (int i = 0; i < SIDES; i++) {
        zc_close(b->sides[i].look);
        rc = zbench_rig_end(&b->sides[i].rig, rc);
    }
    return rc;
}

static int hostile_main(struct zbench *z, void *bench)
{
    struct hostile_bench *b = bench;
    int rc;

    b->z = z;
    if (b->page_elems * sizeof(float) > HOSTILE_STAGING)
        return zb_fail(&z->err, -EINVAL, "--page-elems must be at most %" PRIu64,
                       (uint64_t)(HOSTILE_STAGING / sizeof(float)));
    b->harm =
        mmap(NULL, sizeof(*b->harm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b->harm == MAP_FAILED)
        return zb_fail(&z->err, -errno, "shared memory: %m");
    rc = hostile_pass(b);
    b->saves = true;
    if (rc == 0)
        rc = hostile_pass(b);
    (void)munmap(b->harm, sizeof(*b->harm));
    return rc;
}

const struct zbench_cmd zbench_hostile = {
    .name = "hostile",
    .help = "a training job next to hostile clients, against the same with the attack on another "
            "daemon",
    .options = hostile_options,
    .bytes = sizeof(struct hostile_bench),
    .run = hostile_main,
};
