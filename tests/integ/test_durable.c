/*
 * What survives: commits, restarts of the daemon, other worlds, takeovers. Everything that a job
 * holds is read before and after, every byte of every plane, and compared.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

/* ---- the tests */

/* Steps follow a commit, then the daemon is killed: the job returns to the commit. */
static void a_killed_daemon(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct sv_dump at[SV_STEPS_MAX] = { 0 };

        print_message("%s\n", sv_places[p].name);
        sv_begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 6; k++) {
            sv_step(ranks, 2, k, k == 2 || k == 3 || k == 5 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            sv_dump_take(&at[k], ranks, 2);
        }
        for (unsigned w = 0; w < SV_WHATS; w++) /* steps do change the compared values */
            assert_memory_not_equal(at[5].values[1][w], at[6].values[1][w], 4096);
        zi_kill(&d);
        sv_hang_up(ranks, 2);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(ranks, 2, &d, p, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 5);
        assert_int_equal(ranks[1].place.applied, 5);
        sv_dump_same("after the kill", &at[5], ranks, 2);
        sv_step(ranks, 2, 6, ZC_COMMIT_NO); /* the lost step, again */
        sv_dump_same("the same step again", &at[6], ranks, 2);
        sv_step(ranks, 2, 7, ZC_COMMIT_STEP);
        sv_dump_take(&at[7], ranks, 2);
        zi_kill(&d);
        sv_hang_up(ranks, 2);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(ranks, 2, &d, p, true, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 7);
        sv_dump_same("after the second kill", &at[7], ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        for (unsigned k = 0; k < SV_STEPS_MAX; k++)
            sv_dump_free(&at[k]);
    }
}

/* A daemon that ends with SIGTERM loses no step, even while ranks train. */
static void an_ended_daemon(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct sv_dump at = { 0 };

        print_message("%s\n", sv_places[p].name);
        sv_begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 4; k++)
            sv_step(ranks, 2, k, k == 2 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
        sv_dump_take(&at, ranks, 2);
        zi_end(&d);
        sv_hang_up(ranks, 2);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(ranks, 2, &d, p, false, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 4);
        sv_dump_same("after the end", &at, ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        sv_dump_free(&at);
    }
}

/* One world saves, another resumes: from disk, and from the memory of a running daemon. */
static void other_worlds(void **state)
{
    static const unsigned worlds[] = { 2, 1, 3, 4, 2 };

    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        struct zi_rank ranks[SV_WORLD_MAX];
        struct zi_daemon d = { 0 };
        struct sv_dump at = { 0 };
        uint64_t k = 0;

        print_message("%s\n", sv_places[p].name);
        sv_begin(ranks, worlds[0], &d, p);
        for (unsigned i = 0; i + 1 < ZB_COUNT(worlds); i++) {
            sv_step(ranks, worlds[i], ++k, ZC_COMMIT_STEP);
            if (i % 2 == 1) /* the newest step is in memory only */
                sv_step(ranks, worlds[i], ++k, ZC_COMMIT_NO);
            sv_dump_take(&at, ranks, worlds[i]);
            if (i % 2 == 0) {
                zi_kill(&d);
                sv_hang_up(ranks, worlds[i]);
                zi_start_again(&d, sv_options);
            } else {
                zi_close(ranks, worlds[i]);
            }
            assert_int_equal(sv_attach(ranks, worlds[i + 1], &d, p, false, NULL), 0);
            assert_int_equal(ranks[0].place.iterations, k);
            sv_dump_same("in another world", &at, ranks, worlds[i + 1]);
        }
        zi_close(ranks, worlds[ZB_COUNT(worlds) - 1]);
        zi_stop(&d);
        sv_dump_free(&at);
    }
}

/* The trainers die, the daemon goes on: its memory is newer than the commit. Both are points to
 * resume from. */
