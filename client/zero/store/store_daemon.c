/*
 * store_daemon.c - slices kept by the daemon: the store's calls are libzclient's.
 *
 * MODEL. One connection, one job, one shard for each slice that is not empty. Every call of the
 * library ends in on_op() or on_piece(), which count and keep the first sentence; what follows from
 * it, the engine decides.
 *
 * STAGING is ZB_PIECES pieces of equal length (base/model.h). A piece is the caller's from piece()
 * until write() or push() takes it, then the daemon's until it answers. A pool of fixed pieces
 * cannot fragment, and a caller that finds none waits: that is the back-pressure.
 *
 * A piece is a whole number of the daemon's pages, so every part but a shard's last is cut where
 * the daemon wants it.
 *
 * ON THE GPU. Where the daemon has the parameters on this engine's device (ZC_ZERO_GPU), their
 * memory is mapped here, read-only, from place() on: views are offsets in it. It is let go before
 * the job is closed, so that nothing is left stranded.
 *
 * DEADLINES. Requests that wait for other ranks carry the engine's timeout and are ended by the
 * daemon, which knows better than we what is missing; the others end by themselves. Should the
 * daemon itself hang, zcz_wait() gives up. Some things may rightly take longer than that: to place
 * a large job, a step of it once it has begun, a commit. As long as one of them is in progress the
 * daemon is pinged, and an answer counts as something that moved; and a fetch behind a step has all
 * the time that the step takes.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/zero/core/zero.h"
#include "client/zero/store/stores.h"

#define CONNECT_MS_MAX 5000u
#define PING_NS        UINT64_C(50000000)

struct daemon;

struct piece {
    float *data;
    bool used;
    struct zcz_op *op; /* of the write or push that has it */
};

struct daemon {
    struct zcz_store base;
    struct zc_client *c;
    int gone; /* a code: the job or the connection is over, base.err says why */
    struct zc_job job;
    struct zc_point committed; /* the answer to a commit */
    bool joined;
    struct zc_placement placement;
    struct zk_gpu_mem
        *params;      /* parameters of the daemon on our device; NULL: they are not there */
    uint64_t *shards; /* by unit; 0: none */
    uint64_t *ids;    /* of a registration in flight */
    struct piece pieces[ZB_PIECES];
    struct zcz_op op; /* of the start and the end */
    bool placing;
    struct zcz_op ping;
    uint64_t pinged_ns;
};

static struct daemon *daemon_of(struct zcz_store *s)
{
    return zb_container_of(s, struct daemon, base);
}

/* ---- how calls end */

static void op_end(struct zcz_op *op, int rc)
{
    struct daemon *d = daemon_of(op->store);

    assert(op->pending > 0);
    op->pending--;
    if (rc < 0) {
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
        op->rc = op->rc ? op->rc : rc;
    }
}

static void on_op(void *arg, int rc)
{
    op_end(arg, rc);
}

static void on_piece(void *arg, int rc)
{
    struct piece *p = arg;

    p->used = false;
    op_end(p->op, rc);
}

static void on_event(void *arg, const struct zc_event *event)
{
    struct daemon *d = arg;
    const struct zcz_store *s = &d->base;
    uint32_t rank = event->rank < s->node_world ? s->node_ranks[event->rank] : event->rank;

    if (event->job != d->job.id || d->gone)
        return;
    d->gone = event->code;
    d->base.err.code = 0; /* the reason, in place of what it made fail */
    if (event->kind == ZC_EVENT_PEER_LOST)
        d->gone = -EOWNERDEAD;
    if (event->kind == ZC_EVENT_PEER_LOST && rank != event->rank) /* the text counts on this node */
        (void)zb_fail(&d->base.err, d->gone, "rank %u is lost: %s", rank, event->text);
    else
        (void)zb_fail(&d->base.err, d->gone, "%s", event->text);
}

/* What the start of a call says: 0 and one more pending, -EAGAIN, or a refusal. */
static int op_begun(struct daemon *d, struct zcz_op *op, int rc)
{
    if (rc == 0) {
        op->store = &d->base;
        op->pending++;
        return 0;
    }
    return rc == -ENOBUFS ? -EAGAIN : zcz_refuse(d->base.z, rc, "%s", zc_error(d->c));
}

