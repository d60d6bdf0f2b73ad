/*
 * pageplan.c - plans a page operation: which planes it reads, changes and writes, and where their
 * bytes are meanwhile.
 *
 * MODEL. The plan is made once, before the operation begins. It depends on the kind of operation
 * and on where the page is. pageop.c executes it. For each plane (struct zsd_page_io):
 *
 *     read     it is streamed, and this kind needs it
 *     changed  its bytes differ afterwards
 *     written  to a new extent: streamed planes that change; planes to save whose bytes are not on
 *              the data file; state that moves to the data file
 *     taken    EARLY has already written the new extent
 *     leaves,  this STEP moves the state to the data file; or from there, into memory or to the
 *     comes    GPU (plan/replan.c, plan/gpu_plan.c)
 *     passes   its bytes are in the page buffer during the operation, because it has no host memory
 *              of its own
 *     copied   parameters in memory that a rank may write to (job->writable): written from a copy
 *
 * Planes on the GPU are copied down if they are read or written, and copied up if they have
 * changed, unless the page is stepped there.
 */
#include "daemon/page/pageop_priv.h"
#include "daemon/plan/gpu_params.h"

/* ---- deciding */

bool zsd_page_wants(const struct zsd_pageop *op, enum zb_plane plane)
{
    enum zb_dtype dtype = op->spec.shard->unit->layout.dtype;

    switch (op->spec.kind) {
    case ZSD_PAGE_STEP:
    case ZSD_PAGE_EARLY:
        if (plane == ZB_GRAD && op->spec.ingest)
            return false;                                  /* it comes from staging */
        return plane != ZB_GRAD || op->spec.nsegments > 0; /* else it may have no gradient */
    case ZSD_PAGE_PUBLISH:
        return false;
    case ZSD_PAGE_PUSH:
        return plane == ZB_GRAD && op->spec.ingest->add;
    case ZSD_PAGE_INIT:
        return (op->spec.what != ZK_MASTER || op->spec.keep) && plane == ZB_STATE;
    case ZSD_PAGE_SAVE:
    case ZSD_PAGE_WEIGHT: /* no operation has this kind */
        return false;
    case ZSD_PAGE_FILL:
        return plane == ZB_PARAM;
    case ZSD_PAGE_READ:
        switch (op->spec.what) {
        case ZK_PARAM:
            return plane == ZB_PARAM;
        case ZK_MASTER:
            return plane == (dtype == ZB_F16 ? ZB_STATE : ZB_PARAM) ||
                   (dtype == ZB_BF16 && plane == ZB_STATE);
        case ZK_EXP_AVG:
        case ZK_EXP_AVG_SQ:
            return plane == ZB_STATE;
        case ZK_GRAD:
            return plane == ZB_GRAD;
        }
    }
    return false;
}

/* Which planes this kind changes. */
static bool page_changes(const struct zsd_pageop *op, enum zb_plane plane)
{
    if (plane == ZB_GRAD)
        return op->spec.kind == ZSD_PAGE_PUSH;
    return op->spec.kind == ZSD_PAGE_STEP || op->spec.kind == ZSD_PAGE_PUBLISH ||
           (op->spec.kind == ZSD_PAGE_EARLY &&
            zsd_page_streamed(op->spec.shard, plane, op->spec.page)) ||
           (op->spec.kind == ZSD_PAGE_INIT && (op->spec.what == ZK_MASTER || plane == ZB_STATE));
}

/* Which planes go to fresh extents. */
static bool page_writes(const struct zsd_pageop *op, const struct zsd_page_io *io)
{
    const struct zsd_plane *p = zsd_page_plane(op, io->plane);

    if (io->leaves)
        return true;
    if (io->streamed && !io->comes)
        return io->changed && !io->taken;
    if (!op->spec.save_err || p->block_bytes == 0 || io->plane == ZB_GRAD)
        return false;
    return io->changed || p->extents[op->spec.page].at == ZB_NO_PLACE;
}