static void trainers_that_die(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        const uint64_t four = 4, two = 2, three = 3;
        struct zi_rank ranks[2];
        struct zi_daemon d = { 0 };
        struct sv_dump at[SV_STEPS_MAX] = { 0 };

        print_message("%s\n", sv_places[p].name);
        sv_begin(ranks, 2, &d, p);
        for (uint64_t k = 1; k <= 4; k++) {
            sv_step(ranks, 2, k, k == 2 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            sv_dump_take(&at[k], ranks, 2);
        }
        sv_hang_up(ranks, 2);
        assert_int_equal(sv_attach(ranks, 2, &d, p, true, &four), 0);
        assert_int_equal(ranks[0].job.npoints, 2);
        assert_int_equal(ranks[0].job.points[0].kind, ZC_POINT_MEMORY);
        assert_int_equal(ranks[0].job.points[0].iterations, 4);
        assert_int_equal(ranks[0].job.points[1].kind, ZC_POINT_COMMITTED);
        assert_int_equal(ranks[0].job.points[1].iterations, 2);
        sv_dump_same("from memory", &at[4], ranks, 2);
        sv_hang_up(ranks, 2);
        assert_int_equal(sv_attach(ranks, 2, &d, p, true, &three), -ENOENT);
        sv_hang_up(ranks, 2);
        assert_int_equal(sv_attach(ranks, 2, &d, p, true, &two), 0);
        assert_int_equal(ranks[1].place.iterations, 2);
        sv_dump_same("from the commit", &at[2], ranks, 2);
        sv_step(ranks, 2, 3, ZC_COMMIT_NO);
        sv_dump_same("step 3 again", &at[3], ranks, 2);
        zi_close(ranks, 2);
        zi_stop(&d);
        for (unsigned k = 0; k < SV_STEPS_MAX; k++)
            sv_dump_free(&at[k]);
    }
}

/* Two phases: a prepared version survives together with the commit, until it is resolved. */
static void two_phases(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        const uint64_t two = 2, three = 3;
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct sv_dump at[SV_STEPS_MAX] = { 0 };
        struct zc_point point;

        print_message("%s\n", sv_places[p].name);
        sv_begin(&r, 1, &d, p);
        sv_step(&r, 1, 1, ZC_COMMIT_PREPARE);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 1, 0, &point), 0);
        sv_step(&r, 1, 2, ZC_COMMIT_PREPARE);
        sv_dump_take(&at[2], &r, 1);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
        assert_int_equal(point.iterations, 2);
        sv_step(&r, 1, 3, ZC_COMMIT_PREPARE);
        sv_dump_take(&at[3], &r, 1);
        /* the daemon is killed before that: both versions are there */
        for (unsigned i = 0; i < 2; i++) {
            zi_kill(&d);
            sv_hang_up(&r, 1);
            zi_start_again(&d, sv_options);
            assert_int_equal(sv_attach(&r, 1, &d, p, true, i == 0 ? &two : &three), 0);
            assert_int_equal(r.job.npoints, 2);
            assert_int_equal(r.job.points[0].iterations, 3);
            assert_int_equal(r.job.points[1].iterations, 2);
            sv_dump_same("a prepared state", &at[i == 0 ? 2 : 3], &r, 1);
        }
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), -ENOENT);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 3, 0, &point), 0);
        sv_step(&r, 1, 4, ZC_COMMIT_PREPARE);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_DROP, 4, 0, &point), 0);
        assert_int_equal(point.iterations, 3);
        sv_step(&r, 1, 5, ZC_COMMIT_NO);
        zi_kill(&d);
        sv_hang_up(&r, 1);
        zi_start_again(&d, sv_options);
        assert_int_equal(sv_attach(&r, 1, &d, p, true, NULL), 0);
        assert_int_equal(r.place.iterations, 3);
        sv_dump_same("what was dropped", &at[3], &r, 1);
        zi_close(&r, 1);
        zi_stop(&d);
        for (unsigned k = 0; k < SV_STEPS_MAX; k++)
            sv_dump_free(&at[k]);
    }
}

