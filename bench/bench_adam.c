/*
 * bench_adam.c - `zbench adam`: the optimizer step on pages in memory, against the bandwidth of the
 * memory and against the steps of other programs.
 *
 * MODEL. A team of threads takes pieces of work from one counter, as the daemon's compute pool
 * takes pages from its queue. Like that pool, it runs on the CPUs that this process may use. A
 * slice is one step over all parameters: zk_page_step() on each page, in memory on huge pages, as
 * in the daemon.
 *
 *   triad   a[i] = b[i] + s * c[i] with non-temporal stores, by the same team on arrays of its own,
 *           repeated until it has moved as many bytes as the step. A round is triad, step, step,
 *           triad; `control` is the second triad against the first
 *   PEER    another program (--peer, bench/peers/), in rounds A B B A. It starts from the same
 *           parameters and gradients and makes as many steps; at the end both sets of parameters
 *           are compared. Its slice includes everything else that its user must do for the result
 *           of our step: the norm of the gradients (which shows values that are not finite), the
 *           gradients in fp32, the parameters in bf16. Our slice ingests the gradients
 *           (zk_page_ingest(): copy, norm and count) and steps
 *
 * BYTES per parameter follow from the layout: gradient once, parameter and state twice (read and
 * written). AdamW with bf16 parameters and gradients: 2 + 2 * (2 + 10) = 26; in fp32: 4 + 2 * (4 +
 * 8) = 28. An element of the triad counts 12: its stores do not read.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/plan.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/peer.h"
#include "bench/team.h"
#include "bench/turns.h"
#include "kernels/zk_page.h"

#define ADAM_HUGE        (2 * ZB_MIB)
#define ADAM_TRIAD_ELEMS (64 * ZB_MIB) /* of each array: 256 MiB */
#define ADAM_PIECE_ELEMS 262144u       /* of a triad */

/* Also passed to the peers. */
static const struct zk_params adam_params = { .lr = 1e-3,
                                              .beta1 = 0.9,
                                              .beta2 = 0.999,
                                              .eps = 1e-8,
                                              .weight_decay = 0.01,
                                              .scale = 1,
                                              .momentum = 0.9 };

static const struct adam_case {
    const char *name;
    enum zb_optimizer optimizer;
    enum zb_dtype dtype, grad_dtype;
    enum zb_moments moments;
} adam_cases[] = {
    { "adamw/bf16", ZB_ADAMW, ZB_BF16, ZB_BF16, ZB_MOMENTS_F32 }, /* also the case of the peers */
    { "adamw/bf16/grad-fp32", ZB_ADAMW, ZB_BF16, ZB_F32, ZB_MOMENTS_F32 },
    { "adamw/fp32", ZB_ADAMW, ZB_F32, ZB_F32, ZB_MOMENTS_F32 },
    { "adamw/fp16", ZB_ADAMW, ZB_F16, ZB_F16, ZB_MOMENTS_F32 },
    { "adam/bf16", ZB_ADAM, ZB_BF16, ZB_BF16, ZB_MOMENTS_F32 },
    { "lion/bf16", ZB_LION, ZB_BF16, ZB_BF16, ZB_MOMENTS_F32 },
    { "sgd/bf16", ZB_SGD, ZB_BF16, ZB_BF16, ZB_MOMENTS_F32 },
    { "adagrad/bf16", ZB_ADAGRAD, ZB_BF16, ZB_BF16, ZB_MOMENTS_F32 },
    { "adamw/bf16/moments-bf16", ZB_ADAMW, ZB_BF16, ZB_BF16, ZB_MOMENTS_BF16 },
    { "adamw/bf16/moments-8bit", ZB_ADAMW, ZB_BF16, ZB_BF16, ZB_MOMENTS_Q8 },
    { "adamw/bf16/moments-8bit-lo", ZB_ADAMW, ZB_BF16, ZB_BF16, ZB_MOMENTS_Q8_LO },
};

