/*
 * bench_overlap.c - `zbench overlap`: what a trainer gains when a step overlaps its passes.
 *
 * MODEL. The trainer's computing is a sleep. In each iteration it is as long as the drive needs for
 * a step whose state is all streamed (times --compute): a third of it in the forward pass (fetch a unit, sleep, release), the rest in the
 * backward pass (sleep, push a unit's gradient; the last unit first). Parameters and gradients are
 * in host memory, and all state is on a device of a fixed rate, so that the drive's time is known:
 * bytes / rate. Each case has its own daemon. An iteration is timed from the end of one forward
 * pass to the end of the next.
 *
 *     none   the step begins after the last gradient, and the trainer waits for it: about the sum
 *            of computing and I/O
 *     serve  the next forward pass proceeds as its parameters become available
 *     early  shards are stepped as their gradients arrive, and the trainer waits for the step
 *     all    both: about the larger of computing and I/O
 *
 * PUSHES. A push goes on while the trainer computes, as the engine's do; the trainer waits before the next
 * one. With --push-waits it waits at once.
 *
 * GRADIENTS. With --grad-ring, gradients of pages with streamed state are not held in the cases whose steps
 * begin early. The host memory is the same in all cases, so these have some state in it. A push then
 * waits for the drive.
 *
 * CLIPPING. global: the step needs the norm of all gradients, so it cannot begin early. tensor: each
 * tensor has a limit for its norm, 1.05 times its last norm; the daemon steps a unit early when its
 * norm is known. Gradients are the same in each step, so nothing is clipped after all.
 *
 * MUON. With --muon, each unit is a matrix, and host memory has room for three of them in addition. The daemon
 * orthogonalizes on the processor, while the trainer's computing takes no processor.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/muon.h"
#include "base/place.h"
#include "base/util.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define OVERLAP_UNITS 48u
#define OVERLAP_PAGE \
    65536u /* elements: what is in flight is a small part of a step, as in a large model */
#define OVERLAP_FORWARD 3u  /* the forward pass is one part of so many of computing */
#define STEP_BYTES      20u /* of one parameter: bf16, AdamW, state read and written */
#define STEP_BYTES_MUON 12u /* the same by Muon */
#define MUON_ROWS       32u /* of the matrix of a unit: so few that orthogonalizing is not the bound */
#define HOST_BYTES      6u  /* of one parameter: bf16, and its fp32 gradient */
#define NVME_BYTES      28u /* of one parameter: state, twice, a gradient, and more */

static const struct overlap_case {
    const char *name;
    bool early, serve;
} cases[] = {
    { .name = "overlap/none" },
    { .name = "overlap/serve", .serve = true },
    { .name = "overlap/early", .early = true },
    { .name = "overlap/all", .early = true, .serve = true },
};

enum overlap_clip { CLIP_NONE, CLIP_TENSOR, CLIP_GLOBAL };

/* Where an iteration takes longer than its computing: sums over the iterations of a case. */
struct overlap_lost {
    double push;    /* waits until the daemon has taken a gradient in */
    double barrier; /* norms, factors, and the call of the step */
    double first;   /* waits for the first parameters of the forward pass, */
    double units;   /* and for all others */
    unsigned n;
};

struct overlap_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, rate;
    unsigned rounds;
    uint32_t clip; /* enum overlap_clip */
    bool grad_ring, muon;
    bool push_waits;  /* the trainer computes nothing while the daemon takes a gradient in */
    uint32_t buffers; /* pages that the daemon has in flight */
    uint32_t keep;    /* percent of pages whose gradients are held */
    double compute;   /* of drive_s */

    uint64_t unit;     /* elements of each */
    unsigned bytes;    /* of one parameter: state read and written */
    double drive_s;    /* of a step whose state is all streamed */
    uint64_t streamed; /* parameters whose state is streamed */
    const struct overlap_case *now;
    struct zbench_rig rig;
    bool stepping, pushing;
    int step_rc, push_rc;
    struct zc_stepped stepped;
    struct overlap_lost lost;
    double overslept;             /* by the sleeps so far */
    double limits[OVERLAP_UNITS]; /* of the next step; 0: none */
};

/* Whether steps of this case begin early. */
static bool overlap_early(const struct overlap_bench *b)
{
    return b->now->early && b->clip != CLIP_GLOBAL;
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(zb_now_ns() - begin_ns) / 1e9;
}

