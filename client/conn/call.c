/*
 * call.c - calls in flight: tags, replies matched to calls, one end for each.
 *
 * MODEL. A call is a slot of a fixed table. Its tag holds the slot's index and a number that only
 * grows. So a reply finds its call at once, and a repeated or unexpected reply finds none.
 *
 *     FREE ---> SENT ---> FREE              the reply arrived: done runs
 *                  \                ,-> FREE
 *                   `---> ENDED ---'        an event ended it, done ran; its reply is dropped
 *
 * Ending a call frees its slot before done runs, so a callback may start the next call in it.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/conn/conn.h"

static struct zc_call *call_take(struct zc_client *c)
{
    struct zb_list *node = zb_list_pop_front(&c->free_calls);
    struct zc_call *call;

    if (node) {
        call = zb_container_of(node, struct zc_call, node);
    } else {
        call = &c->slots[c->slots_used++];
        zb_list_init(&call->node);
    }
    c->ncalls++;
    return call;
}

static void call_free(struct zc_client *c, struct zc_call *call)
{
    free(call->spec.copy);
    call->spec.copy = NULL;
    call->tag = 0;
    zb_list_remove(&call->node);
    zb_list_push_back(&c->free_calls, &call->node);
    c->ncalls--;
}

/** Runs done, if there is one. Returns the number of callbacks that ran. */
static unsigned call_done(struct zc_client *c, const struct zc_call_spec *spec, int rc)
{
    if (!spec->done)
        return 0;
    c->running = true;
    spec->done(spec->arg, rc);
    c->running = false;
    return 1;
}

static unsigned call_end(struct zc_client *c, struct zc_call *call, int rc)
{
    struct zc_call_spec spec = call->spec;
    bool ended = call->ended;

    call_free(c, call);
    return ended ? 0 : call_done(c, &spec, rc);
}

int zc_call_again(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *message)
{
    struct zp_frame frame = { .method = call->spec.method->id, .kind = ZP_REQUEST };
    int rc = zc_conn_releases(c); /* C4 */

    frame.tag = ++c->last_number << ZC_TAG_BITS | (uint64_t)(call - c->slots);
    if (rc == 0)
        rc = zp_stream_send(c->stream, frame, message, NULL, NULL, 0);
    if (rc < 0)
        return zc_fail(c, rc, "%s: %s", zp_method_info(call->spec.method->id)->name,
                       rc == -EMSGSIZE  ? "the request is too long"
                       : rc == -ENOBUFS ? "the daemon does not read, and the send queue is full"
                                        : "no memory to send it");
    call->tag = frame.tag;
    zb_list_remove(&call->node);
    zb_list_push_back(&c->calls, &call->node);
    if (!c->running) /* calls that callbacks start are sent together afterwards */
        zc_conn_send(c);
    return 0;
}

void zc_waiter_done(void *arg, int rc)
{
    struct zc_waiter *w = arg;

    w->finished = true;
    w->rc = rc;
    w->err = w->client->err; /* later callbacks may replace client->err */
}

int zc_call_start(struct zc_client *c, const struct zc_call_spec *spec)
{
    bool waits = spec->done == zc_waiter_done;
    struct zc_call *call;
    int rc = zc_conn_usable(c);

    if (rc == 0 && waits && c->running)
        rc = zc_fail(c, -EBUSY, "a blocking call inside a callback");
    if (rc == 0 && c->ncalls >= (spec->done ? ZC_CALLS_MAX : ZC_CALL_SLOTS))
        rc = zc_fail(c, -ENOBUFS, "%u calls are in flight", c->ncalls);
    if (rc < 0) {
        free(spec->copy);
        return rc;
    }
    call = call_take(c);
    call->spec = *spec;
    call->ended = false;
    call->at = 0;
    rc = zc_call_again(c, call, spec->message);
    if (rc < 0)
        call_free(c, call);
    return rc;
}

int zc_ask(struct zc_client *c, const struct zc_method *method, const ProtobufCMessage *message,
           void *ret, zc_done_fn *done, void *arg)
{
    const struct zc_call_spec spec = {
        .method = method, .message = message, .ret = ret, .done = done, .arg = arg
    };

    return zc_call_start(c, &spec);
}

static struct zc_call *call_of_tag(struct zc_client *c, uint64_t tag)
{
    uint64_t slot = tag & ((UINT64_C(1) << ZC_TAG_BITS) - 1);

    if (tag == 0 || slot >= c->slots_used || c->slots[slot].tag != tag)
        return NULL;
    return &c->slots[slot];
}

/** An error reply: its code, and the daemon's error message. */
static int reply_refused(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body)
{
    if (frame->body_bytes == 0)
        return zc_fail(c, frame->code, "%s", zc_strerror(frame->code));
    return zc_fail(c, frame->code, "%.*s", (int)frame->body_bytes, (const char *)body);
}

/** Reads a reply into the caller's outputs. 1: the next part was sent; else the code that the call
 *  ends with. -EPROTO, with err: the reply violates the protocol. */
static int reply_read(struct zc_client *c, struct zc_call *call, const struct zp_frame *frame,
                      const uint8_t *body, int *fds, struct zb_err *err)
{
    const struct zp_method_info *info = zp_method_info(frame->method);
    const struct zc_method *method = call->spec.method;
    const ProtobufCMessage *m;
    int rc = 0;

    if (frame->code > 0 || frame->fds != (frame->code == 0 ? method->fds : 0))
        return zb_fail(err, -EPROTO, "a reply to %s with code %d and %u descriptors", info->name,
                       frame->code, frame->fds);
    if (call->ended)
        return 0;
    if (frame->code < 0)
        return reply_refused(c, frame, body);
    if (zp_decode(c->arena, info->reply, body, frame->body_bytes, &m, err) < 0)
        return -EPROTO;
    if (method->reply)
        rc = method->reply(c, call, m, fds);
    if (rc == -EPROTO)
        (void)zb_fail(err, rc, "%s", c->err.text);
    if (rc == 0 && method->next)
        rc = method->next(c, call);
    return rc;
}

int zc_call_reply(struct zc_client *c, const struct zp_frame *frame, const uint8_t *body, int *fds,
                  struct zb_err *err)
{
    struct zc_call *call = call_of_tag(c, frame->tag);
    int rc;

    if (!call || call->spec.method->id != frame->method)
        rc = zb_fail(err, -EPROTO, "a reply to method %u with a tag that is not its own",
                     frame->method);
    else
        rc = reply_read(c, call, frame, body, fds, err);
    for (unsigned i = 0; i < frame->fds; i++)
        zb_close_fd(&fds[i]);
    if (err->code != 0)
        return err->code;
    return rc == 1 ? 0 : (int)call_end(c, call, rc);
}

unsigned zc_calls_end(struct zc_client *c, bool of_job, const struct zb_err *why)
{
    uint64_t last = c->last_number; /* not the calls that callbacks start */
    unsigned ran = 0;

    zb_list_each(node, &c->calls)
    {
        struct zc_call *call = zb_container_of(node, struct zc_call, node);

        if (call->tag >> ZC_TAG_BITS > last)
            break;
        if (call->ended || (of_job && !call->spec.method->of_job))
            continue;
        c->err = *why;
        call->ended = true;
        ran += call_done(c, &call->spec, why->code);
    }
    return ran;
}
