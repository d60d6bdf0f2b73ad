/*
 * What survives: commits, restarts of the daemon, other worlds, takeovers. What a job holds is read
 * before and after, every byte of every plane, and compared.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"

#define PAGE      4096u
#define UNITS     5u
#define WORLD_MAX 4u
#define STEPS_MAX 16u
#define STAGING   (512u << 10)
#define WHATS     4u
#define BUFFER    (8192 * ZI_BUFFER_BYTES) /* of --ring-bytes */

static const struct zc_tensor frozen[] = {
    { "frozen", 0, 1, { 3 * PAGE }, ZC_GROUP_FROZEN },
};

/* Odd sizes: less than a block, whole pages, pages and a tail; one that never changes. */
static const struct zc_unit units[UNITS] = {
    { 0, "u0", 7 * PAGE + 100, ZC_F32, ZC_F32, false, NULL, 0 },
    { 1, "u1", 12 * PAGE, ZC_BF16, ZC_F32, false, NULL, 0 },
    { 2, "u2", 3 * PAGE, ZC_F32, ZC_F32, true, frozen, 1 },
    { 3, "u3", 100, ZC_BF16, ZC_F32, false, NULL, 0 },
    { 4, "u4", 9 * PAGE + 1, ZC_BF16, ZC_F32, false, NULL, 0 },
};

static const enum zc_what whats[WHATS] = { ZC_PARAM, ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
static const struct zc_group groups[] = { { 0.1, 0.9, 0.99, 1e-8, 0.01 } };

/* Everything resident; all streamed but for the ring; and about half and half. */
static const struct {
    const char *name;
    uint64_t host_bytes_max;
    const char *io;
} places[] = {
    { "resident", 0, "uring" },
    { "streamed", 3 * ZB_MIB, "uring" },
    { "streamed, threads", 3 * ZB_MIB, "threads" },
    { "mixed", 4 * ZB_MIB, "uring" },
};

static const char *daemon_options[] = {
    "--host-bytes", "32M",          "--nvme-bytes", "24M",  "--page-elems", "8192", "--ring-bytes",
    "1M",           "--timeout-ms", "20000",        "--io", "uring",        NULL
};

/* What a job holds, by unit and element: whoever has it. */
struct dump {
    float *values[UNITS][WHATS];
};

static struct zc_job_options job_options(unsigned place)
{
    return (struct zc_job_options){ .name = "job",
                                    .staging_bytes = STAGING,
                                    .groups = 1,
                                    .keep = true,
                                    .durable = true,
                                    .host_bytes_max = places[place].host_bytes_max };
}

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 1000) / 7;
}

static uint64_t grad_step;

static float grad(uint64_t element)
{
    return (float)((element + 13 * grad_step) % 17) - 8.0f;
}

static void fill(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            if (ranks[r].shards[u])
                zi_write_all(&ranks[r], u, value);
}

static void step_commit(struct zi_rank *ranks, unsigned world, uint64_t number,
                        enum zc_commit commit)
{
    struct zc_step step = { .step = number,
                            .scale = 1,
                            .groups = groups,
                            .ngroups = 1,
                            .commit = commit,
                            .timeout_ms = 15000 };
    struct zc_stepped stepped[WORLD_MAX];
    struct zi_call calls[WORLD_MAX];

    grad_step = number;
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            if (ranks[r].shards[u] && !units[u].frozen)
                zi_push_all(&ranks[r], u, number, grad);
    for (unsigned r = 0; r < world; r++) {
        calls[r] = ZI_CALL(&ranks[r]);
        assert_int_equal(
            zc_step(ranks[r].c, ranks[r].job.id, &step, &stepped[r], zi_done, &calls[r]), 0);
    }
    for (unsigned r = 0; r < world; r++) {
        if (zi_await(ranks, world, &calls[r]) < 0)
            fail_msg("step %llu: %d, %s", (unsigned long long)number, calls[r].rc, calls[r].text);
        assert_int_equal(stepped[r].applied, number);
        if (stepped[r].commit_code != 0)
            fail_msg("commit of step %llu: %s", (unsigned long long)number, stepped[r].commit_text);
    }
}

