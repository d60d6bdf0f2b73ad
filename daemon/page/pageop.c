/*
 * pageop.c - runs page operations (pageop.h). pageplan.c decides what an operation does with each
 * plane, and where the bytes are; held.c has the results of early steps.
 *
 * MODEL. One struct zsd_pageop for each page in progress. Loop thread, except page_run_task(),
 * which runs pagework.c on a compute thread and touches only the page's own bytes, its checksums
 * and the operation.
 *
 *     BUFFER ---> READ ---> COMPUTE ---> WRITE ---> SETTLE    a failure skips to SETTLE, err set
 *
 * If the page's state is on the GPU or moves there (plan/gpu_plan.c), or its parameters are there
 * (plan/gpu_params.c):
 *
 *     ... READ ---> [CHECK] ---> DEVICE ---> [COMPUTE] ---> [STORE] ---> WRITE ...
 *
 * A step of state on the GPU runs in DEVICE; CHECK has verified what was read, and COMPUTE seals
 * what will be written. In any other operation, DEVICE copies the planes that it needs from the GPU
 * to the host, and STORE copies the changed ones back.
 *
 *     BUFFER   waits for a page buffer, if it needs one          resumed by page_on_work()
 *     READ     waits for the reads of the streamed planes        resumed by page_on_io()
 *     CHECK    waits for the compute thread                      resumed by page_on_task()
 *     DEVICE   waits for the GPU                                 resumed by page_on_device()
 *     COMPUTE  waits for the compute thread                      resumed by page_on_task()
 *     STORE    waits for the GPU                                 resumed by page_on_device()
 *     WRITE    waits for the writes to fresh extents             resumed by page_on_io()
 *
 * A page of matrices that Muon steps (spec.hold) computes twice. In between it waits for the
 * matrices, in HOLD, and keeps its buffer:
 *
 *     ... READ ---> COMPUTE ---> HOLD ---> COMPUTE ---> WRITE ...       resumed by zsd_pageop_resume()
 *
 * EARLY does the same: its new parameters are in the page buffer until the second pass.
 *
 * A page buffer has room for all planes of a page. Planes that are streamed, or pass through on
 * their way to or from the GPU, are in it one after the other: param, state, grad.
 *
 * INVARIANTS
 *     P1  A page buffer is held exactly from the end of BUFFER until SETTLE. The job's promise
 *         (plan/needs.h) has a spare place for each plane of each buffer, and a second place for
 *         each resident page that is saved. So a fresh extent is always found.
 *     P2  Bytes from the data file are not used before their checksums matched. A STEP verifies
 *         and steps piece by piece: if a piece is corrupt, those before it may have changed
 *         resident planes. op/step.c then ends the job, so that this mix is not read.
 *     P3  An extent that the shard points to is never written: a page goes to a fresh one, and the
 *         shard points there only after the write is complete. A failure leaves the old page whole.
 *         EARLY leaves the shard as it is: struct zsd_held owns its fresh extents.
 *         A write that fails is made again on another drive, if there is room. Checksums do not
 *         depend on the place.
 *     P4  done() runs exactly once.
 *     P5  A resident page has an extent only while the extent has the same bytes.
 *     P6  The bytes that are written are those that were sealed. Bytes that a client may change in
 *         between are copied first, and the copy is sealed and written.
 */
#include "daemon/page/pageop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/page/pageop_priv.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/run/gpu_tier.h"

static void page_run(struct zsd_pageop *op);

static void page_enter(struct zsd_pageop *op, enum zsd_stage stage, uint64_t now_ns)
{
    zsd_stage_move(&op->spec.shard->job->stats, op->stage, stage, now_ns);
    op->stage = stage;
}

static uint32_t *page_crcs(const struct zsd_pageop *op, enum zb_plane plane)
{
    struct zsd_plane *p = zsd_page_plane(op, plane);

    return p->crcs + (size_t)op->spec.page * p->crcs_per_page;
}

static void *page_bytes_at(const struct zsd_pageop *op, enum zb_plane plane)
{
    return plane == ZB_PARAM ? op->page.param : plane == ZB_STATE ? op->page.state : op->page.grad;
}

static struct zn_page_id page_id(const struct zsd_pageop *op, enum zb_plane plane,
                                 const struct zsd_extent *e)
{
    const struct zsd_shard *s = op->spec.shard;

    return (struct zn_page_id){ .job = e->job,
                                .shard = zsd_shard_key(s->unit->index, s->first),
                                .plane = (uint32_t)plane,
                                .index = op->spec.page,
                                .generation = e->generation };
}

/* ---- compute thread */

