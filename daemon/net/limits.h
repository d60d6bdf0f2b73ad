/*
 * limits.h - what one user, one job and one connection may take of the daemon.
 *
 * MODEL. A quota counts what its holder has of each thing in enum zsd_limit. Quotas form a tree:
 *
 *     node ---> user ---> job            what belongs to a job and outlives its connections
 *                   \---> connection     what goes with the connection
 *
 * zsd_limit_take() charges a quota and all above it, or none of them; zsd_limit_give() is the way
 * back. One table in limits.c says how much each level may have. A room that lets clients take
 * memory, or start work, adds a row there and calls these two.
 *
 * TRUST. Root and the daemon's own user are trusted: no limit of a user holds them. At the node's
 * limit, the row's reserve is kept for them.
 *
 * REFUSALS. The error message names who has how many of what, and the option, where one sets it.
 * The code says whose limit it is: at the limit of the node, a job or a connection the row's code,
 * at that of a user -EDQUOT.
 *
 * INVARIANTS
 *     Q1  used[] of a quota is what it was charged itself and what its children have.
 *     Q2  A quota that leaves gives all of it back: what ends with its holder needs no
 *         zsd_limit_give().
 *     Q3  A user's quota stays until the daemon ends, so that a client that reconnects does not get
 *         new tokens for log lines.
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
#define ZSD_ADMIN_PLACES 4u    /* connections beyond clients_max, kept for who is trusted */
#define ZSD_CONN_FDS_MAX 4u
#define ZSD_USER_FDS_MAX 256u

/** One row of the table each. Bytes are of memory of the daemon. */
enum zsd_limit {
    ZSD_LIMIT_CLIENTS,      /* connections */
    ZSD_LIMIT_REQUESTS,     /* unanswered */
    ZSD_LIMIT_ANSWER_BYTES, /* queued or promised: a connection that has so much is not read from */
    ZSD_LIMIT_WAITING, /* requests that wait for what their client has yet to ask for: waits.c */
    ZSD_LIMIT_WAITING_BYTES, /* of their answers, promised: below the above two, so that it is read */
    ZSD_LIMIT_ANSWER_FDS, /* descriptors that are queued, or that the peer has not read: likewise */
    ZSD_LIMIT_JOBS,       /* in memory */
    ZSD_LIMIT_READERS,    /* of saved jobs */
    ZSD_LIMIT_SCANS,      /* fsck, df, scrub: running, or waiting to run */
    ZSD_LIMIT_DEFINITION_BYTES, /* units, tensors, shards */
    ZSD_LIMIT_NOTE_BYTES,
    ZSD_LIMIT_SNAPSHOTS,
    ZSD_LIMITS
};

enum zsd_level { ZSD_LEVEL_NODE, ZSD_LEVEL_USER, ZSD_LEVEL_JOB, ZSD_LEVEL_CONN, ZSD_LEVELS };

/** Tokens that come back with the time: one for each thing that is done. */
struct zsd_tokens {
    uint64_t at_ns; /* when `left` was right; 0: not used yet */
    uint32_t left;
    uint32_t refused; /* a user's: since a token was taken */
};

/** All zero: of nobody, not limited. */
struct zsd_quota {
    struct zsd_quota *parent; /* NULL: the node's, or of nobody */
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
/** Every quota but the users' has left. NULL limits: fine. */
void zsd_limits_close(struct zsd *daemon);

/** Who is held by no user's limit, and may use what is kept in reserve. */
bool zsd_limits_trusted(uid_t uid);

/** Makes *q a quota of that user, for a job or a connection: 0 or -ENOMEM (then it is of nobody).
 *  A daemon without limits (a test's) has quotas of nobody. */
int zsd_quota_join(struct zsd *daemon, struct zsd_quota *q, enum zsd_level level, uid_t uid);
/** Gives back all that it has; it is of nobody then. */
void zsd_quota_leave(struct zsd_quota *q);

/**
 * Charges n of something.
 *
 * @return 0; -EDQUOT it would be more than the user may have, another code of the table: more than
 *         the node, the job or the connection may have. err has the message, and nothing changed
 */
int zsd_limit_take(struct zsd_quota *q, enum zsd_limit what, uint64_t n, struct zb_err *err);
/** Charges without asking: what cannot be refused any more. */
void zsd_limit_add(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
void zsd_limit_give(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Charges it whatever the limits are: what was allowed before, and comes back into memory. */
void zsd_limit_add(struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** Whether n more can be had, for those who wait instead of being refused. */
bool zsd_limit_room(const struct zsd_quota *q, enum zsd_limit what, uint64_t n);
/** What a level may have; UINT64_MAX: as much as it likes. */
uint64_t zsd_limit_max(const struct zsd_quota *q, enum zsd_level level, enum zsd_limit what);

/**
 * May a line about this client be logged now? Its connection has a number of tokens, and so has its
 * user, so that reconnecting does not help. True: *ret_dropped is the number of lines that
 * were not logged since the last one; the line is to tell it.
 */
bool zsd_limit_line(struct zsd_quota *q, uint64_t now_ns, uint32_t *ret_dropped);

#endif
