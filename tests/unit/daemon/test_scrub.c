/* Every saved page is read, at a limited rate, whatever happens meanwhile. */
#include "tests/unit/daemon/saved_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvme/sim/engine_fault.h"

enum { STATUS, START, PAUSE, GO_ON, STOP };

#define FAST (UINT64_C(1) << 40)

struct report {
    char state[16];
    uint64_t bytes, total, bad, eta_ms, rate;
    char names[17][300];
    size_t n_names;
};

static int scrub_as(struct saved_world *s, unsigned c, uint32_t action, uint64_t rate,
                    struct report *ret)
{
    Zp__Scrub q = ZP__SCRUB__INIT;
    Zp__ScrubReply *r;

    q.action = action;
    q.rate_bytes = rate;
    answers[c].rc = NONE;
    ask(&s->w, c, zsd_scrub, &q);
    if (answers[c].rc != 0)
        return answers[c].rc;
    r = zp__scrub_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_non_null(r);
    *ret = (struct report){ .bytes = r->bytes,
                            .total = r->total_bytes,
                            .bad = r->bad_pages,
                            .eta_ms = r->eta_ms,
                            .rate = r->rate_bytes,
                            .n_names = r->n_bad };
    (void)snprintf(ret->state, sizeof(ret->state), "%s", r->state);
    for (size_t i = 0; i < r->n_bad; i++)
        (void)snprintf(ret->names[i], sizeof(ret->names[i]), "%s", r->bad[i]);
    zp__scrub_reply__free_unpacked(r, NULL);
    assert_true(ret->bytes <= ret->total);
    return 0;
}

static struct report scrub(struct saved_world *s, uint32_t action, uint64_t rate)
{
    struct report r;

    if (scrub_as(s, 0, action, rate, &r) != 0)
        fail_msg("%s", answers[0].text);
    return r;
}

/* Ticks every (simulated) 20 ms until the run has ended. */
static struct report scrub_over(struct saved_world *s)
{
    uint64_t now = zb_now_ns();
    struct report r = { 0 };

    for (int i = 0; i < 20000; i++) {
        zsd_core_tick(&s->w.daemon, now += 20000000);
        world_turn(&s->w);
        r = scrub(s, STATUS, 0);
        if (strcmp(r.state, "running") != 0)
            break;
        if (s->w.daemon.core->in_progress > 0)
            (void)usleep(50);
    }
    world_settle(&s->w);
    return r;
}

static void scrub_world(struct saved_world *s, enum zb_dtype dtype, uint64_t host_bytes)
{
    saved_open(s, host_bytes, dtype, 2);
    s->w.clients[0].conn.uid = geteuid(); /* the daemon's own user */
}

/* Client 0 is the owner of the job again, as world_close() needs. */
static void scrub_close(struct saved_world *s)
{
    s->w.clients[0].conn.uid = 1000;
    saved_close(s);
}