static void page_run_task(struct zsd_task *task)
{
    struct zsd_pageop *op = zb_container_of(task, struct zsd_pageop, task);
    uint64_t from_ns = zb_now_ns();

    op->work_rc = zsd_pagework_run(&op->pagework, &op->bad);
    op->compute_ns = zb_now_ns() - from_ns;
}

/* ---- loop thread */

static void page_on_work(struct zsd_work *work)
{
    page_run(zb_container_of(work, struct zsd_pageop, work));
}

/* Starts the work on a compute thread. If the page is stepped on the GPU, the thread only verifies
 * (in CHECK) or seals. */
static void page_compute(struct zsd_pageop *op)
{
    const struct zsd_shard *s = op->spec.shard;
    struct zsd_pagework *w = &op->pagework;
    bool check = op->state == PAGE_CHECK;
    bool first = op->spec.hold && op->state == PAGE_COMPUTE; /* of two passes */
    bool last = op->spec.hold && !first;
    bool aside = !first; /* EARLY: the gradient is needed until then */

    *w = (struct zsd_pagework){ .kind = op->there ? ZSD_PAGE_SAVE
                                        : last    ? ZSD_PAGE_WEIGHT
                                                  : op->spec.kind,
                                .what = op->spec.what,
                                .ops = s->job->core->daemon->kernels,
                                .layout = &s->unit->layout,
                                .segments = op->spec.segments,
                                .nsegments = op->spec.nsegments,
                                .by_group = op->spec.by_group,
                                .values = op->spec.values,
                                .keep = op->spec.keep,
                                .out = op->spec.out,
                                .ingest = op->spec.ingest,
                                .page = op->page,
                                .param = op->param,
                                .aside = aside ? op->aside : NULL };
    w->page.matrices = op->spec.matrices;
    w->page.nmatrices = op->spec.nmatrices;
    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        struct zsd_page_io *io = &op->io[i];
        const struct zsd_plane *p = zsd_page_plane(op, io->plane);
        struct zsd_pagework_plane *plane = &w->planes[i];

        plane->len_bytes = zsd_page_bytes(s, io->plane, op->spec.page);
        plane->crc_bytes = p->crc_bytes;
        plane->verify = io->read && (check || !op->there) && !last;
        plane->absent = io->absent;
        plane->seal = io->written && !check && !first;
        plane->copy = io->copy;
        if (plane->verify) {
            plane->was = page_id(op, io->plane, &p->extents[op->spec.page]);
            plane->crcs = page_crcs(op, io->plane);
        }
        if (plane->seal) {
            plane->becomes = page_id(op, io->plane, &io->fresh);
            plane->new_crcs = io->crcs;
        }
    }
    page_enter(op, ZSD_STAGE_COMPUTE, zb_now_ns());
    zsd_task_start(s->job->core, &op->task);
}

/* EARLY: the gradient was taken in, and its staging is no longer needed. */
static void page_taken(struct zsd_pageop *op)
{
    struct zsd_ingest *ingest = op->spec.kind == ZSD_PAGE_EARLY ? op->spec.ingest : NULL;

    if (!ingest)
        return;
    op->spec.ingest = NULL;
    ingest->done(ingest);
}

static void page_on_task(struct zsd_task *task)
{
    struct zsd_pageop *op = zb_container_of(task, struct zsd_pageop, task);
    const struct zsd_shard *s = op->spec.shard;

    if (op->work_rc < 0) {
        zsd_page_corrupt(s->job->core->daemon);
        (void)zb_fail(
            &op->err, op->work_rc,
            "job '%s' unit '%s' shard %u: page %u of its %s on NVMe is corrupt (checksum %u "
            "differs)",
            s->job->name, s->unit->name, zsd_shard_number(s), op->spec.page,
            zsd_plane_text(zsd_page_planes[op->bad.plane]), op->bad.crc);
    } else {
        page_taken(op);
    }
    page_run(op);
}

static void page_on_device(struct zsd_task *task)
{
    struct zsd_pageop *op = zb_container_of(task, struct zsd_pageop, gpu.task);
    const struct zsd_shard *s = op->spec.shard;

    if (op->gpu.rc < 0) {
        (void)zb_fail(&op->err, op->gpu.rc, "job '%s' unit '%s' shard %u: page %u on the GPU: %s",
                      s->job->name, s->unit->name, zsd_shard_number(s), op->spec.page,
                      op->gpu.err.text);
        if (op->gpu.rc == -EIO || op->gpu.rc == -EFAULT)
            zsd_gpu_fail(s->job->core, zsd_shard_gpu(s), &op->gpu.err);
    }
    page_run(op);
}

