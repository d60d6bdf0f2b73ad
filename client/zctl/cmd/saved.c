/*
 * saved.c - what is saved: snapshot, snapshots, rollback, clone, destroy.
 *
 * What makes something says what it made, as a row; what takes something away says nothing, as rm.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/base/zctl.h"

#define MS_PER_S 1000u

static const struct zctl_column columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct zc_snapshot_row, job), ZCTL_SHOWN },
    { "name", ZCTL_TEXT, offsetof(struct zc_snapshot_row, name), ZCTL_WHEN_SET },
    { "iterations", ZCTL_U64, offsetof(struct zc_snapshot_row, iterations), ZCTL_SHOWN },
    { "applied", ZCTL_U64, offsetof(struct zc_snapshot_row, applied), ZCTL_SHOWN },
    { "world", ZCTL_U32, offsetof(struct zc_snapshot_row, world), ZCTL_SHOWN },
    { "created", ZCTL_TIME, offsetof(struct zc_snapshot_row, created_unix), ZCTL_SHOWN },
    { "bytes", ZCTL_SIZE, offsetof(struct zc_snapshot_row, bytes), ZCTL_SHOWN },
    { "own_bytes", ZCTL_SIZE, offsetof(struct zc_snapshot_row, own_bytes), ZCTL_SHOWN },
};

static int show(struct zctl *z, const struct zc_snapshot_row *rows, size_t n)
{
    return zctl_print(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows));
}

int zctl_saved(struct zctl *z, const char *word, struct zctl_saved *ret)
{
    const char *at = strchr(word, '@');
    size_t job = at ? (size_t)(at - word) : strlen(word), snapshot = at ? strlen(at + 1) : 0;

    if (job < 1 || job > ZC_NAME_MAX || snapshot > ZC_NAME_MAX || (at && snapshot < 1))
        return zb_fail(&z->err, -EINVAL, "'%s' is neither JOB nor JOB@SNAPSHOT", word);
    *ret = (struct zctl_saved){ 0 };
    memcpy(ret->job, word, job);
    if (at)
        memcpy(ret->snapshot, at + 1, snapshot);
    return 0;
}

int zctl_snapshot(struct zctl *z, int argc, char **argv)
{
    struct zc_snapshot snapshot = { .job = argv[0],
                                    .name = argc > 1 ? argv[1] : NULL,
                                    .next = zctl_option(z, "next") != NULL };
    struct zc_snapshot_row row;
    uint64_t retain = 0, timeout_s = 0;
    int rc = zctl_option_number(z, "retain", UINT32_MAX, &retain);

    if (rc == 0)
        rc = zctl_option_number(z, "timeout", UINT32_MAX / MS_PER_S, &timeout_s);
    if (rc == 0 && timeout_s > 0 && !snapshot.next)
        rc = zb_fail(&z->err, -EINVAL, "--timeout is for --next: the newest commit is there");
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc < 0)
        return rc;
    snapshot.retain = (uint32_t)retain;
    snapshot.timeout_ms = (uint32_t)timeout_s * MS_PER_S;
    rc = zctl_failed(z, zc_snapshot_wait(z->client, &snapshot, &row));
    return rc < 0 ? rc : show(z, &row, 1);
}

int zctl_snapshots(struct zctl *z, int argc, char **argv)
{
    struct zc_snapshot_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed(z, zc_snapshots_wait(z->client, argc > 0 ? argv[0] : NULL, &rows, &n));
    if (rc == 0)
        rc = show(z, rows, n);
    zc_rows_free(rows);
    return rc;
}

int zctl_rollback(struct zctl *z, int argc, char **argv)
{
    struct zc_snapshot_row row;
    int rc = zctl_connect(z);

    (void)argc;
    if (rc == 0)
        rc = zctl_failed(z, zc_rollback_wait(z->client, argv[0], argv[1], &row));
    return rc < 0 ? rc : show(z, &row, 1);
}

int zctl_clone(struct zctl *z, int argc, char **argv)
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

int zctl_destroy(struct zctl *z, int argc, char **argv)
{
    struct zctl_saved what;
    int rc = zctl_saved(z, argv[0], &what);

    (void)argc;
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed(z, *what.snapshot
                                ? zc_snapshot_destroy_wait(z->client, what.job, what.snapshot)
                                : zc_job_destroy_wait(z->client, what.job));
    return rc < 0 || !z->json ? rc : zctl_print(z, NULL, 0, NULL, 0, 0);
}