/* A job's first prepared version is dropped: the job is like one that never committed. */
static void a_first_that_is_dropped(void **state)
{
    struct zi_rank r;
    struct zi_daemon d = { 0 };
    struct zc_point point;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    sv_step(&r, 1, 1, ZC_COMMIT_PREPARE);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_DROP, 1, 0, &point), 0);
    sv_step(&r, 1, 2, ZC_COMMIT_PREPARE);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
    assert_int_equal(point.iterations, 2);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* The same after the ranks have attached again: nothing is left to resume from, and the daemon says
 * so. */
static void a_first_that_is_dropped_on_return(void **state)
{
    struct zi_rank r;
    struct zi_daemon d = { 0 };
    struct zc_job_options o;
    struct zc_point point;
    int rc;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    sv_step(&r, 1, 1, ZC_COMMIT_PREPARE);
    zi_kill(&d);
    sv_hang_up(&r, 1);
    zi_start_again(&d, sv_options);
    o = sv_job(1);
    o.attach = true;
    o.world = 1;
    assert_int_equal(zi_open(&r, &d, &o), 0);
    zi_define(&r, sv_units, SV_UNITS, 1);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_DROP, 1, 0, &point), 0);
    rc = zc_ready_wait(r.c, r.job.id, NULL, ZI_WAIT_MS, &r.place);
    assert_int_equal(rc, -ENOENT);
    assert_non_null(strstr(zc_error(r.c), "nothing to resume from"));
    sv_hang_up(&r, 1);
    sv_open(&r, 1, &d, 1); /* its name is free */
    zi_close(&r, 1);
    zi_stop(&d);
}

/* Commits on request, then destroys the job: every byte is free, before and after a restart. */
static void on_request_and_destroyed(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct zc_client *c;
        struct zc_point point;

        sv_begin(&r, 1, &d, p);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), 0);
        sv_step(&r, 1, 1, ZC_COMMIT_NO);
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
            zi_start_again(&d, sv_options);
            c = zi_client(&d);
        }
        assert_int_equal(zc_job_destroy_wait(c, "job"), 0);
        assert_int_equal(zc_job_destroy_wait(c, "job"), -ENOENT);
        zc_close(c);
        (void)zi_await_used(&d, ZB_MIB / SV_BUFFER * SV_BUFFER, 0);
        zi_stop(&d);
    }
}

/* A rank that was disconnected by a takeover is told, and can do nothing more. */
static void taken_over(void **state)
{
    struct zi_rank old[2], fresh[2];
    struct zi_daemon d = { 0 };
    struct zc_point point;

    (void)state;
    sv_begin(old, 2, &d, 1);
    sv_step(old, 2, 1, ZC_COMMIT_STEP);
    assert_int_equal(sv_attach(fresh, 2, &d, 1, true, NULL), 0);
    assert_true(fresh[0].job.epoch > old[0].job.epoch);
    zi_pump(old, 2, 20);
    for (unsigned r = 0; r < 2; r++) {
        assert_int_equal(old[r].event_code, -ESTALE);
        assert_true(zc_commit_wait(old[r].c, old[r].job.id, ZC_COMMIT_STEP, 1, 0, &point) < 0);
    }
    sv_step(fresh, 2, 2, ZC_COMMIT_STEP);
    sv_hang_up(old, 2);
    zi_pump(fresh, 2, 20);
    sv_step(fresh, 2, 3, ZC_COMMIT_STEP);
    zi_close(fresh, 2);
    zi_stop(&d);
}

