/*
 * Metrics as text: both formats, several parts, numbers and escapes; answers that are not valid
 * metrics; and health.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "tests/alloc_fail.h"
#include "tests/unit/client/session.h"

#define T(text) ((char *)(uintptr_t)(text))

static char *labels[] = { T("path"), T("a\"b\\c"), T("op"), T("read") };
static uint64_t counts[] = { 1, 0, 2, 3 };
static double bounds[] = { 0.00001, 0.0002, 10 };

/* What the fake daemon sends: two parts. */
struct parts {
    Zp__MetricFamily family[4], *list[4];
    Zp__MetricSample sample[4], *samples[4];
    uint64_t cursors[3];
    unsigned nfamilies[3]; /* of each part; the last part is empty */
    unsigned sent;
};

static void parts_make(struct parts *p)
{
    *p = (struct parts){ .cursors = { 9, 0, 0 }, .nfamilies = { 2, 2, 0 } };
    for (unsigned i = 0; i < 4; i++) {
        zp__metric_family__init(&p->family[i]);
        zp__metric_sample__init(&p->sample[i]);
        p->samples[i] = &p->sample[i];
        p->family[i].n_samples = 1;
        p->family[i].samples = &p->samples[i];
        p->list[i] = &p->family[i];
    }
    p->family[0].name = T("z_gauge");
    p->family[0].type = 1;
    p->family[0].help = T("A \\ gauge.");
    p->sample[0].value = 1.5;
    p->sample[0].n_labels = 4;
    p->sample[0].labels = labels;
    p->family[1].name = T("z_read_bytes");
    p->family[1].type = 2;
    p->family[1].unit = T("bytes");
    p->sample[1].value = 4503599627370497.0;
    p->family[2].name = T("z_wait_seconds");
    p->family[2].type = 3;
    p->family[2].unit = T("seconds");
    p->family[2].n_bounds = 3;
    p->family[2].bounds = bounds;
    p->sample[2].n_counts = 4;
    p->sample[2].counts = counts;
    p->sample[2].value = 0.000000001;
    p->family[3].name = T("z_build");
    p->family[3].type = 4;
    p->sample[3].value = 1;
    p->sample[3].n_labels = 2;
    p->sample[3].labels = labels + 2;
}

static bool parts_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__MetricsReply reply = ZP__METRICS_REPLY__INIT;
    struct parts *p = f->arg;
    unsigned first = 0;

    (void)body;
    if (frame->method != ZP_METRICS)
        return false;
    for (unsigned i = 0; i < p->sent; i++)
        first += p->nfamilies[i];
    reply.n_families = p->nfamilies[p->sent];
    reply.families = p->list + first;
    reply.cursor = p->cursors[p->sent++];
    fake_reply(f, frame, &reply.base, -1);
    return true;
}

static const char open_metrics[] = "# TYPE z_gauge gauge\n"
                                   "# HELP z_gauge A \\\\ gauge.\n"
                                   "z_gauge{path=\"a\\\"b\\\\c\",op=\"read\"} 1.5\n"
                                   "# TYPE z_read_bytes counter\n"
                                   "# UNIT z_read_bytes bytes\n"
                                   "# HELP z_read_bytes \n"
                                   "z_read_bytes_total 4503599627370497\n"
                                   "# TYPE z_wait_seconds histogram\n"
                                   "# UNIT z_wait_seconds seconds\n"
                                   "# HELP z_wait_seconds \n"
                                   "z_wait_seconds_bucket{le=\"1e-05\"} 1\n"
                                   "z_wait_seconds_bucket{le=\"0.0002\"} 1\n"
                                   "z_wait_seconds_bucket{le=\"10.0\"} 3\n"
                                   "z_wait_seconds_bucket{le=\"+Inf\"} 6\n"
                                   "z_wait_seconds_count 6\n"
                                   "z_wait_seconds_sum 0.000000001\n"
                                   "# TYPE z_build info\n"
                                   "# HELP z_build \n"
                                   "z_build_info{op=\"read\"} 1\n"
                                   "# EOF\n";

