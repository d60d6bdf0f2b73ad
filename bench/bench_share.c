/*
 * bench_share.c - `zbench share`: many trainers in one daemon.
 *
 * MODEL. A zshardd of our own on a device of a fixed rate (nvme/zn_fixed.h), and clients that are
 * processes: real drives are too noisy to judge who got how much. Parameters are bf16 and in host
 * memory; the optimizer's state is there, too, or streamed.
 *
 *     eight   A job of one rank and a job of 8 have the same units. A round is what a step asks of
 *             the daemon: push all gradients, step, fetch and release all parameters. Rounds of the
 *             two jobs alternate (A B B A); the other job is idle meanwhile.
 *     two     Two jobs go round all the time. Windows in which their shares are equal and windows
 *             with 3:1 alternate (A B B A); in each the daemon counts the bytes that move for each
 *             job. Shares are changed as `zctl share` does, and a window begins a little later.
 *             Shares are of what both want: so what counts is the time in which both are in the
 *             middle of a step. Who pushes asks nothing of the drive, and the other has it all.
 *
 * A client obeys words on a socket: one byte asks, one answers. It ends when the socket closes.
 */
#include "bench/zbench.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/job.h"
#include "bench/process.h"
#include "client/zclient.h"

#define SHARE_UNITS       8u
#define SHARE_MANY        8u
#define SHARE_STAGING     (UINT64_C(1) << 20)
#define SHARE_WINDOWS_MAX 20u /* so many times as long, until both were in the middle of a step */
#define SHARE_LOOK_MS     5u
#define SHARE_SETTLE_MS   300u /* after a change: what was in line then is paid as before */

enum word { WORD_READY = 'y', WORD_ROUND = 'r', WORD_RUN = 'g', WORD_DONE = 'd' };

