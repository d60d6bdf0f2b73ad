#include "tests/integ/zinteg.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"
#include "tests/folder.h"
#include "tests/send_fds.h"

#define OPTIONS_MAX 32
#define DAEMONS_MAX 8
#define STEP_MS     5

/* ---- the daemon */

/* The running daemons, for zi_teardown(). They are copies, because a failed test has abandoned its
 * own. pid 0: free.
 */
static struct zi_daemon running[DAEMONS_MAX];

static void running_note(const struct zi_daemon *d)
{
    for (unsigned i = 0; i < DAEMONS_MAX; i++)
        if (running[i].pid == 0) {
            running[i] = *d;
            return;
        }
    fail_msg("more than %d daemons", DAEMONS_MAX);
}

static void running_forget(pid_t pid)
{
    for (unsigned i = 0; i < DAEMONS_MAX; i++)
        if (running[i].pid == pid)
            running[i].pid = 0;
}

static void log_print(const struct zi_daemon *d)
{
    FILE *log = fopen(d->log, "r");
    char line[2048];

    (void)fprintf(stderr, "-- log of the daemon in %s\n", d->dir);
    while (log && fgets(line, sizeof(line), log))
        (void)fputs(line, stderr);
    if (log)
        (void)fclose(log);
}

/* In the child: enters the cgroup that the daemon is to start in. */
static bool daemon_enter(const struct zi_daemon *d)
{
    FILE *f = d->cgroup_procs ? fopen(d->cgroup_procs, "we") : NULL;

    if (!d->cgroup_procs)
        return true;
    return f && fputs("0", f) >= 0 && fclose(f) == 0;
}