/* A sleep ends late: the next one is shorter by that, so that their sum is what was asked for. */
static void compute_for(struct overlap_bench *b, double s)
{
    uint64_t begin_ns = zb_now_ns();
    double pause = fmax(0, s - b->overslept);
    struct timespec left = { .tv_sec = (time_t)pause, .tv_nsec = (long)(fmod(pause, 1.0) * 1e9) };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
    b->overslept += seconds_since(begin_ns) - s;
}

/* ---- the job */

/* Says where gradients are. */
static int overlap_memory(struct overlap_bench *b)
{
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zc_tiers_wait(b->rig.c, &rows, &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "host") == 0) {
            b->streamed = b->params - rows[i].state / (b->bytes / 2);
            zbench_note(b->z, "%s: host memory of %.1f MB for gradients, %.1f MB for state",
                        b->now->name, (double)rows[i].grads / 1e6, (double)rows[i].state / 1e6);
        }
    free(rows);
    return rc < 0 ? zbench_rig_failed(&b->rig, rc) : 0;
}

/* Host memory for matrices. */
static uint64_t overlap_room(const struct overlap_bench *b)
{
    const struct zb_muon_slice slice = { .count = b->unit };
    const struct zb_muon_matrix matrix = { .rows = MUON_ROWS, .cols = b->unit / MUON_ROWS };
    struct zb_muon_needs needs = { 0 };
    struct zb_layout layout;

    if (!b->muon)
        return 0;
    (void)zb_layout_of(ZB_BF16, ZB_F32, ZB_MUON, ZB_MOMENTS_F32, false, &layout, NULL);
    zb_muon_add(&needs, &layout, OVERLAP_PAGE, &matrix, 1, &slice, 1, OVERLAP_UNITS);
    return zb_muon_room(&needs, ZB_MUON_SPANS_MAX, true).bytes;
}

static int overlap_begin(struct overlap_bench *b)
{
    uint64_t buffers = b->buffers * zb_buffer_bytes(OVERLAP_PAGE);
    const struct zc_job_options options = { .early = overlap_early(b),
                                            .grad_ring = b->grad_ring && overlap_early(b),
                                            .grad_ring_keep = b->keep,
                                            .grad_ring_limits = b->grad_ring && overlap_early(b) &&
                                                                b->clip == CLIP_TENSOR,
                                            .tensor_norms = b->clip == CLIP_TENSOR,
                                            .optimizer = b->muon ? ZC_MUON : ZC_ADAMW,
                                            .staging_bytes = b->unit * sizeof(float) };
    struct zc_placement placement = { 0 };
    int rc = zbench_rig_start(&b->rig, b->z, b->dir,
                              "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64
                              " --ring-bytes %" PRIu64 " --page-elems %u --io fixed"
                              " --fixed-rate %" PRIu64 " --log-level error",
                              buffers + b->unit * sizeof(float) + b->params * HOST_BYTES +
                                  overlap_room(b),
                              b->params * NVME_BYTES + (64u << 20), buffers, OVERLAP_PAGE, b->rate);

    b->stepping = b->pushing = false;
    if (b->muon)
        b->rig.matrices = (struct zbench_matrices){ .rows = MUON_ROWS, .count = 1 };
    b->overslept = 0;
    memset(b->limits, 0, sizeof(b->limits));
    if (rc == 0)
        rc = zbench_rig_open(&b->rig, &options);
    if (rc == 0)
        rc = zbench_rig_define(&b->rig, OVERLAP_UNITS, b->unit, ZC_F32, &placement);
    for (uint64_t i = 0; i < b->unit && rc == 0; i++) /* the gradient of each unit */
        ((float *)b->rig.job.staging)[i] = 0x1p-10f;
    if (rc == 0 && placement.early != overlap_early(b))
        return zb_fail(&b->z->err, -ENOSPC, "the daemon had no room for early steps");
    return rc < 0 ? rc : overlap_memory(b);
}

/* ---- an iteration */

static void overlap_stepped(void *arg, int rc)
{
    struct overlap_bench *b = arg;

    b->stepping = false;
    b->step_rc = rc;
}

/* Before the backward pass: announces the step. */
static int overlap_announce(struct overlap_bench *b, const struct zc_step *step)
{
    const struct zbench_rig *r = &b->rig;
    struct zc_step begin = *step;
    int rc = 0;

    begin.limits = b->clip == CLIP_TENSOR;
    if (begin.limits)
        rc = zc_step_tensors_wait(r->c, r->job.id, step->step, true, b->limits, OVERLAP_UNITS);
    return rc < 0 ? rc : zc_step_begin_wait(r->c, r->job.id, &begin, 1);
}

