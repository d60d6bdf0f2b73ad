/*
 * bench_io.c - `zbench io`: our I/O engines against fio, on the same file.
 *
 * MODEL. For each case (read, write or half of each; 1 or 4 MiB) rounds of eight slices,
 *
 *     fio  uring  threads  fio'  fio'  threads  uring  fio
 *
 * where fio and fio' are the same program: their ratio is the control, it says what this machine
 * can tell apart at all. Ours is compared with all four slices of fio.
 *
 * A SLICE keeps 32 MiB in flight, in blocks at random places. What completes in the first moment
 * (the ramp) does not count: without it fio would fault its buffers in on the clock, while ours are
 * there already. Then it counts completions for a fixed time, ends to submit, and waits for the
 * last one. Bytes and time of that wait count, here as in fio.
 *
 * The file is written once before anything is measured: reserved space that was never written reads
 * as zeros without touching the device.
 *
 * BUFFERS matter more than engines: huge pages were seen to read up to twice as fast as 4 KiB
 * pages, and two buffers of 4 KiB pages to differ by 30 % for as long as they live, because of
 * where their pages happen to lie. So both get fresh buffers for each slice, and both get huge
 * pages: ours by madvise(), fio by a setting of its C library.
 *
 * CPU time is what the kernel charged to our process (all threads), and fio's own figure for its
 * job, without its start.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "nvme/zn.h"

#define IO_INFLIGHT  (32 * ZB_MIB)
#define IO_DEPTH_MAX 32u
#define IO_HUGE      (2 * ZB_MIB)
#define IO_RAMP_S    0.05
#define IO_BLOCK_MIN ZB_MIB
#define IO_BLOCK_MAX (4 * ZB_MIB)
_Static_assert(IO_INFLIGHT / IO_BLOCK_MIN == IO_DEPTH_MAX, "a buffer for each request");

#define IO_FIO_ARGS    32
#define IO_FIO_OUTPUT  262144u /* fio answers with about 10 KiB */
#define IO_SLICES_MAX  (2 * ZBENCH_ROUNDS_MAX)
#define IO_SECONDS_MAX 3600.0

enum io_mix { IO_READ, IO_WRITE, IO_MIXED };

static const struct {
    const char *name, *fio_rw;
} io_mixes[] = {
    [IO_READ] = { "read", "randread" },
    [IO_WRITE] = { "write", "randwrite" },
    [IO_MIXED] = { "mixed", "randrw" },
};

static const struct {
    const char *name;
    uint32_t bytes;
} io_blocks[] = { { "1M", 1u << 20 }, { "4M", 4u << 20 } };

/* Who is measured; the first two are the same. */
enum io_who { IO_FIO, IO_FIO_AGAIN, IO_URING, IO_THREADS, IO_WHOS };

static const char *const io_engines[IO_WHOS] = { [IO_URING] = "uring", [IO_THREADS] = "threads" };

static const enum io_who io_round[] = { IO_FIO,       IO_URING,   IO_THREADS, IO_FIO_AGAIN,
                                        IO_FIO_AGAIN, IO_THREADS, IO_URING,   IO_FIO };

struct io_slice {
    double mib_s, cpu_us; /* CPU microseconds of one request */
};

struct io_bench {
    struct zbench *z;
    const char *dir;
    const char *only; /* the beginning of case names; "": all */
    uint64_t size_bytes;
    double seconds; /* of a slice */
    unsigned rounds;
    unsigned round_slices; /* of io_round: all, or the first half */
    char path[4096];
    char *fill; /* IO_INFLIGHT random bytes */
    bool direct;
    uint64_t seed;
};

static volatile sig_atomic_t io_stop;

static void io_on_signal(int signo)
{
    (void)signo;
    io_stop = 1;
}

