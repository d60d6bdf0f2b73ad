/*
 * The engine with the real daemon: placement never changes a bit, and every end is timely.
 *
 * Each test starts a zshardd of its own, on a socket and a data folder in a temporary folder. Ranks
 * are threads with a connection each.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "comm_threads.h"
#include "model.h"
#include "real_daemon.h"

#define RANKS 4

struct party {
    uint32_t world;
    struct comm_group *group;
    struct run runs[RANKS];
};

/* d NULL: store none. */
static void party_new(struct party *p, uint32_t world, const struct real_daemon *d,
                      enum zc_zero_offload params, enum zc_zero_offload optimizer)
{
    memset(p, 0, sizeof(*p));
    p->world = world;
    p->group = comm_group_new(world, world, 4);
    for (uint32_t r = 0; r < world; r++) {
        struct zc_zero_options *o = &p->runs[r].options;

        p->runs[r].dtype = ZC_BF16;
        p->runs[r].steps = 5;
        p->runs[r].poison_step = 3;
        p->runs[r].evaluate = true;
        zc_zero_defaults(o);
        o->comm = comm_group_rank(p->group, r);
        o->groups = 2;
        o->weight_decay[0] = 0.1;
        o->clip = 1;
        o->micro_steps = 2;
        o->prefetch_units = 2;
        o->timeout_ms = 120000;
        if (d) {
            o->socket = d->socket;
            o->offload_param = params;
            o->offload_optimizer = optimizer;
        }
    }
}

static void party_run(struct party *p)
{
    run_threads(p->runs, p->world);
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
}

static void assert_ran(const struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        if (p->runs[r].rc != 0)
            fail_msg("rank %u of %u ended with %d: %s", r, p->world, p->runs[r].rc,
                     p->runs[r].error);
    for (uint32_t r = 1; r < p->world; r++)
        assert_runs_same("ranks", &p->runs[0], &p->runs[r]);
}

static void assert_same(const char *name, const struct party *a, const struct party *b)
{
    assert_ran(a);
    assert_ran(b);
    assert_runs_same(name, &a->runs[0], &b->runs[0]);
}

/* ---- tests */

/* Takes this much of the daemon's host memory, as another job's staging. NULL: there is not enough.
 */
static struct zc_client *squat(const struct real_daemon *d, uint64_t bytes)
{
    struct zc_options options = { .socket = d->socket };
    struct zc_job_options job = {
        .name = "squatter", .world = 1, .staging_bytes = bytes, .groups = 1
    };
    struct zc_client *c;
    struct zc_job joined;

    assert_int_equal(zc_open(&c, &options), 0);
    if (zc_job_open_wait(c, &job, &joined) == 0)
        return c;
    zc_close(c);
    return NULL;
}

/* Runs with the least memory that suffices: a daemon with the smallest budget, and another job that
 * leaves less and less of it. */
static void party_run_least(struct party *p, uint32_t world, enum zc_zero_offload params,
                            enum zc_zero_offload optimizer, const char *io)
{
    uint64_t taken;
    struct real_daemon d;

    real_daemon_start(&d, "--host-bytes", "2M", "--io", io);
    for (taken = 2 << 20; taken > 0; taken -= 16384) {
        struct zc_client *c = squat(&d, taken);

        if (!c)
            continue;
        party_new(p, world, &d, params, optimizer);
        party_run(p);
        zc_close(c);
        if (p->runs[0].rc != -ENOSPC)
            break;
        party_done(p);
    }
    assert_true(taken > 0);
    real_daemon_stop(&d);
    print_message("all but %llu of 2048 KiB: ", (unsigned long long)taken / 1024);
}

