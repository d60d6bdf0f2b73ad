/*
 * hello.c - the first request, and ping.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/conn/conn.h"
#include "proto/wire.h"

static int reply_hello(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__HelloReply *r = (const Zp__HelloReply *)m;
    struct zc_server *s = call->spec.ret;

    (void)fds;
    if (r->version < ZP_VERSION_MIN || r->version > ZP_VERSION_MAX)
        return zc_fail(c, -EPROTO, "the daemon chose version %u of the protocol", r->version);
    if (r->instance.len != sizeof(s->instance) || r->block_elems == 0 || r->page_elems == 0 ||
        r->page_elems % r->block_elems != 0 || r->shards_max == 0)
        return zc_fail(c, -EPROTO, "hello with pages of %u, blocks of %u, %u shards", r->page_elems,
                       r->block_elems, r->shards_max);
    s->version = r->version;
    s->page_elems = r->page_elems;
    s->block_elems = r->block_elems;
    s->shards_max = (uint32_t)zb_min_u64(r->shards_max, ZP_SHARDS_MAX);
    memcpy(s->instance, r->instance.data, sizeof(s->instance));
    s->pid = r->pid;
    c->features = r->features;
    s->sums = (r->features & ZP_FEATURE_SUMS) != 0;
    (void)snprintf(s->server, sizeof(s->server), "%s", r->server);
    return 0;
}

static const struct zc_method method_hello = { .id = ZP_HELLO, .reply = reply_hello };

int zc_hello(struct zc_client *c, const char *program, zc_done_fn *done, void *arg)
{
    Zp__Hello m = ZP__HELLO__INIT;

    m.version_min = ZP_VERSION_MIN;
    m.version_max = ZP_VERSION_MAX;
    m.program = UNCONST(char, program);
    return zc_ask(c, &method_hello, &m.base, &c->server, done, arg);
}

static const struct zc_method method_ping = { .id = ZP_PING };

int zc_ping(struct zc_client *c, zc_done_fn *done, void *arg)
{
    Zp__Empty m = ZP__EMPTY__INIT;

    return zc_ask(c, &method_ping, &m.base, NULL, done, arg);
}
