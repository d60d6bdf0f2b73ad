/*
 * load_page.c - loads one page: assembles it from the pages of the rows that hold its elements.
 *
 * MODEL. If a shard is cut as its row, its pages are read as they are. Other pages are assembled:
 *
 *     BUFFER ---> PIECE <---> COPY ---> UP ---> SEAL ---> WRITE ---> SETTLE
 *                                                            a failure goes to SETTLE
 *
 *     BUFFER  waits for a page buffer, if a streamed plane must be assembled, or the parameters are
 *             on the GPU
 *     PIECE   waits for one page of a row, read and verified (store/rowio.c)
 *     COPY    waits for a compute thread, which copies the piece; then the next piece
 *     UP      waits until its parameters are copied to the GPU, if they belong there
 *     SEAL    waits for a compute thread, which makes the checksums of the streamed planes
 *     WRITE   waits for the writes of these planes to new extents
 *
 * There is one struct load_page for each page in progress; op/load.c says how many. Loop thread,
 * except tasks, which touch only their page.
 *
 * INVARIANT
 *
 *     L1  No byte gets into the job before the checksum of its page matched.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/load_priv.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/run/turn.h"
#include "daemon/store/rowio.h"

#define LOAD_ALIGN 4096u

enum load_state { LOAD_BUFFER, LOAD_PIECE, LOAD_COPY, LOAD_UP, LOAD_SEAL, LOAD_WRITE, LOAD_SETTLE };

struct load_plane {
    uint8_t *to; /* where the bytes of the page go */
    bool streamed;
    struct zsd_extent fresh;
    struct zsd_pio pio;
    struct load_page *page;
};

struct load_page {
    struct zsd_load_op *op;
    struct zsd_shard *shard;
    uint32_t page;
    enum load_state state;
    struct zb_err err;
    struct zsd_claim claim;
    void *buffer;  /* a page buffer */
    void *scratch; /* for a page of a row that cannot be read into its final place */
    struct load_plane planes[ZSD_SAVED_PLANES];
    /* the piece: `take` elements of the plane, from element `at` of the page on */
    enum zsd_saved_plane plane;
    uint64_t at, take, from; /* from: its first element in the row's page */
    struct zsd_row *row;
    struct zsd_row_read read;
    struct zsd_task task;
    struct zsd_work work;
    struct zsd_gpu_work gpu;
    unsigned writes;
};

static void load_run(struct load_page *l);

static uint64_t load_elems(const struct load_page *l)
{
    return zsd_page_elems(l->shard, l->page);
}

static struct zsd_plane *load_plane(const struct load_page *l, enum zsd_saved_plane p)
{
    return &l->shard->planes[zsd_plane_of(p)];
}

static uint64_t load_bytes(const struct load_page *l)
{
    return zsd_page_bytes(l->shard, ZB_PARAM, l->page) +
           zsd_page_bytes(l->shard, ZB_STATE, l->page);
}

static void load_on_work(struct zsd_work *work)
{
    load_run(zb_container_of(work, struct load_page, work));
}

static void load_on_task(struct zsd_task *task)
{
    load_run(zb_container_of(task, struct load_page, task));
}

static void load_on_read(struct zsd_row_read *read, const struct zb_err *err)
{
    struct load_page *l = zb_container_of(read, struct load_page, read);

    if (err)
        l->err = *err;
    else
        zsd_job_moved(l->op->job, zsd_row_page_bytes(read->row, read->plane, read->page), 0);
    load_run(l);
}

static void load_on_write(struct zsd_pio *pio, int rc)
{
    struct load_page *l = zb_container_of(pio, struct load_plane, pio)->page;

    if (rc < 0)
        (void)zb_fail(&l->err, rc, "job '%s' unit '%s': write page %u on NVMe: %m",
                      l->op->job->name, l->shard->unit->name, l->page);
    else
        zsd_job_moved(l->op->job, 0, pio->io.len_bytes);
    if (--l->writes == 0)
        load_run(l);
}

static void load_copy_task(struct zsd_task *task)
{
    struct load_page *l = zb_container_of(task, struct load_page, task);
    uint32_t bytes = load_plane(l, l->plane)->block_bytes;
    uint8_t *to = l->planes[l->plane].to;
    uint64_t end = zb_blocks_bytes(bytes, l->at + l->take);

    memcpy(to + zb_blocks_bytes(bytes, l->at),
           (uint8_t *)l->scratch + zb_blocks_bytes(bytes, l->from),
           zb_blocks_bytes(bytes, l->take));
    if (l->at + l->take == load_elems(l)) /* zeros after the last block */
        memset(to + end, 0, zsd_page_bytes(l->shard, zsd_plane_of(l->plane), l->page) - end);
}

static struct zn_page_id load_id(const struct load_page *l, enum zsd_saved_plane p)
{
    const struct zsd_extent *e = &l->planes[p].fresh;