/* Ranks that hang while they attach: others take over, and need not wait until they are gone. */
static void half_attached(void **state)
{
    struct zc_job_options o = sv_job(1);
    struct zi_rank ranks[2], half;
    struct zi_daemon d = { 0 };
    struct sv_dump at = { 0 };

    (void)state;
    sv_begin(ranks, 2, &d, 1);
    sv_step(ranks, 2, 1, ZC_COMMIT_STEP);
    sv_dump_take(&at, ranks, 2);
    zi_kill(&d);
    sv_hang_up(ranks, 2);
    zi_start_again(&d, sv_options);
    o.attach = true;
    o.world = 2;
    assert_int_equal(zi_open(&half, &d, &o), 0);
    zi_define(&half, sv_units, SV_UNITS, 2);
    assert_int_equal(sv_attach(ranks, 2, &d, 1, true, NULL), 0);
    zi_pump(&half, 1, 20);
    assert_int_equal(half.event_code, -ESTALE);
    sv_dump_same("taken over", &at, ranks, 2);
    sv_step(ranks, 2, 2, ZC_COMMIT_STEP);
    zc_close(half.c);
    sv_step(ranks, 2, 3, ZC_COMMIT_STEP);
    zi_close(ranks, 2);
    zi_stop(&d);
    sv_dump_free(&at);
}

/* Two kept jobs, and memory for one: a job without ranks gives way, and loses nothing. */
static void taking_turns(void **state)
{
    static const char *const small[] = { "--host-bytes",
                                         "4M",
                                         "--nvme-bytes",
                                         "24M",
                                         "--page-elems",
                                         "8192",
                                         "--ring-bytes",
                                         "1M",
                                         "--timeout-ms",
                                         "5000",
                                         NULL };
    static const char *const names[] = { "one", "two" };
    struct zc_job_options o = sv_job(0);
    struct zi_daemon d = { 0 };
    struct sv_dump at[2] = { 0 };
    struct zi_rank r, other;

    (void)state;
    zi_start(&d, small);
    for (unsigned round = 0; round < 6; round++) {
        unsigned i = round % 2;

        o.name = names[i];
        o.world = 1;
        o.attach = round >= 2;
        assert_int_equal(zi_open(&r, &d, &o), 0);
        zi_define(&r, sv_units, SV_UNITS, 1);
        assert_int_equal(zi_ready(&r, 1), 0);
        if (round < 2)
            sv_fill(&r, 1);
        else
            sv_dump_same("its turn again", &at[i], &r, 1);
        assert_int_equal(r.place.iterations, round / 2 * 2);
        /* the first step commits; the second is in memory only, until the job has to give way */
        sv_step(&r, 1, round / 2 * 2 + 1, ZC_COMMIT_STEP);
        sv_step(&r, 1, round / 2 * 2 + 2, ZC_COMMIT_NO);
        sv_dump_take(&at[i], &r, 1);
        o.name = "three"; /* while ranks are attached, there is no room */
        o.attach = false;
        o.staging_bytes = 3 * ZB_MIB;
        assert_int_equal(zi_open(&other, &d, &o), -ENOSPC);
        o.staging_bytes = sv_job(0).staging_bytes;
        zc_close(other.c);
        zi_close(&r, 1);
    }
    zi_stop(&d);
    sv_dump_free(&at[0]);
    sv_dump_free(&at[1]);
}

/* The daemon's options, with some replaced. */
static const char **options_with(const char *ring_bytes, const char *nvme_bytes)
{
    static const char *options[16];

    for (unsigned i = 0; (options[i] = sv_options[i]) != NULL; i++)
        ;
    options[7] = ring_bytes;
    if (nvme_bytes)
        options[SV_OPTION_NVME] = nvme_bytes;
    return options;
}

#define ONE_BUFFER "98304"

