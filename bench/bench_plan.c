/*
 * bench_plan.c - `zbench plan`: how long a step takes, against what `zctl plan` says it will.
 *
 * MODEL. A zshardd of our own with a job of bf16 parameters, on the drive under --dir, or on a
 * device of a fixed rate in memory. The prediction is base/forecast.h's for this job, with the
 * rates that `zctl plan --measure` would find (base/measure.h, kernels/measure.c): measured in the
 * same run, before and behind the steps that they predict,
 *
 *     measure  step  step  measure
 *
 * A step is timed from the request to its answer, with its gradients pushed before. Of the fixed
 * rate nothing is measured but memory.
 *
 * The cases: everything streamed (state and parameters live on NVMe), and half of the state.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/forecast.h"
#include "base/measure.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/job.h"
#include "bench/process.h"
#include "client/zclient.h"
#include "kernels/measure.h"

#define PLAN_UNITS   8u
#define PLAN_BUFFERS 32u
#define MEASURE_NS   UINT64_C(500000000)

static const struct plan_case {
    const char *name;
    uint64_t rate;        /* of a fixed device; 0: the drive */
    unsigned state_share; /* so many hundredths of the state are resident */
    bool params;          /* parameters are */
} cases[] = {
    { "plan/drive/step-time", 0, 0, true },
    { "plan/drive-all/step-time", 0, 0, false },
    { "plan/drive-half/step-time", 0, 50, true },
    { "plan/fixed-1G/step-time", 1000000000, 0, true },
    { "plan/fixed-1G-half/step-time", 1000000000, 50, true },
    { "plan/host/step-time", 0, 100, true },
};

struct plan_bench {
    struct zbench *z;
    const char *dir, *only;
    uint64_t params;
    unsigned rounds;

    struct zb_model model;
    struct zb_run run;
    struct zb_node node;
    struct zb_forecast f;
    int fd; /* that the drive is measured on; -1: none */

    struct zbench_daemon daemon;
    struct zc_client *c;
    struct zc_job job;
    uint64_t ids[PLAN_UNITS], step;
};

static int plan_failed(struct plan_bench *b, int rc)
{
    return zb_fail(&b->z->err, rc, "%s", b->c ? zc_error(b->c) : zc_strerror(rc));
}

/* ---- the plan */

/* The least budget in which the case lies as it says. */
static int plan_node(struct plan_bench *b, const struct plan_case *c)
{
    struct zb_layout *l = &b->run.layout;
    uint64_t params, state;
    int rc;

    b->node = (struct zb_node){ .nvme_bytes = b->params * 26 + ZB_GIB,
                                .page_elems = ZB_PAGE_ELEMS_DEFAULT,
                                .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) };
    b->node.ring_bytes = PLAN_BUFFERS * zb_buffer_bytes(b->node.page_elems);
    rc = zb_forecast(&b->run, &b->node, &b->f, &b->z->err); /* of no host memory */
    if (rc < 0)
        return rc;
    params = zb_layout_bytes(l, ZB_PARAM, b->node.page_elems, b->model.units[0]) * PLAN_UNITS;
    state = zb_layout_bytes(l, ZB_STATE, b->node.page_elems, b->model.units[0]) * PLAN_UNITS;
    b->node.host_bytes = b->f.host_least;
    if (c->params) /* the least has their ring */
        b->node.host_bytes += params - ZB_RING_PINS * (params / PLAN_UNITS);
    b->node.host_bytes += state / 100 * c->state_share / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
    if (c->state_share == 100)
        b->node.host_bytes += ZB_MIB;
    rc = zb_forecast(&b->run, &b->node, &b->f, &b->z->err);
    return rc < 0 || b->f.fits ? rc : zb_fail(&b->z->err, b->f.why.code, "%s", b->f.why.text);
}

/* What is measured now predicts the step. */
static int plan_predict(struct plan_bench *b, const struct plan_case *c, double *ret_s)
{
    double drive = (double)c->rate;
    bool measured = c->rate == 0 && b->f.step_read > 0;
    int rc = zk_measure_steps(&b->run.layout, b->node.cores, &b->node.memory, &b->z->err);

    if (rc == 0 && measured && b->fd < 0 && (b->fd = zb_measure_open(b->dir, &b->z->err)) < 0)
        rc = b->fd;
    if (rc == 0 && measured)
        rc = zb_measure_drive(b->fd, zb_layout_page(&b->run.layout, ZB_STATE, b->node.page_elems),
                              MEASURE_NS, &drive, &b->z->err);
    b->node.drive_read = b->node.drive_write = drive;
    zb_forecast_time(&b->node, &b->f);
    *ret_s = b->f.step_seconds;
    return rc;
}

