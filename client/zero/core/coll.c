/*
 * coll.c - collectives in the same order on every rank.
 *
 *     QUEUED ---> ARMED ---> STARTED ---> done
 *
 *     QUEUED   has its place in the order; its bytes are still on their way from the store
 *     ARMED    the bytes are there; waits until those before it have started
 *     STARTED  belongs to the backend, or to the device's stream of collectives; several may be in
 *              progress at one time
 *
 * INVARIANT. Only the trainer's calls assign places (zero.h). So every rank starts the same
 * collectives in the same order, although each arms its own when its bytes arrive.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "client/zero/core/zero.h"

#define ZCZ_LOOK_US 100u

static bool between_devices(const struct zc_zero *z, enum zcz_call call)
{
    return z->device.ops && call >= ZCZ_CALL_GATHER && call <= ZCZ_CALL_SUMS;
}

void zcz_coll_init(struct zc_zero *z)
{
    zb_list_init(&z->colls.queued);
    zb_list_init(&z->colls.started);
}

void zcz_coll_clear(struct zc_zero *z)
{
    z->colls.sent = (struct zcz_sent){ 0 };
}

void zcz_coll_queue(struct zc_zero *z, struct zcz_coll *c, struct zc_comm *comm, enum zcz_call call,
                    uint32_t unit, uint16_t detail)
{
    *c = (struct zcz_coll){ .comm = comm, .call = call, .unit = unit };
    c->name = zcz_calls_add(z, call, unit, detail);
    c->agreed = comm->ops->name_next || comm->world == 1 || between_devices(z, call);
    zb_list_push_back(&z->colls.queued, &c->node);
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

int zcz_coll_stuck(struct zc_zero *z)
{
    bool device = false;

    zb_list_each(pos, &z->colls.started)
    {
        if (!zb_container_of(pos, struct zcz_coll, node)->dev)
            return 0;
        device = true;
    }
    return device && !z->comm_broken ? zcz_calls_compare(z, ZCZ_FAREWELL_MS) : 0;
}

#define COLL_STORE_MS \
    500u /* how long this rank waits until its own store reports the loss of the daemon, too */

/* A peer that left breaks collectives. It may have left because the daemon is gone: a process that
 * is killed closes its sockets one by one, so this rank may see that a moment later. Or the daemon
 * says who died. Returns whether the store has reported a failure. */
static bool coll_ask_store(struct zc_zero *z, int rc)
{
    uint64_t until_ns = zb_now_ns() + COLL_STORE_MS * UINT64_C(1000000);
    int store_rc;

    if (!z->store || z->turns.store_gone)
        return false;
    do
        store_rc = z->store->ops->poll(z->store, rc == -EOWNERDEAD ? 1000 : 0);
    while (store_rc >= 0 && rc == -EOWNERDEAD && zb_now_ns() < until_ns);
    return store_rc < 0;
}

#define COLL_TEXT 192u

/* What a collective is: "the gather of unit 3 'h.2'". */
static void coll_text(const struct zc_zero *z, const struct zcz_coll *c, char *text)
{
    const char *noun = zcz_call_noun(c->call);

    if (c->unit == ZCZ_NO_UNIT)
        (void)snprintf(text, COLL_TEXT, "%s", noun);
    else
        (void)snprintf(text, COLL_TEXT, "%s unit %u '%s'", noun, c->unit,
                       z->units[c->unit].def.name);
}

static int coll_fail(struct zc_zero *z, const struct zcz_coll *c, int rc)
{
    struct zc_comm *comm = c->comm;
    const char *why = comm->ops->error ? comm->ops->error(comm) : "";
    char what[COLL_TEXT];

    if (c->dev && rc == -EOWNERDEAD && zcz_coll_stuck(z) < 0)
        return z->failed; /* that rank failed first */
    z->comm_broken = true;
    if (rc == -EINVAL && !c->dev && zcz_calls_refused(z, comm) < 0)
        return z->failed;
    if (coll_ask_store(z, rc)) /* its message says more */
        return zcz_fail(z, z->store->err.code, "%s", zcz_store_text(z->store));
    coll_text(z, c, what);
    return zcz_fail(z, rc, "%s over '%s'%s%s", what, comm->ops->name, *why ? ": " : " failed", why);
}

/* Counts bytes when a collective starts. Names are not counted, as headers of backends are not. */
static void coll_count(struct zc_zero *z, const struct zcz_coll *c)
{
    struct zcz_sent *sent = &z->colls.sent;
    uint64_t bytes = (uint64_t)c->slice_bytes * (c->comm->world - 1);

    if (c->names)
        return;
    if (c->call == ZCZ_CALL_GATHER) {
        sent->gather += bytes;
        sent->nodes += (uint64_t)c->slice_bytes * zcz_nodes_away(z, c->comm);
    } else if (c->call == ZCZ_CALL_REDUCE && z->shards > 1) {
        sent->reduce += bytes;
    } else if (c->call == ZCZ_CALL_REDUCE || c->call == ZCZ_CALL_PARTS ||
               c->call == ZCZ_CALL_SUMS) {
        sent->across += bytes;
    } else {
        sent->other += bytes;
    }
}

