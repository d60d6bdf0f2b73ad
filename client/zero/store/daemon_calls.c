/*
 * daemon_calls.c - begins and ends calls to the daemon.
 *
 * Every call of libzclient ends in zcz_daemon_on_op() or zcz_daemon_on_piece(), which count it and
 * keep the first error message. The engine decides what to do.
 */
#include <assert.h>
#include <errno.h>

#include "client/zero/core/zero.h"
#include "client/zero/store/daemon_priv.h"

bool zcz_daemon_lost(struct zcz_daemon *d, int rc)
{
    if (rc != -ENOTCONN || !d->limbo || d->gone)
        return d->base.lost;
    d->base.lost = true;
    return true;
}

static void op_end(struct zcz_op *op, int rc)
{
    struct zcz_daemon *d = zcz_daemon_of(op->store);

    assert(op->pending > 0);
    op->pending--;
    if (rc < 0 && (!zcz_daemon_lost(d, rc) || op->sure)) {
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
        op->rc = op->rc ? op->rc : rc;
    }
}

void zcz_daemon_on_op(void *arg, int rc)
{
    op_end(arg, rc);
}

void zcz_daemon_on_piece(void *arg, int rc)
{
    struct zcz_piece *p = arg;

    p->used = false;
    op_end(p->op, rc);
}

void zcz_daemon_on_event(void *arg, const struct zc_event *event)
{
    struct zcz_daemon *d = arg;
    struct zcz_store *s = &d->base;
    uint32_t rank = event->rank < s->node_world ? s->node_ranks[event->rank] : event->rank;

    if (event->job != d->job.id || d->gone || d->base.lost)
        return;
    if (event->kind == ZC_EVENT_RESTART) {
        d->base.restarts = d->returns;
        return;
    }
    if (zcz_daemon_lost(d, event->code)) /* it ends in good order, without having waited */
        return;
    d->gone = event->code;
    d->base.err.code = 0; /* the reason replaces failures that it caused */
    if (event->kind == ZC_EVENT_PEER_LOST)
        d->gone = -EOWNERDEAD;
    if (event->kind == ZC_EVENT_PEER_LOST && rank != event->rank) /* text: the rank in the node */
        (void)zb_fail(&d->base.err, d->gone, "rank %u is lost: %s", rank, event->text);
    else
        (void)zb_fail(&d->base.err, d->gone, "%s", event->text);
}

static int op_begun(struct zcz_daemon *d, struct zcz_op *op, int rc)
{
    if (rc == 0) {
        op->store = &d->base;
        op->pending++;
        return 0;
    }
    return rc == -ENOBUFS ? -EAGAIN : zcz_refuse(d->base.z, rc, "%s", zc_error(d->c));
}

int zcz_daemon_begun(struct zcz_daemon *d, struct zcz_op *op, int rc)
{
    return rc < 0 && zcz_daemon_lost(d, rc) ? 0 : op_begun(d, op, rc);
}

int zcz_daemon_begun_sure(struct zcz_daemon *d, struct zcz_op *op, int rc)
{
    (void)zcz_daemon_lost(d, rc);
    op->sure = op->sure || rc == 0;
    return op_begun(d, op, rc);
}

int zcz_daemon_wait(struct zcz_daemon *d, int rc, const char *what)
{
    struct zc_zero *z = d->base.z;

    rc = zcz_daemon_begun(d, &d->op, rc);
    if (rc == 0)
        rc = zcz_wait_op(z, &d->op, what);
    else if (rc == -EAGAIN)
        rc = zcz_refuse(z, -ENOBUFS, "%s", zc_error(d->c));
    if (rc < 0 && !z->failed && d->base.err.code != 0)
        rc = zcz_refuse(z, rc, "%s", d->base.err.text);
    return rc;
}
