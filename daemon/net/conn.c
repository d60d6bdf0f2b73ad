/*
 * conn.c - one connection: reading, frames, back-pressure, and its end. Answers: answer.c.
 *
 * MODEL. The poll reads once each time the socket is readable, and handles every complete frame.
 * Answers are queued in the stream; zsd_server_turn() sends them, so the answers of one turn share
 * a system call. States and invariants: conn_priv.h.
 *
 * ROUND ROBIN. In each half of a turn, at most ZSD_FRAMES_TURN frames of one process are handled,
 * over all of its links. The next half continues, first with links that got nothing. So a client
 * that floods the daemon delays others by at most that much, however many connections it has. All
 * links stop when the requests of a turn have used their part of its work (run/turn.h), or its time
 * (ZSD_NET_NS). The links that are left wait in server->hungry, in order. Over many turns, pace.c
 * limits the time of a process while the jobs of others work.
 *
 * BACK-PRESSURE. A link is full if any of these is reached: ZSD_REQS_MAX unanswered requests;
 * ZSD_OUT_HIGH bytes that its client has not read; the maximum of a stream for the answers that are
 * queued or promised; ZSD_CONN_FDS_MAX unread descriptors; or the limits of its user
 * (net/limits.c). Then it is stalled: nothing is read, frames that have arrived wait in the stream,
 * and the first turn with room handles them. So a client that reads is never dropped, however many
 * answers come together. Requests that wait for a later request of their client do not fill a link
 * (waits.c). Disconnection is still noticed: a stalled poll waits for it.
 *
 * OTHER LINKS OF THE USER. Connections that do not read can use up the bytes that their user may
 * have. Another connection of that user then still gets one answer at a time, if it has nothing
 * queued or promised except for requests that wait, so it continues as long as it reads. So a user
 * exceeds its limit by at most the answers of waiting requests, and one answer for each connection.
 *
 * LATER. No event reports that a peer has read its descriptors, that another link of the user has
 * room, or that the system has memory again. A link that waits for one of these is in
 * server->waiting, and is checked every ZSD_LATER_MS.
 *
 * DEATH. A socket closes with the last process that holds it, and a trainer may fork (data
 * loaders). So the peer's process is also watched by its pidfd: when the process is dead, the link
 * ends.
 */
#include "daemon/net/conn.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/conn_priv.h"
#include "daemon/run/turn.h"

#define PEER_GROUPS_MAX 1024u /* of a process that connects */

/* Room for the largest answer, and for events, which are not promised. */
#define ANSWER_SLACK (ZP_HEADER_BYTES + ZP_BODY_MAX + (UINT32_C(1) << 20))

/** The client has too many unread bytes. Its reading makes room. */
static bool link_full_of_bytes(const struct zsd_link *l)
{
    return zp_stream_pending(l->stream) > ZSD_OUT_HIGH;
}

/** The limit of bytes of answers is reached: by this link; or by its user, and some are this
 * link's. */
static bool link_full_of_answers(const struct zsd_link *l)
{
    const struct zsd_quota *q = &l->conn.quota;

    return q->used[ZSD_LIMIT_ANSWER_BYTES] > q->used[ZSD_LIMIT_WAITING_BYTES] &&
           !zsd_limit_room(q, ZSD_LIMIT_ANSWER_BYTES, ANSWER_SLACK);
}

static bool link_full(const struct zsd_link *l)
{
    const struct zsd_quota *q = &l->conn.quota;

    return link_full_of_bytes(l) || link_full_of_answers(l) ||
           !zsd_limit_room(q, ZSD_LIMIT_REQUESTS, 1) || !zsd_limit_room(q, ZSD_LIMIT_ANSWER_FDS, 1);
}

/** Call when the link has sent its hello, or ends. */
static void link_not_silent(struct zsd_link *l)
{
    zb_list_remove(&l->silent_node);
    if (zb_list_empty(&l->server->silent))
        (void)uv_timer_stop(&l->server->hello);
}

static void link_on_later(uv_timer_t *timer)
{
    struct zsd_server *s = timer->data;
    struct zb_list *node;

    while ((node = zb_list_pop_front(&s->waiting)) != NULL)
        zsd_link_touch(zb_container_of(node, struct zsd_link, later_node));
}

