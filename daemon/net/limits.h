/*
 * limits.h - limits of users, jobs and connections.
 *
 * MODEL. A quota counts what its holder uses of each resource in enum zsd_limit. Quotas form a
 * tree:
 *
 *     node ---> user ---> job            resources of a job, which outlive its connections
 *                   \---> connection     resources that end with the connection
 *
 * zsd_limit_take() charges a quota and all above it, or none of them; zsd_limit_give() undoes
 * that. One table in limits.c has the limit of each level. A room that lets clients use memory or
 * start work adds a row there and calls these two.
 *
 * TRUST. Root and the daemon's own user are trusted: limits per user do not apply to them. At the
 * node's limit, the row's reserve is kept for them.
 *
 * REFUSALS. The error message has the holder, the numbers, and the option that sets the limit, if
 * there is one. The code is -EDQUOT at the limit of a user, and the row's code at the limit of the
 * node, a job or a connection.
 *
 * BYTES. What the jobs and readers of a user hold of each tier is counted in the accounts of
 * struct zsd_user: each booking with a holder counts there, too (run/account.h). NVMe counts as
 * promised: saved versions, snapshots, and room for the next version. So a commit of an admitted
 * job never meets a limit. Two jobs of one user that share a page (a clone) have it in both of
 * their promises; shared_bytes is what was counted more than once. Jobs of two users that share a
 * page both count it. zsd_limit_bytes() is asked before anything is booked.
 *
 * INVARIANTS
 *     Q1  used[] of a quota is the sum of its own charges and those of its children.
 *     Q2  A quota that leaves returns all of its charges: a resource that ends with its holder
 *         needs no zsd_limit_give().
 *     Q3  A user's quota stays until the daemon ends, so that a client that reconnects does not
 *         get new tokens for log lines.
 *
 * Loop thread only.
 */
#ifndef ZSD_LIMITS_H
#define ZSD_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/util.h"
#include "daemon/run/account.h"
#include "daemon/run/fair.h"
#include "daemon/run/quotas.h"

struct zsd;
struct zsd_config;

#define ZSD_REQS_MAX     1024u /* unanswered requests of one connection */
#define ZSD_ADMIN_PLACES 4u    /* connections beyond clients_max, kept for trusted users */
#define ZSD_CONN_FDS_MAX 4u
#define ZSD_USER_FDS_MAX 256u

/** One row of the table each. Bytes are memory of the daemon. Charged to jobs: JOBS, definitions,
 * notes and snapshots; to connections: the rest. */
enum zsd_limit {
    ZSD_LIMIT_CLIENTS,       /* connections */
    ZSD_LIMIT_REQUESTS,      /* unanswered */
    ZSD_LIMIT_ANSWER_BYTES,  /* queued or promised: at the limit, the connection is not read from */
    ZSD_LIMIT_WAITING,       /* requests that wait for a later request of their client: waits.c */
    ZSD_LIMIT_WAITING_BYTES, /* of their answers; these two are less than the two above: waits.c */
    ZSD_LIMIT_ANSWER_FDS,    /* descriptors queued, or not read by the peer; as ANSWER_BYTES */
    ZSD_LIMIT_JOBS,          /* in memory */
    ZSD_LIMIT_READERS,       /* of saved jobs: one of a connection */
    ZSD_LIMIT_SCANS,         /* fsck, df, lists of snapshots: running, or waiting to run */
    ZSD_LIMIT_DEFINITION_BYTES, /* units, tensors, shards; tables of versions with snapshots */
    ZSD_LIMIT_NOTE_BYTES,
    ZSD_LIMIT_SNAPSHOTS,
    ZSD_LIMITS
};

enum zsd_level { ZSD_LEVEL_NODE, ZSD_LEVEL_USER, ZSD_LEVEL_JOB, ZSD_LEVEL_CONN, ZSD_LEVELS };

/** A token bucket, refilled with time. Each action takes one token. */
struct zsd_tokens {
    uint64_t at_ns; /* time of the last refill; 0: not used yet */
    uint32_t left;
    uint32_t refused; /* a user's: actions refused since a token was taken */
};

/** All zero: no holder, and no limits. */
struct zsd_quota {
    struct zsd_quota *parent; /* NULL: this is the node's, or it has no holder */
    struct zsd_limits *limits;
    enum zsd_level level;
    uid_t uid;
    bool trusted;
    uint64_t used[ZSD_LIMITS];
    struct zsd_tokens lines; /* for log lines; of a connection and of a user */
    struct zb_list node;     /* a user's: in limits->users */
};

