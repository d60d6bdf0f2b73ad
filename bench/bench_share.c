/*
 * bench_share.c - `zbench share`: many trainers in one daemon.
 *
 * MODEL. A zshardd of our own on a device of a fixed rate (nvme/zn_fixed.h), because real drives
 * are too noisy to judge shares. Each client is a process. Parameters are bf16 and in host memory;
 * the optimizer's state is there, too, or streamed.
 *
 *     eight   A job of one rank and a job of 8 have the same units. A round is everything that a
 *             step requests from the daemon: push all gradients, step, fetch and release all
 *             parameters. Rounds of the two jobs alternate (A B B A); meanwhile the other job is
 *             idle.
 *     two     Two jobs run rounds all the time. Windows with equal shares and windows with 3:1
 *             alternate (A B B A); in each the daemon counts the bytes that move for each job.
 *             Shares are changed as by `zctl share`, and a window begins a little later. A share
 *             applies only while both jobs want the drive, so only the time counts in which both
 *             are in the middle of a step: a job that pushes requests nothing from the drive, and
 *             the other job has all of it.
 *
 * A client obeys commands on a socket: one byte asks, one answers. It ends when the socket closes.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/child.h"
#include "bench/job.h"
#include "bench/rig.h"
#include "bench/turns.h"

#define SHARE_UNITS       8u
#define SHARE_MANY        8u
#define SHARE_STAGING     (UINT64_C(1) << 20)
#define SHARE_WINDOWS_MAX 20u /* a window is extended to at most so many times its length */
#define SHARE_LOOK_MS     5u
#define SHARE_SETTLE_MS   300u /* after a change: requests already in line are paid as before */

enum word { WORD_READY = 'y', WORD_ROUND = 'r', WORD_RUN = 'g', WORD_DONE = 'd' };

struct share_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, page_elems, rate;
    unsigned rounds, window_ms;
    struct zbench_rig rig; /* in the second case its client only observes */

    struct crew *crews[2]; /* the contestants of the case */
    double moved, seconds; /* by two jobs, in all windows */
};

/* ---- a client: its own process */

struct client {
    const struct share_bench *b;
    const char *job;
    uint32_t rank, world;
    bool streamed;
    int fd;
    struct zc_client *c;
    struct zc_job opened;
    uint64_t ids[SHARE_UNITS], count;
    uint64_t step;
};

static void client_check(const struct client *x, int rc)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "zbench: a client of job '%s': %s\n", x->job,
                  x->c ? zc_error(x->c) : zc_strerror(rc));
    _exit(EXIT_FAILURE);
}

static bool client_owns(const struct client *x, uint32_t unit)
{
    return unit % x->world == x->rank;
}

/* Initial values (step 0), or a gradient. */
static void client_send(struct client *x, uint32_t unit, uint64_t step)
{
    client_check(x, zbench_send(x->c, &x->opened, x->ids[unit], x->count, ZC_BF16, step));
}

static void client_open(struct client *x)
{
    const struct zc_job_options options = {
        .name = x->job,
        .rank = x->rank,
        .world = x->world,
        .groups = 1,
        .staging_bytes = SHARE_STAGING,
        /* room for parameters and gradients, and none for state */
        .host_bytes_max = x->streamed ? x->world * SHARE_STAGING + x->b->params * 4 : 0,
    };
    struct zc_placement placement;

    client_check(x, zc_open(&x->c, &(struct zc_options){ .socket = x->b->rig.daemon.socket,
                                                         .program = "zbench" }));
    client_check(x, zc_job_open_wait(x->c, &options, &x->opened));
    memset(x->opened.staging, 0, x->opened.staging_bytes);
    for (uint32_t u = 0; u < SHARE_UNITS; u++) {
        const struct zc_range range = { .unit = u, .count = x->count };

        client_check(x, zbench_unit(x->c, x->opened.id, u, x->count, ZC_BF16));
        if (client_owns(x, u))
            client_check(x, zc_register_wait(x->c, x->opened.id, &range, 1, &x->ids[u]));
    }
    client_check(x, zc_ready_wait(x->c, x->opened.id, NULL, 0, &placement));
    for (uint32_t u = 0; u < SHARE_UNITS; u++)
        if (client_owns(x, u))
            client_send(x, u, 0);
}

