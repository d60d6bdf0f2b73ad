/*
 * conn.h - connections and requests, as the core sees them.
 *
 * MODEL. conn.c turns bytes into requests, dispatch.c calls the handler of the method, and the
 * handler answers each request exactly once, now or later, with zsd_reply() or zsd_reply_err()
 * (answer.c). A client may disconnect while its operation runs: then req->conn becomes NULL, and
 * the answer is dropped.
 *
 * When a connection ends, for any reason, gone() of the server's zsd_conn_ops is called first, and
 * once; then the unanswered requests lose their conn.
 *
 * Loop thread only. Back-pressure: a connection with too many requests in progress
 * (ZSD_LIMIT_REQUESTS) or too many bytes waiting to be sent is not read from until that changes.
 */
#ifndef ZSD_CONN_H
#define ZSD_CONN_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/util.h"
#include "daemon/net/limits.h"
#include "daemon/run/daemon.h"
#include "proto/frame.h"

struct zsd_member;
struct zsd_reader;

/** The part of a connection that the core may touch. conn.c embeds it. */
struct zsd_conn {
    struct zsd *daemon;
    uid_t uid;           /* SO_PEERCRED, at accept */
    bool in_admin_group; /* its process was in admin_group when it connected */
    pid_t pid;
    char program[64];          /* as the client calls itself; cleaned */
    char job[ZP_NAME_MAX + 1]; /* that it has opened last, for the log; "": none */
    bool greeted;              /* hello was answered */
    bool kept_place; /* beyond clients_max: it may inspect and manage, not open jobs or readers */
    struct zsd_quota quota;
    struct zsd_member *member; /* owned by the core: the rank of this connection, or NULL */
    struct zsd_reader *reader; /* the same: its reader of a saved job (op/reader.c), or NULL */
    struct zb_list reqs;       /* unanswered requests */
};

struct zsd_req {
    struct zsd_conn *conn; /* NULL: the client is gone */
    struct zsd *daemon;
    uint16_t method;
    uint64_t tag;
    uint64_t since_ns;                     /* time of arrival */
    uint32_t promised_bytes;               /* maximum length of its answer; owned by answer.c */
    bool waits;                            /* zsd_req_waits() */
    struct zb_list conn_node, daemon_node; /* owned by answer.c */
};

struct zp_arena;

/** Handlers for the frames of a connection, and for its end; passed to the server when it opens. */
struct zsd_conn_ops {
    /* Handles a request: answers it at once, or keeps it. The decoded message is in the arena until
     * the handler returns. 0; 1: read nothing more after the answer (no common version, no
     * hello). */
    int (*request)(struct zsd_req *req, struct zp_arena *arena, const uint8_t *body,
                   size_t body_bytes);
    /* Handles a one-way frame. 0; -EPROTO the client violates the protocol and must be
     * disconnected: err has the message. */
    int (*oneway)(struct zsd_conn *conn, struct zp_arena *arena, uint16_t method,
                  const uint8_t *body, size_t body_bytes, struct zb_err *err);
    /* Whether jobs other than the connection's own have operations in progress. conn NULL: any job. */
    bool (*others)(const struct zsd *daemon, const struct zsd_conn *conn);
    /* The connection ends: called once, and never from inside a handler. */
    void (*gone)(struct zsd_conn *conn);
};

/** Answers a request and ends it. message NULL: Empty. fd is duplicated (-1: none). */
void zsd_reply(struct zsd_req *req, const ProtobufCMessage *message, int fd);
/** The same with nfds descriptors, at most ZP_FDS_MAX. */
void zsd_reply_fds(struct zsd_req *req, const ProtobufCMessage *message, const int *fds,
                   unsigned nfds);
/** The same with an error: err has a code. */
void zsd_reply_err(struct zsd_req *req, const struct zb_err *err);
/** Answers with an error, formatted here, and ends the request. */
void zsd_refuse(struct zsd_req *req, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/** Registers that the request waits for a later request of its own client: a step, a release. The
 * number of such requests per connection is limited, so that the connection is never too full for
 * that later request to be read. 0, also for a repeated call; -EBUSY or -EDQUOT: reject it, err has
 * the message. */
int zsd_req_waits(struct zsd_req *req, struct zb_err *err);
/** Reverses zsd_req_waits(). Called by answer.c, while req->conn is set. */
void zsd_req_waited(struct zsd_req *req);

/** A handler of a request: message is of the row's type (dispatch.c), already decoded, and lives
 * only during the call. It answers req exactly once, now or later. */
typedef void zsd_handler(struct zsd_req *req, const ProtobufCMessage *message);

/** Begins the definition of a handler whose message, q, is a Zp__<type>. */
#define ZSD_REQUEST(handler, type)                                         \
    static void handler##_typed(struct zsd_req *req, const Zp__##type *q); \
    void handler(struct zsd_req *req, const ProtobufCMessage *message)     \
    {                                                                      \
        handler##_typed(req, (const Zp__##type *)(const void *)message);   \
    }                                                                      \
    static void handler##_typed(struct zsd_req *req, const Zp__##type *q)

/** Sends an event (enum zp_event). */
void zsd_event(struct zsd_conn *conn, uint16_t event, const ProtobufCMessage *message);

/** Logs a line about a client: its identity, then fmt's `key=value` pairs. The rate is limited
 * (zsd_limit_line()); a line has the number of lines that were dropped before it. */
void zsd_conn_log(struct zsd_conn *conn, enum zb_log_level level, const char *event,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/** Whether this client is an administrator: root (unless root_is_admin is no), the daemon's user, a
 * member of admin_group. */
bool zsd_admin(const struct zsd_conn *conn);
/** Whether this client may see and end jobs of `uid`: as that user, or as an administrator. */
bool zsd_may(const struct zsd_conn *conn, uid_t uid);

#endif