static void placement_changes_nothing(void **state)
{
    static const struct {
        const char *name;
        const char *io; /* NULL: room for everything */
        enum zc_zero_offload params, optimizer;
        uint32_t world;
    } cases[] = {
        { "all in host memory", NULL, ZC_ZERO_HOST, ZC_ZERO_HOST, 2 },
        { "allowed on nvme, and fits", NULL, ZC_ZERO_NVME, ZC_ZERO_NVME, 3 },
        { "the optimizer on nvme", "auto", ZC_ZERO_HOST, ZC_ZERO_NVME, 2 },
        { "all on nvme, alone", "auto", ZC_ZERO_NVME, ZC_ZERO_NVME, 1 },
        { "all on nvme, two", "auto", ZC_ZERO_NVME, ZC_ZERO_NVME, 2 },
        { "all on nvme, three", "auto", ZC_ZERO_NVME, ZC_ZERO_NVME, 3 },
        { "all on nvme, by threads", "threads", ZC_ZERO_NVME, ZC_ZERO_NVME, 3 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party none, p;
        struct real_daemon d;

        party_new(&none, cases[i].world, NULL, ZC_ZERO_NONE, ZC_ZERO_NONE);
        party_run(&none);
        if (cases[i].io) {
            party_run_least(&p, cases[i].world, cases[i].params, cases[i].optimizer, cases[i].io);
        } else {
            real_daemon_start(&d, "--host-bytes", "64M");
            party_new(&p, cases[i].world, &d, cases[i].params, cases[i].optimizer);
            party_run(&p);
            real_daemon_stop(&d);
        }
        print_message("%s: host %llu, nvme %llu, read %llu, written %llu\n", cases[i].name,
                      (unsigned long long)p.runs[0].stats.host_bytes,
                      (unsigned long long)p.runs[0].stats.nvme_bytes,
                      (unsigned long long)p.runs[0].stats.nvme_read_bytes,
                      (unsigned long long)p.runs[0].stats.nvme_written_bytes);
        assert_same(cases[i].name, &none, &p);
        assert_true((p.runs[0].stats.nvme_read_bytes > 0) == (cases[i].io != NULL));
        party_done(&none);
        party_done(&p);
    }
}

static uint64_t counter(const struct real_daemon *d, const char *name)
{
    struct zc_options options = { .socket = d->socket };
    struct zc_counter *rows;
    struct zc_client *c;
    uint64_t value = 0;
    size_t n;

    assert_int_equal(zc_open(&c, &options), 0);
    assert_int_equal(zc_stat_wait(c, &rows, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            value = rows[i].value;
    zc_rows_free(rows);
    zc_close(c);
    return value;
}

/* Micro-steps that are summed before the push: one push for each unit and step, also for steps that
 * begin early, and the same bits as without a daemon. */
static void accumulated_before_the_push(void **state)
{
    static const struct {
        const char *name;
        bool vertical, early, ring;
    } cases[] = {
        { "by the engine", false, false, false },
        { "by the trainer", true, false, false },
        { "by the engine, early", false, true, false },
        { "by the trainer, early", true, true, false },
        { "by the engine, with a ring", false, true, true },
        { "by the trainer, with a ring", true, true, true },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party none, p;
        struct real_daemon d;

        real_daemon_start(&d, "--host-bytes", "2M");
        party_new(&none, 2, NULL, ZC_ZERO_NONE, ZC_ZERO_NONE);
        party_new(&p, 2, &d, ZC_ZERO_NVME, ZC_ZERO_NVME);
        for (uint32_t r = 0; r < 2; r++) {
            none.runs[r].options.accumulate_local = true;
            p.runs[r].options.accumulate_local = !cases[i].vertical;
            p.runs[r].options.vertical = cases[i].vertical;
            none.runs[r].options.clip = p.runs[r].options.clip = cases[i].early ? 0 : 1;
            none.runs[r].options.micro_steps = p.runs[r].options.micro_steps = 3;
            p.runs[r].announce = cases[i].early;
            p.runs[r].options.grad_ring = cases[i].ring;
        }
        party_run(&none);
        party_run(&p);
        assert_same(cases[i].name, &none, &p);
        assert_true((counter(&d, "pages_early") > 0) == cases[i].early);
        real_daemon_stop(&d);
        party_done(&none);
        party_done(&p);
    }
}

/* The daemon does not hold all gradients: the same bits, at each stage, with 1 to 3 ranks, without clipping
 * and clipped by tensor, after two steps of a warm-up. */
static void a_ring_of_gradients(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 3; world++)
        for (uint32_t i = 0; i < 6; i++) {
            enum zc_zero_stage stage = (enum zc_zero_stage)(ZC_STAGE_1 + i % 3);
            bool clips = i >= 3;
            enum zc_zero_offload params = stage == ZC_STAGE_3 ? ZC_ZERO_NVME : ZC_ZERO_NONE;
            struct party none, p;
            struct real_daemon d;
            char name[64];

            real_daemon_start(&d, "--host-bytes", "2M");
            party_new(&none, world, NULL, ZC_ZERO_NONE, ZC_ZERO_NONE);
            party_new(&p, world, &d, params, ZC_ZERO_NVME);
            for (uint32_t r = 0; r < world; r++) {
                none.runs[r].options.stage = p.runs[r].options.stage = stage;
                none.runs[r].options.clip = p.runs[r].options.clip = clips ? 0.5 : 0;
                none.runs[r].options.clip_mode = p.runs[r].options.clip_mode =
                    clips ? ZC_CLIP_TENSOR : ZC_CLIP_GLOBAL;
                none.runs[r].options.clip_tensor_warmup = 2;
                p.runs[r].options.clip_tensor_warmup = 2;
                none.runs[r].options.micro_steps = p.runs[r].options.micro_steps = 1;
                p.runs[r].announce = p.runs[r].options.grad_ring = true;
            }
            party_run(&none);
            party_run(&p);
            (void)snprintf(name, sizeof(name), "%u ranks, stage %d%s", world, (int)stage,
                           clips ? ", clipped by tensor" : "");
            assert_same(name, &none, &p);
            assert_true(counter(&d, "pages_early") > 0);
            real_daemon_stop(&d);
            party_done(&none);
            party_done(&p);
        }
}

static void assert_values_same(const char *name, const struct model_values *a,
                               const struct model_values *b)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        size_t bytes = model_units[u].elems * sizeof(float);

        if (memcmp(a->master[u], b->master[u], bytes) != 0 ||
            memcmp(a->m[u], b->m[u], bytes) != 0 || memcmp(a->v[u], b->v[u], bytes) != 0)
            fail_msg("%s: values of unit '%s' differ", name, model_units[u].name);
    }
}

