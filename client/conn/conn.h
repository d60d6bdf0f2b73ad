/*
 * conn.h - the handle, as the rooms conn/ and ask/ see it.
 *
 * WHO DOES WHAT
 *     handle.c   open and close a handle; what it says of itself
 *     wait.c     waiting for a call to end
 *     conn.c     the connection: its beginning, what comes in, its end
 *     hello.c    the first request, and ping
 *     call.c     calls in flight: tags, replies matched to calls, one end for each
 *     send.c     what leaves
 *     map.c      arenas: descriptors checked and mapped
 *     codes.c    codes as sentences and as exit statuses
 * Requests are in client/ask/.
 *
 * STATES of a handle
 *
 *     CLOSED ---> OPEN ---> LOST        zc_close() frees it from any of them
 *
 *     CLOSED  never connected: it holds an error message
 *     OPEN    calls may start
 *     LOST    the connection is over, lost.code says why calls are refused; every call has ended.
 *             In a child of the process that opened it (fork()) a handle is LOST with -EPERM: the
 *             child's copy of the socket is closed, and calls in flight are the parent's
 *
 * INVARIANTS
 *     C1  A call that was accepted ends exactly once: by its reply, by an event, or by conn_lose().
 *     C2  Callbacks run inside of zc_poll(), of a blocking form, or of zc_close(), and never inside
 *         of a call that starts something; `running` is true while one does. So code that runs no
 *         callback may rely on the list of calls.
 *     C3  Whatever the daemon names (an offset, a count, a descriptor) is checked against what was
 *         asked for before the caller sees it. What does not fit is the end of the connection.
 *     C4  Frames leave in the order of the calls that made them: collected releases are queued
 *         before any other frame is.
 */
#ifndef ZC_CONN_H
#define ZC_CONN_H

#include "base/err.h"
#include "base/fork.h"
#include "base/util.h"
#include "client/zclient.h"
#include "proto/codec.h"
#include "proto/stream.h"

/* Calls in flight. The daemon stops reading from a client with 1024 unanswered requests; some are
 * kept back so that a ping is always heard. */
#define ZC_CALLS_MAX  1000u
#define ZC_CALL_SLOTS 1008u /* a power of two bounds the index in a tag */
#define ZC_TAG_BITS   10u

struct zc_call;

/** A method: how its reply is read. Its request is a function that hands it to zc_ask(). */
struct zc_method {
    uint16_t id;
    unsigned fds; /* descriptors that its reply carries */
    bool of_job;  /* ended by the end of the job */
    /* Fills the caller's outputs: 0, or how the call ends; -EPROTO ends the connection. NULL: there
     * is nothing in it. fds are closed by call.c where reply() leaves them (it sets -1 else). */
    int (*reply)(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m, int *fds);
    /* Of a call in parts: sends the next one: 1; 0 there is none; or how the call ends. */
    int (*next)(struct zc_client *c, struct zc_call *call);
};

/** What a call was asked for. */
struct zc_call_spec {
    const struct zc_method *method;
    const ProtobufCMessage *message;
    void *ret;            /* the caller's output */
    uint32_t n;           /* how many of them */
    uint64_t min_version; /* of a fetch */
    void *copy;           /* malloc'ed, of a call in parts; the call's from its start on */
    zc_done_fn *done;
    void *arg;
};

struct zc_call {
    struct zb_list node; /* in client->calls, oldest first, or in client->free_calls */
    uint64_t tag;        /* number << ZC_TAG_BITS | slot; 0: free */
    bool ended;          /* done has run; only the reply is still to come */
    struct zc_call_spec spec;
    uint64_t at; /* of a call in parts: what was sent */
};

/** Memory shared with the daemon. */
struct zc_map {
    uint8_t *base; /* NULL: not mapped, or of no bytes */
    uint64_t bytes;
    bool held; /* the daemon has sent it */
};

enum zc_state { ZC_CLOSED, ZC_OPEN, ZC_LOST };

struct zc_client {
    struct zb_fork fork;
    enum zc_state state;
    struct zb_err err;  /* the last failure */
    struct zb_err lost; /* of LOST */
    bool running;       /* C2 */
    bool deaf;          /* the daemon does not read any more: nothing is sent */
    uint64_t heard_ns;  /* when something last came */
    uint64_t quiet_ns;  /* how long nothing may come to a blocking form */

