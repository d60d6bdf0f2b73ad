/*
 * handle.c - opens and closes handles; accessors.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "client/conn/conn.h"

#define CONNECT_TIMEOUT_MS 5000u
#define QUIET_TIMEOUT_MS   30000u
#define NS_PER_MS          UINT64_C(1000000)

const char *zc_error(const struct zc_client *c)
{
    return c->err.text;
}

/* ---- open and close */

/** Runs in a child process right after fork(): see base/fork.h. */
static void handle_forked(struct zb_fork *f)
{
    static const struct zb_err why = { .code = -EPERM,
                                       .text = "this handle belongs to the process that opened it, "
                                               "and this is a child process: open another handle" };
    struct zc_client *c = zb_container_of(f, struct zc_client, fork);

    if (c->stream)
        zp_stream_shut(c->stream);
    if (c->state == ZC_OPEN) {
        c->state = ZC_LOST;
        c->lost = why;
    }
}

static int handle_build(struct zc_client *c)
{
    c->slots = calloc(ZC_CALL_SLOTS, sizeof(*c->slots));
    if (!c->slots || zp_arena_new(&c->arena) < 0)
        return zc_fail(c, -ENOMEM, "a handle: %m");
    return 0;
}

static int handle_greet(struct zc_client *c, const char *program, uint64_t until_ns)
{
    struct zc_waiter w = { .client = c };
    int rc = zc_wait_until(&w, zc_hello(c, program, zc_waiter_done, &w), until_ns);

    return rc == -EPROTONOSUPPORT ? -EPROTO : rc;
}

/** Back to CLOSED: frees everything but the error message. */
static void handle_shut(struct zc_client *c)
{
    zb_list_each(node, &c->calls)
    { /* ended calls whose replies did not arrive */
        free(zb_container_of(node, struct zc_call, node)->spec.copy);
    }
    zb_list_init(&c->calls);
    zb_list_init(&c->free_calls);
    zc_map_close(&c->staging);
    zc_map_close(&c->params);
    zc_map_close(&c->reader);
    zp_stream_free(c->stream);
    zp_arena_free(c->arena);
    free(c->slots);
    c->stream = NULL;
    c->arena = NULL;
    c->slots = NULL;
    c->server = (struct zc_server){ 0 };
    c->job = 0;
    c->state = ZC_CLOSED;
}

/* One attempt; on failure c is closed, and holds the message. */
static int handle_try(struct zc_client *c, const struct zc_options *o, uint64_t until_ns,
                      uint64_t wait_ns)
{
    int rc = handle_build(c);

    if (rc == 0)
        rc = zc_conn_open(c, o->socket, until_ns, wait_ns);
    if (rc == 0)
        rc = handle_greet(c, o->program ? o->program : "libzclient", until_ns);
    if (rc < 0)
        handle_shut(c);
    return rc;
}

int zc_open(struct zc_client **ret, const struct zc_options *options)
{
    const struct zc_options defaults = { 0 };
    const struct zc_options *o = options ? options : &defaults;
    uint32_t timeout_ms = o->connect_timeout_ms ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    uint32_t quiet_ms = o->quiet_timeout_ms ? o->quiet_timeout_ms : QUIET_TIMEOUT_MS;
    uint64_t until_ns = zb_now_ns() + timeout_ms * NS_PER_MS;
    uint64_t wait_ns = o->connect_timeout_ms && !o->no_wait ? until_ns : 0;
    struct zc_client *c = calloc(1, sizeof(*c));
    int rc;

    *ret = c;
    if (!c)
        return -ENOMEM;
    zb_list_init(&c->calls);
    zb_list_init(&c->free_calls);
    zb_fork_watch(&c->fork, handle_forked);
    c->quiet_ns = quiet_ms * NS_PER_MS;
    do /* a daemon that is about to end accepts a connection, and hangs up: the next one is awaited */
        rc = handle_try(c, o, until_ns, wait_ns);
    while (rc == -ENOTCONN && zb_now_ns() < wait_ns);
    return rc;
}

void zc_close(struct zc_client *c)
{
    struct zb_err why = { 0 };

    if (!c)
        return;
    assert(!c->running); /* not from a callback */
    (void)zb_fail(&why, -ECANCELED, "the handle was closed");
    if (c->state == ZC_OPEN)
        (void)zc_conn_lose(c, &why);
    zb_fork_forget(&c->fork);
    handle_shut(c);
    free(c);
}

/* ---- accessors */

const struct zc_server *zc_server(const struct zc_client *c)
{
    return &c->server;
}

int zc_fd(const struct zc_client *c)
{
    return c->stream ? zp_stream_fd(c->stream) : -1;
}

short zc_events(const struct zc_client *c)
{
    if (c->state != ZC_OPEN)
        return 0;
    return zp_stream_pending(c->stream) > 0 || c->nreleases > 0 ? POLLIN | POLLOUT : POLLIN;
}

void zc_on_event(struct zc_client *c, zc_event_fn *fn, void *arg)
{
    c->on_event = fn;
    c->on_event_arg = arg;
}
