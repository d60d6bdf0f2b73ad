/*
 * Processes that die, leave and return: clients, kept jobs, the daemon.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define PAGE    4096u
#define UNITS   4u
#define ELEMS   (8 * PAGE)
#define STAGING (UNITS * ELEMS / 2 * (unsigned)sizeof(float))

/* Parameters and state of the job below are on NVMe, except for the ring. */
static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "1M",           "--timeout-ms", "120000",       NULL
};

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_BF16, ZC_F32, false, false, NULL, 0 },
    { 2, "u2", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 3, "u3", ELEMS, ZC_BF16, ZC_F32, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 }
};

static const struct zc_job_options plain = {
    .name = "job", .staging_bytes = STAGING, .groups = 1, .host_bytes_max = 4 * ZB_MIB / 2
};

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 1000);
}

static float grad(uint64_t element)
{
    return (float)(element % 7) - 3.0f;
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}

static struct zc_step step_of(uint64_t number)
{
    return (struct zc_step){
        .step = number, .scale = 1, .groups = groups, .ngroups = 1, .timeout_ms = 15000
    };
}

static void fill(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&ranks[r], u, value);
}

static void push(struct zi_rank *ranks, unsigned world, uint64_t step)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_push_all(&ranks[r], u, step, grad);
}

static void step_all(struct zi_rank *ranks, unsigned world, uint64_t number)
{
    struct zc_step step = step_of(number);
    struct zc_stepped stepped[4];
    struct zi_call calls[4];
    const char *text;
    int rc;

    zi_step_ask(ranks, world, &step, false, stepped, calls);
    rc = zi_await_all(ranks, world, calls, &text);
    if (rc < 0)
        fail_msg("step %llu: %d, %s", (unsigned long long)number, rc, text);
    for (unsigned r = 0; r < world; r++)
        assert_int_equal(stepped[r].applied, number);
}

static size_t jobs_named(const struct zi_daemon *d, const char *name, struct zc_job_row *ret)
{
    struct zc_client *c = zi_client(d);
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(c, name, &rows, &n);

    assert_true(rc == 0 || rc == -ENOENT);
    if (rc == 0 && n > 0)
        *ret = rows[0];
    zc_rows_free(rows);
    zc_close(c);
    return n;
}

/* ---- a client dies, at any moment */

enum stage {
    CONNECTED,
    OPENED,
    DEFINED,
    READY_ASKED, /* but another rank has not */
    READY,
    WRITING,
    WRITTEN,
    READING,
    FETCHING,
    FETCHED,
    PUSHING,
    PUSHED,
    STEPPING,   /* the step may have begun */
    STEP_ASKED, /* but another rank has not */
    STAGES
};

static const char *const stage_names[STAGES] = {
    "connected", "opened",   "defined", "ready asked", "ready",  "writing",  "written",
    "reading",   "fetching", "fetched", "pushing",     "pushed", "stepping", "step asked",
};

