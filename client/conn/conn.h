/*
 * conn.h - the handle, as the rooms conn/ and ask/ see it.
 *
 * WHO DOES WHAT
 *     handle.c   opens and closes a handle; its accessors
 *     wait.c     zc_poll(); waiting for a call to end
 *     conn.c     the connection: connecting, receiving, losing it
 *     hello.c    the first request, and ping
 *     call.c     calls in flight: tags, replies matched to calls, one end for each
 *     send.c     sending
 *     map.c      arenas: checks and maps descriptors
 *     codes.c    codes as error messages and as exit statuses
 * Requests are in client/ask/.
 *
 * STATES of a handle
 *
 *     CLOSED ---> OPEN ---> LOST        zc_close() frees it from any of them
 *
 *     CLOSED  never connected: it holds an error message
 *     OPEN    calls may start
 *     LOST    the connection has ended, and so has every call; lost says why new ones are refused.
 *             In a child process (fork()) the handle is LOST with -EPERM: the child's copy of the
 *             socket is closed, and calls in flight belong to the parent
 *
 * INVARIANTS
 *     C1  A call that was accepted ends exactly once: by its reply, by an event, or by conn_lose().
 *     C2  Callbacks run inside zc_poll(), a blocking form or zc_close(), never inside a call that
 *         starts something. `running` is true while one runs. So code that runs no callbacks may
 *         rely on the list of calls.
 *     C3  Everything in a reply (an offset, a count, a descriptor) is checked against the request
 *         before the caller sees it. A mismatch ends the connection.
 *     C4  Frames are sent in the order of the calls that made them: collected releases are queued
 *         before any other frame.
 */
#ifndef ZC_CONN_H
#define ZC_CONN_H

#include "base/err.h"
#include "base/fork.h"
#include "base/util.h"
#include "client/zclient.h"
#include "proto/codec.h"
#include "proto/stream.h"

/* Calls in flight. The daemon stops reading from a client with 1024 unanswered requests. The limit
 * stays below that, so that the daemon always reads a ping. */
#define ZC_CALLS_MAX  1000u
#define ZC_CALL_SLOTS 1008u /* a power of two bounds the index in a tag */
#define ZC_TAG_BITS   10u

struct zc_call;

/** A method: how to read its reply. The function that makes the request passes it to zc_ask(). */
struct zc_method {
    uint16_t id;
    unsigned fds; /* number of descriptors in its reply */
    bool of_job;  /* ended by the end of the job */
    /* Fills the caller's outputs. Returns 0 or the code that the call ends with; -EPROTO also ends
     * the connection. NULL: the reply has no content. call.c closes the descriptors that are still
     * in fds afterwards; reply() sets those that it takes to -1. */
    int (*reply)(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m, int *fds);
    /* For a call in parts: sends the next part. Returns 1; 0 if there is none; or the code that the
     * call ends with. */
    int (*next)(struct zc_client *c, struct zc_call *call);
};

/** The arguments of a call. */
struct zc_call_spec {
    const struct zc_method *method;
    const ProtobufCMessage *message;
    void *ret;            /* the caller's output */
    uint32_t n;           /* number of outputs */
    uint64_t min_version; /* for a fetch */
    void *copy;           /* for a call in parts; malloc'ed, owned by the call once it starts */
    zc_done_fn *done;
    void *arg;
};

struct zc_call {
    struct zb_list node; /* in client->calls, oldest first, or in client->free_calls */
    uint64_t tag;        /* number << ZC_TAG_BITS | slot; 0: free */
    bool ended;          /* done has run; only the reply is outstanding */
    struct zc_call_spec spec;
    uint64_t at; /* for a call in parts: how much has been sent */
};

/** Memory shared with the daemon. */
struct zc_map {
    uint8_t *base; /* NULL: not mapped, or empty */
    uint64_t bytes;
    bool held; /* the daemon has sent it */
};

enum zc_state { ZC_CLOSED, ZC_OPEN, ZC_LOST };

struct zc_client {
    struct zb_fork fork;
    enum zc_state state;
    struct zb_err err;  /* the last failure */
    struct zb_err lost; /* why the state is LOST */
    bool running;       /* C2 */
    bool deaf;          /* sending has failed: nothing more is sent */
    uint64_t heard_ns;  /* when something was last received */
    uint64_t quiet_ns;  /* silence after which a blocking form gives up */

    struct zp_stream *stream;
    struct zp_arena *arena;
    struct zc_server server;
    uint64_t features; /* of the daemon: enum zp_feature */

