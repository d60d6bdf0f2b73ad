/*
 * bench_step.c - `zbench step`: a step of streamed optimizer state, against the limit of the drive
 * and the kernels.
 *
 * MODEL. A zshardd of our own holds a job of bf16 parameters. Parameters and gradients are in
 * memory, and the state (10 bytes per parameter: 20 cross the drive in a step) is on its NVMe tier.
 * A step is timed from the request to its answer, with its gradients pushed before. The FLOOR is
 * the longer of two times, both measured in the same round:
 *
 *     the drive    as many bytes, half of them read and half written, in requests of the same
 *                  size and as many at a time, by a loop that does nothing else
 *     the kernels  as many parameters stepped by the same kernels on as many threads, on pages
 *                  that are in memory
 *
 * The drive is a device of a fixed rate (nvme/zn_fixed.h), whose contents are real and cost no
 * copy: a step on it does everything that a step on a drive does. The loop uses another device of
 * the same rate, in this process.
 *
 * On the drive under --dir the loop is fio, with as much in flight. Slices of fio and steps
 * alternate: fio step fio' fio' step fio, where fio and fio' are the same program: the control. The
 * bytes that crossed the drive are those of /proc/PID/io of the daemon.
 *
 * A PEER (--peer, bench/peers/) is another program that makes the same step, of as many parameters
 * on the same drive. Its steps and ours alternate, A B B A. Each is timed from the last gradient
 * until the state is written, and the bytes of an iteration are counted in the same way for both.
 *
 * Checksums are not part of the floor; a note reports the time of the kernels with them (a block is
 * verified, stepped and sealed while it is in the cache).
 */
#include "bench/zbench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/muon.h"
#include "base/place.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/fio.h"
#include "bench/floor.h"
#include "bench/peer.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define STEP_UNITS      8u
#define STEP_STAGING    (UINT64_C(64) << 20)
#define STEP_MUON_ROWS  512u /* of the matrices: 512 x 2,048, if --params is not small */
#define STEP_MUON_ELEMS (UINT64_C(1) << 20)
#define STEP_MUON_UNITS 32u /* of one matrix each: nothing overlaps in a unit */
#define STEP_MUON_PAGES 4u  /* pages are so much smaller: a matrix is 16, as in a large model */
#define STEP_MUON_STATE 6u  /* bytes of the state of an element */
#define STEP_FIO_BYTES  (UINT64_C(1) << 30)
#define STEP_FIO_S      0.8
#define STEP_FIO_RAMP_S 0.05

struct step_bench {
    struct zbench *z;
    const char *dir, *only, *peer;
    uint64_t params, page_elems, ring_bytes;
    unsigned rounds;

    uint64_t count; /* elements of each unit */
    uint64_t rate;  /* of the case; 0: the drive */
    bool muon;      /* the case: units are matrices, which Muon steps */
    uint64_t muon_cols;
    struct zbench_rig rig;
    struct zbench_fio fio; /* a slice of it */
    struct zbench_peer peer_program;

    unsigned threads;
    struct zbench_kernels kernels;
};

/* ---- the job */

/* Memory for matrices, in which they overlap as well as they can. No more, so that all state is streamed. */
static uint64_t muon_room(const struct step_bench *b)
{
    const struct zb_muon_slice slice = { .count = b->count };
    const struct zb_muon_matrix matrix = { .rows = STEP_MUON_ROWS, .cols = b->muon_cols };
    struct zb_muon_needs needs = { 0 };
    struct zb_layout layout;
    struct zb_err err = { 0 };

    if (zb_layout_of(ZB_BF16, ZB_BF16, ZB_MUON, ZB_MOMENTS_F32, false, &layout, &err) < 0)
        return 0;
    zb_muon_add(&needs, &layout, (uint32_t)b->page_elems, &matrix, 1, &slice, 1, STEP_MUON_UNITS);
    return zb_muon_room(&needs, ZB_MUON_SPANS_MAX, true).bytes;
}

/* Starts a daemon with a device of this rate (0: on the drive), and the job. `resident`: elements
 * whose state may stay in memory. */
