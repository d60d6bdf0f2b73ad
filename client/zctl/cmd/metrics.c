/*
 * metrics.c - metrics: the daemon's counters, gauges and histograms, for monitoring.
 *
 * HTTP. With --http it reads one request from standard input and writes one answer: a systemd
 * socket unit starts it for each connection. So the daemon itself needs no network.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define REQUEST_MAX 8192u
#define REQUEST_NS  UINT64_C(5000000000) /* for the whole request */

struct metrics_options {
    uint32_t format;
    bool http;
};

static const struct zb_opt metrics_options[] = {
    { "format", ZB_OPT_CHOICE, ZB_OPT_AT(struct metrics_options, format),
      .choices = "openmetrics prometheus", .def = "openmetrics",
      .help = "OpenMetrics 1.0; or Prometheus' text format, for node_exporter's textfile "
              "collector" },
    { "http", ZB_OPT_FLAG, ZB_OPT_AT(struct metrics_options, http),
      .help = "answer the HTTP request on standard input (for a socket unit)" },
    { 0 },
};

/* ---- HTTP */

/* Reads a request up to its empty line. 0, or z->err. */
static int request_read(struct zctl *z, char *request)
{
    uint64_t until_ns = zb_now_ns() + REQUEST_NS;
    size_t n = 0;

    for (;;) {
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
        uint64_t now_ns = zb_now_ns();
        ssize_t got;

        request[n] = '\0';
        if (strstr(request, "\r\n\r\n") || strstr(request, "\n\n"))
            return 0;
        if (n == REQUEST_MAX)
            return zb_fail(&z->err, -EMSGSIZE, "an HTTP request of more than %u bytes",
                           REQUEST_MAX);
        if (now_ns >= until_ns || poll(&p, 1, (int)((until_ns - now_ns) / 1000000) + 1) == 0)
            return zb_fail(&z->err, -ETIMEDOUT, "an HTTP request did not arrive completely");
        got = read(STDIN_FILENO, request + n, REQUEST_MAX - n);
        if (got == 0)
            return zb_fail(&z->err, -EPROTO, "an HTTP request ends early");
        n += got > 0 ? (size_t)got : 0;
    }
}

static void answer_print(FILE *out, const char *status, const char *type, const char *body,
                         size_t bytes)
{
    (void)fprintf(out,
                  "HTTP/1.0 %s\r\nContent-Type: %s; charset=utf-8\r\nContent-Length: %zu\r\n"
                  "Connection: close\r\n\r\n",
                  status, type, bytes);
    (void)fwrite(body, 1, bytes, out);
}

static int request_check(struct zctl *z)
{
    char request[REQUEST_MAX + 1];
    int rc = request_read(z, request);

    if (rc == 0 && strncmp(request, "GET ", 4) != 0)
        rc = zb_fail(&z->err, -EINVAL, "an HTTP request that is not GET");
    return rc;
}

/* ---- the command */

static int metrics_read(struct zctl *z, enum zc_metrics_format format, char **ret, size_t *ret_n)
{
    int rc = zctl_connect(z);

    return rc < 0 ? rc : zctl_failed_new(z, zc_metrics_wait(z->client, format, ret, ret_n));
}

static int metrics(struct zctl *z, int argc, char **argv)
{
    static const char *const types[] = { [ZC_OPENMETRICS] =
                                             "application/openmetrics-text; version=1.0.0",
                                         [ZC_PROMETHEUS] = "text/plain; version=0.0.4" };
    const struct metrics_options *o = z->opts.values;
    char *text = NULL;
    size_t n = 0;
    int rc;

    (void)argc;
    (void)argv;
    if (z->json)
        return zb_fail(&z->err, -EINVAL, "metrics prints text for monitoring, not JSON");
    rc = o->http ? request_check(z) : 0;
    if (rc < 0) {
        answer_print(z->out, "400 Bad Request", "text/plain", z->err.text, strlen(z->err.text));
        return rc;
    }
    rc = metrics_read(z, (enum zc_metrics_format)o->format, &text, &n);
    if (rc < 0 && o->http)
        answer_print(z->out, "503 Service Unavailable", "text/plain", z->err.text,
                     strlen(z->err.text));
    else if (rc == 0 && o->http)
        answer_print(z->out, "200 OK", types[o->format], text, n);
    else if (rc == 0)
        (void)fwrite(text, 1, n, z->out);
    if (rc == 0)
        rc = zctl_written(z);
    zc_rows_free(text);
    return rc;
}

const struct zctl_cmd zctl_metrics = {
    .name = "metrics",
    .args = "",
    .help = "print counters, gauges and histograms for Prometheus",
    .argc_min = 0,
    .argc_max = 0,
    .run = metrics,
    .options = metrics_options,
    .bytes = sizeof(struct metrics_options),
};