    struct zc_call *slots; /* [ZC_CALL_SLOTS] */
    uint32_t slots_used;   /* later slots were never used */
    uint32_t ncalls;       /* slots taken */
    uint64_t last_number;  /* the number in the newest tag */
    struct zb_list calls, free_calls;

    uint64_t releases[ZP_SHARDS_MAX]; /* collected, not queued yet */
    uint32_t nreleases;

    uint64_t job;         /* 0: none */
    bool params_writable; /* zc_job_options.writable */
    struct zc_map staging, params;
    uint64_t gpu_params;  /* bytes of GPU memory that views refer to; 0: they refer to params */
    struct zc_map reader; /* the staging of the open reader */

    zc_event_fn *on_event;
    void *on_event_arg;
};

/** protobuf-c's message fields are not const, but it does not write to them. */
#define UNCONST(type, p) ((type *)(uintptr_t)(p))

/** Records a failure of this handle, replacing the last one, and returns its code. */
#define zc_fail(c, rc, ...) ((c)->err = (struct zb_err){ 0 }, zb_fail(&(c)->err, rc, __VA_ARGS__))

/* ---- send.c */

/** 0 when calls may start; else the failure is recorded. */
int zc_conn_usable(struct zc_client *c);
/** Sends queued bytes, as many as the socket takes. */
void zc_conn_send(struct zc_client *c);
/** Queues the collected releases: 0, -ENOBUFS, -ENOMEM. */
int zc_conn_releases(struct zc_client *c);

/* ---- call.c */

/** Sends a request. Returns 0, and the call ends later; or a recorded failure, with spec->copy
 *  freed. */
int zc_call_start(struct zc_client *c, const struct zc_call_spec *spec);
/** The same, for a request that needs only these fields of the spec. */
int zc_ask(struct zc_client *c, const struct zc_method *method, const ProtobufCMessage *message,
           void *ret, zc_done_fn *done, void *arg);
/** Sends the next part of a call. 0; -ENOBUFS, -EMSGSIZE, -ENOMEM. */
int zc_call_again(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *message);
/** Handles a reply; takes fds. Returns the number of callbacks that ran, or -EPROTO: the reply
 *  violates the protocol. */
int zc_call_reply(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body, int *fds,
                  struct zb_err *err);
/** Ends all calls in flight, or those of the job, with the failure `why`; not the calls that their
 *  callbacks start. Late replies are dropped. Returns the number of callbacks that ran. */
unsigned zc_calls_end(struct zc_client *c, bool of_job, const struct zb_err *why);

/** State of a blocking form, on its caller's stack. */
struct zc_waiter {
    struct zc_client *client;
    bool finished;
    int rc;
    struct zb_err err;
};

/** The `done` of a blocking form. zc_call_start() rejects it while a callback runs. */
void zc_waiter_done(void *arg, int rc);

/* ---- hello.c */

/** Sends the first request; the reply fills c->server. */
int zc_hello(struct zc_client *c, const char *program, zc_done_fn *done, void *arg);

/* ---- conn.c */

/** Connects to the daemon (proto/socket.h has the rule), and waits for one until wait_ns: 0, or the
 * failure is recorded. until_ns limits the wait for a daemon that is busy. */
int zc_conn_open(struct zc_client *c, const char *path, uint64_t until_ns, uint64_t wait_ns);
/** OPEN becomes LOST, and every call ends with why->code. Returns the number of callbacks that
 *  ran. */
unsigned zc_conn_lose(struct zc_client *c, const struct zb_err *why);
/** zc_poll() without its checks. Returns the number of callbacks that ran, at until_ns at the
 *  latest. */
unsigned zc_conn_turn(struct zc_client *c, uint64_t until_ns);

/* ---- map.c */

/** Maps a descriptor from the daemon. 0; -EPROTO it differs from what was announced; -ENOMEM and
 *  other errors of mmap(). Failures are recorded in c->err. */
int zc_map_open(struct zc_client *c, struct zc_map *map, const char *name, int fd, uint64_t bytes,
                bool writable);
void zc_map_close(struct zc_map *map);

/* ---- wait.c */

/** Waits for a call whose `done` is zc_waiter_done(); rc is what starting it returned. Returns how
 *  the call ended. */
int zc_wait(struct zc_waiter *w, int rc, uint32_t timeout_ms);
/** The same, up to a point in time. */
int zc_wait_until(struct zc_waiter *w, int rc, uint64_t until_ns);

#endif
