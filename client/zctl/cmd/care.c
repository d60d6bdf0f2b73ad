/*
 * care.c - care of the data files: scrub, fsck, df; shares and budgets: share, tier.
 *
 * Damage is printed with everything else, and the exit status is ZC_EXIT_CORRUPT.
 */
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define POLL_MS 1280u /* longest pause between two looks at a scrub */

extern char **environ;

/* ---- scrub */

static const char *const scrub_actions[] = { [ZC_SCRUB_STATUS] = "status",
                                             [ZC_SCRUB_START] = "start",
                                             [ZC_SCRUB_PAUSE] = "pause",
                                             [ZC_SCRUB_RESUME] = "resume",
                                             [ZC_SCRUB_STOP] = "stop" };

struct scrub_row {
    struct zc_scrub scrub;
    double percent, elapsed_s, eta_s;
};

static const struct zctl_column scrub_columns[] = {
    { "state", ZCTL_TEXT, offsetof(struct scrub_row, scrub.state), ZCTL_SHOWN, NULL, 0 },
    { "percent", ZCTL_DOUBLE, offsetof(struct scrub_row, percent), ZCTL_SHOWN, NULL, 0 },
    { "bytes", ZCTL_SIZE, offsetof(struct scrub_row, scrub.bytes), ZCTL_SHOWN, NULL, 0 },
    { "total_bytes", ZCTL_SIZE, offsetof(struct scrub_row, scrub.total_bytes), ZCTL_SHOWN, NULL,
      0 },
    { "rate_bytes", ZCTL_SIZE, offsetof(struct scrub_row, scrub.rate_bytes), ZCTL_SHOWN, NULL, 0 },
    { "elapsed_s", ZCTL_DOUBLE, offsetof(struct scrub_row, elapsed_s), ZCTL_SHOWN, NULL, 0 },
    { "eta_s", ZCTL_DOUBLE, offsetof(struct scrub_row, eta_s), ZCTL_SHOWN, NULL, 0 },
    { "bad_pages", ZCTL_U64, offsetof(struct scrub_row, scrub.bad_pages), ZCTL_SHOWN, NULL, 0 },
};

static int scrub_show(struct zctl *z, const struct zc_scrub *scrub, const struct zc_message *bad,
                      size_t n)
{
    struct scrub_row row = { .scrub = *scrub,
                             .elapsed_s = (double)scrub->elapsed_ms / 1e3,
                             .eta_s = (double)scrub->eta_ms / 1e3 };
    int rc;

    if (scrub->total_bytes > 0)
        row.percent = 100 * (double)scrub->bytes / (double)scrub->total_bytes;
    rc = zctl_print_more(z, scrub_columns, ZB_COUNT(scrub_columns), &row, 1, sizeof(row), "bad",
                         bad, n);
    if (rc == 0 && scrub->bad_pages > 0)
        rc = zb_fail(&z->err, -EBADMSG, "%llu pages are bad", (unsigned long long)scrub->bad_pages);
    return rc;
}

struct scrub_options {
    uint64_t rate_bytes;
    bool until_done;
};

static const struct zb_opt scrub_options[] = {
    { "rate", ZB_OPT_SIZE, ZB_OPT_AT(struct scrub_options, rate_bytes), .arg = "SIZE",
      .help = "bytes per second (start, resume); default: a tenth of the drives' speed" },
    { "until-done", ZB_OPT_FLAG, ZB_OPT_AT(struct scrub_options, until_done), .letter = 'w',
      .help = "wait for the end (start, resume, status): exit status 0 if all pages are good, 6 if "
              "some are bad, 1 if it was paused or stopped" },
    { 0 },
};

/** Asks until the scrub does not run any more. */
static int scrub_await(struct zctl *z, struct zc_scrub *state, struct zc_message **bad, size_t *n)
{
    unsigned ms = 20;
    int rc = 0;

    while (rc == 0 && strcmp(state->state, "running") == 0) {
        const struct timespec pause = { .tv_sec = ms / 1000,
                                        .tv_nsec = (long)(ms % 1000) * 1000000 };

        (void)nanosleep(&pause, NULL);
        ms = ms < POLL_MS ? ms * 2 : POLL_MS;
        zc_rows_free(*bad);
        *bad = NULL;
        rc = zctl_failed(z, zc_scrub_wait(z->client, ZC_SCRUB_STATUS, 0, state, bad, n));
    }
    return rc;
}

