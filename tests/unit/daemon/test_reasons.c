/*
 * The rules of zctl status: each reason begins and ends where it should, and nothing else is found
 * with it.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "daemon/show/reasons.h"

#define SECOND UINT64_C(1000000000)
#define HOUR   (3600 * SECOND)
#define NOW    (1000 * HOUR)
#define ERROR  ZSD_REASON_ERROR
#define ADVICE ZSD_REASON_ADVICE
#define NONE   ZSD_REASON_NONE

static struct zb_err err(int code, const char *text)
{
    struct zb_err e = { .code = code };

    (void)snprintf(e.text, sizeof(e.text), "%s", text);
    return e;
}

#define DRIVE(...) .ndrives = 2, .drives = { [1] = { .path = "/mnt/b", __VA_ARGS__ } }
#define FAILED(ns) DRIVE(.failed = 3, .failed_ns = NOW - (ns), .failed_rc = -EIO)

static const struct row {
    const char *id;
    enum zsd_reason_level level;
    const char *says; /* a part of the text */
    struct zsd_facts facts;
} rows[] = {
    { "store-poisoned", ERROR, "a flush of", { .poisoned = { -EIO, "a flush of the data file" } } },
    { "read-only", ERROR, "--read-only", { .read_only = true } },
    { "catalog-full", ERROR, "no space", { .catalog_full = { -ENOSPC, "no space" } } },
    { "catalog-copy-failed",
      ERROR,
      "no copy of the catalog in '/mnt/c': no space",
      { .copies_failed = 1, .copy_path = "/mnt/c", .copy_why = { -ENOSPC, "no space" } } },
    { "catalog-copy-failed",
      ERROR,
      "'/mnt/c', nor on 2 other drives: cut",
      { .copies_failed = 3, .copy_path = "/mnt/c", .copy_why = { -EBADMSG, "cut" } } },
    { "gpu-failed", ERROR, "has failed: lost", { .gpu_failed = { -EIO, "lost" } } },

    { "drive-errors", ERROR, "3 transfers", { FAILED(0) } },
    { "drive-errors", ERROR, "'/mnt/b': Input/output error", { FAILED(HOUR - 1) } },
    { "drive-errors", ADVICE, "60 min ago", { FAILED(HOUR) } },
    { "drive-errors", ADVICE, "20 days ago", { FAILED(480 * HOUR) } },

    { "drive-stalled", NONE, "", { .ndrives = 1, .drives = { { .waits_ns = 9 * SECOND } } } },
    { "drive-stalled",
      ERROR,
      "for 10 s",
      { .ndrives = 1, .drives = { { .waits_ns = 10 * SECOND } } } },
    { "drive-drained",
      ADVICE,
      "'/a' is drained on request; 0 B are left there",
      { .ndrives = 1,
        .drives = { { .drained = true,
                      .asked = true,
                      .path = "/a",
                      .state = "drained on request" } } } },
    { "drive-drained",
      ERROR,
      "'/b' is drained: it is slow (1 MB/s)",
      { .ndrives = 2,
        .drives = { { .drained = true, .asked = true },
                    { .drained = true,
                      .path = "/b",
                      .state = "drained: it is slow",
                      .drained_why = "1 MB/s" } } } },

    { "pages-bad", ERROR, "has found 1 ", { .scrub_now_bad = 1 } },
    { "pages-bad", ERROR, "found 2 bad pages", { .scrub_ended_ns = NOW - 1, .scrub_bad = 2 } },
    { "pages-bad", ERROR, "4 pages were corrupt", { .corrupt = 4, .corrupt_ns = NOW - SECOND } },
    { "pages-bad",
      ERROR,
      "1 s ago",
      { .corrupt = 4,
        .corrupt_ns = NOW - SECOND,
        .scrub_began_ns = NOW - 2 * SECOND, /* it may have read the page before */
        .scrub_ended_ns = NOW } },
    { "pages-bad",
      NONE,
      "",
      { .corrupt = 4,
        .corrupt_ns = NOW - 3 * SECOND,
        .scrub_began_ns = NOW - 2 * SECOND,
        .scrub_ended_ns = NOW } },

    { "commits-failing",
      ERROR,
      "of job 'a' failed: full",
      { .jobs_failing = 1, .failing_job = "a", .failing_why = "full" } },
    { "commits-failing",
      ERROR,
      "'a' (full) and of 2 others",
      { .jobs_failing = 3, .failing_job = "a", .failing_why = "full" } },
    { "commits-failing", ERROR, "of 2 jobs of other users", { .jobs_failing = 2 } },

    { "filesystem-low", NONE, "", { .filesystem_known = true, .filesystem_left = ZB_GIB } },
    { "filesystem-low",
      ADVICE,
      "1024 MiB",
      { .filesystem_known = true, .filesystem_left = ZB_GIB - 1 } },
    { "filesystem-low",
      ADVICE,
      "64.0 MiB",
      { .filesystem_known = true, .filesystem_left = 64 * ZB_MIB } },
    { "filesystem-low", ERROR, "has 0 B", { .filesystem_known = true, .filesystem_left = 0 } },
    { "filesystem-low", NONE, "", { .filesystem_left = 0 } },

    { "descriptors-low", NONE, "", { .files = 799, .files_max = 1000 } },
    { "descriptors-low", ADVICE, "800 of 1000", { .files = 800, .files_max = 1000 } },
    { "descriptors-low", ADVICE, "949 of 1000", { .files = 949, .files_max = 1000 } },
    { "descriptors-low", ERROR, "950 of 1000", { .files = 950, .files_max = 1000 } },
    { "descriptors-low",
      ADVICE,
      "clients_max=250 may need 1512",
      { .files = 1, .files_max = 1000, .files_wanted = 1512, .clients_max = 250 } },
    { "descriptors-low", NONE, "", { .files = 1, .files_max = 1512, .files_wanted = 1512 } },

    { "nvme-low", NONE, "", { .nvme_used = 949, .nvme_bytes = 1000 } },
    { "nvme-low",
      ADVICE,
      "950 B of the NVMe tier's 1000 B",
      { .nvme_used = 950, .nvme_bytes = 1000 } },
    { "memory-low", NONE, "", { .host_left = 256 * ZB_MIB, .host_bytes = ZB_GIB } },
    { "memory-low", ADVICE, "of the machine's", { .host_left = 1, .host_bytes = ZB_GIB } },
    { "clients-full", NONE, "", { .clients = 89, .clients_max = 100 } },
    { "clients-full", ADVICE, "90 of 100", { .clients = 90, .clients_max = 100 } },
    { "log-lines-dropped", ADVICE, "7 log lines", { .lines_dropped = 7 } },

    { "io-slower", ADVICE, "'/mnt/b': refused", { DRIVE(.why = "refused") } },
    { "io-buffered", ADVICE, "'/mnt/b': tmpfs", { DRIVE(.why_buffered = "tmpfs") } },
    { "io-unregistered", ADVICE, "'/mnt/b': memlock", { DRIVE(.why_unregistered = "memlock") } },
    { "io-fixed", ADVICE, "io = fixed", { .fixed = true } },
    { "drive-left-out", ADVICE, "number 2 was left out", { .without = 2 } },
    { "gpu-unpinned", ADVICE, "no room", { .gpu_unpinned = { -ENOMEM, "no room" } } },
    { "ending", ADVICE, "is stopping", { .ending = true } },
};

