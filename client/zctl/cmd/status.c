/*
 * status.c - status: whether the daemon is healthy, why not, and what to do.
 *
 * An error makes the daemon degraded, and the exit status ZCTL_EXIT_DEGRADED. Advice does not.
 */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define WIDTH  100u /* of lines for people */
#define INDENT 10u  /* of texts */

/* ---- for people */

/* Prints a text after a label. It continues on further lines, below its beginning. */
static void text_print(FILE *out, const char *label, const char *text)
{
    (void)fprintf(out, "%-*s", (int)INDENT, label);
    while (strlen(text) > WIDTH - INDENT) {
        size_t n = WIDTH - INDENT;

        while (n > 0 && text[n] != ' ')
            n--;
        if (n == 0)
            break;
        (void)fprintf(out, "%.*s\n%*s", (int)n, text, (int)INDENT, "");
        text += n + 1;
    }
    (void)fprintf(out, "%s\n", text);
}

struct span {
    char s[32];
};

/* "850 us", "3.2 s", "12 min", "3 h", "9 days" */
static struct span span(uint64_t us)
{
    uint64_t s = us / 1000000;
    struct span t;

    if (us < 1000)
        (void)snprintf(t.s, sizeof(t.s), "%llu us", (unsigned long long)us);
    else if (s < 1)
        (void)snprintf(t.s, sizeof(t.s), "%.1f ms", (double)us / 1e3);
    else if (s < 120)
        (void)snprintf(t.s, sizeof(t.s), "%.1f s", (double)us / 1e6);
    else if (s < 7200)
        (void)snprintf(t.s, sizeof(t.s), "%llu min", (unsigned long long)(s / 60));
    else if (s < 172800)
        (void)snprintf(t.s, sizeof(t.s), "%llu h", (unsigned long long)(s / 3600));
    else
        (void)snprintf(t.s, sizeof(t.s), "%llu days", (unsigned long long)(s / 86400));
    return t;
}

static void verdict_print(FILE *out, const struct zc_health *h, size_t n)
{
    bool advice = n > h->errors;

    if (h->errors > 0)
        (void)fprintf(out, "degraded: %u error%s%s\n", h->errors, h->errors > 1 ? "s" : "",
                      advice ? ", and advice" : "");
    else
        (void)fprintf(out, "healthy%s\n", advice ? ", with advice" : "");
}

static void reason_print(FILE *out, const struct zc_reason *r)
{
    char text[sizeof(r->id) + sizeof(r->text) + 4];

    (void)snprintf(text, sizeof(text), "%s: %s", r->id, r->text);
    text_print(out, r->level == ZC_REASON_ERROR ? "  error" : "  advice", text);
    text_print(out, "  to do", r->fix);
}

static void commit_print(FILE *out, const struct zc_health *h)
{
    char text[sizeof(h->commit_job) + 128];

    if (!h->committed)
        (void)snprintf(text, sizeof(text), "none since the start");
    else
        (void)snprintf(text, sizeof(text), "%s%s%s, step %llu, %s ago, took %s",
                       *h->commit_job ? "job '" : "another user's job", h->commit_job,
                       *h->commit_job ? "'" : "", (unsigned long long)h->commit_iterations,
                       span(h->commit_ago_ms * 1000).s, span(h->commit_us).s);
    text_print(out, "commit", text);
}

static void scrub_print(FILE *out, const struct zc_health *h)
{
    char text[192];

    if (!h->scrubbed)
        (void)snprintf(text, sizeof(text), "%s; none was complete since the start", h->scrub_state);
    else
        (void)snprintf(text, sizeof(text), "%s; the last complete one %s ago: %s, %llu bad pages",
                       h->scrub_state, span(h->scrub_ago_ms * 1000).s,
                       zb_size_text(h->scrub_bytes).s, (unsigned long long)h->scrub_bad_pages);
    text_print(out, "scrub", text);
}

