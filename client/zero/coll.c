/*
 * coll.c - collectives in one order on every rank.
 *
 *     QUEUED ---> ARMED ---> STARTED ---> done
 *
 *     QUEUED   has its place in the order; its bytes are still on their way from the store
 *     ARMED    the bytes are there; waits until those before it have started
 *     STARTED  belongs to the backend, or to the device's stream of collectives; several may be in
 *              progress at one time
 *
 * INVARIANT. Places are taken by the trainer's calls alone (zero_priv.h), so every rank starts the
 * same collectives in the same order, although each arms its own when its bytes come.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "client/zero/zero_priv.h"

void zcz_coll_queue(struct zc_zero *z, struct zcz_coll *c, enum zcz_coll_kind kind,
                    struct zc_comm *comm, const char *what, uint32_t unit)
{
    *c = (struct zcz_coll){
        .kind = kind, .comm = comm, .bytes = &z->other_bytes, .what = what, .unit = unit
    };
    zb_list_push_back(&z->queued, &c->node);
}

void zcz_coll_arm(struct zcz_coll *c, const void *send, void *recv, size_t slice_bytes)
{
    zcz_coll_arm_dev(c, NULL, send, recv, slice_bytes);
}

void zcz_coll_arm_dev(struct zcz_coll *c, struct zcz_buf *dev, const void *send, void *recv,
                      size_t slice_bytes)
{
    assert(!c->armed && !c->done);
    c->dev = dev;
    c->send = send;
    c->recv = recv;
    c->slice_bytes = slice_bytes;
    c->armed = true;
}

static int coll_fail(struct zc_zero *z, const struct zcz_coll *c, int rc)
{
    struct zc_comm *comm = c->comm;
    const char *why = comm->ops->error ? comm->ops->error(comm) : "";

    z->comm_broken = true;
    /* A peer that died breaks collectives too; if the store knows, that is the better sentence. */
    if (z->store && !z->store_gone && z->store->ops->poll(z->store, 0) < 0)
        return zcz_fail(z, z->store->err.code, "%s", zcz_store_text(z->store));
    return zcz_fail(z, rc, "%s over '%s'%s%s", c->what, comm->ops->name, *why ? ": " : " failed",
                    why);
}

static int coll_start(struct zc_zero *z, struct zcz_coll *c)
{
    int (*start)(struct zc_comm *, const void *, void *, size_t, struct zc_comm_op **) =
        c->kind == ZCZ_ALL_GATHER ? c->comm->ops->all_gather : c->comm->ops->exchange;
    int comm_rc = 0, rc = 0;

    if (c->dev)
        rc = zcz_device_start(z, c, &comm_rc);
    else
        comm_rc = start(c->comm, c->send, c->recv, c->slice_bytes, &c->op);
    if (rc < 0)
        return rc;
    if (comm_rc < 0)
        return coll_fail(z, c, comm_rc);
    *c->bytes += (uint64_t)c->slice_bytes * (c->comm->world - 1);
    return 0;
}

static int coll_test(struct zc_zero *z, struct zcz_coll *c)
{
    int rc;

    if (!c->dev) {
        rc = c->comm->ops->test(c->comm, c->op, &c->done);
        return rc < 0 ? coll_fail(z, c, rc) : 0;
    }
    rc = zcz_device_done(z, c->dev);
    c->done = rc == 1;
    if (rc == 0 && (rc = z->device.ops->test(c->comm)) < 0)
        return coll_fail(z, c, rc);
    return rc < 0 ? rc : 0;
}

int zcz_coll_turn(struct zc_zero *z)
{
    int rc;

    while (!zb_list_empty(&z->queued)) {
        struct zcz_coll *c = zb_container_of(z->queued.next, struct zcz_coll, node);

        if (!c->armed)
            break;
        zb_list_remove(&c->node);
        rc = coll_start(z, c);
        if (rc < 0)
            return rc;
        zb_list_push_back(&z->started_colls, &c->node);
        z->moved = true;
    }
    zb_list_each(pos, &z->started_colls)
    {
        struct zcz_coll *c = zb_container_of(pos, struct zcz_coll, node);

        rc = coll_test(z, c);
        if (rc < 0)
            return rc;
        if (c->done) {
            zb_list_remove(&c->node);
            z->moved = true;
        }
    }
    return 0;
}

int zcz_share_begin(struct zc_zero *z, const void *mine, size_t bytes, const char *what,
                    struct zcz_buf **ret)
{
    struct zcz_buf *b = zcz_buf_get(&z->small, bytes * z->world);
    char *place;

    if (!b)
        return zcz_fail(z, -ENOMEM, "%s: no memory for %zu bytes", what, bytes * z->world);
    place = (char *)b->data + bytes * z->rank;
    memcpy(place, mine, bytes);
    zcz_coll_queue(z, &z->share, ZCZ_ALL_GATHER, z->comm, what, ZCZ_NO_UNIT);
    zcz_coll_arm(&z->share, place, b->data, bytes);
    *ret = b;
    return 0;
}

int zcz_share_wait(struct zc_zero *z)
{
    struct zcz_wait w = { .what = z->share.what };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && !z->share.done)
        rc = zcz_wait(z, &w);
    return rc;
}

int zcz_share(struct zc_zero *z, const void *mine, size_t bytes, const char *what,
              struct zcz_buf **ret)
{
    int rc = zcz_share_begin(z, mine, bytes, what, ret);

    return rc < 0 ? rc
                  : zcz_share_wait(z); /* on failure the buffer stays in use: it may be written */
}
