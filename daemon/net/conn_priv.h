/*
 * conn_priv.h - a connection with its socket: shared by server.c, conn.c, admit.c, answer.c and
 * pace.c.
 */
#ifndef ZSD_CONN_PRIV_H
#define ZSD_CONN_PRIV_H

#include <uv.h>

#include "daemon/net/conn.h"
#include "daemon/net/server.h"
#include "proto/codec.h"
#include "proto/stream.h"

/** If a client has more unread bytes of answers than this, its connection is not read from. */
#define ZSD_OUT_HIGH (UINT32_C(256) << 10)
/** Frames of one process that each half of a turn handles, over all of its connections. */
#define ZSD_FRAMES_TURN 8u
/** Size of the hash tables of processes; those in one slot share its frames and its pace. */
#define ZSD_PROCESS_PLACES 256u
/** A turn has two halves: what the poll reports, and zsd_server_turn(). In each half connections
 * are served for this long. The frame, or the connection, that is being handled at its end is still
 * finished. */
#define ZSD_NET_NS UINT64_C(100000)
/** Interval of checks of connections that wait for something that no poll reports. */
#define ZSD_LATER_MS 20u
/** While operations of other jobs are in progress, a process gets one part in ZSD_PACE of the loop's
 * time, after a burst of ZSD_PACE_AHEAD_NS / ZSD_PACE (pace.c). */
#define ZSD_PACE          16u
#define ZSD_PACE_AHEAD_NS UINT64_C(8000000)
/** Interval of checks of links that rest. */
#define ZSD_PACE_MS 1u
/** Time after the last client has left until free memory is returned to the system. */
#define ZSD_TRIM_MS 1000u

struct zsd_server {
    struct zsd *daemon;
    uv_loop_t *uv;
    const struct zsd_conn_ops *ops;
    struct zp_arena *arena; /* of the request that is being handled */
    char lock_path[128];    /* the socket's path with ".lock" appended */
    int lock_fd;            /* -1: not ours */
    int listen_fd;          /* -1: not listening */
    bool bound;             /* the socket's file is ours; its identity: */
    dev_t dev;
    ino_t ino;
    uv_poll_t poll;
    uv_timer_t pause;
    uv_timer_t hello;       /* runs while there are silent links */
    uv_timer_t later;       /* runs while there are links in `waiting` */
    uv_timer_t trim;        /* runs after the last client has left */
    uv_timer_t pace;        /* runs while there are links in `resting` */
    unsigned handles;       /* of libuv, not yet closed */
    bool pausing;           /* the last accept failed, and that was logged */
    struct zb_list links;   /* every zsd_link that is not refused, oldest first */
    struct zb_list refused; /* the waiting room, oldest first */
    unsigned nrefused;
    struct zb_list waiting; /* links that are checked every ZSD_LATER_MS */
    struct zb_list silent;  /* links that have not sent a hello, oldest first */
    struct zb_list todo;    /* links that zsd_server_turn() has to handle */
    struct zb_list
        hungry; /* handled before `todo`, in order: links that got nothing in the last turn */
    struct zb_list resting; /* links whose process has had its part of the loop's time */
    uint8_t frames[ZSD_PROCESS_PLACES];    /* handled in this half of the turn, by process */
    uint64_t ready_ns[ZSD_PROCESS_PLACES]; /* when more may be handled, by process (pace.c) */
    uint64_t accept_ready_ns;              /* the same for accepting */
    uint64_t most_ns;                      /* ZSD_NET_NS; tests set another */
    uint64_t end_ns;                       /* of this half of the turn; 0: it has not begun */
};

/**
 * A connection.
 *
 *     OPEN ----> LAST ----> ENDED        LAST: nothing more is read; queued data is sent
 *       |         |           ^
 *       +-> LOST <+           |          LOST: zsd_server_turn() ends it, because a function of the
 *             +---------------+          core is on the stack now
 *
 * INVARIANTS
 *     L1  A link that has bytes to send and is not polled for that, that is stalled and can
 *         continue, or that is LOST, is in server->todo or hungry; or in server->waiting, if no
 *         event wakes it, or in server->resting.
 *     L2  ops->gone() runs once, before ENDED, and never from inside a call of the core.
 *     L3  conn.quota counts the requests in conn.reqs, and the connection unless it is refused.
 */