/* Elements of a unit as they are stored: to the end of its last block. */
static uint64_t padded(unsigned u)
{
    return zb_padded_elems(units[u].elems);
}

static bool has(unsigned u, unsigned w)
{
    return !units[u].frozen || whats[w] == ZC_PARAM ||
           (whats[w] == ZC_MASTER && units[u].dtype == ZC_F32);
}

static void dump_free(struct dump *d)
{
    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned w = 0; w < WHATS; w++)
            free(d->values[u][w]);
    *d = (struct dump){ 0 };
}

static void dump_shard(struct dump *d, struct zi_rank *r, unsigned u, unsigned w)
{
    uint64_t page = zc_server(r->c)->page_elems, count = r->ranges[u].count;
    size_t bytes = whats[w] == ZC_PARAM && units[u].dtype == ZC_BF16 ? 2 : 4;

    for (uint64_t first = 0, n; first < count; first += n) {
        n = zb_min_u64(STAGING / 4 / page * page, count - first);
        if (zc_read_wait(r->c, r->shards[u], whats[w], first, n, r->job.staging) < 0)
            fail_msg("read unit %u: %s", u, zc_error(r->c));
        memcpy((char *)d->values[u][w] + (r->ranges[u].first + first) * bytes, r->job.staging,
               n * bytes);
    }
}

static void dump_take(struct dump *d, struct zi_rank *ranks, unsigned world)
{
    dump_free(d);
    for (unsigned u = 0; u < UNITS; u++) {
        for (unsigned w = 0; w < WHATS; w++) {
            if (!has(u, w))
                continue;
            d->values[u][w] = calloc(padded(u), sizeof(float));
            assert_non_null(d->values[u][w]);
            for (unsigned r = 0; r < world; r++)
                if (ranks[r].shards[u])
                    dump_shard(d, &ranks[r], u, w);
        }
    }
}

static void dump_same(const char *when, struct dump *was, struct zi_rank *ranks, unsigned world)
{
    struct dump now = { 0 };

    dump_take(&now, ranks, world);
    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned w = 0; w < WHATS; w++)
            if (has(u, w) &&
                memcmp(was->values[u][w], now.values[u][w], padded(u) * sizeof(float)) != 0)
                fail_msg("%s: unit %u, plane %u differs", when, u, w);
    dump_free(&now);
}

/* Every rank attaches, registers its slices and says where to go on. */
static int attach(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, unsigned place,
                  bool takeover, const uint64_t *at)
{
    struct zc_job_options o = job_options(place);
    struct zi_call calls[WORLD_MAX];
    int rc = 0;

    o.attach = true;
    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) {
        o.takeover = takeover && o.rank == 0;
        o.epoch = o.rank == 0 ? 0 : ranks[0].job.epoch;
        rc = zi_open(&ranks[o.rank], d, &o);
        if (rc < 0)
            fail_msg("attach: %d, %s", rc, zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], units, UNITS, world);
    }
    for (unsigned r = 0; r < world; r++) {
        calls[r] = ZI_CALL(&ranks[r]);
        assert_int_equal(zc_ready(ranks[r].c, ranks[r].job.id, at, ZI_WAIT_MS, &ranks[r].place,
                                  zi_done, &calls[r]),
                         0);
    }
    for (unsigned r = 0; r < world; r++)
        if (zi_await(ranks, world, &calls[r]) < 0) {
            rc = calls[r].rc;
            print_message("ready: %d, %s\n", rc, calls[r].text);
        }
    return rc;
}

static void hang_up(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++) {
        zc_close(ranks[r].c);
        ranks[r].c = NULL;
    }
}

static void begin(struct zi_rank *ranks, unsigned world, struct zi_daemon *d, unsigned place)
{
    const struct zc_job_options o = job_options(place);

    daemon_options[11] = places[place].io;
    zi_start(d, daemon_options);
    zi_job(ranks, world, d, &o, units, UNITS);
    fill(ranks, world);
}

/* ---- the tests */

