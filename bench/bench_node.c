/*
 * bench_node.c - `zbench node`: parameters from one daemon's host memory into the GPUs of a node,
 * with two sockets, against the sum of the GPUs' links.
 *
 * MODEL. A zshardd of our own holds a job with one rank for each GPU, in host memory. A slice
 * fetches all units of all ranks, NODE_AHEAD at a time for each rank, and copies each to the rank's
 * emulated GPU, as a trainer does. The links are simulated (sockets.h), at rates that are far below
 * what this machine copies, so its processors and its own memory do not matter: a copy on a stream
 * has ended when the bytes are there, and when they would have come over the links. If the daemon
 * or the client is late with a fetch, the link is idle, and the rate falls.
 *
 * PLACES of a rank's slices in host memory:
 *
 *     near    on the socket of its GPU: where the daemon has asked for them (near = on), or the bench
 *             fails
 *     off     spread evenly over both sockets, as memory that is interleaved
 *     far     on the other socket
 *
 * `again` is near once more: the control. Slices alternate in mirrored order.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/job.h"
#include "bench/rig.h"
#include "bench/sockets.h"
#include "bench/team.h"
#include "bench/turns.h"
#include "kernels/gpu.h"
#include "kernels/gpu_own.h"

#define NODE_AHEAD   3u /* units in flight of a rank */
#define NODE_UNITS   8u
#define NODE_STAGING (UINT64_C(1) << 20)
#define NODE_GPU     (UINT64_C(4) << 20) /* bytes that an emulated GPU has beyond the units */
#define NODE_NAP_NS  100000              /* if no rank can do anything */

enum node_place { NEAR, OFF, FAR, AGAIN, PLACES };

static const char *const node_places[PLACES] = { "near", "off", "far", "again" };

struct node_bench;

/* A rank: a client of the daemon, and its GPU. */
struct node_rank {
    struct node_bench *b;
    uint32_t rank;
    struct zc_client *c;
    struct zc_job job;
    uint64_t ids[NODE_UNITS];
    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_event *events[NODE_AHEAD];
    struct zk_gpu_mem *to;
    struct zb_err err; /* of its setup */

    /* of the slice */
    struct node_fetch {
        struct zc_view view;
        bool done;
        int rc;
    } fetches[NODE_AHEAD];
    uint32_t asked, copied, released;
};

struct node_bench {
    struct zbench *z;
    uint64_t size, link, memory, cross; /* options: bytes of a rank; bytes a second */
    unsigned rounds;
    uint32_t gpus; /* of the case */
    uint64_t unit_bytes;
    struct zbench_rig rig;
    struct zbench_sockets sockets;
    struct zbench_team team;
    struct node_rank ranks[ZBENCH_SOCKETS_GPUS];
};

/* ---- a copy over the simulated links */

struct node_wait {
    struct zbench_sockets *sockets;
    uint32_t gpu;
    uint64_t flow;
};

/* On the stream's thread, after the copy itself. */
static int copy_wait(void *args)
{
    const struct node_wait *w = args;

    zbench_sockets_wait(w->sockets, w->gpu, w->flow);
    return 0;
}

static int rank_copy(struct node_rank *r, uint32_t unit, const void *from)
{
    struct node_bench *b = r->b;
    struct node_wait wait = { .sockets = &b->sockets, .gpu = r->rank };
    char *to = (char *)zk_gpu_addr(r->to) + unit % NODE_AHEAD * b->unit_bytes;
    struct zb_err *err = &b->z->err;
    int rc = zbench_sockets_queue(&b->sockets, r->rank, (double)b->unit_bytes, &wait.flow);

    if (rc < 0)
        return zb_fail(err, rc, "too many copies of GPU %u", r->rank);
    rc = zk_gpu_copy(r->stream, ZK_GPU_TO_DEVICE, to, from, b->unit_bytes, err);
    if (rc == 0)
        rc = zk_gpu_call(r->stream, copy_wait, &wait, sizeof(wait), NULL, 0, err);
    return rc < 0 ? rc : zk_gpu_event_record(r->events[unit % NODE_AHEAD], r->stream, err);
}

/* ---- a slice */

static int rank_failed(struct node_rank *r, int rc)
{
    return zb_fail(&r->b->z->err, rc, "rank %u: %s", r->rank, zc_error(r->c));
}

static void fetch_on_done(void *arg, int rc)
{
    struct node_fetch *f = arg;

    f->rc = rc;
    f->done = true;
}

static int rank_ask(struct node_rank *r)
{
    struct node_fetch *f = &r->fetches[r->asked % NODE_AHEAD];
    int rc;

    *f = (struct node_fetch){ 0 };
    rc = zc_fetch(r->c, &r->ids[r->asked++], 1, 0, 0, &f->view, fetch_on_done, f);
    return rc < 0 ? rank_failed(r, rc) : 1;
}

