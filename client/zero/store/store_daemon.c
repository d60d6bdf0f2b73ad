/*
 * store_daemon.c - slices in the daemon: the store's calls are those of libzclient.
 *
 * MODEL. One connection, one job, one shard for each slice that is not empty. daemon_calls.c begins
 * and ends calls, and daemon_start.c has the start; this file has the requests after it.
 *
 * STAGING is ZB_PIECES pieces of equal length (base/model.h). A piece is the caller's from piece()
 * until write() or push() takes it, then the daemon's until it answers. A pool of fixed pieces
 * cannot fragment. A caller that gets none waits: this is the back-pressure.
 *
 * A piece is a whole number of the daemon's pages, so every part except a shard's last is cut at
 * the daemon's page boundaries.
 *
 * DEADLINES. Requests that wait for other ranks carry the engine's timeout. The daemon ends them,
 * because it knows best what is missing. Other requests end by themselves. If the daemon hangs,
 * zcz_wait() gives up. Some requests may take longer than the timeout: placing a large job, a step
 * that has begun, a commit. While one of these is in progress, the daemon is pinged, and an answer
 * counts as progress. A fetch during a step has no timeout of its own.
 *
 * LOST. With reconnect_ms, the death of the daemon of a durable job is not final (store.h). Requests
 * in flight end as if they had succeeded, unless their result is needed; new ones begin nothing. A
 * restart in good order is final for no job with reconnect_ms: all ranks leave before it.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/zero/core/zero.h"
#include "client/zero/store/daemon_priv.h"
#include "client/zero/store/limbo.h"
#include "client/zero/store/stores.h"

#define PING_NS UINT64_C(50000000)

/* ---- pieces */

static float *daemon_piece(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    for (uint32_t i = 0; i < ZB_PIECES; i++)
        if (!d->pieces[i].used || s->lost) { /* lost: nobody reads them */
            d->pieces[i].used = true;
            return d->pieces[i].data;
        }
    return NULL;
}

static struct zcz_piece *piece_of(struct zcz_daemon *d, const float *data)
{
    uint64_t i = (uint64_t)((const char *)data - (const char *)d->job.staging) /
                 zb_piece_bytes(d->base.piece_elems);

    assert(i < ZB_PIECES && d->pieces[i].data == data && d->pieces[i].used);
    return &d->pieces[i];
}

static void daemon_piece_put(struct zcz_store *s, float *piece)
{
    piece_of(zcz_daemon_of(s), piece)->used = false;
}

/* ---- data */

static int daemon_write(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                        uint64_t count, float *piece)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct zcz_piece *p = piece_of(d, piece);

    p->op = op;
    return zcz_daemon_begun(d, op,
                            zc_write(d->c, d->shards[u->def.index], ZC_MASTER, first, count, piece,
                                     zcz_daemon_on_piece, p));
}

static int daemon_push(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t step,
                       uint32_t micro, uint64_t first, uint64_t count, float *piece)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct zcz_piece *p = piece_of(d, piece);
    struct zc_push push = { .shard = d->shards[u->def.index],
                            .step = step,
                            .micro = micro,
                            .add = micro > 0,
                            .dtype = ZC_F32,
                            .first = first,
                            .count = count,
                            .staged = piece };

    p->op = op;
    return zcz_daemon_begun(d, op, zc_push(d->c, &push, zcz_daemon_on_piece, p));
}

static int daemon_read(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                       enum zc_what what, uint64_t first, uint64_t count, float *piece)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun_sure(
        d, op,
        zc_read(d->c, d->shards[u->def.index], what, first, count, piece, zcz_daemon_on_op, op));
}

static int daemon_read_named(struct zcz_store *s, struct zcz_op *op, uint64_t name,
                             enum zc_what what, uint64_t first, uint64_t count, float *piece)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun_sure(
        d, op, zc_read(d->c, name, what, first, count, piece, zcz_daemon_on_op, op));
}

static int daemon_set(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                      uint64_t first, uint64_t count, float *piece)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct zcz_piece *p = piece_of(d, piece);

    p->op = op;
    return zcz_daemon_begun_sure(
        d, op,
        zc_write(d->c, d->shards[u->def.index], what, first, count, piece, zcz_daemon_on_piece, p));
}

static int daemon_sync(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    int rc = zcz_daemon_wait(d, zc_ping(d->c, zcz_daemon_on_op, &d->op), "the daemon");

    return rc == 0 && s->lost ? zcz_refuse(s->z, -ENOTCONN, "the daemon is gone") : rc;
}

static int daemon_fetch(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                        uint64_t min_version)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    uint32_t timeout_ms = s->z->stepping ? UINT32_MAX : s->z->timeout_ms;

    u->view = (struct zc_view){ .data = d->limbo }; /* until the answer comes */
    return zcz_daemon_begun(d, op,
                            zc_fetch(d->c, &d->shards[u->def.index], 1, min_version, timeout_ms,
                                     &u->view, zcz_daemon_on_op, op));
}