/* Runs in a process of its own, which ends by kill -9 at the stage, in the middle of its work. */
static void die_at(const struct zi_daemon *d, enum stage stage)
{
    bool alone = stage != READY_ASKED && stage != STEP_ASKED;
    struct zc_job_options o = plain;
    struct zc_stepped stepped;
    struct zc_step step = step_of(1);
    struct zc_view views[UNITS];
    struct zi_rank r[2];
    uint32_t world = alone ? 1 : 2;

    if (stage == CONNECTED) {
        (void)zi_client(d);
        goto die;
    }
    o.world = world;
    if (stage == OPENED) {
        (void)zi_open(r, d, &o);
        goto die;
    }
    if (stage == DEFINED || stage == READY_ASKED) {
        (void)zi_open(r, d, &o);
        zi_define(r, units, UNITS, world);
        if (stage == READY_ASKED)
            (void)zc_ready(r->c, r->job.id, NULL, 0, &r->place, NULL, NULL);
        goto die;
    }
    zi_job(r, world, d, &o, units, UNITS);
    if (stage == READY)
        goto die;
    if (stage == WRITING) {
        for (unsigned u = 0; u < UNITS; u++)
            (void)zc_write(r->c, r->shards[u], ZC_MASTER, 0, ELEMS, r->job.staging, NULL, NULL);
        goto die;
    }
    fill(r, world);
    if (stage == WRITTEN)
        goto die;
    if (stage == READING) {
        for (unsigned u = 0; u < UNITS; u++)
            (void)zc_read(r->c, r->shards[u], ZC_EXP_AVG, 0, ELEMS / 2,
                          (float *)r->job.staging + u * ELEMS / 2, NULL, NULL);
        goto die;
    }
    if (stage == FETCHING || stage == FETCHED) {
        for (unsigned u = 0; u < UNITS; u++)
            if (stage == FETCHING)
                (void)zc_fetch(r->c, &r->shards[u], 1, 0, 0, &views[u], NULL, NULL);
            else
                (void)zc_fetch_wait(r->c, &r->shards[u], 1, 0, 0, &views[u]);
        goto die;
    }
    if (stage == PUSHING) {
        for (unsigned u = 0; u < UNITS; u++) {
            struct zc_push p = { .shard = r->shards[u],
                                 .step = 1,
                                 .dtype = ZC_F32,
                                 .count = ELEMS,
                                 .staged = r->job.staging };

            (void)zc_push(r->c, &p, NULL, NULL);
        }
        goto die;
    }
    push(r, world, 1);
    if (stage == STEPPING || stage == STEP_ASKED)
        (void)zc_step(r->c, r->job.id, &step, &stepped, NULL, NULL);
die:
    (void)kill(getpid(), SIGKILL);
}