/* Writes a unit once more, page by page, up to the first refusal; returns its rc. */
static int write_again(struct zi_rank *r, unsigned u, float value)
{
    uint64_t page = zc_server(r->c)->page_elems, count = r->ranges[u].count;
    float *staged = r->job.staging;

    for (uint64_t first = 0; first < count; first += page) {
        uint64_t n = zb_min_u64(page, count - first);
        int rc;

        for (uint64_t i = 0; i < n; i++)
            staged[i] = value;
        rc = zc_write_wait(r->c, r->shards[u], ZC_MASTER, first, n, staged);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Values may be written after a commit, too: there are places for one more version of trained
 * units, and of no others. Written values are saved although no step was made. */
static void written_again(void **state)
{
    (void)state;
    for (unsigned p = 0; p < SV_PLACES; p++) {
        const char **options = options_with(ONE_BUFFER, NULL);
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct sv_dump at = { 0 };
        struct zc_point point;

        print_message("%s\n", sv_places[p].name);
        zi_start(&d, options);
        sv_open(&r, 1, &d, p);
        sv_step(&r, 1, 1, ZC_COMMIT_PREPARE);
        assert_int_equal(write_again(&r, 1, 7), -EBUSY); /* there is no room for a third version */
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 1, 0, &point), 0);
        sv_step(&r, 1, 2, ZC_COMMIT_PREPARE);
        for (unsigned u = 0; u < SV_UNITS; u++)
            assert_int_equal(write_again(&r, u, 7), -EBUSY);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 2, 0, &point), 0);
        assert_int_equal(write_again(&r, 2, 7), -EINVAL); /* frozen */
        for (unsigned u = 0; u < SV_UNITS; u++)
            if (u != 2)
                assert_int_equal(write_again(&r, u, 8), 0);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 2, 0, &point), 0);
        sv_dump_take(&at, &r, 1);
        zi_kill(&d);
        sv_hang_up(&r, 1);
        zi_start_again(&d, options);
        assert_int_equal(sv_attach(&r, 1, &d, p, true, NULL), 0);
        sv_dump_same("written again", &at, &r, 1);
        assert_int_equal(write_again(&r, 4, 9), 0);
        sv_dump_take(&at, &r, 1);
        zi_end(&d);
        sv_hang_up(&r, 1);
        zi_start_again(&d, options);
        assert_int_equal(sv_attach(&r, 1, &d, p, true, NULL), 0);
        sv_dump_same("written before the end", &at, &r, 1);
        sv_step(&r, 1, 3, ZC_COMMIT_STEP);
        zi_close(&r, 1);
        zi_stop(&d);
        sv_dump_free(&at);
    }
}