/* Starts the GPU thread's work. The stage that zctl top shows includes waiting for the GPU. */
static void page_device(struct zsd_pageop *op, enum zsd_gpu_what what)
{
    const struct zsd_shard *s = op->spec.shard;
    struct zsd_gpu_work *w = &op->gpu;

    *w = (struct zsd_gpu_work){ .task = { .done = page_on_device },
                                .what = what,
                                .layout = &s->unit->layout,
                                .page = op->page,
                                .segments = op->spec.segments,
                                .nsegments = op->spec.nsegments,
                                .by_group = op->spec.by_group,
                                .ngroups = op->spec.ngroups };
    w->there[ZB_PARAM] = op->param_there;
    if (op->on_gpu || op->to_gpu)
        w->there[ZB_STATE] = zsd_gpu_at(s, op->spec.page);
    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        const struct zsd_page_io *io = &op->io[i];

        w->bytes[io->plane] = zsd_page_bytes(s, io->plane, op->spec.page);
        w->comes[io->plane] = what == ZSD_GPU_UP && zsd_plane_goes_up(op, io);
        w->goes[io->plane] = (what == ZSD_GPU_DOWN && zsd_plane_comes_down(op, io)) ||
                             (what == ZSD_GPU_STEP && io->written && w->there[io->plane]);
    }
    if (what == ZSD_GPU_STEP) {
        w->comes[ZB_STATE] = !op->on_gpu;
        w->goes[ZB_STATE] = !op->to_gpu || op->io[ZSD_WORK_STATE].written;
    }
    page_enter(op, ZSD_STAGE_GPU, zb_now_ns());
    zsd_gpu_start(s->job->core->daemon->gpus[zsd_shard_gpu(s)], w);
}

static void page_on_read(struct zsd_pageop *op, const struct zsd_page_io *io)
{
    zsd_job_moved(op->spec.shard->job, io->pio.io.len_bytes, 0);
    void **at = io->plane == ZB_PARAM   ? &op->page.param
                : io->plane == ZB_STATE ? &op->page.state
                                        : &op->page.grad;

    *at = io->pio.io.buf; /* the engine's own memory, if it lent some (zn.h) */
}

/* Starts a write that has failed again, to a place on another drive. False: there is none. */
static bool page_elsewhere(struct zsd_pageop *op, struct zsd_page_io *io)
{
    struct zsd_core *core = op->spec.shard->job->core;
    uint64_t at;

    io->tried |= 1u << ZN_AT_PATH(io->fresh.at);
    at = zsd_extent_elsewhere(core, io->fresh.at, io->pio.io.len_bytes, io->tried);
    if (at == ZB_NO_PLACE)
        return false;
    io->fresh.at = at;
    io->pio.io.off_bytes = core->daemon->engine_base + at;
    core->daemon->stats.pages_elsewhere++;
    zsd_pio_start(core, &io->pio);
    return true;
}

static void page_on_io(struct zsd_pio *pio, int rc)
{
    struct zsd_page_io *io = zb_container_of(pio, struct zsd_page_io, pio);
    struct zsd_pageop *op = io->op;
    const struct zsd_shard *s = op->spec.shard;

    if (rc < 0 && pio->io.op == ZN_WRITE && page_elsewhere(op, io))
        return;
    io->failed = rc < 0 && (!io->streamed || (io->comes && pio->io.op == ZN_WRITE));
    if (rc < 0)
        (void)zb_fail(io->failed ? op->spec.save_err : &op->err, rc,
                      "job '%s' unit '%s' shard %u: %s page %u of its %s on NVMe: %m", s->job->name,
                      s->unit->name, zsd_shard_number(s), pio->io.op == ZN_READ ? "read" : "write",
                      op->spec.page, zsd_plane_text(io->plane));
    else if (pio->io.op == ZN_READ)
        page_on_read(op, io);
    else
        zsd_job_moved(s->job, 0, pio->io.len_bytes);
    if (--op->ios_left == 0)
        page_run(op);
}

