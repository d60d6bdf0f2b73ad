/*
 * Fetches, steps, skips, norms and notes in a real daemon, when ranks and the ring block each
 * other. test_placement.c checks that every byte is right.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/zk.h"

#define PAGE    4096u
#define STAGING 65536u
#define SHARDS  5u
#define ELEMS   (2 * PAGE)
#define RING    3u /* places for shards of one size, for each rank */

static const char *const options[] = {
    "--host-bytes", "16M",          "--nvme-bytes", "16M", "--page-elems", "4096", "--ring-bytes",
    "1M",           "--timeout-ms", "120000",       NULL
};

static const struct zc_unit units[SHARDS] = {
    { 0, "u0", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 2, "u2", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 3, "u3", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 4, "u4", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 }
};

static float value(uint64_t element)
{
    return 1.0f + (float)element;
}

static float grad(uint64_t element)
{
    return (float)(element % 7) - 3.0f;
}

static struct zc_step step_of(uint64_t number)
{
    return (struct zc_step){ .step = number, .scale = 1, .groups = groups, .ngroups = 1 };
}

/* Opens a job of all units with initial values. streamed: its parameters are all on NVMe, and the
 * ring has RING places for each rank. */
static void job_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
                     bool streamed)
{
    uint64_t slice = zb_padded_elems(ELEMS) / world * sizeof(float);
    struct zc_job_options o = { .name = "job", .staging_bytes = STAGING, .groups = 1 };

    if (streamed)
        o.host_bytes_max = world * (STAGING + SHARDS * slice + RING * slice);
    zi_job(ranks, world, d, &o, units, SHARDS);
    assert_int_equal(ranks->place.ring_bytes, streamed ? world * RING * slice : 0);
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SHARDS; u++)
            zi_write_all(&ranks[r], u, value);
}

static void push_all(struct zi_rank *ranks, unsigned world, uint64_t step)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SHARDS; u++)
            zi_push_all(&ranks[r], u, step, grad);
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}

static void assert_view(const struct zc_view *view, const struct zi_rank *r, unsigned u)
{
    const float *at = view->data;

    assert_int_equal(view->bytes, r->ranges[u].count * sizeof(float));
    for (uint64_t i = 0; i < r->ranges[u].count; i++)
        if (at[i] != value(r->ranges[u].first + i))
            fail_msg("element %llu of unit %u is %g", (unsigned long long)i, u, (double)at[i]);
}

/* ---- fetches and the ring */

/* To make room for one shard, the daemon may drop another that the same fetch wants. */
static void a_fetch_of_what_it_evicts(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zc_view views[RING];
    uint64_t seed = 11;

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, true);
    for (unsigned u = 0; u < RING; u++) {
        assert_int_equal(zc_fetch_wait(r->c, &r->shards[u], 1, 0, 5000, views), 0);
        assert_int_equal(zc_release(r->c, &r->shards[u], 1), 0);
    }
    for (unsigned n = 0; n < 500; n++) {
        unsigned want[RING], nwant = n == 0 ? 2 : 1 + (unsigned)(ztest_random(&seed) % RING);
        uint64_t ids[RING];
        int rc;

        for (unsigned i = 0; i < nwant; i++) {
            want[i] = n == 0 ? 3 * i : (unsigned)(ztest_random(&seed) % SHARDS);
            ids[i] = r->shards[want[i]];
        }
        rc = zc_fetch_wait(r->c, ids, nwant, 0, 5000, views);
        if (rc < 0)
            fail_msg("fetch %u of %u shards: %d, %s", n, nwant, rc, zc_error(r->c));
        for (unsigned i = 0; i < nwant; i++)
            assert_view(&views[i], r, want[i]);
        assert_int_equal(zc_release(r->c, ids, nwant), 0);
    }
    zi_close(r, 1);
    zi_stop(&d);
}