/** Waits for the end of a scrub, and shows it. */
static int scrub_finish(struct zctl *z, struct zc_scrub *state, struct zc_message **bad, size_t *n)
{
    int rc = scrub_await(z, state, bad, n);

    if (rc == 0)
        rc = scrub_show(z, state, *bad, *n);
    if (rc == 0 && (strcmp(state->state, "paused") == 0 || strcmp(state->state, "stopped") == 0))
        rc = zb_fail(&z->err, -EINTR, "the scrub was %s: not all pages are verified", state->state);
    return rc;
}

static int scrub(struct zctl *z, int argc, char **argv)
{
    const struct scrub_options *o = z->opts.values;
    struct zc_message *bad = NULL;
    struct zc_scrub state;
    size_t n = 0, action = ZC_SCRUB_STATUS;
    int rc = 0;

    if (argc > 0)
        while (action < ZB_COUNT(scrub_actions) && strcmp(scrub_actions[action], argv[0]) != 0)
            action++;
    if (action == ZB_COUNT(scrub_actions))
        return zb_fail(&z->err, -EINVAL,
                       "scrub must be status, start, pause, resume or stop, not '%s'", argv[0]);
    if (zb_opt_given(&z->opts, "rate") && action != ZC_SCRUB_START && action != ZC_SCRUB_RESUME)
        return zb_fail(&z->err, -EINVAL, "--rate is for scrub start and scrub resume");
    if (o->until_done && (action == ZC_SCRUB_PAUSE || action == ZC_SCRUB_STOP))
        return zb_fail(&z->err, -EINVAL, "--until-done is for scrub start, resume and status");
    rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_scrub_wait(z->client, (enum zc_scrub_action)action, o->rate_bytes,
                                          &state, &bad, &n));
    if (rc == 0)
        rc = o->until_done ? scrub_finish(z, &state, &bad, &n) : scrub_show(z, &state, bad, n);
    zc_rows_free(bad);
    return rc;
}

const struct zctl_cmd zctl_scrub = {
    .name = "scrub",
    .args = "[status|start|pause|resume|stop]",
    .help = "read and verify all saved pages, in the background",
    .argc_min = 0,
    .argc_max = 1,
    .run = scrub,
    .options = scrub_options,
    .bytes = sizeof(struct scrub_options),
    ZCTL_COLUMNS(scrub_columns),
};

/* ---- fsck */

/** The daemon's program: next to this one, else in $PATH. Returns a path or a name. */
static const char *daemon_program(char *room, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", room, size);
    char *slash;

    if (n > 0 && (size_t)n < size) {
        room[n] = '\0';
        slash = strrchr(room, '/');
        if (slash && (size_t)(slash - room) + sizeof("/zshardd") <= size) {
            memcpy(slash, "/zshardd", sizeof("/zshardd"));
            if (access(room, X_OK) == 0)
                return room;
        }
    }
    return "zshardd";
}

/** Converts zshardd's exit status to a code for which zctl exits with the same one; except 5, which
 * zshardd uses for a data directory that is not its own (-EPERM). */
static int code_of_status(int status)
{
    static const int codes[] = {
        [ZC_EXIT_OTHER] = -EIO,     [ZC_EXIT_USAGE] = -EINVAL, [ZC_EXIT_DAEMON] = -ENOTCONN,
        [ZC_EXIT_REFUSED] = -EBUSY, [ZC_EXIT_PEER] = -EPERM,   [ZC_EXIT_CORRUPT] = -EBADMSG
    };

    return status > 0 && status < (int)ZB_COUNT(codes) ? codes[status] : -EIO;
}

/** Runs zshardd --fsck on the folder; it prints its results. */
static int fsck_offline(struct zctl *z, const char *folder)
{
    char room[4096], name[] = "zshardd", fsck[] = "--fsck", data[] = "--data";
    char *argv[] = { name, fsck, data, (char *)(uintptr_t)folder, NULL };
    const char *program = daemon_program(room, sizeof(room));
    int rc, status;
    pid_t pid;

    if (z->json)
        return zb_fail(&z->err, -EINVAL, "fsck --data prints for people only");
    (void)fflush(z->out);
    rc = posix_spawnp(&pid, program, NULL, NULL, argv, environ);
    if (rc != 0)
        return zb_fail(&z->err, -rc, "run '%s': %m", program);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return zb_fail(&z->err, -errno, "wait for '%s': %m", program);
    if (WIFSIGNALED(status))
        return zb_fail(&z->err, -EIO, "'%s' was ended by signal %d", program, WTERMSIG(status));
    if (WEXITSTATUS(status) == 0)
        return 0;
    return zb_fail(&z->err, code_of_status(WEXITSTATUS(status)),
                   "the check of '%s' ended with status %d", folder, WEXITSTATUS(status));
}