static int step_begin(struct step_bench *b, uint64_t rate, uint64_t resident)
{
    uint64_t memory = b->params * 2 * STEP_HALF + resident * STEP_STATE, seed = 1;
    uint64_t matrix = b->muon ? muon_room(b) : 0;
    const struct zc_job_options options = {
        .offload_param = ZC_HOST,
        .offload_optimizer = ZC_NVME,
        .staging_bytes = STEP_STAGING,
        .host_bytes_max = STEP_STAGING + memory + matrix,
        .optimizer = b->muon ? ZC_MUON : ZC_ADAMW,
    };
    struct zc_placement placement;
    char fixed[96] = "";
    int rc;

    b->rate = rate;
    if (rate > 0)
        (void)snprintf(fixed, sizeof(fixed),
                       "--io fixed --fixed-rate %" PRIu64 " --fixed-latency-us %u", rate,
                       STEP_LATENCY_US);
    rc = zbench_rig_start(&b->rig, b->z, b->dir,
                          "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --page-elems %" PRIu64
                          " --ring-bytes %" PRIu64 " --log-level error %s",
                          memory + matrix + b->ring_bytes + STEP_STAGING + ZB_MIB,
                          (b->params - resident) * STEP_STATE + (UINT64_C(256) << 20),
                          b->page_elems, b->ring_bytes, fixed);
    if (rc == 0)
        rc = zbench_rig_open(&b->rig, &options);
    if (rc < 0)
        return rc;
    /* the same bf16 number in both halves of each fp32, so that initial values (fp32) and gradients
     * (bf16) are both about 0.001 to 0.06 */
    for (uint64_t i = 0; i < b->rig.job.staging_bytes / sizeof(uint32_t); i++)
        ((uint32_t *)b->rig.job.staging)[i] =
            (0x3a80u + (uint32_t)((seed = seed * 6364136223846793005u + 1) >> 40) % 0x300u) *
            0x10001u;
    if (b->muon)
        b->rig.matrices = (struct zbench_matrices){ .rows = STEP_MUON_ROWS, .count = 1 };
    return zbench_rig_define(&b->rig, b->muon ? STEP_MUON_UNITS : STEP_UNITS, b->count, ZC_BF16,
                             &placement);
}

static int step_time(struct step_bench *b, double *ret_s)
{
    int rc = zbench_rig_push(&b->rig);

    return rc < 0 ? rc : zbench_rig_step(&b->rig, ZC_COMMIT_NO, ret_s);
}

/* ---- cases */

/* A: the kernels, B: a step, C: the drive, D: the kernels with checksums. */
static int rate_slice(void *bench, unsigned who, double *ret)
{
    struct step_bench *b = bench;

    return who == 1 ? step_time(b, ret)
           : who == 2
               ? zbench_loop_measure(b->z, b->rate, (uint32_t)(b->page_elems * STEP_STATE), ret)
               : zbench_kernels_measure(&b->kernels, who == 3, ret);
}

static int step_case_rate(struct step_bench *b, const char *name, uint64_t rate)
{
    double params = (double)b->params, kernel_ms, drive_ms, floors[ZBENCH_ROUNDS_MAX], ignored;
    struct zbench_series s;
    struct zbench_row row;
    int rc = step_begin(b, rate, 0);

    if (rc == 0)
        rc = step_time(b, &ignored); /* warms up */
    if (rc == 0)
        rc = zbench_turns(&s, "ABCD", 1, b->rounds, rate_slice, b);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < b->rounds; i++) { /* as milliseconds for all parameters */
        s.of[0][0][i] *= params / 1e6;
        s.of[1][0][i] *= 1e3;
        s.of[2][0][i] *= params * STEP_BYTES * 1e3;
        s.of[3][0][i] *= params / 1e6;
        floors[i] = fmax(s.of[0][0][i], s.of[2][0][i]);
    }
    kernel_ms = zbench_median(s.of[0][0], b->rounds);
    drive_ms = zbench_median(s.of[2][0], b->rounds);
    row = zbench_row("ms", true, kernel_ms > drive_ms ? "the kernels on memory" : "the drive", "%s",
                     name);
    zbench_note(b->z,
                "%s: %.0f million parameters, %.2f GB of state; the drive takes %.0f ms, the "
                "kernels %.0f, with checksums %.0f",
                name, params / 1e6, params * STEP_STATE / 1e9, drive_ms, kernel_ms,
                zbench_median(s.of[3][0], b->rounds));
    return zbench_add(b->z, &row, s.of[1][0], floors, b->rounds);
}