static void a_ring_that_is_full(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call call;
    struct zc_view views[RING], late;
    struct zc_stepped stepped;

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, true);
    assert_int_equal(zc_fetch_wait(r->c, r->shards, RING, 0, 5000, views), 0);
    assert_int_equal(zc_fetch_wait(r->c, &r->shards[RING], 1, 0, 100, &late), -ETIMEDOUT);
    assert_says(zc_error(r->c), "waits for room in the ring: rank 0 pins 3 shards");
    /* and leaves nothing that others would wait for */
    assert_int_equal(zc_skip_wait(r->c, r->job.id, 1, ZC_COMMIT_NO, 2000, &stepped), 0);
    call = ZI_CALL(r);
    assert_int_equal(zc_fetch(r->c, &r->shards[RING], 1, 0, 0, &late, zi_done, &call), 0);
    zi_pump(r, 1, 50);
    assert_false(call.over);
    for (unsigned i = 0; i < RING; i++) /* pinned shards stay as they are */
        assert_view(&views[i], r, i);
    assert_int_equal(zc_release(r->c, &r->shards[1], 1), 0);
    assert_int_equal(zi_await(r, 1, &call), 0);
    assert_view(&late, r, RING);
    assert_ptr_equal(late.data, views[1].data);
    assert_view(&views[0], r, 0);
    assert_view(&views[2], r, 2);
    zi_close(r, 1);
    zi_stop(&d);
}

/* Pins count: the second release ends the second fetch. */
static void pins_are_counted(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zc_view views[2];
    struct zc_shard_row *rows;
    uint64_t twice[2];
    size_t n;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, true);
    twice[0] = twice[1] = r[1].shards[0]; /* of the other rank, twice in one fetch */
    assert_int_equal(zc_fetch_wait(r[0].c, twice, 2, 0, 5000, views), 0);
    assert_ptr_equal(views[0].data, views[1].data);
    assert_int_equal(zc_fetch_wait(r[1].c, twice, 1, 0, 5000, views), 0);
    for (unsigned pins = 3; pins > 0; pins--) {
        assert_int_equal(zc_list_wait(r[1].c, "job", &rows, &n), 0);
        assert_int_equal(n, 2 * SHARDS);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(rows[i].pins, rows[i].id == twice[0] ? pins : 0);
        zc_rows_free(rows);
        assert_int_equal(zc_release(r[pins > 1 ? 0 : 1].c, twice, 1), 0);
        assert_int_equal(zc_ping_wait(r[0].c), 0);
        assert_int_equal(zc_ping_wait(r[1].c), 0);
    }
    push_all(r, 2, 1);
    zi_close(r, 2);
    zi_stop(&d);
}

/* ---- the step and what delays it */

static void ask(struct zi_rank *ranks, unsigned world, struct zi_call *calls,
                struct zc_stepped *stepped, uint64_t number, uint32_t timeout_ms)
{
    struct zc_step step = step_of(number);

    step.timeout_ms = timeout_ms;
    zi_step_ask(ranks, world, &step, false, stepped, calls);
}

static void a_step_waits_for_pins(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zi_call calls[2];
    struct zc_stepped stepped[2];
    struct zc_view view;
    char holder[64];

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, false);
    push_all(r, 2, 1);
    assert_int_equal(zc_fetch_wait(r[1].c, &r[0].shards[2], 1, 0, 5000, &view), 0);
    (void)snprintf(holder, sizeof(holder), "unit 'u2' is pinned by rank 1 (process %d)",
                   (int)getpid());
    ask(r, 2, calls, stepped, 1, 200);
    assert_int_equal(zi_await(r, 2, &calls[0]), -ETIMEDOUT);
    assert_int_equal(zi_await(r, 2, &calls[1]), -ETIMEDOUT);
    assert_says(calls[0].text, holder);
    assert_says(calls[1].text, holder);
    assert_view(&view, &r[0], 2); /* the step has not begun */
    ask(r, 2, calls, stepped, 1, 10000);
    zi_pump(r, 2, 50);
    assert_false(calls[0].over || calls[1].over);
    assert_view(&view, &r[0], 2);
    assert_int_equal(zc_release(r[1].c, &r[0].shards[2], 1), 0);
    assert_int_equal(zi_await(r, 2, &calls[0]), 0);
    assert_int_equal(zi_await(r, 2, &calls[1]), 0);
    assert_int_equal(stepped[0].iterations, 1);
    assert_int_equal(stepped[1].applied, 1);
    zi_close(r, 2);
    zi_stop(&d);
}

/* A fetch that has a part of its shards when the step is asked for gets the rest: the step waits
 * for its pins anyway. */