/* The daemon ends while a step waits for a pinned shard: the step before is saved. */
static void ended_before_a_step(void **state)
{
    struct zc_step step = {
        .step = 3, .scale = 1, .groups = sv_groups, .ngroups = SV_GROUPS, .timeout_ms = 15000
    };
    struct zi_rank r;
    struct zi_daemon d = { 0 };
    struct zc_view view;
    struct zc_stepped stepped;
    struct zi_call call;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    sv_step(&r, 1, 2, ZC_COMMIT_NO);
    sv_push(&r, 1, 3);
    assert_int_equal(zc_fetch_wait(r.c, &r.shards[1], 1, 0, ZI_FETCH_MS, &view), 0);
    call = ZI_CALL(&r);
    assert_int_equal(zc_step(r.c, r.job.id, &step, &stepped, zi_done, &call), 0);
    zi_pump(&r, 1, 20);
    assert_false(call.over);
    zi_end(&d);
    sv_hang_up(&r, 1);
    zi_start_again(&d, sv_options);
    assert_int_equal(sv_attach(&r, 1, &d, 1, true, NULL), 0);
    assert_int_equal(r.place.iterations, 2);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* Two jobs that just fitted, and a daemon that then takes more for pages in flight. The job that
 * finds room goes on, and does not use the other's places. */
static void less_room_than_before(void **state)
{
    struct zi_rank r, other;
    struct zi_daemon d = { 0 };
    char nvme[32];

    (void)state;
    zi_start(&d, options_with(ONE_BUFFER, NULL));
    sv_open(&r, 1, &d, 1);
    (void)snprintf(nvme, sizeof(nvme), "%llu",
                   (unsigned long long)(zi_used(&d, "nvme") * 9 / 4 / 65536 * 65536));
    zi_close(&r, 1);
    zi_stop(&d);
    zi_start(&d, options_with(ONE_BUFFER, nvme));
    sv_open(&r, 1, &d, 1);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    sv_name = "other";
    sv_open(&other, 1, &d, 1);
    sv_step(&other, 1, 1, ZC_COMMIT_STEP);
    zi_kill(&d);
    sv_hang_up(&r, 1);
    sv_hang_up(&other, 1);
    zi_start_again(&d, options_with("1M", nvme));
    assert_int_equal(sv_attach(&other, 1, &d, 1, true, NULL), -ENOSPC);
    sv_hang_up(&other, 1);
    sv_name = "job";
    assert_int_equal(sv_attach(&r, 1, &d, 1, true, NULL), 0);
    for (uint64_t k = 2; k <= 6; k++)
        sv_step(&r, 1, k, k % 3 == 0 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* More streamed pages than the daemon handles between two looks at its clock: all of them are loaded. */
static void many_pages(void **state)
{
    static const char *const options[] = { "--host-bytes", "32M",          "--nvme-bytes",
                                           "64M",          "--page-elems", "4096",
                                           "--ring-bytes", "1M",           NULL };
    const struct zc_unit *usual = sv_units;
    struct zc_unit units[SV_UNITS];
    struct sv_dump was = { 0 };
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    for (uint32_t u = 0; u < SV_UNITS; u++)
        units[u] =
            (struct zc_unit){ u, usual[u].name, 40 * 4096, ZC_BF16, ZC_F32, false, false, NULL, 0 };
    sv_units = units;
    zi_start(&d, options);
    sv_open(&r, 1, &d, 1);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    sv_dump_take(&was, &r, 1);
    zi_kill(&d);
    sv_hang_up(&r, 1);
    zi_start_again(&d, options);
    assert_int_equal(sv_attach(&r, 1, &d, 1, true, NULL), 0);
    sv_dump_same("after the kill", &was, &r, 1);
    sv_step(&r, 1, 2, ZC_COMMIT_NO);
    zi_close(&r, 1);
    zi_stop(&d);
    sv_dump_free(&was);
    sv_units = usual;
}

/* A job is destroyed while its first commit is in progress: it does not come back. */
static void destroyed_in_a_commit(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    zi_start(&d, sv_options);
    for (unsigned i = 0; i < 20; i++) {
        struct zc_point point;
        struct zi_call call;
        struct zi_rank r;
        uint64_t until = zb_now_ns() + i * 300000; /* at various moments of it */
        int rc;

        sv_open(&r, 1, &d, i % 2);
        c = zi_client(&d);
        call = ZI_CALL(&r);
        assert_int_equal(zc_commit(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point, zi_done, &call), 0);
        while (zb_now_ns() < until)
            zi_pump(&r, 1, 0);
        sv_hang_up(&r, 1);
        do
            rc = zc_job_destroy_wait(c, "job");
        while (rc == -EBUSY);
        assert_int_equal(rc, 0);
        rc = zc_job_destroy_wait(c, "job");
        assert_int_equal(rc, -ENOENT);
        (void)zi_await_used(&d, ZB_MIB / SV_BUFFER * SV_BUFFER, 0);
        assert_int_equal(zc_job_destroy_wait(c, "job"), -ENOENT);
        zc_close(c);
    }
    zi_stop(&d);
}

/* One rank attaches again alone and asks for an older step: its peer trains on, and keeps its
 * state. */
static void one_rank_cannot_rewind(void **state)
{
    struct zc_job_options o = sv_job(1);
    const uint64_t one = 1, two = 2;
    struct zi_rank ranks[2];
    struct zi_daemon d = { 0 };
    struct sv_dump at = { 0 };
    struct zi_call call;

    (void)state;
    sv_begin(ranks, 2, &d, 1);
    sv_step(ranks, 2, 1, ZC_COMMIT_STEP);
    sv_step(ranks, 2, 2, ZC_COMMIT_NO);
    sv_dump_take(&at, ranks, 2);
    for (unsigned i = 0; i < 2; i++) {
        sv_hang_up(&ranks[1], 1);
        o.attach = true;
        o.world = 2;
        o.rank = 1;
        assert_int_equal(zi_open(&ranks[1], &d, &o), 0);
        zi_define(&ranks[1], sv_units, SV_UNITS, 2);
        call = ZI_CALL(&ranks[1]);
        assert_int_equal(zc_ready(ranks[1].c, ranks[1].job.id, i == 0 ? &one : &two, ZI_WAIT_MS,
                                  &ranks[1].place, zi_done, &call),
                         0);
        assert_int_equal(zi_await(ranks, 2, &call), i == 0 ? -EBUSY : 0);
    }
    sv_dump_same("with its peer", &at, ranks, 2);
    sv_step(ranks, 2, 3, ZC_COMMIT_STEP);
    zi_close(ranks, 2);
    zi_stop(&d);
    sv_dump_free(&at);
}

static float moment(uint64_t element)
{
    return (float)(element % 31) / 31;
}

/* Restores masters, then moments, then the position; and checks what zctl shows while nobody is
 * attached. */
static void brought_from_elsewhere(void **state)
{
    (void)state;
    for (unsigned p = 0; p < ZB_COUNT(sv_places); p++) {
        struct zi_rank r;
        struct zi_daemon d = { 0 };
        struct sv_dump at = { 0 };
        struct zc_point point;
        struct zc_client *c;
        struct zc_job_row *jobs = NULL;
        struct zc_shard_row *shards = NULL;
        size_t n = 0;

        sv_begin(&r, 1, &d, p);
        for (unsigned u = 0; u < SV_UNITS; u++) {
            float *staged = r.job.staging;
            uint64_t page = zc_server(r.c)->page_elems, count = r.ranges[u].count;

            for (uint64_t first = 0; first < count; first += page) {
                uint64_t n_elems = zb_min_u64(page, count - first);

                for (uint64_t i = 0; i < n_elems; i++)
                    staged[i] = moment(first + i);
                for (unsigned w = ZC_EXP_AVG; w <= ZC_EXP_AVG_SQ; w++)
                    assert_int_equal(zc_write_wait(r.c, r.shards[u], w, first, n_elems, staged),
                                     sv_units[u].frozen ? -EINVAL : 0);
            }
        }
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 3, 4), -EINVAL);
        assert_int_equal(zc_progress_wait(r.c, r.job.id, UINT64_MAX, 0), -EINVAL);
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 5, 4), 0);
        assert_int_equal(zc_progress_wait(r.c, r.job.id, 6, 4), -EBUSY);
        assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 5, 0, &point), 0);
        sv_dump_take(&at, &r, 1);
        assert_true(at.values[1][2][33] == moment(33) && at.values[1][3][40] == moment(40));
        assert_true(at.values[1][1][50] == sv_value(50));
        zi_kill(&d);
        sv_hang_up(&r, 1);
        zi_start_again(&d, sv_options);
        c = zi_client(&d);
        assert_int_equal(zc_jobs_wait(c, NULL, &jobs, &n), 0);
        assert_int_equal(n, 1);
        assert_string_equal(jobs[0].state, "saved");
        assert_true(jobs[0].durable && jobs[0].committed && jobs[0].committed_applied == 4);
        zc_rows_free(jobs);
        assert_int_equal(zc_list_wait(c, "job", &shards, &n), 0);
        assert_int_equal(n, SV_UNITS);
        assert_string_equal(shards[4].unit, "u4");
        assert_string_equal(shards[4].tier, "nvme");
        zc_rows_free(shards);
        zc_close(c);
        assert_int_equal(sv_attach(&r, 1, &d, p, true, NULL), 0);
        assert_int_equal(r.place.iterations, 5);
        assert_int_equal(r.place.applied, 4);
        sv_dump_same("brought from elsewhere", &at, &r, 1);
        zi_close(&r, 1);
        zi_stop(&d);
        sv_dump_free(&at);
    }
}