/* ... of one that is waited for; its sentence, if it fails, is the engine's last. */
static int op_wait(struct daemon *d, int rc, const char *what)
{
    struct zc_zero *z = d->base.z;

    rc = op_begun(d, &d->op, rc);
    if (rc == 0)
        rc = zcz_wait_op(z, &d->op, what);
    else if (rc == -EAGAIN)
        rc = zcz_refuse(z, -ENOBUFS, "%s", zc_error(d->c));
    if (rc < 0 && !z->failed && d->base.err.code != 0)
        rc = zcz_refuse(z, rc, "%s", d->base.err.text);
    return rc;
}

/* ---- the start */

static int daemon_open(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);
    struct zc_options options = {
        .socket = s->z->options.socket,
        .program = "zero",
        .connect_timeout_ms = (uint32_t)zb_min_u64(s->z->timeout_ms, CONNECT_MS_MAX),
    };
    int rc = zc_open(&d->c, &options);

    if (rc < 0) {
        (void)zcz_refuse(s->z, rc, "%s", d->c ? zc_error(d->c) : "no memory for a connection");
        zc_close(d->c);
        d->c = NULL;
        return rc;
    }
    zc_on_event(d->c, on_event, d);
    memcpy(s->node, zc_server(d->c)->instance, sizeof(s->node));
    s->page_elems = zc_server(d->c)->page_elems;
    return 0;
}

/* With clipping the scale of a step is not known ahead. */
static bool early_wanted(const struct zc_zero *z)
{
    return z->options.clip <= 0 && (z->options.overlap & ZC_ZERO_EARLY) != 0;
}

/* Where the ranks gather between devices, or need not gather; through host memory, parameters are
 * best there. */
static bool params_on_gpu(const struct zc_zero *z)
{
    return z->options.offload_param == ZC_ZERO_GPU && z->device.gpu &&
           (z->shards == 1 || z->device.ops);
}

static enum zc_place place_param(const struct zc_zero *z)
{
    if (params_on_gpu(z))
        return ZC_GPU;
    return z->options.offload_param == ZC_ZERO_NVME || z->options.offload_param == ZC_ZERO_GPU
               ? ZC_NVME
               : ZC_HOST;
}

/* Of a job that was kept: `epoch` 0 takes it over. */
static int start_job(struct daemon *d, uint64_t epoch)
{
    struct zc_zero *z = d->base.z;
    uint64_t slice_most = 0, piece_bytes;
    struct zc_job_options options = {
        .name = z->job,
        .rank = d->base.node_rank,
        .world = d->base.node_world,
        .keep = z->options.keep,
        .attach = z->options.resume,
        .durable = z->options.durable,
        .takeover = z->options.resume && epoch == 0,
        .epoch = epoch,
        .offload_param = place_param(z),
        .device = params_on_gpu(z) ? zk_gpu_info(z->device.gpu)->id : NULL,
        .offload_optimizer = z->options.offload_optimizer == ZC_ZERO_HOST ? ZC_HOST : ZC_NVME,
        .offload_grad = z->options.offload_grad == ZC_ZERO_HOST ? ZC_HOST : ZC_NVME,
        .groups = z->options.groups,
        .optimizer = z->options.optimizer,
        .moments = z->options.moments,
        .share = z->options.share,
        .early = early_wanted(z),
        .writable = zcz_device_pins_writable(z),
    };
    int rc;

    for (uint32_t i = 0; i < z->nunits; i++)
        slice_most = zb_max_u64(slice_most, z->units[i].slice);
    d->base.piece_elems = zb_piece_elems(slice_most, d->base.page_elems);
    piece_bytes = zb_piece_bytes(d->base.piece_elems);
    options.staging_bytes = zb_staging_bytes(d->base.piece_elems);
    rc = op_wait(d, zc_job_open(d->c, &options, &d->job, on_op, &d->op), "the job to open");
    if (rc < 0)
        return rc;
    d->joined = true;
    for (uint32_t i = 0; i < ZB_PIECES; i++)
        d->pieces[i] = (struct piece){
            .data = (float *)(void *)((char *)d->job.staging + i * piece_bytes),
        };
    return 0;
}

