/*
 * quota.c - zctl quota: what users hold, their limits, and setting them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"

#define WORDS_MAX 6 /* set, a user, four limits */

/* A row of zc_quotas_wait(), with the texts of the table: "none" for no limit. */
struct quota_row {
    struct zc_quota q;
    struct zctl_user user;
    char host[24], nvme[24], gpu[24], jobs[24];
};

static const struct zctl_column columns[] = {
    { "user", ZCTL_TEXT, offsetof(struct quota_row, user), ZCTL_SHOWN, NULL, 0 },
    { "uid", ZCTL_U32, offsetof(struct quota_row, q.uid), ZCTL_JSON_ONLY, NULL, 0 },
    { "jobs", ZCTL_U32, offsetof(struct quota_row, q.jobs), ZCTL_SHOWN, NULL, 0 },
    { "jobs_limit", ZCTL_TEXT, offsetof(struct quota_row, jobs), ZCTL_SHOWN, "OF", 0 },
    { "host_bytes", ZCTL_SIZE, offsetof(struct quota_row, q.host_bytes), ZCTL_SHOWN, NULL, 0 },
    { "host_limit", ZCTL_TEXT, offsetof(struct quota_row, host), ZCTL_SHOWN, "OF", 0 },
    { "nvme_bytes", ZCTL_SIZE, offsetof(struct quota_row, q.nvme_bytes), ZCTL_SHOWN, NULL, 0 },
    { "nvme_limit", ZCTL_TEXT, offsetof(struct quota_row, nvme), ZCTL_SHOWN, "OF", 0 },
    { "gpu_bytes", ZCTL_SIZE, offsetof(struct quota_row, q.gpu_bytes), ZCTL_SHOWN, NULL, 0 },
    { "gpu_limit", ZCTL_TEXT, offsetof(struct quota_row, gpu), ZCTL_SHOWN, "OF", 0 },
    { "jobs_max", ZCTL_U32, offsetof(struct quota_row, q.jobs_max), ZCTL_JSON_ONLY, NULL, 0 },
    { "host_max", ZCTL_U64, offsetof(struct quota_row, q.host_max), ZCTL_JSON_ONLY, NULL, 0 },
    { "nvme_max", ZCTL_U64, offsetof(struct quota_row, q.nvme_max), ZCTL_JSON_ONLY, NULL, 0 },
    { "gpu_max", ZCTL_U64, offsetof(struct quota_row, q.gpu_max), ZCTL_JSON_ONLY, NULL, 0 },
    { "own", ZCTL_BOOL, offsetof(struct quota_row, q.own), ZCTL_JSON_ONLY, NULL, 0 },
    { "exempt", ZCTL_BOOL, offsetof(struct quota_row, q.exempt), ZCTL_JSON_ONLY, NULL, 0 },
};

static void limit_text(char *to, size_t size, const struct zc_quota *q, uint64_t max, bool units)
{
    if (q->exempt || max == 0)
        (void)snprintf(to, size, "none");
    else if (units)
        (void)snprintf(to, size, "%s", zb_size_text(max).s);
    else
        (void)snprintf(to, size, "%llu", (unsigned long long)max);
}

static struct quota_row quota_row(const struct zctl *z, const struct zc_quota *q)
{
    struct quota_row r = { .q = *q, .user = zctl_user(q->uid) };
    bool units = z->json || !z->style.exact;

    limit_text(r.host, sizeof(r.host), q, q->host_max, units);
    limit_text(r.nvme, sizeof(r.nvme), q, q->nvme_max, units);
    limit_text(r.gpu, sizeof(r.gpu), q, q->gpu_max, units);
    limit_text(r.jobs, sizeof(r.jobs), q, q->jobs_max, false);
    return r;
}

static int quota_list(struct zctl *z)
{
    struct zc_quota *from = NULL;
    struct quota_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = zctl_failed_new(z, zc_quotas_wait(z->client, &from, &n));
    if (rc == 0 && !(rows = calloc(n + 1, sizeof(*rows))))
        rc = zb_fail(&z->err, -ENOMEM, "%zu rows: %m", n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rows[i] = quota_row(z, &from[i]);
    if (rc == 0)
        rc = zctl_print(z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows));
    free(rows);
    zc_rows_free(from);
    return rc;
}

/* One limit, such as nvme=2T or jobs=none. */
static int quota_word(struct zctl *z, const char *word, struct zc_quota *q)
{
    const struct {
        const char *name;
        bool *set;
        uint64_t *max;
    } limits[] = { { "host=", &q->set_host, &q->host_max },
                   { "nvme=", &q->set_nvme, &q->nvme_max },
                   { "gpu=", &q->set_gpu, &q->gpu_max },
                   { "jobs=", &q->set_jobs, NULL } };

    for (size_t i = 0; i < ZB_COUNT(limits); i++) {
        const char *value = word + strlen(limits[i].name);
        uint64_t max = 0;

        if (strncmp(word, limits[i].name, strlen(limits[i].name)) != 0)
            continue;
        if (strcmp(value, "none") != 0 && zb_size_parse(value, &max, &z->err) < 0)
            return -EINVAL;
        if (strcmp(value, "none") != 0 && (max == 0 || (!limits[i].max && max > 4096)))
            return zb_fail(&z->err, -EINVAL, "'%s': a limit is at least 1%s, or none", word,
                           limits[i].max ? "" : ", of jobs at most 4096");
        *limits[i].set = true;
        if (limits[i].max)
            *limits[i].max = max;
        else
            q->jobs_max = (uint32_t)max;
        return 0;
    }
    return zb_fail(&z->err, -EINVAL, "'%s' is not a limit: host=SIZE, nvme=SIZE, gpu=SIZE, jobs=N",
                   word);
}

static int quota(struct zctl *z, int argc, char **argv)
{
    struct zc_quota q = { 0 };
    int rc;

    if (argc == 0)
        return quota_list(z);
    if (strcmp(argv[0], "set") != 0 || argc < 3)
        return zb_fail(&z->err, -EINVAL, "usage: zctl quota set USER LIMIT...");
    rc = zctl_uid(z, argv[1], &q.uid);
    for (int i = 2; rc == 0 && i < argc; i++)
        rc = quota_word(z, argv[i], &q);
    if (rc == 0)
        rc = zctl_connect(z);
    if (rc == 0)
        rc = zctl_failed_new(z, zc_quota_set_wait(z->client, &q));
    return rc < 0 || !z->json ? rc : zctl_print(z, NULL, 0, NULL, 0, 0);
}

const struct zctl_cmd zctl_quota = {
    .name = "quota",
    .args = "[set USER LIMIT...]",
    .help = "show what users hold and may hold; set limits until the daemon ends",
    .argc_min = 0,
    .argc_max = WORDS_MAX,
    .run = quota,
    ZCTL_COLUMNS(columns),
};