static void refused(void **state)
{
    struct zi_rank r, other;
    struct zi_daemon d = { 0 };
    struct zc_job_options o = sv_job(0);
    struct zc_point point;

    (void)state;
    zi_start(&d, sv_options);
    o.world = 1;
    o.keep = false;
    assert_int_equal(zi_open(&r, &d, &o), -EINVAL); /* durable, but not kept */
    zc_close(r.c);
    o.keep = true;
    o.durable = false;
    zi_job(&r, 1, &d, &o, sv_units, SV_UNITS);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EAGAIN);
    sv_fill(&r, 1);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EINVAL);
    zi_close(&r, 1);
    o.name = "second";
    o.durable = true;
    zi_job(&r, 1, &d, &o, sv_units, SV_UNITS);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), -EAGAIN);
    sv_fill(&r, 1);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_STEP, 0, 0, &point), 0);
    zi_close(&r, 1);
    zi_end(&d);
    zi_start_again(&d, sv_options);
    assert_int_equal(zi_open(&r, &d, &o), -EEXIST); /* it is saved already */
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
    zi_define(&r, sv_units, SV_UNITS - 1, 1); /* one unit is missing */
    assert_int_equal(zi_ready(&r, 1), -EINVAL);
    sv_hang_up(&r, 1);
    o.world = 2;
    assert_int_equal(zi_open(&r, &d, &o), 0);
    o.world = 1;
    assert_int_equal(zi_open(&other, &d, &o), -EINVAL); /* differs from its peers */
    zc_close(other.c);
    sv_hang_up(&r, 1);
    zi_stop(&d);
}