static const char prometheus[] = "# TYPE z_gauge gauge\n"
                                 "# HELP z_gauge A \\\\ gauge.\n"
                                 "z_gauge{path=\"a\\\"b\\\\c\",op=\"read\"} 1.5\n"
                                 "# TYPE z_read_bytes_total counter\n"
                                 "# HELP z_read_bytes_total \n"
                                 "z_read_bytes_total 4503599627370497\n"
                                 "# TYPE z_wait_seconds histogram\n"
                                 "# HELP z_wait_seconds \n"
                                 "z_wait_seconds_bucket{le=\"1e-05\"} 1\n"
                                 "z_wait_seconds_bucket{le=\"0.0002\"} 1\n"
                                 "z_wait_seconds_bucket{le=\"10.0\"} 3\n"
                                 "z_wait_seconds_bucket{le=\"+Inf\"} 6\n"
                                 "z_wait_seconds_count 6\n"
                                 "z_wait_seconds_sum 0.000000001\n"
                                 "# TYPE z_build_info gauge\n"
                                 "# HELP z_build_info \n"
                                 "z_build_info{op=\"read\"} 1\n";

static void both_formats(void **state)
{
    static const char *const want[] = {
        [ZC_OPENMETRICS] = open_metrics, [ZC_PROMETHEUS] = prometheus
    };

    (void)state;
    (void)setlocale(LC_ALL, "de_DE.UTF-8"); /* a comma, where it is installed */
    for (unsigned i = 0; i < ZB_COUNT(want); i++) {
        struct parts p;
        struct session x;
        char *text = NULL;
        size_t n = 0;

        parts_make(&p);
        x = session_open(parts_fn, &p);
        assert_int_equal(zc_metrics_wait(x.c, (enum zc_metrics_format)i, &text, &n), 0);
        assert_string_equal(text, want[i]);
        assert_int_equal(n, strlen(text));
        assert_int_equal(fake_count(x.f, ZP_METRICS), 2);
        zc_rows_free(text);
        assert_int_equal(zc_metrics_wait(x.c, (enum zc_metrics_format)7, &text, &n), -EINVAL);
        session_close(&x);
    }
    (void)setlocale(LC_ALL, "C");
}

enum wrong {
    NAME,
    LABEL,
    ODD_LABELS,
    UNIT,
    NOT_A_NUMBER,
    NEGATIVE,
    FEW_COUNTS,
    COUNTS_OF_GAUGE,
    BOUNDS_FALL,
    CURSOR_AGAIN,
    WRONGS
};

static void make_wrong(struct parts *p, enum wrong wrong)
{
    static char *bad_labels[] = { T("1"), T("") };
    static double falling[] = { 1, 1, 2 };

    parts_make(p);
    if (wrong == NAME)
        p->family[0].name = T("z{}");
    if (wrong == LABEL)
        p->sample[0].labels = bad_labels, p->sample[0].n_labels = 2;
    if (wrong == ODD_LABELS)
        p->sample[0].n_labels = 3;
    if (wrong == UNIT)
        p->family[1].unit = T("seconds");
    if (wrong == NOT_A_NUMBER)
        p->sample[0].value = NAN;
    if (wrong == NEGATIVE)
        p->sample[0].value = -1;
    if (wrong == FEW_COUNTS)
        p->sample[2].n_counts = 3;
    if (wrong == COUNTS_OF_GAUGE)
        p->sample[0].counts = counts, p->sample[0].n_counts = 1;
    if (wrong == BOUNDS_FALL)
        p->family[2].bounds = falling;
    if (wrong == CURSOR_AGAIN)
        p->cursors[1] = 9;
}

/* A text is valid, or there is none. */
static void not_metrics(void **state)
{
    (void)state;
    for (unsigned i = 0; i < WRONGS; i++) {
        struct parts p;
        struct session x;
        char *text = NULL;
        size_t n = 0;

        make_wrong(&p, (enum wrong)i);
        x = session_open(parts_fn, &p);
        if (zc_metrics_wait(x.c, ZC_OPENMETRICS, &text, &n) != -EPROTO)
            fail_msg("case %u: '%s'", i, text);
        assert_null(text);
        session_close(&x);
    }
}

