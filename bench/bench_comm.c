/*
 * bench_comm.c - `zbench comm`: how much of its communication a rank of ZeRO-3 waits for, when its
 * computing takes as long as its communication.
 *
 * MODEL. Ranks are processes with the engine's TCP backend, without a daemon. All units are equal.
 * Computing a unit is a sleep: as long as the link needs to gather the unit in the forward pass,
 * twice that in the backward pass, where the unit is gathered and reduced. So communication takes
 * as long as computing, and it matters little that ranks share processors. The time of
 * communication is measured first, in an iteration without overlap and without computing. The time
 * of an iteration beyond its sleep is EXPOSED: waits, but also the engine's own computation, the
 * optimizer's step, and sleep that took too long.
 *
 *     none      a unit is gathered when it is needed, and each reduction is waited for
 *     prefetch  the next unit is gathered ahead
 *     overlap   zc_zero_reduce() returns at once (overlap_comm). On one link the next gather comes
 *               after that reduction, so there is little to gain without prefetching
 *     both
 *
 * PROGRESS. A backend makes progress only when it is called. Only one thread at a time may use the
 * engine, so the thread that computes also calls it: it sleeps in small parts, with zc_zero_poll()
 * in between. A trainer that computes in other threads, or on a device, does the same.
 *
 * LINK. `delayed` is a backend around TCP over loopback that reports the completion of a collective
 * later (slow_comm.h); `tbf` is a pair of virtual Ethernet devices with a token bucket (link.h).
 *
 * NODE. Ranks of one daemon gather all units, by collectives and from its host memory
 * (node_gather), without computing, on the processor. The bytes that the engine counts must be those
 * of the formulas. On a simulated node: box_rows.c.
 *
 * Each slice has its own engine and two iterations: the engine learns the order of gathers in the
 * first, and only the second counts. A round is each case once, then once again in reverse order.
 * After each slice the parameters must have the same bits.
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/plan.h"
#include "base/size.h"
#include "base/util.h"
#include "bench/box_rows.h"
#include "bench/link.h"
#include "bench/process.h"
#include "bench/slow_comm.h"
#include "bench/turns.h"
#include "client/zero/zc_zero.h"

#define COMM_RANKS_MAX  8u
#define COMM_UNITS_MAX  64u
#define COMM_LATENCY_NS UINT64_C(50000)
#define COMM_PART_NS    UINT64_C(500000) /* of sleep, between two polls */
#define COMM_PORT       "29517"          /* in a network namespace of our own */
#define READ_ELEMS      1024u

static const struct comm_case {
    const char *name;
    bool prefetch, overlap;
} cases[] = {
    { "none", false, false },
    { "prefetch", true, false },
    { "overlap", false, true },
    { "both", true, true },
};

enum { CASES = ZB_COUNT(cases) };

struct comm_way {
    const char *name;
    bool real;   /* a network link of the kernel */
    bool daemon; /* gathers inside a node */
};

/* The kernel's link is last: it leaves this process in a network namespace of its own. */
static const struct comm_way ways[] = { { "delayed", false, false },
                                        { "node", false, true },
                                        { "tbf", true, false } };

enum { NODE_COMM, NODE_HOST, NODE_AUTO, NODE_WAYS };

struct comm_bench {
    struct zbench *z;
    const char *only;
    uint64_t units, elems, rate, ranks;
    uint64_t gpu_link, memory; /* of the simulated node */
    unsigned rounds;

    uint32_t world;   /* ranks on this link */
    double compute_s; /* of a unit, forward */
    struct zc_comm *comm;
    struct zbench_link link;
    pid_t children[COMM_RANKS_MAX];
    uint32_t crc;                 /* of the parameters after a slice; 0: none yet */
    uint64_t bytes;               /* sent by this rank in an iteration without prefetching */
    struct zbench_series exposed; /* seconds, of each case */
    struct zbench_daemon daemon;
    char why[256]; /* of the way that was measured to be faster */
};

