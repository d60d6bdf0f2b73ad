#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/array.h"
#include "base/size.h"
#include "bench/zbench.h"
#include "zbench_commit.h"

static int double_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* sorted[]: room for ZBENCH_ROUNDS_MAX. */
static void report_sort(double *sorted, const double *values, unsigned n)
{
    memcpy(sorted, values, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), double_order);
}

double zbench_median(const double *values, unsigned n)
{
    double v[ZBENCH_ROUNDS_MAX];

    report_sort(v, values, n);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double zbench_quantile(const double *values, unsigned n, double part)
{
    double v[ZBENCH_ROUNDS_MAX];

    report_sort(v, values, n);
    return v[(unsigned)(part * (n - 1) + 0.5)];
}

double zbench_spread(const double *values, unsigned n)
{
    double v[ZBENCH_ROUNDS_MAX], median = zbench_median(values, n);

    report_sort(v, values, n);
    return median != 0 ? (v[n - 1] - v[0]) / median : 0;
}

/*
 * Each value is above the true median with probability 1/2, so the number above it is binomial. The
 * k-th least and the k-th greatest value miss the median when fewer than k values are on one side:
 * with probability 2 * P(B < k).
 */
double zbench_interval(const double *values, unsigned n, double *ret_low, double *ret_high)
{
    double v[ZBENCH_ROUNDS_MAX];
    double term = pow(0.5, n), below = term, confidence = 1 - 2 * below;
    unsigned k = 1;

    for (unsigned i = 1; i < n / 2; i++) {
        term = term * (n - i + 1) / i; /* P(B = i) */
        if (1 - 2 * (below + term) < 0.95)
            break;
        below += term;
        confidence = 1 - 2 * below;
        k = i + 1;
    }
    report_sort(v, values, n);
    *ret_low = v[k - 1];
    *ret_high = v[n - k];
    return confidence;
}

int zbench_add(struct zbench *z, const struct zbench_row *named, const double *values,
               const double *references, unsigned n)
{
    double ratios[ZBENCH_ROUNDS_MAX];
    struct zbench_row *r;

    if (zb_grow(&z->rows, &z->room, z->count, 1) < 0)
        return zb_fail(&z->err, -ENOMEM, "a row of results: %m");
    r = &z->rows[z->count++];
    *r = *named;
    for (unsigned i = 0; i < n; i++)
        ratios[i] = values[i] / references[i];
    r->value = zbench_median(values, n);
    r->reference = zbench_median(references, n);
    r->spread = zbench_spread(values, n);
    r->paired = zbench_median(ratios, n);
    r->confidence = zbench_interval(ratios, n, &r->low, &r->high);
    return 0;
}

struct zbench_row zbench_row(const char *unit, bool lower, const char *reference_name,
                             const char *fmt, ...)
{
    struct zbench_row row = { .unit = unit, .lower = lower, .reference_name = reference_name };
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(row.name, sizeof(row.name), fmt, ap);
    va_end(ap);
    return row;
}

int zbench_add_fixed(struct zbench *z, const struct zbench_row *named, const double *values,
                     double reference, unsigned n)
{
    double references[ZBENCH_ROUNDS_MAX];

    for (unsigned i = 0; i < n; i++)
        references[i] = reference;
    return zbench_add(z, named, values, references, n);
}

void zbench_note(const struct zbench *z, const char *fmt, ...)
{
    FILE *out = z->json ? stderr : stdout;
    va_list ap;

    va_start(ap, fmt);
    (void)vfprintf(out, fmt, ap);
    va_end(ap);
    (void)fputc('\n', out);
    (void)fflush(out);
}

/* "Intel(R) Xeon(R) Processor, 2 processors, 47.1 GiB, Linux 6.1.0" */
static void report_machine(char *ret, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256], cpu[128] = "unknown processor";
    struct utsname u;

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "model name : %127[^\n]", cpu) == 1)
            break;
    }
    if (f)
        (void)fclose(f);
    if (uname(&u) < 0)
        u.sysname[0] = u.release[0] = '\0';
    (void)snprintf(
        ret, size, "%s, %ld processors, %s, %s %s", cpu, sysconf(_SC_NPROCESSORS_ONLN),
        zb_size_text((uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE)).s,
        u.sysname, u.release);
}

static json_t *report_row_json(const struct zbench_row *r)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:s, s:f, s:s, s:f, s:f, s:[f,f], s:f}", "case", r->name,
                     "unit", r->unit, "value", r->value, "reference", r->reference,
                     "reference_name", r->reference_name, "ratio", r->value / r->reference,
                     "better", r->lower ? "lower" : "higher", "spread", r->spread, "paired",
                     r->paired, "interval", r->low, r->high, "confidence", r->confidence);
}

static int report_json(struct zbench *z, const char *machine)
{
    json_t *rows = json_array(), *all;
    int rc = 0;

    for (size_t i = 0; i < z->count; i++)
        rc |= json_array_append_new(rows, report_row_json(&z->rows[i]));
    all = json_pack("{s:s, s:s, s:s, s:o}", "bench", z->bench, "commit", ZBENCH_COMMIT, "machine",
                    machine, "rows", rows);
    if (rc != 0 || !all || json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0)
        rc = zb_fail(&z->err, -EIO, "the results could not be written as JSON");
    (void)putchar('\n');
    json_decref(all);
    return rc;
}

static void report_table(const struct zbench *z, const char *machine)
{
    (void)printf("\n%s, commit %.12s%s\n", machine, ZBENCH_COMMIT,
                 strstr(ZBENCH_COMMIT, "-dirty") ? "-dirty" : "");
    (void)printf("%-28s %10s %10s %-6s %7s %7s  %-17s %6s\n", "case", "value", "reference", "unit",
                 "ratio", "paired", "interval", "spread");
    for (size_t i = 0; i < z->count; i++) {
        const struct zbench_row *r = &z->rows[i];

        (void)printf("%-28s %10.1f %10.1f %-6s %7.3f %7.3f  [%.3f, %.3f]    %5.0f%%%s\n", r->name,
                     r->value, r->reference, r->unit, r->value / r->reference, r->paired, r->low,
                     r->high, 100 * r->spread, r->lower ? "  lower is better" : "");
    }
    if (z->count > 0)
        (void)printf("paired: median of the ratios of the rounds; interval: contains it with "
                     "probability %.3f (order statistics)\n",
                     z->rows[0].confidence);
}

int zbench_print(struct zbench *z)
{
    char machine[384];
    int rc = 0;

    report_machine(machine, sizeof(machine));
    if (z->json)
        rc = report_json(z, machine);
    else
        report_table(z, machine);
    if (rc == 0 && fflush(stdout) != 0)
        rc = zb_fail(&z->err, -errno, "standard output: %m");
    return rc;
}

void zbench_done(struct zbench *z)
{
    free(z->rows);
    z->rows = NULL;
    z->count = z->room = 0;
}

double zbench_cpu_s(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u); /* cannot fail: u is ours */
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}