    return (struct zn_page_id){ .job = e->job,
                                .shard = zsd_shard_key(l->shard->unit->index, l->shard->first),
                                .plane = (uint32_t)zsd_plane_of(p),
                                .index = l->page,
                                .generation = e->generation };
}

static void load_seal_task(struct zsd_task *task)
{
    struct load_page *l = zb_container_of(task, struct load_page, task);

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_plane *plane = load_plane(l, p);
        struct zn_page_id id = load_id(l, p);

        if (l->planes[p].streamed)
            zn_page_seal(&id, l->planes[p].to, zsd_page_bytes(l->shard, zsd_plane_of(p), l->page),
                         plane->crc_bytes, plane->crcs + (size_t)l->page * plane->crcs_per_page);
    }
}

/* Whether the plane goes to the GPU. If so, its bytes pass through the page buffer. */
static bool load_goes_up(const struct load_page *l, enum zsd_saved_plane p)
{
    return zsd_plane_of(p) == ZB_PARAM && zsd_params_there(l->op->job);
}

static void load_on_device(struct zsd_task *task)
{
    struct load_page *l = zb_container_of(task, struct load_page, gpu.task);
    struct zsd_job *job = l->op->job;

    if (l->gpu.rc < 0) {
        (void)zb_fail(&l->err, l->gpu.rc, "job '%s' unit '%s': page %u on the GPU: %s", job->name,
                      l->shard->unit->name, l->page, l->gpu.err.text);
        if (l->gpu.rc == -EIO || l->gpu.rc == -EFAULT)
            zsd_gpu_fail(job->core, zsd_shard_gpu(l->shard), &l->gpu.err);
    }
    load_run(l);
}

static void load_up(struct load_page *l)
{
    l->gpu = (struct zsd_gpu_work){ .task = { .done = load_on_device },
                                    .what = ZSD_GPU_UP,
                                    .layout = &l->shard->unit->layout,
                                    .page = { .param = l->planes[ZSD_SAVED_PARAM].to } };
    l->gpu.there[ZB_PARAM] = zsd_params_at(l->shard, l->page);
    l->gpu.bytes[ZB_PARAM] = zsd_page_bytes(l->shard, ZB_PARAM, l->page);
    l->gpu.comes[ZB_PARAM] = true;
    zsd_gpu_start(l->op->job->core->daemon->gpus[zsd_shard_gpu(l->shard)], &l->gpu);
}

/* Sets where the bytes of each plane go. */
static void load_locate(struct load_page *l)
{
    uint8_t *at = l->buffer;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_plane *plane = load_plane(l, p);

        if (l->planes[p].streamed || load_goes_up(l, p)) {
            l->planes[p].to = at;
            at += zsd_page_bytes(l->shard, zsd_plane_of(p), l->page);
        } else if (plane->block_bytes > 0) {
            l->planes[p].to = zsd_page_at(l->shard, zsd_plane_of(p), l->page);
        }
    }
}

/* Finds the next piece that is missing. False: there is none. */
static bool load_next(struct load_page *l)
{
    struct zsd_shard *s = l->shard;
    struct zsd_row_piece piece;

    while (l->plane < ZSD_SAVED_PLANES &&
           (load_plane(l, l->plane)->block_bytes == 0 || l->at == load_elems(l) ||
            (s->row && l->planes[l->plane].streamed))) {
        l->plane++;
        l->at = 0;
    }
    if (l->plane == ZSD_SAVED_PLANES)
        return false;

    piece = zsd_row_piece(l->op->version, s->unit->index, zsd_page_first(s, l->page) + l->at,
                          load_elems(l) - l->at);
    l->row = piece.row;
    l->from = piece.from;
    l->take = piece.take;
    l->read = (struct zsd_row_read){
        .core = s->job->core,
        .payer = &l->op->job->payer,
        .row = l->row,
        .plane = l->plane,
        .page = piece.page,
        .done = load_on_read,
    };
    return true;
}

/* Reads the piece: into its final place, if it is a whole page of the row and its place is aligned;
 * else into scratch memory. The zeros at the end of the row's page are overwritten by the next
 * piece, or are the end of this page. */
static void load_read(struct load_page *l)
{
    uint64_t at = zb_blocks_bytes(load_plane(l, l->plane)->block_bytes, l->at);
    bool whole = l->from == 0 && l->take == zsd_row_page_elems(l->row, l->read.page) &&
                 at % LOAD_ALIGN == 0;

    free(l->scratch);
    l->scratch = NULL;
    if (whole) {
        l->read.buf = l->planes[l->plane].to + at;
    } else {
        l->scratch = aligned_alloc(LOAD_ALIGN, zsd_row_page_bytes(l->row, l->plane, l->read.page));
        l->read.buf = l->scratch;
    }
    if (!l->read.buf) {
        (void)zb_fail(&l->err, -ENOMEM, "loading job '%s': %m", l->op->job->name);
        zsd_defer(l->op->job->core, &l->work);
        return;
    }
    zsd_row_read_start(&l->read, l->op->job->name);
}

