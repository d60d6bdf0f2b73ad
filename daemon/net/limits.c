/*
 * limits.c - the table of limits, and the arithmetic of quotas: see limits.h.
 */
#include "daemon/net/limits.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/size.h"
#include "daemon/net/conn.h"
#include "proto/stream.h"

#define NONE UINT64_MAX
#define MIB  ZB_MIB

/* Definitions and notes are in addition to host_bytes. The node's limit is host_bytes divided by
 * PART, but at least MIN. */
#define DEFINITIONS_PART 12u
#define DEFINITIONS_MIN  (48 * MIB)
#define DEFINITIONS_USER (512 * MIB) /* of a user, or half of the node's if that is more */
#define DEFINITIONS_JOB  (256 * MIB) /* of a job, or a quarter of the node's if that is more */
#define NOTES_PART       64u
#define NOTES_MIN        (8 * MIB)

/* Log lines: so many at once, then one per period. */
#define LINES_CONN       16u
#define LINES_USER       64u
#define LINE_PERIOD_CONN UINT64_C(1000000000)
#define LINE_PERIOD_USER UINT64_C(250000000)

/*
 * The table. max: the limits of node, user, job and connection; 0: none, or set by row_max(). A
 * resource is charged to jobs or to connections; the other level has no limit. reserve: more of the
 * node's limit, for trusted users only.
 */
static const struct row {
    const char *what;                /* name in an error message */
    const char *options[ZSD_LEVELS]; /* the option or rule that sets it, also for messages */
    uint64_t max[ZSD_LEVELS];
    uint64_t reserve;
    int code;
} rows[ZSD_LIMITS] = {
    [ZSD_LIMIT_CLIENTS] = { "connections",
                            { "clients_max", "user_clients_max" },
                            .reserve = ZSD_ADMIN_PLACES,
                            .code = -EUSERS },
    [ZSD_LIMIT_REQUESTS] = { "unanswered requests",
                             { NULL },
                             { 0, 16u * ZSD_REQS_MAX, 0, ZSD_REQS_MAX },
                             .code = -EBUSY },
    [ZSD_LIMIT_ANSWER_BYTES] = { "bytes of answers",
                                 { NULL },
                                 { 0, 64 * MIB, 0, ZP_STREAM_OUT_MAX },
                                 .code = -ENOBUFS },
    [ZSD_LIMIT_WAITING] = { "requests that wait for its own next step or release",
                            { NULL },
                            { 0, 15u * ZSD_REQS_MAX, 0, ZSD_REQS_MAX - 16u },
                            .code = -EBUSY },
    [ZSD_LIMIT_WAITING_BYTES] = { "bytes of answers that wait for its own next step or release",
                                  { NULL },
                                  { 0, 56 * MIB, 0, 6 * MIB },
                                  .code = -EBUSY },
    [ZSD_LIMIT_ANSWER_FDS] = { "descriptors in answers",
                               { NULL },
                               { 0, ZSD_USER_FDS_MAX, 0, ZSD_CONN_FDS_MAX },
                               .code = -EMFILE },
    [ZSD_LIMIT_JOBS] = { "jobs", { "jobs_max", "user_jobs_max" }, .code = -ENOSPC },
    [ZSD_LIMIT_READERS] = { "readers", { NULL }, { 256, 64 }, .code = -EUSERS },
    [ZSD_LIMIT_SCANS] = { "scans", { NULL }, { 64, 16, 0, 4 }, .code = -EBUSY },
    [ZSD_LIMIT_DEFINITION_BYTES] = { "bytes of definitions and snapshots",
                                     { "a twelfth of host_bytes, at least 48 MiB",
                                       "half of the daemon's, at least 512 MiB",
                                       "a quarter of the daemon's, at least 256 MiB" },
                                     { 0 }, /* row_max() */
                                     .code = -ENOSPC },
    [ZSD_LIMIT_NOTE_BYTES] = { "bytes of notes",
                               { "a 64th of host_bytes, at least 8 MiB" },
                               { 0 /* row_max() */, 256 * MIB, 128 * MIB },
                               .code = -ENOSPC },
    [ZSD_LIMIT_SNAPSHOTS] = { "snapshots", { NULL }, { 65536, 16384, 4096 }, .code = -ENOSPC },
};

/** The limit of a user: the option's value; 0: three quarters of the node's. */
static uint64_t user_max(uint32_t option, uint32_t node)
{
    return option > 0 ? option : node - node / 4;
}

/* One snapshot of a large job has tables of some 100 MiB; a large node must allow several. */
static uint64_t definitions_max(const struct zsd_config *c, enum zsd_level level)
{
    uint64_t node = zb_max_u64(c->host_bytes / DEFINITIONS_PART, DEFINITIONS_MIN);

    switch (level) {
    case ZSD_LEVEL_NODE:
        return node;
    case ZSD_LEVEL_USER:
        return zb_max_u64(node / 2, DEFINITIONS_USER);
    case ZSD_LEVEL_JOB:
        return zb_max_u64(node / 4, DEFINITIONS_JOB);
    default:
        return 0;
    }
}