/* After it: computes the norms of tensors, and sends the factors that follow. */
static int overlap_factors(struct overlap_bench *b, const struct zc_step *step)
{
    const struct zbench_rig *r = &b->rig;
    uint8_t sums[OVERLAP_UNITS][ZC_NORM_BYTES];
    double factors[OVERLAP_UNITS];
    int rc = zc_tensor_norms_wait(r->c, r->job.id, step->step, OVERLAP_UNITS, sums[0]);

    for (uint32_t u = 0; u < OVERLAP_UNITS && rc == 0; u++) {
        struct zc_norm sum = { 0 };
        double norm;

        memcpy(sum.sum_of_squares, sums[u], sizeof(sums[u]));
        norm = zc_norm_value(&sum);
        factors[u] = zc_limit_factor(b->limits[u], norm);
        b->limits[u] = 1.05 * norm;
    }
    return rc < 0
               ? rc
               : zc_step_tensors_wait(r->c, r->job.id, step->step, false, factors, OVERLAP_UNITS);
}

/* The same for the global norm. */
static int overlap_scale(struct overlap_bench *b, struct zc_step *step)
{
    const struct zbench_rig *r = &b->rig;
    struct zc_norm norm;
    int rc = zc_norms_wait(r->c, r->job.id, step->step, &norm);

    if (rc == 0)
        step->scale = fmin(1, 1 / (zc_norm_value(&norm) + 1e-6));
    return rc;
}

static void overlap_push_done(void *arg, int rc)
{
    struct overlap_bench *b = arg;

    b->pushing = false;
    b->push_rc = rc;
}

/* Waits for the push in flight, if there is one. */
static int overlap_pushed(struct overlap_bench *b)
{
    uint64_t begin_ns = zb_now_ns();

    while (b->pushing)
        if (zc_poll(b->rig.c, 1000) < 0)
            return -ENOTCONN;
    b->lost.push += seconds_since(begin_ns);
    return b->push_rc;
}

static int overlap_backward(struct overlap_bench *b, const struct zc_step *step)
{
    const struct zbench_rig *r = &b->rig;
    double pause = b->compute * b->drive_s * (OVERLAP_FORWARD - 1) / OVERLAP_FORWARD /
                   OVERLAP_UNITS;
    int rc = overlap_early(b) ? overlap_announce(b, step) : 0;

    for (uint32_t u = OVERLAP_UNITS; u-- > 0 && rc == 0;) {
        const struct zc_push push = { .shard = r->ids[u],
                                      .step = step->step,
                                      .dtype = ZC_F32,
                                      .count = b->unit,
                                      .staged = r->job.staging };

        compute_for(b, pause);
        rc = overlap_pushed(b);
        b->pushing = rc == 0;
        if (rc == 0)
            rc = zc_push(r->c, &push, overlap_push_done, b);
        if (rc == 0 && b->push_waits)
            rc = overlap_pushed(b);
    }
    return rc < 0 ? rc : overlap_pushed(b);
}

static int overlap_forward(struct overlap_bench *b)
{
    const struct zbench_rig *r = &b->rig;
    int rc = 0;

    for (uint32_t u = 0; u < OVERLAP_UNITS && rc == 0; u++) {
        uint64_t begin_ns = zb_now_ns();
        struct zc_view view;

        rc = zc_fetch_wait(r->c, &r->ids[u], 1, r->step, 0, &view);
        *(u == 0 ? &b->lost.first : &b->lost.units) += seconds_since(begin_ns);
        if (rc < 0)
            break;
        compute_for(b, b->compute * b->drive_s / OVERLAP_FORWARD / OVERLAP_UNITS);
        rc = zc_release(r->c, &r->ids[u], 1);
    }
    while (rc == 0 && b->stepping) /* its last shard was fetched: the step is nearly complete */
        rc = zc_poll(r->c, 1000) < 0 ? -ENOTCONN : 0;
    return rc < 0 ? rc : b->step_rc;
}