/* Decides where the page's state is, and where this operation moves it. */
static void page_place_state(struct zsd_pageop *op, struct zsd_page_io *io)
{
    const struct zsd_shard *s = op->spec.shard;
    uint32_t page = op->spec.page;

    if (zsd_page_plane(op, ZB_STATE)->block_bytes == 0)
        return;
    op->on_gpu = op->to_gpu = zsd_page_on_gpu(s, page);
    if (op->spec.kind != ZSD_PAGE_STEP)
        return;
    op->to_gpu = zsd_page_to_gpu(s, page);
    op->there = op->on_gpu || op->to_gpu;
    io->leaves = zsd_page_leaves(s, page);
    io->comes = io->streamed && (op->to_gpu || zsd_page_comes(s, page));
}

/* Whether the plane passes through the page buffer: state without host memory of its own; and
 * parameters on the GPU, unless they are stepped there and not saved. */
static bool page_passes(const struct zsd_pageop *op, const struct zsd_page_io *io)
{
    if (io->plane == ZB_PARAM)
        return op->param_there && op->spec.kind != ZSD_PAGE_PUBLISH && (!op->there || io->written);
    if (io->plane != ZB_STATE)
        return false;
    if (op->there && op->on_gpu == op->to_gpu)
        return io->written; /* the state stays on the GPU, and a copy is saved */
    if (op->there)
        return op->on_gpu ? io->leaves : io->streamed;
    return op->on_gpu || (io->streamed && !io->comes);
}

/* Whether parameters are saved from the arena, where a rank may write to them at any time. */
static bool page_copied(const struct zsd_pageop *op, const struct zsd_page_io *io)
{
    return op->spec.shard->job->writable && io->written && !io->streamed && !op->param_there;
}

bool zsd_pageplan(struct zsd_pageop *op)
{
    const struct zsd_page_spec *spec = &op->spec;
    bool changed = false;

    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        struct zsd_page_io *io = &op->io[i];

        io->plane = zsd_page_planes[i];
        io->streamed = zsd_page_streamed(spec->shard, io->plane, spec->page) &&
                       !(io->plane == ZB_GRAD && spec->grad);
        if (io->plane == ZB_STATE)
            page_place_state(op, io);
        else if (io->plane == ZB_PARAM && zsd_params_there(spec->shard->job))
            op->param_there = zsd_params_at(spec->shard, spec->page);
        io->read = io->streamed && zsd_page_wants(op, io->plane);
        if (io->read && io->plane == ZB_GRAD && spec->kind == ZSD_PAGE_READ &&
            zsd_page_plane(op, ZB_GRAD)->extents[spec->page].at == ZB_NO_PLACE) {
            io->read = false; /* nobody has pushed yet */
            io->absent = true;
        }
        io->changed = zsd_page_plane(op, io->plane)->block_bytes > 0 && page_changes(op, io->plane);
        io->taken = spec->kind == ZSD_PAGE_PUBLISH && io->streamed && io->plane != ZB_GRAD;
        io->written = page_writes(op, io);
        io->fresh.at = ZB_NO_PLACE;
        if (io->taken)
            io->fresh = spec->held->fresh[i];
        changed = changed || (io->changed && spec->kind != ZSD_PAGE_EARLY && io->plane != ZB_GRAD);
    }
    for (int i = 0; i < ZSD_WORK_PLANES; i++)
        op->io[i].passes = page_passes(op, &op->io[i]); /* needs op->there */
    op->io[ZSD_WORK_PARAM].copied = page_copied(op, &op->io[ZSD_WORK_PARAM]);
    return changed;
}

/* ---- what follows from the plan */

bool zsd_page_any(const struct zsd_pageop *op, bool written)
{
    bool any = false;

    for (int i = 0; i < ZSD_WORK_PLANES; i++)
        any = any || (written ? op->io[i].written : op->io[i].read);
    return any;
}

/* Whether the plane is on the GPU now. */
static bool page_lives_there(const struct zsd_pageop *op, enum zb_plane plane)
{
    return plane == ZB_STATE ? op->on_gpu : plane == ZB_PARAM && op->param_there;
}