static int start_units(struct daemon *d)
{
    struct zc_zero *z = d->base.z;
    int rc = 0;

    for (uint32_t i = 0; i < z->nunits && rc == 0; i++)
        rc = op_wait(d, zc_unit_define(d->c, d->job.id, &z->units[i].def, on_op, &d->op),
                     "the daemon to take the units");
    return rc;
}

/* Registers the slices of units [from, ...), as many as one request may name; *ret_next is the unit
 * behind them. */
static int start_shards(struct daemon *d, uint32_t from, struct zc_range *ranges,
                        uint32_t *ret_next)
{
    struct zc_zero *z = d->base.z;
    uint32_t most = zc_server(d->c)->shards_max, n = 0, i = from;
    int rc = 0;

    for (; i < z->nunits && n < most; i++)
        if (z->units[i].count > 0)
            ranges[n++] = (struct zc_range){ i, z->units[i].first, z->units[i].count };
    if (n > 0)
        rc = op_wait(d, zc_register(d->c, d->job.id, ranges, n, d->ids, on_op, &d->op),
                     "the daemon to take the slices");
    for (uint32_t u = from, k = 0; u < i && rc == 0; u++)
        if (z->units[u].count > 0)
            d->shards[u] = d->ids[k++];
    *ret_next = i;
    return rc;
}

static int start_all_shards(struct daemon *d)
{
    struct zc_zero *z = d->base.z;
    struct zc_range *ranges = calloc(z->nunits, sizeof(*ranges));
    int rc = 0;

    d->ids = calloc(z->nunits, sizeof(*d->ids));
    d->shards = calloc(z->nunits, sizeof(*d->shards));
    if (!ranges || !d->ids || !d->shards)
        rc = zcz_refuse(z, -ENOMEM, "no memory for %u units", z->nunits);
    for (uint32_t u = 0; u < z->nunits && rc == 0;)
        rc = start_shards(d, u, ranges, &u);
    free(ranges);
    return rc;
}

static int daemon_attach(struct zcz_store *s, uint64_t epoch)
{
    struct daemon *d = daemon_of(s);
    int rc = start_job(d, epoch);

    if (rc < 0)
        return rc;
    s->epoch = d->job.epoch;
    s->npoints = (uint32_t)zb_min_u64(d->job.npoints, ZC_POINTS_MAX);
    memcpy(s->points, d->job.points, sizeof(s->points));
    return 0;
}

static int daemon_join(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);
    int rc = d->joined ? 0 : start_job(d, 0);

    if (rc == 0)
        rc = start_units(d);
    return rc == 0 ? start_all_shards(d) : rc;
}

/* Maps the daemon's parameters: read-only, where the driver can. */
static int place_import(struct daemon *d)
{
    struct zc_zero *z = d->base.z;
    struct zc_gpu_memory memory = { .mem_fd = -1, .mark_fd = -1 };
    struct zk_gpu_share share;
    struct zb_err err = { 0 };
    int rc = op_wait(d, zc_gpu_share(d->c, d->job.id, &memory, on_op, &d->op),
                     "the daemon to share its GPU memory");

    if (rc < 0)
        return rc;
    share = (struct zk_gpu_share){ memory.mem_fd, memory.mark_fd, memory.bytes };
    rc = zk_gpu_import(z->device.gpu, &share, false, &d->params, &err);
    zk_gpu_share_close(&share);
    if (rc < 0)
        return zcz_refuse(
            z, rc, "device '%s' cannot map the parameters that the daemon has on the GPU: %s",
            z->options.device, err.text);
    d->base.params_dev = zk_gpu_addr(d->params);
    return 0;
}

/* Nothing copies from them any more. */
static void params_let_go(struct daemon *d)
{
    d->base.params_dev = NULL;
    zk_gpu_free(d->params);
    d->params = NULL;
}