/* ---- an iteration */

static int comm_init(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)((first + i + unit) % 1024) / 1024;
    return 0;
}

static int comm_compute(struct zc_zero *z, double seconds)
{
    uint64_t end_ns = zb_now_ns() + (uint64_t)(seconds * 1e9), now;
    int rc = 0;

    while (rc == 0 && (now = zb_now_ns()) < end_ns) {
        struct timespec part = { .tv_nsec = (long)zb_min_u64(COMM_PART_NS, end_ns - now) };

        (void)nanosleep(&part, NULL);
        rc = zc_zero_poll(z);
    }
    return rc;
}

static int comm_forward(struct comm_bench *b, struct zc_zero *z)
{
    const void *params;
    int rc = 0;

    for (uint32_t u = 0; u < b->units && rc == 0; u++) {
        rc = zc_zero_gather(z, u, &params);
        if (rc == 0)
            rc = comm_compute(z, b->compute_s);
        if (rc == 0)
            rc = zc_zero_release(z, u);
    }
    return rc;
}

/* Only a few elements of each rank's slice have a gradient, so adding it takes no time. */
static int comm_backward(struct comm_bench *b, struct zc_zero *z)
{
    const void *params;
    float *grad;
    int rc = 0;

    for (uint32_t u = (uint32_t)b->units; u-- > 0 && rc == 0;) {
        rc = zc_zero_gather(z, u, &params);
        if (rc == 0)
            rc = zc_zero_grad(z, u, &grad);
        for (uint64_t i = 0; rc == 0 && i < b->elems; i += READ_ELEMS)
            grad[i] += ((const float *)params)[i] * (float)(b->comm->rank + 1);
        if (rc == 0)
            rc = comm_compute(z, 2 * b->compute_s);
        if (rc == 0)
            rc = zc_zero_release(z, u);
        if (rc == 0)
            rc = zc_zero_reduce(z, u);
    }
    return rc;
}

static int comm_iteration(struct comm_bench *b, struct zc_zero *z, double *ret_exposed_s)
{
    uint64_t begin_ns = zb_now_ns();
    struct zc_zero_stepped stepped;
    int rc = comm_forward(b, z);

    if (rc == 0)
        rc = comm_backward(b, z);
    if (rc == 0)
        rc = zc_zero_step(z, 1e-3, &stepped);
    *ret_exposed_s = (double)(zb_now_ns() - begin_ns) / 1e9 - 3 * (double)b->units * b->compute_s;
    return rc;
}

/* ---- a slice */

static int engine_open(struct comm_bench *b, struct zc_zero_options *options, struct zc_zero **ret)
{
    const struct zc_tensor tensor = { .name = "w", .ndims = 1, .dims = { b->elems } };
    int rc;

    options->comm = b->comm;
    options->optimizer = ZC_SGD;
    rc = zc_zero_open(ret, options);
    for (uint32_t u = 0; u < b->units && rc == 0; u++) {
        char name[16];
        const struct zc_unit unit = { .index = u,
                                      .name = name,
                                      .elems = b->elems,
                                      .dtype = ZC_F32,
                                      .tensors = &tensor,
                                      .ntensors = 1 };

        (void)snprintf(name, sizeof(name), "u%u", u);
        rc = zc_zero_add_unit(*ret, &unit);
    }
    return rc == 0 ? zc_zero_start(*ret, comm_init, NULL) : rc;
}

static int comm_engine(struct comm_bench *b, const struct comm_case *c, struct zc_zero **ret)
{
    struct zc_zero_options options;

    zc_zero_defaults(&options);
    options.prefetch_units = c->prefetch ? 1 : 0;
    options.reduce_waits = !c->overlap;
    return engine_open(b, &options, ret);
}