/** A user, from the first connection or job on (Q3). */
struct zsd_user {
    struct zsd_quota quota;
    struct zsd_account held[ZSD_HELD_TIERS];
    uint64_t shared_bytes;   /* of held[ZSD_HELD_NVME]: counted more than once */
    bool shared_known;       /* the start has counted them */
    struct zsd_flow changes; /* of the catalog, of the user's saved jobs: store/change.c */
    gid_t *groups;           /* the user's, if a quota is about a group; as of the last reload */
    size_t ngroups;
};

/** The limits of a daemon: daemon->limits. */
struct zsd_limits {
    const struct zsd_config *config;
    struct zsd_quota node;
    struct zb_list users;     /* struct zsd_user */
    struct zsd_quotas quotas; /* of users with limits of their own */
};

/** Makes daemon->limits: 0, -ENOMEM, or -EINVAL: the option quotas names a user that there is not. */
int zsd_limits_open(struct zsd *daemon, struct zb_err *err);
/** Frees daemon->limits. All quotas except those of users must have left. NULL limits: fine. */
void zsd_limits_close(struct zsd *daemon);

/** Replaces the limits of single users, also those that were set at run time. 0; -EINVAL or -ENOMEM:
 * nothing has changed. */
int zsd_limits_quotas(struct zsd *daemon, const char *text, struct zb_err *err);
/** After a change of root_is_admin: which users are exempt. */
void zsd_limits_trust(struct zsd *daemon);

/** Whether this user is trusted: exempt from limits per user, and allowed to use the reserve. */
bool zsd_limits_trusted(uid_t uid);

/** Makes *q a quota of that user, for a job or a connection. 0; -ENOMEM: it has no holder. Quotas
 * of a daemon without limits (in tests) have no holder. */
int zsd_quota_join(struct zsd *daemon, struct zsd_quota *q, enum zsd_level level, uid_t uid);
/** Returns all charges of the quota; then it has no holder. */
void zsd_quota_leave(struct zsd_quota *q);

/**
 * Charges n units of a resource.
 *
 * @return 0; -EDQUOT: over the user's limit; the code of the table's row: over the limit of the
 *         node, the job or the connection. On failure err has the message, and nothing has changed
 */
int zsd_limit_take(struct zsd_quota *q, enum zsd_limit what, uint64_t n, struct zb_err *err);
void zsd_limit_give(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Charges regardless of limits: for uses that can no longer be rejected, or were allowed
 * before. */
void zsd_limit_add(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Whether n more fit, for callers that wait instead of rejecting. */
bool zsd_limit_room(const struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** The limit of a level; UINT64_MAX: none. */
uint64_t zsd_limit_max(const struct zsd_quota *q, enum zsd_level level, enum zsd_limit what);

/* ---- bytes */

/** The user of a job's, a connection's or a reader's quota; NULL: it has no holder. */
struct zsd_user *zsd_user_of(const struct zsd_quota *q);
/** The user's account of a tier, for the `user` of what a job holds; NULL: it has no holder. */
struct zsd_account *zsd_user_held(const struct zsd_quota *q, enum zsd_holding tier);
/** What the user holds of a tier, and of jobs. */
uint64_t zsd_user_used(const struct zsd_user *user, enum zsd_holding what);
/** The user's limit, ZSD_NO_MAX: none. *ret_own: it is the user's own or a group's, not the default. */
uint64_t zsd_user_max(const struct zsd_user *user, enum zsd_holding what, bool *ret_own);
/** Bytes of a tier that the user may still take; UINT64_MAX: no limit applies. */
uint64_t zsd_limit_bytes_left(const struct zsd_quota *q, enum zsd_holding tier);
/** Whether the user may take `more` bytes of a tier. 0; -EDQUOT, and err has the numbers. */
int zsd_limit_bytes(const struct zsd_quota *q, enum zsd_holding tier, uint64_t more,
                    struct zb_err *err);

/**
 * Whether a line about this client may be logged now. Takes a token of its connection and one of
 * its user, so reconnecting does not help. True: *ret_dropped is the number of lines dropped since
 * the last one; the line should contain it.
 */
bool zsd_limit_line(struct zsd_quota *q, uint64_t now_ns, uint32_t *ret_dropped);

#endif
