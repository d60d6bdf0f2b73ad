/*
 * bench_overlap.c - what a trainer gains from each way in which a step overlaps its passes.
 *
 * MODEL. A trainer that computes by sleeping, as long in each iteration as the drive needs for a
 * step: a third of it in the forward pass (fetch a unit, sleep, release), the rest in the backward
 * pass (sleep, push a unit's gradient; the last unit first). Its parameters and gradients are in
 * host memory, all of its state on a device of a fixed rate, so that the drive's time is known:
 * bytes / rate. One daemon for each case; an iteration is timed from the end of one forward pass to
 * the next.
 *
 *     none   the step begins when all gradients are there, and is waited for: about the sum
 *     serve  the next forward pass goes on as its parameters come
 *     early  shards are stepped as their gradients come, and the step is waited for
 *     all    both: about the greater of the two
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/place.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/job.h"
#include "bench/process.h"
#include "bench/zbench.h"
#include "client/zclient.h"

#define OVERLAP_UNITS   48u
#define OVERLAP_BUFFERS 8u
#define OVERLAP_PAGE \
    65536u /* elements: what is in flight is a small part of a step, as in a large model */
#define OVERLAP_FORWARD 3u  /* one part of so many of computing is forward */
#define STEP_BYTES      20u /* of one parameter: bf16, AdamW, state read and written */
#define HOST_BYTES      6u  /* of one parameter: bf16, and its fp32 gradient */
#define NVME_BYTES      24u /* of one parameter: state, twice, and more */

static const struct overlap_case {
    const char *name;
    bool early, serve;
} cases[] = {
    { .name = "overlap/none" },
    { .name = "overlap/serve", .serve = true },
    { .name = "overlap/early", .early = true },
    { .name = "overlap/all", .early = true, .serve = true },
};

struct overlap_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, rate;
    unsigned rounds;

    uint64_t unit;  /* elements of each */
    double drive_s; /* of a step, and of computing */
    struct zbench_daemon daemon;
    struct zc_client *c;
    struct zc_job job;
    uint64_t ids[OVERLAP_UNITS];
    uint64_t step;
    bool stepping;
    int step_rc;
    struct zc_stepped stepped;
};

static int overlap_failed(struct overlap_bench *b, int rc)
{
    return zb_fail(&b->z->err, rc, "%s", b->c ? zc_error(b->c) : zc_strerror(rc));
}