/* Commits, then steps that are not: the daemon is killed, and what comes back is the commit. */
static void a_killed_daemon(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct dump at[STEPS_MAX] = { 0 };

        print_message("%s\n", places[p].name);
        begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 6; k++) {
            step_commit(ranks, 2, k, k == 2 || k == 3 || k == 5 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            dump_take(&at[k], ranks, 2);
        }
        zi_kill(&d);
        hang_up(ranks, 2);
        zi_start_again(&d, daemon_options);
        assert_int_equal(attach(ranks, 2, &d, p, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 5);
        assert_int_equal(ranks[1].place.applied, 5);
        dump_same("after the kill", &at[5], ranks, 2);
        step_commit(ranks, 2, 6, ZC_COMMIT_NO); /* the step that was lost, again */
        dump_same("the same step again", &at[6], ranks, 2);
        step_commit(ranks, 2, 7, ZC_COMMIT_STEP);
        dump_take(&at[7], ranks, 2);
        zi_kill(&d);
        hang_up(ranks, 2);
        zi_start_again(&d, daemon_options);
        assert_int_equal(attach(ranks, 2, &d, p, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 7);
        dump_same("after the second kill", &at[7], ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        for (unsigned k = 0; k < STEPS_MAX; k++)
            dump_free(&at[k]);
    }
}

/* An orderly end of the daemon costs no step, whoever still trains. */
static void an_ended_daemon(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct dump at = { 0 };

        print_message("%s\n", places[p].name);
        begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 4; k++)
            step_commit(ranks, 2, k, k == 2 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
        dump_take(&at, ranks, 2);
        zi_end(&d);
        hang_up(ranks, 2);
        zi_start_again(&d, daemon_options);
        assert_int_equal(attach(ranks, 2, &d, p, false, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 4);
        dump_same("after the end", &at, ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        dump_free(&at);
    }
}

/* Saved by one world, gone on by another: from disk, and from the memory of a daemon that lives. */
static void other_worlds(void **state)
{
    static const unsigned worlds[] = { 2, 1, 3, 4, 2 };

    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        struct zi_rank ranks[WORLD_MAX];
        struct zi_daemon d = { 0 };
        struct dump at = { 0 };
        uint64_t k = 0;

        print_message("%s\n", places[p].name);
        begin(ranks, worlds[0], &d, p);
        for (unsigned i = 0; i + 1 < ZB_COUNT(worlds); i++) {
            step_commit(ranks, worlds[i], ++k, ZC_COMMIT_STEP);
            if (i % 2 == 1) /* the newest step is in memory only */
                step_commit(ranks, worlds[i], ++k, ZC_COMMIT_NO);
            dump_take(&at, ranks, worlds[i]);
            if (i % 2 == 0) {
                zi_kill(&d);
                hang_up(ranks, worlds[i]);
                zi_start_again(&d, daemon_options);
            } else {
                zi_close(ranks, worlds[i]);
            }
            assert_int_equal(attach(ranks, worlds[i + 1], &d, p, false, NULL), 0);
            assert_int_equal(ranks[0].place.iterations, k);
            dump_same("in another world", &at, ranks, worlds[i + 1]);
        }
        zi_close(ranks, worlds[ZB_COUNT(worlds) - 1]);
        zi_stop(&d);
        dump_free(&at);
    }
}

/* The trainers die, the daemon lives: what is in memory is newer than the commit. Both are points
 * to go on from. */
static void trainers_that_die(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        const uint64_t four = 4, two = 2, three = 3;
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct dump at[STEPS_MAX] = { 0 };

        print_message("%s\n", places[p].name);
        begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 4; k++) {
            step_commit(ranks, 2, k, k == 2 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            dump_take(&at[k], ranks, 2);
        }
        hang_up(ranks, 2);
        assert_int_equal(attach(ranks, 2, &d, p, true, &four), 0);
        assert_int_equal(ranks[0].job.npoints, 2);
        assert_int_equal(ranks[0].job.points[0].kind, ZC_POINT_MEMORY);
        assert_int_equal(ranks[0].job.points[0].iterations, 4);
        assert_int_equal(ranks[0].job.points[1].kind, ZC_POINT_COMMITTED);
        assert_int_equal(ranks[0].job.points[1].iterations, 2);
        dump_same("from memory", &at[4], ranks, 2);
        hang_up(ranks, 2);
        assert_int_equal(attach(ranks, 2, &d, p, true, &three), -ENOENT);
        hang_up(ranks, 2);
        assert_int_equal(attach(ranks, 2, &d, p, true, &two), 0);
        assert_int_equal(ranks[1].place.iterations, 2);
        dump_same("from the commit", &at[2], ranks, 2);
        step_commit(ranks, 2, 3, ZC_COMMIT_NO);
        dump_same("step 3 again", &at[3], ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        for (unsigned k = 0; k < STEPS_MAX; k++)
            dump_free(&at[k]);
    }
}

/* Two phases: what is prepared survives beside the commit, until it is decided. */
static void two_phases(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        const uint64_t two = 2, three = 3;
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct dump at[STEPS_MAX] = { 0 };
        struct zc_point point;

        print_message("%s\n", places[p].name);
        begin(&r, 1, &d, p);
        step_commit(&r, 1, 1, ZC_COMMIT_PREPARE);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 1, 0, &point), 0);
        step_commit(&r, 1, 2, ZC_COMMIT_PREPARE);
        dump_take(&at[2], &r, 1);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
        assert_int_equal(point.iterations, 2);
        step_commit(&r, 1, 3, ZC_COMMIT_PREPARE);
        dump_take(&at[3], &r, 1);
        /* not decided: killed; both are there */
        for (unsigned i = 0; i < 2; i++) {
            zi_kill(&d);
            hang_up(&r, 1);
            zi_start_again(&d, daemon_options);
            assert_int_equal(attach(&r, 1, &d, p, true, i == 0 ? &two : &three), 0);
            assert_int_equal(r.job.npoints, 2);
            assert_int_equal(r.job.points[0].iterations, 3);
            assert_int_equal(r.job.points[1].iterations, 2);
            dump_same("a prepared state", &at[i == 0 ? 2 : 3], &r, 1);
        }
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), -ENOENT);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 3, 0, &point), 0);
        step_commit(&r, 1, 4, ZC_COMMIT_PREPARE);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_DROP, 4, 0, &point), 0);
        assert_int_equal(point.iterations, 3);
        step_commit(&r, 1, 5, ZC_COMMIT_NO);
        zi_kill(&d);
        hang_up(&r, 1);
        zi_start_again(&d, daemon_options);
        assert_int_equal(attach(&r, 1, &d, p, true, NULL), 0);
        assert_int_equal(r.place.iterations, 3);
        dump_same("what was dropped", &at[3], &r, 1);
        zi_close(&r, 1);
        zi_stop(&d);
        for (unsigned k = 0; k < STEPS_MAX; k++)
            dump_free(&at[k]);
    }
}

