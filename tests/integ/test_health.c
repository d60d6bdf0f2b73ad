/*
 * zctl status of a real daemon: one fault after the other is made, and the exit status and the
 * reason follow. Limits of the running daemon (prlimit) make its files fail: writes fail with
 * EFBIG, also those of SQLite.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define OPTIONS 24

/* The usual options, with threads for I/O, and two more. */
static const char *const *options_with(const char *name, const char *value, const char *name2,
                                       const char *value2)
{
    static const char *options[OPTIONS];
    unsigned n = 0;

    for (; sv_options[n]; n++)
        options[n] = strcmp(sv_options[n], "uring") == 0 ? "threads" : sv_options[n];
    assert_true(n + 5 <= OPTIONS);
    options[n++] = name;
    options[n++] = value;
    options[n++] = name2;
    options[n++] = value2;
    options[n] = NULL;
    return options;
}

static const char *const *options_plain(void)
{
    return options_with(NULL, NULL, NULL, NULL);
}

/* ---- status */

/* What zctl status prints, with the options `how`, and its exit status. */
static int status_as(const struct zi_daemon *d, const char *how, char *text, size_t size)
{
    const char *build = getenv("ZSHARD_BUILD");
    char command[256];
    FILE *out;
    size_t n;
    int status;

    (void)snprintf(command, sizeof(command), "%s/bin/zctl -s %s %s status 2>&1",
                   build ? build : "build", d->socket, how);
    out = popen(command, "r"); /* NOLINT(cert-env33-c): no text from outside */
    assert_non_null(out);
    n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    status = pclose(out);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int status_of(const struct zi_daemon *d, char *text, size_t size)
{
    return status_as(d, "-o json", text, size);
}

/* Whether a reason with this id and level is in the text. */
static bool has(const char *text, const char *id, const char *level)
{
    char want[128];

    (void)snprintf(want, sizeof(want), "\"id\": \"%s\",\n      \"level\": \"%s\"", id, level);
    return strstr(text, want) != NULL;
}

static void assert_status(const struct zi_daemon *d, int want, const char *id, const char *level)
{
    char text[16384];
    int got = status_of(d, text, sizeof(text));

    if (got != want || (id && !has(text, id, level)))
        fail_msg("exit status %d, wanted %d with %s %s: %s", got, want, id ? id : "nothing",
                 id ? level : "", text);
    if (want == 0 && strstr(text, "\"level\": \"error\""))
        fail_msg("an error, and exit status 0: %s", text);
    assert_non_null(strstr(text, want == 0 ? "\"verdict\": \"healthy\"" : "\"degraded\""));
}

static bool is_found(const struct zi_daemon *d, const char *id)
{
    char text[16384];

    (void)status_of(d, text, sizeof(text));
    return has(text, id, "error");
}

static void limit(const struct zi_daemon *d, int what, uint64_t most)
{
    struct rlimit r;

    assert_int_equal(prlimit(d->pid, (enum __rlimit_resource)what, NULL, &r), 0);
    r.rlim_cur = most < r.rlim_max ? most : r.rlim_max;
    assert_int_equal(prlimit(d->pid, (enum __rlimit_resource)what, &r, NULL), 0);
}

/* ---- the tests */

/* A page that could not be written: its commit fails; the next one heals that, and the drive's
 * error stays for an hour. */
static void drive_and_commit(void **state)
{
    struct zc_step step = { .step = 2, .scale = 1, .groups = sv_groups, .ngroups = SV_GROUPS };
    struct zc_stepped stepped;
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    zi_start(&d, options_plain());
    assert_status(&d, 0, NULL, NULL);
    sv_open(&r, 1, &d, 0);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    assert_status(&d, 0, NULL, NULL);

    limit(&d, RLIMIT_FSIZE, 4096);
    sv_push(&r, 1, 2);
    step.commit = ZC_COMMIT_STEP;
    assert_int_equal(zc_step_wait(r.c, r.job.id, &step, &stepped), 0);
    assert_true(stepped.commit_code < 0);
    assert_status(&d, 8, "drive-errors", "error");
    assert_status(&d, 8, "commits-failing", "error");
    assert_non_null(zi_log_line(&d, "error drive-error path=0"));
    limit(&d, RLIMIT_FSIZE, UINT64_MAX);

    sv_step(&r, 1, 3, ZC_COMMIT_STEP);
    assert_false(is_found(&d, "commits-failing"));
    assert_status(&d, 8, "drive-errors", "error");
    zi_close(&r, 1);
    zi_stop(&d);
}

/* The catalog cannot be written: nothing is committed any more. */
static void poisoned(void **state)
{
    const struct zc_snapshot snapshot = { .job = sv_name, .name = "s" };
    struct zc_snapshot_row row;
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    zi_start(&d, options_plain());
    sv_open(&r, 1, &d, 0);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    assert_status(&d, 0, NULL, NULL);
    limit(&d, RLIMIT_FSIZE, 4096);
    assert_true(zc_snapshot_wait(r.c, &snapshot, &row) < 0);
    assert_status(&d, 8, "store-poisoned", "error");
    limit(&d, RLIMIT_FSIZE, UINT64_MAX);
    assert_status(&d, 8, "store-poisoned", "error");
    zi_close(&r, 1);
    zi_end(&d);

    zi_start_again(&d, options_plain()); /* what the advice says */
    assert_status(&d, 0, NULL, NULL);
    zi_stop(&d);
}

static uint64_t scrub(struct zc_client *c)
{
    struct zc_message *bad = NULL;
    struct zc_scrub s;
    size_t n;

    assert_int_equal(zc_scrub_wait(c, ZC_SCRUB_START, UINT64_C(1) << 40, &s, &bad, &n), 0);
    while (strcmp(s.state, "done") != 0) {
        zc_rows_free(bad);
        (void)poll(NULL, 0, 10);
        assert_int_equal(zc_scrub_wait(c, ZC_SCRUB_STATUS, 0, &s, &bad, &n), 0);
    }
    zc_rows_free(bad);
    return s.bad_pages;
}

/* A scrub finds bad pages; a later one that finds none ends that. */
static void bad_pages(void **state)
{
    char text[16384];
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    zi_start(&d, options_plain());
    sv_open(&r, 1, &d, 0);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    assert_int_equal(scrub(r.c), 0);
    assert_status(&d, 0, NULL, NULL);
    sv_flip_all(&d);
    assert_true(scrub(r.c) > 0);
    assert_true(zi_counter(r.c, "pages_corrupt") > 0);
    assert_status(&d, 8, "pages-bad", "error");
    assert_int_equal(status_of(&d, text, sizeof(text)), 8);
    assert_non_null(strstr(text, "the scrub that ended"));
    sv_flip_all(&d);
    assert_int_equal(scrub(r.c), 0);
    assert_status(&d, 0, NULL, NULL);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* The emulated GPU is lost after some works. */
static void gpu_lost(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    zi_start(&d, options_with("--gpu-bytes", "8M", "--gpu", "emulated:16M::60:4K"));
    assert_status(&d, 0, NULL, NULL);
    sv_open(&r, 1, &d, 0);
    for (uint64_t k = 1; k < 40 && !is_found(&d, "gpu-failed"); k++) {
        struct zc_step step = { .step = k, .scale = 1, .groups = sv_groups, .ngroups = SV_GROUPS };
        struct zc_stepped stepped;
        unsigned rank;

        if (sv_push_try(&r, 1, k, &rank) < 0 || zc_step_wait(r.c, r.job.id, &step, &stepped) < 0)
            break;               /* the job has ended with the GPU */
        (void)poll(NULL, 0, 10); /* its memory is allocated meanwhile */
    }
    assert_status(&d, 8, "gpu-failed", "error");
    zc_close(r.c);
    zi_stop(&d);
}

/* Few descriptors are left: 19 of 20 are open. */
static void few_descriptors(void **state)
{
    struct zi_daemon d = { 0 };
    struct zc_client *clients[40];
    char text[16384];
    unsigned n = 0;

    (void)state;
    zi_start(&d, options_plain());
    while (zi_files(&d) < 60 && n < ZB_COUNT(clients))
        clients[n++] = zi_client(&d);
    limit(&d, RLIMIT_NOFILE, zi_files(&d) + 3); /* zctl's connection, and /proc/self/fd */
    assert_status(&d, 8, "descriptors-low", "error");
    assert_int_equal(status_as(&d, "", text, sizeof(text)), 8); /* for people */
    assert_true(strncmp(text, "degraded: 1 error", 17) == 0);
    assert_non_null(strstr(text, "\n  error   descriptors-low: "));
    assert_non_null(strstr(text, "\n  to do   raise LimitNOFILE"));
    limit(&d, RLIMIT_NOFILE, UINT64_MAX);
    assert_status(&d, 0, NULL, NULL);
    while (n > 0)
        zc_close(clients[--n]);
    zi_stop(&d);
}

/* Advice does not make it degraded. */
static void advice(void **state)
{
    static const uint8_t garbage[] = { 0x0f };
    uint8_t frame[ZP_HEADER_BYTES + sizeof(garbage)];
    const struct zp_frame head = { .body_bytes = sizeof(garbage),
                                   .method = ZP_RELEASE,
                                   .kind = ZP_ONEWAY };
    struct zi_daemon d = { 0 };
    struct zi_raw raw;

    (void)state;
    zi_start(&d, options_with("--io", "fixed", NULL, NULL));
    assert_status(&d, 0, "io-fixed", "advice");
    zi_raw_open(&raw, &d);
    zp_frame_put(&head, frame);
    memcpy(frame + ZP_HEADER_BYTES, garbage, sizeof(garbage));
    for (unsigned i = 0; i < 200; i++)
        zi_raw_bytes(&raw, frame, sizeof(frame), NULL, 0);
    zi_raw_alive(&raw);
    assert_status(&d, 0, "log-lines-dropped", "advice");
    zi_raw_close(&raw);
    zi_stop(&d);
}

/* The number behind a name in the metrics. */
static double metric(struct zc_client *c, const char *name)
{
    char *text = NULL, line[96];
    double value = -1;
    const char *at;
    size_t n;

    assert_int_equal(zc_metrics_wait(c, ZC_OPENMETRICS, &text, &n), 0);
    (void)snprintf(line, sizeof(line), "\n%s ", name);
    at = strstr(text, line);
    if (at)
        value = strtod(at + strlen(line), NULL);
    zc_rows_free(text);
    return value;
}

/* A job that trains, commits and is scrubbed: all of it is shown, and counted. */
static void healthy_and_complete(void **state)
{
    struct zc_reason *reasons = NULL;
    struct zc_health h;
    struct zi_daemon d = { 0 };
    struct zi_rank r;
    size_t n;

    (void)state;
    zi_start(&d, options_plain());
    sv_open(&r, 1, &d, 0);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    sv_step(&r, 1, 2, ZC_COMMIT_STEP);
    assert_int_equal(scrub(r.c), 0);
    assert_int_equal(zc_health_wait(r.c, &h, &reasons, &n), 0);
    assert_int_equal(h.errors, 0);
    assert_true(h.clients == 1 && h.clients_max >= 1 && h.jobs == 1 && h.saved == 0);
    assert_true(h.committed && h.commit_iterations == 2 && h.commit_us > 0);
    assert_string_equal(h.commit_job, sv_name);
    assert_true(h.scrubbed && h.scrub_bytes > 0 && h.scrub_bad_pages == 0);
    assert_string_equal(h.scrub_state, "done");
    assert_true(h.turn_max_us > 0 && h.ntiers == 2 && h.tiers[0].used > 0);
    zc_rows_free(reasons);
    assert_true(metric(r.c, "zshard_commit_seconds_count") == 2);
    assert_true(metric(r.c, "zshard_commits_total") == 2);
    assert_true(metric(r.c, "zshard_commits_failed_total") == 0);
    assert_true(metric(r.c, "zshard_commit_seconds_sum") * 1e6 >= (double)h.commit_us);
    assert_true(metric(r.c, "zshard_flush_seconds_count") >= 4); /* pages, and slots */
    assert_true(metric(r.c, "zshard_read_seconds_count") > 0);
    assert_true(metric(r.c, "zshard_write_seconds_count") > 0);
    assert_true(metric(r.c, "zshard_catalog_changes_total") >= 2);
    assert_true(metric(r.c, "zshard_scrub_timestamp_seconds") > 1e9);
    sv_hang_up(&r, 1);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(healthy_and_complete, zi_teardown),
        cmocka_unit_test_teardown(drive_and_commit, zi_teardown),
        cmocka_unit_test_teardown(poisoned, zi_teardown),
        cmocka_unit_test_teardown(bad_pages, zi_teardown),
        cmocka_unit_test_teardown(gpu_lost, zi_teardown),
        cmocka_unit_test_teardown(few_descriptors, zi_teardown),
        cmocka_unit_test_teardown(advice, zi_teardown),
    };

    (void)signal(SIGXFSZ, SIG_IGN); /* for the daemons, too: a write beyond the limit fails */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