/* The planes of one case. */
struct adam_planes {
    struct zb_layout layout;
    uint8_t *plane[ZB_PLANES];
    uint8_t *staging; /* gradients from a trainer, to be ingested; NULL: without a peer */
    uint64_t t;       /* of the last step */
    struct zk_scalars scalars;
};

struct adam_bench {
    struct zbench *z;
    const struct zk_ops *ops;
    const char *kernels, *only;
    struct zb_opt_words peers;
    bool smoke;
    uint64_t params, triad_elems;
    uint32_t page_elems;
    unsigned threads, rounds;
    float *triad[3];
    struct adam_planes planes;
    pthread_mutex_t norm_lock;
    struct zk_xsum norm; /* under norm_lock */
    uint64_t nonfinite;  /* likewise */
    double bytes;        /* moved by a step */
    struct zbench_peer peer;
    double peer_norm; /* of its last step */
    struct zbench_team team;
};

/* ---- memory */

/* Memory that begins on a huge page, untouched. NULL: there is none. */
static void *adam_map(uint64_t bytes)
{
    uint8_t *p = mmap(NULL, bytes + ADAM_HUGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t front;

    if (p == MAP_FAILED)
        return NULL;
    front = (ADAM_HUGE - (uintptr_t)p % ADAM_HUGE) % ADAM_HUGE;
    if (front > 0)
        (void)munmap(p, front);
    (void)munmap(p + front + bytes, ADAM_HUGE - front);
    (void)madvise(p + front, bytes, MADV_HUGEPAGE); /* only a hint */
    return p + front;
}

static void adam_unmap(void *p, uint64_t bytes)
{
    if (p)
        (void)munmap(p, bytes);
}

static uint64_t adam_plane_bytes(const struct adam_bench *b, enum zb_plane plane)
{
    return zb_plane_bytes(b->planes.layout.block_bytes[plane], b->page_elems, b->params);
}

static struct zk_page adam_page(const struct adam_bench *b, uint64_t i)
{
    const struct adam_planes *x = &b->planes;
    uint64_t first = i * b->page_elems;
    struct zk_page page = { .first = first, .count = b->page_elems };

    page.param = x->plane[ZB_PARAM] +
                 zb_plane_bytes(x->layout.block_bytes[ZB_PARAM], b->page_elems, first);
    page.grad = x->plane[ZB_GRAD] +
                zb_plane_bytes(x->layout.block_bytes[ZB_GRAD], b->page_elems, first);
    page.state = x->plane[ZB_STATE] +
                 zb_plane_bytes(x->layout.block_bytes[ZB_STATE], b->page_elems, first);
    return page;
}

/* Value i of a stream: uniform in (-range, range), and exact in bf16. */
static float adam_value(uint64_t i, uint64_t stream, double range)
{
    uint64_t x = (i * 2 + stream + 1) * UINT64_C(0x9e3779b97f4a7c15);
    float f;
    uint32_t bits;

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    f = (float)(((double)(x >> 11) * 0x1p-52 - 1) * range);
    memcpy(&bits, &f, sizeof(bits));
    bits &= 0xffff0000;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Sets the initial values and gradients of a page. */
static void adam_fill_work(void *bench, uint64_t piece)
{
    struct adam_bench *b = bench;
    struct zk_page page = adam_page(b, piece);
    struct zk_xsum sum = { { 0 } };
    uint64_t bad = 0;
    float *values = malloc(page.count * sizeof(*values));

    if (!values)
        abort(); /* 1 MiB */
    for (uint64_t i = 0; i < page.count; i++)
        values[i] = adam_value(page.first + i, 0, 0.04);
    zk_page_init(b->ops, &b->planes.layout, &page, values);
    for (uint64_t i = 0; i < page.count; i++)
        values[i] = adam_value(page.first + i, 1, 1e-3);
    zk_page_ingest(b->ops, &b->planes.layout, &page, values, ZB_F32, false, &sum, &bad);
    if (b->planes.staging)
        memcpy(b->planes.staging + page.first * 2, page.grad, page.count * 2);
    free(values);
}

static void adam_fill_triad_work(void *bench, uint64_t piece)
{
    struct adam_bench *b = bench;
    for (uint64_t i = piece * ADAM_PIECE_ELEMS; i < (piece + 1) * ADAM_PIECE_ELEMS; i++) {
        b->triad[0][i] = 0;
        b->triad[1][i] = 1;
        b->triad[2][i] = 2;
    }
}

static void adam_planes_done(struct adam_bench *b)
{
    for (int p = 0; p < ZB_PLANES; p++)
        adam_unmap(b->planes.plane[p], adam_plane_bytes(b, (enum zb_plane)p));
    adam_unmap(b->planes.staging, b->params * 2);
    b->planes = (struct adam_planes){ 0 };
}

static int adam_planes_init(struct adam_bench *b, const struct adam_case *c, bool staging)
{
    struct adam_planes *x = &b->planes;
    int rc = zb_layout_of(c->dtype, c->grad_dtype, c->optimizer, c->moments, false, &x->layout,
                          &b->z->err);
    bool good = true;

    for (int p = 0; p < ZB_PLANES && rc == 0; p++) {
        x->plane[p] = adam_map(adam_plane_bytes(b, (enum zb_plane)p));
        good = good && x->plane[p];
    }
    if (rc == 0 && staging) {
        x->staging = adam_map(b->params * 2);
        good = good && x->staging;
    }
    if (rc == 0 && !good)
        rc = zb_fail(&b->z->err, -ENOMEM, "the planes of %llu parameters: %m",
                     (unsigned long long)b->params);
    if (rc == 0)
        (void)zbench_team_run(&b->team, adam_fill_work, b->params / b->page_elems);
    return rc;
}

/* ---- slices */

/* Bytes per parameter that a step moves. */
static double adam_step_bytes(const struct zb_layout *l)
{
    return (l->block_bytes[ZB_GRAD] + 2.0 * (l->block_bytes[ZB_PARAM] + l->block_bytes[ZB_STATE])) /
           ZB_BLOCK_ELEMS;
}

/* Stores of 128 bits are as fast as those of 512. */
static void triad(float *restrict a, const float *restrict b, const float *restrict c, size_t n)
{
#if defined(__x86_64__)
    const __m128 s = _mm_set1_ps(3);

    for (size_t i = 0; i < n; i += 4)
        _mm_stream_ps(a + i, _mm_add_ps(_mm_mul_ps(s, _mm_load_ps(c + i)), _mm_load_ps(b + i)));
    _mm_sfence();
#else
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] + 3 * c[i];
#endif
}

static void adam_triad_work(void *bench, uint64_t piece)
{
    struct adam_bench *b = bench;
    uint64_t at = piece * ADAM_PIECE_ELEMS % b->triad_elems;

    triad(b->triad[0] + at, b->triad[1] + at, b->triad[2] + at, ADAM_PIECE_ELEMS);
}

static void adam_step_work(void *bench, uint64_t piece)
{
    struct adam_bench *b = bench;
    struct zk_page page = adam_page(b, piece);
    struct zk_segment all = { .first = 0, .count = b->params, .group = 0 };

    zk_page_step(b->ops, &b->planes.layout, &page, &all, 1, &b->planes.scalars);
}

static void adam_ingest_work(void *bench, uint64_t piece)
{
    struct adam_bench *b = bench;
    struct zk_page page = adam_page(b, piece);
    struct zk_xsum sum = { { 0 } };
    uint64_t bad = 0;

    zk_page_ingest(b->ops, &b->planes.layout, &page, b->planes.staging + page.first * 2, ZB_BF16,
                   false, &sum, &bad);
    (void)pthread_mutex_lock(&b->norm_lock);
    zk_xsum_merge(&b->norm, &sum);
    b->nonfinite += bad;
    (void)pthread_mutex_unlock(&b->norm_lock);
}

/* GB/s, over about `bytes`. */
static double adam_triad_slice(struct adam_bench *b, double bytes)
{
    uint64_t pieces = (uint64_t)ceil(bytes / 12 / ADAM_PIECE_ELEMS);

    return (double)pieces * ADAM_PIECE_ELEMS * 12 /
           zbench_team_run(&b->team, adam_triad_work, pieces) / 1e9;
}

/* Seconds. */
static double adam_step_slice(struct adam_bench *b)
{
    struct adam_planes *x = &b->planes;

    x->scalars = zk_prepare(x->layout.optimizer, &adam_params, ++x->t);
    return zbench_team_run(&b->team, adam_step_work, b->params / b->page_elems);
}

static double adam_ingest_slice(struct adam_bench *b)
{
    b->norm = (struct zk_xsum){ { 0 } };
    b->nonfinite = 0;
    return zbench_team_run(&b->team, adam_ingest_work, b->params / b->page_elems);
}

/* ---- against the triad */

/* A: seconds of a step. B and C: GB/s of a triad. */
static int adam_triad_turn(void *bench, unsigned who, double *ret)
{
    struct adam_bench *b = bench;

    *ret = who == 0 ? adam_step_slice(b) : adam_triad_slice(b, b->bytes);
    return 0;
}

static int adam_against_triad(struct adam_bench *b, const struct adam_case *c)
{
    const struct zbench_row row = zbench_row("GB/s", false, "triad with non-temporal stores",
                                             "%s/triad", c->name),
                            control =
                                zbench_row("GB/s", false, "the same triad", "%s/control", c->name);
    double reference[ZBENCH_ROUNDS_MAX];
    struct zbench_series s;
    int rc;

    b->bytes = adam_step_bytes(&b->planes.layout) * (double)b->params;
    zbench_note(b->z, "%s: %g bytes of each parameter", c->name,
                adam_step_bytes(&b->planes.layout));
    (void)adam_step_slice(b); /* warms up */
    rc = zbench_turns(&s, "BAAC", 1, b->rounds, adam_triad_turn, b);
    for (unsigned i = 0; i < b->rounds; i++) {
        s.of[0][0][i] = b->bytes / 1e9 / s.of[0][0][i];
        reference[i] = 2 / (1 / s.of[1][0][i] + 1 / s.of[2][0][i]);
    }
    if (rc == 0)
        rc = zbench_add(b->z, &row, s.of[0][0], reference, b->rounds);
    return rc < 0 ? rc : zbench_add(b->z, &control, s.of[2][0], s.of[1][0], b->rounds);
}

/* ---- against peers */

/* Returns a memfd with our bf16 parameters and gradients, from which the peer starts. */
static int adam_file_new(struct adam_bench *b, uint16_t **ret)
{
    uint64_t bytes = b->params * 4;
    int fd = memfd_create("zbench-adam", MFD_CLOEXEC);
    uint16_t *p;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        (p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        int rc = zb_fail(&b->z->err, -errno, "%s of shared memory for a peer: %m",
                         zb_size_text(bytes).s);

        zb_close_fd(&fd);
        return rc;
    }
    memcpy(p, b->planes.plane[ZB_PARAM], b->params * 2);
    memcpy(p + b->params, b->planes.plane[ZB_GRAD], b->params * 2);
    *ret = p;
    return fd;
}

enum { ALL_S, STEP_S, PEER_VALUES }; /* of a slice: all of it, and without the norm */

static int adam_peer_slice(struct adam_bench *b, double *ret)
{
    char line[256];
    double norm_s;
    int rc = zbench_peer_ask(b->z, &b->peer, "step", line, sizeof(line));

    if (rc == 0 && sscanf(line, "%lf %lf %lf", &ret[ALL_S], &norm_s, &b->peer_norm) != 3)
        rc = zb_fail(&b->z->err, -EPROTO, "the peer answered: %s", line);
    if (rc == 0)
        ret[STEP_S] = ret[ALL_S] - norm_s;
    return rc;
}

static int adam_peer_turn(void *bench, unsigned who, double *ret)
{
    struct adam_bench *b = bench;
    double ingest_s;

    if (who == 1)
        return adam_peer_slice(b, ret);
    ingest_s = adam_ingest_slice(b);
    ret[STEP_S] = adam_step_slice(b);
    ret[ALL_S] = ingest_s + ret[STEP_S];
    return 0;
}

/* The position of a bf16 in the order of all values. */
static int adam_order(uint16_t bf16)
{
    return bf16 & 0x8000 ? -(bf16 & 0x7fff) : bf16;
}

/* Compares the peer's parameters, in `file`, with ours. */
static int adam_peer_compare(struct adam_bench *b, const uint16_t *file)
{
    const uint16_t *ours = (const void *)b->planes.plane[ZB_PARAM];
    uint64_t equal = 0, next = 0;
    char line[256];
    int rc = zbench_peer_ask(b->z, &b->peer, "write", line, sizeof(line));

    if (rc == 0 && strcmp(line, "written") != 0)
        rc = zb_fail(&b->z->err, -EPROTO, "the peer answered: %s", line);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < b->params; i++) {
        int distance = adam_order(ours[i]) - adam_order(file[i]);

        equal += distance == 0;
        next += distance == 1 || distance == -1;
    }
    zbench_note(b->z,
                "after %llu steps %.4f %% of the parameters are %s's, %.4f %% the next bf16, %llu "
                "others; norms %.9g and %.9g",
                (unsigned long long)b->planes.t, 100.0 * (double)equal / (double)b->params,
                b->peer.name, 100.0 * (double)next / (double)b->params,
                (unsigned long long)(b->params - equal - next), sqrt(zk_xsum_value(&b->norm)),
                b->peer_norm);
    return 0;
}