struct share_bench {
    struct zbench *z;
    const char *dir;
    uint64_t params, page_elems, rate;
    unsigned rounds, window_ms;
    struct zbench_daemon daemon;
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
        /* parameters and gradients, and no state */
        .host_bytes_max = x->streamed ? x->world * SHARE_STAGING + x->b->params * 4 : 0,
    };
    struct zc_placement placement;

    client_check(x, zc_open(&x->c, &(struct zc_options){ .socket = x->b->daemon.socket,
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
    static const struct zc_group group = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    struct zc_step step = { .step = ++x->step, .scale = 1, .groups = &group, .ngroups = 1 };
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

/* Never returns. */
static void client_main(struct client *x)
{
    struct pollfd p = { .fd = x->fd, .events = POLLIN };
    char word;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
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
    _exit(EXIT_SUCCESS);
}

/* ---- the clients of a job, as the parent sees them */

struct crew {
    unsigned n;
    pid_t pids[SHARE_MANY];
    int fds[SHARE_MANY];
};

static int crew_start(struct share_bench *b, struct crew *crew, const char *job, unsigned n,
                      bool streamed)
{
    for (crew->n = 0; crew->n < n; crew->n++) {
        struct client x = { .b = b,
                            .job = job,
                            .rank = crew->n,
                            .world = n,
                            .streamed = streamed,
                            .count = b->params / SHARE_UNITS };
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
            return zb_fail(&b->z->err, -errno, "a client of job '%s': %m", job);
        (void)fflush(NULL);
        crew->pids[crew->n] = fork();
        if (crew->pids[crew->n] == 0) {
            x.fd = fds[1];
            (void)close(fds[0]);
            client_main(&x);
        }
        (void)close(fds[1]);
        crew->fds[crew->n] = fds[0];
        if (crew->pids[crew->n] < 0) {
            (void)close(fds[0]);
            return zb_fail(&b->z->err, -errno, "a client of job '%s': %m", job);
        }
    }
    return 0;
}

static int crew_ask(struct share_bench *b, const struct crew *crew, char word)
{
    for (unsigned i = 0; i < crew->n; i++)
        if (send(crew->fds[i], &word, 1, MSG_NOSIGNAL) != 1)
            return zb_fail(&b->z->err, -EPIPE, "a client has ended");
    return 0;
}

static int crew_await(struct share_bench *b, const struct crew *crew, char word)
{
    for (unsigned i = 0; i < crew->n; i++) {
        char said = 0;

        if (read(crew->fds[i], &said, 1) != 1 || said != word)
            return zb_fail(&b->z->err, -EPIPE, "a client has ended");
    }
    return 0;
}

static void crew_end(struct crew *crew)
{
    for (unsigned i = 0; i < crew->n; i++) {
        (void)shutdown(crew->fds[i], SHUT_RDWR); /* later clients have this end, too */
        (void)close(crew->fds[i]);
    }
    for (unsigned i = 0; i < crew->n; i++)
        (void)waitpid(crew->pids[i], NULL, 0);
    crew->n = 0;
}

/* ---- the cases */

static int share_daemon(struct share_bench *b, bool streamed)
{
    uint64_t state = b->params * 10, ring = 16 * b->page_elems * 12;
    char host[32], nvme[32], page[32], rate[32], buffers[32];
    const char *const options[] = {
        "--host-bytes", host, "--nvme-bytes", nvme,    "--page-elems", page,    "--io", "fixed",
        "--fixed-rate", rate, "--ring-bytes", buffers, "--log-level",  "error", NULL
    };

    (void)snprintf(host, sizeof(host), "%llu",
                   (unsigned long long)(ring + 2 * (b->params * 4 + (streamed ? 0 : state)) +
                                        (2 + SHARE_MANY) * SHARE_STAGING + 64 * ZB_MIB));
    (void)snprintf(nvme, sizeof(nvme), "%llu",
                   (unsigned long long)((streamed ? 2 * state + 4 * ring : 0) + 64 * ZB_MIB));
    (void)snprintf(page, sizeof(page), "%llu", (unsigned long long)b->page_elems);
    (void)snprintf(rate, sizeof(rate), "%llu", (unsigned long long)b->rate);
    (void)snprintf(buffers, sizeof(buffers), "%llu", (unsigned long long)ring);
    b->daemon = ZBENCH_NO_DAEMON;
    return zbench_daemon_start(&b->daemon, b->dir, options, &b->z->err);
}

/* Bytes of state that a second of a round steps. */
static int share_round(struct share_bench *b, const struct crew *crew, double *ret)
{
    uint64_t begin_ns = zb_now_ns();
    int rc = crew_ask(b, crew, WORD_ROUND);

    if (rc == 0)
        rc = crew_await(b, crew, WORD_DONE);
    *ret = (double)b->params * 20 / ((double)(zb_now_ns() - begin_ns) / 1e9) / 1e6;
    return rc;
}

static int share_eight(struct share_bench *b, bool streamed)
{
    struct zbench_row row = { .unit = "MB/s", .reference_name = "1 client, the same work" };
    double values[ZBENCH_ROUNDS_MAX], references[ZBENCH_ROUNDS_MAX], mbs[4];
    struct crew one = { 0 }, eight = { 0 };
    int rc = share_daemon(b, streamed);

    if (rc == 0 && (rc = crew_start(b, &one, "one", 1, streamed)) == 0 &&
        (rc = crew_start(b, &eight, "eight", SHARE_MANY, streamed)) == 0 &&
        (rc = crew_await(b, &one, WORD_READY)) == 0 &&
        (rc = crew_await(b, &eight, WORD_READY)) == 0 &&
        (rc = share_round(b, &one, &mbs[0])) == 0) /* the first of each warms up */
        rc = share_round(b, &eight, &mbs[0]);
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        if ((rc = share_round(b, &eight, &mbs[0])) < 0 ||
            (rc = share_round(b, &one, &mbs[1])) < 0 || (rc = share_round(b, &one, &mbs[2])) < 0 ||
            (rc = share_round(b, &eight, &mbs[3])) < 0)
            break;
        values[i] = (mbs[0] + mbs[3]) / 2;
        references[i] = (mbs[1] + mbs[2]) / 2;
    }
    crew_end(&one);
    crew_end(&eight);
    zbench_daemon_end(&b->daemon);
    if (rc < 0)
        return rc;
    (void)snprintf(row.name, sizeof(row.name), "share/8-clients/1-client%s",
                   streamed ? "" : "/resident");
    return zbench_add(b->z, &row, values, references, b->rounds);
}

static int share_failed(struct share_bench *b, struct zc_client *c, int rc)
{
    return zb_fail(&b->z->err, rc, "%s", c ? zc_error(c) : zc_strerror(rc));
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

static int share_look(struct share_bench *b, struct zc_client *c, struct share_seen *ret)
{
    const double step_bytes = (double)b->params * 20;
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(c, NULL, &rows, &n);

    if (rc < 0)
        return share_failed(b, c, rc);
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

/* Bytes that each job moved in a window with these shares: in all of it, and of that while both
 * were in the middle of a step, which is waited for. Its seconds are added up. */
static int share_window(struct share_bench *b, struct zc_client *c, uint32_t share, double moved[2],
                        double middle[2], double *seconds)
{
    uint64_t window_ns = b->window_ms * UINT64_C(1000000), begin_ns;
    struct share_seen first, last, at;
    int rc = zc_job_share_wait(c, share_jobs[0], share);

    if (rc < 0)
        return share_failed(b, c, rc);
    share_pause(SHARE_SETTLE_MS);
    rc = share_look(b, c, &first);
    last = first;
    middle[0] = middle[1] = 0;
    begin_ns = zb_now_ns();
    for (uint64_t ns = 0; rc == 0 && (ns < window_ns || ((middle[0] <= 0 || middle[1] <= 0) &&
                                                         ns < SHARE_WINDOWS_MAX * window_ns));
         ns = zb_now_ns() - begin_ns) {
        share_pause(SHARE_LOOK_MS);
        rc = share_look(b, c, &at);
        for (int i = 0; i < 2 && rc == 0 && at.middle && last.middle &&
                        memcmp(at.steps, last.steps, sizeof(at.steps)) == 0;
             i++)
            middle[i] += (double)(at.moved[i] - last.moved[i]);
        last = at;
    }
    *seconds += (double)(zb_now_ns() - begin_ns) / 1e9;
    for (int i = 0; i < 2 && rc == 0; i++)
        moved[i] = (double)(last.moved[i] - first.moved[i]);
    if (rc == 0 && (middle[0] <= 0 || middle[1] <= 0))
        return zb_fail(&b->z->err, -EIO,
                       "in a window of %u ms the two jobs were never in the middle of a step at "
                       "the same time",
                       b->window_ms);
    return rc;
}

static int share_two_rows(struct share_bench *b, const double *least, const double *ratios,
                          const double *rounds)
{
    double half[ZBENCH_ROUNDS_MAX], three[ZBENCH_ROUNDS_MAX];
    struct zbench_row row = { .unit = "% of bytes", .reference_name = "half" };
    int rc;

    for (unsigned i = 0; i < b->rounds; i++) {
        half[i] = 50;
        three[i] = 3;
    }
    (void)snprintf(row.name, sizeof(row.name), "share/two-jobs/min");
    rc = zbench_add(b->z, &row, least, half, b->rounds);
    row = (struct zbench_row){ .unit = "bytes : bytes", .reference_name = "shares 3:1" };
    (void)snprintf(row.name, sizeof(row.name), "share/two-jobs/3-to-1");
    if (rc == 0)
        rc = zbench_add(b->z, &row, ratios, three, b->rounds);
    (void)snprintf(row.name, sizeof(row.name), "share/two-jobs/3-to-1/with-pushes");
    return rc < 0 ? rc : zbench_add(b->z, &row, rounds, three, b->rounds);
}

static int share_two(struct share_bench *b)
{
    double least[ZBENCH_ROUNDS_MAX], ratios[ZBENCH_ROUNDS_MAX], rounds[ZBENCH_ROUNDS_MAX];
    double total = 0, seconds = 0;
    struct crew crews[2] = { { 0 }, { 0 } };
    struct zc_client *c = NULL;
    int rc = share_daemon(b, true);

    if (rc == 0 && (rc = crew_start(b, &crews[0], "a", 1, true)) == 0 &&
        (rc = crew_start(b, &crews[1], "b", 1, true)) == 0 &&
        (rc = crew_await(b, &crews[0], WORD_READY)) == 0 &&
        (rc = crew_await(b, &crews[1], WORD_READY)) == 0 &&
        (rc = crew_ask(b, &crews[0], WORD_RUN)) == 0)
        rc = crew_ask(b, &crews[1], WORD_RUN);
    if (rc == 0 && (rc = zc_open(&c, &(struct zc_options){ .socket = b->daemon.socket,
                                                           .program = "zbench" })) < 0)
        rc = share_failed(b, c, rc);
    for (unsigned i = 0; i < b->rounds && rc == 0; i++) {
        double equal[2] = { 0, 0 }, three[2] = { 0, 0 }, all[2] = { 0, 0 };

        for (int k = 0; k < 4 && rc == 0; k++) {
            double moved[2], middle[2];
            bool same = k == 0 || k == 3;

            rc = share_window(b, c, same ? 100 : 300, moved, middle, &seconds);
            for (int j = 0; j < 2 && rc == 0; j++) {
                (same ? equal : three)[j] += middle[j];
                all[j] += same ? 0 : moved[j];
                total += moved[j];
            }
        }
        least[i] = 100 * (equal[0] < equal[1] ? equal[0] : equal[1]) / (equal[0] + equal[1]);
        ratios[i] = three[0] / three[1];
        rounds[i] = all[0] / all[1];
    }
    crew_end(&crews[0]);
    crew_end(&crews[1]);
    zc_close(c);
    zbench_daemon_end(&b->daemon);
    if (rc < 0)
        return rc;
    zbench_note(b->z, "two jobs together moved %s/s of the device's %s/s, with their pushes",
                zb_size_text((uint64_t)(total / seconds)).s, zb_size_text(b->rate).s);
    return share_two_rows(b, least, ratios, rounds);
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
