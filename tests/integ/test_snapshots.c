/*
 * Snapshots, rollback, clones: what they hold, byte for byte, across restarts and kills; how much
 * of the data file they take; what is refused.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

static int snapshot(struct zc_client *c, const char *name, uint32_t retain)
{
    const struct zc_snapshot s = { .job = sv_name, .name = name, .retain = retain };
    struct zc_snapshot_row row;

    return zc_snapshot_wait(c, &s, &row);
}

static size_t count(struct zc_client *c, const char *job)
{
    struct zc_snapshot_row *rows = NULL;
    size_t n = 0;

    assert_int_equal(zc_snapshots_wait(c, job, &rows, &n), 0);
    for (size_t i = 1; i < n; i++)
        assert_true(rows[i].iterations >= rows[i - 1].iterations);
    zc_rows_free(rows);
    return n;
}

/* Checks that everything adds up, and that df accounts for every byte. Returns the job's row. */
static struct zc_df_row sound(struct zc_client *c, const char *when)
{
    struct zc_message *problems = NULL;
    struct zc_df_row *rows = NULL, of_job = { 0 };
    struct zc_fsck fsck;
    struct zc_df df;
    uint64_t sum;
    size_t n = 0;

    if (zc_fsck_wait(c, &fsck, &problems, &n) < 0 || fsck.problems_total > 0)
        fail_msg("%s: %s", when, n > 0 ? problems[0].text : zc_error(c));
    zc_rows_free(problems);
    assert_int_equal(zc_df_wait(c, &df, &rows, &n), 0);
    sum = df.meta + df.free;
    for (size_t i = 0; i < n; i++) {
        sum += rows[i].committed + rows[i].prepared + rows[i].snapshots + rows[i].working +
               rows[i].reserved;
        if (strcmp(rows[i].job, sv_name) == 0)
            of_job = rows[i];
    }
    assert_int_equal(sum, df.total);
    assert_string_equal(rows[n - 1].job, "");
    assert_int_equal(rows[n - 1].working + rows[n - 1].reserved, 0);
    zc_rows_free(rows);
    return of_job;
}

static void restart(struct zi_daemon *d, struct zc_client **c, bool killed)
{
    zc_close(*c);
    if (killed)
        zi_kill(d);
    else
        zi_end(d);
    zi_start_again(d, sv_options);
    *c = zi_client(d);
    (void)sound(*c, "after a restart");
}

static void dumps_free(struct sv_dump *at)
{
    for (unsigned k = 0; k < SV_STEPS_MAX; k++)
        sv_dump_free(&at[k]);
}

/* Rolls back to a snapshot, and trains on from there. A clone of another snapshot trains on, and
 * the original is unchanged. */