static void client_step(struct client *x)
{
    struct zc_step step = { .step = ++x->step, .scale = 1, .groups = &zbench_group, .ngroups = 1 };
    struct zc_stepped stepped;

    for (uint32_t u = 0; u < SHARE_UNITS; u++)
        if (client_owns(x, u))
            client_send(x, u, x->step);
    client_check(x, zc_step_wait(x->c, x->opened.id, &step, &stepped));
}

static void client_fetch(struct client *x)
{
    struct zc_view views[SHARE_UNITS];
    uint64_t ids[SHARE_UNITS];
    uint32_t n = 0;

    for (uint32_t u = 0; u < SHARE_UNITS; u++)
        if (client_owns(x, u))
            ids[n++] = x->ids[u];
    client_check(x, zc_fetch_wait(x->c, ids, n, x->step, 0, views));
    client_check(x, zc_release(x->c, ids, n));
}

static void client_say(const struct client *x, char word)
{
    if (write(x->fd, &word, 1) != 1)
        _exit(EXIT_FAILURE);
}

/* In the child: obeys until the socket closes. */
static void client_main(int fd, void *arg)
{
    struct client *x = arg;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    char word;

    x->fd = fd;
    client_open(x);
    client_say(x, WORD_READY);
    while (read(x->fd, &word, 1) == 1) {
        do {
            client_step(x);
            client_fetch(x);
        } while (word == WORD_RUN && poll(&p, 1, 0) == 0);
        client_say(x, WORD_DONE);
    }
    (void)zc_job_close_wait(x->c, x->opened.id);
    zc_close(x->c);
}

/* ---- the clients of a job, as the parent sees them */

struct crew {
    unsigned n;
    struct zbench_child clients[SHARE_MANY];
};

static int crew_start(struct share_bench *b, struct crew *crew, const char *job, unsigned n,
                      bool streamed)
{
    int rc = 0;

    for (crew->n = 0; crew->n < n && rc == 0; crew->n += rc == 0) {
        struct client x = { .b = b,
                            .job = job,
                            .rank = crew->n,
                            .world = n,
                            .streamed = streamed,
                            .count = b->params / SHARE_UNITS };

        rc = zbench_child_start(&crew->clients[crew->n], client_main, &x, &b->z->err);
    }
    return rc;
}

static int crew_ask(struct share_bench *b, const struct crew *crew, char word)
{
    for (unsigned i = 0; i < crew->n; i++)
        if (send(crew->clients[i].fd, &word, 1, MSG_NOSIGNAL) != 1)
            return zb_fail(&b->z->err, -EPIPE, "a client has ended");
    return 0;
}

static int crew_await(struct share_bench *b, const struct crew *crew, char word)
{
    for (unsigned i = 0; i < crew->n; i++) {
        char said = 0;

        if (read(crew->clients[i].fd, &said, 1) != 1 || said != word)
            return zb_fail(&b->z->err, -EPIPE, "a client has ended");
    }
    return 0;
}

static void crew_end(struct crew *crew)
{
    for (unsigned i = 0; i < crew->n; i++) /* ends all of them before waiting for one */
        (void)shutdown(crew->clients[i].fd, SHUT_RDWR);
    for (unsigned i = 0; i < crew->n; i++)
        zbench_child_leave(&crew->clients[i]);
    crew->n = 0;
}

/* ---- the cases */

static int share_daemon(struct share_bench *b, bool streamed)
{
    uint64_t state = b->params * 10, ring = 16 * b->page_elems * 12;

    return zbench_rig_start(
        &b->rig, b->z, b->dir,
        "--host-bytes %" PRIu64 " --nvme-bytes %" PRIu64 " --page-elems %" PRIu64
        " --io fixed --fixed-rate %" PRIu64 " --ring-bytes %" PRIu64 " --log-level error",
        ring + 2 * (b->params * 4 + (streamed ? 0 : state)) + (2 + SHARE_MANY) * SHARE_STAGING +
            64 * ZB_MIB,
        (streamed ? 2 * state + 4 * ring : 0) + 64 * ZB_MIB, b->page_elems, b->rate, ring);
}

/* *ret: MB/s, of 20 bytes per parameter and round. */
static int share_round(void *bench, unsigned who, double *ret)
{
    struct share_bench *b = bench;
    const struct crew *crew = b->crews[who];
    uint64_t begin_ns = zb_now_ns();
    int rc = crew_ask(b, crew, WORD_ROUND);

    if (rc == 0)
        rc = crew_await(b, crew, WORD_DONE);
    *ret = (double)b->params * 20 / ((double)(zb_now_ns() - begin_ns) / 1e9) / 1e6;
    return rc;
}