static void a_fetch_under_way_when_the_step_comes(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call fetch, step;
    struct zc_stepped stepped;
    struct zc_view views[2];
    uint64_t two[2];

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, true);
    for (uint64_t number = 1; number <= 20; number++) {
        push_all(r, 1, number);
        two[0] = r->shards[number % SHARDS];
        two[1] = r->shards[(number + 1 + number % 3) % SHARDS];
        assert_int_equal(zc_fetch_wait(r->c, two, 1, 0, 5000, views), 0); /* it is cached */
        assert_int_equal(zc_release(r->c, two, 1), 0);
        fetch = ZI_CALL(r);
        assert_int_equal(zc_fetch(r->c, two, 2, 0, 5000, views, zi_done, &fetch), 0);
        ask(r, 1, &step, &stepped, number, 5000);
        assert_int_equal(zi_await(r, 1, &fetch), 0);
        assert_int_equal(views[0].version, views[1].version);
        assert_int_equal(zc_release(r->c, two, 2), 0);
        assert_int_equal(zi_await(r, 1, &step), 0);
        assert_int_equal(stepped.applied, number);
    }
    zi_close(r, 1);
    zi_stop(&d);
}

/* Fetches of the next version are sent right after the step, and wait for it. */
static void fetches_behind_the_step(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call fetches[SHARDS], step;
    struct zc_stepped stepped;
    struct zc_view views[SHARDS];

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, true);
    for (uint64_t number = 1; number <= 20; number++) {
        push_all(r, 1, number);
        ask(r, 1, &step, &stepped, number, 10000);
        for (unsigned u = 0; u < SHARDS; u++) {
            fetches[u] = ZI_CALL(r);
            assert_int_equal(
                zc_fetch(r->c, &r->shards[u], 1, number, 10000, &views[u], zi_done, &fetches[u]),
                0);
        }
        for (unsigned left = SHARDS; left > 0; zi_pump(r, 1, 0)) {
            for (unsigned u = 0; u < SHARDS; u++) { /* in order of arrival */
                if (!fetches[u].over)
                    continue;
                assert_int_equal(fetches[u].rc, 0);
                assert_int_equal(views[u].version, number);
                assert_int_equal(zc_release(r->c, &r->shards[u], 1), 0);
                fetches[u].over = false;
                left--;
            }
        }
        assert_int_equal(zi_await(r, 1, &step), 0);
    }
    zi_close(r, 1);
    zi_stop(&d);
}

static void ranks_that_do_not_agree(void **state)
{
    static const struct zc_group other_groups[] = {
        { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.02 }
    };
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zi_call first = { 0 }, calls[2];
    struct zc_stepped stepped[2], ret;
    struct zc_step good = step_of(1), bad[5];

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, false);
    push_all(r, 2, 1);
    for (unsigned i = 0; i < ZB_COUNT(bad); i++)
        bad[i] = good;
    bad[0].scale = 2;
    bad[1].groups = other_groups;
    bad[2].commit = true;
    bad[3].step = 2;
    bad[4].scale = -0.0; /* nevertheless another value */
    good.timeout_ms = 10000;
    first = ZI_CALL(&r[0]);
    assert_int_equal(zc_step(r[0].c, r[0].job.id, &good, &stepped[0], zi_done, &first), 0);
    zi_pump(r, 2, 20);
    for (unsigned i = 0; i < ZB_COUNT(bad); i++) {
        assert_int_equal(zc_step_wait(r[1].c, r[1].job.id, &bad[i], &ret), -EINVAL);
        assert_says(zc_error(r[1].c),
                    i == 3 ? "step 1 comes next"
                           : "rank 1 asks for step 1 of job 'job' with different values");
    }
    assert_int_equal(zc_skip_wait(r[1].c, r[1].job.id, 1, ZC_COMMIT_NO, 0, &ret), -EINVAL);
    assert_says(zc_error(r[1].c), "with different values from its peers");
    zi_pump(r, 2, 20);
    assert_false(first.over);
    assert_int_equal(zc_step_wait(r[1].c, r[1].job.id, &good, &ret), 0);
    assert_int_equal(zi_await(r, 2, &first), 0);
    assert_int_equal(ret.applied, 1);

    /* a step that is not made */
    push_all(r, 2, 2);
    good = step_of(2);
    good.timeout_ms = 100;
    assert_int_equal(zc_step_wait(r[1].c, r[1].job.id, &good, &ret), -ETIMEDOUT);
    assert_says(zc_error(r[1].c), "step 2 of job 'job' waits for its ranks: 1 of 2 had asked");
    ask(r, 2, calls, stepped, 2, 10000);
    assert_int_equal(zi_await(r, 2, &calls[0]), 0);
    assert_int_equal(zi_await(r, 2, &calls[1]), 0);
    zi_close(r, 2);
    zi_stop(&d);
}