/* One nonfinite value on one rank: every rank skips the step, and reads after it return the state
 * after two steps; also if a part of the third was made early. */
static void one_bad_gradient_skips_all(void **state)
{
    static const struct {
        const char *name;
        enum zc_dtype dtype;
        uint32_t unit;
        float value;
        bool early;
        bool scaled;
    } cases[] = {
        { "bf16, NaN at first", ZC_BF16, 0, NAN, false, false },
        { "bf16, infinity at last, early", ZC_BF16, MODEL_UNITS - 1, -INFINITY, true, false },
        { "bf16, NaN at first, early", ZC_BF16, 0, NAN, true, false },
        { "fp32, infinity at first", ZC_F32, 0, INFINITY, false, false },
        { "fp32, NaN at last, early", ZC_F32, MODEL_UNITS - 1, NAN, true, false },
        { "fp32, NaN at last, early, scaled", ZC_F32, MODEL_UNITS - 1, NAN, true, true },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party none, p;
        struct real_daemon d;

        party_new(&none, 2, NULL, ZC_ZERO_NONE, ZC_ZERO_NONE);
        /* Streamed state is stepped early. */
        real_daemon_start(&d, "--host-bytes", cases[i].early ? "2M" : "64M");
        party_new(&p, 2, &d, ZC_ZERO_NVME, ZC_ZERO_NVME);
        for (uint32_t r = 0; r < 2; r++) {
            none.runs[r].dtype = p.runs[r].dtype = cases[i].dtype;
            none.runs[r].options.clip = p.runs[r].options.clip = cases[i].early ? 0 : 1;
            none.runs[r].steps = 2;
            none.runs[r].poison_step = 0;
            p.runs[r].steps = 3;
            p.runs[r].poison_unit = cases[i].unit;
            p.runs[r].poison_value = cases[i].value;
            p.runs[r].announce = cases[i].early;
            p.runs[r].options.loss_scale.dynamic = cases[i].scaled;
            p.runs[r].options.loss_scale.window = 1;
        }
        party_run(&none);
        assert_ran(&none);
        party_run(&p);
        for (uint32_t r = 0; r < 2; r++) {
            if (p.runs[r].rc != 0)
                fail_msg("%s: rank %u: %s", cases[i].name, r, p.runs[r].error);
            assert_true(!p.runs[r].skipped[1] && p.runs[r].skipped[2]);
            assert_true(isnan(p.runs[r].norms[2]));
            assert_int_equal(p.runs[r].last.iterations, 3);
            assert_int_equal(p.runs[r].last.applied, 2);
            assert_true(p.runs[r].scales[2] == (cases[i].scaled ? 0x1p17 : 1));
            assert_values_same(cases[i].name, &none.runs[0].values, &p.runs[r].values);
        }
        assert_true((counter(&d, "pages_early") > 0) == cases[i].early);
        real_daemon_stop(&d);
        party_done(&none);
        party_done(&p);
    }
}