/* The first commit that ever was, dropped: the job is as one that never committed. */
static void a_first_that_is_dropped(void **state)
{
    struct zi_rank r;
    struct zi_daemon d = { 0 };
    struct zc_point point;

    (void)state;
    begin(&r, 1, &d, 1);
    step_commit(&r, 1, 1, ZC_COMMIT_PREPARE);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_DROP, 1, 0, &point), 0);
    step_commit(&r, 1, 2, ZC_COMMIT_PREPARE);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
    assert_int_equal(point.iterations, 2);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* On request, and destroyed: then every byte is free, before and after a restart. */
static void on_request_and_destroyed(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct zc_client *c;
        struct zc_point point;

        begin(&r, 1, &d, p);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), 0);
        step_commit(&r, 1, 1, ZC_COMMIT_NO);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EINVAL);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 1, 0, &point), 0);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 1, 0, &point), 0);
        assert_int_equal(point.iterations, 1);
        assert_int_equal(zc_job_destroy_wait(r.c, "job"), -EBUSY);
        zi_close(&r, 1);
        c = zi_client(&d);
        if (p % 2 == 0) {
            zc_close(c);
            zi_end(&d);
            zi_start_again(&d, daemon_options);
            c = zi_client(&d);
        }
        assert_int_equal(zc_job_destroy_wait(c, "job"), 0);
        assert_int_equal(zc_job_destroy_wait(c, "job"), -ENOENT);
        zc_close(c);
        (void)zi_await_used(&d, ZB_MIB / BUFFER * BUFFER, 0, 5000);
        zi_stop(&d);
    }
}

