/*
 * reader_wait.c - reader-opens that wait for host memory which ended jobs still give back.
 *
 * A client that imports a model and exports it at once meets the memory of the import. An open that
 * lacks memory waits if any is being freed, or if a saved job without ranks can give its own
 * (op/room.c), until its deadline. Each change of the room tries it again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/op/ops.h"
#include "daemon/op/reader.h"
#include "daemon/op/reader_priv.h"
#include "daemon/op/room.h"
#include "proto/wire.h"

struct reader_wait {
    struct zsd_req *req;
    struct zsd_conn *conn;
    zsd_reader_open_fn *again;
    Zp__ReaderOpen q; /* its strings are these: */
    char job[ZP_NAME_MAX + 1], snapshot[ZP_NAME_MAX + 1];
    struct zsd_timed timed;
    struct zb_list node; /* in core->ops->reader_waits */
};

static void wait_free(struct reader_wait *w)
{
    zb_list_remove(&w->node);
    zsd_timed_disarm(&w->timed);
    free(w);
}

static void wait_expire(struct zsd_timed *timed)
{
    struct reader_wait *w = zb_container_of(timed, struct reader_wait, timed);

    zsd_refuse(w->req, -ETIMEDOUT, "a reader of job '%s' waits for host memory of other jobs",
               w->job);
    wait_free(w);
}

bool zsd_reader_wait(struct zsd_req *req, const Zp__ReaderOpen *q, uint64_t deadline_ns,
                     zsd_reader_open_fn *again)
{
    struct zsd_core *core = req->daemon->core;
    struct reader_wait *w;

    if (!zsd_core_make_room(core, NULL))
        return false;
    w = calloc(1, sizeof(*w));
    if (!w)
        return false;
    w->req = req;
    w->conn = req->conn;
    w->again = again;
    w->q = *q;
    (void)snprintf(w->job, sizeof(w->job), "%s", q->job);
    (void)snprintf(w->snapshot, sizeof(w->snapshot), "%s", q->snapshot);
    w->q.job = w->job;
    w->q.snapshot = w->snapshot;
    zb_list_push_back(&core->ops->reader_waits, &w->node);
    if (deadline_ns > 0)
        zsd_timed_arm_at(core, &w->timed, deadline_ns, wait_expire);
    else
        zsd_timed_arm(core, &w->timed, 0, wait_expire);
    return true;
}

void zsd_reader_waits_retry(struct zsd_core *core)
{
    struct zb_list now;

    zb_list_init(&now); /* some may wait again */
    zb_list_splice_front(&core->ops->reader_waits, &now);
    for (struct zb_list *node; (node = zb_list_pop_front(&now)) != NULL;) {
        struct reader_wait *w = zb_container_of(node, struct reader_wait, node);

        zsd_timed_disarm(&w->timed);
        w->again(w->req, &w->q, w->timed.deadline_ns);
        free(w);
    }
}

bool zsd_reader_parked(const struct zsd_conn *conn)
{
    zb_list_each(pos, &conn->daemon->core->ops->reader_waits)
    {
        if (zb_container_of(pos, struct reader_wait, node)->conn == conn)
            return true;
    }
    return false;
}

void zsd_reader_waits_gone(struct zsd_conn *conn)
{
    zb_list_each(pos, &conn->daemon->core->ops->reader_waits)
    {
        struct reader_wait *w = zb_container_of(pos, struct reader_wait, node);

        if (w->conn != conn)
            continue;
        zsd_refuse(w->req, -ENOTCONN, "the client has gone");
        wait_free(w);
    }
}

void zsd_reader_waits_refuse(struct zsd_core *core)
{
    while (!zb_list_empty(&core->ops->reader_waits)) {
        struct reader_wait *w =
            zb_container_of(core->ops->reader_waits.next, struct reader_wait, node);

        zsd_refuse(w->req, -ENOTCONN, "the daemon is ending");
        wait_free(w);
    }
}