/** Checks the link again after ZSD_LATER_MS. */
static void link_later(struct zsd_link *l)
{
    struct zsd_server *s = l->server;

    if (zb_list_empty(&s->waiting))
        (void)uv_timer_start(&s->later, link_on_later, ZSD_LATER_MS, 0);
    if (zb_list_empty(&l->later_node))
        zb_list_push_back(&s->waiting, &l->later_node);
}

/* ---- the end */

static void link_on_trim(uv_timer_t *timer)
{
    struct zsd_server *s = timer->data;

    if (s->daemon->clients == 0)
        (void)malloc_trim(0);
}

static void link_on_closed(uv_handle_t *handle)
{
    struct zsd_link *l = handle->data;

    if (--l->handles == 0) {
        free(l->refusal);
        free(l);
    }
}

void zsd_link_end(struct zsd_link *l)
{
    struct zb_list *node;

    assert(l->state != LINK_ENDED);
    l->state = LINK_ENDED;
    l->server->ops->gone(&l->conn); /* answers to this link's requests are dropped: it is ENDED */
    while ((node = zb_list_pop_front(&l->conn.reqs)) != NULL)
        zb_container_of(node, struct zsd_req, conn_node)->conn = NULL;
    zb_list_remove(&l->todo_node);
    zb_list_remove(&l->node);
    zb_list_remove(&l->later_node);
    zb_list_remove(&l->rest_node);
    link_not_silent(l);
    zsd_quota_leave(&l->conn.quota);
    if (l->refusal)
        l->server->nrefused--;
    else
        l->conn.daemon->clients--;
    if (l->conn.daemon->clients == 0) /* trimming delays no client */
        (void)uv_timer_start(&l->server->trim, link_on_trim, ZSD_TRIM_MS, 0);
    uv_close((uv_handle_t *)&l->poll, link_on_closed);
    if (l->pidfd >= 0)
        uv_close((uv_handle_t *)&l->death, link_on_closed);
    zb_close_fd(&l->pidfd);
    zp_stream_free(l->stream); /* after uv_close(), which removes the descriptor from the poll */
}

static void link_log(struct zsd_link *l, enum zb_log_level level, const char *event,
                     const char *why)
{
    zsd_conn_log(&l->conn, level, event, "why=\"%s\"", why);
}

/** Disconnects the client at once. Only from callbacks of this file. */
static void link_drop(struct zsd_link *l, const char *why)
{
    l->conn.daemon->stats.clients_dropped++;
    link_log(l, ZB_LOG_WARN, "client-dropped", why);
    zsd_link_end(l);
}

/* ---- input */

static int link_refuse(struct zsd_link *l, const struct zp_frame *frame, struct zb_err *err)
{
    struct zsd_req *req = frame->kind == ZP_REQUEST ? zsd_req_new(l, frame) : NULL;

    if (!req)
        return zb_fail(err, -EPROTO, "rejected, because its first message is not a request");
    zsd_reply_err(req, l->refusal);
    return 1;
}

/** 0; 1: read nothing more; -EPROTO, -ENOMEM: disconnect the client, err has the reason. */
static int link_dispatch(struct zsd_link *l, const struct zp_frame *frame, const uint8_t *body,
                         struct zb_err *err)
{
    struct zp_arena *arena = l->server->arena;
    struct zsd_req *req;

    l->conn.daemon->stats.requests++;
    if (frame->fds > 0)
        return zb_fail(err, -EPROTO, "a message of a client carries %u descriptors", frame->fds);
    if (frame->kind == ZP_ONEWAY)
        return l->server->ops->oneway(&l->conn, arena, frame->method, body, frame->body_bytes, err);
    if (frame->kind != ZP_REQUEST)
        return zb_fail(err, -EPROTO, "a client sends requests only");
    req = zsd_req_new(l, frame);
    if (!req)
        return zb_fail(err, -ENOMEM, "a request: %m");
    return l->server->ops->request(req, arena, body, frame->body_bytes);
}

