/*
 * events.c - zctl events: the last events of the daemon's log, and those that come.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define POLL_MS 250

struct events_options {
    bool follow;
    uint32_t lines;
};

#define AT(member) ZB_OPT_AT(struct events_options, member)

static const struct zb_opt events_options[] = {
    { "follow", ZB_OPT_FLAG, AT(follow), .letter = 'f',
      .help = "print events as they come, until ^C or the end of the daemon" },
    { "lines", ZB_OPT_COUNT, AT(lines), .letter = 'n', .arg = "N", .def = "20", .min = 0,
      .max = 1000, .help = "print the last N events first" },
    { 0 },
};

#define COLUMN(type, member)                                                      \
    {                                                                             \
#member, type, offsetof(struct zc_log_event, member), ZCTL_SHOWN, NULL, 0 \
    }

static const struct zctl_column columns[] = {
    COLUMN(ZCTL_U64, number), COLUMN(ZCTL_U64, time_ms), COLUMN(ZCTL_TEXT, level),
    COLUMN(ZCTL_TEXT, event), COLUMN(ZCTL_TEXT, job),    COLUMN(ZCTL_TEXT, text),
    COLUMN(ZCTL_BOOL, lost),
};

/** A row as JSON; uid is null if the event has none. NULL: no memory. */
static json_t *event_json(const struct zc_log_event *e)
{
    json_t *row = zctl_row_json(columns, ZB_COUNT(columns), e);
    json_t *uid = e->has_uid ? json_integer(e->uid) : json_null();

    if (row && json_object_set_new(row, "uid", uid) == 0)
        return row;
    json_decref(row);
    return NULL;
}

static int events_json(struct zctl *z, const struct zc_log_event *rows, size_t n)
{
    json_t *list = json_array(), *all;

    for (size_t i = 0; list && i < n; i++)
        if (json_array_append_new(list, event_json(&rows[i])) < 0) {
            json_decref(list);
            list = NULL;
        }
    all = list ? json_pack("{s:i, s:o}", "schema", ZCTL_SCHEMA, "rows", list) : NULL;
    return zctl_dump(z->out, all, JSON_INDENT(2));
}

/** A line of the log, with the local time. */
static void event_line(FILE *out, const struct zc_log_event *e)
{
    time_t t = (time_t)(e->time_ms / 1000);
    char text[32] = "?";
    struct tm tm;

    if (localtime_r(&t, &tm))
        (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    if (e->lost)
        (void)fputs("(events are missing here: they came too fast)\n", out);
    (void)fprintf(out, "%s.%03u %s %s %s\n", text, (unsigned)(e->time_ms % 1000), e->level,
                  e->event, e->text);
}

/** Prints rows; `stream`: more will follow, so JSON is an object on a line of its own. */
static int events_print(struct zctl *z, const struct zc_log_event *rows, size_t n, bool stream)
{
    int rc = 0;

    if (z->json && !stream)
        rc = events_json(z, rows, n);
    for (size_t i = 0; rc == 0 && i < n && (stream || !z->json); i++) {
        if (z->json)
            rc = zctl_dump(z->out, event_json(&rows[i]), JSON_COMPACT);
        else
            event_line(z->out, &rows[i]);
    }
    if (rc < 0)
        return zb_fail(&z->err, rc, "print the events: %m");
    return zctl_written(z);
}

static int events(struct zctl *z, int argc, char **argv)
{
    const struct events_options *o = z->opts.values;
    uint64_t last = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    for (bool first = true; rc == 0 && (first || o->follow); first = false) {
        struct zc_log_event *rows = NULL;
        size_t n = 0, skip;

        if (!first)
            rc = zctl_failed(z, zc_poll(z->client, POLL_MS));
        if (rc == 0)
            rc = zctl_failed_new(z, zc_log_events_wait(z->client, last, &rows, &n));
        skip = first && n > o->lines ? n - o->lines : 0;
        if (rc == 0 && (n > 0 || first))
            rc = events_print(z, rows + skip, n - skip, o->follow);
        if (n > 0)
            last = rows[n - 1].number;
        zc_rows_free(rows);
    }
    return rc;
}

const struct zctl_cmd zctl_events = {
    .name = "events",
    .args = "",
    .help = "the last events of the daemon's log; -f follows",
    .argc_min = 0,
    .argc_max = 0,
    .run = events,
    .options = events_options,
    .bytes = sizeof(struct events_options),
};