/* Asks for a unit, copies one that has come, or releases one that was copied. 1: did one of these;
 * 0: none is possible. */
static int rank_turn(struct node_rank *r)
{
    struct node_fetch *next = &r->fetches[r->copied % NODE_AHEAD];
    int rc = zc_poll(r->c, 0);

    if (rc < 0)
        return rank_failed(r, rc);
    if (r->asked < NODE_UNITS && r->asked - r->released < NODE_AHEAD)
        return rank_ask(r);
    if (r->copied < r->asked && next->done) {
        if (next->rc < 0)
            return rank_failed(r, next->rc);
        rc = rank_copy(r, r->copied++, next->view.data);
        return rc < 0 ? rc : 1;
    }
    if (r->released == r->copied)
        return 0;
    rc = zk_gpu_event_query(r->events[r->released % NODE_AHEAD], &r->b->z->err);
    if (rc == -EAGAIN)
        return 0;
    if (rc == 0 && (rc = zc_release(r->c, &r->ids[r->released++], 1)) < 0)
        return rank_failed(r, rc);
    return rc < 0 ? rc : 1;
}

/* Its GPU has its own bytes of the last unit. */
static int rank_check(struct node_rank *r)
{
    const uint16_t one = (uint16_t)(0x3f80 + r->rank); /* bf16: 1 + rank / 128 */
    uint16_t value = 0;
    char *at = (char *)zk_gpu_addr(r->to) + (NODE_UNITS - 1) % NODE_AHEAD * r->b->unit_bytes;
    struct zb_err *err = &r->b->z->err;
    int rc = zk_gpu_copy(r->stream, ZK_GPU_TO_HOST, &value, at + r->b->unit_bytes - sizeof(value),
                         sizeof(value), err);

    if (rc == 0)
        rc = zk_gpu_stream_sync(r->stream, err);
    return rc < 0 || value == one
               ? rc
               : zb_fail(err, -EBADMSG, "GPU %u has %04x, not %04x", r->rank, value, one);
}

static struct zbench_shares node_shares(enum node_place place, uint32_t socket)
{
    struct zbench_shares shares = { { 0.5, 0.5 } };

    if (place == OFF)
        return shares;
    shares.of[socket] = place == FAR ? 0 : 1;
    shares.of[1 - socket] = place == FAR ? 1 : 0;
    return shares;
}

static void node_place(struct node_bench *b, enum node_place place)
{
    for (uint32_t g = 0; g < b->gpus; g++) {
        struct zbench_shares shares = node_shares(place, b->sockets.flows[g].socket);

        zbench_sockets_place(&b->sockets, g, &shares);
        b->ranks[g].asked = b->ranks[g].copied = b->ranks[g].released = 0;
    }
}

static bool node_over(const struct node_bench *b)
{
    for (uint32_t g = 0; g < b->gpus; g++)
        if (b->ranks[g].released < NODE_UNITS)
            return false;
    return true;
}

/* *ret: bytes a second of all GPUs together. */
static int node_slice(void *bench, unsigned who, double *ret)
{
    const struct timespec nap = { .tv_nsec = NODE_NAP_NS };
    struct node_bench *b = bench;
    uint64_t begin_ns;
    int rc = 0;

    node_place(b, who);
    begin_ns = zb_now_ns();
    while (!node_over(b)) {
        bool idle = true;

        for (uint32_t g = 0; g < b->gpus; g++) {
            if ((rc = rank_turn(&b->ranks[g])) < 0)
                return rc;
            idle = idle && rc == 0;
        }
        if (idle)
            (void)nanosleep(&nap, NULL);
    }
    *ret = (double)(b->gpus * NODE_UNITS * b->unit_bytes) /
           ((double)(zb_now_ns() - begin_ns) * 1e-9);
    for (uint32_t g = 0; g < b->gpus; g++)
        if ((rc = rank_check(&b->ranks[g])) < 0)
            return rc;
    return 0;
}

/* ---- the job and the GPUs */

static int rank_gpu(struct node_rank *r)
{
    char name[ZK_GPU_NAME_MAX];
    int rc;

    (void)snprintf(name, sizeof(name), "emulated@%u:%" PRIu64, r->rank,
                   zb_round_up(NODE_AHEAD * r->b->unit_bytes, NODE_GPU) + NODE_GPU);
    rc = zk_gpu_open(name, 0, &r->gpu, &r->err);
    if (rc == 0)
        rc = zk_gpu_stream_new(r->gpu, &r->stream, &r->err);
    if (rc == 0)
        rc = zk_gpu_alloc(r->gpu, NODE_AHEAD * r->b->unit_bytes, 0, &r->to, &r->err);
    for (unsigned i = 0; i < NODE_AHEAD && rc == 0; i++)
        rc = zk_gpu_event_new(r->gpu, &r->events[i], &r->err);
    return rc;
}

