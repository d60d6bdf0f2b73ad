/*
 * quotas.c - the table of users with limits of their own: see quotas.h.
 */
#include "daemon/run/quotas.h"

#include <errno.h>
#include <grp.h>
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
        if (!q->rows[i].is_group && q->rows[i].uid == uid)
            return &q->rows[i];
    return NULL;
}

bool zsd_quotas_have_groups(const struct zsd_quotas *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->rows[i].is_group)
            return true;
    return false;
}

const struct zsd_user_quota *zsd_quotas_find(const struct zsd_quotas *q, uid_t uid,
                                             const gid_t *groups, size_t ngroups,
                                             enum zsd_holding what)
{
    const struct zsd_user_quota *own = zsd_quotas_of(q, uid);

    if (own && own->set[what])
        return own;
    for (size_t i = 0; i < q->n; i++)
        for (size_t k = 0; k < ngroups && q->rows[i].is_group && q->rows[i].set[what]; k++)
            if (groups[k] == q->rows[i].gid)
                return &q->rows[i];
    return NULL;
}

int zsd_quotas_user_groups(uid_t uid, gid_t **ret, size_t *ret_n)
{
    const struct passwd *p = getpwuid(uid);
    int room = 64, n = room;
    gid_t *groups = NULL, *more;

    *ret = NULL;
    *ret_n = 0;
    while (p) {
        more = realloc(groups, (size_t)room * sizeof(*groups));
        if (!more) {
            free(groups);
            return -ENOMEM;
        }
        groups = more;
        n = room;
        if (getgrouplist(p->pw_name, p->pw_gid, groups, &n) >= 0)
            break;
        room = n > room ? n : 2 * room;
    }
    *ret = groups;
    *ret_n = p ? (size_t)n : 0;
    return 0;
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

/* Reads a number, if the word begins with a digit; `at` and `kind` are for the message. 1: it is a
 * name; 0; or -EINVAL. */
static int quota_id(const char *word, const char *at, const char *kind, uint32_t *ret,
                    struct zb_err *err)
{
    unsigned long long n;
    char *end;

    if (*word < '0' || *word > '9')
        return 1;
    errno = 0;
    n = strtoull(word, &end, 10);
    if (*end || errno != 0 || n >= UINT32_MAX)
        return zb_fail(err, -EINVAL, "'%s%s' is not a %s", at, word, kind);
    *ret = (uint32_t)n;
    return 0;
}

static int quota_user(const char *word, uid_t *ret, struct zb_err *err)
{
    int rc = quota_id(word, "", "uid", ret, err);
    const struct passwd *p = rc > 0 ? getpwnam(word) : NULL;

    if (rc <= 0)
        return rc;
    if (!p)
        return zb_fail(err, -EINVAL, "there is no user '%s'", word);
    *ret = p->pw_uid;
    return 0;
}

static int quota_group(const char *word, gid_t *ret, struct zb_err *err)
{
    int rc = quota_id(word, "@", "gid", ret, err);
    const struct group *g = rc > 0 ? getgrnam(word) : NULL;

    if (rc <= 0)
        return rc;
    if (!g)
        return zb_fail(err, -EINVAL, "there is no group '%s'", word);
    *ret = g->gr_gid;
    return 0;
}

/* Adds the row of a user, or of a group: the word begins with '@'. */
static int quota_holder(const char *word, struct zsd_quotas *q, struct zsd_user_quota **ret,
                        struct zb_err *err)
{
    struct zsd_user_quota row = { .is_group = *word == '@' };
    int rc = row.is_group ? quota_group(word + 1, &row.gid, err) : quota_user(word, &row.uid, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < q->n; i++)
        if (q->rows[i].is_group == row.is_group && q->rows[i].uid == row.uid)
            return zb_fail(err, -EINVAL, "%s '%s' is there twice", row.is_group ? "group" : "user",
                           word);
    if (zb_grow(&q->rows, &q->room, q->n, 1) < 0)
        return zb_fail(err, -ENOMEM, "quotas: %m");
    q->rows[q->n] = row;
    *ret = &q->rows[q->n++];
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

/* One user, or one group: its name, and its limits. */
static int quota_row(char *text, struct zsd_quotas *q, struct zb_err *err)
{
    struct zsd_user_quota *row = NULL;
    char *save, *name = strtok_r(text, " \t", &save), *word;
    int rc = name ? quota_holder(name, q, &row, err) : zb_fail(err, -EINVAL, "a user has no name");

    if (rc < 0)
        return rc;
    word = strtok_r(NULL, " \t", &save);
    if (!word)
        return zb_fail(err, -EINVAL, "%s '%s' has no limits", row->is_group ? "group" : "user",
                       name);
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
        (void)fprintf(out, "%s%s%u", i > 0 ? "," : "", q->rows[i].is_group ? "@" : "",
                      (unsigned)q->rows[i].uid);
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