static void back_and_on(void **state)
{
    (void)state;
    for (unsigned p = 0; p < SV_PLACES; p++) {
        struct zi_rank ranks[2], copy[1];
        struct zi_daemon d = { 0 };
        struct sv_dump at[SV_STEPS_MAX] = { 0 };
        struct zc_snapshot_row row;
        struct zc_client *c;

        print_message("%s\n", sv_places[p].name);
        sv_begin(ranks, 2, &d, p);
        c = zi_client(&d);
        for (uint64_t k = 1; k <= 7; k++) {
            sv_step(ranks, 2, k, k < 7 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            sv_dump_take(&at[k], ranks, 2);
            (void)sound(c, "while it trains");
            if (k == 2)
                assert_int_equal(snapshot(c, NULL, 0), 0);
            if (k == 4)
                assert_int_equal(snapshot(c, "four", 0), 0);
        }
        assert_int_equal(zc_rollback_wait(c, sv_name, "step-2", &row), -EBUSY);
        zi_close(ranks, 2);
        if (p % 2 == 0)
            restart(&d, &c, p == 0);
        assert_int_equal(count(c, sv_name), 2);

        assert_int_equal(zc_rollback_wait(c, sv_name, "step-2", &row), 0);
        assert_int_equal(row.iterations, 2);
        assert_string_equal(row.name, "step-2");
        if (p % 2 == 1)
            restart(&d, &c, p == 1);
        assert_int_equal(sv_attach(ranks, 2, &d, p, false, NULL), 0);
        assert_int_equal(ranks[0].place.iterations, 2);
        sv_dump_same("rolled back", &at[2], ranks, 2);
        for (uint64_t k = 3; k <= 5; k++) {
            sv_step(ranks, 2, k, k == 5 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            sv_dump_same("on from there", &at[k], ranks, 2);
        }

        assert_int_equal(zc_clone_wait(c, sv_name, "four", "copy", &row), 0);
        assert_int_equal(row.iterations, 4);
        assert_string_equal(row.job, "copy");
        assert_int_equal(zc_clone_wait(c, sv_name, NULL, "copy", &row), -EEXIST);
        sv_name = "copy";
        assert_int_equal(sv_attach(copy, 1, &d, p, false, NULL), 0);
        sv_dump_same("the clone", &at[4], copy, 1);
        for (uint64_t k = 5; k <= 8; k++) {
            sv_step(copy, 1, k, k == 6 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
            if (k < 8)
                sv_dump_same("the clone trains on", &at[k], copy, 1);
        }
        sv_name = "job";
        (void)sound(c, "a clone");
        sv_dump_same("the original", &at[5], ranks, 2);
        sv_step(ranks, 2, 6, ZC_COMMIT_STEP);
        sv_dump_same("the original trains on", &at[6], ranks, 2);
        zi_close(copy, 1);
        zi_close(ranks, 2);

        /* both lose their memory, and snapshots are unchanged */
        assert_int_equal(zc_rollback_wait(c, "copy", NULL, &row), 0);
        assert_int_equal(row.iterations, 6);
        assert_int_equal(zc_rollback_wait(c, sv_name, "four", &row), 0);
        (void)sound(c, "two rollbacks");
        assert_int_equal(sv_attach(ranks, 1, &d, p, false, NULL), 0);
        sv_dump_same("the snapshot", &at[4], ranks, 1);
        zi_close(ranks, 1);
        assert_int_equal(zc_snapshot_destroy_wait(c, sv_name, "four"), 0);
        assert_int_equal(zc_snapshot_destroy_wait(c, sv_name, "four"), -ENOENT);
        assert_int_equal(zc_job_destroy_wait(c, sv_name), 0);
        sv_name = "copy";
        assert_int_equal(sv_attach(ranks, 2, &d, p, false, NULL), 0);
        sv_dump_same("without its original", &at[6], ranks, 2);
        zi_close(ranks, 2);
        assert_int_equal(zc_job_destroy_wait(c, "copy"), 0);
        sv_name = "job";
        (void)sound(c, "nothing is left");
        zc_close(c);
        (void)zi_await_used(&d, ZB_MIB / SV_BUFFER * SV_BUFFER, 0);
        zi_stop(&d);
        dumps_free(at);
    }
}

/* A hundred snapshots, of which three are retained: they take three versions, whatever comes and
 * goes. */
static void retained(void **state)
{
    const struct zc_snapshot next = { .job = "job", .retain = 3 };
    struct zc_snapshot_row row, *rows = NULL;
    struct zi_daemon d = { 0 };
    struct zc_df_row df;
    struct zc_client *c;
    struct zi_rank r;
    uint64_t step = 0;
    size_t n = 0;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    c = zi_client(&d);
    for (unsigned i = 0; i < 100; i++) {
        sv_step(&r, 1, ++step, ZC_COMMIT_STEP);
        assert_int_equal(zc_snapshot_wait(c, &next, &row), 0);
        assert_int_equal(row.iterations, step);
        if (i % 20 == 0)
            (void)sound(c, "snapshots come and go");
    }
    sv_step(&r, 1, ++step, ZC_COMMIT_STEP);
    assert_int_equal(zc_snapshots_wait(c, "job", &rows, &n), 0);
    assert_int_equal(n, 3);
    df = sound(c, "a hundred snapshots");
    assert_int_equal(df.committed, row.bytes);
    assert_int_equal(df.prepared + df.working + df.shared, 0);
    /* frozen units are in the commit already */
    assert_int_equal(df.snapshots, rows[0].own_bytes + rows[1].own_bytes + rows[2].own_bytes);
    assert_int_equal(rows[2].bytes - rows[2].own_bytes, 3 * 4096 * sizeof(float));
    zc_rows_free(rows);
    zi_close(&r, 1);
    restart(&d, &c, true);
    df = sound(c, "after the kill");
    assert_int_equal(df.committed, row.bytes);
    assert_int_equal(df.working, 0);
    assert_int_equal(zc_job_destroy_wait(c, "job"), 0);
    zc_close(c);
    (void)zi_await_used(&d, ZB_MIB / SV_BUFFER * SV_BUFFER, 0);
    zi_stop(&d);
}

/* The daemon is killed at random points of snapshots, clones, rollbacks and steps: what is there
 * afterwards is complete and unchanged. */
static void killed(void **state)
{
    const char *seed_text = getenv("ZSHARD_SEED"), *rounds_text = getenv("ZSHARD_ROUNDS");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : 1;
    unsigned rounds = rounds_text ? (unsigned)strtoul(rounds_text, NULL, 0) : 12;
    struct sv_dump at[SV_STEPS_MAX] = { 0 };
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    struct zi_rank r;
    uint64_t step = 0;

    (void)state;
    sv_begin(&r, 1, &d, 3);
    c = zi_client(&d);
    for (unsigned i = 1; i < SV_STEPS_MAX; i++) {
        sv_step(&r, 1, i, ZC_COMMIT_STEP);
        sv_dump_take(&at[i], &r, 1);
        if (i == 1)
            assert_int_equal(snapshot(c, NULL, 0), 0);
    }
    zi_close(&r, 1);
    for (unsigned round = 0; round < rounds; round++) {
        struct zc_snapshot_row row[3], *rows = NULL;
        struct zi_rank asks = { .c = c };
        struct zi_call calls[3];
        size_t n = 0;
        const struct zc_snapshot take = { .job = "job", .retain = 2 };

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        for (unsigned k = 0; k < 3; k++)
            calls[k] = ZI_CALL(NULL);
        /* two of these fail when the daemon dies: their answers do not matter */
        (void)zc_snapshot(c, &take, &row[0], zi_done, &calls[0]);
        (void)zc_clone(c, "job", NULL, "copy", &row[1], zi_done, &calls[1]);
        (void)zc_rollback(c, "job", round % 3 == 2 ? "step-1" : NULL, &row[2], zi_done, &calls[2]);
        zi_pump(&asks, 1, 0);
        usleep((unsigned)(seed >> 33) % 12000);
        restart(&d, &c, true);
        assert_int_equal(zc_snapshots_wait(c, "job", &rows, &n), 0);
        assert_true(n >= 1 && n <= 2);
        if (zc_job_destroy_wait(c, "copy") == 0)
            (void)sound(c, "without the clone");
        assert_int_equal(sv_attach(&r, 1, &d, 3, false, NULL), 0);
        step = r.place.iterations;
        assert_true(step >= 1 && step < SV_STEPS_MAX);
        sv_dump_same("the commit", &at[step], &r, 1);
        zi_close(&r, 1);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(zc_rollback_wait(c, "job", rows[i].name, &row[0]), 0);
            assert_int_equal(sv_attach(&r, 1, &d, 3, false, NULL), 0);
            sv_dump_same(rows[i].name, &at[rows[i].iterations], &r, 1);
            if (r.place.iterations + 1 < SV_STEPS_MAX) {
                step = r.place.iterations + 1;
                sv_step(&r, 1, step, ZC_COMMIT_STEP);
                sv_dump_same("a step", &at[step], &r, 1);
            }
            zi_close(&r, 1);
        }
        zc_rows_free(rows);
        (void)sound(c, "after all that");
    }
    zc_close(c);
    zi_stop(&d);
    dumps_free(at);
}

/* A checksum of a file of the data directory. */
static uint64_t file_sum(const struct zi_daemon *d, const char *name)
{
    char path[160];
    uint64_t sum = 0;
    FILE *f;
    int c;

    (void)snprintf(path, sizeof(path), "%s/%s", d->data, name);
    f = fopen(path, "rb");
    assert_non_null(f);
    while ((c = getc_unlocked(f)) != EOF)
        sum = sum * 31 + (unsigned)c + 1;
    (void)fclose(f);
    return sum;
}

/* Flips some bytes of every page of the file. */
static void flip(const struct zi_daemon *d, uint64_t from, uint64_t to)
{
    char path[160], byte;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/pages.zsd", d->data);
    f = fopen(path, "r+b");
    assert_non_null(f);
    for (uint64_t at = from; at < to; at += 4096) {
        assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
        assert_int_equal(fread(&byte, 1, 1, f), 1);
        byte = (char)~byte;
        assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
        assert_int_equal(fwrite(&byte, 1, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

/* zshardd --fsck changes nothing, refuses files that a daemon has open, and finds a damaged
 * page. */
static void offline(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    struct zi_rank r;
    uint64_t pages, catalog;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    c = zi_client(&d);
    for (uint64_t k = 1; k <= 3; k++) {
        sv_step(&r, 1, k, ZC_COMMIT_STEP);
        assert_int_equal(snapshot(c, NULL, 2), 0);
    }
    assert_int_equal(zi_fsck(&d), 3);
    zc_close(c);
    zi_kill(&d);
    sv_hang_up(&r, 1);
    pages = file_sum(&d, "pages.zsd");
    catalog = file_sum(&d, "catalog.zsd");
    assert_int_equal(zi_fsck(&d), 0);
    assert_int_equal(zi_fsck(&d), 0);
    assert_true(pages == file_sum(&d, "pages.zsd") && catalog == file_sum(&d, "catalog.zsd"));
    zi_start_again(&d, sv_options);
    c = zi_client(&d);
    (void)sound(c, "after fsck");
    zc_close(c);
    zi_end(&d);
    flip(&d, ZI_DATA_START, 24 * ZB_MIB);
    assert_int_equal(zi_fsck(&d), 6);
    zi_clean(&d);
}

/* A snapshot of the next commit: it waits for the commit or its deadline, or is told that the job
 * has gone. */
static void of_the_next(void **state)
{
    const struct zc_snapshot next = { .job = "job", .next = true, .timeout_ms = 120000 };
    const struct zc_snapshot soon = { .job = "job", .next = true, .timeout_ms = 100 };
    struct zc_snapshot_row row = { 0 };
    struct zi_daemon d = { 0 };
    struct zi_call call = ZI_CALL(NULL);
    struct zi_rank r, asks = { 0 };
    struct zc_point point;

    (void)state;
    sv_begin(&r, 1, &d, 1);
    asks.c = zi_client(&d);
    assert_int_equal(zc_snapshot_wait(asks.c, &soon, &row), -ETIMEDOUT);
    call = ZI_CALL(&asks);
    assert_int_equal(zc_snapshot(asks.c, &next, &row, zi_done, &call), 0);
    sv_step(&r, 1, 1, ZC_COMMIT_NO);
    zi_pump(&asks, 1, 50);
    assert_false(call.over);
    sv_step(&r, 1, 2, ZC_COMMIT_STEP);
    assert_int_equal(zi_await(&asks, 1, &call), 0);
    assert_string_equal(row.name, "step-2");
    assert_int_equal(row.iterations, 2);

    /* a prepared version is not a commit before it is resolved */
    call = ZI_CALL(&asks);
    assert_int_equal(zc_snapshot(asks.c, &next, &row, zi_done, &call), 0);
    sv_step(&r, 1, 3, ZC_COMMIT_PREPARE);
    zi_pump(&asks, 1, 50);
    assert_false(call.over);
    assert_int_equal(zc_commit_wait(r.c, r.job.id, ZC_COMMIT_PREPARED, 3, 0, &point), 0);
    assert_int_equal(zi_await(&asks, 1, &call), 0);
    assert_string_equal(row.name, "step-3");

    /* the client goes: no snapshot of the next commit is made */
    call = ZI_CALL(NULL);
    assert_int_equal(zc_snapshot(asks.c, &next, &row, zi_done, &call), 0);
    zi_pump(&asks, 1, 20);
    zc_close(asks.c);
    sv_step(&r, 1, 4, ZC_COMMIT_STEP);
    asks.c = zi_client(&d);
    assert_int_equal(count(asks.c, "job"), 2);

    call = ZI_CALL(&asks);
    assert_int_equal(zc_snapshot(asks.c, &next, &row, zi_done, &call), 0);
    zi_pump(&asks, 1, 20);
    zi_close(&r, 1);
    r.c = zi_client(&d);
    assert_int_equal(zc_job_destroy_wait(r.c, "job"), 0);
    assert_int_equal(zi_await(&asks, 1, &call), -ECANCELED);
    zc_close(r.c);
    zc_close(asks.c);
    zi_stop(&d);
}

static void refused(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_snapshot_row row;
    struct zi_rank r;
    struct zc_client *c;
    struct zc_job_options o = sv_job(0);
    unsigned taken = 0;
    int rc = 0;

    (void)state;
    sv_begin(&r, 1, &d, 0);
    c = zi_client(&d);
    assert_int_equal(snapshot(c, NULL, 0), -ENOENT); /* no commit */
    assert_int_equal(zc_clone_wait(c, "job", NULL, "copy", &row), -ENOENT);
    assert_int_equal(zc_rollback_wait(c, "nobody", NULL, &row), -ENOENT);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    assert_int_equal(snapshot(c, "no name", 0), -EINVAL);
    assert_int_equal(snapshot(c, "one", 0), 0);
    assert_int_equal(snapshot(c, "one", 0), -EEXIST);
    assert_int_equal(snapshot(c, NULL, 0), 0); /* costs nothing more */
    assert_int_equal(snapshot(c, NULL, 0), -EEXIST);
    assert_int_equal(zc_clone_wait(c, "job", "none", "copy", &row), -ENOENT);
    assert_int_equal(zc_clone_wait(c, "job", "one", "no name", &row), -EINVAL);
    assert_int_equal(zc_clone_wait(c, "job", "one", "job", &row), -EEXIST);
    assert_int_equal(zc_snapshot_destroy_wait(c, "job", "none"), -ENOENT);

    /* one more version for each, until there is no room; training goes on nevertheless */
    for (uint64_t k = 2; k < SV_STEPS_MAX && rc == 0; k++) {
        sv_step(&r, 1, k, ZC_COMMIT_STEP);
        rc = snapshot(c, NULL, 0);
        taken += rc == 0;
    }
    assert_int_equal(rc, -ENOSPC);
    assert_true(taken >= 2);
    assert_non_null(strstr(zc_error(c), "are free"));
    rc = zc_clone_wait(c, "job", "one", "copy", &row);
    assert_int_equal(rc, -ENOSPC);
    assert_int_equal(snapshot(c, "two", 2), 0); /* the oldest ones make room */
    assert_int_equal(count(c, "job"), 2);
    zi_close(&r, 1);

    /* the job is not durable: there is nothing to snapshot */
    o.name = "fleeting";
    o.durable = o.keep = false;
    zi_job(&r, 1, &d, &o, sv_units, SV_UNITS);
    sv_fill(&r, 1);
    sv_name = "fleeting";
    assert_int_equal(snapshot(c, NULL, 0), -EINVAL);
    sv_name = "job";
    zi_close(&r, 1);
    zc_close(c);
    zi_stop(&d);
}

/* A reader of the commit of a destroyed job keeps its places: no other job gets them, however much
 * a new job of the same cut takes. */
static void read_and_destroyed(void **state)
{
    for (unsigned place = 0; place < SV_PLACES; place++) {
        struct zi_daemon d = { 0 };
        struct zi_rank r;
        struct zc_reader reader;
        struct zc_client *c;

        (void)state;
        sv_begin(&r, 1, &d, place);
        sv_step(&r, 1, 1, ZC_COMMIT_STEP);
        zi_close(&r, 1);
        c = zi_client(&d);
        assert_int_equal(zc_reader_open_wait(c, sv_name, NULL, 65536, &reader), 0);
        assert_int_equal(zc_job_destroy_wait(c, sv_name), 0);
        sv_open(&r, 1, &d, place);
        for (uint64_t number = 1; number <= 3; number++)
            sv_step(&r, 1, number, ZC_COMMIT_STEP);
        assert_int_equal(zc_reader_read_wait(c, reader.id, 0, ZC_MASTER, 0, 1, reader.staging), 0);
        assert_int_equal(zc_reader_close_wait(c, reader.id), 0);
        zi_close(&r, 1);
        zc_close(c);
        zi_stop(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(back_and_on, zi_teardown),
        cmocka_unit_test_teardown(retained, zi_teardown),
        cmocka_unit_test_teardown(killed, zi_teardown),
        cmocka_unit_test_teardown(offline, zi_teardown),
        cmocka_unit_test_teardown(of_the_next, zi_teardown),
        cmocka_unit_test_teardown(read_and_destroyed, zi_teardown),
        cmocka_unit_test_teardown(refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