static int coll_start(struct zc_zero *z, struct zcz_coll *c)
{
    int (*start)(struct zc_comm *, const void *, void *, size_t, struct zc_comm_op **) =
        zcz_coll_exchanges(c) ? c->comm->ops->exchange : c->comm->ops->all_gather;
    int comm_rc = 0, rc = 0;

    if (c->dev) {
        rc = zcz_device_start(z, c, &comm_rc);
    } else {
        if (c->comm->ops->name_next)
            c->comm->ops->name_next(c->comm, c->name);
        comm_rc = start(c->comm, c->send, c->recv, c->slice_bytes, &c->op);
    }
    if (rc < 0)
        return rc;
    if (comm_rc < 0)
        return coll_fail(z, c, comm_rc);
    coll_count(z, c);
    zb_list_push_back(&z->colls.started, &c->node);
    zcz_moved(z);
    return 0;
}

/* ---- names, for a backend whose messages have none */

/* Starts the exchange of names. */
static int words_begin(struct zc_zero *z, struct zcz_coll *c)
{
    uint64_t *words;

    z->colls.words_buf = zcz_buf_get(&z->small, sizeof(*words) * c->comm->world);
    if (!z->colls.words_buf)
        return zcz_fail(z, -ENOMEM, "no memory for the calls of %u ranks", c->comm->world);
    words = z->colls.words_buf->data;
    words[c->comm->rank] = c->name;
    z->colls.words = (struct zcz_coll){
        .comm = c->comm,
        .call = c->call,
        .unit = c->unit,
        .names = true,
        .send = &words[c->comm->rank],
        .recv = words,
        .slice_bytes = sizeof(*words),
    };
    return coll_start(z, &z->colls.words);
}

static int words_compare(struct zc_zero *z, struct zcz_coll *c)
{
    const uint64_t *words = z->colls.words_buf->data;
    int rc = 0;

    for (uint32_t r = 0; r < c->comm->world && rc == 0; r++)
        if (words[r] != c->name)
            rc = zcz_calls_fail(z, c->name, zcz_rank_of(z, c->comm, r), words[r]);
    zcz_buf_put(&z->small, z->colls.words_buf);
    z->colls.words_buf = NULL;
    c->agreed = rc == 0;
    return rc;
}

/* Checks whether every rank makes c next. */
static int coll_agree(struct zc_zero *z, struct zcz_coll *c)
{
    if (c->agreed)
        return 0;
    if (!z->colls.words_buf)
        return words_begin(z, c);
    return z->colls.words.done ? words_compare(z, c) : 0;
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

    while (!zb_list_empty(&z->colls.queued)) {
        struct zcz_coll *c = zb_container_of(z->colls.queued.next, struct zcz_coll, node);

        rc = coll_agree(z, c);
        if (rc < 0)
            return rc;
        if (!c->agreed || !c->armed)
            break;
        zb_list_remove(&c->node);
        rc = coll_start(z, c);
        if (rc < 0)
            return rc;
    }
    zb_list_each(pos, &z->colls.started)
    {
        struct zcz_coll *c = zb_container_of(pos, struct zcz_coll, node);

        rc = coll_test(z, c);
        if (rc < 0)
            return rc;
        if (c->done) {
            zb_list_remove(&c->node);
            zcz_moved(z);
        }
    }
    return 0;
}

/* Tests once what is in progress in host memory. 1: it has ended; 0: not yet; or the failure that
 * ranks make different calls. */
static int other_look(struct zc_zero *z)
{
    int ended = 1;

    zb_list_each(pos, &z->colls.started)
    {
        struct zcz_coll *c = zb_container_of(pos, struct zcz_coll, node);

        if (c->dev)
            continue;
        if (c->comm->ops->test(c->comm, c->op, &c->done) < 0) {
            z->comm_broken = true;
            return zcz_calls_refused(z, c->comm);
        }
        if (c->done)
            zb_list_remove(&c->node);
        else
            ended = 0;
    }
    if (z->colls.words_buf && z->colls.words.done)
        return words_compare(z, zb_container_of(z->colls.queued.next, struct zcz_coll, node));
    return ended;
}

int zcz_coll_other(struct zc_zero *z)
{
    uint64_t until = zb_now_ns() + ZCZ_REASON_MS * UINT64_C(1000000);
    int rc = 0;

    while (rc == 0 && !z->comm_broken && (rc = other_look(z)) == 0 && zb_now_ns() < until)
        (void)usleep(ZCZ_LOOK_US);
    return rc < 0 ? rc : 0;
}

void zcz_coll_describe(const struct zc_zero *z, char *text, size_t bytes)
{
    const struct zb_list *started = &z->colls.started, *queued = &z->colls.queued;
    const struct zcz_coll *c = NULL;
    const char *where = "";
    char what[COLL_TEXT];

    if (!zb_list_empty(started)) {
        c = zb_container_of(started->next, struct zcz_coll, node);
        where = ", which waits for another rank";
    } else if (!zb_list_empty(queued)) {
        c = zb_container_of(queued->next, struct zcz_coll, node);
        where = ", which waits for this rank's store";
    }
    if (!c) {
        (void)snprintf(text, bytes, "the store has not answered");
        return;
    }
    coll_text(z, c, what);
    (void)snprintf(text, bytes, "it is at %s%s", what, where);
}
