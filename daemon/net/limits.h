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
 * that. One table in limits.c has the limit of each level. A room that lets clients take
 * memory, or start work, adds a row there and calls these two.
 *
 * TRUST. Root and the daemon's own user are trusted: limits per user do not apply to them. At the
 * node's limit, the row's reserve is kept for them.
 *
 * REFUSALS. The error message has the holder, the numbers, and the option that sets the limit, if
 * there is one. The code is -EDQUOT at the limit of a user, and the row's code at the limit of the
 * node, a job or a connection.
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

struct zsd;
struct zsd_config;

#define ZSD_REQS_MAX     1024u /* unanswered requests of one connection */
#define ZSD_ADMIN_PLACES 4u    /* connections beyond clients_max, kept for trusted users */
#define ZSD_CONN_FDS_MAX 4u
#define ZSD_USER_FDS_MAX 256u

/** One row of the table each. Bytes are of memory of the daemon. Jobs are charged for themselves,
 *  definitions, notes and snapshots; connections for the rest. */
enum zsd_limit {
    ZSD_LIMIT_CLIENTS,       /* connections */
    ZSD_LIMIT_REQUESTS,      /* unanswered */
    ZSD_LIMIT_ANSWER_BYTES,  /* queued or promised: at the limit, the connection is not read from */
    ZSD_LIMIT_WAITING,       /* requests that wait for a later request of their client: waits.c */
    ZSD_LIMIT_WAITING_BYTES, /* of their answers: below the two above, so that it is still read */
    ZSD_LIMIT_ANSWER_FDS,    /* descriptors queued, or not read by the peer: as for ANSWER_BYTES */
    ZSD_LIMIT_JOBS,          /* in memory */
    ZSD_LIMIT_READERS,       /* of saved jobs: one of a connection */
    ZSD_LIMIT_SCANS,         /* fsck, df, scrub: running, or waiting to run */
    ZSD_LIMIT_DEFINITION_BYTES, /* units, tensors, shards; tables of versions with snapshots */
    ZSD_LIMIT_NOTE_BYTES,
    ZSD_LIMIT_SNAPSHOTS,
    ZSD_LIMITS
};

enum zsd_level { ZSD_LEVEL_NODE, ZSD_LEVEL_USER, ZSD_LEVEL_JOB, ZSD_LEVEL_CONN, ZSD_LEVELS };

/** Tokens that are refilled with time: one for each action. */
struct zsd_tokens {
    uint64_t at_ns; /* when `left` was right; 0: not used yet */
    uint32_t left;
    uint32_t refused; /* a user's: since a token was taken */
};

/** All zero: without a holder, not limited. */
struct zsd_quota {
    struct zsd_quota *parent; /* NULL: the node's, or without a holder */
    struct zsd_limits *limits;
    enum zsd_level level;
    uid_t uid;
    bool trusted;
    uint64_t used[ZSD_LIMITS];
    struct zsd_tokens lines; /* of the log; a connection's and a user's */
    struct zb_list node;     /* a user's: in limits->users */
};

/** The limits of a daemon: daemon->limits. */
struct zsd_limits {
    const struct zsd_config *config;
    struct zsd_quota node;
    struct zb_list users;
};

/** Makes daemon->limits: 0 or -ENOMEM. */
int zsd_limits_open(struct zsd *daemon, struct zb_err *err);
/** All quotas except those of users must have left. NULL limits: fine. */
void zsd_limits_close(struct zsd *daemon);

/** Whether limits per user do not apply to this user, who may also use the reserve. */
bool zsd_limits_trusted(uid_t uid);

/** Makes *q a quota of that user, for a job or a connection: 0 or -ENOMEM (then it has no
 *  holder). In a daemon without limits (a test's) quotas have no holder. */
int zsd_quota_join(struct zsd *daemon, struct zsd_quota *q, enum zsd_level level, uid_t uid);
/** Returns all of its charges; then it has no holder. */
void zsd_quota_leave(struct zsd_quota *q);

/**
 * Charges n of something.
 *
 * @return 0; -EDQUOT it would be more than the user may have, another code of the table: more than
 *         the node, the job or the connection may have. err has the message, and nothing changed
 */
int zsd_limit_take(struct zsd_quota *q, enum zsd_limit what, uint64_t n, struct zb_err *err);
void zsd_limit_give(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Charges regardless of limits: for what can no longer be rejected, or was allowed before. */
void zsd_limit_add(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Whether n more fit, for callers that wait instead of rejecting. */
bool zsd_limit_room(const struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** The limit of a level; UINT64_MAX: none. */
uint64_t zsd_limit_max(const struct zsd_quota *q, enum zsd_level level, enum zsd_limit what);

/**
 * Whether a line about this client may be logged now. Its connection has a number of tokens, and
 * so has its user, so that reconnecting does not help. True: *ret_dropped is the number of lines
 * dropped since the last one; the line should contain it.
 */
bool zsd_limit_line(struct zsd_quota *q, uint64_t now_ns, uint32_t *ret_dropped);

#endif