/* The rule of the row finds what it says, and no other rule finds anything. */
static void check(const struct row *row, struct zsd_reason *reasons)
{
    struct zsd_facts facts = row->facts;
    unsigned errors, found = 0;

    facts.now_ns = NOW;
    errors = zsd_reasons_find(&facts, reasons);
    for (unsigned i = 0; i < ZSD_REASONS; i++) {
        const struct zsd_reason *r = &reasons[i];

        if (strcmp(r->id, row->id) != 0) {
            if (r->level != NONE || r->text[0] != '\0')
                fail_msg("%s (%s): also %s: %s", row->id, row->says, r->id, r->text);
            continue;
        }
        found++;
        if (r->level != row->level || !strstr(r->text, row->says))
            fail_msg("%s: level %d, '%s'; wanted %d, '%s'", r->id, (int)r->level, r->text,
                     (int)row->level, row->says);
    }
    assert_int_equal(found, 1);
    assert_int_equal(errors, row->level == ERROR);
}

static void each_rule(void **state)
{
    struct zsd_reason reasons[ZSD_REASONS];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        check(&rows[i], reasons);
    for (unsigned i = 0; i < ZSD_REASONS; i++) {
        unsigned covered = 0;

        for (size_t k = 0; k < ZB_COUNT(rows); k++)
            covered += strcmp(rows[k].id, reasons[i].id) == 0 && rows[k].level != NONE;
        if (covered == 0)
            fail_msg("no row for %s", reasons[i].id);
    }
}

static void nothing_is_healthy(void **state)
{
    const struct zsd_facts facts = { .now_ns = NOW };
    struct zsd_reason reasons[ZSD_REASONS];

    (void)state;
    assert_int_equal(zsd_reasons_find(&facts, reasons), 0);
    for (unsigned i = 0; i < ZSD_REASONS; i++) {
        assert_int_equal(reasons[i].level, NONE);
        assert_true(strlen(reasons[i].id) < 32 && strlen(reasons[i].fix) > 10);
        assert_true(strlen(reasons[i].fix) < 256);
        for (unsigned k = 0; k < i; k++)
            assert_string_not_equal(reasons[i].id, reasons[k].id);
    }
}

/* Several errors are counted; texts with bytes of outside are clean, also where they are cut. */
static void errors_and_texts(void **state)
{
    struct zsd_facts facts = { .now_ns = NOW,
                               .poisoned = err(-EIO, "one"),
                               .gpu_failed = err(-EIO, "two"),
                               .lines_dropped = 1,
                               DRIVE(.why = "x") };
    struct zsd_reason reasons[ZSD_REASONS];

    (void)state;
    (void)snprintf(facts.drives[1].path, sizeof(facts.drives[1].path), "/mnt/\n\xff");
    assert_int_equal(zsd_reasons_find(&facts, reasons), 2);
    for (unsigned i = 0; i < ZSD_REASONS; i++)
        if (strcmp(reasons[i].id, "io-slower") == 0)
            assert_non_null(strstr(reasons[i].text, "'/mnt/\?\?'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule),
        cmocka_unit_test(nothing_is_healthy),
        cmocka_unit_test(errors_and_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