/* A skipped step needs neither gradients nor values, but then nothing can be committed. */
static void nothing_to_commit(void **state)
{
    for (unsigned place = 0; place < SV_PLACES; place++) {
        struct zc_job_options o = sv_job(place);
        struct zc_stepped stepped = { 0 };
        struct zi_daemon d = { 0 };
        struct zi_rank r;

        (void)state;
        zi_start(&d, sv_options);
        zi_job(&r, 1, &d, &o, sv_units, SV_UNITS);
        assert_int_equal(zc_skip_wait(r.c, r.job.id, 1, ZC_COMMIT_STEP, 0, &stepped), 0);
        assert_int_equal(stepped.iterations, 1);
        assert_int_equal(stepped.commit_code, -EAGAIN);
        sv_fill(&r, 1);
        assert_int_equal(zc_skip_wait(r.c, r.job.id, 2, ZC_COMMIT_STEP, 0, &stepped), 0);
        assert_int_equal(stepped.commit_code, 0);
        zi_close(&r, 1);
        zi_stop(&d);
    }
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
        cmocka_unit_test_teardown(nothing_to_commit, zi_teardown),
        cmocka_unit_test_teardown(a_first_that_is_dropped_on_return, zi_teardown),
        cmocka_unit_test_teardown(on_request_and_destroyed, zi_teardown),
        cmocka_unit_test_teardown(taken_over, zi_teardown),
        cmocka_unit_test_teardown(half_attached, zi_teardown),
        cmocka_unit_test_teardown(taking_turns, zi_teardown),
        cmocka_unit_test_teardown(written_again, zi_teardown),
        cmocka_unit_test_teardown(ended_before_a_step, zi_teardown),
        cmocka_unit_test_teardown(many_pages, zi_teardown),
        cmocka_unit_test_teardown(less_room_than_before, zi_teardown),
        cmocka_unit_test_teardown(destroyed_in_a_commit, zi_teardown),
        cmocka_unit_test_teardown(one_rank_cannot_rewind, zi_teardown),
        cmocka_unit_test_teardown(brought_from_elsewhere, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