static uint64_t row_max(const struct zsd_limits *l, enum zsd_level level, enum zsd_limit what)
{
    const struct zsd_config *c = l->config;
    uint64_t max = rows[what].max[level];

    if (what == ZSD_LIMIT_CLIENTS && level == ZSD_LEVEL_NODE)
        max = c->clients_max;
    else if (what == ZSD_LIMIT_CLIENTS && level == ZSD_LEVEL_USER)
        max = user_max(c->user_clients_max, c->clients_max);
    else if (what == ZSD_LIMIT_JOBS && level == ZSD_LEVEL_NODE)
        max = c->jobs_max;
    else if (what == ZSD_LIMIT_JOBS && level == ZSD_LEVEL_USER)
        max = user_max(c->user_jobs_max, c->jobs_max);
    if (what == ZSD_LIMIT_DEFINITION_BYTES)
        max = definitions_max(c, level);
    else if (level == ZSD_LEVEL_NODE && what == ZSD_LIMIT_NOTE_BYTES)
        max = zb_max_u64(c->host_bytes / NOTES_PART, NOTES_MIN);
    return max > 0 ? max : NONE;
}

/* ---- the tree */

static struct zsd_quota *user_of(struct zsd_limits *l, uid_t uid);

/* Asks the system for the groups of a user, if a quota is about a group. 0 or -ENOMEM. */
static int user_groups(const struct zsd_quotas *q, struct zsd_quota *quota)
{
    struct zsd_user *user = zb_container_of(quota, struct zsd_user, quota);

    free(user->groups);
    user->groups = NULL;
    user->ngroups = 0;
    return zsd_quotas_have_groups(q)
               ? zsd_quotas_user_groups(quota->uid, &user->groups, &user->ngroups)
               : 0;
}

int zsd_limits_quotas(struct zsd *daemon, const char *text, struct zb_err *err)
{
    struct zsd_limits *l = daemon->limits;
    struct zsd_quotas fresh;
    int rc = zsd_quotas_parse(text, &fresh, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < fresh.n && rc == 0; i++) /* zctl quota lists them from now on */
        rc = fresh.rows[i].is_group || user_of(l, fresh.rows[i].uid) ? 0 : -ENOMEM;
    zb_list_each(pos, &l->users)
    {
        rc = rc == 0 ? user_groups(&fresh, zb_container_of(pos, struct zsd_quota, node)) : rc;
    }
    if (rc < 0) {
        (void)zb_fail(err, rc, "the limits: %m");
        zsd_quotas_done(&fresh);
        return rc;
    }
    zsd_quotas_done(&l->quotas);
    l->quotas = fresh;
    return 0;
}

int zsd_limits_open(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_limits *l = calloc(1, sizeof(*l));

    if (!l)
        return zb_fail(err, -ENOMEM, "the limits: %m");
    l->config = &daemon->config;
    l->node.limits = l;
    zb_list_init(&l->users);
    daemon->limits = l;
    return zsd_limits_quotas(daemon, daemon->config.quotas, err);
}

void zsd_limits_close(struct zsd *daemon)
{
    struct zsd_limits *l = daemon->limits;
    struct zb_list *node;

    if (!l)
        return;
    for (int i = 0; i < ZSD_LIMITS; i++)
        assert(l->node.used[i] == 0); /* all quotas except those of users have left */
    while ((node = zb_list_pop_front(&l->users)) != NULL) {
        struct zsd_user *user = zb_container_of(node, struct zsd_user, quota.node);

        free(user->groups);
        free(user);
    }
    zsd_quotas_done(&l->quotas);
    free(l);
    daemon->limits = NULL;
}