    struct zp_stream *stream;
    struct zp_arena *arena;
    struct zc_server server;

    struct zc_call *slots; /* [ZC_CALL_SLOTS] */
    uint32_t slots_used;   /* those behind were never used */
    uint32_t ncalls;       /* taken */
    uint64_t last_number;  /* of a tag */
    struct zb_list calls, free_calls;

    uint64_t releases[ZP_SHARDS_MAX]; /* collected, not queued yet */
    uint32_t nreleases;

    uint64_t job;         /* 0: none */
    bool params_writable; /* zc_job_options.writable */
    struct zc_map staging, params;
    uint64_t gpu_params;  /* bytes of GPU memory that views are offsets in; 0: params has them */
    struct zc_map reader; /* the staging of the reader that is open */

    zc_event_fn *on_event;
    void *on_event_arg;
};

/** protobuf-c's messages have no const; it writes to nothing. */
#define UNCONST(type, p) ((type *)(uintptr_t)(p))

/** Records a failure of this handle, in place of the last one, and returns its code. */
#define zc_fail(c, rc, ...) ((c)->err = (struct zb_err){ 0 }, zb_fail(&(c)->err, rc, __VA_ARGS__))

/* ---- send.c */

/** 0 when calls may start; else the failure is recorded. */
int zc_conn_usable(struct zc_client *c);
/** Sends what waits, as far as the socket takes it. */
void zc_conn_send(struct zc_client *c);
/** Queues the releases that were collected: 0, -ENOBUFS, -ENOMEM. */
int zc_conn_releases(struct zc_client *c);

/* ---- call.c */

/** Sends a request: 0, and the call ends later; or the failure is recorded, and spec->copy is
 *  freed. */
int zc_call_start(struct zc_client *c, const struct zc_call_spec *spec);
/** The same, of a request that needs no more than this. */
int zc_ask(struct zc_client *c, const struct zc_method *method, const ProtobufCMessage *message,
           void *ret, zc_done_fn *done, void *arg);
/** Sends the next part of a call. 0; -ENOBUFS, -EMSGSIZE, -ENOMEM. */
int zc_call_again(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *message);
/** A reply came. Takes fds. The number of callbacks that ran, or -EPROTO: why it is none of ours.
 */
int zc_call_reply(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body, int *fds,
                  struct zb_err *err);
/** Ends the calls that were started up to now (of the job, or all); their replies are dropped when
 *  they come. c->err is `why` for each. The number of callbacks that ran. */
unsigned zc_calls_end(struct zc_client *c, bool of_job, const struct zb_err *why);

/** A blocking form: on the stack of its caller. */
struct zc_waiter {
    struct zc_client *client;
    bool finished;
    int rc;
    struct zb_err err;
};

/** The `done` of a blocking form; zc_call_start() refuses it while a callback runs. */
void zc_waiter_done(void *arg, int rc);

/* ---- hello.c */

/** The first request. ret is c->server. */
int zc_hello(struct zc_client *c, const char *program, zc_done_fn *done, void *arg);

/* ---- conn.c */

/** Connects to the address: 0, or the failure is recorded. */
int zc_conn_open(struct zc_client *c, const char *path, uint64_t until_ns);
/** OPEN becomes LOST, and every call ends with why->code (runs callbacks: their number). */
unsigned zc_conn_lose(struct zc_client *c, const struct zb_err *why);
/** zc_poll() without its checks; wakes up at until_ns at the latest. Returns callbacks that ran. */
unsigned zc_conn_turn(struct zc_client *c, uint64_t until_ns);

/* ---- map.c */

/** Maps what the daemon sent. 0; -EPROTO it is not what was announced, -ENOMEM and what else mmap()
 *  says: recorded in c->err. */
int zc_map_open(struct zc_client *c, struct zc_map *map, const char *name, int fd, uint64_t bytes,
                bool writable);
void zc_map_close(struct zc_map *map);

/* ---- wait.c */

/** Waits for a call that zc_waiter_done() will end, started with rc; returns how it ended. */
int zc_wait(struct zc_waiter *w, int rc, uint32_t timeout_ms);
/** The same up to a point in time. */
int zc_wait_until(struct zc_waiter *w, int rc, uint64_t until_ns);

#endif