static void daemon_run(const struct zi_daemon *d, const char *const *options, int out)
{
    const char *argv[OPTIONS_MAX] = { ZSHARDD_PATH, "--socket", d->socket, "--data", d->data };
    int n = 5, log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    for (; options && *options && n < OPTIONS_MAX - 1; options++)
        argv[n++] = *options;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (log < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0 || !daemon_enter(d))
        _exit(126);
    (void)execv(ZSHARDD_PATH, (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Reads its ready line; false: it ended before that. */
static bool daemon_await_ready(struct zi_daemon *d, int out)
{
    struct pollfd p = { .fd = out, .events = POLLIN };
    size_t len = 0;

    while (len + 1 < sizeof(d->ready)) {
        ssize_t n;

        if (poll(&p, 1, ZI_WAIT_MS) <= 0)
            fail_msg("the daemon says nothing");
        n = read(out, d->ready + len, sizeof(d->ready) - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
        if (d->ready[len - 1] == '\n')
            break;
    }
    d->ready[len] = '\0';
    return strncmp(d->ready, "ready ", 6) == 0;
}

static int daemon_await_end(struct zi_daemon *d)
{
    uint64_t until = zb_now_ns() + (uint64_t)ZI_WAIT_MS * 1000000;
    int status = 0;

    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (zb_now_ns() > until)
            fail_msg("the daemon does not end");
        (void)poll(NULL, 0, STEP_MS);
    }
    running_forget(d->pid);
    d->pid = 0;
    return status;
}

static bool daemon_start(struct zi_daemon *d, const char *const *options, int *ret_status)
{
    int out[2];

    d->ready[0] = '\0';
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0)
        daemon_run(d, options, out[1]);
    running_note(d);
    (void)close(out[1]);
    if (!daemon_await_ready(d, out[0]))
        *ret_status = daemon_await_end(d);
    (void)close(out[0]);
    return d->pid != 0;
}

bool zi_start_try(struct zi_daemon *d, const char *const *options, int *ret_status)
{
    int status = 0;

    (void)snprintf(d->dir, sizeof(d->dir), "%s/zshard-test-XXXXXX", ztest_folder());
    assert_non_null(mkdtemp(d->dir));
    (void)snprintf(d->socket, sizeof(d->socket), "%s/sock", d->dir);
    (void)snprintf(d->data, sizeof(d->data), "%s/data", d->dir);
    (void)snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    if (daemon_start(d, options, &status))
        return true;
    assert_true(WIFEXITED(status));
    *ret_status = WEXITSTATUS(status);
    return false;
}

void zi_start(struct zi_daemon *d, const char *const *options)
{
    int status;

    if (zi_start_try(d, options, &status))
        return;
    log_print(d);
    fail_msg("the daemon did not start: status %d", status);
}

void zi_start_again(struct zi_daemon *d, const char *const *options)
{
    int status = 0;

    if (daemon_start(d, options, &status))
        return;
    log_print(d);
    fail_msg("the daemon did not start again: status %d", status);
}

void zi_term(struct zi_daemon *d)
{
    assert_true(d->pid > 0);
    assert_int_equal(kill(d->pid, SIGTERM), 0);
}

void zi_ended(struct zi_daemon *d)
{
    int status = daemon_await_end(d);
    const char *report = zi_log_line(d, "Sanitizer");

    if (status != 0 || report) {
        log_print(d);
        fail_msg("the daemon ended with status %#x%s%s", (unsigned)status, report ? ": " : "",
                 report ? report : "");
    }
    assert_int_not_equal(access(d->socket, F_OK), 0);
}

void zi_end(struct zi_daemon *d)
{
    zi_term(d);
    zi_ended(d);
}

void zi_stop(struct zi_daemon *d)
{
    zi_end(d);
    zi_clean(d);
}

void zi_kill(struct zi_daemon *d)
{
    int status;

    assert_true(d->pid > 0);
    assert_int_equal(kill(d->pid, SIGKILL), 0);
    status = daemon_await_end(d);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int zi_fsck(const struct zi_daemon *d)
{
    char command[512];
    int status;

    (void)snprintf(command, sizeof(command), "%s --fsck --data %s >%s/fsck 2>&1", ZSHARDD_PATH,
                   d->data, d->dir);
    status = system(command); /* NOLINT: our own names */
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void zi_clean(struct zi_daemon *d)
{
    assert_int_equal(d->pid, 0);
    (void)folder_remove(d->dir);
}

const char *zi_log_line(const struct zi_daemon *d, const char *text)
{
    static char line[2048];
    FILE *log = fopen(d->log, "r");
    bool found = false;

    while (log && !found && fgets(line, sizeof(line), log))
        found = strstr(line, text) != NULL;
    if (log)
        (void)fclose(log);
    return found ? line : NULL;
}

unsigned zi_files(const struct zi_daemon *d)
{
    char path[64];
    unsigned n = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}

int zi_teardown(void **state)
{
    (void)state;
    for (unsigned i = 0; i < DAEMONS_MAX; i++) {
        struct zi_daemon *d = &running[i];

        if (d->pid == 0)
            continue;
        log_print(d);
        (void)kill(d->pid, SIGKILL);
        (void)waitpid(d->pid, NULL, 0);
        d->pid = 0;
        (void)folder_remove(d->dir);
    }
    return 0;
}

/* ---- clients of the library */

struct zc_client *zi_client(const struct zi_daemon *d)
{
    struct zc_options options = { .socket = d->socket, .program = "test" };
    struct zc_client *c = NULL;
    int rc = zc_open(&c, &options);

    if (rc < 0)
        fail_msg("open: %d, %s", rc, c ? zc_error(c) : "");
    return c;
}

void zi_done(void *arg, int rc)
{
    struct zi_call *call = arg;

    assert_false(call->over);
    call->over = true;
    call->rc = rc;
    if (rc < 0 && call->rank)
        (void)snprintf(call->text, sizeof(call->text), "%s", zc_error(call->rank->c));
}

static void ranks_poll(struct zi_rank *ranks, unsigned n, int timeout_ms)
{
    struct pollfd fds[16];

    assert_true(n <= ZB_COUNT(fds));
    for (unsigned i = 0; i < n; i++)
        fds[i] = (struct pollfd){ .fd = zc_fd(ranks[i].c), .events = zc_events(ranks[i].c) };
    (void)poll(fds, n, timeout_ms);
    for (unsigned i = 0; i < n; i++)
        (void)zc_poll(ranks[i].c, 0);
}

int zi_await(struct zi_rank *ranks, unsigned n, struct zi_call *call)
{
    uint64_t until = zb_now_ns() + (uint64_t)ZI_WAIT_MS * 1000000;

    while (!call->over) {
        if (zb_now_ns() > until)
            fail_msg("a call does not end");
        ranks_poll(ranks, n, 100);
    }
    return call->rc;
}

int zi_await_all(struct zi_rank *ranks, unsigned n, struct zi_call *calls, const char **ret_text)
{
    int rc = 0;

    *ret_text = "";
    for (unsigned i = 0; i < n; i++)
        if (zi_await(ranks, n, &calls[i]) < 0 && rc == 0) {
            rc = calls[i].rc;
            *ret_text = calls[i].text;
        }
    return rc;
}

void zi_pump(struct zi_rank *ranks, unsigned n, unsigned ms)
{
    uint64_t until = zb_now_ns() + (uint64_t)ms * 1000000;

    do
        ranks_poll(ranks, n, (int)zb_min_u64(ms, STEP_MS));
    while (zb_now_ns() < until);
}

static void rank_on_event(void *arg, const struct zc_event *event)
{
    struct zi_rank *r = arg;

    r->peer_lost += event->kind == ZC_EVENT_PEER_LOST;
    r->job_failed += event->kind == ZC_EVENT_JOB_FAILED;
    r->event_code = event->code;
    (void)snprintf(r->event_text, sizeof(r->event_text), "%s", event->text);
}

int zi_open(struct zi_rank *r, const struct zi_daemon *d, const struct zc_job_options *options)
{
    *r = (struct zi_rank){ .c = zi_client(d), .rank = options->rank };
    zc_on_event(r->c, rank_on_event, r);
    return zc_job_open_wait(r->c, options, &r->job);
}

int zi_unit_define(struct zi_rank *r, const struct zc_unit *unit)
{
    const struct zc_tensor whole = { .name = unit->name, .ndims = 1, .dims = { unit->elems } };
    struct zc_unit with = *unit;

    if (with.ntensors == 0 && !with.frozen) {
        with.tensors = &whole;
        with.ntensors = 1;
    }
    return zc_unit_define_wait(r->c, r->job.id, &with);
}

void zi_define(struct zi_rank *r, const struct zc_unit *units, unsigned n, uint32_t world)
{
    assert_true(n <= ZI_UNITS_MAX);
    for (unsigned u = 0; u < n; u++) {
        uint64_t slice;
        int rc = zi_unit_define(r, &units[u]);

        if (rc < 0)
            fail_msg("unit %u: %d, %s", u, rc, zc_error(r->c));
        r->ranges[u].unit = u;
        zb_slice(units[u].elems, world, r->rank, &slice, &r->ranges[u].first, &r->ranges[u].count);
        if (r->ranges[u].count == 0)
            continue;
        rc = zc_register_wait(r->c, r->job.id, &r->ranges[u], 1, &r->shards[u]);
        if (rc < 0)
            fail_msg("shard of unit %u: %d, %s", u, rc, zc_error(r->c));
    }
}

int zi_ready(struct zi_rank *ranks, unsigned n)
{
    struct zi_call calls[16];
    const char *text;

    assert_true(n <= ZB_COUNT(calls));
    for (unsigned i = 0; i < n; i++) {
        calls[i] = ZI_CALL(&ranks[i]);
        assert_int_equal(zc_ready(ranks[i].c, ranks[i].job.id, NULL, ZI_WAIT_MS, &ranks[i].place,
                                  zi_done, &calls[i]),
                         0);
    }
    return zi_await_all(ranks, n, calls, &text);
}

void zi_job(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
            const struct zc_job_options *options, const struct zc_unit *units, unsigned nunits)
{
    struct zc_job_options o = *options;
    int rc;

    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) {
        rc = zi_open(&ranks[o.rank], d, &o);
        if (rc < 0)
            fail_msg("open of job '%s': %d, %s", o.name, rc, zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], units, nunits, world);
    }
    rc = zi_ready(ranks, world);
    if (rc < 0)
        fail_msg("ready of job '%s': %d, %s", o.name, rc, zc_error(ranks[0].c));
}

void zi_close(struct zi_rank *ranks, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (ranks[i].job.id != 0)
            (void)zc_job_close_wait(ranks[i].c, ranks[i].job.id);
        zc_close(ranks[i].c);
        ranks[i].c = NULL;
    }
}

/* Writes or pushes the parts of a shard that fit into staging, one after another, up to the first
 * refusal. */
static int shard_parts(struct zi_rank *r, unsigned u, uint64_t step,
                       float (*value)(uint64_t element))
{
    uint64_t page = zc_server(r->c)->page_elems, count = r->ranges[u].count;
    uint64_t room = r->job.staging_bytes / sizeof(float) / page * page, n;
    int rc = 0;

    assert_true(room > 0);
    for (uint64_t first = 0; first < count && rc == 0; first += n) {
        float *staged = r->job.staging;
        struct zc_push push = {
            .shard = r->shards[u], .step = step, .dtype = ZC_F32, .staged = staged
        };

        n = zb_min_u64(room, count - first);
        for (uint64_t i = 0; i < n; i++)
            staged[i] = value(r->ranges[u].first + first + i);
        push.first = first;
        push.count = n;
        rc = step == 0 ? zc_write_wait(r->c, r->shards[u], ZC_MASTER, first, n, staged)
                       : zc_push_wait(r->c, &push);
    }
    return rc;
}

void zi_write_all(struct zi_rank *r, unsigned u, float (*value)(uint64_t element))
{
    int rc = shard_parts(r, u, 0, value);

    if (rc < 0)
        fail_msg("write of unit %u: %d, %s", u, rc, zc_error(r->c));
}

void zi_push_all(struct zi_rank *r, unsigned u, uint64_t step, float (*value)(uint64_t element))
{
    int rc = zi_push_try(r, u, step, value);

    if (rc < 0)
        fail_msg("push of unit %u: %d, %s", u, rc, zc_error(r->c));
}

int zi_push_try(struct zi_rank *r, unsigned u, uint64_t step, float (*value)(uint64_t element))
{
    return shard_parts(r, u, step, value);
}

void zi_step_ask(struct zi_rank *ranks, unsigned n, const struct zc_step *step, bool skip,
                 struct zc_stepped *stepped, struct zi_call *calls)
{
    for (unsigned i = 0; i < n; i++) {
        struct zi_rank *r = &ranks[i];

        calls[i] = ZI_CALL(r);
        assert_int_equal(skip ? zc_skip(r->c, r->job.id, step->step, step->commit, step->timeout_ms,
                                        &stepped[i], zi_done, &calls[i])
                              : zc_step(r->c, r->job.id, step, &stepped[i], zi_done, &calls[i]),
                         0);
    }
}

static void tiers(const struct zi_daemon *d, uint64_t *ret_host, uint64_t *ret_nvme)
{
    struct zc_client *c = zi_client(d);
    struct zc_tier_row *rows = NULL;
    size_t n = 0;

    assert_int_equal(zc_tiers_wait(c, &rows, &n), 0);
    assert_int_equal(n, 2);
    assert_string_equal(rows[0].name, "host");
    assert_string_equal(rows[1].name, "nvme");
    *ret_host = rows[0].used;
    *ret_nvme = rows[1].used;
    zc_rows_free(rows);
    zc_close(c);
}

uint64_t zi_used(const struct zi_daemon *d, const char *tier)
{
    uint64_t host, nvme;

    tiers(d, &host, &nvme);
    return strcmp(tier, "host") == 0 ? host : nvme;
}

unsigned zi_await_used(const struct zi_daemon *d, uint64_t host, uint64_t nvme)
{
    uint64_t begun = zb_now_ns(), now_host, now_nvme;

    for (;;) {
        unsigned ms = (unsigned)((zb_now_ns() - begun) / 1000000);

        tiers(d, &now_host, &now_nvme);
        if (now_host == host && now_nvme == nvme)
            return ms;
        if (ms > ZI_SOON_NS / 1000000)
            fail_msg("after %u ms %llu and %llu bytes are in use, not %llu and %llu", ms,
                     (unsigned long long)now_host, (unsigned long long)now_nvme,
                     (unsigned long long)host, (unsigned long long)nvme);
        (void)poll(NULL, 0, STEP_MS);
    }
}

struct zc_tier_row zi_tier(struct zc_client *c, const char *name)
{
    struct zc_tier_row *rows = NULL, row = { .budget = 0 };
    size_t n = 0;

    assert_int_equal(zc_tiers_wait(c, &rows, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            row = rows[i];
    zc_rows_free(rows);
    assert_string_equal(row.name, name);
    assert_true(row.used == row.params + row.grads + row.state + row.staging + row.rings);
    assert_true(row.used <= row.budget && row.target <= row.budget);
    return row;
}

void zi_await_target(struct zc_client *c, const char *name)
{
    for (unsigned waited = 0; waited < ZI_WAIT_MS / 10; waited++) {
        struct zc_tier_row row = zi_tier(c, name);

        if (row.moving == 0 && row.used <= row.target && row.budget == row.target)
            return;
        (void)poll(NULL, 0, 10);
    }
    fail_msg("the %s tier does not come down", name);
}

uint64_t zi_least(struct zc_client *c, const char *name)
{
    static const char mark[] = "the smallest that would work is ";
    const char *at;

    assert_int_equal(zc_tier_set_wait(c, name, 1), -ENOSPC);
    at = strstr(zc_error(c), mark);
    assert_non_null(at);
    return strtoull(at + sizeof(mark) - 1, NULL, 10);
}

uint64_t zi_counter(struct zc_client *c, const char *name)
{
    struct zc_counter *rows = NULL;
    uint64_t found = UINT64_MAX;
    size_t n = 0;

    assert_int_equal(zc_stat_wait(c, &rows, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            found = rows[i].value;
    zc_rows_free(rows);
    return found;
}

struct zc_job_row zi_job_row(struct zc_client *c, const char *name)
{
    struct zc_job_row *rows = NULL, row;
    size_t n = 0;

    assert_int_equal(zc_jobs_wait(c, name, &rows, &n), 0);
    assert_int_equal(n, 1);
    row = rows[0];
    zc_rows_free(rows);
    return row;
}

void zi_where(struct zc_client *c, const char *job, uint64_t *ret_gpu, uint64_t *ret_nvme)
{
    struct zc_shard_row *rows = NULL;
    size_t n = 0;

    assert_int_equal(zc_list_wait(c, job, &rows, &n), 0);
    *ret_gpu = *ret_nvme = 0;
    for (size_t i = 0; i < n; i++) {
        *ret_gpu += rows[i].bytes - rows[i].host_bytes - rows[i].nvme_bytes;
        *ret_nvme += rows[i].nvme_bytes;
    }
    zc_rows_free(rows);
}

void zi_fsck_online(struct zc_client *c)
{
    struct zc_message *problems = NULL;
    struct zc_fsck f;
    size_t n = 0;

    assert_int_equal(zc_fsck_wait(c, &f, &problems, &n), 0);
    if (n > 0)
        fail_msg("fsck: %s", problems[0].text);
    zc_rows_free(problems);
}

/* ---- a client that sends whatever it likes */

void zi_raw_connect(struct zi_raw *r, const struct zi_daemon *d)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *r = (struct zi_raw){ .fd = -1 };
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", d->socket);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(zp_stream_new(&r->stream, fd), 0);
    assert_int_equal(zp_arena_new(&r->arena), 0);
}

void zi_raw_open(struct zi_raw *r, const struct zi_daemon *d)
{
    Zp__Hello hello = ZP__HELLO__INIT;

    zi_raw_connect(r, d);
    hello.version_min = ZP_VERSION_MIN;
    hello.version_max = ZP_VERSION_MAX;
    hello.program = (char[]){ "raw" };
    assert_int_equal(zi_raw_call(r, ZP_HELLO, &hello.base), 0);
}

void zi_raw_close(struct zi_raw *r)
{
    zp_stream_free(r->stream);
    zp_arena_free(r->arena);
    zb_close_fd(&r->fd);
    *r = (struct zi_raw){ .fd = -1 };
}

static void raw_flush(struct zi_raw *r)
{
    while (zp_stream_pending(r->stream) > 0) {
        struct pollfd p = { .fd = zp_stream_fd(r->stream), .events = POLLOUT };

        if (poll(&p, 1, ZI_WAIT_MS) <= 0)
            fail_msg("the daemon does not read");
        if (zp_stream_write(r->stream) < 0)
            return; /* it hung up: the next receive reports that */
    }
}

void zi_raw_send(struct zi_raw *r, unsigned method, const ProtobufCMessage *message)
{
    struct zp_frame frame = { .method = (uint16_t)method, .kind = ZP_REQUEST, .tag = ++r->tag };

    assert_int_equal(zp_stream_send(r->stream, frame, message, NULL, NULL, 0), 0);
    raw_flush(r);
}

/* The next frame: 1; 0: the daemon hung up. */
static int raw_next(struct zi_raw *r, struct zp_frame *frame, const uint8_t **body)
{
    struct pollfd p = { .fd = zp_stream_fd(r->stream), .events = POLLIN };
    int fds[ZP_FDS_MAX], rc;
    struct zb_err err = { 0 };

    while ((rc = zp_stream_next(r->stream, frame, body, fds, &err)) == 0) {
        if (poll(&p, 1, ZI_WAIT_MS) <= 0)
            fail_msg("nothing comes from the daemon");
        rc = zp_stream_read(r->stream, &err);
        if (rc == -ECONNRESET)
            return 0;
        if (rc < 0 && rc != -EAGAIN)
            break;
    }
    if (rc < 0)
        fail_msg("from the daemon: %d, %s", rc, err.text);
    if (frame->fds > 0) {
        assert_int_equal(frame->fds, 1);
        zb_close_fd(&r->fd);
        r->fd = fds[0];
    }
    return 1;
}

int zi_raw_any(struct zi_raw *r, unsigned *ret_method)
{
    struct zp_frame frame;
    const uint8_t *body;
    struct zb_err err = { 0 };

    do
        if (raw_next(r, &frame, &body) == 0)
            fail_msg("the daemon hung up instead of answering");
    while (frame.kind == ZP_EVENT);
    assert_int_equal(frame.kind, ZP_REPLY);
    *ret_method = frame.method;
    r->reply = NULL;
    r->text[0] = '\0';
    if (frame.code < 0)
        (void)snprintf(r->text, sizeof(r->text), "%.*s", (int)frame.body_bytes, (const char *)body);
    else if (zp_decode(r->arena, zp_method_info(frame.method)->reply, body, frame.body_bytes,
                       &r->reply, &err) < 0)
        fail_msg("the reply to %u: %s", frame.method, err.text);
    return frame.code;
}

int zi_raw_reply(struct zi_raw *r, unsigned method)
{
    unsigned answered;
    int rc = zi_raw_any(r, &answered);

    assert_int_equal(answered, method);
    return rc;
}

int zi_raw_call(struct zi_raw *r, unsigned method, const ProtobufCMessage *message)
{
    zi_raw_send(r, method, message);
    return zi_raw_reply(r, method);
}

void zi_raw_bytes(struct zi_raw *r, const void *bytes, size_t len, const int *fds, unsigned n)
{
    int fd = zp_stream_fd(r->stream), flags = fcntl(fd, F_GETFL);

    raw_flush(r);
    assert_int_equal(fcntl(fd, F_SETFL, flags & ~O_NONBLOCK), 0); /* a busy daemon reads later */
    assert_true(send_fds(fd, bytes, len, fds, n));
    assert_int_equal(fcntl(fd, F_SETFL, flags), 0);
}

void zi_raw_hung_up(struct zi_raw *r)
{
    struct zp_frame frame;
    const uint8_t *body;

    if (raw_next(r, &frame, &body) != 0)
        fail_msg("the daemon sent a frame of kind %u, method %u, code %d instead of hanging up",
                 frame.kind, frame.method, frame.code);
}

void zi_raw_alive(struct zi_raw *r)
{
    Zp__Empty empty = ZP__EMPTY__INIT;

    assert_int_equal(zi_raw_call(r, ZP_PING, &empty.base), 0);
}
