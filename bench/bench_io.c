/*
 * bench_io.c - `zbench io`: our I/O engines against fio, on the same file.
 *
 * MODEL. For each case (read, write or half of each; 1 or 4 MiB) rounds of eight slices,
 *
 *     fio  uring  threads  fio'  fio'  threads  uring  fio
 *
 * where fio and fio' are the same program: their ratio is the control, which shows how small a
 * difference this machine can resolve. Ours are compared with the mean of all four slices of fio.
 *
 * A SLICE keeps 32 MiB in flight, in blocks at random places. Completions at the beginning (the
 * ramp) do not count: without a ramp, fio would fault in its buffers while its clock runs, and ours
 * are already mapped. Then a slice counts completions for a fixed time, stops submitting, and waits
 * for the last request. Bytes and time of that wait count, as in fio.
 *
 * The file is written once before anything is measured: reserved space that was never written reads
 * as zeros without touching the device.
 *
 * BUFFERS matter more than engines: huge pages were seen to read up to twice as fast as 4 KiB
 * pages, and two buffers of 4 KiB pages to differ by 30 % for as long as they live, because of
 * where their pages happen to lie. So both get fresh buffers for each slice, and both get huge
 * pages: ours by madvise(), fio by a setting of its C library.
 *
 * Both register the file and, if RLIMIT_MEMLOCK allows it, the buffers.
 *
 * OTHER COMPARISONS have their own rounds, A B B A (A for fixed-rate):
 *
 *     fixed-rate  the part that our engines share on the simulated device (nvme/sim/zn_sim.h),
 *                 against that device's rate. It shows whether we keep a drive busy, for which real
 *                 drives are too noisy; it says nothing about io_uring
 *     crc         CPU time per GB for a checksum of every page that is read or written (time with
 *                 it minus time without), against the limit that we promise
 *     pages       buffers on huge pages against buffers on 4 KiB pages
 *     PEER        another program (--peer, bench/peers/). Both read and write sequentially, since
 *                 not every program supports random blocks
 *
 * CPU time is the time that the kernel charged to our process (all threads), and fio's own figure
 * for its job, without its start.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/fio.h"
#include "bench/io_slice.h"
#include "bench/peer.h"
#include "bench/turns.h"

#define IO_CRC_LIMIT 60.0 /* CPU milliseconds per GB: what we promise */

static const char *const io_fio_rw[] = {
    [IO_READ] = "randread",
    [IO_WRITE] = "randwrite",
    [IO_MIXED] = "randrw",
};

static const struct {
    const char *name;
    uint32_t bytes;
} io_blocks[] = { { "1M", 1u << 20 }, { "4M", 4u << 20 } };

/* The contestants A to D of a round; the first two are the same program. */
enum io_who { IO_FIO, IO_FIO_AGAIN, IO_URING, IO_THREADS, IO_WHOS };

static const char *const io_engines[IO_WHOS] = { [IO_URING] = "uring", [IO_THREADS] = "threads" };

#define IO_ROUND "ACDBBDCA"
#define IO_SMOKE "ACDB"

static const struct {
    const char *name;
    uint64_t bytes_s;
} io_rates[] = { { "1G", 1000000000 }, { "3G", 3000000000 }, { "10G", 10000000000 } };

struct io_bench {
    struct zbench *z;
    const char *dir;
    const char *only;         /* the beginning of case names; NULL: all */
    const char *against;      /* one comparison; NULL: all */
    const char *peer_command; /* of another program, or NULL */
    struct zbench_peer peer;
    bool fixed_bufs; /* fio may lock its buffers, and so may we */
    struct io_file file;
    double seconds; /* of a slice */
    bool smoke;
    unsigned slices, rounds; /* of two slices each */

    enum io_mix mix; /* of the case */
    uint32_t block_bytes;
    const struct io_how *hows[2]; /* of a pair; the second may be NULL: the peer */
};

static void io_on_signal(int signo)
{
    (void)signo;
    zbench_io_stop = 1;
}

static struct zbench_fio io_fio(const struct io_bench *b, enum io_mix mix, uint32_t block_bytes)
{
    return (struct zbench_fio){ .path = b->file.path,
                                .rw = io_fio_rw[mix],
                                .block_bytes = block_bytes,
                                .depth = io_depth(block_bytes),
                                .direct = b->file.direct,
                                .fixed_bufs = b->fixed_bufs,
                                .offset_bytes = ZN_DATA_START,
                                .size_bytes = io_block_count(&b->file, block_bytes) * block_bytes,
                                .seconds = b->seconds,
                                .ramp_s = IO_RAMP_S };
}