/* Who is cut off hears it, and can do nothing any more. */
static void taken_over(void **state)
{
    struct zi_rank old[2], fresh[2];
    struct zi_daemon d = { 0 };
    struct zc_point point;

    (void)state;
    begin(old, 2, &d, 1);
    step_commit(old, 2, 1, ZC_COMMIT_STEP);
    assert_int_equal(attach(fresh, 2, &d, 1, true, NULL), 0);
    assert_true(fresh[0].job.epoch > old[0].job.epoch);
    zi_pump(old, 2, 20);
    for (unsigned r = 0; r < 2; r++) {
        assert_int_equal(old[r].event_code, -ESTALE);
        assert_true(zc_commit_wait(old[r].c, old[r].job.id, ZC_COMMIT_STEP, 1, 0, &point) < 0);
    }
    step_commit(fresh, 2, 2, ZC_COMMIT_STEP);
    hang_up(old, 2);
    zi_pump(fresh, 2, 20);
    step_commit(fresh, 2, 3, ZC_COMMIT_STEP);
    zi_close(fresh, 2);
    zi_stop(&d);
}

/* Ranks that began to attach and hang: others take over, and need not wait until those are gone. */
static void half_attached(void **state)
{
    struct zc_job_options o = job_options(1);
    struct zi_rank ranks[2], half;
    struct zi_daemon d = { 0 };
    struct dump at = { 0 };

    (void)state;
    begin(ranks, 2, &d, 1);
    step_commit(ranks, 2, 1, ZC_COMMIT_STEP);
    dump_take(&at, ranks, 2);
    zi_kill(&d);
    hang_up(ranks, 2);
    zi_start_again(&d, daemon_options);
    o.attach = true;
    o.world = 2;
    assert_int_equal(zi_open(&half, &d, &o), 0);
    zi_define(&half, units, UNITS, 2);
    assert_int_equal(attach(ranks, 2, &d, 1, true, NULL), 0);
    zi_pump(&half, 1, 20);
    assert_int_equal(half.event_code, -ESTALE);
    dump_same("taken over", &at, ranks, 2);
    step_commit(ranks, 2, 2, ZC_COMMIT_STEP);
    zc_close(half.c);
    step_commit(ranks, 2, 3, ZC_COMMIT_STEP);
    zi_close(ranks, 2);
    zi_stop(&d);
    dump_free(&at);
}

static float moment(uint64_t element)
{
    return (float)(element % 31) / 31;
}