/* ---- the job */

/* Initial values (step 0), or a gradient. */
static int plan_send(struct plan_bench *b, uint32_t unit, uint64_t step)
{
    int rc = zbench_send(b->c, &b->job, b->ids[unit], b->model.units[unit], ZC_F32, step);

    return rc < 0 ? plan_failed(b, rc) : 0;
}

static int plan_open(struct plan_bench *b)
{
    struct zc_job_options options = { .name = "bench", .world = 1, .groups = 1 };
    struct zc_placement placement;
    int rc =
        zc_open(&b->c, &(struct zc_options){ .socket = b->daemon.socket, .program = "zbench" });

    options.staging_bytes = b->f.host_staging;
    if (rc < 0 || (rc = zc_job_open_wait(b->c, &options, &b->job)) < 0)
        return plan_failed(b, rc);
    memset(b->job.staging, 0, b->job.staging_bytes);
    for (uint32_t u = 0; u < PLAN_UNITS; u++) {
        if ((rc = zbench_unit_whole(b->c, b->job.id, u, b->model.units[u], ZC_F32, &b->ids[u])) < 0)
            return plan_failed(b, rc);
    }
    if ((rc = zc_ready_wait(b->c, b->job.id, NULL, 0, &placement)) < 0)
        return plan_failed(b, rc);
    for (uint32_t u = 0; u < PLAN_UNITS && rc == 0; u++)
        rc = plan_send(b, u, 0);
    return rc;
}

static int plan_step(struct plan_bench *b, double *ret_s)
{
    static const struct zc_group group = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    struct zc_step step = { .step = ++b->step, .scale = 1, .groups = &group, .ngroups = 1 };
    struct zc_stepped stepped;
    uint64_t begin_ns;
    int rc = 0;

    for (uint32_t u = 0; u < PLAN_UNITS && rc == 0; u++)
        rc = plan_send(b, u, b->step);
    if (rc < 0)
        return rc;
    begin_ns = zb_now_ns();
    rc = zc_step_wait(b->c, b->job.id, &step, &stepped);
    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    return rc < 0 ? plan_failed(b, rc) : 0;
}

static int plan_daemon(struct plan_bench *b, const struct plan_case *c)
{
    char host[32], nvme[32], ring[32], rate[32];
    const char *const options[] = { "--host-bytes",
                                    host,
                                    "--nvme-bytes",
                                    nvme,
                                    "--ring-bytes",
                                    ring,
                                    "--log-level",
                                    "warn",
                                    c->rate ? "--io" : NULL,
                                    "fixed",
                                    "--fixed-rate",
                                    rate,
                                    NULL };

    (void)snprintf(host, sizeof(host), "%llu", (unsigned long long)b->node.host_bytes);
    (void)snprintf(nvme, sizeof(nvme), "%llu",
                   (unsigned long long)(b->node.nvme_bytes + ZB_DATA_START));
    (void)snprintf(ring, sizeof(ring), "%llu", (unsigned long long)b->node.ring_bytes);
    (void)snprintf(rate, sizeof(rate), "%llu", (unsigned long long)c->rate);
    b->daemon = ZBENCH_NO_DAEMON;
    b->c = NULL;
    b->step = 0;
    return zbench_daemon_start(&b->daemon, b->dir, options, &b->z->err);
}

/* What the daemon moved in its last step is what was planned, or the time means nothing. */
static int plan_compare(struct plan_bench *b, const struct zc_job_row *before,
                        const struct zc_job_row *after)
{
    uint64_t read = after->nvme_read_bytes - before->nvme_read_bytes;
    uint64_t written = after->nvme_written_bytes - before->nvme_written_bytes;

    if (read == b->f.step_read && written == b->f.step_written)
        return 0;
    return zb_fail(&b->z->err, -EBADMSG, "a step read %llu and wrote %llu bytes: planned were %llu",
                   (unsigned long long)read, (unsigned long long)written,
                   (unsigned long long)b->f.step_read);
}

