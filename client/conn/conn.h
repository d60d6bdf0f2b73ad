/*
 * conn.h - the handle, as the rooms conn/ and ask/ see it.
 *
 * WHO DOES WHAT
 *     handle.c   open and close a handle; its sentences
 *     conn.c     the connection: its states, bytes in and out, events, its end
 *     call.c     calls in flight: tags, replies matched to calls, one end for each
 *     method.c   the rows of methods: how each request is written and its reply read
 *     map.c      arenas: descriptors checked and mapped
 *     rows.c     list, jobs, tiers, stat, top, snapshots, scrub, fsck, df
 *     reader.c   reading what is saved
 *     wait.c     the blocking forms: the same calls and a loop
 *     norm.c     sums of squares
 *
 * STATES of a handle
 *
 *     CLOSED ---> OPEN ---> LOST        zc_close() frees it from any of them
 *
 *     CLOSED  never connected: it holds a sentence
 *     OPEN    calls may start
 *     LOST    the connection is over, lost.code says why calls are refused; every call has ended
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

/** How a method's reply is read; a row of method.c. */
struct zc_method {
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
    uint16_t method;
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

/* ---- conn.c */

/** Connects to the address: 0, or the failure is recorded. */
int zc_conn_open(struct zc_client *c, const char *path, uint64_t until_ns);
/** 0 when calls may start; else the failure is recorded. */
int zc_conn_usable(struct zc_client *c);
/** OPEN becomes LOST, and every call ends with why->code (runs callbacks: their number). */
unsigned zc_conn_lose(struct zc_client *c, const struct zb_err *why);
/** Sends what waits, as far as the socket takes it. */
void zc_conn_send(struct zc_client *c);
/** Queues the releases that were collected: 0, -ENOBUFS, -ENOMEM. */
int zc_conn_releases(struct zc_client *c);
/** zc_poll() without its checks; wakes up at until_ns at the latest. Returns callbacks that ran. */
unsigned zc_conn_turn(struct zc_client *c, uint64_t until_ns);

/* ---- call.c */

/** Sends a request: 0, and the call ends later; or the failure is recorded, and spec->copy is
 *  freed. */
int zc_call_start(struct zc_client *c, const struct zc_call_spec *spec);
/** Sends the next part of a call. 0; -ENOBUFS, -EMSGSIZE, -ENOMEM. */
int zc_call_again(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *message);
/** A reply came. Takes fds. The number of callbacks that ran, or -EPROTO: why it is none of ours.
 */
int zc_call_reply(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body, int *fds,
                  struct zb_err *err);
/** Ends the calls that were started up to now (of the job, or all); their replies are dropped when
 *  they come. c->err is `why` for each. The number of callbacks that ran. */
unsigned zc_calls_end(struct zc_client *c, bool of_job, const struct zb_err *why);

/* ---- method.c */

/** The row of a method, 1 .. ZP_METHOD_END - 1. */
const struct zc_method *zc_method(unsigned method);
/** The first request. ret is c->server. */
int zc_hello(struct zc_client *c, const char *program, zc_done_fn *done, void *arg);

/** 0, or the failure is recorded: a name that cannot be sent. */
int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max);
/** Where in memory shared with the daemon the caller's bytes are: 0, or the failure is recorded. */
int zc_staging_offset(struct zc_client *c, const struct zc_map *map, const void *staged,
                      uint64_t *ret);

/** A part of a note, as it arrives. */
struct zc_note_part {
    uint8_t *buf; /* of ZC_NOTE_MAX bytes */
    uint32_t got, total;
    uint64_t iteration;
};
int zc_note_get(struct zc_client *c, uint64_t job, bool of_job, struct zc_note_part *part,
                zc_done_fn *done, void *arg);

/* ---- reader.c */

int zc_reader_reply_open(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                         int *fds);
int zc_reader_reply_unit(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                         int *fds);
int zc_reader_reply_close(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds);

/* ---- rows.c */

int zc_rows_reply_list(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds);
int zc_rows_reply_jobs(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds);
int zc_rows_reply_tiers(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds);
int zc_rows_reply_top(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds);
int zc_rows_reply_stat(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds);
int zc_rows_reply_snapshots(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                            int *fds);
int zc_rows_reply_scrub(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds);
int zc_rows_reply_fsck(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds);
int zc_rows_reply_df(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                     int *fds);
/** As the daemon says it. */
void zc_snapshot_row(struct zc_snapshot_row *to, const Zp__SnapshotRow *from);

/* ---- map.c */

/** Maps what the daemon sent. 0; -EPROTO it is not what was announced, -ENOMEM and what else mmap()
 *  says: recorded in c->err. */
int zc_map_open(struct zc_client *c, struct zc_map *map, const char *name, int fd, uint64_t bytes,
                bool writable);
void zc_map_close(struct zc_map *map);

/* ---- wait.c */

/** A blocking form: on the stack of its caller. */
struct zc_waiter {
    struct zc_client *client;
    bool finished;
    int rc;
    struct zb_err err;
};

/** The `done` of a blocking form; call.c refuses it while a callback runs. */
void zc_waiter_done(void *arg, int rc);
/** Waits for a call that zc_waiter_done() will end, started with rc; returns how it ended. */
int zc_wait(struct zc_waiter *w, int rc, uint32_t timeout_ms);
/** The same up to a point in time. */
int zc_wait_until(struct zc_waiter *w, int rc, uint64_t until_ns);

#endif