static void load_task(struct load_page *l, void (*run)(struct zsd_task *task))
{
    struct zsd_job *job = l->op->job;

    l->task = (struct zsd_task){
        .run = run, .done = load_on_task, .payer = &job->payer, .bytes = load_bytes(l)
    };
    zsd_task_start(job->core, &l->task);
}

static void load_fresh(struct load_page *l)
{
    struct zsd_core *core = l->op->job->core;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        if (l->planes[p].streamed)
            l->planes[p].fresh = (struct zsd_extent){
                .at = zsd_extent_take(core, zsd_page_bytes(l->shard, zsd_plane_of(p), l->page)),
                .generation = zsd_generation_next(core),
                .job = l->op->job->number,
            };
}

/* Starts the writes. False: there are none. */
static bool load_write(struct load_page *l)
{
    struct zsd_core *core = l->op->job->core;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        l->writes += l->planes[p].streamed;
    if (l->writes == 0)
        return false;
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct load_plane *plane = &l->planes[p];

        if (!plane->streamed)
            continue;
        plane->pio.io = (struct zn_io){
            .op = ZN_WRITE,
            .buf = plane->to,
            .len_bytes = zsd_page_bytes(l->shard, zsd_plane_of(p), l->page),
            .off_bytes = core->daemon->engine_base + plane->fresh.at,
        };
        plane->pio.payer = &l->op->job->payer;
        plane->pio.done = load_on_write;
        zsd_pio_start(core, &plane->pio);
    }
    return true;
}

static void load_settle(struct load_page *l)
{
    struct zsd_load_op *op = l->op;
    struct zsd_core *core = op->job->core;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct load_plane *plane = &l->planes[p];

        if (plane->fresh.at == ZB_NO_PLACE)
            continue;
        if (l->err.code == 0)
            load_plane(l, p)->extents[l->page] = plane->fresh;
        else
            zsd_extent_unref(core, plane->fresh.at,
                             zsd_page_bytes(l->shard, zsd_plane_of(p), l->page));
    }
    if (l->err.code != 0)
        (void)zb_fail(&op->err, l->err.code, "%s", l->err.text);
    if (l->buffer)
        zsd_buffer_put(core, l->buffer);
    free(l->scratch);
    free(l);
    op->inflight--;
    op->page_over(op);
}

static void load_run(struct load_page *l)
{
    for (;;) {
        if (l->err.code != 0)
            l->state = LOAD_SETTLE;
        switch (l->state) {
        case LOAD_BUFFER:
            if (zsd_params_there(l->op->job) ||
                (!l->shard->row && (l->planes[0].streamed || l->planes[1].streamed))) {
                l->buffer = zsd_buffer_get(l->op->job->core, &l->claim);
                if (!l->buffer)
                    return; /* queued: load_on_work() resumes */
            }
            load_locate(l);
            l->state = LOAD_PIECE;
            break;
        case LOAD_PIECE:
            if (l->take > 0 && l->scratch) { /* the piece is in scratch memory */
                l->state = LOAD_COPY;
                load_task(l, load_copy_task);
                return;
            }
            l->at += l->take;
            l->take = 0;
            if (load_next(l)) {
                load_read(l);
                return;
            }
            l->state = LOAD_UP;
            break;
        case LOAD_COPY:
            l->at += l->take;
            l->take = 0;
            l->state = LOAD_PIECE;
            break;
        case LOAD_UP:
            l->state = LOAD_SEAL;
            if (!zsd_params_there(l->op->job))
                break;
            load_up(l);
            return;
        case LOAD_SEAL:
            l->state = l->shard->row ? LOAD_SETTLE : LOAD_WRITE;
            if (l->shard->row)
                break;
            load_fresh(l);
            load_task(l, load_seal_task);
            return;
        case LOAD_WRITE:
            l->state = LOAD_SETTLE;
            if (load_write(l))
                return;
            break;
        case LOAD_SETTLE:
            load_settle(l);
            return;
        }
    }
}

void zsd_load_page_start(struct zsd_load_op *op, struct zsd_shard *s, uint32_t page)
{
    struct load_page *l = calloc(1, sizeof(*l));

    if (!l) {
        (void)zb_fail(&op->err, -ENOMEM, "loading job '%s': %m", op->job->name);
        return;
    }
    l->op = op;
    l->shard = s;
    l->page = page;
    l->work.run = load_on_work;
    zb_list_init(&l->work.node);
    l->claim = (struct zsd_claim){ .payer = &op->job->payer,
                                   .bytes = 2 * load_bytes(l),
                                   .work = &l->work };
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        l->planes[p].page = l;
        l->planes[p].streamed = zsd_page_streamed(s, zsd_plane_of(p), page);
        l->planes[p].fresh.at = ZB_NO_PLACE;
    }
    op->inflight++;
    zsd_defer(op->job->core, &l->work);
}
