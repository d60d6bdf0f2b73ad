/* zctl's commands about saved data, with a fake daemon: their requests, their output, their exit
 * status. */
#include "tests/ztest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/zctl_main.h"
#include "tests/unit/client/fake.h"

#define WORDS_MAX 16
#define TEXT(s)   ((char *)(uintptr_t)(s))

struct said {
    char *out, *err;
    int status;
};

static struct said zctl(struct fake *f, const char *line)
{
    char copy[256], *words[WORDS_MAX] = { TEXT("zctl"), TEXT("--socket"), f->path };
    struct said s = { 0 };
    size_t out_bytes, err_bytes;
    FILE *out = open_memstream(&s.out, &out_bytes), *err = open_memstream(&s.err, &err_bytes);
    int n = 3;

    (void)snprintf(copy, sizeof(copy), "%s", line);
    for (char *at = copy, *word; n < WORDS_MAX && (word = strsep(&at, " ")) != NULL;)
        words[n++] = word;
    s.status = zctl_main(n, words, out, err);
    (void)fclose(out);
    (void)fclose(err);
    return s;
}

/** Runs a line, and checks its output and its exit status. */
static void expect(struct fake *f, const char *line, int status, const char *out, const char *err)
{
    struct said s = zctl(f, line);

    if (s.status != status || strcmp(s.out, out) != 0 || !strstr(s.err, err))
        fail_msg("zctl %s: status %d\n%s\n%s", line, s.status, s.out, s.err);
    free(s.out);
    free(s.err);
}

static bool saved_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static char *problems[2] = { TEXT("job 'a', shard 3, page 4"), TEXT("another") };
    Zp__SnapshotRow row = ZP__SNAPSHOT_ROW__INIT, *rows[1] = { &row };
    Zp__SnapshotsReply snapshots = ZP__SNAPSHOTS_REPLY__INIT;
    Zp__JobRow job = ZP__JOB_ROW__INIT, *job_rows[1] = { &job };
    Zp__JobsReply jobs = ZP__JOBS_REPLY__INIT;
    Zp__ScrubReply scrub = ZP__SCRUB_REPLY__INIT;
    Zp__FsckReply fsck = ZP__FSCK_REPLY__INIT;
    bool bad = f->arg != NULL;

    (void)body;
    row.job = TEXT("a");
    row.name = TEXT("s");
    row.iterations = 7;
    row.applied = 6;
    row.world = 2;
    row.created_unix = 1000000000;
    row.bytes = 3 << 20;
    row.own_bytes = 1 << 20;
    job.name = TEXT("a");
    job.state = job.error = TEXT("");
    job.optimizer = job.moments = 1;
    job.host_bytes = 2 << 20;
    if (!bad) {
        job.committed = true;
        job.committed_iterations = 7;
        job.snapshots = 1;
        job.nvme_bytes = 4 << 20;
    }
    switch (frame->method) {
    case ZP_JOBS:
        jobs.rows = job_rows;
        jobs.n_rows = 1;
        fake_reply(f, frame, &jobs.base, -1);
        return true;
    case ZP_SNAPSHOTS:
        snapshots.rows = rows;
        snapshots.n_rows = 1;
        fake_reply(f, frame, &snapshots.base, -1);
        return true;
    case ZP_SNAPSHOT:
    case ZP_ROLLBACK:
        fake_reply(f, frame, &row.base, -1);
        return true;
    case ZP_CLONE:
        row.name = TEXT("");
        fake_reply(f, frame, &row.base, -1);
        return true;
    case ZP_SCRUB:
        scrub.state = TEXT("running");
        scrub.bytes = 1 << 20;
        scrub.total_bytes = 4 << 20;
        scrub.rate_bytes = 1 << 19;
        scrub.elapsed_ms = 2000;
        scrub.eta_ms = 6000;
        scrub.bad_pages = bad ? 9 : 0;
        scrub.bad = problems;
        scrub.n_bad = bad ? 2 : 0;
        fake_reply(f, frame, &scrub.base, -1);
        return true;
    case ZP_FSCK:
        fsck.jobs = 1;
        fsck.versions = 2;
        fsck.snapshots = 3;
        fsck.rows = 4;
        fsck.pages = 5;
        fsck.bytes = 6 << 20;
        fsck.sequence = 7;
        fsck.problems_total = bad ? 9 : 0;
        fsck.problems = problems;
        fsck.n_problems = bad ? 2 : 0;
        fake_reply(f, frame, &fsck.base, -1);
        return true;
    default:
        return false;
    }
}