/* A: matrices, B: a step, C: the drive. */
static int muon_slice(void *bench, unsigned who, double *ret)
{
    struct step_bench *b = bench;

    return who == 0   ? zbench_ortho_measure(&b->kernels, STEP_MUON_ROWS, b->muon_cols, ret)
           : who == 1 ? step_time(b, ret)
                      : zbench_loop_measure(b->z, b->rate,
                                            (uint32_t)(b->page_elems * STEP_MUON_STATE), ret);
}

static int muon_rounds(struct step_bench *b, const char *name)
{
    double params = (double)b->params, floors[ZBENCH_ROUNDS_MAX], ortho_ms, drive_ms;
    struct zbench_series s;
    struct zbench_row row;
    int rc = zbench_turns(&s, "ABCBA", 1, b->rounds, muon_slice, b);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < b->rounds; i++) {
        s.of[0][0][i] *= params / 1e6;
        s.of[1][0][i] *= 1e3;
        s.of[2][0][i] *= params * 2 * STEP_MUON_STATE * 1e3;
        floors[i] = fmax(s.of[0][0][i], s.of[2][0][i]);
    }
    ortho_ms = zbench_median(s.of[0][0], b->rounds);
    drive_ms = zbench_median(s.of[2][0], b->rounds);
    row = zbench_row("ms", true, ortho_ms > drive_ms ? "orthogonalizing" : "the drive", "%s", name);
    zbench_note(b->z,
                "%s: %.0f million parameters, matrices of %u x %" PRIu64
                "; a drive of %.0f MB/s takes %.0f ms, orthogonalizing %.0f",
                name, params / 1e6, STEP_MUON_ROWS, b->muon_cols, (double)b->rate / 1e6, drive_ms,
                ortho_ms);
    return zbench_add(b->z, &row, s.of[1][0], floors, b->rounds);
}

/* Muon. Its state is smaller, and orthogonalizing takes much longer than other kernels. So the rate of the drive
 * is made from that, to have both cases on any machine: the drive takes `drive` times as long. */
static int step_case_muon(const struct step_bench *from, const char *name, double drive)
{
    uint64_t elems = zb_min_u64(STEP_MUON_ELEMS, from->params / STEP_MUON_UNITS);
    struct step_bench b = *from;
    double ns, ignored;
    int rc;

    b.muon = true;
    b.page_elems = zb_round_up(b.page_elems / STEP_MUON_PAGES, ZB_BLOCK_ELEMS);
    b.count = zb_max_u64(elems / ZB_BLOCK_ELEMS, 1) * ZB_BLOCK_ELEMS;
    b.muon_cols = b.count / STEP_MUON_ROWS;
    b.params = STEP_MUON_UNITS * b.count;
    b.ring_bytes = ZB_BUFFERS_DEFAULT * zb_buffer_bytes((uint32_t)b.page_elems);
    rc = zbench_ortho_measure(&b.kernels, STEP_MUON_ROWS, b.muon_cols, &ns);
    if (rc == 0)
        rc = step_begin(&b, (uint64_t)(2 * STEP_MUON_STATE / (ns * drive) * 1e9), 0);
    if (rc == 0)
        rc = step_time(&b, &ignored); /* warms up */
    if (rc == 0)
        rc = muon_rounds(&b, name);
    return zbench_rig_end(&b.rig, rc);
}

static const struct {
    const char *name;
    double drive; /* its time, for that of orthogonalizing */
} step_muons[] = {
    { "step/muon/slow-drive/floor", 2 },
    { "step/muon/fast-drive/floor", 0.25 },
};

static const struct {
    const char *name;
    uint64_t rate;
} step_rates[] = {
    { "step/fixed-1G/floor", 1000000000 },
    { "step/fixed-3G/floor", 3000000000 },
    { "step/fixed-10G/floor", 10000000000 },
};

static int half_slice(void *bench, unsigned who, double *ret_ms)
{
    int rc = step_time(bench, ret_ms);

    (void)who;
    *ret_ms *= 1e3;
    return rc;
}

/* First all of the state streamed, then half of it, on the same kind of drive. */
static int step_case_half(struct step_bench *b, const char *name)
{
    const struct zbench_row row = zbench_row("ms", true, "nothing resident", "%s", name);
    struct zbench_series s[2];
    double ignored;
    int rc = 0;

    for (int half = 0; half < 2 && rc == 0; half++) {
        rc = step_begin(b, UINT64_C(3000000000), half ? b->params / 2 : 0);
        if (rc == 0)
            rc = step_time(b, &ignored); /* warms up */
        if (rc == 0)
            rc = zbench_turns(&s[half], "A", 1, b->rounds, half_slice, b);
        rc = zbench_rig_end(&b->rig, rc);
    }
    return rc < 0 ? rc : zbench_add(b->z, &row, s[1].of[0][0], s[0].of[0][0], b->rounds);
}

