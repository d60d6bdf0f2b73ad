/*
 * quotas.c - the table of users with limits of their own: see quotas.h.
 */
#include "daemon/run/quotas.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"
#include "base/util.h"

#define JOBS_MAX 4096u /* as of jobs_max */

static const char *const names[ZSD_HELDS] = { "host", "nvme", "gpu", "jobs" };

const char *zsd_holding_name(enum zsd_holding what)
{
    return names[what];
}

struct zsd_user_quota *zsd_quotas_of(const struct zsd_quotas *q, uid_t uid)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->rows[i].uid == uid)
            return &q->rows[i];
    return NULL;
}

struct zsd_user_quota *zsd_quotas_add(struct zsd_quotas *q, uid_t uid)
{
    struct zsd_user_quota *row = zsd_quotas_of(q, uid);

    if (row || zb_grow(&q->rows, &q->room, q->n, 1) < 0)
        return row;
    row = &q->rows[q->n++];
    *row = (struct zsd_user_quota){ .uid = uid };
    return row;
}

void zsd_quotas_done(struct zsd_quotas *q)
{
    free(q->rows);
    *q = (struct zsd_quotas){ 0 };
}

/* ---- the text */

static int quota_user(const char *word, uid_t *ret, struct zb_err *err)
{
    const struct passwd *p;
    unsigned long long n;
    char *end;

    if (*word >= '0' && *word <= '9') {
        errno = 0;
        n = strtoull(word, &end, 10);
        if (*end || errno != 0 || n >= UINT32_MAX)
            return zb_fail(err, -EINVAL, "'%s' is not a uid", word);
        *ret = (uid_t)n;
        return 0;
    }
    p = getpwnam(word);
    if (!p)
        return zb_fail(err, -EINVAL, "there is no user '%s'", word);
    *ret = p->pw_uid;
    return 0;
}

static int quota_value(enum zsd_holding what, const char *text, uint64_t *ret, struct zb_err *err)
{
    int rc;

    *ret = ZSD_NO_MAX;
    if (strcmp(text, "none") == 0)
        return 0;
    rc = zb_size_parse(text, ret, err);
    if (rc == 0 && what == ZSD_HELD_JOBS && (*ret < 1 || *ret > JOBS_MAX))
        return zb_fail(err, -EINVAL, "jobs=%s: must be 1 to %u, or none", text, JOBS_MAX);
    return rc;
}

/* One limit, such as nvme=2T. */
static int quota_limit(const char *word, struct zsd_user_quota *row, struct zb_err *err)
{
    for (enum zsd_holding i = 0; i < ZSD_HELDS; i++) {
        size_t len = strlen(names[i]);

        if (strncmp(word, names[i], len) != 0 || word[len] != '=')
            continue;
        if (row->set[i])
            return zb_fail(err, -EINVAL, "'%s': that limit is set already", word);
        row->set[i] = true;
        return quota_value(i, word + len + 1, &row->max[i], err);
    }
    return zb_fail(err, -EINVAL, "'%s' is not a limit: host=SIZE, nvme=SIZE, gpu=SIZE, jobs=N",
                   word);
}

/* One user: its name, and its limits. */
static int quota_row(char *text, struct zsd_quotas *q, struct zb_err *err)
{
    struct zsd_user_quota *row;
    char *save, *word = strtok_r(text, " \t", &save);
    uid_t uid = 0;
    int rc = word ? quota_user(word, &uid, err) : zb_fail(err, -EINVAL, "a user has no name");

    if (rc < 0)
        return rc;
    if (zsd_quotas_of(q, uid))
        return zb_fail(err, -EINVAL, "user '%s' is there twice", word);
    row = zsd_quotas_add(q, uid);
    if (!row)
        return zb_fail(err, -ENOMEM, "quotas: %m");
    word = strtok_r(NULL, " \t", &save);
    if (!word)
        return zb_fail(err, -EINVAL, "user %u has no limits", (unsigned)uid);
    for (; word && rc == 0; word = strtok_r(NULL, " \t", &save))
        rc = quota_limit(word, row, err);
    return rc;
}

int zsd_quotas_parse(const char *text, struct zsd_quotas *ret, struct zb_err *err)
{
    char *copy = strdup(text), *rest = copy, *one;
    int rc = copy ? 0 : zb_fail(err, -ENOMEM, "quotas: %m");

    *ret = (struct zsd_quotas){ 0 };
    if (*text == '\0')
        rest = NULL;
    while (rc == 0 && (one = strsep(&rest, ",")) != NULL)
        rc = quota_row(one, ret, err);
    free(copy);
    if (rc < 0)
        zsd_quotas_done(ret);
    return rc;
}

int zsd_quotas_check(const char *text, struct zb_err *err)
{
    struct zsd_quotas q;
    int rc = zsd_quotas_parse(text, &q, err);

    zsd_quotas_done(&q);
    return rc;
}

void zsd_quotas_text(const struct zsd_quotas *q, char *text, size_t size)
{
    FILE *out = fmemopen(text, size, "w");

    *text = '\0';
    if (!out)
        return;
    for (size_t i = 0; i < q->n; i++) {
        (void)fprintf(out, "%s%u", i > 0 ? "," : "", (unsigned)q->rows[i].uid);
        for (enum zsd_holding what = 0; what < ZSD_HELDS; what++)
            if (q->rows[i].set[what] && q->rows[i].max[what] == ZSD_NO_MAX)
                (void)fprintf(out, " %s=none", names[what]);
            else if (q->rows[i].set[what])
                (void)fprintf(out, " %s=%llu", names[what],
                              (unsigned long long)q->rows[i].max[what]);
    }
    (void)fclose(out);
    text[size - 1] = '\0';
}