/* The parameters have the same bits after every slice, whatever overlapped. */
static int comm_check(struct comm_bench *b, struct zc_zero *z)
{
    float values[READ_ELEMS];
    uint32_t crc = 0;
    int rc = 0;

    for (uint32_t u = 0; u < b->units && rc == 0; u++) {
        rc = zc_zero_read(z, u, ZC_PARAM, u * READ_ELEMS % (b->elems - READ_ELEMS + 1), READ_ELEMS,
                          values);
        crc = zb_crc32c(crc, values, sizeof(values));
    }
    if (rc == 0 && b->crc != 0 && b->crc != crc)
        return zb_fail(&b->z->err, -EBADMSG,
                       "the checksum of the parameters is %08x, and was %08x before", crc, b->crc);
    b->crc = crc;
    return rc;
}

/* *ret_exposed_s: of this rank, or the mean over all ranks. */
static int comm_slice(struct comm_bench *b, const struct comm_case *c, bool average,
                      double *ret_exposed_s)
{
    struct zc_zero_stats before = { 0 }, stats = { 0 };
    struct zc_zero *z = NULL;
    double ignored;
    int rc = comm_engine(b, c, &z);

    if (rc == 0)
        rc = comm_iteration(b, z, &ignored);
    if (rc == 0)
        rc = zc_zero_stats(z, &before);
    if (rc == 0)
        rc = comm_iteration(b, z, ret_exposed_s);
    if (rc == 0)
        rc = zc_zero_stats(z, &stats);
    if (rc == 0)
        rc = comm_check(b, z);
    if (rc == 0 && average) {
        rc = zc_zero_sum(z, ret_exposed_s, 1);
        *ret_exposed_s /= b->world;
    }
    if (rc == 0 && !c->prefetch)
        b->bytes = stats.comm_bytes - before.comm_bytes;
    if (rc < 0 && b->z->err.code == 0)
        (void)zb_fail(&b->z->err, rc, "rank %u: %s", b->comm->rank,
                      z ? zc_zero_error(z) : zc_strerror(rc));
    zc_zero_close(z, rc == 0);
    return rc;
}

/* ---- gathers inside a node */

static int node_engine(struct comm_bench *b, unsigned who, struct zc_zero **ret)
{
    static const enum zc_node_gather how[NODE_WAYS] = { ZC_NODE_GATHER_COMM, ZC_NODE_GATHER_HOST,
                                                        ZC_NODE_GATHER_AUTO };
    struct zc_zero_options options;

    zc_zero_defaults(&options);
    options.socket = b->daemon.socket;
    options.offload_param = options.offload_optimizer = ZC_ZERO_HOST;
    options.prefetch_units = 0;
    options.node_gather = how[who];
    return engine_open(b, &options, ret);
}

/* Of `passes` passes: from host memory each rank reads whole units, else its own slices. */
static int node_check(struct comm_bench *b, const struct zc_zero_stats *s, uint64_t passes)
{
    uint64_t units = passes * b->units * sizeof(float), slice, first, count;
    bool host = s->node_gather == ZC_NODE_GATHER_HOST;

    zb_slice(b->elems, b->world, b->comm->rank, &slice, &first, &count);
    if (s->fetched_bytes == units * (host ? b->elems : count) &&
        s->comm_gather_bytes == (host ? 0 : units * slice * (b->world - 1)))
        return 0;
    return zb_fail(&b->z->err, -EBADMSG,
                   "%" PRIu64 " bytes were read, and %" PRIu64 " sent, to gather %" PRIu64,
                   s->fetched_bytes, s->comm_gather_bytes, units * b->elems);
}