static void a_kept_job_goes_on(void **state)
{
    struct party whole, first, second;
    struct real_daemon d;

    (void)state;
    party_new(&whole, 2, NULL, ZC_ZERO_NONE, ZC_ZERO_NONE);
    party_run(&whole);
    real_daemon_start(&d, "--host-bytes", "64M");
    party_new(&first, 2, &d, ZC_ZERO_NVME, ZC_ZERO_NVME);
    party_new(&second, 2, &d, ZC_ZERO_NVME, ZC_ZERO_NVME);
    for (uint32_t r = 0; r < 2; r++) {
        first.runs[r].options.keep = second.runs[r].options.keep = true;
        first.runs[r].options.job = second.runs[r].options.job = "kept";
        first.runs[r].stop_after = 7; /* it ends in the middle of step 4 */
        second.runs[r].options.resume = true;
        second.runs[r].steps = 2;
    }
    party_run(&first);
    for (uint32_t r = 0; r < 2; r++) /* the second one to leave is told about the first */
        assert_true(first.runs[r].rc == -EINTR || first.runs[r].rc == -EOWNERDEAD);
    party_run(&second);
    assert_ran(&second);
    assert_int_equal(second.runs[0].last.iterations, 5);
    assert_int_equal(second.runs[0].last.applied, 4);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        assert_memory_equal(whole.runs[0].values.master[u], second.runs[0].values.master[u],
                            model_units[u].elems * sizeof(float));
    real_daemon_stop(&d);
    party_done(&whole);
    party_done(&first);
    party_done(&second);
}

/* Four ranks in two groups: each group has all states, in a job of its own. */
static void groups_new(struct party *p, const struct real_daemon *d, const char *job)
{
    party_new(p, 4, d, d ? ZC_ZERO_HOST : ZC_ZERO_NONE, d ? ZC_ZERO_NVME : ZC_ZERO_NONE);
    for (uint32_t r = 0; r < 4; r++) {
        p->runs[r].options.group_ranks = 2;
        p->runs[r].options.keep = job != NULL;
        p->runs[r].options.job = job;
        p->runs[r].options.micro_steps = 1; /* 12 samples: each rank has 3 */
    }
}

/* Waits until its ranks' connections are gone, and destroys the job. */
static void await_destroyed(struct zc_client *c, const char *job)
{
    int rc = -EBUSY;

    for (int i = 0; i < 2000 && rc == -EBUSY; i++) {
        rc = zc_job_destroy_wait(c, job);
        (void)usleep(10000);
    }
    assert_int_equal(rc, 0);
}