static const struct zctl_column fsck_columns[] = {
    { "jobs", ZCTL_U64, offsetof(struct zc_fsck, jobs), ZCTL_SHOWN, NULL, 0 },
    { "versions", ZCTL_U64, offsetof(struct zc_fsck, versions), ZCTL_SHOWN, NULL, 0 },
    { "snapshots", ZCTL_U64, offsetof(struct zc_fsck, snapshots), ZCTL_SHOWN, NULL, 0 },
    { "rows", ZCTL_U64, offsetof(struct zc_fsck, rows), ZCTL_SHOWN, NULL, 0 },
    { "pages", ZCTL_U64, offsetof(struct zc_fsck, pages), ZCTL_SHOWN, NULL, 0 },
    { "bytes", ZCTL_SIZE, offsetof(struct zc_fsck, bytes), ZCTL_SHOWN, NULL, 0 },
    { "sequence", ZCTL_U64, offsetof(struct zc_fsck, sequence), ZCTL_SHOWN, NULL, 0 },
    { "problems", ZCTL_U64, offsetof(struct zc_fsck, problems_total), ZCTL_SHOWN, NULL, 0 },
};

static int fsck_show(struct zctl *z, const struct zc_fsck *fsck, const struct zc_message *problems,
                     size_t n)
{
    int rc = zctl_print_more(z, fsck_columns, ZB_COUNT(fsck_columns), fsck, 1, sizeof(*fsck),
                             "problems", problems, n);

    if (rc == 0 && fsck->problems_total > 0)
        rc = zb_fail(&z->err, -EBADMSG, "%llu problems", (unsigned long long)fsck->problems_total);
    return rc;
}

struct fsck_options {
    const char *data;
};

static const struct zb_opt fsck_options[] = {
    { "data", ZB_OPT_TEXT, ZB_OPT_AT(struct fsck_options, data), .arg = "DIR",
      .help = "check the data directory of a stopped daemon, with zshardd --fsck" },
    { 0 },
};

static int fsck_run(struct zctl *z, int argc, char **argv)
{
    const char *folder = ((const struct fsck_options *)z->opts.values)->data;
    struct zc_message *problems = NULL;
    struct zc_fsck fsck;
    size_t n = 0;
    int rc;

    (void)argc;
    (void)argv;
    if (folder)
        return fsck_offline(z, folder);
    rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_fsck_wait(z->client, &fsck, &problems, &n));
    if (rc == 0)
        rc = fsck_show(z, &fsck, problems, n);
    zc_rows_free(problems);
    return rc;
}

const struct zctl_cmd zctl_fsck = {
    .name = "fsck",
    .args = "",
    .help = "compare every counter of the store with its catalog",
    .argc_min = 0,
    .argc_max = 0,
    .run = fsck_run,
    .options = fsck_options,
    .bytes = sizeof(struct fsck_options),
    ZCTL_COLUMNS(fsck_columns),
};

/* ---- df */

struct df_row {
    char kind[8];               /* job, none (bytes of no job), meta, free, total, catalog */
    char name[ZC_NAME_MAX + 1]; /* the job's, else the kind in parentheses */
    uint64_t committed, prepared, snapshots, working, reserved;
    uint64_t total; /* of a job: the sum of those */
    uint64_t shared;
    uint32_t uid;
};

static struct df_row df_row(const char *kind, uint64_t total)
{
    struct df_row r = { .total = total };

    (void)snprintf(r.kind, sizeof(r.kind), "%s", kind);
    (void)snprintf(r.name, sizeof(r.name), "(%s)", kind);
    return r;
}

static struct df_row df_job(const struct zc_df_row *from)
{
    struct df_row r = df_row(*from->job ? "job" : "none", 0);

    if (*from->job)
        memcpy(r.name, from->job, sizeof(r.name));
    r.committed = from->committed;
    r.prepared = from->prepared;
    r.snapshots = from->snapshots;
    r.working = from->working;
    r.reserved = from->reserved;
    r.shared = from->shared;
    r.uid = from->uid;
    r.total = r.committed + r.prepared + r.snapshots + r.working + r.reserved;
    return r;
}

