/*
 * saved.c - commands for saved state: snapshot, snapshots, rollback, clone, destroy.
 *
 * A command that creates something prints it as a row; a command that removes something prints what
 * was removed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define MS_PER_S 1000u

/* A snapshot, and the name of its job's owner. */
struct snapshot_row {
    struct zc_snapshot_row s;
    struct zctl_user owner;
};

static const struct zctl_column columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct zc_snapshot_row, job), ZCTL_SHOWN, NULL, 0 },
    { "name", ZCTL_TEXT, offsetof(struct zc_snapshot_row, name), ZCTL_SHOWN, NULL, 0 },
    { "iterations", ZCTL_U64, offsetof(struct zc_snapshot_row, iterations), ZCTL_SHOWN, "STEPS",
      0 },
    { "applied", ZCTL_U64, offsetof(struct zc_snapshot_row, applied), ZCTL_SHOWN, NULL, 0 },
    { "world", ZCTL_U32, offsetof(struct zc_snapshot_row, world), ZCTL_SHOWN, NULL, 0 },
    { "created", ZCTL_TIME, offsetof(struct zc_snapshot_row, created_unix), ZCTL_SHOWN, NULL, 0 },
    { "bytes", ZCTL_SIZE, offsetof(struct zc_snapshot_row, bytes), ZCTL_SHOWN, "BYTES", 0 },
    { "own_bytes", ZCTL_SIZE, offsetof(struct zc_snapshot_row, own_bytes), ZCTL_SHOWN, NULL, 0 },
    { "uid", ZCTL_U32, offsetof(struct zc_snapshot_row, uid), ZCTL_JSON_ONLY, NULL, 0 },
    { "owner", ZCTL_TEXT, offsetof(struct snapshot_row, owner), ZCTL_JSON_ONLY, NULL, 0 },
};

/* With an owner in the table if there are rows of other users. */
static int show(struct zctl *z, const struct zc_snapshot_row *from, size_t n)
{
    struct snapshot_row *rows = calloc(n + 1, sizeof(*rows));
    struct zctl_column shown[ZB_COUNT(columns)];
    int rc;

    if (!rows)
        return zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    memcpy(shown, columns, sizeof(columns));
    for (size_t i = 0; i < n; i++) {
        rows[i] = (struct snapshot_row){ .s = from[i], .owner = zctl_user(from[i].uid) };
        if (from[i].uid != geteuid())
            shown[ZB_COUNT(columns) - 1].shown = ZCTL_SHOWN;
    }
    rc = zctl_print(z, shown, ZB_COUNT(shown), rows, n, sizeof(*rows));
    free(rows);
    return rc;
}

struct snapshot_options {
    bool next;
    uint32_t retain, timeout_s;
};

#define AT(member) ZB_OPT_AT(struct snapshot_options, member)

static const struct zb_opt snapshot_options[] = {
    { "next", ZB_OPT_FLAG, AT(next), .help = "wait for the next commit" },
    { "retain", ZB_OPT_COUNT, AT(retain), .arg = "N",
      .help = "then delete the job's oldest snapshots until N are left" },
    { "timeout", ZB_OPT_COUNT, AT(timeout_s), .arg = "SECONDS", .max = UINT32_MAX / MS_PER_S,
      .help = "how long to wait for the next commit; default: the daemon's" },
    { 0 },
};

static int snapshot(struct zctl *z, int argc, char **argv)
{
    const struct snapshot_options *o = z->opts.values;
    const struct zc_snapshot want = { .job = zctl_job(z, argv[0]),
                                      .name = argc > 1 ? argv[1] : NULL,
                                      .next = o->next,
                                      .retain = o->retain,
                                      .timeout_ms = o->timeout_s * MS_PER_S };
    struct zc_snapshot_row row;
    int rc;

    if (!want.job)
        return -EINVAL;
    if (o->timeout_s > 0 && !o->next)
        return zb_fail(&z->err, -EINVAL, "--timeout needs --next: otherwise nothing is waited for");
    rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_snapshot_wait(z->client, &want, &row));
    return rc < 0 ? rc : show(z, &row, 1);
}

static int snapshots(struct zctl *z, int argc, char **argv)
{
    const char *job = argc > 0 ? zctl_job(z, argv[0]) : NULL;
    struct zc_snapshot_row *rows = NULL;
    size_t n = 0;
    int rc = argc > 0 && !job ? -EINVAL : zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_snapshots_wait(z->client, job, &rows, &n));
    if (rc == 0)
        rc = show(z, rows, n);
    zc_rows_free(rows);
    return rc;
}