static int daemon_place(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);
    const uint64_t *at = s->z->options.resume ? &s->resume_at : NULL;
    int rc;

    d->placing = true;
    rc = op_wait(d, zc_ready(d->c, d->job.id, at, s->z->timeout_ms, &d->placement, on_op, &d->op),
                 "the daemon to place the job, and the other ranks to be ready");
    d->placing = false;
    s->pins_max = d->placement.ring_bytes == 0 ? UINT32_MAX : ZC_PINS_MIN;
    if (rc == 0 && d->placement.gpu_params > 0)
        rc = place_import(d);
    if (rc == 0) {
        zcz_device_pin(s->z, d->placement.arena, d->placement.arena_bytes);
        s->iterations = d->placement.iterations;
        s->applied = d->placement.applied;
        /* a kept job has what it was opened with */
        s->early = early_wanted(s->z) && d->placement.early;
    }
    return rc;
}

/* ---- pieces */

static float *daemon_piece(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);

    for (uint32_t i = 0; i < ZB_PIECES; i++)
        if (!d->pieces[i].used) {
            d->pieces[i].used = true;
            return d->pieces[i].data;
        }
    return NULL;
}

static struct piece *piece_of(struct daemon *d, const float *data)
{
    uint64_t i = (uint64_t)((const char *)data - (const char *)d->job.staging) /
                 zb_piece_bytes(d->base.piece_elems);

    assert(i < ZB_PIECES && d->pieces[i].data == data && d->pieces[i].used);
    return &d->pieces[i];
}

static void daemon_piece_put(struct zcz_store *s, float *piece)
{
    piece_of(daemon_of(s), piece)->used = false;
}

/* ---- data */

static int daemon_write(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                        uint64_t count, float *piece)
{
    struct daemon *d = daemon_of(s);
    struct piece *p = piece_of(d, piece);

    p->op = op;
    return op_begun(
        d, op,
        zc_write(d->c, d->shards[u->def.index], ZC_MASTER, first, count, piece, on_piece, p));
}

static int daemon_push(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t step,
                       uint32_t micro, uint64_t first, uint64_t count, float *piece)
{
    struct daemon *d = daemon_of(s);
    struct piece *p = piece_of(d, piece);
    struct zc_push push = { .shard = d->shards[u->def.index],
                            .step = step,
                            .micro = micro,
                            .add = micro > 0,
                            .dtype = ZC_F32,
                            .first = first,
                            .count = count,
                            .staged = piece };

    p->op = op;
    return op_begun(d, op, zc_push(d->c, &push, on_piece, p));
}

static int daemon_read(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                       enum zc_what what, uint64_t first, uint64_t count, float *piece)
{
    struct daemon *d = daemon_of(s);

    return op_begun(d, op,
                    zc_read(d->c, d->shards[u->def.index], what, first, count, piece, on_op, op));
}

static int daemon_fetch(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                        uint64_t min_version)
{
    struct daemon *d = daemon_of(s);
    uint32_t timeout_ms = s->z->stepping ? UINT32_MAX : s->z->timeout_ms;

    return op_begun(
        d, op,
        zc_fetch(d->c, &d->shards[u->def.index], 1, min_version, timeout_ms, &u->view, on_op, op));
}

static int daemon_release(struct zcz_store *s, struct zcz_unit *u)
{
    struct daemon *d = daemon_of(s);
    int rc = zc_release(d->c, &d->shards[u->def.index], 1);

    if (rc < 0)
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
    return rc;
}

static int daemon_norms(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret)
{
    struct daemon *d = daemon_of(s);

    return op_begun(d, op, zc_norms(d->c, d->job.id, step, ret, on_op, op));
}

static int daemon_step(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                       struct zc_stepped *ret)
{
    struct daemon *d = daemon_of(s);
    int rc = step->groups ? zc_step(d->c, d->job.id, step, ret, on_op, op)
                          : zc_skip(d->c, d->job.id, step->step, step->commit, step->timeout_ms,
                                    ret, on_op, op);

    return op_begun(d, op, rc);
}

static int daemon_step_begin(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                             uint32_t micros)
{
    struct daemon *d = daemon_of(s);

    return op_begun(d, op, zc_step_begin(d->c, d->job.id, step, micros, on_op, op));
}