static void every_page_is_read(void **state)
{
    static const struct {
        enum zb_dtype dtype;
        uint64_t host_bytes, rate;
    } rows[] = {
        { ZB_F32, SAVED_HOST, FAST },
        { ZB_BF16, SAVED_HOST, 0 },
        { ZB_F32, SAVED_TIGHT, 0 },
        { ZB_BF16, SAVED_TIGHT, FAST },
        { ZB_BF16, SAVED_TIGHT, UINT64_C(4) << 20 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct saved_world s;
        struct report r;
        uint64_t bytes, buffer_bytes;

        scrub_world(&s, rows[i].dtype, rows[i].host_bytes);
        bytes = saved_job(&s)->committed->bytes;
        r = scrub(&s, STATUS, 0);
        assert_string_equal(r.state, "idle");
        r = scrub(&s, START, rows[i].rate);
        assert_string_equal(r.state, "running");
        assert_int_equal(r.total, bytes);
        r = scrub_over(&s);
        assert_string_equal(r.state, "done");
        assert_int_equal(r.bytes, bytes);
        assert_int_equal(r.total, bytes);
        assert_int_equal(r.bad, 0);
        assert_int_equal(s.w.daemon.stats.scrub_bytes, bytes);
        /* once more, with pages that are larger than our buffers */
        buffer_bytes = s.w.daemon.core->disk->buffer_bytes;
        s.w.daemon.core->disk->buffer_bytes = 4096;
        r = scrub(&s, START, FAST);
        assert_int_equal(r.bytes, 0);
        r = scrub_over(&s);
        assert_string_equal(r.state, "done");
        assert_int_equal(r.bytes, bytes);
        assert_int_equal(r.bad, 0);
        s.w.daemon.core->disk->buffer_bytes = buffer_bytes;
        scrub_close(&s);
    }
}

/* Damaged pages are counted, all of them, and the first ones are named. */
static void damage_is_found(void **state)
{
    static const unsigned counts[] = { 1, 5, 16, 20 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(counts); i++) {
        struct saved_world s;
        const struct zsd_version *v;
        struct report r;
        unsigned n = 0;

        scrub_world(&s, ZB_BF16, SAVED_TIGHT);
        v = saved_job(&s)->committed;
        for (uint32_t row = 0; row < v->nrows; row++)
            for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
                for (uint32_t page = 0; page < v->rows[row]->npages && n < counts[i]; page++, n++)
                    page_damage(&s, v->rows[row], p, page);
        assert_int_equal(n, counts[i]);
        (void)scrub(&s, START, FAST);
        r = scrub_over(&s);
        assert_string_equal(r.state, "done");
        assert_int_equal(r.bad, n);
        assert_int_equal(s.w.daemon.stats.scrub_bad_pages, n);
        assert_int_equal(r.n_names, n < 16 ? n : 16);
        assert_string_equal(r.names[0], "job 'j' unit 0, shard from element 0: page 0 of its "
                                        "parameters on NVMe is corrupt (checksum 0 differs)");
        assert_int_equal(r.bytes, r.total);
        assert_int_equal(scrub_as(&s, 1, STATUS, 0, &r), 0); /* another user: no names */
        assert_int_equal(r.bad, n);
        assert_int_equal(r.n_names, 0);

        scrub_close(&s);
    }
}

/* A page that cannot be read counts as bad, and the run goes on. */
static void devices_fail(void **state)
{
    struct zn_fault_plan plan = { .nth = 3, .nth_res = -EIO };
    struct saved_world s;
    struct report r;

    (void)state;
    scrub_world(&s, ZB_BF16, SAVED_TIGHT);
    assert_int_equal(zn_fault_install(s.w.daemon.engine, &plan), 0);
    (void)scrub(&s, START, FAST);
    r = scrub_over(&s);
    assert_string_equal(r.state, "done");
    assert_int_equal(r.bad, 1);
    assert_non_null(strstr(r.names[0], "Input/output error"));
    assert_int_equal(r.bytes, r.total);
    scrub_close(&s);
}

/* In no interval are more bytes read than the rate allows, plus one page. */
static void the_rate_is_kept(void **state)
{
    const uint64_t rate = UINT64_C(2) << 20, page = PAGE * 10, tick_ns = 20000000;
    struct saved_world s;
    struct report r;
    uint64_t now, ticks = 0, first = 0;

    (void)state;
    scrub_world(&s, ZB_BF16, SAVED_HOST);
    r = scrub(&s, START, rate);
    now = zb_now_ns();
    for (; strcmp(r.state, "running") == 0; ticks++) {
        zsd_core_tick(&s.w.daemon, now += tick_ns);
        world_settle(&s.w);
        r = scrub(&s, STATUS, 0);
        if (r.bytes > (ticks + 1) * tick_ns * rate / 1000000000u + page)
            fail_msg("%llu bytes after %llu ticks", (unsigned long long)r.bytes,
                     (unsigned long long)ticks + 1);
        first = ticks == 0 ? r.bytes : first;
    }
    assert_true(first > 0); /* it does not wait until the rate allows a whole page */
    assert_true(ticks * tick_ns * rate / 1000000000u < r.total + 4 * page); /* nor is it too slow */
    /* after a pause of the loop, nothing is made up for */
    r = scrub(&s, START, rate);
    zsd_core_tick(&s.w.daemon, now + UINT64_C(3600000000000));
    for (int i = 0; i < 50; i++)
        world_settle(&s.w);
    r = scrub(&s, STATUS, 0);
    assert_true(r.bytes <= rate / 10 + page);
    scrub_close(&s);
}

static void it_pauses_and_stops(void **state)
{
    struct saved_world s;
    struct report r;
    uint64_t now, bytes;

    (void)state;
    scrub_world(&s, ZB_BF16, SAVED_HOST);
    assert_int_equal(scrub_as(&s, 0, PAUSE, 0, &r), -EINVAL);
    assert_int_equal(scrub_as(&s, 0, GO_ON, 0, &r), -EINVAL);
    assert_int_equal(scrub_as(&s, 0, STOP, 0, &r), -EINVAL);
    assert_int_equal(scrub_as(&s, 0, 5, 0, &r), -EINVAL);
    assert_int_equal(scrub_as(&s, 0, START, 1000, &r), -EINVAL);
    for (uint32_t action = START; action <= STOP; action++)
        assert_int_equal(scrub_as(&s, 1, action, 0, &r), -EPERM);
    (void)scrub(&s, START, UINT64_C(2) << 20);
    assert_int_equal(scrub_as(&s, 0, START, 0, &r), -EBUSY);
    now = zb_now_ns();
    for (int i = 0; i < 10; i++) {
        zsd_core_tick(&s.w.daemon, now += 20000000);
        world_settle(&s.w);
    }
    r = scrub(&s, STATUS, 0);
    assert_true(r.eta_ms > 0);
    r = scrub(&s, PAUSE, 0);
    assert_string_equal(r.state, "paused");
    world_settle(&s.w); /* the page in progress */
    r = scrub(&s, STATUS, 0);
    assert_true(r.bytes > 0 && r.bytes < r.total);
    bytes = r.bytes;
    assert_int_equal(scrub_as(&s, 0, PAUSE, 0, &r), -EINVAL);
    assert_int_equal(scrub_as(&s, 0, START, 0, &r), -EBUSY);
    for (int i = 0; i < 10; i++) {
        zsd_core_tick(&s.w.daemon, now += 20000000);
        world_settle(&s.w);
    }
    r = scrub(&s, STATUS, 0);
    assert_int_equal(r.bytes, bytes);
    r = scrub(&s, GO_ON, FAST);
    assert_string_equal(r.state, "running");
    assert_int_equal(r.rate, FAST);
    r = scrub_over(&s);
    assert_string_equal(r.state, "done");
    assert_int_equal(r.bytes, saved_job(&s)->committed->bytes);

    (void)scrub(&s, START, UINT64_C(2) << 20);
    zsd_core_tick(&s.w.daemon, now += 20000000);
    world_turn(&s.w); /* a page is being read */
    r = scrub(&s, STOP, 0);
    assert_string_equal(r.state, "stopped");
    world_settle(&s.w);
    r = scrub_over(&s);
    assert_string_equal(r.state, "stopped");
    assert_true(r.bytes < r.total);
    scrub_close(&s);
}

/* Rows that are dropped while it runs are skipped, and it keeps no places in use: the job commits
 * on a device that has just enough room for it. */
static void jobs_go_on(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 40; turns += 3) {
        struct zb_needs filler = { 0 }, want = { 0 }, none = { 0 };
        struct saved_world s;
        struct report r;
        uint64_t now = zb_now_ns(), salt = 2;

        scrub_world(&s, ZB_BF16, SAVED_TIGHT);
        assert_int_equal(zb_needs_add(&want, 4096, zsd_map_free_bytes(s.w.daemon.core) / 4096), 0);
        assert_int_equal(zsd_promise_set(s.w.daemon.core, &filler, &want, NULL), 0);
        (void)scrub(&s, START, FAST);
        for (unsigned i = 0; i < turns; i++) {
            zsd_core_tick(&s.w.daemon, now += 20000000);
            world_turn(&s.w);
            (void)usleep(20);
        }
        saved_commit(&s, salt++);
        saved_commit(&s, salt++);
        r = scrub_over(&s);
        assert_string_equal(r.state, "done");
        assert_int_equal(r.bad, 0);
        assert_int_equal(r.bytes, r.total);
        assert_int_equal(zsd_promise_set(s.w.daemon.core, &filler, &none, NULL), 0);
        zb_needs_done(&filler);
        zb_needs_done(&want);
        (void)scrub(&s, START, FAST); /* and the job ends */
        for (unsigned i = 0; i < turns; i++) {
            zsd_core_tick(&s.w.daemon, now += 20000000);
            world_turn(&s.w);
            (void)usleep(20);
        }
        scrub_close(&s); /* destroys it */
    }
}