static int rollback(struct zctl *z, int argc, char **argv)
{
    const char *job = zctl_job(z, argv[0]);
    struct zc_snapshot_row row;
    int rc = job ? zctl_connect(z) : -EINVAL;

    (void)argc;
    if (rc == 0)
        rc = zctl_failed(z, zc_rollback_wait(z->client, job, argv[1], &row));
    return rc < 0 ? rc : show(z, &row, 1);
}

static int clone_saved(struct zctl *z, int argc, char **argv)
{
    struct zc_snapshot_row row;
    struct zctl_saved from;
    int rc = zctl_saved(z, argv[0], &from);

    (void)argc;
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, zc_clone_wait(z->client, from.job, from.snapshot, argv[1], &row));
    return rc < 0 ? rc : show(z, &row, 1);
}

/* ---- destroy */

#define NAMES_SHOWN 3u /* snapshots that a refusal names */

struct destroy_options {
    bool force, yes;
};

static const struct zb_opt destroy_options[] = {
    { "force", ZB_OPT_FLAG, ZB_OPT_AT(struct destroy_options, force),
      .help = "also a job that has a commit or snapshots, with all of them" },
    { "yes", ZB_OPT_FLAG, ZB_OPT_AT(struct destroy_options, yes), .letter = 'y',
      .help = "on a terminal: do not ask" },
    { 0 },
};

/* What was destroyed, and what it held. */
struct destroyed {
    char job[ZCTL_JOB_MAX + 1], snapshot[ZC_NAME_MAX + 1];
    uint32_t commits, snapshots;
    uint64_t host_bytes, nvme_bytes;
};

static const struct zctl_column destroy_columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct destroyed, job), ZCTL_SHOWN, NULL, 0 },
    { "snapshot", ZCTL_TEXT, offsetof(struct destroyed, snapshot), ZCTL_SHOWN, NULL, 0 },
    { "commits", ZCTL_U32, offsetof(struct destroyed, commits), ZCTL_SHOWN, NULL, 0 },
    { "snapshots", ZCTL_U32, offsetof(struct destroyed, snapshots), ZCTL_SHOWN, NULL, 0 },
    { "host_bytes", ZCTL_SIZE, offsetof(struct destroyed, host_bytes), ZCTL_SHOWN, NULL, 0 },
    { "nvme_bytes", ZCTL_SIZE, offsetof(struct destroyed, nvme_bytes), ZCTL_SHOWN, NULL, 0 },
};

struct kept {
    char text[NAMES_SHOWN * (ZC_NAME_MAX + 4) + 64];
};

/* What a job has saved: "a commit of step 7 and 1 snapshot (s)", or "nothing that is saved". */
static int kept_read(struct zctl *z, const char *name, const struct zc_job_row *job,
                     struct kept *ret)
{
    struct zc_snapshot_row *rows = NULL;
    char *what = ret->text;
    size_t n = 0, at = 0, size = sizeof(ret->text);
    int rc = zctl_failed(z, zc_snapshots_wait(z->client, name, &rows, &n));

    if (rc < 0)
        return rc;
    (void)snprintf(what, size, "nothing that is saved");
    if (job->committed)
        at += (size_t)snprintf(what, size, "a commit of step %llu%s",
                               (unsigned long long)job->committed_iterations, n > 0 ? " and " : "");
    if (n > 0)
        at += (size_t)snprintf(what + at, size - at, "%zu snapshot%s (", n, n > 1 ? "s" : "");
    for (size_t i = 0; i < n && i < NAMES_SHOWN; i++)
        at += (size_t)snprintf(what + at, size - at, "%s%s", i > 0 ? ", " : "", rows[i].name);
    if (n > 0)
        (void)snprintf(what + at, size - at, "%s)", n > NAMES_SHOWN ? ", ..." : "");
    zc_rows_free(rows);
    return 0;
}

/* Rejects destroying a job with saved state, and lists what would be lost; with --force asks. */
static int destroy_check(struct zctl *z, const char *name, const struct zc_job_row *job,
                         const struct destroy_options *o)
{
    bool keeps = job->committed || job->snapshots > 0;
    struct kept kept;
    int rc;

    if (job->attached > 0) /* the daemon rejects it */
        return 0;
    if ((o->force || !keeps) && (o->yes || !zctl_asks()))
        return 0;
    rc = kept_read(z, name, job, &kept);
    if (rc < 0)
        return rc;
    if (o->force || !keeps)
        return zctl_ask(z, "Destroy job '%s', with %s?", job->name, kept.text);
    z->status = ZCTL_EXIT_KEEPS;
    return zb_fail(&z->err, -EBUSY,
                   "job '%s' has %s, and nothing was destroyed: give --force to destroy all of it, "
                   "or JOB@SNAPSHOT to destroy one snapshot",
                   job->name, kept.text);
}