static const struct {
    const char *name;
    double scale;
    struct zc_group group;
    uint32_t ngroups;
} scalar_cases[] = {
    { "an infinite scale",
      INFINITY,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "a scale that is none",
      NAN,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "a rate that is none",
      1,
      { .lr = NAN, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "beta1 of 1",
      1,
      { .lr = 0.1, .beta1 = 1, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "a negative beta1",
      1,
      { .lr = 0.1, .beta1 = -0.1, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "beta2 of 1", 1, { .lr = 0.1, .beta1 = 0.9, .beta2 = 1, .eps = 1e-8, .weight_decay = 0 }, 1 },
    { "beta2 that is none",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = NAN, .eps = 1e-8, .weight_decay = 0 },
      1 },
    { "a negative eps",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = -1, .weight_decay = 0 },
      1 },
    { "an infinite eps",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = INFINITY, .weight_decay = 0 },
      1 },
    { "an infinite decay",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = INFINITY },
      1 },
    { "no groups",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      0 },
    { "more groups than the job has",
      1,
      { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 },
      2 },
};

static void scalars(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zc_stepped ret;
    struct zc_step good = step_of(1);

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, false);
    push_all(r, 1, 1);
    for (size_t i = 0; i < ZB_COUNT(scalar_cases); i++) {
        struct zc_group two[2] = { scalar_cases[i].group, scalar_cases[i].group };
        struct zc_step bad = { .step = 1,
                               .scale = scalar_cases[i].scale,
                               .groups = two,
                               .ngroups = scalar_cases[i].ngroups };

        if (zc_step_wait(r->c, r->job.id, &bad, &ret) != -EINVAL)
            fail_msg("%s: '%s'", scalar_cases[i].name, zc_error(r->c));
    }
    assert_int_equal(zc_step_wait(r->c, r->job.id, &good, &ret), 0);
    zi_close(r, 1);
    zi_stop(&d);
}

/* ---- skips, notes, norms, ready */

static void skips(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zc_stepped ret;
    struct zc_step step = step_of(3);
    struct zc_view view;

    (void)state;
    zi_start(&d, options);
    job_open(r, 1, &d, false);
    assert_int_equal(zc_skip_wait(r->c, r->job.id, 2, ZC_COMMIT_NO, 0, &ret), -EINVAL);
    assert_int_equal(zc_skip_wait(r->c, r->job.id, 1, ZC_COMMIT_NO, 0, &ret),
                     0); /* there is no gradient */
    assert_int_equal(ret.iterations, 1);
    assert_int_equal(ret.applied, 0);
    push_all(r, 1, 2);
    assert_int_equal(zc_fetch_wait(r->c, r->shards, 1, 0, 0, &view), 0);
    assert_int_equal(zc_skip_wait(r->c, r->job.id, 2, ZC_COMMIT_NO, 0, &ret),
                     0); /* pins are allowed */
    assert_int_equal(ret.iterations, 2);
    assert_int_equal(ret.applied, 0);
    assert_view(&view, r, 0);
    assert_int_equal(zc_release(r->c, r->shards, 1), 0);
    assert_int_equal(zc_skip_wait(r->c, r->job.id, 2, ZC_COMMIT_NO, 0, &ret), -EEXIST);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &step, &ret), -EBUSY); /* no gradient */
    push_all(r, 1, 3);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &step, &ret), 0);
    assert_int_equal(ret.iterations, 3);
    assert_int_equal(ret.applied, 1);
    assert_int_equal(zc_fetch_wait(r->c, r->shards, 1, 1, 0, &view), 0);
    assert_int_equal(view.version, 1);
    zi_close(r, 1);
    zi_stop(&d);
}

static void note_fill(uint8_t *note, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        note[i] = (uint8_t)(seed + i * 7 + i / 251);
}