enum zsd_link_state { LINK_OPEN, LINK_LAST, LINK_LOST, LINK_ENDED };

struct zsd_link {
    struct zsd_conn conn;
    enum zsd_link_state state;
    struct zsd_server *server;
    struct zp_stream *stream;
    uv_poll_t poll;
    uv_poll_t death;        /* of the peer's process; active if there is a pidfd */
    int pidfd;              /* -1: the peer's process is not visible to us */
    unsigned handles;       /* of libuv, not yet closed */
    int events;             /* what the poll waits for */
    struct zb_err *refusal; /* why it is in the waiting room; NULL: it is not there */
    bool stalled; /* not read from: it is full, or has had its part of a turn; frames may be left */
    bool unread;  /* stalled, and the socket must be read first: there was no time for it */
    bool hung_up; /* while it rested: not polled for that again */
    bool dead;    /* its process has died: frames that it sent are handled without a time limit */
    struct zb_list node;      /* in server->links or refused */
    struct zb_list todo_node; /* in server->todo or hungry */
    uint64_t since_ns;        /* time of arrival */
    struct zb_list silent_node;
    struct zb_list later_node; /* in server->waiting */
    struct zb_list rest_node;  /* in server->resting */
    uint64_t booked_bytes;     /* of queued answers, as charged to conn.quota */
    unsigned booked_fds;       /* the same for descriptors */
    bool blocked;              /* the system has no memory for sending */
};

/** Makes a link for fd and takes it over. *ret_refused: a limit refuses the client, so it is in the
 * waiting room. 0; or a negative errno, and fd is closed. */
int zsd_link_new(struct zsd_server *server, int fd, bool *ret_refused);
/** Looks again whether its process is in the administrators' group. */
void zsd_link_rights(struct zsd_link *link);
/** Queues it for the next zsd_server_turn() (L1). */
void zsd_link_touch(struct zsd_link *link);
/** Updates the quota: bytes of queued answers, and descriptors that the peer has not read. */
void zsd_link_book(struct zsd_link *link);
/** Makes a request of a frame. NULL: no memory. Its answer frees it. */
struct zsd_req *zsd_req_new(struct zsd_link *link, const struct zp_frame *frame);
/** Ends it now: not from inside a call of the core. */
void zsd_link_end(struct zsd_link *link);
/** Charges the time since begin_ns to a process: ready_ns is its place in server->ready_ns, or
 * &server->accept_ready_ns. */
void zsd_pace_charge(uint64_t *ready_ns, uint64_t begin_ns);
/** Whether the link's process has had its part of the loop's time, and others need the rest. */
bool zsd_link_must_rest(const struct zsd_link *link);
/** The same for accepting. */
bool zsd_accept_must_rest(const struct zsd_server *server);
/** Looks at the link, which is stalled, after ZSD_PACE_MS. */
void zsd_link_rest(struct zsd_link *link);
/** admit.c: a pidfd of the process at the other end of fd, which is readable when the process is
 * dead. -1: there is none (a process of another name space), or no room for it. */
int zsd_link_pidfd(int fd, pid_t pid);
/** admit.c: charges the connection to its user's quota. 0: link->refusal has the reason if a limit
 * refuses it; -ENOMEM. */
int zsd_link_admit(struct zsd_link *link);
/** One link's part of zsd_server_turn(). True: the core may have new work, or the link has
 * ended. */
bool zsd_link_turn(struct zsd_link *link);
/** The slot of the link's process in the tables of processes. */
static inline unsigned zsd_link_place(const struct zsd_link *link)
{
    uint32_t key = (uint32_t)link->conn.pid * UINT32_C(0x9e3779b1) ^
                   link->conn.uid * UINT32_C(0x85ebca6b);

    return (key >> 16) % ZSD_PROCESS_PLACES;
}
/** Whether this half of the turn has time for connections; its first call begins it. */
static inline bool zsd_server_has_time(struct zsd_server *server)
{
    uint64_t now_ns = zb_now_ns();

    if (server->end_ns == 0)
        server->end_ns = now_ns + server->most_ns;
    return now_ns < server->end_ns;
}

#endif