static int daemon_release(struct zcz_store *s, struct zcz_unit *u)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = zc_release(d->c, &d->shards[u->def.index], 1);

    if (rc < 0 && zcz_daemon_lost(d, rc))
        return 0;
    if (rc < 0)
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
    return rc;
}

static const uint64_t *daemon_names(struct zcz_store *s)
{
    return zcz_daemon_of(s)->shards;
}

static int daemon_fetch_named(struct zcz_store *s, struct zcz_op *op, const uint64_t *names,
                              uint32_t n, uint64_t min_version, struct zc_view *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    uint32_t timeout_ms = s->z->stepping ? UINT32_MAX : s->z->timeout_ms;

    for (uint32_t i = 0; i < n; i++)
        ret[i] = (struct zc_view){ .data = d->limbo };
    return zcz_daemon_begun(
        d, op, zc_fetch(d->c, names, n, min_version, timeout_ms, ret, zcz_daemon_on_op, op));
}

static int daemon_release_named(struct zcz_store *s, const uint64_t *names, uint32_t n)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = zc_release(d->c, names, n);

    if (rc < 0 && zcz_daemon_lost(d, rc))
        return 0;
    if (rc < 0)
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
    return rc;
}

static int daemon_norms(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    *ret = (struct zc_norm){ 0 };
    return zcz_daemon_begun(d, op, zc_norms(d->c, d->job.id, step, ret, zcz_daemon_on_op, op));
}

static int daemon_tensor_sums(struct zcz_store *s, struct zcz_op *op, uint64_t step,
                              uint32_t ntensors, unsigned char *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(
        d, op, zc_tensor_norms(d->c, d->job.id, step, ntensors, ret, zcz_daemon_on_op, op));
}

static int daemon_unit_sums(struct zcz_store *s, struct zcz_op *op, uint64_t step, uint32_t first,
                            uint32_t ntensors, unsigned char *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(
        d, op, zc_unit_norms(d->c, d->job.id, step, first, ntensors, ret, zcz_daemon_on_op, op));
}

static int daemon_unit_sums_put(struct zcz_store *s, struct zcz_op *op, uint64_t step,
                                uint32_t unit, const unsigned char *sums, uint32_t ntensors)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(
        d, op, zc_unit_sums(d->c, d->job.id, step, unit, sums, ntensors, zcz_daemon_on_op, op));
}

static int daemon_about(struct zcz_store *s, struct zcz_op *op, const struct zc_job_about *about)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(d, op, zc_job_about(d->c, d->job.id, about, zcz_daemon_on_op, op));
}

static int daemon_tensors(struct zcz_store *s, struct zcz_op *op, uint64_t step, bool limits,
                          const double *values, uint32_t ntensors)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(
        d, op,
        zc_step_tensors(d->c, d->job.id, step, limits, values, ntensors, zcz_daemon_on_op, op));
}

static int daemon_classes(struct zcz_store *s, struct zcz_op *op, uint64_t step,
                          const struct zc_classes *classes)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(d, op,
                            zc_step_classes(d->c, d->job.id, step, classes, zcz_daemon_on_op, op));
}

static int daemon_step(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                       const struct zc_classes *classes, struct zc_stepped *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    bool skip = !step->groups && !classes;
    int rc = !skip ? zc_step(d->c, d->job.id, step, ret, zcz_daemon_on_op, op)
                   : zc_skip(d->c, d->job.id, step->step, step->commit, step->timeout_ms, ret,
                             zcz_daemon_on_op, op);

    return zcz_daemon_begun(d, op, rc);
}

static int daemon_step_begin(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                             uint32_t micros)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(d, op,
                            zc_step_begin(d->c, d->job.id, step, micros, zcz_daemon_on_op, op));
}

static int daemon_optimizer(struct zcz_store *s, struct zcz_op *op, enum zc_optimizer kind,
                            enum zc_moments moments)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun_sure(
        d, op, zc_job_optimizer(d->c, d->job.id, kind, moments, zcz_daemon_on_op, op));
}

static int daemon_abandon(struct zcz_store *s, struct zcz_op *op, uint64_t step)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(d, op, zc_abandon(d->c, d->job.id, step, zcz_daemon_on_op, op));
}

static int daemon_commit(struct zcz_store *s, struct zcz_op *op, enum zc_commit what,
                         uint64_t iterations)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = zc_commit(d->c, d->job.id, what, iterations, UINT32_MAX, &d->committed,
                       zcz_daemon_on_op, op);

    if (what == ZC_COMMIT_PREPARED || what == ZC_COMMIT_DROP)
        return zcz_daemon_begun(d, op, rc);
    return zcz_daemon_begun_sure(d, op, rc);
}

static int daemon_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                           size_t bytes)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    return zcz_daemon_begun(
        d, op, zc_note_put(d->c, d->job.id, of_job, note, bytes, zcz_daemon_on_op, op));
}

static int daemon_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = zc_note_get_wait(d->c, d->job.id, of_job, buf, ret_bytes);

    if (rc < 0)
        return zcz_refuse(s->z, rc, "%s", d->gone ? d->base.err.text : zc_error(d->c));
    return 0;
}