/** Handles one frame; false: the link has ended. */
static bool link_frame(struct zsd_link *l, const struct zp_frame *frame, const uint8_t *body,
                       int *fds)
{
    struct zb_err err = { 0 };
    int rc;

    for (unsigned i = 0; i < frame->fds; i++)
        zb_close_fd(&fds[i]); /* clients must not send any */
    rc = l->refusal ? link_refuse(l, frame, &err) : link_dispatch(l, frame, body, &err);
    if (rc < 0) {
        link_drop(l, err.text);
        return false;
    }
    if (l->conn.greeted && !zb_list_empty(&l->silent_node))
        link_not_silent(l);
    if (rc == 1 && l->state == LINK_OPEN) {
        l->state = LINK_LAST;
        zsd_link_touch(l);
    }
    return true;
}

/** Disconnects clients that did not send their hello in time. */
static void link_on_hello(uv_timer_t *timer)
{
    struct zsd_server *s = timer->data;
    uint64_t timeout_ns = s->daemon->config.hello_ms * UINT64_C(1000000), now = zb_now_ns();
    char why[64];

    (void)snprintf(why, sizeof(why), "it sent no hello in %u ms (hello_ms)",
                   s->daemon->config.hello_ms);
    while (!zb_list_empty(&s->silent)) {
        struct zsd_link *l = zb_container_of(s->silent.next, struct zsd_link, silent_node);

        if (now - l->since_ns < timeout_ns) {
            (void)uv_timer_start(timer, link_on_hello,
                                 zb_div_up(timeout_ns - (now - l->since_ns), 1000000), 0);
            return;
        }
        link_drop(l, why);
    }
}

/** Lets zsd_server_turn() handle the link before those that have had frames. */
static void link_hungry(struct zsd_link *l)
{
    zb_list_remove(&l->todo_node);
    zb_list_push_back(&l->server->hungry, &l->todo_node);
}

/** Handles frames that have arrived: as many as its process may have in this half of the turn,
 * while there is room for answers. False: the link has ended. */
static bool link_frames(struct zsd_link *l)
{
    uint8_t *handled = &l->server->frames[zsd_link_place(l)]; /* in this half of the turn */
    unsigned n = 0;
    struct zb_err err = { 0 };
    struct zp_frame frame;
    const uint8_t *body;
    int fds[ZP_FDS_MAX], rc;

    for (; l->state == LINK_OPEN && !link_full(l) && *handled < ZSD_FRAMES_TURN &&
           !zsd_turn_full(l->conn.daemon) && (n == 0 || l->dead || zsd_server_has_time(l->server));
         n++, (*handled)++) {
        rc = zp_stream_next(l->stream, &frame, &body, fds, &err);
        if (rc == 0)
            return true;
        if (rc < 0) {
            link_drop(l, err.text);
            return false;
        }
        if (!link_frame(l, &frame, body, fds))
            return false;
    }
    if (l->state == LINK_OPEN) {
        l->stalled = true;
        l->conn.daemon->stats.sent_stalls += link_full(l);
        if (n == 0 && !link_full(l))
            link_hungry(l);
        else
            zsd_link_touch(l);
    }
    return true;
}

/** Reads once, and handles frames. False: the link has ended. */
static bool link_read(struct zsd_link *l)
{
    struct zb_err err = { 0 };
    int rc = zp_stream_read(l->stream, &err);

    if (rc == 0)
        return link_frames(l);
    if (rc == -EAGAIN)
        return true;
    if (rc == -ECONNRESET) {
        link_log(l, ZB_LOG_DEBUG, "client-gone", err.text);
        zsd_link_end(l);
    } else {
        link_drop(l, err.text);
    }
    return false;
}

/** Reads, or handles frames that have arrived, and charges the time to the process. False: the link
 * has ended. */
static bool link_handle(struct zsd_link *l, bool read)
{
    uint64_t *ready_ns = &l->server->ready_ns[zsd_link_place(l)], begin_ns = zb_now_ns();
    bool there = read ? link_read(l) : link_frames(l);

    zsd_pace_charge(ready_ns, begin_ns);
    return there;
}

/** Whether the socket has unread bytes. */
static bool link_more(const struct zsd_link *l)
{
    int bytes = 0;

    return ioctl(zp_stream_fd(l->stream), FIONREAD, &bytes) == 0 && bytes > 0;
}

/* ---- the poll */

static void link_on_poll(uv_poll_t *poll, int status, int events);

