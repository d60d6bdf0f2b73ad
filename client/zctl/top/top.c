/*
 * top.c - zctl top: reads the daemon's counters once per interval, and shows rates.
 *
 *     on a terminal         a screen that is drawn in place, until q or ^C
 *     elsewhere, or --once  the same as lines, a blank one between two intervals
 *     --json, -o json       an object on a line of its own for each interval
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/top/top.h"

struct top {
    struct zctl *z;
    const char *job;
    uint64_t interval_ns, count; /* count 0: without end */
    bool json, screen;
    struct top_sample last;
    bool devices_known;
    struct zctl_device devices[ZC_TOP_PATHS_MAX]; /* as they were at first; "": unknown */
};

struct top_options {
    uint32_t count;
    double interval_s;
    bool once;
};

#define AT(member) ZB_OPT_AT(struct top_options, member)

static const struct zb_opt top_options[] = {
    { "count", ZB_OPT_COUNT, AT(count), .arg = "N", .min = 1, .help = "exit after N intervals" },
    { "interval", ZB_OPT_REAL, AT(interval_s), .arg = "SECONDS", .def = "1", .min = 0.1,
      .max = 3600, .help = "length of an interval, 0.1 to 3600" },
    { "once", ZB_OPT_FLAG, AT(once),
      .help = "print one interval as tables: the same as --count 1" },
    { 0 },
};

static int top_settle(struct top *t)
{
    const struct top_options *o = t->z->opts.values;

    if (o->once && o->count > 0)
        return zb_fail(&t->z->err, -EINVAL,
                       "--once is the same as --count 1: give only one of them");
    t->interval_ns = (uint64_t)(o->interval_s * 1e9);
    t->count = o->once ? 1 : o->count;
    t->json = t->z->json;
    t->screen = !t->json && !o->once && isatty(fileno(t->z->out)) == 1;
    return 0;
}

/* Which device each data file is on; a daemon that does not say it has none. */
static void top_devices(struct top *t)
{
    struct zc_drive_row *drives = NULL;
    size_t n = 0;

    t->devices_known = true;
    if (zc_drives_wait(t->z->client, &drives, &n) < 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (drives[i].number >= 1 && drives[i].number <= ZC_TOP_PATHS_MAX)
            zctl_device_look(drives[i].device, true, &t->devices[drives[i].number - 1]);
    zc_rows_free(drives);
}

static int top_look(struct top *t, struct top_sample *ret)
{
    struct top_sample s = { .jobs = NULL };
    int rc = zctl_failed(t->z, zc_top_wait(t->z->client, t->job, &s.node, &s.jobs, &s.njobs));

    if (rc == 0 && !t->devices_known)
        top_devices(t);
    for (uint32_t i = 0; rc == 0 && i < s.node.npaths; i++)
        if (t->devices[i].name[0]) {
            zctl_device_look(t->devices[i].name, false, &s.devices[i]);
            s.devices[i].wear = t->devices[i].wear;
        }
    if (rc == 0)
        *ret = s;
    return rc;
}

/* The text of an interval, to be drawn again when the terminal's size changes. */
static int top_text(const struct top_view *v, char **ret)
{
    size_t len;
    FILE *f = open_memstream(ret, &len);
    int rc;

    if (!f)
        return -ENOMEM;
    rc = top_table(f, v);
    if (fclose(f) != 0 && rc == 0)
        rc = -ENOMEM;
    return rc;
}

static int top_show(struct top *t, const struct top_view *v, bool first, char **text)
{
    FILE *out = t->z->out;
    int rc;

    if (t->screen) {
        free(*text);
        *text = NULL;
        rc = top_text(v, text);
        return rc < 0 ? rc : screen_draw(*text);
    }
    if (!first && !t->json)
        (void)fputc('\n', out);
    rc = t->json ? top_json(out, v) : top_table(out, v);
    return rc == 0 ? zctl_written(t->z) : rc;
}

/* Waits until the time, and redraws the screen when its size changes. 1: the end. */
static int top_pause(uint64_t until_ns, const char *text)
{
    enum screen_event event;

    while ((event = screen_wait(until_ns)) == SCREEN_SIZE)
        if (text && screen_draw(text) < 0)
            return -EIO;
    return event == SCREEN_END;
}

static int top_run(struct top *t)
{
    char *text = NULL;
    int rc = t->screen ? screen_draw("zctl top: the first interval ...\n") : 0;

    for (uint64_t i = 0; rc == 0 && (t->count == 0 || i < t->count); i++) {
        struct top_sample now = { .jobs = NULL };
        struct top_view v = { .jobs = NULL };

        rc = top_pause(zb_now_ns() + t->interval_ns, text);
        if (rc == 0)
            rc = top_look(t, &now);
        if (rc == 0)
            rc = top_view_make(&t->last, &now, &v);
        if (rc == 0)
            rc = top_show(t, &v, i == 0, &text);
        top_view_done(&v);
        if (now.node.now_ns > 0) {
            zc_rows_free(t->last.jobs);
            t->last = now;
        }
    }
    free(text);
    return rc < 0 ? rc : 0; /* 1: ended by q or a signal */
}

static int top(struct zctl *z, int argc, char **argv)
{
    struct top t = { .z = z, .job = argc > 0 ? zctl_job(z, argv[0]) : NULL };
    int rc = argc > 0 && !t.job ? -EINVAL : top_settle(&t);

    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = top_look(&t, &t.last);
    if (rc == 0 && t.screen)
        rc = screen_open(z->out, &z->err);
    if (rc == 0)
        rc = top_run(&t);
    screen_close();
    zc_rows_free(t.last.jobs);
    if (rc == -ENOMEM && z->err.code == 0)
        return zb_fail(&z->err, rc, "no memory for the jobs of this interval");
    return rc < 0 && z->err.code == 0 ? zb_fail(&z->err, rc, "write the output: %m") : rc;
}

const struct zctl_cmd zctl_top = {
    .name = "top",
    .args = "[JOB]",
    .help = "live view: bottleneck, rates, queues; q quits",
    .argc_min = 0,
    .argc_max = 1,
    .run = top,
    .options = top_options,
    .bytes = sizeof(struct top_options),
};