/* *ret_s: of a pass that gathers all units, after one that is not counted. */
static int node_turn(void *bench, unsigned who, double *ret_s)
{
    struct comm_bench *b = bench;
    struct zc_zero_stats stats = { 0 };
    struct zc_zero *z = NULL;
    uint64_t begin_ns = 0;
    int rc = node_engine(b, who, &z);

    if (rc == 0)
        rc = comm_forward(b, z);
    if (rc == 0) {
        begin_ns = zb_now_ns();
        rc = comm_forward(b, z);
    }
    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    if (rc == 0)
        rc = zc_zero_sum(z, ret_s, 1); /* the mean of the ranks */
    *ret_s /= b->world;
    if (rc == 0)
        rc = zc_zero_stats(z, &stats);
    if (rc == 0)
        rc = comm_check(b, z);
    if (rc == 0)
        rc = node_check(b, &stats, 2);
    if (rc == 0 && who == NODE_AUTO)
        (void)snprintf(b->why, sizeof(b->why), "%s", stats.node_gather_why);
    if (rc < 0 && b->z->err.code == 0)
        (void)zb_fail(&b->z->err, rc, "rank %u: %s", b->comm->rank,
                      z ? zc_zero_error(z) : zc_strerror(rc));
    zc_zero_close(z, rc == 0);
    return rc;
}

static int node_rows(struct comm_bench *b)
{
    struct zbench_row row = zbench_row("ms", true, "all-gather", "comm/node/shared/all-gather");
    double better[ZBENCH_ROUNDS_MAX];
    int rc;

    for (unsigned i = 0; i < b->rounds; i++) {
        for (unsigned w = 0; w < NODE_WAYS; w++)
            b->exposed.of[w][0][i] *= 1e3;
        better[i] = b->exposed.of[NODE_COMM][0][i] < b->exposed.of[NODE_HOST][0][i]
                        ? b->exposed.of[NODE_COMM][0][i]
                        : b->exposed.of[NODE_HOST][0][i];
    }
    zbench_note(b->z,
                "node: %u ranks of one daemon gather %" PRIu64 " units of %" PRIu64
                " parameters, fp32; auto, the last time: %s",
                b->world, b->units, b->elems, b->why);
    rc =
        zbench_add(b->z, &row, b->exposed.of[NODE_HOST][0], b->exposed.of[NODE_COMM][0], b->rounds);
    row = zbench_row("ms", true, "better", "comm/node/auto/better");
    return rc == 0 ? zbench_add(b->z, &row, b->exposed.of[NODE_AUTO][0], better, b->rounds) : rc;
}

/* ---- one rank */

static int comm_open(struct comm_bench *b, const struct comm_way *way)
{
    char text[256] = "";
    struct zc_comm *slow;
    int rc = zc_comm_open(&b->comm, "tcp", text, sizeof(text));

    if (rc < 0)
        return zb_fail(&b->z->err, rc, "%s", text);
    if (way->real || way->daemon)
        return 0;
    slow = zbench_slow_comm(b->comm, b->rate, COMM_LATENCY_NS);
    if (!slow)
        return zb_fail(&b->z->err, -ENOMEM, "a slow link: %m");
    b->comm = slow;
    return 0;
}

static int comm_turn(void *bench, unsigned who, double *ret_exposed_s)
{
    return comm_slice(bench, &cases[who], false, ret_exposed_s);
}

static int comm_rank(struct comm_bench *b, const struct comm_way *way)
{
    double all_s = 0;
    int rc = comm_open(b, way);

    b->crc = 0;
    b->compute_s = 0;
    if (rc == 0 && way->daemon)
        rc = zbench_turns(&b->exposed, "ABCCBA", 1, b->rounds, node_turn, b);
    else if (rc == 0)
        rc = comm_slice(b, &cases[0], true, &all_s);
    b->compute_s = all_s / (3 * (double)b->units);
    if (rc == 0 && !way->daemon)
        rc = zbench_turns(&b->exposed, "ABCDDCBA", 1, b->rounds, comm_turn, b);
    zc_comm_close(b->comm, rc == 0);
    b->comm = NULL;
    return rc;
}

/* ---- all of them */