static void groups_are_jobs(void **state)
{
    struct party whole, once, first, second, other;
    struct real_daemon d;

    (void)state;
    groups_new(&whole, NULL, NULL);
    party_run(&whole);
    assert_ran(&whole);
    real_daemon_start(&d, "--host-bytes", "64M");
    groups_new(&once, &d, NULL);
    party_run(&once);
    assert_same("groups", &whole, &once);
    groups_new(&first, &d, "kept");
    groups_new(&second, &d, "kept");
    groups_new(&other, &d, "kept");
    for (uint32_t r = 0; r < 4; r++) {
        first.runs[r].stop_after = 3; /* after step 3 */
        second.runs[r].options.resume = other.runs[r].options.resume = true;
        second.runs[r].steps = 2;
        other.runs[r].options.group_ranks = 1;
    }
    party_run(&first);
    for (uint32_t r = 0; r < 4; r++) /* a group is told when its first rank leaves */
        if (first.runs[r].rc != -EINTR && first.runs[r].rc != -EOWNERDEAD)
            fail_msg("rank %u: %d %s", r, first.runs[r].rc, first.runs[r].error);
    party_run(&other); /* the jobs in memory are those of two groups of 2 */
    for (uint32_t r = 0; r < 4; r++) {
        bool cut = r < 2;

        if (other.runs[r].rc != (cut ? -EINVAL : -ENOENT) ||
            !strstr(other.runs[r].error, cut ? "has 2 ranks, not 1" : "there is no job 'kept."))
            fail_msg("rank %u: %d %s", r, other.runs[r].rc, other.runs[r].error);
    }
    party_run(&second);
    assert_ran(&second);
    assert_int_equal(second.runs[0].begun_at, 3);
    assert_int_equal(second.runs[0].last.iterations, 5);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t u = 0; u < MODEL_UNITS; u++)
            assert_memory_equal(whole.runs[0].values.master[u], second.runs[r].values.master[u],
                                model_units[u].elems * sizeof(float));
    real_daemon_stop(&d);
    party_done(&whole);
    party_done(&once);
    party_done(&first);
    party_done(&second);
    party_done(&other);
}

/* One of two groups has the job of another run, at the same step. */
static void groups_of_two_runs(void **state)
{
    struct party first, alone, second;
    struct zc_options options = { 0 };
    struct zc_client *c;
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    options.socket = d.socket;
    groups_new(&first, &d, "kept");
    groups_new(&second, &d, "kept");
    party_new(&alone, 2, &d, ZC_ZERO_HOST, ZC_ZERO_HOST);
    for (uint32_t r = 0; r < 4; r++) {
        first.runs[r].stop_after = 3;
        second.runs[r].options.resume = true;
    }
    for (uint32_t r = 0; r < 2; r++) {
        alone.runs[r].options.keep = true;
        alone.runs[r].options.job = "kept";
        alone.runs[r].options.micro_steps = 1;
        alone.runs[r].stop_after = 3;
    }
    party_run(&first);
    assert_int_equal(zc_open(&c, &options), 0);
    await_destroyed(c, "kept");
    zc_close(c);
    party_run(&alone);
    party_run(&second);
    for (uint32_t r = 0; r < 4; r++)
        if (second.runs[r].rc != -EINVAL ||
            !strstr(second.runs[r].error, "the run that each node has this job of: rank 2 and "
                                          "rank 0 have different values"))
            fail_msg("rank %u: %d %s", r, second.runs[r].rc, second.runs[r].error);
    real_daemon_stop(&d);
    party_done(&first);
    party_done(&alone);
    party_done(&second);
}

/* A group's name has a suffix, which must fit; otherwise it would name another group's job. */
static void a_name_too_long_for_groups(void **state)
{
    static const struct {
        int bytes;
        uint32_t group_ranks;
        bool fits;
    } rows[] = {
        { 63, 0, true }, { 63, 4, true }, { 63, 2, false }, { 62, 2, false }, { 61, 2, true }
    };
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        char name[64];
        struct party p;

        memset(name, 'n', sizeof(name));
        name[rows[i].bytes] = '\0';
        groups_new(&p, &d, name);
        for (uint32_t r = 0; r < 4; r++) {
            p.runs[r].options.keep = false;
            p.runs[r].options.group_ranks = rows[i].group_ranks;
            p.runs[r].steps = 1;
        }
        party_run(&p);
        for (uint32_t r = 0; r < 4; r++)
            if (p.runs[r].rc != (rows[i].fits ? 0 : -EINVAL) ||
                !strstr(p.runs[r].error, rows[i].fits ? "" : "a job's name has at most 61 bytes"))
                fail_msg("row %zu, rank %u: %d %s", i, r, p.runs[r].rc, p.runs[r].error);
        party_done(&p);
    }
    real_daemon_stop(&d);
}