static struct fake *fake_open(fake_fn *fn, void *arg)
{
    struct fake *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->hang_up_at = FAKE_ANY_FRAME;
    f->fn = fn;
    f->arg = arg;
    fake_start(f);
    return f;
}

static void fake_close(struct fake *f)
{
    fake_done(f);
    free(f);
}

#define HEAD "JOB  NAME  STEPS  APPLIED  WORLD                   CREATED     BYTES       OWN\n"
#define ROW  "a    s         7        6      2  2001-09-09T01:46:40+0000  3.00 MiB  1.00 MiB\n"

static void snapshots(void **state)
{
    struct fake *f = fake_open(saved_fn, NULL);
    const Zp__SnapshotsRequest *list;
    const Zp__SnapshotTake *take;
    const Zp__SnapshotRef *ref;
    const Zp__Clone *clone;
    struct zp_arena *arena;

    (void)state;
    (void)setenv("TZ", "UTC", 1);
    expect(f, "snapshot a", 0, HEAD ROW, "");
    take = fake_nth(f, ZP_SNAPSHOT, 0, &arena);
    assert_string_equal(take->job, "a");
    assert_string_equal(take->name, "");
    assert_true(!take->next && take->retain == 0 && take->timeout_ms == 0);
    zp_arena_free(arena);
    expect(f, "snapshot --next a s --retain 3 --timeout 90", 0, HEAD ROW, "");
    take = fake_nth(f, ZP_SNAPSHOT, 1, &arena);
    assert_string_equal(take->name, "s");
    assert_true(take->next && take->retain == 3 && take->timeout_ms == 90000);
    zp_arena_free(arena);

    expect(f, "snapshots", 0, HEAD ROW, "");
    expect(f, "-o json snapshots a", 0,
           "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n      \"job\": \"a\",\n"
           "      \"name\": \"s\",\n      \"iterations\": 7,\n      \"applied\": 6,\n"
           "      \"world\": 2,\n      \"created\": 1000000000,\n      \"bytes\": 3145728,\n"
           "      \"own_bytes\": 1048576,\n      \"uid\": 0,\n      \"owner\": \"root\"\n    }\n  "
           "]\n}\n",
           "");
    list = fake_nth(f, ZP_SNAPSHOTS, 1, &arena);
    assert_string_equal(list->job, "a");
    zp_arena_free(arena);

    expect(f, "rollback a s", 0, HEAD ROW, "");
    ref = fake_nth(f, ZP_ROLLBACK, 0, &arena);
    assert_string_equal(ref->job, "a");
    assert_string_equal(ref->name, "s");
    zp_arena_free(arena);

    expect(f, "clone a b", 0,
           "JOB  NAME  STEPS  APPLIED  WORLD                   CREATED     BYTES       OWN\n"
           "a    -         7        6      2  2001-09-09T01:46:40+0000  3.00 MiB  1.00 MiB\n",
           "");
    expect(f, "-o json clone a@s b", 0,
           "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n      \"job\": \"a\",\n"
           "      \"name\": \"\",\n      \"iterations\": 7,\n      \"applied\": 6,\n"
           "      \"world\": 2,\n      \"created\": 1000000000,\n      \"bytes\": 3145728,\n"
           "      \"own_bytes\": 1048576,\n      \"uid\": 0,\n      \"owner\": \"root\"\n    }\n  "
           "]\n}\n",
           "");
    clone = fake_nth(f, ZP_CLONE, 1, &arena);
    assert_string_equal(clone->job, "a");
    assert_string_equal(clone->snapshot, "s");
    assert_string_equal(clone->name, "b");
    zp_arena_free(arena);

    expect(f, "destroy a@s", 0,
           "JOB  SNAPSHOT  COMMITS  SNAPSHOTS  HOST      NVME\n"
           "a    s               0          1   0 B  1.00 MiB\n",
           "");
    ref = fake_nth(f, ZP_SNAPSHOT_DESTROY, 0, &arena);
    assert_string_equal(ref->job, "a");
    assert_string_equal(ref->name, "s");
    zp_arena_free(arena);
    fake_close(f);
}

/* A job with saved data is destroyed only by --force. After a typing error (a for a@s) the message
 * says what would be lost. */