/* A small generator (xorshift64*): offsets, and bytes that no device can compress. */
static uint64_t io_random(struct io_bench *b)
{
    b->seed ^= b->seed >> 12;
    b->seed ^= b->seed << 25;
    b->seed ^= b->seed >> 27;
    return b->seed * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t io_block_count(const struct io_bench *b, uint32_t block_bytes)
{
    return (b->size_bytes - ZN_DATA_START) / block_bytes;
}

static unsigned io_depth(uint32_t block_bytes)
{
    return (unsigned)(IO_INFLIGHT / block_bytes);
}

/* Fresh buffers on huge pages, touched: IO_INFLIGHT bytes at *ret_bufs inside of what is returned.
 */
static void *io_bufs_map(const struct io_bench *b, char **ret_bufs)
{
    void *map = mmap(NULL, IO_INFLIGHT + IO_HUGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    *ret_bufs = (char *)map + (IO_HUGE - (uintptr_t)map % IO_HUGE);
    (void)madvise(*ret_bufs, IO_INFLIGHT, MADV_HUGEPAGE); /* else as it is, for fio as well */
    memcpy(*ret_bufs, b->fill, IO_INFLIGHT);
    return map;
}

/* One slice of ours. */
struct io_run {
    struct io_bench *b;
    struct zn_engine *e;
    char *bufs;
    enum io_mix mix;
    uint32_t block_bytes;
    uint64_t blocks, next;  /* next: while the file is filled */
    uint64_t slice_ns;      /* 0: fill the file, each block once */
    uint64_t ramp_ns;       /* until then nothing counts */
    bool counting;          /* slice_ns long from begin_ns on, however late that is */
    uint64_t ios, begin_ns; /* since the ramp */
    double begin_cpu_s;
    int rc;
    struct io_request {
        struct zn_io io;
        struct io_run *run;
    } requests[IO_DEPTH_MAX];
};

static bool io_run_over(const struct io_run *r)
{
    return r->rc < 0 || io_stop ||
           (r->slice_ns == 0 ? r->next == r->blocks
                             : r->counting && zb_now_ns() - r->begin_ns >= r->slice_ns);
}

static void io_run_done(struct zn_io *io, int rc);

static void io_run_submit(struct io_request *q)
{
    struct io_run *r = q->run;
    uint64_t block = r->slice_ns > 0 ? io_random(r->b) % r->blocks : r->next++;
    bool write = r->mix == IO_WRITE || (r->mix == IO_MIXED && io_random(r->b) >> 63);

    q->io.op = write ? ZN_WRITE : ZN_READ;
    q->io.len_bytes = r->block_bytes;
    q->io.off_bytes = ZN_DATA_START + block * r->block_bytes;
    q->io.done = io_run_done;
    r->rc = zn_submit(r->e, &q->io);
}

static void io_run_count(struct io_run *r)
{
    r->counting = true;
    r->begin_cpu_s = zbench_cpu_s();
    r->begin_ns = zb_now_ns();
}

static void io_run_done(struct zn_io *io, int rc)
{
    struct io_request *q = zb_container_of(io, struct io_request, io);
    struct io_run *r = q->run;

    if (rc < 0 && r->rc == 0)
        r->rc = rc;
    if (r->counting)
        r->ios++;
    else if (zb_now_ns() >= r->ramp_ns)
        io_run_count(r);
    if (!io_run_over(r))
        io_run_submit(q);
}

static void io_run_all(struct io_run *r)
{
    struct pollfd p = { .fd = zn_wake_fd(r->e), .events = POLLIN };
    eventfd_t n;

    for (unsigned i = 0; i < io_depth(r->block_bytes) && !io_run_over(r); i++) {
        r->requests[i].run = r;
        r->requests[i].io.buf = r->bufs + (size_t)i * r->block_bytes;
        io_run_submit(&r->requests[i]);
    }
    while (zn_stats(r->e).inflight > 0) {
        zn_kick(r->e);
        if (poll(&p, 1, -1) == 1)
            (void)eventfd_read(p.fd, &n);
        (void)zn_reap(r->e, IO_DEPTH_MAX);
    }
}

/* A slice by `engine`; seconds 0 fills the file. */
static int io_ours(struct io_bench *b, const char *engine, enum io_mix mix, uint32_t block_bytes,
                   double seconds, struct io_slice *ret)
{
    struct zn_options o = {
        .path = b->path, .size_bytes = b->size_bytes, .io = engine, .depth = io_depth(block_bytes)
    };
    struct io_run r = {
        .b = b, .mix = mix, .block_bytes = block_bytes, .blocks = io_block_count(b, block_bytes)
    };
    double cpu_s, wall_s;
    void *map;
    int rc = zn_open(&r.e, &o, &b->z->err);

    if (rc < 0)
        return rc;
    map = io_bufs_map(b, &r.bufs);
    if (!map) {
        zn_close(r.e);
        return zb_fail(&b->z->err, -ENOMEM, "%s of buffers: %m", zb_size_text(IO_INFLIGHT).s);
    }
    b->direct = zn_info(r.e)->direct;
    if (seconds > 0) {
        r.ramp_ns = zb_now_ns() + (uint64_t)(IO_RAMP_S * 1e9);
        r.slice_ns = (uint64_t)(seconds * 1e9);
    }
    io_run_all(&r);
    wall_s = (double)(zb_now_ns() - r.begin_ns) / 1e9;
    cpu_s = zbench_cpu_s() - r.begin_cpu_s;
    zn_close(r.e);
    (void)munmap(map, IO_INFLIGHT + IO_HUGE);
    if (r.rc < 0)
        return zb_fail(&b->z->err, r.rc, "%s by %s on '%s': %m", io_mixes[mix].name, engine,
                       b->path);
    if (seconds > 0 && r.ios == 0 && !io_stop)
        return zb_fail(&b->z->err, -ETIME,
                       "no request of %s by %s ended in %g s: ask for more "
                       "--seconds",
                       io_mixes[mix].name, engine, seconds);
    *ret = (struct io_slice){
        .mib_s = (double)(r.ios * block_bytes) / (double)ZB_MIB / wall_s,
        .cpu_us = r.ios > 0 ? cpu_s * 1e6 / (double)r.ios : 0,
    };
    return 0;
}

/* fio's command line, word by word. */
struct io_fio {
    char words[IO_FIO_ARGS][128 + sizeof(((struct io_bench *)0)->path)];
    char *argv[IO_FIO_ARGS + 1];
    unsigned count;
};

static void io_fio_word(struct io_fio *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void io_fio_word(struct io_fio *f, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f->words[f->count], sizeof(f->words[0]), fmt, ap);
    va_end(ap);
    f->argv[f->count] = f->words[f->count];
    f->argv[++f->count] = NULL;
}

static void io_fio_command(const struct io_bench *b, enum io_mix mix, uint32_t block_bytes,
                           struct io_fio *f)
{
    f->count = 0;
    io_fio_word(f, "env");
    io_fio_word(f, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
    io_fio_word(f, "fio");
    io_fio_word(f, "--name=zbench");
    io_fio_word(f, "--filename=%s", b->path);
    io_fio_word(f, "--rw=%s", io_mixes[mix].fio_rw);
    io_fio_word(f, "--bs=%u", block_bytes);
    io_fio_word(f, "--iodepth=%u", io_depth(block_bytes));
    io_fio_word(f, "--ioengine=io_uring");
    io_fio_word(f, "--registerfiles=1");
    io_fio_word(f, "--direct=%d", b->direct);
    io_fio_word(f, "--offset=%llu", (unsigned long long)ZN_DATA_START);
    io_fio_word(f, "--size=%llu",
                (unsigned long long)(io_block_count(b, block_bytes) * block_bytes));
    io_fio_word(f, "--time_based");
    io_fio_word(f, "--runtime=%.0fms", b->seconds * 1e3);
    io_fio_word(f, "--ramp_time=%.0fms", IO_RAMP_S * 1e3);
    io_fio_word(f, "--norandommap");
    io_fio_word(f, "--randrepeat=0");
    io_fio_word(f, "--scramble_buffers=0");
    /* What gtod_reduce=1 switches off, but not the clock: with that it would end its slices up to
     * 64 requests late, which is longer than ours. */
    io_fio_word(f, "--disable_lat=1");
    io_fio_word(f, "--disable_clat=1");
    io_fio_word(f, "--disable_slat=1");
    io_fio_word(f, "--disable_bw_measurement=1");
    io_fio_word(f, "--invalidate=0");
    io_fio_word(f, "--allow_file_create=0");
    io_fio_word(f, "--thread");
    io_fio_word(f, "--output-format=json");
}

/* Runs a program and keeps what it prints: its exit status, or a negative errno. */
static int io_child(char **argv, char *output, size_t size)
{
    int fds[2], status = 0;
    size_t len = 0;
    ssize_t n;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    if (pid == 0) {
        if (dup2(fds[1], STDOUT_FILENO) >= 0)
            (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        n = -errno;
        (void)close(fds[0]);
        return (int)n;
    }
    while ((n = read(fds[0], output + len, size - 1 - len)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        len += n > 0 ? (size_t)n : 0;
        if (len == size - 1)
            break; /* more than anybody prints; it ends by SIGPIPE */
    }
    output[len] = '\0';
    (void)close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

/* Sums of both directions out of fio's answer; false when it is not what we know. Its total_ios
 * counts what was submitted after the ramp, its io_bytes what completed after it, as we do. */
static bool io_fio_numbers(const char *output, uint32_t block_bytes, struct io_slice *ret)
{
    const char *brace = strchr(output, '{'); /* lines before it are remarks */
    json_t *root = brace ? json_loads(brace, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    double bytes = 0, runtime_ms = 0, cpu;

    for (int i = 0; i < 2; i++) {
        json_t *way = json_object_get(job, i == 0 ? "read" : "write");
        double ms = json_number_value(json_object_get(way, "runtime"));

        bytes += json_number_value(json_object_get(way, "io_bytes"));
        runtime_ms = ms > runtime_ms ? ms : runtime_ms;
    }
    cpu = (json_number_value(json_object_get(job, "usr_cpu")) +
           json_number_value(json_object_get(job, "sys_cpu"))) /
          100 * json_number_value(json_object_get(job, "job_runtime"));
    json_decref(root);
    if (bytes == 0 || runtime_ms == 0)
        return false;
    *ret = (struct io_slice){ .mib_s = bytes / (double)ZB_MIB / (runtime_ms / 1e3),
                              .cpu_us = cpu * 1e3 / (bytes / block_bytes) };
    return true;
}

static int io_theirs(struct io_bench *b, enum io_mix mix, uint32_t block_bytes,
                     struct io_slice *ret)
{
    static char output[IO_FIO_OUTPUT];
    static struct io_fio f;
    int rc;

    io_fio_command(b, mix, block_bytes, &f);
    rc = io_child(f.argv, output, sizeof(output));
    if (rc != 0)
        return zb_fail(&b->z->err, rc < 0 ? rc : -EIO, "fio failed (status %d) with: %s", rc,
                       io_mixes[mix].fio_rw);
    if (!io_fio_numbers(output, block_bytes, ret))
        return zb_fail(&b->z->err, -EPROTO, "fio's answer is not what we know: %.200s", output);
    return 0;
}

static void io_print_command(const struct io_bench *b, enum io_mix mix, uint32_t block_bytes)
{
    static struct io_fio f;
    char line[sizeof(f.words[0]) + 1024] = "";
    size_t len = 0;

    io_fio_command(b, mix, block_bytes, &f);
    for (unsigned i = 0; i < f.count && len < sizeof(line); i++)
        len +=
            (size_t)snprintf(line + len, sizeof(line) - len, "%s%s", i > 0 ? " " : "", f.argv[i]);
    zbench_note(b->z, "%s", line);
}

/* The means of a round, of each contestant; [IO_WHOS]: of all slices of fio. */
struct io_result {
    double mib_s[IO_WHOS + 1][ZBENCH_ROUNDS_MAX], cpu_us[IO_WHOS + 1][ZBENCH_ROUNDS_MAX];
};

static int io_measure_round(struct io_bench *b, enum io_mix mix, uint32_t block_bytes,
                            unsigned round, struct io_result *res)
{
    unsigned each = b->round_slices / IO_WHOS; /* slices of each contestant */

    for (unsigned i = 0; i < b->round_slices; i++) {
        enum io_who who = io_round[i];
        struct io_slice s;
        int rc = io_engines[who] ? io_ours(b, io_engines[who], mix, block_bytes, b->seconds, &s)
                                 : io_theirs(b, mix, block_bytes, &s);

        if (io_stop)
            return zb_fail(&b->z->err, -EINTR, "interrupted");
        if (rc < 0)
            return rc;
        res->mib_s[who][round] += s.mib_s / each;
        res->cpu_us[who][round] += s.cpu_us / each;
    }
    res->mib_s[IO_WHOS][round] = (res->mib_s[IO_FIO][round] + res->mib_s[IO_FIO_AGAIN][round]) / 2;
    res->cpu_us[IO_WHOS][round] = (res->cpu_us[IO_FIO][round] + res->cpu_us[IO_FIO_AGAIN][round]) /
                                  2;
    return 0;
}

static int io_add(struct io_bench *b, const char *prefix, const char *mix, const char *block,
                  const char *who, bool cpu, const double *values, const double *references)
{
    struct zbench_row row = { .unit = cpu ? "us/io" : "MiB/s",
                              .reference_name = "fio",
                              .lower = cpu };

    (void)snprintf(row.name, sizeof(row.name), "%s%s/%s/%s/fio", prefix, mix, block, who);
    return zbench_add(b->z, &row, values, references, b->rounds);
}

/* A figure of no CPU time at all is one of the clock's: fio counts in milliseconds. */
static bool io_all_positive(const double *values, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (values[i] <= 0)
            return false;
    return true;
}

static int io_case(struct io_bench *b, enum io_mix mix, size_t block)
{
    static struct io_result res;
    const char *mix_name = io_mixes[mix].name, *block_name = io_blocks[block].name;
    char name[32];
    int rc = 0;

    (void)snprintf(name, sizeof(name), "%s/%s", mix_name, block_name);
    if (strncmp(name, b->only, strlen(b->only)) != 0)
        return 0;
    memset(&res, 0, sizeof(res));
    io_print_command(b, mix, io_blocks[block].bytes);
    for (unsigned i = 0; i < b->rounds && rc == 0; i++)
        rc = io_measure_round(b, mix, io_blocks[block].bytes, i, &res);
    for (enum io_who who = IO_URING; who < IO_WHOS && rc == 0; who++)
        rc = io_add(b, "", mix_name, block_name, io_engines[who], false, res.mib_s[who],
                    res.mib_s[IO_WHOS]);
    if (rc == 0)
        rc = io_add(b, "", mix_name, block_name, "fio", false, res.mib_s[IO_FIO_AGAIN],
                    res.mib_s[IO_FIO]);
    for (enum io_who who = IO_URING; who < IO_WHOS && rc == 0; who++)
        if (io_all_positive(res.cpu_us[IO_WHOS], b->rounds))
            rc = io_add(b, "cpu/", mix_name, block_name, io_engines[who], true, res.cpu_us[who],
                        res.cpu_us[IO_WHOS]);
    return rc;
}

static int io_run_cases(struct io_bench *b)
{
    struct io_slice fill;
    int rc = io_ours(b, "auto", IO_WRITE, (uint32_t)ZB_MIB, 0, &fill);

    if (rc == 0)
        zbench_note(b->z, "%s, %s of %s, %s", b->path, zb_size_text(b->size_bytes).s,
                    b->direct ? "O_DIRECT" : "buffered", "written once; fio's command lines:");
    for (enum io_mix mix = IO_READ; mix <= IO_MIXED && rc == 0; mix++)
        for (size_t block = 0; block < ZB_COUNT(io_blocks) && rc == 0; block++)
            rc = io_case(b, mix, block);
    return rc;
}

static int io_find_fio(struct zbench *z)
{
    char name[] = "fio", version[] = "--version", output[256];
    char *argv[] = { name, version, NULL };
    int rc = io_child(argv, output, sizeof(output));

    if (rc != 0)
        return zb_fail(&z->err, -ENOENT,
                       "fio, the reference, does not run here (Debian: apt-get install fio)");
    output[strcspn(output, "\n")] = '\0';
    zbench_note(z, "reference: %s", output);
    return 0;
}

/* A number of [least, most], or -EINVAL. */
static int io_parse_number(struct zbench *z, const char *what, const char *text, double least,
                           double most, double *ret)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !(v >= least && v <= most))
        return zb_fail(&z->err, -EINVAL, "--%s '%s': a number of %g .. %g", what, text, least,
                       most);
    *ret = v;
    return 0;
}

static int io_parse(struct io_bench *b, int argc, char **argv)
{
    static const struct option options[] = {
        { "dir", required_argument, NULL, 'd' },
        { "size", required_argument, NULL, 's' },
        { "seconds", required_argument, NULL, 't' },
        { "slices", required_argument, NULL, 'n' },
        { "only", required_argument, NULL, 'o' },
        { "smoke", no_argument, NULL, 'q' },
        { 0 },
    };
    double slices = 0;
    int opt, rc = 0;

    while (rc == 0 && (opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 'd':
            b->dir = optarg;
            break;
        case 's':
            rc = zb_size_parse(optarg, &b->size_bytes, &b->z->err);
            break;
        case 't':
            rc = io_parse_number(b->z, "seconds", optarg, 0.01, IO_SECONDS_MAX, &b->seconds);
            break;
        case 'n':
            rc = io_parse_number(b->z, "slices", optarg, 2, IO_SLICES_MAX, &slices);
            if (rc == 0)
                b->rounds = (unsigned)(slices + 1) / 2;
            break;
        case 'o':
            b->only = optarg;
            break;
        case 'q': /* does it work at all: the figures mean nothing */
            b->size_bytes = 32 * ZB_MIB;
            b->seconds = 0.02;
            b->rounds = 1;
            b->round_slices = ZB_COUNT(io_round) / 2;
            break;
        default: /* getopt has said what */
            rc = zb_fail(&b->z->err, -EINVAL,
                         "usage: zbench io [--dir DIR] [--size SIZE] "
                         "[--seconds S] [--slices N] [--only CASE] [--smoke] [--json]");
        }
    }
    if (rc == 0 && optind < argc)
        rc = zb_fail(&b->z->err, -EINVAL, "'%s': zbench io takes options only", argv[optind]);
    b->size_bytes = b->size_bytes / ZB_MIB * ZB_MIB;
    if (rc == 0 && b->size_bytes < 2 * IO_BLOCK_MAX)
        rc = zb_fail(&b->z->err, -EINVAL, "--size: at least %s", zb_size_text(2 * IO_BLOCK_MAX).s);
    return rc;
}

int zbench_io(struct zbench *z, int argc, char **argv)
{
    struct io_bench b = { .z = z,
                          .dir = ".",
                          .only = "",
                          .size_bytes = ZB_GIB,
                          .seconds = 0.15,
                          .rounds = 6,
                          .round_slices = ZB_COUNT(io_round),
                          .seed = UINT64_C(0x9e3779b97f4a7c15) };
    struct sigaction act = { .sa_handler = io_on_signal };
    int rc = io_parse(&b, argc, argv);

    if (rc == 0)
        rc = io_find_fio(z);
    if (rc < 0)
        return rc;
    b.fill = malloc(IO_INFLIGHT);
    if (!b.fill)
        return zb_fail(&z->err, -ENOMEM, "%s of random bytes: %m", zb_size_text(IO_INFLIGHT).s);
    for (size_t i = 0; i < IO_INFLIGHT / sizeof(uint64_t); i++)
        ((uint64_t *)(void *)b.fill)[i] = io_random(&b);
    (void)snprintf(b.path, sizeof(b.path), "%s/zbench-io-%d.data", b.dir, (int)getpid());
    (void)sigaction(SIGINT, &act, NULL); /* the file goes, whatever ends us */
    (void)sigaction(SIGTERM, &act, NULL);
    rc = io_run_cases(&b);
    (void)unlink(b.path);
    free(b.fill);
    return rc;
}