bool zsd_limits_trusted(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

/** The same, for this daemon: root is not, if root_is_admin is no. */
static bool limits_trusted(const struct zsd_limits *l, uid_t uid)
{
    return zsd_limits_trusted(uid) && !(uid == 0 && l && l->config->root_is_user);
}

void zsd_limits_trust(struct zsd *daemon)
{
    zb_list_each(pos, &daemon->limits->users)
    {
        struct zsd_quota *user = zb_container_of(pos, struct zsd_quota, node);

        user->trusted = limits_trusted(daemon->limits, user->uid);
    }
}

/** The quota of a user, made if there is none; NULL: no memory. */
static struct zsd_quota *user_of(struct zsd_limits *l, uid_t uid)
{
    struct zsd_quota *user;
    struct zsd_user *fresh;

    zb_list_each(pos, &l->users)
    {
        user = zb_container_of(pos, struct zsd_quota, node);
        if (user->uid == uid)
            return user;
    }
    fresh = calloc(1, sizeof(*fresh));
    if (!fresh)
        return NULL;
    zsd_flow_init(&fresh->changes);
    user = &fresh->quota;
    user->trusted = limits_trusted(l, uid);
    user->parent = &l->node;
    user->limits = l;
    user->level = ZSD_LEVEL_USER;
    user->uid = uid;
    if (user_groups(&l->quotas, user) < 0) {
        free(fresh);
        return NULL;
    }
    zb_list_push_back(&l->users, &user->node);
    return user;
}

int zsd_quota_join(struct zsd *daemon, struct zsd_quota *q, enum zsd_level level, uid_t uid)
{
    struct zsd_limits *l = daemon->limits;
    struct zsd_quota *user = l ? user_of(l, uid) : NULL;

    assert(level == ZSD_LEVEL_JOB || level == ZSD_LEVEL_CONN);
    *q = (struct zsd_quota){ .level = level, .uid = uid, .trusted = limits_trusted(l, uid) };
    if (l && !user)
        return -ENOMEM;
    q->limits = l;
    q->parent = user;
    return 0;
}

void zsd_quota_leave(struct zsd_quota *q)
{
    for (int i = 0; i < ZSD_LIMITS; i++)
        zsd_limit_give(q, i, q->used[i]);
    q->limits = NULL;
    q->parent = NULL;
}

/* ---- charges */

/* The row of `quotas` that sets this limit of a user; NULL: none does. */
static const struct zsd_user_quota *user_row(const struct zsd_quota *q, enum zsd_holding what)
{
    const struct zsd_user *user = zb_container_of(q, struct zsd_user, quota);

    return zsd_quotas_find(&q->limits->quotas, q->uid, user->groups, user->ngroups, what);
}

/** The limit of this quota. Trusted users have no limit per user, and may use the node's
 * reserve. */
static uint64_t quota_max(const struct zsd_quota *q, enum zsd_limit what, bool trusted)
{
    const struct zsd_user_quota *row = NULL;
    uint64_t max = row_max(q->limits, q->level, what);

    if (trusted && q->level == ZSD_LEVEL_USER)
        return NONE;
    if (q->level == ZSD_LEVEL_USER && what == ZSD_LIMIT_JOBS)
        row = user_row(q, ZSD_HELD_JOBS);
    if (row)
        return row->max[ZSD_HELD_JOBS];
    if (trusted && q->level == ZSD_LEVEL_NODE && max != NONE)
        max += rows[what].reserve;
    return max;
}

/** The first quota, from q upwards, without room for n more; NULL: all have room. */
static const struct zsd_quota *quota_full(const struct zsd_quota *q, enum zsd_limit what,
                                          uint64_t n)
{
    bool trusted = q->trusted;

    for (; q && q->limits; q = q->parent) {
        uint64_t max = quota_max(q, what, trusted);

        if (q->used[what] > max || n > max - q->used[what])
            return q;
    }
    return NULL;
}

bool zsd_limit_room(const struct zsd_quota *q, enum zsd_limit what, uint64_t n)
{
    return !quota_full(q, what, n);
}

static int limit_refuse(const struct zsd_quota *full, enum zsd_limit what, uint64_t n, bool trusted,
                        struct zb_err *err)
{
    static const char *const holders[ZSD_LEVELS] = { "this daemon", "user", "this job",
                                                     "this connection" };
    const struct row *row = &rows[what];
    const char *option = row->options[full->level];
    const struct zsd_user_quota *own = zsd_quotas_of(&full->limits->quotas, full->uid);
    char holder[32];

    (void)snprintf(holder, sizeof(holder), "%s", holders[full->level]);
    if (full->level == ZSD_LEVEL_USER)
        (void)snprintf(holder, sizeof(holder), "user %u", (unsigned)full->uid);
    if (full->level == ZSD_LEVEL_USER && what == ZSD_LIMIT_JOBS && own && own->set[ZSD_HELD_JOBS])
        option = "quotas: jobs; zctl quota shows it";
    return zb_fail(err, full->level == ZSD_LEVEL_USER ? -EDQUOT : row->code,
                   "%s has %llu %s already: %llu more would exceed its limit of %llu%s%s%s", holder,
                   (unsigned long long)full->used[what], row->what, (unsigned long long)n,
                   (unsigned long long)quota_max(full, what, trusted), option ? " (" : "",
                   option ? option : "", option ? ")" : "");
}

int zsd_limit_take(struct zsd_quota *q, enum zsd_limit what, uint64_t n, struct zb_err *err)
{
    const struct zsd_quota *full = quota_full(q, what, n);

    if (full)
        return limit_refuse(full, what, n, q->trusted, err);
    zsd_limit_add(q, what, n);
    return 0;
}

void zsd_limit_add(struct zsd_quota *q, enum zsd_limit what, uint64_t n)
{
    for (; q; q = q->parent)
        q->used[what] += n;
}

void zsd_limit_give(struct zsd_quota *q, enum zsd_limit what, uint64_t n)
{
    for (; q; q = q->parent) {
        assert(q->used[what] >= n);
        q->used[what] -= n;
    }
}

uint64_t zsd_limit_max(const struct zsd_quota *q, enum zsd_level level, enum zsd_limit what)
{
    return q->limits ? row_max(q->limits, level, what) : NONE;
}

/* ---- bytes */

struct zsd_user *zsd_user_of(const struct zsd_quota *q)
{
    struct zsd_quota *user = q->level == ZSD_LEVEL_USER ? (struct zsd_quota *)(uintptr_t)q
                                                        : q->parent;

    return user ? zb_container_of(user, struct zsd_user, quota) : NULL;
}

struct zsd_account *zsd_user_held(const struct zsd_quota *q, enum zsd_holding tier)
{
    struct zsd_user *user = zsd_user_of(q);

    return user ? &user->held[tier] : NULL;
}

uint64_t zsd_user_used(const struct zsd_user *user, enum zsd_holding what)
{
    uint64_t bytes;

    if (what == ZSD_HELD_JOBS)
        return user->quota.used[ZSD_LIMIT_JOBS];
    bytes = zsd_account_held(&user->held[what]);
    return what == ZSD_HELD_NVME ? bytes - zb_min_u64(bytes, user->shared_bytes) : bytes;
}

uint64_t zsd_user_max(const struct zsd_user *user, enum zsd_holding what, bool *ret_own)
{
    const struct zsd_limits *l = user->quota.limits;
    const struct zsd_user_quota *row = user_row(&user->quota, what);
    const struct zsd_config *c = l->config;
    uint64_t max = what == ZSD_HELD_HOST   ? c->user_host_bytes
                   : what == ZSD_HELD_NVME ? c->user_nvme_bytes
                   : what == ZSD_HELD_GPU  ? c->user_gpu_bytes
                                           : row_max(l, ZSD_LEVEL_USER, ZSD_LIMIT_JOBS);

    *ret_own = row != NULL;
    if (row)
        return row->max[what];
    return max > 0 ? max : ZSD_NO_MAX;
}

uint64_t zsd_limit_bytes_left(const struct zsd_quota *q, enum zsd_holding tier)
{
    const struct zsd_user *user = zsd_user_of(q);
    uint64_t max, used;
    bool own;

    if (!user || user->quota.trusted)
        return UINT64_MAX;
    max = zsd_user_max(user, tier, &own);
    used = zsd_user_used(user, tier);
    return max == ZSD_NO_MAX ? max : max - zb_min_u64(max, used);
}

int zsd_limit_bytes(const struct zsd_quota *q, enum zsd_holding tier, uint64_t more,
                    struct zb_err *err)
{
    const char *name = zsd_holding_name(tier);
    const struct zsd_user *user;
    bool own = false;
    uint64_t max;

    if (more == 0 || more <= zsd_limit_bytes_left(q, tier))
        return 0;
    user = zsd_user_of(q);
    max = zsd_user_max(user, tier, &own);
    return zb_fail(err, -EDQUOT,
                   "user %u holds %s of %s: %s more are over the limit of %s (%s%s%s; zctl quota "
                   "shows it)",
                   (unsigned)user->quota.uid, zb_size_text(zsd_user_used(user, tier)).s, name,
                   zb_size_text(more).s, zb_size_text(max).s, own ? "quotas: " : "user_", name,
                   own ? "" : "_bytes");
}

/* ---- log lines */

static void tokens_refill(struct zsd_tokens *t, uint32_t most, uint64_t period_ns, uint64_t now_ns)
{
    uint64_t periods = now_ns > t->at_ns ? (now_ns - t->at_ns) / period_ns : 0;

    if (t->at_ns == 0 || periods >= most - t->left) {
        t->left = most;
        t->at_ns = now_ns;
    } else {
        t->left += (uint32_t)periods;
        t->at_ns += periods * period_ns;
    }
}

bool zsd_limit_line(struct zsd_quota *q, uint64_t now_ns, uint32_t *ret_dropped)
{
    struct zsd_quota *user = q->parent;

    *ret_dropped = 0;
    if (!user) /* without a holder */
        return true;
    tokens_refill(&q->lines, LINES_CONN, LINE_PERIOD_CONN, now_ns);
    tokens_refill(&user->lines, LINES_USER, LINE_PERIOD_USER, now_ns);
    if (q->lines.left == 0 || user->lines.left == 0) {
        user->lines.refused++;
        return false;
    }
    q->lines.left--;
    user->lines.left--;
    *ret_dropped = user->lines.refused;
    user->lines.refused = 0;
    return true;
}