static void destroy(void **state)
{
    struct fake *f = fake_open(saved_fn, NULL);
    const Zp__JobName *name;
    struct zp_arena *arena;

    (void)state;
    expect(f, "destroy a", 8, "",
           "job 'a' has a commit of step 7 and 1 snapshot (s), and nothing was destroyed: give "
           "--force to destroy all of it, or JOB@SNAPSHOT to destroy one snapshot");
    expect(f, "-o json destroy a", 8, "", "give --force");
    assert_int_equal(fake_count(f, ZP_JOB_DESTROY), 0);
    expect(f, "destroy --force a", 0,
           "JOB  SNAPSHOT  COMMITS  SNAPSHOTS      HOST      NVME\n"
           "a    -               1          1  2.00 MiB  4.00 MiB\n",
           "");
    expect(f, "-o json destroy a --force", 0,
           "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n      \"job\": \"a\",\n"
           "      \"snapshot\": \"\",\n      \"commits\": 1,\n      \"snapshots\": 1,\n"
           "      \"host_bytes\": 2097152,\n      \"nvme_bytes\": 4194304\n    }\n  ]\n}\n",
           "");
    name = fake_nth(f, ZP_JOB_DESTROY, 0, &arena);
    assert_string_equal(name->name, "a");
    zp_arena_free(arena);
    fake_close(f);

    f = fake_open(saved_fn, TEXT("nothing saved"));
    expect(f, "destroy a", 0,
           "JOB  SNAPSHOT  COMMITS  SNAPSHOTS      HOST  NVME\n"
           "a    -               0          0  2.00 MiB   0 B\n",
           "");
    assert_int_equal(fake_count(f, ZP_JOB_DESTROY), 1);
    fake_close(f);
}

static void scrub(void **state)
{
    static const char head[] =
        "STATE    PERCENT     BYTES     TOTAL     RATE  ELAPSED_S  ETA_S  BAD_PAGES\n";
    static const char *const words[] = { "status", "start", "pause", "resume", "stop" };
    struct fake *f = fake_open(saved_fn, NULL);
    struct zp_arena *arena;
    const Zp__Scrub *q;
    char text[1024];

    (void)state;
    (void)snprintf(text, sizeof(text), "%s%s", head,
                   "running     25.0  1.00 MiB  4.00 MiB  512 KiB        2.0    6.0          0\n");
    expect(f, "scrub", 0, text, "");
    for (uint32_t i = 0; i < ZB_COUNT(words); i++) {
        char line[64];

        (void)snprintf(line, sizeof(line), "scrub %s%s", words[i],
                       i == 1 || i == 3 ? " --rate 64M" : "");
        expect(f, line, 0, text, "");
        q = fake_nth(f, ZP_SCRUB, 1 + i, &arena);
        assert_int_equal(q->action, i);
        assert_int_equal(q->rate_bytes, i == 1 || i == 3 ? 64 << 20 : 0);
        zp_arena_free(arena);
    }
    fake_close(f);

    f = fake_open(saved_fn, TEXT("bad"));
    (void)snprintf(text, sizeof(text), "%s%s", head,
                   "running     25.0  1.00 MiB  4.00 MiB  512 KiB        2.0    6.0          9\n"
                   "job 'a', shard 3, page 4\nanother\n");
    expect(f, "scrub", ZC_EXIT_CORRUPT, text, "9 pages are bad");
    fake_close(f);
}

static void fsck(void **state)
{
    struct fake *f = fake_open(saved_fn, NULL);

    (void)state;
    expect(f, "fsck", 0,
           "JOBS  VERSIONS  SNAPSHOTS  ROWS  PAGES     BYTES  SEQUENCE  PROBLEMS\n"
           "   1         2          3     4      5  6.00 MiB         7         0\n",
           "");
    fake_close(f);
    f = fake_open(saved_fn, TEXT("bad"));
    expect(f, "fsck", ZC_EXIT_CORRUPT,
           "JOBS  VERSIONS  SNAPSHOTS  ROWS  PAGES     BYTES  SEQUENCE  PROBLEMS\n"
           "   1         2          3     4      5  6.00 MiB         7         9\n"
           "job 'a', shard 3, page 4\nanother\n",
           "9 problems");
    expect(f, "fsck -o json", ZC_EXIT_CORRUPT,
           "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n      \"jobs\": 1,\n"
           "      \"versions\": 2,\n      \"snapshots\": 3,\n      \"rows\": 4,\n"
           "      \"pages\": 5,\n      \"bytes\": 6291456,\n      \"sequence\": 7,\n"
           "      \"problems\": 9\n    }\n  ],\n  \"problems\": [\n"
           "    \"job 'a', shard 3, page 4\",\n    \"another\"\n  ]\n}\n",
           "9 problems");
    fake_close(f);
}

/** The folder of a daemon that does not run is checked by the zshardd in zctl's folder; here by a
 * fake one in $PATH. */