/* Submits the transfers of one direction; false when there are none. */
static bool page_transfer(struct zsd_pageop *op, enum zn_op direction)
{
    struct zsd_core *core = op->spec.shard->job->core;
    unsigned n = 0;

    for (int i = 0; i < ZSD_WORK_PLANES; i++)
        n += direction == ZN_READ ? op->io[i].read : op->io[i].written;
    op->ios_left = n;
    if (n > 0)
        page_enter(op, direction == ZN_READ ? ZSD_STAGE_READ : ZSD_STAGE_WRITE, zb_now_ns());
    for (int i = 0; i < ZSD_WORK_PLANES && n > 0; i++) {
        struct zsd_page_io *io = &op->io[i];
        const struct zsd_plane *p = zsd_page_plane(op, io->plane);

        if (!(direction == ZN_READ ? io->read : io->written))
            continue;
        io->pio.io = (struct zn_io){
            .op = direction,
            .urgent = op->spec.kind == ZSD_PAGE_FILL, /* a fetch waits */
            /* not if the old page is still needed after the write (zn.h) */
            .lend = op->spec.kind != ZSD_PAGE_FILL && op->spec.kind != ZSD_PAGE_EARLY && !io->comes,
            .buf = io->copy ? io->copy : page_bytes_at(op, io->plane),
            .len_bytes = zsd_page_bytes(op->spec.shard, io->plane, op->spec.page),
            .off_bytes = core->daemon->engine_base +
                         (direction == ZN_READ ? p->extents[op->spec.page].at : io->fresh.at),
        };
        io->pio.payer = &op->spec.shard->job->payer;
        io->pio.done = page_on_io;
        zsd_pio_start(core, &io->pio);
    }
    return n > 0;
}

static void page_take_extents(struct zsd_pageop *op)
{
    struct zsd_job *job = op->spec.shard->job;

    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        struct zsd_page_io *io = &op->io[i];
        struct zsd_plane *p = zsd_page_plane(op, io->plane);

        if (io->changed && !io->streamed && p->extents &&
            p->extents[op->spec.page].at != ZB_NO_PLACE) { /* P5; its place may be needed, too */
            zsd_extent_unref(job->core, p->extents[op->spec.page].at,
                             zsd_page_bytes(op->spec.shard, io->plane, op->spec.page));
            p->extents[op->spec.page].at = ZB_NO_PLACE;
        }
        if (io->written)
            io->fresh = (struct zsd_extent){
                .at = zsd_extent_take(job->core,
                                      zsd_page_bytes(op->spec.shard, io->plane, op->spec.page)),
                .generation = zsd_generation_next(job->core),
                .job = job->number,
            };
    }
}

/* Points the shard to the fresh extents. After a failure they are freed, and a streamed page keeps
 * the old one (P3). */
static void page_settle_extents(struct zsd_pageop *op)
{
    struct zsd_core *core = op->spec.shard->job->core;

    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        struct zsd_page_io *io = &op->io[i];
        struct zsd_plane *p = zsd_page_plane(op, io->plane);
        uint64_t bytes = zsd_page_bytes(op->spec.shard, io->plane, op->spec.page);
        bool kept = (io->written || io->taken) && op->err.code == 0 && !io->failed;
        size_t crcs_bytes = p->crcs_per_page * sizeof(*p->crcs);
        struct zsd_extent spent = io->fresh;

        if (kept && op->spec.kind == ZSD_PAGE_EARLY) {
            op->spec.held->fresh[i] = io->fresh;
            memcpy(zsd_held_crcs(op, io), io->crcs, crcs_bytes);
            continue;
        }
        if (io->comes && op->err.code == 0 && !kept) { /* it has left the data file */
            if (spent.at != ZB_NO_PLACE)
                zsd_extent_unref(core, spent.at, bytes);
            spent = p->extents[op->spec.page];
            p->extents[op->spec.page].at = ZB_NO_PLACE;
        }
        if (kept) {
            spent = p->extents[op->spec.page];
            p->extents[op->spec.page] = io->fresh;
            memcpy(page_crcs(op, io->plane), io->taken ? zsd_held_crcs(op, io) : io->crcs,
                   crcs_bytes);
        }
        if (spent.at != ZB_NO_PLACE)
            zsd_extent_unref(core, spent.at, bytes);
    }
}

static void page_settle(struct zsd_pageop *op)
{
    struct zsd_job *job = op->spec.shard->job;
    uint64_t now_ns = zb_now_ns();

    page_enter(op, ZSD_STAGE_NONE, now_ns);
    job->stats.pages++;
    job->stats.page_ns += now_ns - op->began_ns;
    job->stats.compute_ns += op->compute_ns;
    page_settle_extents(op);
    if (op->buffer && op->buffer != op->spec.buffer)
        zsd_buffer_put(job->core, op->buffer);
    if (op->spec.kind == ZSD_PAGE_PUBLISH || op->err.code != 0) {
        free(op->spec.held);
        op->spec.held = NULL;
    }
    op->spec.done(op->spec.owner, &op->spec, op->err.code != 0 ? &op->err : NULL); /* P4 */
    free(op);
    zsd_job_unhold(job);
}

