/*
 * bench_fetch.c - `zbench fetch`: the time of fetching and releasing a resident shard, against the
 * minimum for any daemon behind a socket.
 *
 * MODEL. A zshardd of our own (from this program's folder, with a temporary socket and data
 * directory) holds a job whose parameters are all in memory. The reference is a raw, blocking
 * ping-pong of 64 bytes between two processes over a Unix stream socket, without any other work:
 * two system calls on each side, and two context switches. Slices of both alternate,
 *
 *     fetch  ping-pong  ping-pong  fetch
 *
 * and each slice is the mean over some thousand operations. A release is one-way and travels with
 * the next request, so a fetch and its release are one round trip.
 *
 * PLACEMENT. The scheduler may put a pair of processes on one processor or on two. On two, each
 * message must also wake an idle processor; in a virtual machine that takes ten times as long as
 * everything else, and it may happen to only one of the two pairs. So both pairs are bound in the
 * same way: first both sides to one processor, then each side to its own.
 *
 * The cases: one shard per request, and 64, in both placements.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "bench/child.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define FETCH_SHARDS     64u
#define FETCH_PING_BYTES 64u
#define FETCH_WARM_UP    200u /* operations before anything counts */

struct fetch_bench {
    struct zbench *z;
    unsigned rounds, ops;
    int cpus[2]; /* the first two that we may use; -1: there is no second */

    struct zbench_rig rig;
    struct zbench_child echo;          /* the reference's other side */
    uint64_t ids[FETCH_SHARDS], count; /* elements of each */

    uint32_t nshards; /* of a request, in this case */
    unsigned now_ops; /* of the current slice */
};

/* ---- the reference */

static int fetch_read_all(int fd, char *buf, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, buf + got, len - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        got += (size_t)n;
    }
    return 0;
}

/** In the child: echoes until the socket closes. */
static void fetch_echo(int fd, void *arg)
{
    char buf[FETCH_PING_BYTES];

    (void)arg;
    while (fetch_read_all(fd, buf, sizeof(buf)) == 0)
        if (write(fd, buf, sizeof(buf)) != (ssize_t)sizeof(buf))
            break;
}

/* ---- the job */

static int fetch_open_job(struct fetch_bench *b)
{
    struct zc_range ranges[FETCH_SHARDS];
    struct zc_job_options options = { .name = "bench",
                                      .world = 1,
                                      .groups = 1,
                                      .offload_param = ZC_HOST,
                                      .offload_optimizer = ZC_HOST };
    struct zc_unit unit = { .name = "unit", .dtype = ZC_BF16, .frozen = true };
    struct zc_placement placement;
    struct zbench_rig *r = &b->rig;
    int rc = zbench_rig_connect(r, &r->c);

    if (rc < 0)
        return rc;
    b->count = zc_server(r->c)->block_elems;
    unit.elems = FETCH_SHARDS * b->count;
    options.staging_bytes = b->count * sizeof(float);
    for (uint32_t i = 0; i < FETCH_SHARDS; i++)
        ranges[i] = (struct zc_range){ .first = i * b->count, .count = b->count };
    if ((rc = zc_job_open_wait(r->c, &options, &r->job)) < 0 ||
        (rc = zc_unit_define_wait(r->c, r->job.id, &unit)) < 0 ||
        (rc = zc_register_wait(r->c, r->job.id, ranges, FETCH_SHARDS, b->ids)) < 0 ||
        (rc = zc_ready_wait(r->c, r->job.id, NULL, 0, &placement)) < 0)
        return zbench_rig_failed(r, rc);
    memset(r->job.staging, 0, r->job.staging_bytes);
    for (uint32_t i = 0; i < FETCH_SHARDS; i++)
        if ((rc = zc_write_wait(r->c, b->ids[i], ZC_MASTER, 0, b->count, r->job.staging)) < 0)
            return zbench_rig_failed(r, rc);
    return 0;
}

/* ---- slices: microseconds of one operation */

static int fetch_ours(struct fetch_bench *b, double *ret_us)
{
    struct zc_view views[FETCH_SHARDS];
    uint64_t begin_ns = zb_now_ns();

    for (unsigned i = 0; i < b->now_ops; i++) {
        int rc = zc_fetch_wait(b->rig.c, b->ids, b->nshards, 0, 0, views);

        if (rc == 0)
            rc = zc_release(b->rig.c, b->ids, b->nshards);
        if (rc < 0)
            return zbench_rig_failed(&b->rig, rc);
    }
    *ret_us = (double)(zb_now_ns() - begin_ns) / 1e3 / b->now_ops;
    return 0;
}