static int daemon_stats(struct zcz_store *s, struct zcz_store_stats *ret)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = s->lost ? -ENOTCONN : zc_jobs_wait(d->c, s->z->job, &rows, &n);

    if (rc < 0 && zcz_daemon_lost(d, rc)) { /* what it had moved before */
        *ret = d->stats;
        return 0;
    }
    if (rc < 0)
        return zcz_refuse(s->z, rc, "%s", d->gone ? d->base.err.text : zc_error(d->c));
    for (size_t i = 0; i < n; i++)
        if (rows[i].id == d->job.id)
            *ret = (struct zcz_store_stats){
                .nvme_read_bytes = rows[i].nvme_read_bytes,
                .nvme_written_bytes = rows[i].nvme_written_bytes,
                .host_bytes = rows[i].host_bytes,
                .nvme_bytes = rows[i].nvme_bytes,
                .gpu_bytes = rows[i].gpu_bytes,
                .grads_nvme_bytes = rows[i].grads_nvme_bytes,
            };
    zc_rows_free(rows);
    ret->gpu_params_bytes = d->placement.gpu_params;
    ret->gpu_why = zcz_daemon_why(d);
    d->stats = *ret;
    return 0;
}

/* ---- the rest */

/* Asks whether the daemon is alive. If there is no room for the request, other answers are due
 * anyway. */
static void poll_ping(struct zcz_daemon *d)
{
    uint64_t now_ns = zb_now_ns();

    if (d->ping.pending > 0 || now_ns - d->pinged_ns < PING_NS)
        return;
    d->pinged_ns = now_ns;
    if (zc_ping(d->c, zcz_daemon_on_op, &d->ping) == 0) {
        d->ping.store = &d->base;
        d->ping.pending++;
    }
}

static int daemon_poll(struct zcz_store *s, uint32_t wait_us)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct timespec nap = { .tv_nsec = (long)wait_us * 1000 };
    struct pollfd pfd = { .fd = -1 };
    int rc = 0;

    if (d->c) {
        pfd.fd = zc_fd(d->c);
        pfd.events = zc_events(d->c);
    }
    if (d->c && (d->placing || s->z->stepping || s->z->committing))
        poll_ping(d);
    if (s->lost)
        pfd.fd = -1; /* a socket that has ended would never let it sleep */
    if (wait_us > 0)
        (void)ppoll(&pfd, 1, &nap, NULL); /* if a signal ends it early, the caller checks again */
    if (d->c && !s->lost)
        rc = zc_poll(d->c, 0);
    if (d->gone)
        return d->gone;
    if (rc < 0 && zcz_daemon_lost(d, rc))
        return 1; /* calls have ended */
    if (rc < 0)
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
    return rc;
}

static int daemon_leave(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    if (!d->joined)
        return 0;
    d->joined = false;
    zcz_daemon_let_go(d);
    return zcz_daemon_wait(d, zc_job_close(d->c, d->job.id, zcz_daemon_on_op, &d->op),
                           "the job to close");
}

static void daemon_close(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);

    zcz_daemon_let_go(d);
    zc_close(d->c); /* ends calls in flight, before the memory that they write to is freed */
    zcz_limbo_unmap(d->limbo, d->limbo_bytes);
    free(d->ids);
    free(d->shards);
    free(s->node_ranks);
    free(d);
}

static const struct zcz_store_ops daemon_ops = {
    .open = zcz_daemon_open,
    .attach = zcz_daemon_attach,
    .join = zcz_daemon_join,
    .place = zcz_daemon_place,
    .piece = daemon_piece,
    .piece_put = daemon_piece_put,
    .write = daemon_write,
    .push = daemon_push,
    .read = daemon_read,
    .read_named = daemon_read_named,
    .set = daemon_set,
    .sync = daemon_sync,
    .fetch = daemon_fetch,
    .release = daemon_release,
    .names = daemon_names,
    .fetch_named = daemon_fetch_named,
    .release_named = daemon_release_named,
    .norms = daemon_norms,
    .classes = daemon_classes,
    .tensor_sums = daemon_tensor_sums,
    .about = daemon_about,
    .unit_sums = daemon_unit_sums,
    .unit_sums_put = daemon_unit_sums_put,
    .tensors = daemon_tensors,
    .step = daemon_step,
    .step_begin = daemon_step_begin,
    .optimizer = daemon_optimizer,
    .abandon = daemon_abandon,
    .commit = daemon_commit,
    .note_put = daemon_note_put,
    .note_get = daemon_note_get,
    .stats = daemon_stats,
    .poll = daemon_poll,
    .leave = daemon_leave,
    .close = daemon_close,
};

struct zcz_store *zcz_store_daemon(struct zc_zero *z)
{
    struct zcz_daemon *d = calloc(1, sizeof(*d));

    if (!d)
        return NULL;
    d->base.ops = &daemon_ops;
    d->base.z = z;
    d->base.pins_max = 1;
    return &d->base;
}