static void fsck_of_a_folder(void **state)
{
    static const struct {
        const char *script;
        int status;
        const char *err;
    } rows[] = {
        { "exit 0", 0, "" },
        { "test \"$*\" = '--fsck --data /some/folder'", 0, "" },
        { "exit 1", 1, "the check of '/some/folder' ended with status 1" },
        { "exit 2", 2, "status 2" },
        { "exit 4", 4, "status 4" },
        { "exit 6", 6, "status 6" },
        { "exit 77", 1, "status 77" },
        { "kill -9 $$", 1, "ended by signal 9" },
    };
    char folder[] = "/tmp/zshard-path-XXXXXX", program[64], path[4096];
    struct fake *f = fake_open(saved_fn, NULL);
    const char *before = getenv("PATH");

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(program, sizeof(program), "%s/zshardd", folder);
    (void)snprintf(path, sizeof(path), "%s:%s", folder, before ? before : "/usr/bin:/bin");
    (void)setenv("PATH", path, 1);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        FILE *script = fopen(program, "we");

        assert_non_null(script);
        (void)fprintf(script, "#!/bin/sh\n%s\n", rows[i].script);
        (void)fclose(script);
        assert_int_equal(chmod(program, 0700), 0);
        expect(f, "fsck --data /some/folder", rows[i].status, "", rows[i].err);
    }
    assert_int_equal(unlink(program), 0);
    (void)setenv("PATH", folder, 1);
    expect(f, "fsck --data /some/folder", ZC_EXIT_REFUSED, "", "run 'zshardd'");
    (void)setenv("PATH", before ? before : "/usr/bin:/bin", 1);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(fake_count(f, 0), 0); /* the daemon was not asked */
    fake_close(f);
}

static bool df_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__DfRow a = ZP__DF_ROW__INIT, none = ZP__DF_ROW__INIT, *rows[2] = { &a, &none };
    Zp__DfReply m = ZP__DF_REPLY__INIT;

    (void)body;
    if (frame->method != ZP_DF)
        return false;
    a.job = TEXT("a");
    a.committed = 1 << 20;
    a.prepared = 2 << 10;
    a.snapshots = 3 << 10;
    a.working = 4 << 10;
    a.reserved = 5 << 10;
    a.shared = 6 << 10;
    none.working = 7 << 10;
    m.rows = rows;
    m.n_rows = 2;
    m.meta = 8 << 10;
    m.free = 9 << 10;
    m.catalog_bytes = 10 << 10;
    m.total = (1024 + 2 + 3 + 4 + 5 + 7 + 8 + 9 + (f->arg ? 1 : 0)) << 10;
    fake_reply(f, frame, &m.base, -1);
    return true;
}

static void df(void **state)
{
    static const char table[] =
        "NAME       COMMITTED  PREPARED  SNAPSHOTS   WORKING  RESERVED     TOTAL    SHARED\n"
        "a           1.00 MiB  2.00 KiB   3.00 KiB  4.00 KiB  5.00 KiB  1.01 MiB  6.00 KiB\n"
        "(none)           0 B       0 B        0 B  7.00 KiB       0 B  7.00 KiB       0 B\n"
        "(meta)           0 B       0 B        0 B       0 B       0 B  8.00 KiB       0 B\n"
        "(free)           0 B       0 B        0 B       0 B       0 B  9.00 KiB       0 B\n"
        "(total)     1.00 MiB  2.00 KiB   3.00 KiB  11.0 KiB  5.00 KiB  1.04 MiB       0 B\n"
        "(catalog)        0 B       0 B        0 B       0 B       0 B  10.0 KiB       0 B\n";
    struct fake *f = fake_open(df_fn, NULL);
    struct said s;

    (void)state;
    expect(f, "df", 0, table, "");
    s = zctl(f, "df -o json");
    assert_int_equal(s.status, 0);
    assert_non_null(strstr(s.out, "\"kind\": \"job\",\n      \"name\": \"a\",\n"
                                  "      \"committed\": 1048576,"));
    assert_non_null(strstr(s.out, "\"kind\": \"total\""));
    free(s.out);
    free(s.err);
    fake_close(f);
    f = fake_open(df_fn, TEXT("bad"));
    expect(f, "df", ZC_EXIT_CORRUPT, table,
           "the rows add up to 1.04 MiB, 1.00 KiB less than the data files have");
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots), cmocka_unit_test(destroy),          cmocka_unit_test(scrub),
        cmocka_unit_test(fsck),      cmocka_unit_test(fsck_of_a_folder), cmocka_unit_test(df),
    };

    assert_non_null(freopen("/dev/null", "r", stdin)); /* destroy asks on a terminal */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