/* Bytes that a process has moved to and from drives, as the kernel counts them. */
static int step_moved(struct step_bench *b, pid_t pid, uint64_t *ret)
{
    unsigned long long got, sum = 0;
    char path[64], line[128];
    unsigned found = 0;
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "read_bytes: %llu", &got) == 1 ||
            sscanf(line, "write_bytes: %llu", &got) == 1) {
            sum += got;
            found++;
        }
    if (f)
        (void)fclose(f);
    *ret = sum;
    return found == 2 ? 0 : zb_fail(&b->z->err, -ENOENT, "'%s' has no counts of bytes", path);
}

/* fio's file, written once: reserved space reads without touching the drive. */
static int drive_fio_file(struct step_bench *b, const char *path, uint64_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t seed = 1;
    int rc = fd < 0 ? -errno : 0;

    for (uint64_t at = 0; at < bytes && rc == 0; at += STEP_STAGING) {
        for (uint64_t i = 0; i < STEP_STAGING / 8; i++)
            ((uint64_t *)b->rig.job.staging)[i] = seed = seed * 6364136223846793005u + 1;
        for (uint64_t n = 0; n < STEP_STAGING && rc == 0;) {
            ssize_t wrote = write(fd, (char *)b->rig.job.staging + n, STEP_STAGING - n);

            rc = wrote < 0 ? -errno : 0;
            n += wrote > 0 ? (uint64_t)wrote : 0;
        }
    }
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    zb_close_fd(&fd);
    return rc < 0 ? zb_fail(&b->z->err, rc, "write '%s' for fio: %m", path) : 0;
}

enum { FIO, FIO_AGAIN, STEP, KERNELS }; /* of a round on the drive: A, B, C, D */

/* MiB/s of fio; ms of a step, and bytes that it moved; ns per parameter of the kernels. */
static int drive_slice(void *bench, unsigned who, double *ret)
{
    struct step_bench *b = bench;
    uint64_t before = 0, after = 0;
    int rc;

    if (who == KERNELS)
        return zbench_kernels_measure(&b->kernels, false, ret);
    if (who != STEP)
        return zbench_fio_run(b->z, &b->fio, ret, NULL);
    if ((rc = step_moved(b, b->rig.daemon.pid, &before)) < 0 || (rc = step_time(b, ret)) < 0 ||
        (rc = step_moved(b, b->rig.daemon.pid, &after)) < 0)
        return rc;
    ret[0] *= 1e3;
    ret[1] = (double)(after - before);
    return 0;
}

static int drive_rounds(struct step_bench *b, const char *path, struct zbench_series *s)
{
    uint32_t page_bytes = (uint32_t)(b->page_elems * STEP_STATE);
    double ignored;
    int rc;

    b->fio = (struct zbench_fio){ .path = path,
                                  .rw = "randrw",
                                  .block_bytes = page_bytes,
                                  .depth = STEP_DEPTH,
                                  .direct = true,
                                  .fixed_bufs =
                                      zbench_fio_may_lock(2 * STEP_DEPTH * (uint64_t)page_bytes),
                                  .size_bytes = zb_min_u64(STEP_FIO_BYTES, b->params * STEP_STATE),
                                  .seconds = STEP_FIO_S,
                                  .ramp_s = STEP_FIO_RAMP_S };
    rc = drive_fio_file(b, path, b->fio.size_bytes);
    if (rc == 0)
        rc = step_time(b, &ignored); /* warms up */
    if (rc == 0)
        zbench_fio_print(b->z, &b->fio);
    return rc < 0 ? rc : zbench_turns(s, "DACBBCA", 2, b->rounds, drive_slice, b);
}