/* Its part of each unit. */
static int rank_define(struct node_rank *r)
{
    struct node_bench *b = r->b;
    uint64_t elems = b->unit_bytes / 2;
    int rc = 0;

    for (uint32_t u = 0; u < NODE_UNITS && rc == 0; u++) {
        char name[16];
        const struct zc_unit unit = {
            .index = u, .name = name, .elems = elems * b->gpus, .dtype = ZC_BF16, .frozen = true
        };
        const struct zc_range range = { .unit = u, .first = r->rank * elems, .count = elems };

        (void)snprintf(name, sizeof(name), "u%u", u);
        rc = zc_unit_define_wait(r->c, r->job.id, &unit);
        if (rc == 0)
            rc = zc_register_wait(r->c, r->job.id, &range, 1, &r->ids[u]);
    }
    return rc;
}

static int rank_open(struct node_rank *r)
{
    const struct zc_options options = { .socket = r->b->rig.daemon.socket, .program = "zbench" };
    const uint32_t socket = r->b->sockets.flows[r->rank].socket;
    const struct zc_job_options job = { .name = "bench",
                                        .rank = r->rank,
                                        .world = r->b->gpus,
                                        .groups = 1,
                                        .staging_bytes = NODE_STAGING,
                                        .offload_param = ZC_HOST,
                                        .offload_optimizer = ZC_HOST,
                                        .device_node = 1 + socket };
    struct zc_placement placement;
    int rc = zc_open(&r->c, &options);

    if (rc == 0)
        rc = zc_job_open_wait(r->c, &job, &r->job);
    if (rc == 0)
        rc = rank_define(r);
    if (rc == 0)
        rc = zc_ready_wait(r->c, r->job.id, NULL, 0, &placement);
    if (rc == 0 && placement.node != 1 + socket)
        return zb_fail(&r->err, -EBADMSG, "rank %u: the daemon has not placed it near its GPU",
                       r->rank);
    for (uint64_t i = 0; rc == 0 && i < NODE_STAGING / sizeof(float); i++)
        ((float *)r->job.staging)[i] = 1 + (float)r->rank / 128;
    for (uint32_t u = 0; u < NODE_UNITS && rc == 0; u++)
        rc = zbench_send(r->c, &r->job, r->ids[u], r->b->unit_bytes / 2, ZC_BF16, 0);
    return rc < 0 ? zb_fail(&r->err, rc, "rank %u: %s", r->rank, r->c ? zc_error(r->c) : "") : 0;
}

/* On a thread of its own: a rank waits for the others. */
static void rank_start(void *bench, uint64_t rank)
{
    struct node_bench *b = bench;
    struct node_rank *r = &b->ranks[rank];

    *r = (struct node_rank){ .b = b, .rank = (uint32_t)rank };
    if (rank_gpu(r) == 0)
        (void)rank_open(r);
}

static void rank_end(struct node_rank *r)
{
    if (r->c)
        zc_close(r->c);
    for (unsigned i = 0; i < NODE_AHEAD; i++)
        zk_gpu_event_free(r->events[i]);
    zk_gpu_stream_free(r->stream); /* waits for the copies */
    zk_gpu_free(r->to);
    zk_gpu_close(r->gpu);
    *r = (struct node_rank){ 0 };
}

static int node_start(struct node_bench *b)
{
    int rc = zbench_rig_start(&b->rig, b->z, "/tmp",
                              "--host-bytes %" PRIu64
                              " --nvme-bytes 0 --log-level error --numa off --near on",
                              2 * b->gpus * (b->size + NODE_STAGING) + 64 * ZB_MIB);

    if (rc == 0)
        rc = zbench_team_start(&b->team, b->gpus, b, &b->z->err);
    if (rc < 0)
        return rc;
    (void)zbench_team_run(&b->team, rank_start, b->gpus);
    for (uint32_t g = 0; g < b->gpus; g++)
        if (b->ranks[g].err.code < 0)
            return zb_fail(&b->z->err, b->ranks[g].err.code, "%s", b->ranks[g].err.text);
    return 0;
}

static void node_end(struct node_bench *b)
{
    zbench_team_end(&b->team);
    b->team = (struct zbench_team){ 0 };
    for (uint32_t g = 0; g < ZBENCH_SOCKETS_GPUS; g++)
        rank_end(&b->ranks[g]);
    zbench_sockets_done(&b->sockets);
    (void)zbench_rig_end(&b->rig, -ECANCELED);
}