static int adam_peer_rounds(struct adam_bench *b)
{
    const struct zbench_row rows[PEER_VALUES] = {
        [ALL_S] = zbench_row("Mparam/s", false, "peer", "adamw/bf16/%s", b->peer.name),
        [STEP_S] = zbench_row("Mparam/s", false, "peer", "adamw/bf16/%s/no-norm", b->peer.name),
    };
    struct zbench_series s;
    int rc = zbench_turns(&s, "ABBA", PEER_VALUES, b->rounds, adam_peer_turn, b);

    for (unsigned v = 0; v < PEER_VALUES && rc == 0; v++) {
        for (unsigned who = 0; who < 2; who++)
            for (unsigned i = 0; i < b->rounds; i++)
                s.of[who][v][i] = (double)b->params / 1e6 / s.of[who][v][i];
        rc = zbench_add(b->z, &rows[v], s.of[0][v], s.of[1][v], b->rounds);
    }
    return rc;
}

static int adam_against_peer(struct adam_bench *b, const char *command)
{
    char line[8192];
    uint16_t *file = NULL;
    int fd = -1, rc = adam_planes_init(b, &adam_cases[0], true);

    if (rc == 0)
        fd = rc = adam_file_new(b, &file);
    if (rc >= 0) {
        (void)snprintf(
            line, sizeof(line), "exec %s %llu %u /proc/%d/fd/%d %.17g %.17g %.17g %.17g %.17g",
            command, (unsigned long long)b->params, b->threads, (int)getpid(), fd, adam_params.lr,
            adam_params.beta1, adam_params.beta2, adam_params.eps, adam_params.weight_decay);
        rc = zbench_peer_start(b->z, &b->peer, line);
    }
    if (rc == 0)
        rc = adam_peer_rounds(b);
    if (rc == 0)
        rc = adam_peer_compare(b, file);
    zbench_peer_end(&b->peer);
    if (file)
        (void)munmap(file, b->params * 4);
    zb_close_fd(&fd);
    adam_planes_done(b);
    return rc;
}