static int fetch_reference(struct fetch_bench *b, double *ret_us)
{
    char buf[FETCH_PING_BYTES] = { 0 };
    uint64_t begin_ns = zb_now_ns();

    for (unsigned i = 0; i < b->now_ops; i++) {
        int rc = 0;

        if (write(b->echo.fd, buf, sizeof(buf)) != (ssize_t)sizeof(buf))
            rc = -EPIPE;
        else
            rc = fetch_read_all(b->echo.fd, buf, sizeof(buf));
        if (rc < 0)
            return zb_fail(&b->z->err, rc, "the ping-pong ended: %m");
    }
    *ret_us = (double)(zb_now_ns() - begin_ns) / 1e3 / b->now_ops;
    return 0;
}

static int fetch_slice(void *bench, unsigned who, double *ret_us)
{
    return who == 0 ? fetch_ours(bench, ret_us) : fetch_reference(bench, ret_us);
}

static int fetch_bind(struct fetch_bench *b, pid_t pid, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(pid, sizeof(set), &set) < 0)
        return zb_fail(&b->z->err, -errno, "bind a process to processor %d: %m", cpu);
    return 0;
}

/** Binds this process to one processor, and both other sides to another or the same: of the daemon
 *  only the first thread, which is its loop. */
static int fetch_place(struct fetch_bench *b, int here, int there)
{
    int rc = fetch_bind(b, 0, here);

    if (rc == 0)
        rc = fetch_bind(b, b->rig.daemon.pid, there);
    return rc < 0 ? rc : fetch_bind(b, b->echo.pid, there);
}

static int fetch_find_cpus(struct fetch_bench *b)
{
    cpu_set_t set;
    unsigned n = 0;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return zb_fail(&b->z->err, -errno, "read the set of processors: %m");
    b->cpus[0] = b->cpus[1] = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < ZB_COUNT(b->cpus); cpu++)
        if (CPU_ISSET(cpu, &set))
            b->cpus[n++] = cpu;
    return 0;
}

static int fetch_case(struct fetch_bench *b, const char *name, uint32_t nshards)
{
    const struct zbench_row row = zbench_row("us", true, "ping-pong of 64 bytes", "%s", name);
    double us;
    int rc;

    b->nshards = nshards;
    b->now_ops = FETCH_WARM_UP;
    if ((rc = fetch_ours(b, &us)) < 0 || (rc = fetch_reference(b, &us)) < 0)
        return rc;
    b->now_ops = b->ops;
    return zbench_compare(b->z, &row, "ABBA", b->rounds, fetch_slice, b);
}

/* ---- begin and end */

static int fetch_run(struct fetch_bench *b)
{
    int rc;

    if ((rc = fetch_find_cpus(b)) < 0 ||
        (rc = zbench_child_start(&b->echo, fetch_echo, NULL, &b->z->err)) < 0 ||
        (rc = zbench_rig_start(&b->rig, b->z, "/tmp",
                               "--host-bytes 64M --nvme-bytes 0 --log-level warn")) < 0 ||
        (rc = fetch_open_job(b)) < 0)
        return rc;
    if ((rc = fetch_place(b, b->cpus[0], b->cpus[0])) < 0 ||
        (rc = fetch_case(b, "fetch/resident/pingpong", 1)) < 0 ||
        (rc = fetch_case(b, "fetch/resident-64/pingpong", FETCH_SHARDS)) < 0)
        return rc;
    if (b->cpus[1] < 0)
        zbench_note(b->z, "there is only one processor: nothing is measured between two");
    else if ((rc = fetch_place(b, b->cpus[0], b->cpus[1])) < 0 ||
             (rc = fetch_case(b, "fetch/resident/2cpu/pingpong", 1)) < 0 ||
             (rc = fetch_case(b, "fetch/resident-64/2cpu/pingpong", FETCH_SHARDS)) < 0)
        return rc;
    return 0;
}

static int fetch_main(struct zbench *z, void *bench)
{
    struct fetch_bench *b = bench;
    int rc;

    b->z = z;
    b->echo = ZBENCH_NO_CHILD;
    b->rig.daemon = ZBENCH_NO_DAEMON;
    rc = fetch_run(b);
    zbench_child_end(&b->echo);
    return zbench_rig_end(&b->rig, rc);
}

static const struct zb_opt fetch_options[] = {
    ZBENCH_ROUNDS(struct fetch_bench, "25"),
    { "ops", ZB_OPT_COUNT, ZB_OPT_AT(struct fetch_bench, ops), .arg = "N", .def = "2000", .min = 1,
      .max = 1000000 },
    { 0 },
};

const struct zbench_cmd zbench_fetch = {
    .name = "fetch",
    .help = "latency of a fetch and release of a resident shard, against a raw ping-pong",
    .options = fetch_options,
    .bytes = sizeof(struct fetch_bench),
    .run = fetch_main,
};