static int daemon_commit(struct zcz_store *s, struct zcz_op *op, enum zc_commit what,
                         uint64_t iterations)
{
    struct daemon *d = daemon_of(s);

    return op_begun(
        d, op, zc_commit(d->c, d->job.id, what, iterations, UINT32_MAX, &d->committed, on_op, op));
}

static int daemon_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                           size_t bytes)
{
    struct daemon *d = daemon_of(s);

    return op_begun(d, op, zc_note_put(d->c, d->job.id, of_job, note, bytes, on_op, op));
}

static int daemon_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes)
{
    struct daemon *d = daemon_of(s);
    int rc = zc_note_get_wait(d->c, d->job.id, of_job, buf, ret_bytes);

    if (rc < 0)
        return zcz_refuse(s->z, rc, "%s", d->gone ? d->base.err.text : zc_error(d->c));
    return 0;
}

/* Why parameters are not on the GPU, where they were asked to be. */
static const char *place_why(const struct daemon *d)
{
    const struct zc_zero *z = d->base.z;

    if (z->options.offload_param != ZC_ZERO_GPU || d->placement.gpu_params > 0)
        return "";
    if (!z->device.gpu)
        return "the trainer computes on the processor";
    if (!params_on_gpu(z))
        return "the ranks gather through host memory";
    return d->placement.gpu_why[0] ? d->placement.gpu_why
                                   : "the job was in memory before, with its parameters elsewhere";
}

static int daemon_stats(struct zcz_store *s, struct zcz_store_stats *ret)
{
    struct daemon *d = daemon_of(s);
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(d->c, s->z->job, &rows, &n);

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
    ret->gpu_why = place_why(d);
    return 0;
}

/* ---- the rest */

/* Asks whether the daemon lives. Where there is no room to ask, answers are due anyway. */
static void poll_ping(struct daemon *d)
{
    uint64_t now_ns = zb_now_ns();

    if (d->ping.pending > 0 || now_ns - d->pinged_ns < PING_NS)
        return;
    d->pinged_ns = now_ns;
    if (zc_ping(d->c, on_op, &d->ping) == 0) {
        d->ping.store = &d->base;
        d->ping.pending++;
    }
}

static int daemon_poll(struct zcz_store *s, uint32_t wait_us)
{
    struct daemon *d = daemon_of(s);
    struct timespec nap = { .tv_nsec = (long)wait_us * 1000 };
    struct pollfd pfd = { .fd = -1 };
    int rc = 0;

    if (d->c) {
        pfd.fd = zc_fd(d->c);
        pfd.events = zc_events(d->c);
    }
    if (d->c && (d->placing || s->z->stepping || s->z->committing))
        poll_ping(d);
    if (wait_us > 0)
        (void)ppoll(&pfd, 1, &nap, NULL); /* woken by a signal: the caller looks again */
    if (d->c)
        rc = zc_poll(d->c, 0);
    if (d->gone)
        return d->gone;
    if (rc < 0)
        (void)zb_fail(&d->base.err, rc, "%s", zc_error(d->c));
    return rc;
}

static int daemon_leave(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);

    if (!d->joined)
        return 0;
    d->joined = false;
    params_let_go(d);
    return op_wait(d, zc_job_close(d->c, d->job.id, on_op, &d->op), "the job to close");
}

static void daemon_close(struct zcz_store *s)
{
    struct daemon *d = daemon_of(s);

    params_let_go(d);
    zc_close(d->c); /* ends what is in flight, before what it writes to goes */
    free(d->ids);
    free(d->shards);
    free(s->node_ranks);
    free(d);
}

static const struct zcz_store_ops daemon_ops = {
    .open = daemon_open,
    .attach = daemon_attach,
    .join = daemon_join,
    .place = daemon_place,
    .piece = daemon_piece,
    .piece_put = daemon_piece_put,
    .write = daemon_write,
    .push = daemon_push,
    .read = daemon_read,
    .fetch = daemon_fetch,
    .release = daemon_release,
    .norms = daemon_norms,
    .step = daemon_step,
    .step_begin = daemon_step_begin,
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
    struct daemon *d = calloc(1, sizeof(*d));

    if (!d)
        return NULL;
    d->base.ops = &daemon_ops;
    d->base.z = z;
    d->base.pins_max = 1;
    return &d->base;
}