static void a_client_dies(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_job_row row;
    uint64_t host, nvme;
    unsigned files, slowest = 0;

    (void)state;
    zi_start(&d, options);
    host = zi_used(&d, "host");
    nvme = zi_used(&d, "nvme");
    files = zi_files(&d);
    for (unsigned n = 0; n < 3 * STAGES; n++) {
        enum stage stage = n % STAGES;
        pid_t pid = fork();
        unsigned ms;
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
            die_at(&d, stage);
            _exit(1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            fail_msg("%s: the client ended with %#x", stage_names[stage], (unsigned)status);
        ms = zi_await_used(&d, host, nvme);
        slowest = ms > slowest ? ms : slowest;
        if (jobs_named(&d, "job", &row) != 0)
            fail_msg("%s: the job is still there, %s", stage_names[stage], row.state);
    }
    for (unsigned waited = 0; zi_files(&d) > files; waited++) {
        if (waited > 200)
            fail_msg("the daemon had %u descriptors open, and has %u", files, zi_files(&d));
        (void)poll(NULL, 0, 5);
    }
    print_message("what they held was back after %u ms at most\n", slowest);
    zi_stop(&d);
}

/* The other rank is told at once, whatever it waits for; then its job ends. */
static void a_peer_dies(void **state)
{
    static const enum stage waits[] = { READY_ASKED, FETCHED, STEP_ASKED };

    (void)state;
    for (unsigned n = 0; n < ZB_COUNT(waits); n++) {
        struct zi_daemon d = { 0 };
        struct zi_rank r[2];
        struct zc_job_options o = plain;
        struct zi_call call;
        struct zc_stepped stepped;
        struct zc_step step = step_of(1);
        struct zc_view view;
        struct zc_job_row row;
        uint64_t host, begun;

        zi_start(&d, options);
        host = zi_used(&d, "host");
        o.world = 2;
        if (waits[n] == READY_ASKED) {
            for (o.rank = 0; o.rank < 2; o.rank++) {
                assert_int_equal(zi_open(&r[o.rank], &d, &o), 0);
                zi_define(&r[o.rank], units, UNITS, 2);
            }
        } else {
            zi_job(r, 2, &d, &o, units, UNITS);
            fill(r, 2);
            push(r, 2, 1);
        }
        call = ZI_CALL(&r[0]);
        if (waits[n] == READY_ASKED)
            assert_int_equal(zc_ready(r[0].c, r[0].job.id, NULL, 0, &r[0].place, zi_done, &call),
                             0);
        else if (waits[n] == FETCHED)
            assert_int_equal(zc_fetch(r[0].c, r[0].shards, 1, 1, 0, &view, zi_done, &call), 0);
        else
            assert_int_equal(zc_step(r[0].c, r[0].job.id, &step, &stepped, zi_done, &call), 0);
        zi_pump(r, 2, 20);
        assert_false(call.over);
        begun = zb_now_ns();
        zc_close(r[1].c); /* like its death: without closing the job */
        assert_int_equal(zi_await(r, 1, &call), -EOWNERDEAD);
        assert_true(zb_now_ns() - begun < ZI_SOON_NS);
        assert_says(call.text, "rank 1 of job 'job'");
        assert_int_equal(r[0].peer_lost, 1);
        assert_int_equal(r[0].event_code, -EOWNERDEAD);
        assert_int_equal(zc_step_wait(r[0].c, r[0].job.id, &step, &stepped), -EOWNERDEAD);
        if (jobs_named(&d, "job", &row) == 1) /* until the last rank has left it */
            assert_string_equal(row.state, "failed");
        o.rank = 0; /* another job of that name can begin */
        o.world = 1;
        assert_int_equal(zi_open(&r[1], &d, &o), 0);
        zi_close(&r[1], 1);
        zi_close(&r[0], 1);
        (void)zi_await_used(&d, host, 0);
        zi_stop(&d);
    }
}

/* A rank that leaves in good order is not lost; but no step is made without it. */
static void a_peer_leaves(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2], again;
    struct zc_job_options o = plain;
    struct zc_stepped stepped;
    struct zc_step step = step_of(1);
    struct zi_call call;
    uint64_t host;

    (void)state;
    zi_start(&d, options);
    host = zi_used(&d, "host");
    o.world = 2; /* before the job is ready, a rank may leave and come again */
    for (o.rank = 0; o.rank < 2; o.rank++)
        assert_int_equal(zi_open(&r[o.rank], &d, &o), 0);
    assert_int_equal(zc_job_close_wait(r[1].c, r[1].job.id), 0);
    zc_close(r[1].c);
    o.rank = 1;
    assert_int_equal(zi_open(&r[1], &d, &o), 0);
    zi_define(&r[0], units, UNITS, 2);
    zi_define(&r[1], units, UNITS, 2);
    assert_int_equal(zi_ready(r, 2), 0);
    fill(r, 2);
    push(r, 2, 1);
    step_all(r, 2, 1);
    push(r, 2, 2);
    step.step = 2;
    call = ZI_CALL(&r[0]);
    assert_int_equal(zc_step(r[0].c, r[0].job.id, &step, &stepped, zi_done, &call), 0);
    zi_pump(r, 2, 20);
    assert_int_equal(zc_job_close_wait(r[1].c, r[1].job.id), 0);
    assert_int_equal(zi_await(r, 1, &call), -ECANCELED);
    assert_says(call.text, "rank 1 left job 'job'");
    assert_int_equal(r[0].peer_lost, 0);
    assert_int_equal(zc_step_wait(r[0].c, r[0].job.id, &step, &stepped), -EOWNERDEAD);
    assert_says(zc_error(r[0].c), "left job 'job'");
    o.rank = 1;
    assert_int_equal(zi_open(&again, &d, &o), -EEXIST);
    zc_close(again.c);
    zc_close(r[1].c);
    zi_close(r, 1);
    (void)zi_await_used(&d, host, 0);
    zi_stop(&d);
}

/* ---- kept jobs */

static float *read_master(struct zi_rank *r, unsigned u)
{
    float *copy = malloc(r->ranges[u].count * sizeof(*copy));

    if (zc_read_wait(r->c, r->shards[u], ZC_MASTER, 0, r->ranges[u].count, r->job.staging) < 0)
        fail_msg("read: %s", zc_error(r->c));
    memcpy(copy, r->job.staging, r->ranges[u].count * sizeof(*copy));
    return copy;
}

