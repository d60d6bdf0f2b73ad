/*
 * metrics.c - the daemon's metrics as text, in OpenMetrics 1.0 or in Prometheus' own format.
 *
 * MODEL. Each reply has whole families, with labels, values and buckets; here they become lines. So
 * a metric of a newer daemon is shown too. What a reply says is checked: a text that is returned is
 * always valid. Numbers are formatted without the program's locale.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/rows_priv.h"

enum { TYPE_GAUGE = 1, TYPE_COUNTER, TYPE_HISTOGRAM, TYPE_INFO };

#define VALUE_MAX 1.8e19 /* below 2^64 */

/* The output of a call. */
struct text {
    FILE *out;
    bool open_metrics;
    uint64_t cursor;
};

struct number {
    char s[40];
};

/* A value that is_number(): whole, or with up to nine digits behind the point. */
static struct number number(double value)
{
    struct number n;
    uint64_t whole = (uint64_t)value;
    uint64_t billionths = (uint64_t)((value - (double)whole) * 1e9 + 0.5);
    size_t len;

    if (billionths >= 1000000000) {
        whole++;
        billionths = 0;
    }
    len = (size_t)snprintf(n.s, sizeof(n.s), "%llu.%09llu", (unsigned long long)whole,
                           (unsigned long long)billionths);
    while (n.s[len - 1] == '0')
        n.s[--len] = '\0';
    if (n.s[len - 1] == '.')
        n.s[len - 1] = '\0';
    return n;
}

/* A bound as OpenMetrics wants it: "1e-06", "0.0002", "1.0". */
static struct number bound(double value)
{
    struct number n = number(value);
    uint64_t ns = (uint64_t)(value * 1e9 + 0.5);
    int exponent = -9;

    if (ns >= 100000) {
        if (!strchr(n.s, '.'))
            (void)snprintf(n.s, sizeof(n.s), "%llu.0", (unsigned long long)(ns / 1000000000));
        return n;
    }
    for (; ns > 0 && ns % 10 == 0; exponent++)
        ns /= 10;
    if (ns > 0 && ns < 10)
        (void)snprintf(n.s, sizeof(n.s), "%ue%03d", (unsigned)ns, exponent);
    return n;
}

static bool is_number(double value)
{
    return value >= 0 && value < VALUE_MAX; /* false for NaN */
}

/* Whether it is a name of a metric or of a label. */
static bool is_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";

    return name[0] != '\0' && strchr(letters, name[0]) &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")] ==
               '\0';
}

/* Replies have no control characters: only these two need an escape. */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            (void)fputc('\\', out);
        (void)fputc(*text, out);
    }
}

/* Prints `name{labels}`, with one more label if extra is given. */
static void put_series(FILE *out, const Zp__MetricFamily *f, const char *suffix,
                       const Zp__MetricSample *s, const char *extra, const char *value)
{
    const char *before = "{";

    (void)fprintf(out, "%s%s", f->name, suffix);
    for (size_t i = 0; i + 1 < s->n_labels; i += 2, before = ",") {
        (void)fprintf(out, "%s%s=\"", before, s->labels[i]);
        put_escaped(out, s->labels[i + 1]);
        (void)fputc('"', out);
    }
    if (extra) {
        (void)fprintf(out, "%s%s=\"%s\"", before, extra, value);
        before = ",";
    }
    (void)fputs(*before == ',' ? "} " : " ", out);
}

static void put_histogram(FILE *out, const Zp__MetricFamily *f, const Zp__MetricSample *s)
{
    uint64_t n = 0;

    for (size_t i = 0; i < s->n_counts; i++) {
        n += s->counts[i];
        put_series(out, f, "_bucket", s, "le", i < f->n_bounds ? bound(f->bounds[i]).s : "+Inf");
        (void)fprintf(out, "%llu\n", (unsigned long long)n);
    }
    put_series(out, f, "_count", s, NULL, NULL);
    (void)fprintf(out, "%llu\n", (unsigned long long)n);
    put_series(out, f, "_sum", s, NULL, NULL);
    (void)fprintf(out, "%s\n", number(s->value).s);
}

/* The head of a family. In Prometheus' own format the type belongs to the name of the samples, and
 * there is no type `info`. */
static void put_head(const struct text *t, const Zp__MetricFamily *f)
{
    static const char *const types[] = { [TYPE_GAUGE] = "gauge",
                                         [TYPE_COUNTER] = "counter",
                                         [TYPE_HISTOGRAM] = "histogram",
                                         [TYPE_INFO] = "info" };
    const char *suffix = "", *type = types[f->type];

    if (!t->open_metrics) {
        suffix = f->type == TYPE_COUNTER ? "_total" : f->type == TYPE_INFO ? "_info" : "";
        type = types[f->type == TYPE_INFO ? TYPE_GAUGE : f->type];
    }
    (void)fprintf(t->out, "# TYPE %s%s %s\n", f->name, suffix, type);
    if (t->open_metrics && f->unit[0] != '\0')
        (void)fprintf(t->out, "# UNIT %s %s\n", f->name, f->unit);
    (void)fprintf(t->out, "# HELP %s%s ", f->name, suffix);
    put_escaped(t->out, f->help);
    (void)fputc('\n', t->out);
}