/** Sets the events to poll for. A link in server->todo or hungry is left to zsd_link_turn(). */
static void link_arm(struct zsd_link *l)
{
    int events = l->hung_up ? 0 : UV_DISCONNECT;
    int rc;

    if (!zb_list_empty(&l->todo_node))
        return;
    if (l->state == LINK_OPEN && !l->stalled)
        events |= UV_READABLE;
    if (zp_stream_pending(l->stream) > 0 && !l->blocked)
        events |= UV_WRITABLE;
    if (events == l->events)
        return;
    l->events = events;
    rc = events ? uv_poll_start(&l->poll, events, link_on_poll) : uv_poll_stop(&l->poll);
    assert(rc == 0); /* cannot fail: it only records the events for the next poll */
}

/** Whether the client has disconnected and the link is not read from, so nothing is left to
 * handle. */
static bool link_lost(const struct zsd_link *l, bool gone)
{
    return gone && (l->state != LINK_OPEN || (l->stalled && (!l->unread || link_full(l))));
}

/** Leaves an event of the poll to zsd_server_turn(). */
static void link_postpone(struct zsd_link *l, bool gone)
{
    if (l->state == LINK_OPEN && !l->stalled) {
        l->stalled = l->unread = true;
        link_hungry(l);
    } else if (link_lost(l, gone)) {
        l->state = LINK_LOST;
        zsd_link_touch(l);
    }
}

/** status is UV_EBADF if the socket has an error; reading returns the error. */
static void link_on_poll(uv_poll_t *poll, int status, int events)
{
    struct zsd_link *l = poll->data;
    bool gone = (events & UV_DISCONNECT) || status < 0, in = gone || (events & UV_READABLE);

    if (status < 0)
        l->events = 0; /* libuv has stopped the poll */
    if ((events & UV_WRITABLE) || status < 0)
        zsd_link_touch(l);
    if (in && l->state == LINK_OPEN && (!l->stalled || l->unread) && zsd_link_must_rest(l)) {
        l->stalled = l->unread = true;
        l->hung_up |= gone;
        zsd_link_rest(l);
        link_arm(l);
        return;
    }
    if (in && !zsd_server_has_time(l->server)) {
        link_postpone(l, gone);
        return;
    }
    if (l->state == LINK_OPEN && !l->stalled) {
        if (in && !link_handle(l, true))
            return;
    } else if (link_lost(l, gone)) {
        link_log(l, ZB_LOG_DEBUG, "client-gone", "hung up");
        zsd_link_end(l);
        return;
    }
    link_arm(l);
}

/** The peer's process has died, but a child that it forked holds the socket. Handles the frames
 * that have arrived, then ends the link. */
static void link_on_death(uv_poll_t *poll, int status, int events)
{
    struct zsd_link *l = poll->data;

    (void)status;
    (void)events;
    l->dead = true;
    if (!zb_list_empty(&l->rest_node) && l->unread)
        l->stalled = l->unread = false;
    while (l->state == LINK_OPEN && !l->stalled && link_more(l))
        if (!link_read(l))
            return;
    link_log(l, ZB_LOG_DEBUG, "client-gone",
             "its process died; a child process still has the socket");
    zsd_link_end(l);
}

bool zsd_link_turn(struct zsd_link *l)
{
    bool again;
    int rc = l->state == LINK_LOST ? -ECONNRESET : zp_stream_write(l->stream);

    if (rc < 0 || (l->state == LINK_LAST && zp_stream_pending(l->stream) == 0)) {
        zsd_link_end(l);
        return true;
    }
    if (rc == 1 && !l->blocked)
        link_log(l, ZB_LOG_WARN, "send-delayed",
                 "the system has no memory, or too many descriptors are in flight");
    l->blocked = rc == 1;
    zsd_link_book(l);
    if (l->blocked || l->booked_fds > 0 || (l->stalled && !link_full_of_bytes(l) && link_full(l)))
        link_later(l);
    again = l->stalled && !link_full(l);
    if (again && zsd_link_must_rest(l)) {
        zsd_link_rest(l);
    } else if (again) {
        bool unread = l->unread;

        zb_list_remove(&l->rest_node);
        l->stalled = l->unread = l->hung_up = false;
        if (link_handle(l, unread))
            link_arm(l);
        return true;
    }
    link_arm(l);
    return false;
}

