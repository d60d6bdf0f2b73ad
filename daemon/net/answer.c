/*
 * answer.c - requests and their answers, and events.
 *
 * MODEL. conn.c makes a request of a frame (zsd_req_new()). The request, and the maximum length of
 * its answer, are charged to the quota of its connection. Its handler answers it exactly once, now
 * or later: then the request is freed, its charges are returned, and the answer is queued in the
 * stream. If the client has left, the answer is dropped. zsd_server_turn() sends the queue, so the
 * answers of one turn share a system call.
 *
 * FAILURES. An answer that cannot be sent is replaced by an error message. If that cannot be queued
 * either, the link is LOST: zsd_server_turn() ends it, because the core may be on the stack.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/net/conn.h"
#include "daemon/net/conn_priv.h"

static struct zsd_link *link_of(struct zsd_conn *conn)
{
    return zb_container_of(conn, struct zsd_link, conn);
}

/* ---- the link */

void zsd_link_touch(struct zsd_link *l)
{
    if (zb_list_empty(&l->todo_node))
        zb_list_push_back(&l->server->todo, &l->todo_node);
}

void zsd_link_book(struct zsd_link *l)
{
    struct zsd_quota *q = &l->conn.quota;
    size_t bytes = zp_stream_pending(l->stream);
    unsigned fds = zp_stream_fds(l->stream);

    zsd_limit_give(q, ZSD_LIMIT_ANSWER_BYTES, l->booked_bytes);
    zsd_limit_add(q, ZSD_LIMIT_ANSWER_BYTES, bytes);
    zsd_limit_give(q, ZSD_LIMIT_ANSWER_FDS, l->booked_fds);
    zsd_limit_add(q, ZSD_LIMIT_ANSWER_FDS, fds);
    l->booked_bytes = bytes;
    l->booked_fds = fds;
}

/** Disconnects the client in zsd_server_turn(), because the core may be on the stack. */
static void link_lose(struct zsd_link *l, const char *why)
{
    l->conn.daemon->stats.clients_dropped++;
    zsd_conn_log(&l->conn, ZB_LOG_WARN, "client-dropped", "why=\"%s\"", why);
    l->state = LINK_LOST;
    zsd_link_touch(l);
}

/* ---- sending */

static int link_send(struct zsd_link *l, struct zp_frame frame, const ProtobufCMessage *message,
                     const char *text, const int *fds, unsigned nfds)
{
    int rc = zp_stream_send(l->stream, frame, message, text, fds, nfds);

    zsd_link_touch(l);
    zsd_link_book(l);
    return rc;
}

static const char *link_why_unsent(int rc)
{
    return rc == -ENOBUFS ? "it does not read its answers" : "no memory for an answer";
}

static bool link_can_send(const struct zsd_link *l)
{
    return l->state == LINK_OPEN || l->state == LINK_LAST;
}

/** Sends an answer, or if that fails an error message. If that fails, too, the link is lost. */
static void link_answer(struct zsd_link *l, struct zp_frame frame, const ProtobufCMessage *message,
                        const char *text, const int *fds, unsigned nfds)
{
    struct zb_err err = { 0 };
    int rc = link_send(l, frame, message, text, fds, nfds);

    if (rc == -EMSGSIZE || rc == -EMFILE || rc == -ENOMEM) {
        frame.code = zb_fail(&err, rc, "the answer cannot be sent: %m");
        l->conn.daemon->stats.replies_failed++;
        rc = link_send(l, frame, NULL, err.text, NULL, 0);
    }
    if (rc < 0)
        link_lose(l, link_why_unsent(rc));
}

/* ---- requests */

struct zsd_req *zsd_req_new(struct zsd_link *l, const struct zp_frame *frame)
{
    struct zsd_req *req = calloc(1, sizeof(*req));
    struct zb_err err = { 0 };
    int rc;

    if (!req)
        return NULL;
    rc = zsd_limit_take(&l->conn.quota, ZSD_LIMIT_REQUESTS, 1, &err);
    assert(rc == 0); /* link_frames() has checked link_full() */
    (void)rc;
    req->promised_bytes = (uint32_t)zp_reply_max(frame->method, frame->body_bytes);
    zsd_limit_add(&l->conn.quota, ZSD_LIMIT_ANSWER_BYTES, req->promised_bytes);
    req->conn = &l->conn;
    req->daemon = l->conn.daemon;
    req->method = frame->method;
    req->tag = frame->tag;
    req->since_ns = zb_now_ns();
    zb_list_push_back(&l->conn.reqs, &req->conn_node);
    req->daemon->reqs++;
    if (!req->daemon->unanswered.next)
        zb_list_init(&req->daemon->unanswered);
    zb_list_push_back(&req->daemon->unanswered, &req->daemon_node);
    return req;
}

/** Logs a request that took as long as slow_request_ms. Not one that waited for a later request of its
 * own client. */
static void req_log(struct zsd_req *req, int code)
{
    uint64_t ns = req->daemon->config.slow_request_ms * UINT64_C(1000000), took_ns;
    const struct zp_method_info *info = zp_method_info(req->method);

    if (ns == 0 || !req->conn || req->waits)
        return;
    took_ns = zb_now_ns() - req->since_ns;
    if (took_ns >= ns)
        zsd_conn_log(req->conn, ZB_LOG_WARN, "slow-request", "method=%s ms=%llu code=%d",
                     info ? info->name : "unknown", (unsigned long long)(took_ns / 1000000), code);
}

/** Sends the answer if the client is still connected, and frees the request. */
static void req_end(struct zsd_req *req, int code, const ProtobufCMessage *message,
                    const char *text, const int *fds, unsigned nfds)
{
    struct zp_frame frame = {
        .method = req->method, .kind = ZP_REPLY, .code = code, .tag = req->tag
    };
    struct zsd_link *l = req->conn ? link_of(req->conn) : NULL;

    req_log(req, code);
    if (code < 0)
        req->daemon->stats.replies_failed++;
    if (l) {
        zb_list_remove(&req->conn_node);
        zsd_req_waited(req);
        zsd_limit_give(&l->conn.quota, ZSD_LIMIT_REQUESTS, 1);
        zsd_limit_give(&l->conn.quota, ZSD_LIMIT_ANSWER_BYTES, req->promised_bytes);
    }
    if (l && link_can_send(l))
        link_answer(l, frame, message, text, fds, nfds);
    else
        req->daemon->stats.replies_lost++;
    req->daemon->reqs--;
    zb_list_remove(&req->daemon_node);
    free(req);
}

void zsd_reply(struct zsd_req *req, const ProtobufCMessage *message, int fd)
{
    req_end(req, 0, message, NULL, &fd, fd >= 0 ? 1 : 0);
}

void zsd_reply_fds(struct zsd_req *req, const ProtobufCMessage *message, const int *fds,
                   unsigned nfds)
{
    req_end(req, 0, message, NULL, fds, nfds);
}

void zsd_reply_err(struct zsd_req *req, const struct zb_err *err)
{
    assert(err->code < 0);
    req_end(req, err->code, NULL, err->text, NULL, 0);
}

void zsd_event(struct zsd_conn *conn, uint16_t event, const ProtobufCMessage *message)
{
    struct zsd_link *l = link_of(conn);
    struct zp_frame frame = { .method = event, .kind = ZP_EVENT };
    int rc;

    if (!conn->greeted || !link_can_send(l))
        return;
    rc = link_send(l, frame, message, NULL, NULL, 0);
    if (rc < 0)
        link_lose(l, link_why_unsent(rc));
}