/* ---- the command */

static int adam_triad_init(struct adam_bench *b)
{
    for (int i = 0; i < 3; i++) {
        b->triad[i] = adam_map(b->triad_elems * sizeof(float));
        if (!b->triad[i])
            return zb_fail(&b->z->err, -ENOMEM, "the arrays of the triad: %m");
    }
    (void)zbench_team_run(&b->team, adam_fill_triad_work, b->triad_elems / ADAM_PIECE_ELEMS);
    return 0;
}

static int adam_run(struct adam_bench *b)
{
    int rc = zbench_team_start(&b->team, b->threads, b, &b->z->err);

    if (rc == 0)
        zbench_note(b->z,
                    "kernels %s, %u threads, %llu parameters in pages of %u; triad of 3 arrays of "
                    "%s; %u rounds",
                    b->ops->name, b->threads, (unsigned long long)b->params, b->page_elems,
                    zb_size_text(b->triad_elems * sizeof(float)).s, b->rounds);
    if (rc == 0 && b->peers.n == 0)
        rc = adam_triad_init(b);
    for (size_t i = 0; i < ZB_COUNT(adam_cases) && rc == 0 && b->peers.n == 0; i++) {
        char row[64];

        (void)snprintf(row, sizeof(row), "%s/triad", adam_cases[i].name);
        if (!zbench_wants(b->only, row))
            continue;
        rc = adam_planes_init(b, &adam_cases[i], false);
        if (rc == 0)
            rc = adam_against_triad(b, &adam_cases[i]);
        adam_planes_done(b);
    }
    for (unsigned i = 0; i < b->peers.n && rc == 0; i++)
        rc = adam_against_peer(b, b->peers.at[i]);
    for (int i = 0; i < 3; i++)
        adam_unmap(b->triad[i], b->triad_elems * sizeof(float));
    zbench_team_end(&b->team);
    return rc;
}