/* ---- the beginning */

/** Watches the peer's process. If that is not possible, only the end of the socket is noticed. */
static void link_watch(struct zsd_link *l)
{
    if (l->pidfd < 0)
        return;
    if (uv_poll_init(l->server->uv, &l->death, l->pidfd) < 0) {
        zb_close_fd(&l->pidfd);
        return;
    }
    l->death.data = l;
    l->handles++;
    (void)uv_poll_start(&l->death, UV_READABLE, link_on_death);
}

/** Whether the peer was in this group when it connected. */
static bool peer_in_group(int fd, const struct ucred *cred, gid_t gid)
{
    gid_t groups[PEER_GROUPS_MAX];
    socklen_t len = sizeof(groups);

    if (cred->gid == gid)
        return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
        return false; /* more groups than a process should have: none counts */
    for (size_t i = 0; i < len / sizeof(groups[0]); i++)
        if (groups[i] == gid)
            return true;
    return false;
}

/* Who is at the other end: *ret, and whether it is in the administrators' group. 0 or -errno. */
static int link_peer(struct zsd_link *l, int fd, struct ucred *ret)
{
    const struct zsd *daemon = l->server->daemon;
    socklen_t len = sizeof(*ret);
    int rc = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &len) < 0 ? -errno : 0;

    l->conn.in_admin_group = rc == 0 && daemon->has_admin_gid &&
                             peer_in_group(fd, ret, daemon->admin_gid);
    return rc;
}

void zsd_link_rights(struct zsd_link *l)
{
    struct ucred cred;

    (void)link_peer(l, zp_stream_fd(l->stream), &cred);
}

/** Owns fd once l->stream is set. */
static int link_build(struct zsd_link *l, int fd)
{
    struct ucred cred;
    int rc = link_peer(l, fd, &cred);

    if (rc < 0)
        return rc;
    l->conn.uid = cred.uid;
    l->conn.pid = cred.pid;
    rc = zsd_link_admit(l);
    if (rc < 0)
        return rc;
    if (!l->refusal)
        l->pidfd = zsd_link_pidfd(fd, cred.pid);
    rc = zp_stream_new(&l->stream, fd);
    if (rc == 0)
        rc = uv_poll_init(l->server->uv, &l->poll, fd);
    if (rc == 0) {
        l->handles = 1;
        link_watch(l);
    }
    return rc;
}

int zsd_link_new(struct zsd_server *server, int fd, bool *ret_refused)
{
    struct zsd_link *l = calloc(1, sizeof(*l));
    int rc = -ENOMEM;

    if (l) {
        l->server = server;
        l->pidfd = -1;
        rc = link_build(l, fd);
    }
    if (rc < 0) {
        if (l)
            zb_close_fd(&l->pidfd);
        if (l && l->stream)
            zp_stream_free(l->stream);
        else
            zb_close_fd(&fd);
        if (l) {
            zsd_quota_leave(&l->conn.quota);
            free(l->refusal);
        }
        free(l);
        return rc;
    }
    l->conn.daemon = server->daemon;
    l->poll.data = l;
    zb_list_init(&l->conn.reqs);
    zb_list_init(&l->todo_node);
    zb_list_init(&l->silent_node);
    zb_list_init(&l->later_node);
    zb_list_init(&l->rest_node);
    *ret_refused = l->refusal != NULL;
    zb_list_push_back(l->refusal ? &server->refused : &server->links, &l->node);
    if (l->refusal)
        server->nrefused++;
    else
        server->daemon->clients++;
    l->since_ns = zb_now_ns();
    if (zb_list_empty(&server->silent))
        (void)uv_timer_start(&server->hello, link_on_hello, server->daemon->config.hello_ms, 0);
    zb_list_push_back(&server->silent, &l->silent_node);
    link_arm(l);
    return 0;
}

/* ---- rights */

bool zsd_admin(const struct zsd_conn *conn)
{
    if (conn->in_admin_group)
        return true;
    if (conn->uid == 0)
        return !conn->daemon || !conn->daemon->config.root_is_user;
    return conn->uid == geteuid();
}

bool zsd_may(const struct zsd_conn *conn, uid_t uid)
{
    return conn->uid == uid || zsd_admin(conn);
}