static void compute_for(double s)
{
    struct timespec left = { .tv_sec = (time_t)s, .tv_nsec = (long)(fmod(s, 1.0) * 1e9) };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* ---- the job */

static int overlap_daemon(struct overlap_bench *b)
{
    uint64_t buffer = zb_buffer_bytes(OVERLAP_PAGE);
    char host[32], nvme[32], ring[32], rate[32], page[32];
    const char *const options[] = { "--host-bytes", host,           "--nvme-bytes",
                                    nvme,           "--ring-bytes", ring,
                                    "--page-elems", page,           "--io",
                                    "fixed",        "--fixed-rate", rate,
                                    "--log-level",  "error",        NULL };

    (void)snprintf(host, sizeof(host), "%llu",
                   (unsigned long long)(OVERLAP_BUFFERS * buffer + b->unit * sizeof(float) +
                                        b->params * HOST_BYTES));
    (void)snprintf(nvme, sizeof(nvme), "%llu",
                   (unsigned long long)(b->params * NVME_BYTES + (64u << 20)));
    (void)snprintf(ring, sizeof(ring), "%llu", (unsigned long long)(OVERLAP_BUFFERS * buffer));
    (void)snprintf(rate, sizeof(rate), "%llu", (unsigned long long)b->rate);
    (void)snprintf(page, sizeof(page), "%u", OVERLAP_PAGE);
    b->daemon = ZBENCH_NO_DAEMON;
    b->c = NULL;
    b->step = 0;
    b->stepping = false;
    return zbench_daemon_start(&b->daemon, b->dir, options, &b->z->err);
}

static int overlap_open(struct overlap_bench *b, const struct overlap_case *c)
{
    struct zc_job_options options = { .name = "bench",
                                      .world = 1,
                                      .groups = 1,
                                      .early = c->early,
                                      .staging_bytes = b->unit * sizeof(float) };
    struct zc_placement placement = { 0 };
    int rc =
        zc_open(&b->c, &(struct zc_options){ .socket = b->daemon.socket, .program = "zbench" });

    if (rc < 0 || (rc = zc_job_open_wait(b->c, &options, &b->job)) < 0)
        return overlap_failed(b, rc);
    memset(b->job.staging, 0, b->job.staging_bytes);
    for (uint32_t u = 0; u < OVERLAP_UNITS; u++) {
        if ((rc = zbench_unit_whole(b->c, b->job.id, u, b->unit, ZC_F32, &b->ids[u])) < 0)
            return overlap_failed(b, rc);
    }
    rc = zc_ready_wait(b->c, b->job.id, NULL, 0, &placement);
    for (uint32_t u = 0; u < OVERLAP_UNITS && rc == 0; u++)
        rc = zc_write_wait(b->c, b->ids[u], ZC_MASTER, 0, b->unit, b->job.staging);
    if (rc == 0 && placement.early != c->early)
        return zb_fail(&b->z->err, -ENOSPC, "the daemon had no room for early steps");
    return rc < 0 ? overlap_failed(b, rc) : 0;
}

/* ---- an iteration */

static void overlap_stepped(void *arg, int rc)
{
    struct overlap_bench *b = arg;

    b->stepping = false;
    b->step_rc = rc;
}

static int overlap_backward(struct overlap_bench *b, const struct overlap_case *c,
                            const struct zc_step *step)
{
    double pause = b->drive_s * (OVERLAP_FORWARD - 1) / OVERLAP_FORWARD / OVERLAP_UNITS;
    int rc = c->early ? zc_step_begin_wait(b->c, b->job.id, step, 1) : 0;

    for (uint32_t u = OVERLAP_UNITS; u-- > 0 && rc == 0;) {
        const struct zc_push push = { .shard = b->ids[u],
                                      .step = step->step,
                                      .dtype = ZC_F32,
                                      .count = b->unit,
                                      .staged = b->job.staging };

        compute_for(pause);
        rc = zc_push_wait(b->c, &push);
    }
    return rc;
}

static int overlap_forward(struct overlap_bench *b)
{
    int rc = 0;

    for (uint32_t u = 0; u < OVERLAP_UNITS && rc == 0; u++) {
        struct zc_view view;

        rc = zc_fetch_wait(b->c, &b->ids[u], 1, b->step, 0, &view);
        if (rc < 0)
            break;
        compute_for(b->drive_s / OVERLAP_FORWARD / OVERLAP_UNITS);
        rc = zc_release(b->c, &b->ids[u], 1);
    }
    while (rc == 0 && b->stepping) /* its last shard was fetched: it is over, or nearly so */
        rc = zc_poll(b->c, 1000) < 0 ? -ENOTCONN : 0;
    return rc < 0 ? rc : b->step_rc;
}

static int overlap_iteration(struct overlap_bench *b, const struct overlap_case *c, double *ret_s)
{
    static const struct zc_group group = { .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
    struct zc_step step = { .step = b->step + 1, .scale = 1, .groups = &group, .ngroups = 1 };
    uint64_t begin_ns = zb_now_ns();
    int rc = overlap_backward(b, c, &step);

    b->step++;
    b->step_rc = 0;
    if (rc == 0 && c->serve) {
        b->stepping = true;
        rc = zc_step(b->c, b->job.id, &step, &b->stepped, overlap_stepped, b);
    } else if (rc == 0) {
        rc = zc_step_wait(b->c, b->job.id, &step, &b->stepped);
    }
    if (rc == 0)
        rc = overlap_forward(b);
    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    return rc < 0 ? overlap_failed(b, rc) : 0;
}

static int overlap_case(struct overlap_bench *b, const struct overlap_case *c)
{
    struct zbench_row row = { .unit = "s", .reference_name = "max(compute, I/O)", .lower = true };
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX], ignored;
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = overlap_daemon(b);

    (void)snprintf(row.name, sizeof(row.name), "%s", c->name);
    if (rc == 0)
        rc = overlap_open(b, c);
    if (rc == 0)
        rc = overlap_iteration(b, c, &ignored); /* warms up */
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        rc = overlap_iteration(b, c, &values[i]);
        references[i] = b->drive_s;
    }
    if (rc == 0 && (rc = zc_jobs_wait(b->c, "bench", &rows, &n)) < 0)
        rc = overlap_failed(b, rc);
    if (rc == 0 && n == 1 && rows[0].nvme_read_bytes != b->params * (STEP_BYTES / 2) * b->step)
        rc = zb_fail(&b->z->err, -EBADMSG, "%llu bytes were read in %llu steps, and not %llu",
                     (unsigned long long)rows[0].nvme_read_bytes, (unsigned long long)b->step,
                     (unsigned long long)(b->params * (STEP_BYTES / 2) * b->step));
    zc_rows_free(rows);
    if (rc == 0 && (rc = zc_job_close_wait(b->c, b->job.id)) < 0)
        rc = overlap_failed(b, rc);
    zc_close(b->c);
    zbench_daemon_end(&b->daemon);
    return rc < 0 ? rc : zbench_add(b->z, &row, values, references, b->rounds);
}

/* ---- options */

static int overlap_main(struct zbench *z, void *bench)
{
    struct overlap_bench *b = bench;
    int rc = 0;

    b->z = z;
    b->unit = b->params / OVERLAP_UNITS;
    b->drive_s = (double)(b->params * STEP_BYTES) / (double)b->rate;
    zbench_note(z, "%.1f million parameters, %.0f MB/s: %.2f s of I/O and %.2f s of computing",
                (double)b->params / 1e6, (double)b->rate / 1e6, b->drive_s, b->drive_s);
    for (size_t i = 0; i < ZB_COUNT(cases) && rc == 0; i++)
        rc = overlap_case(b, &cases[i]);
    return rc;
}

#define AT(member)    ZB_OPT_AT(struct overlap_bench, member)
#define OVERLAP_ALIGN (OVERLAP_UNITS * ZB_BLOCK_ELEMS)

static const struct zb_opt overlap_options[] = {
    ZBENCH_DIR(struct overlap_bench, "/var/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "24M", .min = OVERLAP_ALIGN,
      .max = UINT64_C(1) << 34, .round = OVERLAP_ALIGN },
    /* so slow that the processor does not matter */
    { "rate", ZB_OPT_SIZE, AT(rate), .arg = "SIZE", .def = "300000000", .min = 1 },
    ZBENCH_ROUNDS(struct overlap_bench, "5"),
    { 0 },
};

const struct zbench_cmd zbench_overlap = {
    .name = "overlap",
    .help = "what a step that overlaps the passes saves",
    .options = overlap_options,
    .bytes = sizeof(struct overlap_bench),
    .run = overlap_main,
};