/* Starts two crews, and waits for both. */
static int share_crews(struct share_bench *b, const char *const jobs[2], unsigned n, bool streamed)
{
    int rc = crew_start(b, b->crews[1], jobs[1], 1, streamed);

    if (rc == 0)
        rc = crew_start(b, b->crews[0], jobs[0], n, streamed);
    if (rc == 0)
        rc = crew_await(b, b->crews[1], WORD_READY);
    return rc < 0 ? rc : crew_await(b, b->crews[0], WORD_READY);
}

static int share_eight(struct share_bench *b, bool streamed)
{
    static const char *const jobs[] = { "eight", "one" };
    const struct zbench_row row = zbench_row("MB/s", false, "1 client, the same work",
                                             "share/8-clients/1-client%s",
                                             streamed ? "" : "/resident");
    struct crew eight = { 0 }, one = { 0 };
    double ignored;
    int rc = share_daemon(b, streamed);

    b->crews[0] = &eight;
    b->crews[1] = &one;
    if (rc == 0)
        rc = share_crews(b, jobs, SHARE_MANY, streamed);
    if (rc == 0)
        rc = share_round(b, 1, &ignored); /* the first of each warms up */
    if (rc == 0)
        rc = share_round(b, 0, &ignored);
    if (rc == 0)
        rc = zbench_compare(b->z, &row, "ABBA", b->rounds, share_round, b);
    crew_end(&one);
    crew_end(&eight);
    return zbench_rig_end(&b->rig, rc);
}