/* A port that is free now. If it is taken before rank 0 listens, the ranks fail with a message. */
static int free_port(struct zb_err *err, char *ret, size_t size)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        rc = zb_fail(err, -errno, "a port of loopback: %m");
    (void)snprintf(ret, size, "%u", ntohs(a.sin_port));
    zb_close_fd(&fd);
    return rc;
}

static void comm_environment(uint32_t rank, uint32_t world, const char *address, const char *port)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%u", rank);
    (void)setenv("RANK", text, 1);
    (void)snprintf(text, sizeof(text), "%u", world);
    (void)setenv("WORLD_SIZE", text, 1);
    (void)setenv("MASTER_ADDR", address, 1);
    (void)setenv("MASTER_PORT", port, 1);
    (void)setenv("ZSHARD_PORT", port, 1);
    (void)unsetenv("TORCHELASTIC_RUN_ID");
}

_Noreturn static void comm_child(struct comm_bench *b, const struct comm_way *way, pid_t parent)
{
    int rc = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    if (way->real)
        rc = zbench_link_child(&b->link, &b->z->err);
    if (rc == 0)
        rc = comm_rank(b, way);
    if (rc < 0 && rc != -EPIPE) /* -EPIPE: the parent reports the cause */
        (void)fprintf(stderr, "zbench: %s\n", b->z->err.text);
    _exit(rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

static int comm_fork(struct comm_bench *b, const struct comm_way *way)
{
    const char *address = way->real ? ZBENCH_LINK_ADDRESS : "127.0.0.1";
    char port[16] = COMM_PORT;
    pid_t self = getpid();
    int rc = way->real ? 0 : free_port(&b->z->err, port, sizeof(port));

    for (uint32_t r = 1; r < b->world && rc == 0; r++) {
        comm_environment(r, b->world, address, port);
        b->children[r] = fork();
        if (b->children[r] == 0)
            comm_child(b, way, self);
        if (b->children[r] < 0)
            rc = zb_fail(&b->z->err, -errno, "start the process of a rank: %m");
    }
    comm_environment(0, b->world, address, port);
    return rc;
}

/* On failure the other ranks are killed: they may be waiting for us. */
static int comm_join(struct comm_bench *b, int rc)
{
    for (uint32_t r = 1; r < b->world; r++) {
        int status = 0;

        if (b->children[r] <= 0)
            continue;
        if (rc < 0)
            (void)kill(b->children[r], SIGKILL);
        while (waitpid(b->children[r], &status, 0) < 0 && errno == EINTR)
            ;
        if (rc == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            rc = zb_fail(&b->z->err, -ECHILD, "rank %u has failed", r);
        b->children[r] = 0;
    }
    return rc;
}

static int comm_rows(struct comm_bench *b, const struct comm_way *way)
{
    double compute_s = 3 * (double)b->units * b->compute_s;
    struct zbench_series *s = &b->exposed;
    int rc = 0;

    for (unsigned c = 0; c < CASES; c++)
        for (unsigned i = 0; i < b->rounds; i++)
            s->of[c][0][i] *= 1e3;
    zbench_note(
        b->z,
        "%s: %u ranks, %" PRIu64 " units of %" PRIu64
        " parameters, %.0f MB/s; an iteration computes for %.0f ms, and without prefetching "
        "sends %.1f MB, which take %.0f ms",
        way->name, b->world, b->units, b->elems, (double)b->rate / 1e6, 1e3 * compute_s,
        (double)b->bytes / 1e6, 1e3 * (double)b->bytes / (double)b->rate);
    for (unsigned c = 0; c < CASES && rc == 0; c++) {
        const char *reference = c == 0 ? "compute" : cases[0].name;
        const struct zbench_row row =
            zbench_row("ms", true, reference, "comm/%s/%s/%s", way->name, cases[c].name, reference);

        rc = c == 0 ? zbench_add_fixed(b->z, &row, s->of[0][0], 1e3 * compute_s, b->rounds)
                    : zbench_add(b->z, &row, s->of[c][0], s->of[0][0], b->rounds);
    }
    return rc;
}

static int comm_way(struct comm_bench *b, const struct comm_way *way)
{
    bool skip = false;
    int rc = 0;

    b->world = way->real ? 2 : (uint32_t)b->ranks;
    b->link.rate = b->rate;
    if (way->real)
        rc = zbench_link_enter(&b->link, &b->z->err);
    skip = rc < 0;
    b->daemon = ZBENCH_NO_DAEMON;
    if (rc == 0 && way->daemon)
        rc = zbench_daemon_start(&b->daemon, "/tmp", &b->z->err,
                                 "--host-bytes %" PRIu64 "M --log-level error",
                                 b->units * b->elems * 24 / 1000000 + 256);
    if (rc == 0)
        rc = comm_fork(b, way);
    if (rc == 0 && way->real) {
        rc = zbench_link_parent(&b->link, b->children[1], &b->z->err);
        skip = rc < 0;
    }
    if (rc == 0)
        rc = comm_rank(b, way);
    rc = comm_join(b, rc);
    zbench_daemon_end(&b->daemon);
    if (skip && !b->only) {
        zbench_note(b->z, "skipped: comm/%s: %s", way->name, b->z->err.text);
        b->z->err = (struct zb_err){ 0 };
        return 0;
    }
    if (rc < 0)
        return rc;
    return way->daemon ? node_rows(b) : comm_rows(b, way);
}

/* ---- options */

#define AT(member)  ZB_OPT_AT(struct comm_bench, member)
#define COMM_SLICES (COMM_RANKS_MAX * ZB_BLOCK_ELEMS)

static const struct zb_opt comm_options[] = {
    { "ranks", ZB_OPT_COUNT, AT(ranks), .arg = "N", .def = "2", .min = 2, .max = COMM_RANKS_MAX },
    { "units", ZB_OPT_COUNT, AT(units), .arg = "N", .def = "8", .min = 2, .max = COMM_UNITS_MAX },
    { "elems", ZB_OPT_SIZE, AT(elems), .arg = "N", .def = "512K", .min = COMM_SLICES,
      .max = UINT64_C(1) << 30, .round = COMM_SLICES },
    { "rate", ZB_OPT_SIZE, AT(rate), .arg = "SIZE", .def = "25000000", .min = 100000,
      .max = UINT64_C(1) << 36 },
    { "gpu-link", ZB_OPT_SIZE, AT(gpu_link), .arg = "SIZE", .def = "25000000000", .min = 1,
      .max = UINT64_C(1) << 50 },
    { "memory", ZB_OPT_SIZE, AT(memory), .arg = "SIZE", .def = "200000000000", .min = 1,
      .max = UINT64_C(1) << 50 },
    ZBENCH_ROUNDS(struct comm_bench, "6"),
    ZBENCH_ONLY(struct comm_bench, "delayed|tbf|node|box"),
    { 0 },
};

static int comm_main(struct zbench *z, void *bench)
{
    struct comm_bench *b = bench;
    int rc = 0;

    b->z = z;
    for (size_t i = 0; i < ZB_COUNT(ways) && rc == 0; i++)
        if (!b->only || strcmp(b->only, ways[i].name) == 0)
            rc = comm_way(b, &ways[i]);
    if (rc == 0 && (!b->only || strcmp(b->only, "box") == 0))
        rc = zbench_box_rows(z, (double)b->gpu_link, (double)b->memory);
    return rc;
}

const struct zbench_cmd zbench_comm = {
    .name = "comm",
    .help = "communication that a rank of ZeRO-3 waits for, with prefetching and overlap_comm, "
            "against without, on a link that takes as long as the computation; gathers inside a "
            "simulated node",
    .options = comm_options,
    .bytes = sizeof(struct comm_bench),
    .run = comm_main,
};