static int io_theirs(struct io_bench *b, enum io_mix mix, uint32_t block_bytes,
                     struct io_slice *ret)
{
    const struct zbench_fio f = io_fio(b, mix, block_bytes);

    return zbench_fio_run(b->z, &f, &ret->mib_s, &ret->cpu_us);
}

/* ---- a peer. It is started once, with three more arguments: the file, and the first byte and the
 * number of bytes that it may use. It prints "ready NAME WHAT...". Then it answers each line
 * "read|write BLOCK_BYTES SECONDS" with a line "MIB_S CPU_US_PER_BLOCK"; any other answer ends the
 * benchmark. It ends when its input ends. */

static int io_peer_start(struct io_bench *b)
{
    char command[8192];

    (void)snprintf(
        command, sizeof(command), "exec %s '%s' %llu %llu", b->peer_command, b->file.path,
        (unsigned long long)ZN_DATA_START,
        (unsigned long long)((b->file.size_bytes - ZN_DATA_START) / IO_BLOCK_MAX * IO_BLOCK_MAX));
    return zbench_peer_start(b->z, &b->peer, command);
}

static int io_peer_slice(struct io_bench *b, enum io_mix mix, uint32_t block_bytes,
                         struct io_slice *ret)
{
    char question[64], line[1024];
    int rc;

    (void)snprintf(question, sizeof(question), "%s %u %g", zbench_io_mixes[mix], block_bytes,
                   b->seconds);
    rc = zbench_peer_ask(b->z, &b->peer, question, line, sizeof(line));
    if (rc == 0 && sscanf(line, "%lf %lf", &ret->mib_s, &ret->cpu_us) != 2)
        rc = zb_fail(&b->z->err, -EPROTO, "the peer answered: %s", line);
    return rc;
}

/* The values of a slice. */
enum { MIB_S, CPU, IO_VALUES };

static int io_fio_slice(void *bench, unsigned who, double *ret)
{
    struct io_bench *b = bench;
    const struct io_how how = { .engine = io_engines[who] };
    struct io_slice s = { 0 };
    int rc = how.engine ? zbench_io_slice(&b->file, &how, b->mix, b->block_bytes, b->seconds, &s)
                        : io_theirs(b, b->mix, b->block_bytes, &s);

    ret[MIB_S] = s.mib_s;
    ret[CPU] = s.cpu_us;
    return zbench_io_stop ? zb_fail(&b->z->err, -EINTR, "interrupted") : rc;
}