static void status_print(struct zctl *z, const struct zc_health *h, const struct zc_reason *reasons,
                         size_t n)
{
    const struct zc_server *server = zc_server(z->client);
    char text[128];

    verdict_print(z->out, h, n);
    for (size_t i = 0; i < n; i++)
        reason_print(z->out, &reasons[i]);
    (void)snprintf(text, sizeof(text), "%s, process %llu, up %s", server->server,
                   (unsigned long long)server->pid, span(h->uptime_ms * 1000).s);
    text_print(z->out, "daemon", text);
    (void)snprintf(text, sizeof(text), "%u of %u", h->clients, h->clients_max);
    text_print(z->out, "clients", text);
    (void)snprintf(text, sizeof(text), "%u in memory, %u saved", h->jobs, h->saved);
    text_print(z->out, "jobs", text);
    for (uint32_t i = 0; i < h->ntiers; i++) {
        (void)snprintf(text, sizeof(text), "%s of %s used", zb_size_text(h->tiers[i].used).s,
                       zb_size_text(h->tiers[i].budget).s);
        text_print(z->out, h->tiers[i].name, text);
    }
    commit_print(z->out, h);
    scrub_print(z->out, h);
    (void)snprintf(text, sizeof(text), "longest %s of CPU time; 99.9 %% below %s",
                   span(h->turn_max_us).s, span(h->turn_p999_us).s);
    text_print(z->out, "turn", text);
}

/* ---- for programs */

static json_t *reasons_json(const struct zc_reason *reasons, size_t n)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(
            all, json_pack("{s:s, s:s, s:s, s:s}", "id", reasons[i].id, "level",
                           reasons[i].level == ZC_REASON_ERROR ? "error" : "advice", "text",
                           reasons[i].text, "fix", reasons[i].fix));
    return all;
}

static json_t *tiers_json(const struct zc_health *h)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < h->ntiers; i++)
        (void)json_array_append_new(all, json_pack("{s:s, s:I, s:I}", "name", h->tiers[i].name,
                                                   "budget", (json_int_t)h->tiers[i].budget, "used",
                                                   (json_int_t)h->tiers[i].used));
    return all;
}

static json_t *commit_json(const struct zc_health *h)
{
    if (!h->committed)
        return json_null();
    return json_pack("{s:s, s:I, s:f, s:f}", "job", h->commit_job, "iterations",
                     (json_int_t)h->commit_iterations, "ago_s", (double)h->commit_ago_ms / 1e3,
                     "took_s", (double)h->commit_us / 1e6);
}

static json_t *scrub_json(const struct zc_health *h)
{
    if (!h->scrubbed)
        return json_null();
    return json_pack("{s:f, s:I, s:I}", "ago_s", (double)h->scrub_ago_ms / 1e3, "bytes",
                     (json_int_t)h->scrub_bytes, "bad_pages", (json_int_t)h->scrub_bad_pages);
}

static json_t *status_json(const struct zctl *z, const struct zc_health *h,
                           const struct zc_reason *reasons, size_t n)
{
    const struct zc_server *server = zc_server(z->client);

    return json_pack(
        "{s:i, s:s, s:o, s:s, s:I, s:f, s:i, s:i, s:i, s:i, s:o, s:o, s:s, s:o, s:f, s:f}",
        "schema", ZCTL_SCHEMA, "verdict", h->errors > 0 ? "degraded" : "healthy", "reasons",
        reasons_json(reasons, n), "server", server->server, "pid", (json_int_t)server->pid,
        "uptime_s", (double)h->uptime_ms / 1e3, "clients", (int)h->clients, "clients_max",
        (int)h->clients_max, "jobs", (int)h->jobs, "saved", (int)h->saved, "tiers", tiers_json(h),
        "last_commit", commit_json(h), "scrub", h->scrub_state, "last_scrub", scrub_json(h),
        "turn_max_s", (double)h->turn_max_us / 1e6, "turn_p999_s", (double)h->turn_p999_us / 1e6);
}

/* ---- commands */

static int status(struct zctl *z, int argc, char **argv)
{
    struct zc_reason *reasons = NULL;
    struct zc_health health;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed_new(z, zc_health_wait(z->client, &health, &reasons, &n));
    if (rc == 0 && z->json &&
        zctl_dump(z->out, status_json(z, &health, reasons, n),
                  JSON_INDENT(2) | JSON_REAL_PRECISION(6)) < 0)
        rc = zb_fail(&z->err, -ENOMEM, "the output: %m");
    if (rc == 0 && !z->json)
        status_print(z, &health, reasons, n);
    if (rc == 0)
        rc = zctl_written(z);
    if (rc == 0 && health.errors > 0)
        z->status = ZCTL_EXIT_DEGRADED;
    zc_rows_free(reasons);
    return rc;
}

const struct zctl_cmd zctl_status = {
    .name = "status",
    .args = "",
    .help = "healthy or degraded, why, and what to do",
    .argc_min = 0,
    .argc_max = 0,
    .run = status,
};