/* A saved page is read once, however many versions share it: the same row in two versions. */
static void shared_pages_are_read_once(void **state)
{
    struct saved_world s;
    struct zsd_saved *saved;
    struct zsd_version *v;
    struct report r;

    (void)state;
    scrub_world(&s, ZB_BF16, SAVED_HOST);
    saved = saved_job(&s);
    v = zsd_version_new(saved, 1, saved->committed->nrows);
    assert_non_null(v);
    for (uint32_t i = 0; i < v->nrows; i++)
        assert_int_equal(zsd_version_put(v, i, saved->committed->rows[i]), 0);
    saved->prepared = v;
    r = scrub(&s, START, FAST);
    assert_int_equal(r.total, v->bytes);
    r = scrub_over(&s);
    assert_int_equal(s.w.daemon.stats.scrub_bytes, v->bytes);
    saved->prepared = NULL;
    zsd_version_unref(v);

    /* another row, with the same pages */
    {
        struct zsd_row *was = saved->committed->rows[1], *row;

        row = zsd_row_new(1, &s.layout, was->first, was->count, was->page_elems);
        assert_non_null(row);
        for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++) {
            memcpy(row->planes[p].crcs, was->planes[p].crcs,
                   was->npages * was->planes[p].crcs_per_page * sizeof(uint32_t));
            for (uint32_t i = 0; i < was->npages; i++) {
                row->planes[p].extents[i] = was->planes[p].extents[i];
                zsd_extent_ref(s.w.daemon.core, was->planes[p].extents[i].at);
            }
        }
        v = zsd_version_new(saved, 1, 1);
        assert_non_null(v);
        v->rows[0] = row;
        saved->prepared = v;
        s.w.daemon.stats.scrub_bytes = 0;
        (void)scrub(&s, START, FAST);
        r = scrub_over(&s);
        assert_int_equal(r.bytes, r.total);
        assert_int_equal(s.w.daemon.stats.scrub_bytes, saved->committed->bytes);
        saved->prepared = NULL;
        zsd_version_unref(v);
    }
    scrub_close(&s);
}