/* ---- rows */

/* What the links allow in each place, bytes a second. */
static double node_formula(struct node_bench *b, enum node_place place)
{
    const char *limit;
    double all;

    node_place(b, place);
    all = b->gpus * zbench_sockets_formula(&b->sockets, &limit);
    zbench_note(b->z, "node/%u/%s: %.1f MB/s by the formula; the limit: %s", b->gpus,
                node_places[place], all / 1e6, limit);
    return all;
}

static int node_rows(struct node_bench *b, struct zbench_series *s)
{
    struct zbench_row row =
        zbench_row("MB/s", false, "sum of links", "node/%u/near/links", b->gpus);
    int rc;

    (void)node_formula(b, NEAR);
    for (unsigned w = 0; w < PLACES; w++)
        for (unsigned i = 0; i < b->rounds; i++)
            s->of[w][0][i] /= 1e6;
    rc = zbench_add_fixed(b->z, &row, s->of[NEAR][0], b->gpus * (double)b->link / 1e6, b->rounds);
    row = zbench_row("MB/s", false, "near", "node/%u/again/near", b->gpus);
    if (rc == 0)
        rc = zbench_add(b->z, &row, s->of[AGAIN][0], s->of[NEAR][0], b->rounds);
    for (enum node_place p = OFF; p < AGAIN && rc == 0; p++) {
        row = zbench_row("MB/s", false, "formula", "node/%u/%s/formula", b->gpus, node_places[p]);
        rc = zbench_add_fixed(b->z, &row, s->of[p][0], node_formula(b, p) / 1e6, b->rounds);
        row = zbench_row("MB/s", false, "near", "node/%u/%s/near", b->gpus, node_places[p]);
        if (rc == 0)
            rc = zbench_add(b->z, &row, s->of[p][0], s->of[NEAR][0], b->rounds);
    }
    return rc;
}

static int node_case(struct node_bench *b, uint32_t gpus)
{
    const struct zbench_rates rates = { .link = (double)b->link,
                                        .memory = (double)b->memory,
                                        .cross = (double)b->cross };
    struct zbench_series s;
    int rc;

    b->gpus = gpus;
    b->rig.daemon = ZBENCH_NO_DAEMON;
    zbench_sockets_init(&b->sockets, &rates, gpus);
    rc = node_start(b);
    if (rc == 0)
        rc = zbench_turns(&s, "ABCDDCBA", 1, b->rounds, node_slice, b);
    if (rc == 0)
        rc = node_rows(b, &s);
    node_end(b);
    return rc;
}

/* ---- options */

#define AT(member)   ZB_OPT_AT(struct node_bench, member)
#define NODE_RATE(m) ZB_OPT_SIZE, AT(m), .arg = "SIZE", .min = 1000, .max = UINT64_C(1) << 40

static const struct zb_opt node_options[] = {
    { "size", ZB_OPT_SIZE, AT(size), .arg = "SIZE", .def = "4M", .min = NODE_UNITS * 64 * 1024,
      .max = UINT64_C(1) << 30, .round = NODE_UNITS * 64 * 1024 },
    { "gpu-link", NODE_RATE(link), .def = "10000000" },
    { "memory", NODE_RATE(memory), .def = "50000000" },
    { "socket-link", NODE_RATE(cross), .def = "12000000" },
    ZBENCH_ROUNDS(struct node_bench, "6"),
    { 0 },
};

static int node_main(struct zbench *z, void *bench)
{
    static const uint32_t gpus[] = { 1, 2, 4, 8 };
    struct node_bench *b = bench;
    int rc = 0;

    b->z = z;
    b->unit_bytes = b->size / NODE_UNITS;
    zbench_note(z,
                "the links are SIMULATED, and the GPUs are emulated: each GPU's link %.1f MB/s, a "
                "host memory of %.1f MB/s on each of two sockets, %.1f MB/s between them in each "
                "direction",
                (double)b->link / 1e6, (double)b->memory / 1e6, (double)b->cross / 1e6);
    for (size_t i = 0; i < ZB_COUNT(gpus) && rc == 0; i++)
        rc = node_case(b, gpus[i]);
    return rc;
}

const struct zbench_cmd zbench_node = {
    .name = "node",
    .help = "parameters from host memory into 1, 2, 4 and 8 emulated GPUs on two sockets with "
            "simulated links, against the sum of the links: with host memory on the socket of each "
            "GPU, and without",
    .options = node_options,
    .bytes = sizeof(struct node_bench),
    .run = node_main,
};