static int drive_rows(struct step_bench *b, const struct zbench_series *s)
{
    const struct zbench_row control = zbench_row("ms", true, "fio", "step/drive/fio"),
                            bytes =
                                zbench_row("B", true, "the layout", "step/drive/bytes-per-param");
    double params = (double)b->params, mib = params * STEP_BYTES / (double)ZB_MIB;
    double fio[2][ZBENCH_ROUNDS_MAX], kernels[ZBENCH_ROUNDS_MAX], floors[ZBENCH_ROUNDS_MAX],
        moved[ZBENCH_ROUNDS_MAX];
    struct zbench_row row;
    int rc;

    for (unsigned i = 0; i < b->rounds; i++) { /* as ms for the bytes and parameters of a step */
        double a = s->of[FIO][0][i], again = s->of[FIO_AGAIN][0][i];

        fio[0][i] = mib / a * 1e3;
        fio[1][i] = mib / again * 1e3;
        kernels[i] = s->of[KERNELS][0][i] * params / 1e6;
        floors[i] = fmax(2 * mib / (a + again) * 1e3, kernels[i]);
        moved[i] = s->of[STEP][1][i] / params;
    }
    row = zbench_row("ms", true,
                     zbench_median(kernels, b->rounds) > zbench_median(fio[0], b->rounds)
                         ? "the kernels on memory"
                         : "fio",
                     "step/drive/floor");
    if ((rc = zbench_add(b->z, &row, s->of[STEP][0], floors, b->rounds)) < 0 ||
        (rc = zbench_add(b->z, &control, fio[1], fio[0], b->rounds)) < 0)
        return rc;
    return zbench_add_fixed(b->z, &bytes, moved, STEP_BYTES, b->rounds);
}

static int step_case_drive(struct step_bench *b)
{
    struct zbench_series s;
    char path[PATH_MAX];
    int rc = zbench_fio_find(b->z);

    if (rc < 0)
        return rc;
    (void)snprintf(path, sizeof(path), "%s/zbench-step-%d.data", b->dir, (int)getpid());
    rc = step_begin(b, 0, 0);
    if (rc == 0)
        rc = drive_rounds(b, path, &s);
    (void)unlink(path);
    rc = zbench_rig_end(&b->rig, rc);
    return rc < 0 ? rc : drive_rows(b, &s);
}

/* ---- a peer */

enum { MS, BYTES, GRADS_S, PEER_VALUES };

static int our_step(struct step_bench *b, double *ret_s, double *ret_grads_s)
{
    uint64_t begin_ns = zb_now_ns();
    int rc = step_time(b, ret_s);

    *ret_grads_s = (double)(zb_now_ns() - begin_ns) / 1e9 - *ret_s;
    return rc;
}

/* Seconds of the peer's step, and of computing its gradients. */
static int peer_step(struct step_bench *b, double *ret_s, double *ret_grads_s)
{
    char line[256];
    int rc = zbench_peer_ask(b->z, &b->peer_program, "step", line, sizeof(line));

    if (rc == 0 && (sscanf(line, "%lf %lf", ret_s, ret_grads_s) != 2 || !(*ret_s > 0)))
        rc = zb_fail(&b->z->err, -EPROTO, "the peer answered: %s", line);
    return rc;
}

static int peer_slice(void *bench, unsigned who, double *ret)
{
    struct step_bench *b = bench;
    pid_t pid = who == 0 ? b->rig.daemon.pid : b->peer_program.pid;
    uint64_t before = 0, after = 0;
    int rc = step_moved(b, pid, &before);

    if (rc == 0)
        rc = (who == 0 ? our_step : peer_step)(b, &ret[MS], &ret[GRADS_S]);
    if (rc == 0)
        rc = step_moved(b, pid, &after);
    ret[MS] *= 1e3;
    ret[BYTES] = (double)(after - before) / (double)b->params;
    return rc;
}

static int peer_rounds(struct step_bench *b, struct zbench_series *s)
{
    char line[PATH_MAX + 8192];
    double ignored;
    int rc = step_time(b, &ignored); /* warms up */

    (void)snprintf(line, sizeof(line), "exec %s '%s' %llu %u", b->peer, b->rig.daemon.dir,
                   (unsigned long long)b->params, b->threads);
    if (rc == 0)
        rc = zbench_peer_start(b->z, &b->peer_program, line);
    return rc < 0 ? rc : zbench_turns(s, "ABBA", PEER_VALUES, b->rounds, peer_slice, b);
}