static int io_add(struct io_bench *b, size_t block, const char *who, bool cpu, const double *values,
                  const double *references)
{
    const struct zbench_row row = zbench_row(cpu ? "us/io" : "MiB/s", cpu, "fio", "%s%s/%s/%s/fio",
                                             cpu ? "cpu/" : "", zbench_io_mixes[b->mix],
                                             io_blocks[block].name, who);

    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* A CPU time of 0 only means that the clock is too coarse: fio counts in milliseconds. */
static bool io_all_positive(const double *values, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (values[i] <= 0)
            return false;
    return true;
}

static int io_case_fio(struct io_bench *b, size_t block)
{
    const struct zbench_fio f = io_fio(b, b->mix, b->block_bytes);
    double fio[IO_VALUES][ZBENCH_ROUNDS_MAX]; /* the mean of all its slices */
    struct zbench_series s;
    int rc;

    zbench_fio_print(b->z, &f);
    rc = zbench_turns(&s, b->smoke ? IO_SMOKE : IO_ROUND, IO_VALUES, b->rounds, io_fio_slice, b);
    for (unsigned v = 0; v < IO_VALUES; v++)
        for (unsigned i = 0; i < b->rounds; i++)
            fio[v][i] = (s.of[IO_FIO][v][i] + s.of[IO_FIO_AGAIN][v][i]) / 2;
    for (enum io_who who = IO_URING; who < IO_WHOS && rc == 0; who++)
        rc = io_add(b, block, io_engines[who], false, s.of[who][MIB_S], fio[MIB_S]);
    if (rc == 0)
        rc = io_add(b, block, "fio", false, s.of[IO_FIO_AGAIN][MIB_S], s.of[IO_FIO][MIB_S]);
    for (enum io_who who = IO_URING; who < IO_WHOS && rc == 0; who++)
        if (io_all_positive(fio[CPU], b->rounds))
            rc = io_add(b, block, io_engines[who], true, s.of[who][CPU], fio[CPU]);
    return rc;
}

/* ret[CPU]: milliseconds per GB. */
static int io_pair_slice(void *bench, unsigned who, double *ret)
{
    struct io_bench *b = bench;
    const struct io_how *how = b->hows[who];
    struct io_slice s = { 0 };
    int rc = how ? zbench_io_slice(&b->file, how, b->mix, b->block_bytes, b->seconds, &s)
                 : io_peer_slice(b, b->mix, b->block_bytes, &s);

    ret[MIB_S] = s.mib_s;
    ret[CPU] = s.cpu_us / 1e3 * (1e9 / b->block_bytes);
    return zbench_io_stop ? zb_fail(&b->z->err, -EINTR, "interrupted") : rc;
}

/* Compares two kinds of slices. theirs NULL: the peer. */
static int io_pair(struct io_bench *b, const char *order, const struct io_how *ours,
                   const struct io_how *theirs, struct zbench_series *ret)
{

    b->hows[0] = ours;
    b->hows[1] = theirs;
    return zbench_turns(ret, order, IO_VALUES, b->rounds, io_pair_slice, b);
}

static int io_case_rate(struct io_bench *b, size_t block)
{
    struct zbench_series s;
    int rc = 0;

    for (size_t i = 0; i < ZB_COUNT(io_rates) && rc == 0; i++) {
        const struct io_how how = { .sim_bytes_s = io_rates[i].bytes_s };
        const struct zbench_row row = zbench_row("MiB/s", false, "the device's rate",
                                                 "%s/%s/sim-%s/fixed-rate", zbench_io_mixes[b->mix],
                                                 io_blocks[block].name, io_rates[i].name);

        rc = io_pair(b, "A", &how, NULL, &s);
        if (rc == 0)
            rc = zbench_add_fixed(b->z, &row, s.of[0][MIB_S],
                                  (double)io_rates[i].bytes_s / (double)ZB_MIB, b->rounds);
    }
    return rc;
}

static int io_case_crc(struct io_bench *b, size_t block)
{
    static const struct io_how with = { .engine = "auto", .crc = true },
                               without = { .engine = "auto" };
    const struct zbench_row row = zbench_row("ms/GB", true, "limit", "cpu/%s/%s/crc/limit",
                                             zbench_io_mixes[b->mix], io_blocks[block].name);
    struct zbench_series s;
    int rc = io_pair(b, "ABBA", &with, &without, &s);

    for (unsigned i = 0; i < b->rounds; i++)
        s.of[0][CPU][i] -= s.of[1][CPU][i];
    return rc < 0 ? rc : zbench_add_fixed(b->z, &row, s.of[0][CPU], IO_CRC_LIMIT, b->rounds);
}

static int io_add_pair(struct io_bench *b, size_t block, const char *who, const char *against,
                       const struct zbench_series *s)
{
    const char *mix = zbench_io_mixes[b->mix], *name = io_blocks[block].name;
    const struct zbench_row row = zbench_row("MiB/s", false, against, "%s/%s/%s/%s", mix, name, who,
                                             against),
                            cpu = zbench_row("ms/GB", true, against, "cpu/%s/%s/%s/%s", mix, name,
                                             who, against);
    int rc = zbench_add(b->z, &row, s->of[0][MIB_S], s->of[1][MIB_S], b->rounds);

    if (rc < 0 || !io_all_positive(s->of[1][CPU], b->rounds))
        return rc;
    return zbench_add(b->z, &cpu, s->of[0][CPU], s->of[1][CPU], b->rounds);
}

static int io_case_pages(struct io_bench *b, size_t block)
{
    static const struct io_how huge = { .engine = "auto" },
                               small = { .engine = "auto", .small_pages = true };
    struct zbench_series s;
    int rc = io_pair(b, "ABBA", &huge, &small, &s);

    return rc < 0 ? rc : io_add_pair(b, block, "huge-pages", "small-pages", &s);
}

static int io_case_peer(struct io_bench *b, size_t block)
{
    static const struct io_how ours = { .engine = "auto", .in_order = true };
    struct zbench_series s;
    int rc;

    if (!b->peer_command || b->mix == IO_MIXED)
        return 0;
    rc = io_pair(b, "ABBA", &ours, NULL, &s);
    return rc < 0 ? rc : io_add_pair(b, block, "ours", b->peer.name, &s);
}

static const struct {
    const char *name;
    int (*run)(struct io_bench *b, size_t block);
} io_cases[] = {
    { "fio", io_case_fio },     { "fixed-rate", io_case_rate }, { "crc", io_case_crc },
    { "pages", io_case_pages }, { "peer", io_case_peer },
};

static int io_case(struct io_bench *b, size_t block)
{
    char name[32];
    int rc = 0;

    b->block_bytes = io_blocks[block].bytes;
    (void)snprintf(name, sizeof(name), "%s/%s", zbench_io_mixes[b->mix], io_blocks[block].name);
    if (!zbench_wants(b->only, name))
        return 0;
    for (size_t i = 0; i < ZB_COUNT(io_cases) && rc == 0; i++)
        if (!b->against || strcmp(b->against, io_cases[i].name) == 0)
            rc = io_cases[i].run(b, block);
    return rc;
}

static int io_run_cases(struct io_bench *b)
{
    static const struct io_how how = { .engine = "auto" };
    struct io_slice fill;
    int rc = zbench_io_slice(&b->file, &how, IO_WRITE, (uint32_t)ZB_MIB, 0, &fill);

    if (rc == 0)
        zbench_note(b->z, "%s, %s of %s, %s", b->file.path, zb_size_text(b->file.size_bytes).s,
                    b->file.direct ? "O_DIRECT" : "buffered", "written once");
    if (rc == 0 && b->peer_command)
        rc = io_peer_start(b);
    for (b->mix = IO_READ; b->mix <= IO_MIXED && rc == 0; b->mix++)
        for (size_t block = 0; block < ZB_COUNT(io_blocks) && rc == 0; block++)
            rc = io_case(b, block);
    zbench_peer_end(&b->peer);
    return rc;
}

static int io_main(struct zbench *z, void *bench)
{
    struct io_bench *b = bench;
    struct sigaction act = { .sa_handler = io_on_signal };
    int rc;

    b->z = z;
    b->file.z = z;
    b->rounds = (b->slices + 1) / 2;
    if (b->smoke) { /* only tests the benchmark: the figures mean nothing */
        b->file.size_bytes = 32 * ZB_MIB;
        b->seconds = 0.02;
        b->rounds = 1;
    }
    b->fixed_bufs = zbench_fio_may_lock(2 * IO_INFLIGHT);
    rc = zbench_fio_find(z);
    if (rc < 0)
        return rc;
    rc = zbench_io_fill(&b->file);
    if (rc < 0)
        return rc;
    (void)snprintf(b->file.path, sizeof(b->file.path), "%s/zbench-io-%d.data", b->dir,
                   (int)getpid());
    (void)sigaction(SIGINT, &act, NULL); /* a signal must not leave the file behind */
    (void)sigaction(SIGTERM, &act, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a peer that has ended is an ordinary error */
    rc = io_run_cases(b);
    (void)unlink(b->file.path);
    free(b->file.fill);
    return rc;
}

#define AT(member) ZB_OPT_AT(struct io_bench, member)

static const struct zb_opt io_options[] = {
    ZBENCH_DIR(struct io_bench, "."),
    { "size", ZB_OPT_SIZE, AT(file.size_bytes), .arg = "SIZE", .def = "1G", .min = 2 * IO_BLOCK_MAX,
      .round = ZB_MIB },
    { "seconds", ZB_OPT_REAL, AT(seconds), .arg = "S", .def = "0.3", .min = 0.01, .max = 3600 },
    { "slices", ZB_OPT_COUNT, AT(slices), .arg = "N", .def = "20", .min = 2,
      .max = 2 * ZBENCH_ROUNDS_MAX },
    ZBENCH_ONLY(struct io_bench, "read/1M"),
    { "against", ZB_OPT_TEXT, AT(against), .arg = "fio" },
    ZBENCH_PEER(struct io_bench, peer_command),
    { "smoke", ZB_OPT_FLAG, AT(smoke) },
    { 0 },
};

const struct zbench_cmd zbench_io = {
    .name = "io",
    .help = "bandwidth of the I/O engines, against fio",
    .options = io_options,
    .bytes = sizeof(struct io_bench),
    .run = io_main,
};
