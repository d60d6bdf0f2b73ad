/*
 * test_compat.c - stores that older releases wrote are opened, checked, and trained on. README.md
 * says how they were made, and what to do when a format must change.
 *
 *     test_compat              checks the stores of all releases
 *     test_compat make DIR     makes one, with the programs that it was built with
 */
#include "tests/compat/compat.h"

#include <stdio.h>

#define TEXT_MAX 256u

/* By the commit that made the store. */
static const char *const releases[] = { "66a9a3a" };

static char folder[400]; /* of the release, or the one that is to be made */
static bool making;

static const char *path_of(const char *file)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    return path;
}

/* ---- what the daemon says of the store, before anybody attaches */

static void see_jobs(struct zc_client *c)
{
    struct zc_job_row *rows = NULL;
    char text[TEXT_MAX];
    size_t n = 0;

    assert_int_equal(zc_jobs_wait(c, NULL, &rows, &n), 0);
    assert_int_equal(n, CO_JOBS);
    for (size_t i = 0; i < n; i++) {
        const struct zc_job_row *r = &rows[i];

        (void)snprintf(text, sizeof(text),
                       "%s, %s, %s, world %u, %u shards, %u parameters, committed %u/%u, epoch %u, "
                       "%u snapshots%s%s",
                       r->state, r->optimizer, r->moments, r->world, (unsigned)r->shards,
                       (unsigned)r->params, (unsigned)r->committed_iterations,
                       (unsigned)r->committed_applied, (unsigned)r->epoch, r->snapshots,
                       r->keep ? ", kept" : "", r->durable ? ", durable" : "");
        co_see(text, "%s row", r->name);
    }
    zc_rows_free(rows);
}

static void see_snapshots(struct zc_client *c)
{
    struct zc_snapshot_row *rows = NULL;
    char text[TEXT_MAX];
    size_t n = 0;

    assert_int_equal(zc_snapshots_wait(c, NULL, &rows, &n), 0);
    for (size_t i = 0; i < n; i++) {
        const struct zc_snapshot_row *r = &rows[i];

        (void)snprintf(text, sizeof(text), "%u/%u, world %u, made at %llu, %llu bytes, %llu own",
                       (unsigned)r->iterations, (unsigned)r->applied, r->world,
                       (unsigned long long)r->created_unix, (unsigned long long)r->bytes,
                       (unsigned long long)r->own_bytes);
        co_see(text, "%s snapshot %s", r->job, r->name);
    }
    zc_rows_free(rows);
}

static void see_files(struct zc_client *c)
{
    struct zc_message *problems = NULL;
    struct zc_df_row *rows = NULL;
    struct zc_fsck f;
    struct zc_df df;
    char text[TEXT_MAX];
    size_t n = 0;

    assert_int_equal(zc_fsck_wait(c, &f, &problems, &n), 0);
    if (f.problems_total > 0)
        fail_msg("fsck: %s", problems[0].text);
    zc_rows_free(problems);
    (void)snprintf(text, sizeof(text),
                   "%u jobs, %u versions, %u snapshots, %u rows, %u pages, %llu bytes",
                   (unsigned)f.jobs, (unsigned)f.versions, (unsigned)f.snapshots, (unsigned)f.rows,
                   (unsigned)f.pages, (unsigned long long)f.bytes);
    co_see(text, "fsck");
    assert_int_equal(zc_df_wait(c, &df, &rows, &n), 0);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(text, sizeof(text), "committed %llu, prepared %llu, snapshots %llu",
                       (unsigned long long)rows[i].committed, (unsigned long long)rows[i].prepared,
                       (unsigned long long)rows[i].snapshots);
        co_see(text, "df %s", rows[i].job);
    }
    zc_rows_free(rows);
}

static void see_saved(struct zc_client *c)
{
    for (const struct co_job *job = co_jobs; job < co_jobs + CO_JOBS; job++) {
        const struct co_marks m = co_job_marks(job);

        co_see_saved(job, c, NULL, m.committed);
        if (m.snapshot)
            co_see_saved(job, c, CO_SNAPSHOT, m.snapshot);
    }
}