/* A newer daemon's type is left out. */
static void a_new_type(void **state)
{
    struct parts p;
    struct session x;
    char *text = NULL;
    size_t n = 0;

    (void)state;
    parts_make(&p);
    p.family[0].type = 5;
    x = session_open(parts_fn, &p);
    assert_int_equal(zc_metrics_wait(x.c, ZC_OPENMETRICS, &text, &n), 0);
    assert_null(strstr(text, "z_gauge"));
    assert_non_null(strstr(text, "z_build_info"));
    zc_rows_free(text);
    session_close(&x);
}

static bool old_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_METRICS && frame->method != ZP_HEALTH)
        return false;
    fake_refuse(f, frame, -ENOSYS, "this daemon knows no method");
    return true;
}

static void an_old_daemon(void **state)
{
    struct session x = session_open(old_fn, NULL);
    struct zc_reason *reasons = NULL;
    struct zc_health health;
    char *text = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(zc_metrics_wait(x.c, ZC_OPENMETRICS, &text, &n), -ENOSYS);
    assert_int_equal(zc_health_wait(x.c, &health, &reasons, &n), -ENOSYS);
    assert_int_equal(zc_ping_wait(x.c), 0);
    session_close(&x);
}

static bool health_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__HealthReply reply = ZP__HEALTH_REPLY__INIT;
    Zp__Reason rows[3], *list[3];
    Zp__TierRow tier = ZP__TIER_ROW__INIT, *tiers[6];

    (void)body;
    if (frame->method != ZP_HEALTH)
        return false;
    for (unsigned i = 0; i < 3; i++) {
        list[i] = &rows[i];
        zp__reason__init(&rows[i]);
        rows[i].id = T("id");
        rows[i].level = 2 - i;
    }
    rows[0].level = 7; /* a newer daemon's: worse than an error */
    for (unsigned i = 0; i < 6; i++)
        tiers[i] = &tier;
    tier.used = 8;
    reply.n_reasons = 3;
    reply.reasons = list;
    reply.n_tiers = 6;
    reply.tiers = tiers;
    reply.clients = 1;
    reply.clients_max = 2;
    reply.jobs = 3;
    reply.saved = 4;
    reply.committed = true;
    reply.commit_job = T("j");
    reply.commit_iterations = 5;
    reply.commit_ago_ms = 6;
    reply.commit_us = 7;
    reply.scrub_state = T("done");
    reply.turn_max_us = 9;
    reply.turn_p999_us = 10;
    fake_reply(f, frame, &reply.base, -1);
    return true;
}

static void health(void **state)
{
    struct session x = session_open(health_fn, NULL);
    struct zc_reason *reasons = NULL;
    struct zc_health h;
    size_t n = 0;

    (void)state;
    assert_int_equal(zc_health_wait(x.c, &h, &reasons, &n), 0);
    assert_int_equal(n, 3);
    assert_true(h.errors == 1 && reasons[0].level == ZC_REASON_ERROR);
    assert_true(reasons[1].level == ZC_REASON_ADVICE && reasons[2].level == ZC_REASON_ADVICE);
    assert_true(h.ntiers == ZC_TOP_TIERS_MAX && h.tiers[3].used == 8);
    assert_true(h.clients == 1 && h.clients_max == 2 && h.jobs == 3 && h.saved == 4);
    assert_true(h.committed && h.commit_iterations == 5 && h.commit_ago_ms == 6);
    assert_true(h.commit_us == 7 && !h.scrubbed && h.turn_max_us == 9 && h.turn_p999_us == 10);
    assert_string_equal(h.commit_job, "j");
    assert_string_equal(h.scrub_state, "done");
    zc_rows_free(reasons);
    session_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_formats), cmocka_unit_test(not_metrics),
        cmocka_unit_test(a_new_type),   cmocka_unit_test(an_old_daemon),
        cmocka_unit_test(health),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