/* The daemon ends during a run. */
static void the_daemon_ends(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 12; turns++) {
        struct saved_world s;
        uint64_t now = zb_now_ns();

        scrub_world(&s, ZB_F32, SAVED_TIGHT);
        (void)scrub(&s, START, turns % 2 == 0 ? FAST : 0);
        for (unsigned i = 0; i < turns; i++) {
            zsd_core_tick(&s.w.daemon, now += 20000000);
            world_turn(&s.w);
        }
        client_gone(&s.w, 0);
        saved_kill(&s);
    }
}

static void memory_runs_out(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct saved_world s;
        struct report r;
        int rc;

        scrub_world(&s, ZB_BF16, SAVED_TIGHT);
        alloc_fail(nth, 1);
        rc = scrub_as(&s, 0, START, FAST, &r);
        if (rc == 0) {
            r = scrub_over(&s);
            assert_string_equal(r.state, "done");
            assert_int_equal(r.bytes, r.total);
        } else {
            assert_int_equal(rc, -ENOMEM);
            r = scrub(&s, STATUS, 0);
            assert_string_equal(r.state, "idle");
        }
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        alloc_fail(0, 0);
        scrub_close(&s);
        assert_true(nth < 30);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_is_read),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(devices_fail),
        cmocka_unit_test(the_rate_is_kept),
        cmocka_unit_test(it_pauses_and_stops),
        cmocka_unit_test(jobs_go_on),
        cmocka_unit_test(shared_pages_are_read_once),
        cmocka_unit_test(the_daemon_ends),
        cmocka_unit_test(memory_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