static void a_kept_job(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_client *c;
    struct zc_job_options o = plain, bad;
    struct zc_job_row row;
    struct zc_unit other = units[0];
    struct zc_range range = { 0, 0, PAGE };
    struct zc_view view;
    uint8_t note[ZC_NOTE_MAX];
    uint64_t host, nvme, held, ids[UNITS], id, used;
    float *before, *after;
    size_t n;

    (void)state;
    zi_start(&d, options);
    host = zi_used(&d, "host");
    nvme = zi_used(&d, "nvme");
    o.keep = true;
    zi_job(r, 2, &d, &o, units, UNITS);
    fill(r, 2);
    assert_int_equal(zc_note_put_wait(r[1].c, r[1].job.id, false, "note", 4), 0);
    push(r, 2, 1);
    step_all(r, 2, 1);
    before = read_master(&r[1], 1);
    memcpy(ids, r[1].shards, sizeof(ids));
    push(r, 2, 2); /* for a step that is never made */
    assert_int_equal(jobs_named(&d, "job", &row), 1);
    held = row.host_bytes; /* with both ranks' staging; a lost rank's is freed */

    /* one rank is lost while it holds a pin: the job and its peer stay */
    assert_int_equal(zc_fetch_wait(r[1].c, &r[0].shards[0], 1, 1, 0, &view), 0);
    zc_close(r[1].c);
    for (unsigned waited = 0; r[0].peer_lost == 0; waited++) {
        assert_true(waited < 200);
        zi_pump(r, 1, 10);
    }
    assert_int_equal(jobs_named(&d, "job", &row), 1);
    assert_string_equal(row.state, "ready");
    assert_int_equal(row.attached, 1);
    assert_true(row.keep);
    c = zi_client(&d);
    assert_int_equal(zc_job_destroy_wait(c, "job"), -EBUSY);
    assert_says(zc_error(c), "1 ranks attached");
    zc_close(c);

    /* a rank that rejoins must match the job */
    o.world = 2;
    o.rank = 1;
    assert_int_equal(zi_open(&r[1], &d, &o), -EEXIST); /* not as a new rank */
    zc_close(r[1].c);
    o.attach = true;
    bad = o;
    bad.rank = 0;
    assert_int_equal(zi_open(&r[1], &d, &bad), -EBUSY);
    assert_says(zc_error(r[1].c), "its rank 0 is taken");
    zc_close(r[1].c);
    bad = o;
    bad.world = 3;
    assert_int_equal(zi_open(&r[1], &d, &bad), -EINVAL);
    zc_close(r[1].c);
    bad = o;
    bad.groups = 2;
    assert_int_equal(zi_open(&r[1], &d, &bad), -EINVAL);
    zc_close(r[1].c);
    assert_int_equal(zi_open(&r[1], &d, &o), 0);
    assert_int_equal(r[1].job.iterations, 1);
    assert_int_equal(r[1].job.applied, 1);
    other.elems++;
    assert_int_equal(zi_unit_define(&r[1], &other), -EINVAL);
    assert_says(zc_error(r[1].c), "differently from its peers");
    other = units[0];
    other.index = UNITS;
    other.name = "more";
    assert_int_equal(zi_unit_define(&r[1], &other), -EINVAL);
    assert_says(zc_error(r[1].c), "has 4 units");
    assert_int_equal(zc_register_wait(r[1].c, r[1].job.id, &range, 1, &id), -ENOENT);
    zi_define(&r[1], units, UNITS, 2);
    assert_memory_equal(r[1].shards, ids, sizeof(ids));
    assert_int_equal(zi_ready(&r[1], 1), 0);
    assert_int_equal(zc_note_get_wait(r[1].c, r[1].job.id, false, note, &n), 0);
    assert_int_equal(n, 4);
    assert_memory_equal(note, "note", 4);
    after = read_master(&r[1], 1);
    assert_memory_equal(before, after, r[1].ranges[1].count * sizeof(*before));
    free(before);
    free(after);

    /* the incomplete gradient is dropped: it is pushed again, and not added twice */
    push(r, 2, 2);
    step_all(r, 2, 2);

    /* without any rank, the job is still there */
    assert_int_equal(zc_job_close_wait(r[0].c, r[0].job.id), 0);
    zc_close(r[0].c);
    zc_close(r[1].c);
    (void)zi_await_used(&d, host + held - 2 * STAGING, nvme + row.nvme_bytes);
    used = zi_used(&d, "host");
    assert_int_equal(jobs_named(&d, "job", &row), 1);
    assert_int_equal(row.attached, 0);
    assert_int_equal(row.iterations, 2);
    for (o.rank = 0; o.rank < 2; o.rank++) {
        assert_int_equal(zi_open(&r[o.rank], &d, &o), 0);
        assert_int_equal(r[o.rank].job.applied, 2);
        zi_define(&r[o.rank], units, UNITS, 2);
    }
    assert_int_equal(zi_ready(r, 2), 0);
    push(r, 2, 3);
    step_all(r, 2, 3);
    zi_close(r, 2);
    (void)zi_await_used(&d, used, nvme + row.nvme_bytes);
    c = zi_client(&d);
    assert_int_equal(zc_job_destroy_wait(c, "job"), 0);
    zc_close(c);
    (void)zi_await_used(&d, host, nvme);
    assert_int_equal(jobs_named(&d, "job", &row), 0);
    zi_stop(&d);
}