/* Masters, then moments, then where it stands; and what zctl sees of it when nobody has it. */
static void brought_from_elsewhere(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(places); p++) {
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct dump at = { 0 };
        struct zc_point point;
        struct zc_client *c;
        struct zc_job_row *jobs = NULL;
        struct zc_shard_row *shards = NULL;
        size_t n = 0;

        begin(&r, 1, &d, p);
        for (unsigned u = 0; u < UNITS; u++) {
            float *staged = r.job.staging;
            uint64_t page = zc_server(r.c)->page_elems, count = r.ranges[u].count;

            for (uint64_t first = 0; first < count; first += page) {
                uint64_t n_elems = zb_min_u64(page, count - first);

                for (uint64_t i = 0; i < n_elems; i++)
                    staged[i] = moment(first + i);
                for (unsigned w = ZC_EXP_AVG; w <= ZC_EXP_AVG_SQ; w++)
                    assert_int_equal(zc_write_wait(r.c, r.shards[u], w, first, n_elems, staged),
                                     units[u].frozen ? -EINVAL : 0);
            }
        }
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 3, 4), -EINVAL);
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 5, 4), 0);
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 6, 4), -EBUSY);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 5, 0, &point), 0);
        dump_take(&at, &r, 1);
        assert_true(at.values[1][2][33] == moment(33) && at.values[1][3][40] == moment(40));
        assert_true(at.values[1][1][50] == value(50));
        zi_kill(&d);
        hang_up(&r, 1);
        zi_start_again(&d, daemon_options);
        c = zi_client(&d);
        assert_int_equal(zc_jobs_wait(c, NULL, &jobs, &n), 0);
        assert_int_equal(n, 1);
        assert_string_equal(jobs[0].state, "saved");
        assert_true(jobs[0].durable && jobs[0].committed && jobs[0].committed_applied == 4);
        zc_rows_free(jobs);
        assert_int_equal(zc_list_wait(c, "job", &shards, &n), 0);
        assert_int_equal(n, UNITS);
        assert_string_equal(shards[4].unit, "u4");
        assert_string_equal(shards[4].tier, "nvme");
        zc_rows_free(shards);
        zc_close(c);
        assert_int_equal(attach(&r, 1, &d, p, true, NULL), 0);
        assert_int_equal(r.place.iterations, 5);
        assert_int_equal(r.place.applied, 4);
        dump_same("brought from elsewhere", &at, &r, 1);
        zi_close(&r, 1);
        zi_stop(&d);
        dump_free(&at);
    }
}

static void refused(void **state)
{
    struct zi_rank r, other;
    struct zi_daemon d = { 0 };
    struct zc_job_options o = job_options(0);
    struct zc_point point;

    (void)state;
    zi_start(&d, daemon_options);
    o.world = 1;
    o.keep = false;
    assert_int_equal(zi_open(&r, &d, &o), -EINVAL); /* durable, and not kept */
    zc_close(r.c);
    o.keep = true;
    o.durable = false;
    zi_job(&r, 1, &d, &o, units, UNITS);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EAGAIN);
    fill(&r, 1);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EINVAL);
    zi_close(&r, 1);
    o.name = "second";
    o.durable = true;
    zi_job(&r, 1, &d, &o, units, UNITS);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EAGAIN);
    fill(&r, 1);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), 0);
    zi_close(&r, 1);
    zi_end(&d);
    zi_start_again(&d, daemon_options);
    assert_int_equal(zi_open(&r, &d, &o), -EEXIST); /* it is saved */
    zc_close(r.c);
    o.attach = true;
    o.groups = 2;
    assert_int_equal(zi_open(&r, &d, &o), -EINVAL);
    zc_close(r.c);
    o.groups = 1;
    o.epoch = 77;
    assert_int_equal(zi_open(&r, &d, &o), -ESTALE);
    zc_close(r.c);
    o.epoch = 0;
    assert_int_equal(zi_open(&r, &d, &o), 0);
    zi_define(&r, units, UNITS - 1, 1); /* one unit is missing */
    assert_int_equal(zi_ready(&r, 1), -EINVAL);
    hang_up(&r, 1);
    o.world = 2;
    assert_int_equal(zi_open(&r, &d, &o), 0);
    o.world = 1;
    assert_int_equal(zi_open(&other, &d, &o), -EINVAL); /* not as its peers said */
    zc_close(other.c);
    hang_up(&r, 1);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_killed_daemon, zi_teardown),
        cmocka_unit_test_teardown(an_ended_daemon, zi_teardown),
        cmocka_unit_test_teardown(other_worlds, zi_teardown),
        cmocka_unit_test_teardown(trainers_that_die, zi_teardown),
        cmocka_unit_test_teardown(two_phases, zi_teardown),
        cmocka_unit_test_teardown(a_first_that_is_dropped, zi_teardown),
        cmocka_unit_test_teardown(on_request_and_destroyed, zi_teardown),
        cmocka_unit_test_teardown(taken_over, zi_teardown),
        cmocka_unit_test_teardown(half_attached, zi_teardown),
        cmocka_unit_test_teardown(brought_from_elsewhere, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