static void assert_note(struct zi_rank *r, bool of_job, size_t bytes, unsigned seed)
{
    static uint8_t want[ZC_NOTE_MAX], got[ZC_NOTE_MAX];
    size_t n = 0;

    assert_int_equal(zc_note_get_wait(r->c, r->job.id, of_job, got, &n), 0);
    assert_int_equal(n, bytes);
    note_fill(want, bytes, seed);
    assert_memory_equal(got, want, bytes);
}

static void notes(void **state)
{
    static const size_t sizes[] = { 0, 1, 32767, 32768, 32769, 65535, 65536 };
    static uint8_t note[ZC_NOTE_MAX + 1];
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zi_call calls[2];
    struct zc_stepped stepped[2];
    size_t n;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, false);
    assert_int_equal(zc_note_get_wait(r[0].c, r[0].job.id, false, note, &n), -ENOENT);
    assert_int_equal(zc_note_get_wait(r[1].c, r[1].job.id, true, note, &n), -ENOENT);
    assert_int_equal(zc_note_put_wait(r[1].c, r[1].job.id, true, note, 5), -EPERM);
    assert_says(zc_error(r[1].c), "rank 0");
    assert_int_equal(zc_note_put_wait(r[0].c, r[0].job.id, false, note, ZC_NOTE_MAX + 1), -EINVAL);
    for (unsigned i = 0; i < ZB_COUNT(sizes); i++) {
        for (unsigned rank = 0; rank < 2; rank++) {
            note_fill(note, sizes[i], 100 * rank + i + 1); /* replaced before the step */
            assert_int_equal(zc_note_put_wait(r[rank].c, r[rank].job.id, false, note, sizes[i]), 0);
            note_fill(note, sizes[i], 100 * rank + i);
            assert_int_equal(zc_note_put_wait(r[rank].c, r[rank].job.id, false, note, sizes[i]), 0);
        }
        note_fill(note, sizes[i], 200 + i);
        assert_int_equal(zc_note_put_wait(r[0].c, r[0].job.id, true, note, sizes[i]), 0);
        if (i > 0) /* until the step, the previous note is there */
            assert_note(&r[1], true, sizes[i - 1], 200 + i - 1);
        for (unsigned rank = 0; rank < 2; rank++) {
            calls[rank] = ZI_CALL(&r[rank]);
            assert_int_equal(zc_skip(r[rank].c, r[rank].job.id, i + 1, ZC_COMMIT_NO, 0,
                                     &stepped[rank], zi_done, &calls[rank]),
                             0);
        }
        assert_int_equal(zi_await(r, 2, &calls[0]), 0);
        assert_int_equal(zi_await(r, 2, &calls[1]), 0);
        for (unsigned rank = 0; rank < 2; rank++) {
            assert_note(&r[rank], false, sizes[i], 100 * rank + i);
            assert_note(&r[rank], true, sizes[i], 200 + i);
        }
    }
    zi_close(r, 2);
    zi_stop(&d);
}

static float grad_of_seven(uint64_t element)
{
    return 1e-3f * (float)(element % 1013) - 0.3f;
}

static float grad_with_holes(uint64_t element)
{
    return element == 5 ? NAN : element == 4096 + 7 ? -INFINITY : grad_of_seven(element);
}