static int step_case_peer(struct step_bench *b)
{
    struct zbench_row row, bytes;
    struct zbench_series s;
    bool counted = true;
    int rc;

    (void)signal(SIGPIPE, SIG_IGN); /* a peer that has ended is an ordinary error */
    rc = step_begin(b, 0, 0);
    if (rc == 0)
        rc = peer_rounds(b, &s);
    row = zbench_row("ms", true, "peer", "step/drive/ours/%s", b->peer_program.name);
    bytes = zbench_row("B", true, "peer", "step/drive/bytes-per-param/%s", b->peer_program.name);
    zbench_peer_end(&b->peer_program);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc < 0)
        return rc;
    zbench_note(
        b->z,
        "%.0f million parameters; gradients, which are not part of a step: ours %.2f s, the "
        "peer's %.2f",
        (double)b->params / 1e6, zbench_median(s.of[0][GRADS_S], b->rounds),
        zbench_median(s.of[1][GRADS_S], b->rounds));
    rc = zbench_add(b->z, &row, s.of[0][MS], s.of[1][MS], b->rounds);
    for (unsigned i = 0; i < b->rounds; i++)
        counted = counted && s.of[1][BYTES][i] > 0;
    if (!counted)
        zbench_note(b->z, "the kernel counted no transfers of the peer to or from a drive");
    return rc < 0 || !counted ? rc
                              : zbench_add(b->z, &bytes, s.of[0][BYTES], s.of[1][BYTES], b->rounds);
}

static bool step_wants(const struct step_bench *b, const char *name)
{
    return !b->only || strncmp(name, b->only, zb_min_u64(strlen(b->only), strlen(name))) == 0;
}

static int step_run(struct step_bench *b)
{
    int rc;

    b->threads = (unsigned)zb_min_u64((uint64_t)sysconf(_SC_NPROCESSORS_ONLN), STEP_THREADS);
    if (b->peer)
        return step_case_peer(b);
    rc = zbench_kernels_open(&b->kernels, b->z, b->params, b->page_elems, b->threads);
    for (size_t i = 0; i < ZB_COUNT(step_rates) && rc == 0; i++)
        if (step_wants(b, step_rates[i].name))
            rc = step_case_rate(b, step_rates[i].name, step_rates[i].rate);
    for (size_t i = 0; i < ZB_COUNT(step_muons) && rc == 0; i++)
        if (step_wants(b, step_muons[i].name))
            rc = step_case_muon(b, step_muons[i].name, step_muons[i].drive);
    if (rc == 0 && step_wants(b, "step/half-resident/fixed-3G"))
        rc = step_case_half(b, "step/half-resident/fixed-3G");
    if (rc == 0 && step_wants(b, "step/drive"))
        rc = step_case_drive(b);
    zbench_kernels_close(&b->kernels);
    return rc;
}

/* ---- options */

static int step_main(struct zbench *z, void *bench)
{
    struct step_bench *b = bench;

    b->z = z;
    if (b->params < STEP_UNITS * b->page_elems)
        return zb_fail(&z->err, -EINVAL, "--params must be at least %u pages", STEP_UNITS);
    b->count = b->params / STEP_UNITS / b->page_elems * b->page_elems;
    b->params = b->count * STEP_UNITS;
    if (b->ring_bytes == 0)
        b->ring_bytes = ZB_BUFFERS_DEFAULT * zb_buffer_bytes((uint32_t)b->page_elems);
    return step_run(b);
}

#define AT(member) ZB_OPT_AT(struct step_bench, member)

static const struct zb_opt step_options[] = {
    ZBENCH_DIR(struct step_bench, "/var/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "432M", /* 4.5 GB of state */
      .max = UINT64_C(1) << 36 },
    { "page-elems", ZB_OPT_SIZE, AT(page_elems), .arg = "N", .def = "256K", .min = ZB_BLOCK_ELEMS,
      .max = ZB_PAGE_ELEMS_MAX, .multiple = ZB_BLOCK_ELEMS },
    { "ring", ZB_OPT_SIZE, AT(ring_bytes), .arg = "SIZE" },
    ZBENCH_ROUNDS(struct step_bench, "6"),
    ZBENCH_ONLY(struct step_bench, "CASE"),
    ZBENCH_PEER(struct step_bench, peer),
    { 0 },
};

const struct zbench_cmd zbench_step = {
    .name = "step",
    .help = "a step that streams its state, against the limit of drive and kernels",
    .options = step_options,
    .bytes = sizeof(struct step_bench),
    .run = step_main,
};