static int overlap_iteration(void *bench, unsigned who, double *ret_s)
{
    static const struct zc_group group = { .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
    struct overlap_bench *b = bench;
    struct zbench_rig *r = &b->rig;
    struct zc_step step = { .step = r->step + 1,
                            .scale = 1,
                            .groups = b->muon ? &zbench_group_muon : &group,
                            .ngroups = 1 };
    uint64_t begin_ns = zb_now_ns();
    int rc = overlap_backward(b, &step);
    uint64_t backward_ns = zb_now_ns();

    (void)who;
    r->step++;
    b->step_rc = 0;
    step.factors = b->clip == CLIP_TENSOR;
    if (rc == 0 && step.factors)
        rc = overlap_factors(b, &step);
    else if (rc == 0 && b->clip == CLIP_GLOBAL)
        rc = overlap_scale(b, &step);
    if (rc == 0 && b->now->serve) {
        b->stepping = true;
        rc = zc_step(r->c, r->job.id, &step, &b->stepped, overlap_stepped, b);
    } else if (rc == 0) {
        rc = zc_step_wait(r->c, r->job.id, &step, &b->stepped);
    }
    b->lost.barrier += seconds_since(backward_ns);
    b->lost.n++;
    if (rc == 0)
        rc = overlap_forward(b);
    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

/* Each step must have read every byte of streamed state once, and nothing else. */
static int overlap_check(struct overlap_bench *b)
{
    unsigned long long want = b->streamed * (b->bytes / 2) * b->rig.step;
    struct zc_job_row row;
    int rc = zbench_rig_row(&b->rig, &row);

    if (rc < 0 || row.nvme_read_bytes == want)
        return rc;
    return zb_fail(&b->z->err, -EBADMSG, "%llu bytes were read in %llu steps, instead of %llu",
                   (unsigned long long)row.nvme_read_bytes, (unsigned long long)b->rig.step, want);
}

/* Says where the time went that is not computing, as shares of the drive's. */
static void overlap_say_lost(const struct overlap_bench *b)
{
    const struct overlap_lost *l = &b->lost;
    double all = b->drive_s * l->n;

    zbench_note(b->z, "%s: pushing %.3f, barrier %.3f, first parameters %.3f, others %.3f",
                b->now->name, l->push / all, l->barrier / all, l->first / all, l->units / all);
}

static int overlap_case(struct overlap_bench *b)
{
    const struct zbench_row row = zbench_row("s", true, "max(compute, I/O)", "%s", b->now->name);
    struct zbench_series s;
    double ignored;
    int rc = overlap_begin(b);

    if (rc == 0)
        rc = overlap_iteration(b, 0, &ignored); /* warms up */
    b->lost = (struct overlap_lost){ 0 };
    if (rc == 0)
        rc = zbench_turns(&s, "A", 1, b->rounds, overlap_iteration, b);
    if (rc == 0)
        rc = overlap_check(b);
    if (rc == 0)
        overlap_say_lost(b);
    rc = zbench_rig_end(&b->rig, rc);
    return rc < 0 ? rc
                  : zbench_add_fixed(b->z, &row, s.of[0][0], fmax(1, b->compute) * b->drive_s,
                                     b->rounds);
}

/* ---- options */

static int overlap_main(struct zbench *z, void *bench)
{
    struct overlap_bench *b = bench;
    int rc = 0;

    b->z = z;
    b->unit = b->params / OVERLAP_UNITS;
    if (b->muon && b->grad_ring)
        return zb_fail(&z->err, -EINVAL, "--muon needs gradients that are held");
    b->bytes = b->muon ? STEP_BYTES_MUON : STEP_BYTES;
    b->drive_s = (double)(b->params * b->bytes) / (double)b->rate;
    zbench_note(z, "%.1f million parameters, %.0f MB/s: %.2f s of I/O and %.2f s of computing",
                (double)b->params / 1e6, (double)b->rate / 1e6, b->drive_s,
                b->compute * b->drive_s);
    for (size_t i = 0; i < ZB_COUNT(cases) && rc == 0; i++) {
        b->now = &cases[i];
        rc = overlap_case(b);
    }
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
    { "clip-mode", ZB_OPT_CHOICE, AT(clip), .choices = "none tensor global", .def = "none" },
    { "grad-ring", ZB_OPT_FLAG, AT(grad_ring) },
    { "grad-ring-keep", ZB_OPT_COUNT, AT(keep), .arg = "N", .def = "0", .max = 100 },
    { "buffers", ZB_OPT_COUNT, AT(buffers), .arg = "N", .def = "8", .min = 2, .max = 64 },
    { "push-waits", ZB_OPT_FLAG, AT(push_waits) },
    { "muon", ZB_OPT_FLAG, AT(muon) },
    { "compute", ZB_OPT_REAL, AT(compute), .arg = "X", .def = "1", .max = 100 },
    ZBENCH_ROUNDS(struct overlap_bench, "5"),
    { 0 },
};

const struct zbench_cmd zbench_overlap = {
    .name = "overlap",
    .help = "iterations whose steps overlap the passes, against the larger of computing and I/O",
    .options = overlap_options,
    .bytes = sizeof(struct overlap_bench),
    .run = overlap_main,
};