/* ---- the daemon ends */

static void assert_gone(struct zi_rank *r)
{
    struct zc_client *c = r->c;
    uint64_t until = zb_now_ns() + ZI_SOON_NS;
    int rc = 0;

    while ((rc = zc_poll(c, 100)) >= 0)
        assert_true(zb_now_ns() < until);
    assert_int_equal(rc, -ENOTCONN);
    assert_int_equal(zc_ping_wait(c), -ENOTCONN);
}

enum end_at { IDLE, WITH_PINS, READY_WAITS, STEP_WAITS, STEP_DRAINS, STEP_RUNS, ENDS };

/* Brings a job to the state in which the signal is to arrive. */
static void bring(struct zi_rank *r, const struct zi_daemon *d, enum end_at at,
                  struct zi_call *call, struct zc_stepped *stepped, struct zc_view *view)
{
    struct zc_job_options o = plain;
    struct zc_step step = step_of(1);
    unsigned world = at == READY_WAITS || at == STEP_WAITS ? 2 : 1;

    o.world = world;
    if (at == READY_WAITS) {
        assert_int_equal(zi_open(r, d, &o), 0);
        zi_define(r, units, UNITS, 2);
        assert_int_equal(zc_ready(r->c, r->job.id, NULL, 0, &r->place, zi_done, call), 0);
        zi_pump(r, 1, 10);
        return;
    }
    zi_job(r, world, d, &o, units, UNITS);
    fill(r, world);
    push(r, world, 1);
    if (at == WITH_PINS || at == STEP_DRAINS)
        assert_int_equal(zc_fetch_wait(r->c, r->shards, 1, 0, 0, view), 0);
    if (at == STEP_WAITS || at == STEP_DRAINS || at == STEP_RUNS)
        assert_int_equal(zc_step(r->c, r->job.id, &step, stepped, zi_done, call), 0);
    if (at == STEP_WAITS || at == STEP_DRAINS)
        zi_pump(r, 1, 10);
    if (at == STEP_RUNS) /* sends the request, and does not wait */
        (void)zc_poll(r->c, 0);
}

static void sigterm(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 2 * ENDS; n++) {
        struct zi_daemon d = { 0 };
        struct zi_rank r[2] = { 0 };
        struct zi_call call = { .rank = r };
        struct zc_stepped stepped;
        struct zc_view view;
        enum end_at at = n % ENDS;
        uint64_t begun;

        zi_start(&d, options);
        bring(r, &d, at, &call, &stepped, &view);
        begun = zb_now_ns();
        zi_term(&d);
        zi_ended(&d);
        if (zb_now_ns() - begun > ZI_SOON_NS)
            fail_msg("case %u: the daemon took %llu ms to end", at,
                     (unsigned long long)(zb_now_ns() - begun) / 1000000);
        assert_gone(r);
        if (at == READY_WAITS || at >= STEP_WAITS) {
            assert_true(call.over);
            if (at == STEP_RUNS && call.rc == 0)
                assert_int_equal(stepped.applied, 1);
            else if (call.rc != -ENOTCONN && call.rc != -ECANCELED)
                fail_msg("case %u: the call ended with %d, %s", at, call.rc, call.text);
        }
        if (at == WITH_PINS) /* pinned data is void, but stays mapped until the handle is closed */
            (void)*(const volatile float *)view.data;
        zc_close(r[0].c);
        zc_close(r[1].c);
        zi_clean(&d);
    }
}