/* The sum of every rank's part is the sum of all, to the bit; nonfinite values are counted. */
static void norms(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    const struct zk_ops *ops;
    struct zk_xsum sum = { 0 };
    uint8_t want[ZK_XSUM_BYTES];
    struct zc_norm parts[2];
    struct zc_stepped stepped[2];
    struct zi_call calls[2];
    float block[ZB_BLOCK_ELEMS];
    uint64_t nonfinite = 0;

    (void)state;
    zi_start(&d, options);
    job_open(r, 2, &d, false);
    for (unsigned rank = 0; rank < 2; rank++)
        for (unsigned u = 0; u < SHARDS; u++)
            zi_push_all(&r[rank], u, 1, grad_of_seven);
    assert_int_equal(zk_select("ref", &ops, NULL), 0);
    for (unsigned u = 0; u < SHARDS; u++)
        for (uint64_t at = 0; at < ELEMS; at += ZB_BLOCK_ELEMS) {
            for (uint64_t i = 0; i < ZB_BLOCK_ELEMS; i++)
                block[i] = grad_of_seven(at + i);
            zk_xsum_add(&sum, ops->sumsq(block, ZB_BLOCK_ELEMS, &nonfinite));
        }
    zk_xsum_store(&sum, want);
    for (unsigned rank = 0; rank < 2; rank++)
        assert_int_equal(zc_norms_wait(r[rank].c, r[rank].job.id, 1, &parts[rank]), 0);
    zc_norm_merge(&parts[1], &parts[0]);
    assert_memory_equal(parts[1].sum_of_squares, want, sizeof(want));
    assert_int_equal(parts[1].nonfinite, 0);
    assert_true(zc_norm_value(&parts[1]) == sqrt(zk_xsum_value(&sum)));

    for (unsigned rank = 0; rank < 2; rank++) {
        calls[rank] = ZI_CALL(&r[rank]);
        assert_int_equal(zc_skip(r[rank].c, r[rank].job.id, 1, ZC_COMMIT_NO, 0, &stepped[rank],
                                 zi_done, &calls[rank]),
                         0);
    }
    assert_int_equal(zi_await(r, 2, &calls[0]), 0);
    assert_int_equal(zi_await(r, 2, &calls[1]), 0);
    for (unsigned rank = 0; rank < 2; rank++)
        for (unsigned u = 0; u < SHARDS; u++)
            zi_push_all(&r[rank], u, 2, grad_with_holes);
    for (unsigned rank = 0; rank < 2; rank++)
        assert_int_equal(zc_norms_wait(r[rank].c, r[rank].job.id, 2, &parts[rank]), 0);
    assert_int_equal(parts[0].nonfinite, SHARDS); /* element 5 of each unit */
    assert_int_equal(parts[1].nonfinite, SHARDS); /* element 4103 */
    zi_close(r, 2);
    zi_stop(&d);
}