static void share_pause(unsigned ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

static const char *const share_jobs[] = { "a", "b" };

struct share_seen {
    uint64_t steps[2], moved[2];
    bool middle; /* both are in a step, which has moved from 1/8 to 7/8 of its bytes */
};

static int share_look(struct share_bench *b, struct share_seen *ret)
{
    const double step_bytes = (double)b->params * 20;
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(b->rig.c, NULL, &rows, &n);

    if (rc < 0)
        return zbench_rig_failed(&b->rig, rc);
    *ret = (struct share_seen){ .middle = n == ZB_COUNT(share_jobs) };
    for (size_t i = 0; i < n; i++) {
        const struct zc_job_row *row = &rows[i];
        int j = strcmp(row->name, share_jobs[1]) == 0;
        double part;

        ret->steps[j] = row->iterations;
        ret->moved[j] = row->nvme_read_bytes + row->nvme_written_bytes;
        /* initial values were written once: half of what a step moves */
        part = (double)ret->moved[j] / step_bytes - (double)row->iterations - 0.5;
        if (strcmp(row->state, "stepping") != 0 || part < 0.125 || part > 0.875)
            ret->middle = false;
    }
    zc_rows_free(rows);
    return 0;
}

enum { MIDDLE, MOVED = MIDDLE + 2, SHARE_VALUES = MOVED + 2 }; /* of two jobs each */

/* Bytes that each job moved in a window with equal shares (A) or 3:1 (B): while both were in the
 * middle of a step, and in the whole window. The window is extended until there was such a time. */
static int share_window(void *bench, unsigned who, double *ret)
{
    struct share_bench *b = bench;
    uint64_t window_ns = b->window_ms * UINT64_C(1000000), begin_ns;
    struct share_seen first, last, at;
    double *middle = ret + MIDDLE;
    int rc = zc_job_share_wait(b->rig.c, share_jobs[0], who == 0 ? 100 : 300);

    if (rc < 0)
        return zbench_rig_failed(&b->rig, rc);
    share_pause(SHARE_SETTLE_MS);
    rc = share_look(b, &first);
    last = first;
    begin_ns = zb_now_ns();
    for (uint64_t ns = 0; rc == 0 && (ns < window_ns || ((middle[0] <= 0 || middle[1] <= 0) &&
                                                         ns < SHARE_WINDOWS_MAX * window_ns));
         ns = zb_now_ns() - begin_ns) {
        share_pause(SHARE_LOOK_MS);
        rc = share_look(b, &at);
        for (int i = 0; i < 2 && rc == 0 && at.middle && last.middle &&
                        memcmp(at.steps, last.steps, sizeof(at.steps)) == 0;
             i++)
            middle[i] += (double)(at.moved[i] - last.moved[i]);
        last = at;
    }
    b->seconds += (double)(zb_now_ns() - begin_ns) / 1e9;
    for (int i = 0; i < 2 && rc == 0; i++) {
        ret[MOVED + i] = (double)(last.moved[i] - first.moved[i]);
        b->moved += ret[MOVED + i];
    }
    if (rc == 0 && (middle[0] <= 0 || middle[1] <= 0))
        return zb_fail(&b->z->err, -EIO,
                       "in a window of %u ms the two jobs were never in the middle of a step at "
                       "the same time",
                       b->window_ms);
    return rc;
}

static int share_two_rows(struct share_bench *b, const struct zbench_series *s)
{
    const struct zbench_row rows[] = {
        zbench_row("% of bytes", false, "half", "share/two-jobs/min"),
        zbench_row("bytes : bytes", false, "shares 3:1", "share/two-jobs/3-to-1"),
        zbench_row("bytes : bytes", false, "shares 3:1", "share/two-jobs/3-to-1/with-pushes"),
    };
    double values[ZB_COUNT(rows)][ZBENCH_ROUNDS_MAX];
    int rc = 0;

    for (unsigned i = 0; i < b->rounds; i++) {
        double a = s->of[0][MIDDLE][i], c = s->of[0][MIDDLE + 1][i];

        values[0][i] = 100 * (a < c ? a : c) / (a + c);
        values[1][i] = s->of[1][MIDDLE][i] / s->of[1][MIDDLE + 1][i];
        values[2][i] = s->of[1][MOVED][i] / s->of[1][MOVED + 1][i];
    }
    for (size_t k = 0; k < ZB_COUNT(rows) && rc == 0; k++)
        rc = zbench_add_fixed(b->z, &rows[k], values[k], k == 0 ? 50 : 3, b->rounds);
    return rc;
}

static int share_two(struct share_bench *b)
{
    struct crew crews[2] = { { 0 }, { 0 } };
    struct zbench_series s;
    int rc = share_daemon(b, true);

    b->crews[0] = &crews[0];
    b->crews[1] = &crews[1];
    if (rc == 0)
        rc = share_crews(b, share_jobs, 1, true);
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = crew_ask(b, &crews[i], WORD_RUN);
    if (rc == 0)
        rc = zbench_rig_connect(&b->rig, &b->rig.c);
    if (rc == 0)
        rc = zbench_turns(&s, "ABBA", SHARE_VALUES, b->rounds, share_window, b);
    crew_end(&crews[0]);
    crew_end(&crews[1]);
    rc = zbench_rig_end(&b->rig, rc);
    if (rc < 0)
        return rc;
    zbench_note(b->z, "two jobs together moved %s/s of the device's %s/s, with their pushes",
                zb_size_text((uint64_t)(b->moved / b->seconds)).s, zb_size_text(b->rate).s);
    return share_two_rows(b, &s);
}

/* ---- options */

#define AT(member) ZB_OPT_AT(struct share_bench, member)

static const struct zb_opt share_options[] = {
    ZBENCH_DIR(struct share_bench, "/tmp"),
    { "params", ZB_OPT_SIZE, AT(params), .arg = "N", .def = "16M", .min = SHARE_UNITS * 4096,
      .multiple = SHARE_UNITS * 4096 },
    { "page-elems", ZB_OPT_SIZE, AT(page_elems), .arg = "N", .def = "64K", .min = 4096,
      .multiple = 4096 },
    { "rate", ZB_OPT_SIZE, AT(rate), .arg = "SIZE", .def = "1G", .min = ZB_MIB },
    ZBENCH_ROUNDS(struct share_bench, "5"),
    { "window-ms", ZB_OPT_COUNT, AT(window_ms), .arg = "MS", .def = "1500", .min = 1,
      .max = 600000 },
    { 0 },
};

static int share_main(struct zbench *z, void *bench)
{
    struct share_bench *b = bench;
    int rc;

    b->z = z;
    if (b->params < SHARE_UNITS * b->page_elems)
        return zb_fail(&z->err, -EINVAL, "--params must be at least %u pages", SHARE_UNITS);
    rc = share_eight(b, true);
    if (rc == 0)
        rc = share_eight(b, false);
    return rc < 0 ? rc : share_two(b);
}

const struct zbench_cmd zbench_share = {
    .name = "share",
    .help = "8 clients against 1, and two jobs with shares, on a device of a fixed rate",
    .options = share_options,
    .bytes = sizeof(struct share_bench),
    .run = share_main,
};