/* ---- training on */

static void see_points(const struct co_job *job, uint64_t from, const struct zc_job *opened)
{
    static const char *const kinds[] = { "?", "memory", "prepared", "committed" };
    char text[TEXT_MAX] = "";
    size_t len = 0;

    for (unsigned i = 0; i < opened->npoints; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s %u/%u", i > 0 ? ", " : "",
                                kinds[opened->points[i].kind],
                                (unsigned)opened->points[i].iterations,
                                (unsigned)opened->points[i].applied);
    co_see(text, "%s %u points", job->name, (unsigned)from);
}

/* Attaches, looks at what is there at iteration `from`, and makes the rest of the plan. What is
 * prepared is committed if the job resumes from there, and dropped otherwise. */
static void train_on(const struct co_job *job, const struct zi_daemon *d, uint32_t world,
                     uint64_t from, uint64_t prepared)
{
    const uint64_t last = co_job_marks(job).last;
    struct zi_rank ranks[CO_WORLD_MAX];
    struct zc_point point;

    co_attach(job, ranks, world, false, d);
    see_points(job, from, &ranks[0].job);
    co_ready(ranks, world, &from);
    assert_int_equal(ranks[0].place.iterations, from);
    co_see_applied(job, from, ranks[0].place.applied);
    co_see_state(job, ranks, world, from);
    co_see_notes(job, ranks, world, from);
    if (prepared && zc_commit_wait(ranks[0].c, ranks[0].job.id,
                                   from == prepared ? ZC_COMMIT_PREPARED : ZC_COMMIT_DROP, prepared,
                                   0, &point) < 0)
        fail_msg("what '%s' has prepared: %s", job->name, zc_error(ranks[0].c));
    for (unsigned u = 0; u < job->nunits; u++)
        if (job->units[u].quantized && world == job->world)
            co_see_codes(job, &ranks[0], u);
    for (uint64_t k = from + 1; k <= last; k++) {
        co_iterate(job, ranks, world, k, k == last ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
        co_see_state(job, ranks, world, k);
        co_see_notes(job, ranks, world, k);
    }
    zi_close(ranks, world);
}

/* A clone of the snapshot trains on; then the job itself is rolled back to it, and does. */
static void back_and_on(const struct co_job *job, const struct zi_daemon *d, struct zc_client *c,
                        uint32_t world)
{
    const uint64_t at = co_job_marks(job).snapshot;
    char name[ZC_NAME_MAX + 1];
    struct co_job clone = *job;
    struct zc_snapshot_row row;

    (void)snprintf(name, sizeof(name), "%s-copy", job->name);
    clone.name = name;
    clone.of = job;
    if (zc_clone_wait(c, job->name, CO_SNAPSHOT, clone.name, &row) < 0)
        fail_msg("clone of '%s': %s", job->name, zc_error(c));
    train_on(&clone, d, world, at, 0);
    assert_int_equal(zc_job_destroy_wait(c, clone.name), 0);
    if (zc_rollback_wait(c, job->name, CO_SNAPSHOT, &row) < 0)
        fail_msg("rollback of '%s': %s", job->name, zc_error(c));
    train_on(job, d, world, at, 0);
}

/* What was trained is there when the daemon starts once more. */
static void all_again(struct zi_daemon *d, const char *const *options)
{
    struct zi_rank ranks[CO_WORLD_MAX];

    zi_end(d);
    co_fsck(d);
    zi_start_again(d, options);
    for (const struct co_job *job = co_jobs; job < co_jobs + CO_JOBS; job++) {
        const uint64_t last = co_job_marks(job).last;

        co_attach(job, ranks, job->world, false, d);
        co_ready(ranks, job->world, NULL);
        assert_int_equal(ranks[0].place.iterations, last);
        co_see_state(job, ranks, job->world, last);
        zi_close(ranks, job->world);
    }
    zi_stop(d);
}

/* The store is opened and goes on; cut as it was saved (anew false), or otherwise: other pages,
 * other ranks, streamed what was resident. */
static void store_goes_on(bool anew)
{
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    const char *const *options;

    co_unpack(&d, path_of("store.tar.gz"));
    co_fsck(&d);
    options = co_options(&d, anew ? "8192" : "4096", anew ? "threads" : "auto");
    zi_start_again(&d, options);
    c = zi_client(&d);
    see_jobs(c);
    see_snapshots(c);
    see_files(c);
    see_saved(c);
    for (unsigned i = 0; i < CO_JOBS; i++) {
        struct co_job job = co_jobs[i];
        const struct co_marks m = co_job_marks(&job);
        const uint32_t world = !anew ? job.world : job.world == 1 ? 2 : 1;

        if (anew)
            job.streamed = !job.streamed && job.offload_optimizer == ZC_NVME;
        train_on(&job, &d, world, m.prepared && !anew ? m.prepared : m.committed, m.prepared);
        if (m.snapshot)
            back_and_on(&job, &d, c, world);
    }
    zi_fsck_online(c);
    zc_close(c);
    all_again(&d, options);
}

/* ---- the tests */

/* The programs that this was built with run the plans from the beginning: to the same bits. */
static void made(void **state)
{
    struct zi_daemon d = { 0 };

    (void)state;
    if (making)
        co_expect_record();
    else
        co_expect_load(path_of("expected.txt"));
    co_make(&d);
    if (making)
        co_archive(&d, path_of("store.tar.gz"));
    zi_clean(&d);
}

static void as_saved(void **state)
{
    (void)state;
    store_goes_on(false);
}

static void cut_anew(void **state)
{
    (void)state;
    store_goes_on(true);
}

/* A later release has used the store: it is refused by the name of what this one does not know, and
 * nothing in it is changed. */
static void of_later(void **state)
{
#define STORE(format)                                                                              \
    {                                                                                              \
        format, [1] = 9, [10] = 16, [17] = 64, [25] = 1, [29] = 6, [33] = 'f', 'u', 't', 'u', 'r', \
                'e'                                                                                \
    }
    static const struct { /* boot 9, next id 4096, next job 64, and one feature */
        uint8_t record[39];
        const char *says;
    } rows[] = {
        { STORE(2), "uses the feature 'future', which zshardd " ZSHARD_VERSION " does not know" },
        { STORE(3), "a record of the store has format 3, and zshardd " ZSHARD_VERSION " knows 2" },
    };
#undef STORE
    struct zi_daemon d = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        co_unpack(&d, path_of("store.tar.gz"));
        zi_start_again(&d, co_options(&d, "4096", "auto"));
        zi_end(&d); /* the commit slots name the newest transaction: one more may follow */
        co_refused(&d, rows[i].record, sizeof(rows[i].record), rows[i].says);
        zi_clean(&d);
    }
}

static void all_was_seen(void **state)
{
    (void)state;
    co_expect_all_seen();
    if (making)
        co_expect_write(path_of("expected.txt"));
    co_expect_free();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(made, zi_teardown),
        cmocka_unit_test_teardown(as_saved, zi_teardown),
        cmocka_unit_test_teardown(cut_anew, zi_teardown),
        cmocka_unit_test_teardown(of_later, zi_teardown),
        cmocka_unit_test(all_was_seen),
    };
    int failed = 0;

    making = argc == 3 && strcmp(argv[1], "make") == 0;
    if (making) {
        (void)snprintf(folder, sizeof(folder), "%s", argv[2]);
        return cmocka_run_group_tests_name(folder, tests, NULL, NULL);
    }
    if (argc > 1) {
        (void)fprintf(stderr, "usage: test_compat [make DIR]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
        (void)snprintf(folder, sizeof(folder), "%s/%s", COMPAT_DIR, releases[i]);
        failed += cmocka_run_group_tests_name(releases[i], tests, NULL, NULL);
    }
    return failed;
}