static void refusals_reach_every_rank(void **state)
{
    struct party p;
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "2M");
    for (int i = 0; i < 2; i++) {
        party_new(&p, 2, &d, ZC_ZERO_HOST, ZC_ZERO_HOST);
        if (i == 1)
            p.runs[0].options.resume = p.runs[1].options.resume = true;
        if (i == 1)
            p.runs[0].options.job = p.runs[1].options.job = "nobody";
        party_run(&p);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(p.runs[r].rc, i == 0 ? -ENOSPC : -ENOENT);
            assert_true(p.runs[r].ended_s - p.runs[r].begun_s < 2);
            print_message("rank %u: %s\n", r, p.runs[r].error);
        }
        party_done(&p);
    }
    real_daemon_stop(&d);
}

static void assert_ended(const struct party *p, uint32_t r, int rc, double since_s, double within_s)
{
    if (p->runs[r].rc != rc || p->runs[r].ended_s - since_s > within_s)
        fail_msg("rank %u ended with %d, %.3f s after: %s", r, p->runs[r].rc,
                 p->runs[r].ended_s - since_s, p->runs[r].error);
}

static void a_rank_that_dies(void **state)
{
    struct party p;
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    for (uint32_t after = 1; after < 8; after += 2) {
        party_new(&p, 3, &d, ZC_ZERO_HOST, ZC_ZERO_HOST);
        p.runs[1].stop_after = after;
        party_run(&p);
        assert_int_equal(p.runs[1].rc, -EINTR);
        for (uint32_t r = 0; r < 3; r += 2) {
            assert_ended(&p, r, -EOWNERDEAD, p.runs[1].ended_s, 2);
            assert_non_null(strstr(p.runs[r].error, "rank 1 of job"));
        }
        party_done(&p);
    }
    real_daemon_stop(&d); /* it still runs */
}

static struct real_daemon *victim;
static double killed_s;

static void kill_daemon(uint64_t step)
{
    if (step == 2) {
        killed_s = (double)zb_now_ns() * 1e-9;
        (void)kill(victim->pid, SIGKILL);
    }
}

static void stop_daemon(uint64_t step)
{
    if (step == 2) {
        killed_s = (double)zb_now_ns() * 1e-9;
        (void)kill(victim->pid, SIGSTOP);
    }
}

static void a_daemon_that_dies(void **state)
{
    struct party p;
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    victim = &d;
    party_new(&p, 2, &d, ZC_ZERO_HOST, ZC_ZERO_HOST);
    p.runs[0].before_step = kill_daemon;
    party_run(&p);
    for (uint32_t r = 0; r < 2; r++) {
        assert_ended(&p, r, -ENOTCONN, killed_s, 2);
        assert_true(p.runs[r].error[0]);
    }
    print_message("%s\n", p.runs[0].error);
    assert_int_equal(waitpid(d.pid, NULL, 0), d.pid);
    party_done(&p);
}

static void a_daemon_that_hangs(void **state)
{
    struct party p;
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    victim = &d;
    party_new(&p, 2, &d, ZC_ZERO_HOST, ZC_ZERO_HOST);
    p.runs[0].before_step = stop_daemon;
    p.runs[0].options.timeout_ms = p.runs[1].options.timeout_ms = 300;
    party_run(&p);
    for (uint32_t r = 0; r < 2; r++)
        assert_ended(&p, r, -ETIMEDOUT, killed_s, 2);
    print_message("%s\n", p.runs[0].error);
    real_daemon_kill(&d);
    party_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_changes_nothing), cmocka_unit_test(accumulated_before_the_push),
        cmocka_unit_test(a_ring_of_gradients),       cmocka_unit_test(one_bad_gradient_skips_all),
        cmocka_unit_test(a_kept_job_goes_on),        cmocka_unit_test(groups_are_jobs),
        cmocka_unit_test(groups_of_two_runs),        cmocka_unit_test(a_name_too_long_for_groups),
        cmocka_unit_test(refusals_reach_every_rank), cmocka_unit_test(a_rank_that_dies),
        cmocka_unit_test(a_daemon_that_dies),        cmocka_unit_test(a_daemon_that_hangs),
    };

    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