/* A push that is sent after a read of the gradient does not affect that read. */
static void a_read_before_a_push(void **state)
{
    enum { PAGES = 48, COUNT = PAGES * PAGE };
    static const struct zc_unit unit = {
        .name = "u", .elems = COUNT, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "job",
                                .staging_bytes = 2 * COUNT * sizeof(float),
                                .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call read, push;
    struct zc_norm norm;
    float *ones, *got;

    (void)state;
    zi_start(&d, options);
    zi_job(r, 1, &d, &o, &unit, 1);
    ones = r->job.staging;
    got = ones + COUNT;
    zi_write_all(r, 0, value);
    for (uint32_t micro = 0; micro < 200; micro++) {
        struct zc_push p = { .shard = r->shards[0],
                             .step = 1,
                             .micro = micro,
                             .add = micro > 0,
                             .dtype = ZC_F32,
                             .count = COUNT,
                             .staged = ones };

        for (unsigned i = 0; micro == 0 && i < COUNT; i++)
            ones[i] = 1;
        read = ZI_CALL(r);
        push = ZI_CALL(r);
        if (micro > 0)
            assert_int_equal(zc_read(r->c, r->shards[0], ZC_GRAD, 0, COUNT, got, zi_done, &read),
                             0);
        assert_int_equal(zc_push(r->c, &p, zi_done, &push), 0);
        if (micro > 0)
            assert_int_equal(zi_await(r, 1, &read), 0);
        for (unsigned i = 0; micro > 0 && i < COUNT; i++)
            if (got[i] != (float)micro)
                fail_msg("element %u is %g before micro-step %u", i, (double)got[i], micro);
        assert_int_equal(zi_await(r, 1, &push), 0);
    }
    assert_int_equal(zc_norms_wait(r->c, r->job.id, 1, &norm), 0);
    assert_true(zc_norm_value(&norm) == sqrt(200.0 * 200.0 * COUNT));
    zi_close(r, 1);
    zi_stop(&d);
}

static void a_rank_that_is_not_ready(void **state)
{
    struct zc_job_options o = { .name = "job", .world = 2, .staging_bytes = STAGING, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];

    (void)state;
    zi_start(&d, options);
    for (o.rank = 0; o.rank < 2; o.rank++) {
        assert_int_equal(zi_open(&r[o.rank], &d, &o), 0);
        zi_define(&r[o.rank], units, SHARDS, 2);
    }
    assert_int_equal(zc_ready_wait(r[0].c, r[0].job.id, NULL, 100, &r[0].place), -ETIMEDOUT);
    assert_says(zc_error(r[0].c), "job 'job' waits for its ranks: 1 of 2 were ready");
    assert_int_equal(zi_ready(r, 2), 0);
    zi_close(r, 2);
    zi_stop(&d);
}

/* A rank may map the parameters writable only if it declared that its driver needs it. */
static void who_may_write_parameters(void **state)
{
    static const char *const small[] = { "--host-bytes", "64M", "--nvme-bytes", "0", NULL };
    static const struct zc_unit unit = {
        .name = "unit", .elems = 5000, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zi_daemon d = { 0 };

    (void)state;
    zi_start(&d, small);
    for (int writable = 0; writable < 2; writable++) {
        struct zc_job_options o = {
            .name = "job", .world = 1, .staging_bytes = 1 << 20, .groups = 1, .writable = writable
        };
        struct zi_rank r[1];
        void *arena;

        assert_int_equal(zi_open(r, &d, &o), 0);
        zi_define(r, &unit, 1, 1);
        assert_int_equal(zi_ready(r, 1), 0);
        arena = (void *)(uintptr_t)r->place.arena;
        assert_int_equal(mprotect(arena, r->place.arena_bytes, PROT_READ | PROT_WRITE),
                         writable ? 0 : -1);
        assert_true(writable || errno == EACCES);
        zi_close(r, 1);
    }
    zi_stop(&d);
}

/* A rank whose ready times out asks again while the job's memory is still being allocated. It gets
 * the arena when that is complete, and not before. */
static void ready_again_while_memory_is_made(void **state)
{
    static const char *const large[] = { "--host-bytes", "1G", "--nvme-bytes", "0", NULL };
    static const struct zc_unit unit = {
        .name = "large", .elems = 40 << 20, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "job", .world = 1, .staging_bytes = 1 << 20, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    unsigned late = 0;
    uint64_t used;
    int rc = 0;

    (void)state;
    zi_start(&d, large);
    used = zi_used(&d, "host");
    for (unsigned n = 0; n < 20 && late == 0; n++) {
        assert_int_equal(zi_open(r, &d, &o), 0);
        zi_define(r, &unit, 1, 1);
        for (;; late++) {
            rc = zc_ready_wait(r->c, r->job.id, NULL, late < 3 ? 1 : 20000, &r->place);
            if (rc != -ETIMEDOUT)
                break;
        }
        if (rc < 0)
            fail_msg("ready: %d, %s", rc, zc_error(r->c));
        assert_int_equal(r->place.arena_bytes, (40u << 20) * sizeof(float));
        assert_int_equal(zc_write_wait(r->c, r->shards[0], ZC_MASTER, 0,
                                       zc_server(r->c)->page_elems, r->job.staging),
                         0);
        zi_close(r, 1);
        (void)zi_await_used(&d, used, 0);
    }
    if (late == 0)
        print_message("the memory was always made in time: nothing was asked twice\n");
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_fetch_of_what_it_evicts, zi_teardown),
        cmocka_unit_test_teardown(a_ring_that_is_full, zi_teardown),
        cmocka_unit_test_teardown(pins_are_counted, zi_teardown),
        cmocka_unit_test_teardown(a_step_waits_for_pins, zi_teardown),
        cmocka_unit_test_teardown(a_fetch_under_way_when_the_step_comes, zi_teardown),
        cmocka_unit_test_teardown(fetches_behind_the_step, zi_teardown),
        cmocka_unit_test_teardown(ranks_that_do_not_agree, zi_teardown),
        cmocka_unit_test_teardown(scalars, zi_teardown),
        cmocka_unit_test_teardown(skips, zi_teardown),
        cmocka_unit_test_teardown(notes, zi_teardown),
        cmocka_unit_test_teardown(norms, zi_teardown),
        cmocka_unit_test_teardown(a_read_before_a_push, zi_teardown),
        cmocka_unit_test_teardown(a_rank_that_is_not_ready, zi_teardown),
        cmocka_unit_test_teardown(who_may_write_parameters, zi_teardown),
        cmocka_unit_test_teardown(ready_again_while_memory_is_made, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