static int adam_main(struct zbench *z, void *bench)
{
    struct adam_bench *b = bench;
    cpu_set_t cpus;
    int rc = 0;

    b->z = z;
    b->triad_elems = ADAM_TRIAD_ELEMS;
    b->page_elems = ZB_PAGE_ELEMS_DEFAULT;
    b->norm_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (b->smoke) { /* only tests the benchmark: the figures mean nothing */
        b->params = ZB_MIB;
        b->triad_elems = ADAM_PIECE_ELEMS;
        b->rounds = 1;
    }
    if (b->threads == 0 && sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
        rc = zb_fail(&z->err, -errno, "the CPUs that this process may use: %m");
    if (rc == 0 && b->threads == 0)
        b->threads = (unsigned)CPU_COUNT(&cpus);
    if (rc == 0)
        rc = zk_select(b->kernels, &b->ops, &z->err);
    if (rc == 0) {
        (void)signal(SIGPIPE, SIG_IGN); /* a peer that has ended is an ordinary error */
        rc = adam_run(b);
    }
    free(b->peers.at);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct adam_bench, member)

static const struct zb_opt adam_options[] = {
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "256M", .min = ZB_PAGE_ELEMS_DEFAULT,
      .round = ZB_PAGE_ELEMS_DEFAULT },
    { "threads", ZB_OPT_COUNT, AT(threads), .arg = "N", .min = 1, .max = ZBENCH_TEAM_MAX },
    ZBENCH_ROUNDS(struct adam_bench, "20"),
    ZBENCH_ONLY(struct adam_bench, "CASE"),
    { "kernels", ZB_OPT_TEXT, AT(kernels), .arg = "NAME" },
    { "peer", ZB_OPT_WORDS, AT(peers), .arg = "COMMAND", .max = 4 },
    { "smoke", ZB_OPT_FLAG, AT(smoke) },
    { 0 },
};

const struct zbench_cmd zbench_adam = {
    .name = "adam",
    .help = "the optimizer step in memory, against a STREAM triad",
    .options = adam_options,
    .bytes = sizeof(struct adam_bench),
    .run = adam_main,
};