/* Destroys a job; ret describes what it held. The daemon rejects unknown and foreign jobs. */
static int destroy_job(struct zctl *z, const char *name, const struct destroy_options *o,
                       struct destroyed *ret)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_failed(z, zc_jobs_wait(z->client, name, &rows, &n));

    if (rc == 0 && n == 1) {
        ret->commits = rows->committed;
        ret->snapshots = rows->snapshots;
        ret->host_bytes = rows->host_bytes;
        ret->nvme_bytes = rows->nvme_bytes;
        rc = destroy_check(z, name, rows, o);
    }
    zc_rows_free(rows);
    return rc < 0 ? rc : zctl_failed(z, zc_job_destroy_wait(z->client, name));
}

static int destroy_snapshot(struct zctl *z, const struct zctl_saved *what,
                            const struct destroy_options *o, struct destroyed *ret)
{
    struct zc_snapshot_row *rows = NULL;
    bool there = false;
    size_t n = 0;
    int rc = zctl_failed(z, zc_snapshots_wait(z->client, what->job, &rows, &n));

    ret->snapshots = 1;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (strcmp(rows[i].name, what->snapshot) == 0) {
            ret->nvme_bytes = rows[i].own_bytes;
            there = true;
        }
    zc_rows_free(rows);
    if (rc == 0 && there && !o->yes)
        rc = zctl_ask(z, "Destroy snapshot '%s' of job '%s'?", what->snapshot, what->job);
    return rc < 0 ? rc
                  : zctl_failed(z, zc_snapshot_destroy_wait(z->client, what->job, what->snapshot));
}

static int destroy(struct zctl *z, int argc, char **argv)
{
    const struct destroy_options *o = z->opts.values;
    struct destroyed gone = { .commits = 0 };
    struct zctl_saved what;
    int rc = zctl_saved(z, argv[0], &what);

    (void)argc;
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc < 0)
        return rc;
    memcpy(gone.job, what.job, sizeof(gone.job));
    memcpy(gone.snapshot, what.snapshot, sizeof(gone.snapshot));
    rc = *what.snapshot ? destroy_snapshot(z, &what, o, &gone) : destroy_job(z, what.job, o, &gone);
    return rc < 0
               ? rc
               : zctl_print(z, destroy_columns, ZB_COUNT(destroy_columns), &gone, 1, sizeof(gone));
}

const struct zctl_cmd zctl_clone = {
    .name = "clone",
    .args = "JOB[@SNAPSHOT] NAME",
    .help = "clone a saved job (copy on write)",
    .argc_min = 2,
    .argc_max = 2,
    .run = clone_saved,
    ZCTL_COLUMNS(columns),
};

const struct zctl_cmd zctl_destroy = {
    .name = "destroy",
    .args = "JOB[@SNAPSHOT]",
    .help = "delete a kept job without clients, or a snapshot; --force: with all that it saved",
    .argc_min = 1,
    .argc_max = 1,
    .run = destroy,
    .options = destroy_options,
    .bytes = sizeof(struct destroy_options),
    ZCTL_COLUMNS(destroy_columns),
};

const struct zctl_cmd zctl_rollback = {
    .name = "rollback",
    .args = "JOB SNAPSHOT",
    .help = "return a job to a snapshot and discard newer steps",
    .argc_min = 2,
    .argc_max = 2,
    .run = rollback,
    ZCTL_COLUMNS(columns),
};

const struct zctl_cmd zctl_snapshot = {
    .name = "snapshot",
    .args = "JOB [NAME]",
    .help = "name the newest commit, so that it is kept",
    .argc_min = 1,
    .argc_max = 2,
    .run = snapshot,
    .options = snapshot_options,
    .bytes = sizeof(struct snapshot_options),
    ZCTL_COLUMNS(columns),
};

const struct zctl_cmd zctl_snapshots = {
    .name = "snapshots",
    .args = "[JOB]",
    .help = "list snapshots: steps, time, bytes",
    .argc_min = 0,
    .argc_max = 1,
    .run = snapshots,
    ZCTL_COLUMNS(columns),
};