static void put_family(const struct text *t, const Zp__MetricFamily *f)
{
    static const char *const suffixes[] = { [TYPE_COUNTER] = "_total", [TYPE_INFO] = "_info" };

    put_head(t, f);
    for (size_t i = 0; i < f->n_samples; i++) {
        const Zp__MetricSample *s = f->samples[i];

        if (f->type == TYPE_HISTOGRAM) {
            put_histogram(t->out, f, s);
            continue;
        }
        put_series(t->out, f, f->type == TYPE_GAUGE ? "" : suffixes[f->type], s, NULL, NULL);
        (void)fprintf(t->out, "%s\n", number(s->value).s);
    }
}

/* Whether the name ends with the unit, as it must. */
static bool has_unit(const Zp__MetricFamily *f)
{
    size_t name = strlen(f->name), unit = strlen(f->unit);

    return unit == 0 || (name > unit + 1 && f->name[name - unit - 1] == '_' &&
                         strcmp(f->name + name - unit, f->unit) == 0);
}

static bool sample_valid(const Zp__MetricFamily *f, const Zp__MetricSample *s)
{
    bool valid = is_number(s->value) && s->n_labels % 2 == 0 &&
                 s->n_counts == (f->type == TYPE_HISTOGRAM ? f->n_bounds + 1 : 0);

    for (size_t i = 0; i < s->n_labels && valid; i += 2)
        valid = is_name(s->labels[i]);
    return valid;
}

static bool family_valid(const Zp__MetricFamily *f)
{
    bool valid = is_name(f->name) && has_unit(f);

    for (size_t i = 0; i < f->n_bounds && valid; i++)
        valid = is_number(f->bounds[i]) && (i == 0 || f->bounds[i] > f->bounds[i - 1]);
    for (size_t i = 0; i < f->n_samples && valid; i++)
        valid = sample_valid(f, f->samples[i]);
    return valid;
}

static int reply_metrics(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                         int *fds)
{
    const Zp__MetricsReply *r = (const Zp__MetricsReply *)m;
    struct text *t = call->spec.ret;

    (void)fds;
    if (r->cursor != 0 && r->cursor <= t->cursor)
        return zc_fail(c, -EPROTO, "parts of the metrics are out of order");
    t->cursor = r->cursor;
    for (size_t i = 0; i < r->n_families; i++) {
        const Zp__MetricFamily *f = r->families[i];

        if (f->type < TYPE_GAUGE || f->type > TYPE_INFO)
            continue; /* a newer daemon's */
        if (!family_valid(f))
            return zc_fail(c, -EPROTO, "metric '%s' is not valid", f->name);
        put_family(t, f);
    }
    return 0;
}

static const struct zc_method method_metrics = { .id = ZP_METRICS, .reply = reply_metrics };

/* Sends requests until all families are in the text. */
static int metrics_collect(struct zc_client *c, struct text *t)
{
    Zp__MetricsRequest m = ZP__METRICS_REQUEST__INIT;
    int rc;

    do {
        struct zc_waiter w = { .client = c };

        m.cursor = t->cursor;
        rc = zc_wait(&w, zc_ask(c, &method_metrics, &m.base, t, zc_waiter_done, &w), 0);
    } while (rc == 0 && t->cursor != 0);
    return rc;
}

int zc_metrics_wait(struct zc_client *c, enum zc_metrics_format format, char **ret_text,
                    size_t *ret_bytes)
{
    struct text t = { .open_metrics = format == ZC_OPENMETRICS };
    char *bytes = NULL;
    size_t n = 0;
    int rc;

    if (format != ZC_OPENMETRICS && format != ZC_PROMETHEUS)
        return zc_fail(c, -EINVAL, "format %d of metrics: must be 0 or 1", (int)format);
    t.out = open_memstream(&bytes, &n);
    if (!t.out)
        return zc_fail(c, -ENOMEM, "metrics: %m");
    rc = metrics_collect(c, &t);
    if (rc == 0 && t.open_metrics)
        (void)fputs("# EOF\n", t.out);
    if (ferror(t.out) | (fclose(t.out) != 0) && rc == 0)
        rc = zc_fail(c, -ENOMEM, "metrics: %m");
    if (rc < 0) {
        free(bytes);
        return rc;
    }
    *ret_text = bytes;
    *ret_bytes = n;
    return 0;
}