/* A step that is in progress when the daemon ends is not made by halves: a kept job is stepped, or
 * not at all. */
static void sigterm_in_the_middle_of_a_step(void **state)
{
    static const char *const large[] = {
        "--host-bytes", "96M", "--nvme-bytes", "256M", "--page-elems", "65536", NULL
    };
    static const struct zc_unit unit = {
        .name = "u", .elems = 8 << 20, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "job", .staging_bytes = 8 * ZB_MIB, .groups = 1 };
    unsigned finished = 0;

    (void)state;
    for (unsigned n = 0; n < 4; n++) {
        const char *with_io[ZB_COUNT(large) + 2];
        struct zi_daemon d = { 0 };
        struct zi_rank r[1];
        struct zi_call call;
        struct zc_stepped stepped;
        struct zc_step step = step_of(1);

        memcpy(with_io, large, sizeof(large));
        with_io[ZB_COUNT(large) - 1] = "--io";
        with_io[ZB_COUNT(large)] = n % 2 ? "threads" : "auto";
        with_io[ZB_COUNT(large) + 1] = NULL;
        zi_start(&d, with_io);
        zi_job(r, 1, &d, &o, &unit, 1);
        assert_true(r->place.nvme_bytes > 32 * ZB_MIB);
        zi_write_all(r, 0, value);
        zi_push_all(r, 0, 1, grad);
        call = ZI_CALL(r);
        assert_int_equal(zc_step(r->c, r->job.id, &step, &stepped, zi_done, &call), 0);
        (void)zc_poll(r->c, 0);
        (void)poll(NULL, 0, (int)(1 + 4 * n)); /* it has begun, but not ended */
        assert_false(call.over);
        zi_term(&d);
        (void)zi_await(r, 1, &call);
        if (call.rc == 0)
            finished++;
        else if (call.rc != -ENOTCONN)
            fail_msg("the step ended with %d, %s", call.rc, call.text);
        zi_ended(&d);
        assert_gone(r);
        zc_close(r->c);
        zi_clean(&d);
    }
    assert_int_equal(finished, 4); /* a step that has begun is finished, and answered */
}

static void sigkill(void **state)
{
    (void)state;
    for (unsigned n = 0; n < ENDS; n++) {
        struct zi_daemon d = { 0 };
        struct zi_rank r[2] = { 0 };
        struct zi_call call = { .rank = r };
        struct zc_stepped stepped;
        struct zc_view view;
        uint64_t begun;

        zi_start(&d, options);
        bring(r, &d, n, &call, &stepped, &view);
        zi_kill(&d);
        begun = zb_now_ns();
        assert_gone(r);
        assert_true(zb_now_ns() - begun < ZI_SOON_NS);
        if (n == READY_WAITS || n == STEP_WAITS || n == STEP_DRAINS)
            assert_int_equal(call.rc, -ENOTCONN);
        if (n == WITH_PINS)
            assert_true(*(const float *)view.data == value(0));
        zc_close(r[0].c);
        zc_close(r[1].c);
        zi_start_again(&d, options); /* its socket and data directory are not in use */
        r[0] = r[1] = (struct zi_rank){ 0 };
        bring(r, &d, IDLE, &call, &stepped, &view);
        zi_close(r, 1);
        zi_stop(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_client_dies, zi_teardown),
        cmocka_unit_test_teardown(a_peer_dies, zi_teardown),
        cmocka_unit_test_teardown(a_peer_leaves, zi_teardown),
        cmocka_unit_test_teardown(a_kept_job, zi_teardown),
        cmocka_unit_test_teardown(sigterm, zi_teardown),
        cmocka_unit_test_teardown(sigterm_in_the_middle_of_a_step, zi_teardown),
        cmocka_unit_test_teardown(sigkill, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