bool zsd_plane_comes_down(const struct zsd_pageop *op, const struct zsd_page_io *io)
{
    return page_lives_there(op, io->plane) && !op->there &&
           (zsd_page_wants(op, io->plane) || (io->written && !io->changed));
}

bool zsd_plane_goes_up(const struct zsd_pageop *op, const struct zsd_page_io *io)
{
    return page_lives_there(op, io->plane) && !op->there && io->changed;
}

bool zsd_page_comes_down(const struct zsd_pageop *op)
{
    return zsd_plane_comes_down(op, &op->io[ZSD_WORK_PARAM]) ||
           zsd_plane_comes_down(op, &op->io[ZSD_WORK_STATE]);
}

bool zsd_page_goes_up(const struct zsd_pageop *op)
{
    return zsd_plane_goes_up(op, &op->io[ZSD_WORK_PARAM]) ||
           zsd_plane_goes_up(op, &op->io[ZSD_WORK_STATE]);
}

bool zsd_page_needs_buffer(const struct zsd_pageop *op)
{
    if (op->io[ZSD_WORK_PARAM].copied)
        return true;
    return op->spec.kind != ZSD_PAGE_FILL && op->spec.kind != ZSD_PAGE_PUBLISH &&
           (op->io[ZSD_WORK_PARAM].streamed || op->io[ZSD_WORK_PARAM].passes ||
            op->io[ZSD_WORK_GRAD].streamed || op->io[ZSD_WORK_STATE].passes);
}

bool zsd_page_publishes_nothing(const struct zsd_pageop *op)
{
    return op->spec.kind == ZSD_PAGE_PUBLISH && !op->param && !zsd_page_any(op, true);
}

void zsd_page_locate(struct zsd_pageop *op)
{
    const struct zsd_shard *s = op->spec.shard;
    uint8_t *at = (uint8_t *)op->buffer; /* FILL has no buffer; PUBLISH only for a copy */

    op->page.first = zsd_page_first(s, op->spec.page);
    op->page.count = zsd_page_elems(s, op->spec.page);
    if (op->spec.grad)
        op->page.grad = op->spec.grad;
    else if (!op->io[ZSD_WORK_GRAD].streamed && s->planes[ZB_GRAD].mem)
        op->page.grad = zsd_page_at(s, ZB_GRAD, op->spec.page);
    if (op->spec.kind == ZSD_PAGE_FILL) {
        op->page.param = op->spec.fill;
        return;
    }
    op->page.param = op->buffer;
    if (!op->io[0].streamed &&
        (op->spec.kind == ZSD_PAGE_EARLY || op->spec.kind == ZSD_PAGE_PUBLISH))
        op->aside = zsd_page_rings(s, op->spec.page) ? zsd_page_aside(s, op->spec.page)
                                                     : op->page.grad;
    if (!op->io[0].streamed && !op->param_there)
        op->param = zsd_page_at(s, ZB_PARAM, op->spec.page);
    if (op->param && op->spec.kind != ZSD_PAGE_EARLY)
        op->page.param = op->param;
    else if (op->param_there && !op->io[0].passes)
        op->page.param = op->aside; /* PUBLISH copies from there to the GPU; NULL for a step */
    else if (at)
        at += zsd_page_bytes(s, ZB_PARAM, op->spec.page);
    if (op->io[ZSD_WORK_PARAM].copied) {
        op->io[ZSD_WORK_PARAM].copy = at;
        at += zsd_page_bytes(s, ZB_PARAM, op->spec.page);
    }
    if (op->io[1].passes)
        op->page.state = at;
    else if (s->planes[ZB_STATE].mem)
        op->page.state = zsd_page_at(s, ZB_STATE, op->spec.page);
    if (op->io[1].passes && at)
        at += zsd_page_bytes(s, ZB_STATE, op->spec.page);
    if (op->io[ZSD_WORK_GRAD].streamed)
        op->page.grad = at;
}
