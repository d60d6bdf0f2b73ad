/*
 * conn_priv.h - a connection with its socket, between server.c, conn.c and answer.c.
 */
#ifndef ZSD_CONN_PRIV_H
#define ZSD_CONN_PRIV_H

#include <uv.h>

#include "daemon/net/conn.h"
#include "daemon/net/server.h"
#include "proto/codec.h"
#include "proto/stream.h"

/** Bytes of answers towards one client above which it is not read from. */
#define ZSD_OUT_HIGH (UINT32_C(256) << 10)
/** Frames of one process that each half of a turn handles, over all of its connections. */
#define ZSD_FRAMES_TURN 8u
/** Processes whose frames are counted separately; two in the same place share its frames. */
#define ZSD_FRAMES_PLACES 256u
/** A turn has two halves: what the poll reports, and zsd_server_turn(). In each half connections are served
 * for this long. The frame, or the connection, that is being handled at its end is still finished. */
#define ZSD_NET_NS UINT64_C(100000)
/** Interval of checks for connections that wait for something that no poll reports. */
#define ZSD_LATER_MS 20u
/** Time after the last client has left until free memory is returned to the system. */
#define ZSD_TRIM_MS 1000u

struct zsd_server {
    struct zsd *daemon;
    uv_loop_t *uv;
    const struct zsd_conn_ops *ops;
    struct zp_arena *arena; /* of the request that is being handled */
    char lock_path[128];    /* that of the socket and ".lock" */
    int lock_fd;            /* -1: not ours */
    int listen_fd;          /* -1: not listening */
    bool bound;             /* the socket's file is ours: */
    dev_t dev;
    ino_t ino;
    uv_poll_t poll;
    uv_timer_t pause;
    uv_timer_t hello;       /* runs while there are silent links */
    uv_timer_t later;       /* runs while there are links in `waiting` */
    uv_timer_t trim;        /* runs when the last client has gone */
    unsigned handles;       /* of libuv, not yet closed */
    bool pausing;           /* the last accept failed, and that was logged */
    struct zb_list links;   /* every zsd_link that is not refused, oldest first */
    struct zb_list refused; /* the waiting room, oldest first */
    unsigned nrefused;
    struct zb_list waiting; /* links that no event of their own wakes */
    struct zb_list silent;  /* links without a hello so far, oldest first */
    struct zb_list todo;    /* links that zsd_server_turn() has to handle */
    struct zb_list
        hungry; /* handled before these, in order: links that got nothing in the last turn */
    uint8_t frames[ZSD_FRAMES_PLACES]; /* handled in this half of the turn, by process */
    uint64_t most_ns;                  /* ZSD_NET_NS; tests set another */
    uint64_t end_ns;                   /* of this half of the turn; 0: it has not begun */
};

/**
 * A connection.
 *
 *     OPEN ----> LAST ----> ENDED        LAST: nothing more is read; queued data is sent
 *       |         |           ^
 *       +-> LOST <+           |          LOST: the next turn ends it, because a function of the
 *             +---------------+          core is on the stack
 *
 * INVARIANTS
 *     L1  A link that has bytes to send and no poll for them, that is stalled and can continue, or
 *         that is LOST, is in server->todo or hungry; or in server->waiting, if only time helps.
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
    uv_poll_t death;        /* of the peer's process; active where pidfd is one */
    int pidfd;              /* -1: the peer's process is not visible to us */
    unsigned handles;       /* of libuv, not yet closed */
    int events;             /* what the poll waits for */
    struct zb_err *refusal; /* why it is in the waiting room; NULL: it is not */
    bool stalled; /* the stream may have frames: answers are full, or it had its part of a turn */
    bool unread;  /* stalled, and the socket is to be read first: there was no time for it */
    bool dead;    /* its process has died: what it sent is handled without a limit of time */
    struct zb_list node;      /* in server->links or refused */
    struct zb_list todo_node; /* in server->todo or hungry */
    uint64_t since_ns;        /* time of arrival */
    struct zb_list silent_node;
    struct zb_list later_node; /* in server->waiting */
    uint64_t booked_bytes;     /* of queued answers, as charged to conn.quota */
    unsigned booked_fds;       /* as charged to conn.quota */
    bool blocked;              /* the system has no room for what it sends */
};

/** Takes over fd: a client, or one that a limit refuses, for the waiting room (*ret_refused). 0, or
 * a
 *  negative errno and fd is closed. */
int zsd_link_new(struct zsd_server *server, int fd, bool *ret_refused);
/** Queues it for the next zsd_server_turn() (L1). */
void zsd_link_touch(struct zsd_link *link);
/** Updates the quota: answers that are queued, and descriptors that the peer has not read. */
void zsd_link_book(struct zsd_link *link);
/** A request for a frame; NULL: no memory. Its answer ends it. */
struct zsd_req *zsd_req_new(struct zsd_link *link, const struct zp_frame *frame);
/** Ends it now: not from inside a call of the core. */
void zsd_link_end(struct zsd_link *link);
/** admit.c: a descriptor that is readable when the process at the other end of fd is dead; -1:
 * there
 *  is none (a process of another name space), or no room for it. */
int zsd_link_pidfd(int fd, pid_t pid);
/** Books the connection: 0, and link->refusal has the reason when a limit refuses it; -ENOMEM. */
int zsd_link_admit(struct zsd_link *link);
/** One link's part of zsd_server_turn(). */
bool zsd_link_turn(struct zsd_link *link);
/** Whether this half of the turn has time for connections; its first call begins it. */
static inline bool zsd_server_has_time(struct zsd_server *server)
{
    uint64_t now_ns = zb_now_ns();

    if (server->end_ns == 0)
        server->end_ns = now_ns + server->most_ns;
    return now_ns < server->end_ns;
}

#endif