static int plan_job_row(struct plan_bench *b, struct zc_job_row *ret)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(b->c, "bench", &rows, &n);

    if (rc < 0)
        return plan_failed(b, rc);
    if (n > 0)
        *ret = rows[0];
    zc_rows_free(rows);
    return 0;
}

static int plan_rounds(struct plan_bench *b, const struct plan_case *c, double *values,
                       double *references)
{
    struct zc_job_row before = { 0 }, after = { 0 };
    double predicted[2], steps[2];
    int rc = plan_step(b, &steps[0]); /* warms up */

    if (rc == 0)
        rc = plan_job_row(b, &before);
    if (rc == 0)
        rc = plan_step(b, &steps[0]);
    if (rc == 0)
        rc = plan_job_row(b, &after);
    if (rc == 0)
        rc = plan_compare(b, &before, &after);
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        if ((rc = plan_predict(b, c, &predicted[0])) < 0 || (rc = plan_step(b, &steps[0])) < 0 ||
            (rc = plan_step(b, &steps[1])) < 0 || (rc = plan_predict(b, c, &predicted[1])) < 0)
            break;
        values[i] = (steps[0] + steps[1]) / 2;
        references[i] = (predicted[0] + predicted[1]) / 2;
    }
    return rc;
}

static int plan_case(struct plan_bench *b, const struct plan_case *c)
{
    struct zbench_row row = { .unit = "s", .reference_name = "the plan", .lower = true };
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX];
    int rc;

    (void)snprintf(row.name, sizeof(row.name), "%s", c->name);
    rc = plan_node(b, c);
    if (rc == 0)
        rc = plan_daemon(b, c);
    if (rc == 0)
        rc = plan_open(b);
    if (rc == 0)
        rc = plan_rounds(b, c, values, references);
    zc_close(b->c);
    zbench_daemon_end(&b->daemon);
    if (rc < 0)
        return rc;
    zbench_note(b->z,
                "%s: %.1f million parameters, %.2f GB read and as much written in a step; memory "
                "%.1f GB/s, drive %.2f GB/s; bound by %s (drive %.3f s, kernel %.3f s)",
                c->name, (double)b->f.params / 1e6, (double)b->f.step_read / 1e9,
                b->node.memory / 1e9, b->node.drive_read / 1e9, zb_bound_name(b->f.bound),
                b->f.drive_seconds, b->f.kernel_seconds);
    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* ---- options */

static int plan_main(struct zbench *z, void *bench)
{
    struct plan_bench *b = bench;
    int rc;

    b->z = z;
    b->fd = -1;
    b->run = (struct zb_run){ .model = &b->model,
                              .mode = ZB_ZERO3,
                              .ranks = 1,
                              .nodes = 1,
                              .param = ZB_OFFLOAD_NVME,
                              .optimizer = ZB_OFFLOAD_NVME,
                              .grad = ZB_OFFLOAD_HOST,
                              .micro_steps = 1 };
    rc = zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &b->run.layout, &z->err);
    if (rc == 0)
        rc = zb_model_params(&b->model, b->params, PLAN_UNITS, &z->err);
    for (size_t i = 0; i < ZB_COUNT(cases) && rc == 0; i++)
        if (zbench_wants(b->only, cases[i].name))
            rc = plan_case(b, &cases[i]);
    if (b->fd >= 0)
        zb_close_fd(&b->fd);
    zb_model_done(&b->model);
    return rc;
}

#define PLAN_ALIGN (PLAN_UNITS * ZB_BLOCK_ELEMS)

static const struct zb_opt plan_options[] = {
    ZBENCH_DIR(struct plan_bench, "/var/tmp"),
    { "params", ZB_OPT_SIZE, ZB_OPT_AT(struct plan_bench, params), .arg = "N", .def = "64M",
      .min = PLAN_ALIGN, .max = UINT64_C(1) << 36, .round = PLAN_ALIGN },
    ZBENCH_ROUNDS(struct plan_bench, "6"),
    ZBENCH_ONLY(struct plan_bench, "plan/drive"),
    { 0 },
};

const struct zbench_cmd zbench_plan = {
    .name = "plan",
    .help = "how long a step takes, against what zctl plan says",
    .options = plan_options,
    .bytes = sizeof(struct plan_bench),
    .run = plan_main,
};