static void page_run(struct zsd_pageop *op)
{
    for (;;) {
        if (op->err.code != 0)
            op->state = PAGE_SETTLE;
        switch (op->state) {
        case PAGE_BUFFER:
            if (zsd_page_needs_buffer(op) && op->spec.buffer) {
                op->buffer = op->spec.buffer;
            } else if (zsd_page_needs_buffer(op)) {
                op->buffer = zsd_buffer_get(op->spec.shard->job->core, &op->claim);
                if (!op->buffer)
                    return; /* queued: page_on_work() resumes */
            }
            zsd_page_locate(op);
            page_take_extents(op);
            op->state = PAGE_READ;
            break;
        case PAGE_READ:
            op->state = PAGE_READ_WAIT;
            if (page_transfer(op, ZN_READ))
                return;
            break;
        case PAGE_READ_WAIT:
            op->state = PAGE_CHECK;
            if (!op->there || !zsd_page_any(op, false))
                break;
            page_compute(op);
            return;
        case PAGE_CHECK:
            op->state = PAGE_DEVICE;
            if (!op->there && !zsd_page_comes_down(op))
                break;
            page_device(op, op->there ? ZSD_GPU_STEP : ZSD_GPU_DOWN);
            return;
        case PAGE_DEVICE:
            op->state = PAGE_COMPUTE;
            if ((op->there && !zsd_page_any(op, true)) || zsd_page_publishes_nothing(op))
                break; /* nothing to seal, or to copy */
            page_compute(op);
            return;
        case PAGE_COMPUTE:
            if (op->spec.hold) {
                op->state = PAGE_HOLD;
                op->spec.hold(op->spec.owner, op, &op->spec);
                return;
            }
            __attribute__((fallthrough));
        case PAGE_HOLD:
            op->state = PAGE_STORE;
            if (!zsd_page_goes_up(op))
                break;
            page_device(op, ZSD_GPU_UP);
            return;
        case PAGE_STORE:
            op->state = PAGE_WRITE;
            if (page_transfer(op, ZN_WRITE))
                return;
            break;
        case PAGE_WRITE:
            op->state = PAGE_SETTLE;
            break;
        case PAGE_SETTLE:
            page_settle(op);
            return;
        }
    }
}

void zsd_pageop_resume(struct zsd_pageop *op, const struct zb_err *why)
{
    assert(op->state == PAGE_HOLD);
    if (why) {
        (void)zb_fail(&op->err, why->code != 0 ? why->code : -ECANCELED, "%s", why->text);
        zsd_defer(op->spec.shard->job->core, &op->work);
        return;
    }
    page_compute(op);
}

/* Sets the payer and the bytes of the operation's turns: for a page buffer, on a compute thread. */
static void page_pay(struct zsd_pageop *op)
{
    struct zsd_shard *s = op->spec.shard;
    uint64_t bytes = 0, moved = 0;

    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        const struct zsd_page_io *io = &op->io[i];
        uint64_t plane = zsd_page_bytes(s, io->plane, op->spec.page);

        moved += plane * (io->read + io->written);
        if (zsd_page_wants(op, io->plane) || io->changed || io->written)
            bytes += plane;
    }
    op->claim = (struct zsd_claim){ .payer = &s->job->payer, .bytes = moved, .work = &op->work };
    op->task.payer = &s->job->payer;
    op->task.bytes = bytes;
    op->task.urgent = op->spec.kind == ZSD_PAGE_FILL; /* a fetch waits */
}

int zsd_pageop_start(const struct zsd_page_spec *spec)
{
    struct zsd_pageop *op = calloc(1, sizeof(*op));
    bool changed;

    if (!op)
        return -ENOMEM;
    op->spec = *spec;
    if (spec->kind == ZSD_PAGE_EARLY) {
        op->spec.held = zsd_held_new(spec->shard, spec->page);
        if (!op->spec.held) {
            free(op);
            return -ENOMEM;
        }
    }
    op->work.run = page_on_work;
    op->task = (struct zsd_task){ .run = page_run_task, .done = page_on_task };
    for (int i = 0; i < ZSD_WORK_PLANES; i++)
        op->io[i].op = op;
    changed = zsd_pageplan(op);
    page_pay(op);
    if (changed && spec->shard->row) { /* the row will not match the shard afterwards */
        zsd_row_unref(spec->shard->job->core, spec->shard->row);
        spec->shard->row = NULL;
    }
    op->began_ns = zb_now_ns();
    page_enter(op, ZSD_STAGE_BUFFER, op->began_ns);
    zsd_job_hold(spec->shard->job);
    zsd_defer(spec->shard->job->core, &op->work); /* never from inside the caller */
    return 0;
}
