/*
 * bench_plan.c - `zbench plan`: the time of a step, against the forecast of `zctl plan`.
 *
 * MODEL. A zshardd of our own holds a job of bf16 parameters, on the drive under --dir or on a
 * device of a fixed rate in memory. The forecast is that of base/forecast.h for this job, with
 * rates measured as by `zctl plan --measure` (base/measure.h, kernels/measure.c), in the same run,
 * before and after the steps that they predict,
 *
 *     measure  step  step  measure
 *
 * A step is timed from the request to its answer, with its gradients pushed before. If the device
 * has a fixed rate, only memory is measured.
 *
 * The cases: the state is streamed, the parameters too, half of the state, or nothing.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/forecast.h"
#include "base/measure.h"
#include "base/util.h"
#include "bench/rig.h"
#include "bench/turns.h"
#include "kernels/measure.h"

#define PLAN_UNITS   8u
#define PLAN_BUFFERS 32u
#define MEASURE_NS   UINT64_C(500000000)

static const struct plan_case {
    const char *name;
    uint64_t rate;        /* of a fixed device; 0: the drive */
    unsigned state_share; /* percent of the state that is resident */
    bool params;          /* parameters are resident */
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
    int fd; /* the file on which the drive is measured; -1: none */

    struct zbench_rig rig;
    const struct plan_case *now;
};

/* ---- the plan */

/* The smallest budget that gives the placement of the case. */
static int plan_node(struct plan_bench *b, const struct plan_case *c)
{
    struct zb_layout *l = &b->run.layout;
    uint64_t params, state;
    int rc;

    b->node = (struct zb_node){ .nvme_bytes = b->params * 26 + ZB_GIB,
                                .page_elems = ZB_PAGE_ELEMS_DEFAULT,
                                .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) };
    b->node.ring_bytes = PLAN_BUFFERS * zb_buffer_bytes(b->node.page_elems);
    rc =
        zb_forecast(&b->run, &b->node, &b->f, &b->z->err); /* without host memory, for host_least */
    if (rc < 0)
        return rc;
    params = zb_layout_bytes(l, ZB_PARAM, b->node.page_elems, b->model.units[0]) * PLAN_UNITS;
    state = zb_layout_bytes(l, ZB_STATE, b->node.page_elems, b->model.units[0]) * PLAN_UNITS;
    b->node.host_bytes = b->f.host_least;
    if (c->params) /* host_least has only a ring for them */
        b->node.host_bytes += params - ZB_RING_PINS * (params / PLAN_UNITS);
    b->node.host_bytes += state / 100 * c->state_share / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
    if (c->state_share == 100)
        b->node.host_bytes += ZB_MIB;
    rc = zb_forecast(&b->run, &b->node, &b->f, &b->z->err);
    return rc < 0 || b->f.fits ? rc : zb_fail(&b->z->err, b->f.why.code, "%s", b->f.why.text);
}

/* The forecast of a step, from rates measured now. */
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

static int plan_begin(struct plan_bench *b, const struct plan_case *c)
{
    const struct zc_job_options options = { .staging_bytes = b->f.host_staging };
    struct zc_placement placement;
    char fixed[64] = "";
    int rc;

    if (c->rate > 0)
        (void)snprintf(fixed, sizeof(fixed), "--io fixed --fixed-rate %" PRIu64, c->rate);
    rc = zbench_rig_start(&b->rig, b->z, b->dir,
                          "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --ring-bytes %" PRIu64
                          " --log-level warn %s",
                          b->node.host_bytes, b->node.nvme_bytes + ZB_DATA_START,
                          b->node.ring_bytes, fixed);
    if (rc == 0)
        rc = zbench_rig_open(&b->rig, &options);
    return rc < 0 ? rc
                  : zbench_rig_define(&b->rig, PLAN_UNITS, b->model.units[0], ZC_F32, &placement);
}

static int plan_step(struct plan_bench *b, double *ret_s)
{
    int rc = zbench_rig_push(&b->rig);

    return rc < 0 ? rc : zbench_rig_step(&b->rig, ZC_COMMIT_NO, ret_s);
}

/* The last step must have moved the planned bytes; otherwise its time means nothing. */
static int plan_compare(struct plan_bench *b, const struct zc_job_row *before,
                        const struct zc_job_row *after)
{
    uint64_t read = after->nvme_read_bytes - before->nvme_read_bytes;
    uint64_t written = after->nvme_written_bytes - before->nvme_written_bytes;

    if (read == b->f.step_read && written == b->f.step_written)
        return 0;
    return zb_fail(&b->z->err, -EBADMSG, "a step read %llu and wrote %llu bytes; the plan has %llu",
                   (unsigned long long)read, (unsigned long long)written,
                   (unsigned long long)b->f.step_read);
}

static int plan_slice(void *bench, unsigned who, double *ret_s)
{
    struct plan_bench *b = bench;

    return who == 0 ? plan_step(b, ret_s) : plan_predict(b, b->now, ret_s);
}

static int plan_rounds(struct plan_bench *b)
{
    const struct zbench_row row = zbench_row("s", true, "the plan", "%s", b->now->name);
    struct zc_job_row before, after;
    double s;
    int rc = plan_step(b, &s); /* warms up */

    if (rc == 0)
        rc = zbench_rig_row(&b->rig, &before);
    if (rc == 0)
        rc = plan_step(b, &s);
    if (rc == 0)
        rc = zbench_rig_row(&b->rig, &after);
    if (rc == 0)
        rc = plan_compare(b, &before, &after);
    return rc < 0 ? rc : zbench_compare(b->z, &row, "BAAB", b->rounds, plan_slice, b);
}

static int plan_case(struct plan_bench *b, const struct plan_case *c)
{
    int rc = plan_node(b, c);

    b->now = c;
    if (rc < 0)
        return rc;
    rc = plan_begin(b, c);
    if (rc == 0)
        rc = plan_rounds(b);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc == 0)
        zbench_note(b->z,
                    "%s: %.1f million parameters; a step reads and writes %.2f GB each; memory "
                    "%.1f GB/s, drive %.2f GB/s; bound by %s (drive %.3f s, kernel %.3f s)",
                    c->name, (double)b->f.params / 1e6, (double)b->f.step_read / 1e9,
                    b->node.memory / 1e9, b->node.drive_read / 1e9, zb_bound_name(b->f.bound),
                    b->f.drive_seconds, b->f.kernel_seconds);
    return rc;
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
    .help = "the time of a step, against the forecast of zctl plan",
    .options = plan_options,
    .bytes = sizeof(struct plan_bench),
    .run = plan_main,
};