static const struct zctl_column df_columns[] = {
    { "kind", ZCTL_TEXT, offsetof(struct df_row, kind), ZCTL_JSON_ONLY, NULL, 0 },
    { "name", ZCTL_TEXT, offsetof(struct df_row, name), ZCTL_SHOWN, NULL, 0 },
    { "committed", ZCTL_SIZE, offsetof(struct df_row, committed), ZCTL_SHOWN, NULL, 0 },
    { "prepared", ZCTL_SIZE, offsetof(struct df_row, prepared), ZCTL_SHOWN, NULL, 0 },
    { "snapshots", ZCTL_SIZE, offsetof(struct df_row, snapshots), ZCTL_SHOWN, NULL, 0 },
    { "working", ZCTL_SIZE, offsetof(struct df_row, working), ZCTL_SHOWN, NULL, 0 },
    { "reserved", ZCTL_SIZE, offsetof(struct df_row, reserved), ZCTL_SHOWN, NULL, 0 },
    { "total", ZCTL_SIZE, offsetof(struct df_row, total), ZCTL_SHOWN, NULL, 0 },
    { "shared", ZCTL_SIZE, offsetof(struct df_row, shared), ZCTL_SHOWN, NULL, 0 },
    { "uid", ZCTL_U32, offsetof(struct df_row, uid), ZCTL_JSON_ONLY, NULL, 0 },
};

static int df_show(struct zctl *z, const struct zc_df *df, const struct zc_df_row *jobs, size_t n)
{
    struct df_row *rows = calloc(n + 4, sizeof(*rows)), all = df_row("total", df->meta + df->free);
    int rc;

    if (!rows)
        return zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    for (size_t i = 0; i < n; i++) {
        rows[i] = df_job(&jobs[i]);
        all.committed += rows[i].committed;
        all.prepared += rows[i].prepared;
        all.snapshots += rows[i].snapshots;
        all.working += rows[i].working;
        all.reserved += rows[i].reserved;
        all.total += rows[i].total;
    }
    rows[n] = df_row("meta", df->meta);
    rows[n + 1] = df_row("free", df->free);
    rows[n + 2] = all;
    rows[n + 3] = df_row("catalog", df->catalog_bytes);
    rc = zctl_print(z, df_columns, ZB_COUNT(df_columns), rows, n + 4, sizeof(*rows));
    free(rows);
    if (rc == 0 && all.total != df->total)
        rc = zb_fail(
            &z->err, -EBADMSG, "the rows add up to %s, %s %s than the data files have",
            zb_size_text(all.total).s,
            zb_size_text(all.total < df->total ? df->total - all.total : all.total - df->total).s,
            all.total < df->total ? "less" : "more");
    return rc;
}

static int df_run(struct zctl *z, int argc, char **argv)
{
    struct zc_df_row *rows = NULL;
    struct zc_df df;
    size_t n = 0;
    int rc = zctl_connect(z);

    (void)argc;
    (void)argv;
    if (rc == 0)
        rc = zctl_failed(z, zc_df_wait(z->client, &df, &rows, &n));
    if (rc == 0)
        rc = df_show(z, &df, rows, n);
    zc_rows_free(rows);
    return rc;
}

const struct zctl_cmd zctl_df = {
    .name = "df",
    .args = "",
    .help = "show how the bytes of the data files are used",
    .argc_min = 0,
    .argc_max = 0,
    .run = df_run,
    ZCTL_COLUMNS(df_columns),
};

/* ---- shares and budgets */

static int share(struct zctl *z, int argc, char **argv)
{
    static const struct zb_opt number = { "share", ZB_OPT_COUNT, .size = sizeof(uint32_t), .min = 1,
                                          .max = 10000 };
    uint32_t n;
    const char *job = zctl_job(z, argv[0]);
    int rc = job ? zb_opt_set(&number, &n, argv[1], "share", &z->err) : -EINVAL;

    (void)argc;
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_job_share_wait(z->client, job, n));
    return rc < 0 || !z->json ? rc : zctl_print(z, NULL, 0, NULL, 0, 0);
}

const struct zctl_cmd zctl_share = {
    .name = "share",
    .args = "JOB N",
    .help = "set a job's share of drives and compute threads: 1 to 10000",
    .argc_min = 2,
    .argc_max = 2,
    .run = share,
};

static int tier(struct zctl *z, int argc, char **argv)
{
    uint64_t bytes;
    int rc;

    (void)argc;
    if (strcmp(argv[0], "set") != 0)
        return zb_fail(&z->err, -EINVAL, "usage: zctl tier set TIER SIZE");
    rc = zb_size_parse(argv[2], &bytes, &z->err);
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_tier_set_wait(z->client, argv[1], bytes));
    return rc < 0 || !z->json ? rc : zctl_print(z, NULL, 0, NULL, 0, 0);
}

const struct zctl_cmd zctl_tier = {
    .name = "tier",
    .args = "set TIER SIZE",
    .help = "resize the host tier or that of a GPU; jobs move state as they step",
    .argc_min = 3,
    .argc_max = 3,
    .run = tier,
};
