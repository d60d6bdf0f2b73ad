/*
 * op/reader_read.c - the reads of a reader: reader-read. What a reader holds, its opening and its
 * closing: op/reader.c.
 *
 * MODEL. The reads of a reader run one after the other. A read is cut into pieces at the bounds of
 * pages, and a few lanes work on the pieces in parallel:
 *
 *     BUFFER ---> PIECE ---> READ ---> COPY ---> BUFFER ...     until there are no more pieces
 *
 *     BUFFER  waits for a page buffer, in the same queue as the jobs' pages
 *     PIECE   takes the next piece, or goes idle
 *     READ    waits until the planes that it needs are read and verified (store/rowio.c)
 *     COPY    waits for a compute thread, which converts the piece into staging
 *
 * Lanes do not hold rows (zsd_row_look()): the reader may release the version meanwhile. The
 * remaining reads then end with its `why`.
 *
 * INVARIANTS (R2, R3: op/reader.c)
 *     R1  A byte gets into staging only after the checksum of its page matched.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/reader_priv.h"

struct zsd_read_op {
    struct zsd_req *req;
    uint32_t unit;
    struct zb_layout layout;
    enum zk_what what;
    uint64_t next, end; /* elements [next, end) of the unit: no lane has taken them yet */
    uint8_t *out;       /* of element `next` */
    uint32_t out_bytes; /* of an element */
    struct zb_err err;  /* the first failure */
    struct zb_list node;
};

static void lane_run(struct zsd_lane *l);
static void read_over(struct zsd_reader *r, struct zsd_read_op *read);

/* ---- lanes */

static uint32_t read_elem_bytes(const struct zsd_unit *unit, enum zk_what what)
{
    return what == ZK_PARAM ? (uint32_t)zb_dtype_bytes(unit->layout.dtype)
                            : (uint32_t)sizeof(float);
}

/* Whether the read needs this plane. */
static bool read_wants(const struct zsd_read_op *read, enum zsd_saved_plane plane)
{
    switch (read->what) {
    case ZK_PARAM:
        return plane == ZSD_SAVED_PARAM;
    case ZK_MASTER:
        return plane == (read->layout.dtype == ZB_F16 ? ZSD_SAVED_STATE : ZSD_SAVED_PARAM) ||
               read->layout.dtype == ZB_BF16;
    case ZK_EXP_AVG:
    case ZK_EXP_AVG_SQ:
        return plane == ZSD_SAVED_STATE;
    case ZK_GRAD:
        break;
    }
    return false;
}

/* Compute thread: converts elements [from, from + take) of the page into staging. */
static void copy_run(struct zsd_task *task)
{
    struct zsd_lane *l = zb_container_of(task, struct zsd_lane, task);
    const struct zsd_read_op *read = l->read;
    const struct zb_layout *layout = &read->layout;
    const struct zk_ops *ops = l->reader->core->daemon->kernels;
    float block[ZB_BLOCK_ELEMS]; /* of any dtype */

    if (read->what == ZK_PARAM && !layout->quantized) {
        memcpy(l->out, l->planes_at[ZSD_SAVED_PARAM] + l->from * read->out_bytes,
               l->take * read->out_bytes);
        return;
    }
    for (uint64_t done = 0, n; done < l->take; done += n) {
        uint64_t at = l->from + done, in_block = at % ZB_BLOCK_ELEMS, first = at - in_block;
        uint8_t *out = l->out + done * read->out_bytes;
        struct zk_page page = {
            .param = l->planes_at[ZSD_SAVED_PARAM] +
                     zb_blocks_bytes(layout->block_bytes[ZB_PARAM], first),
            .state = l->planes_at[ZSD_SAVED_STATE] +
                     zb_blocks_bytes(layout->block_bytes[ZB_STATE], first),
            .count = ZB_BLOCK_ELEMS,
        };

        n = zb_min_u64(ZB_BLOCK_ELEMS - in_block, l->take - done);
        if (n < ZB_BLOCK_ELEMS) {
            zk_page_read(ops, layout, &page, read->what, block);
            memcpy(out, (uint8_t *)block + in_block * read->out_bytes, n * read->out_bytes);
        } else {
            n = page.count = (l->take - done) / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS;
            zk_page_read(ops, layout, &page, read->what, out);
        }
    }
}

static void copy_done(struct zsd_task *task)
{
    lane_run(zb_container_of(task, struct zsd_lane, task));
}

static void lane_on_work(struct zsd_work *work)
{
    lane_run(zb_container_of(work, struct zsd_lane, work));
}

static void lane_on_read(struct zsd_row_read *rr, const struct zb_err *err)
{
    struct zsd_lane *l = zb_container_of(rr - rr->plane, struct zsd_lane, reads[0]);

    if (err)
        (void)zb_fail(&l->err, err->code, "%s", err->text);
    if (--l->reads_left == 0)
        lane_run(l);
}

/* Takes the next piece; false: there is none for this lane. */
static bool lane_piece(struct zsd_lane *l)
{
    struct zsd_reader *r = l->reader;
    struct zsd_read_op *read = l->read;
    struct zsd_row_piece piece;
    uint64_t n = 0;

    if (!r->version)
        (void)zb_fail(&read->err, r->why.code, "%s", r->why.text);
    else if (read->next < read->end &&
             zsd_version_find(r->version, read->unit, read->next) == r->version->nrows)
        (void)zb_fail(&read->err, -ENOENT, "element %llu of unit '%s' of job '%s' was in no shard",
                      (unsigned long long)read->next, r->saved->units[read->unit]->name,
                      r->saved->name);
    if (read->err.code != 0 || read->next == read->end)
        return false;
    piece = zsd_row_piece(r->version, read->unit, read->next, read->end - read->next);
    l->row = piece.row;
    l->from = piece.from;
    l->take = piece.take;
    l->out = read->out;
    read->next += l->take;
    read->out += l->take * read->out_bytes;
    zsd_row_look(l->row);
    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
        n += zsd_row_page_bytes(l->row, p, piece.page);
    l->planes_at[0] = zsd_row_room(r->core, l->buffer, n, &l->scratch);
    if (!l->planes_at[0])
        (void)zb_fail(&l->err, -ENOMEM, "a page of %u elements: %m", l->row->page_elems);
    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
        l->reads[p].page = piece.page;
    if (l->err.code == 0)
        l->planes_at[1] = l->planes_at[0] + zsd_row_page_bytes(l->row, ZSD_SAVED_PARAM, piece.page);
    return true;
}

/* Starts the reads of the planes that it needs. */
static void lane_reads(struct zsd_lane *l)
{
    const struct zsd_read_op *read = l->read;

    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
        l->reads_left += read_wants(read, p);
    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++) {
        if (!read_wants(read, p))
            continue;
        l->reads[p].row = l->row;
        l->reads[p].buf = l->planes_at[p];
        zsd_row_read_start(&l->reads[p], l->reader->saved->name);
    }
}

/* Ends a piece. If the row was released meanwhile, an error does not mean corruption: its pages may
 * have been overwritten. */
static void lane_settle(struct zsd_lane *l)
{
    struct zsd_read_op *read = l->read;

    if (l->err.code != 0 && l->row->refs == 0)
        (void)zb_fail(&read->err, l->reader->why.code, "%s", l->reader->why.text);
    else if (l->err.code != 0)
        (void)zb_fail(&read->err, l->err.code, "%s", l->err.text);
    l->err = (struct zb_err){ 0 };
    zsd_row_look_away(l->row);
    l->row = NULL;
    free(l->scratch);
    l->scratch = NULL;
}

static void lane_run(struct zsd_lane *l)
{
    struct zsd_reader *r = l->reader;

    for (;;) {
        switch (l->state) {
        case LANE_BUFFER:
            l->buffer = zsd_buffer_get(r->core, &l->claim);
            if (!l->buffer)
                return; /* queued: lane_on_work() resumes */
            l->state = LANE_PIECE;
            break;
        case LANE_PIECE:
            if (!lane_piece(l)) {
                zsd_buffer_put(r->core, l->buffer);
                l->buffer = NULL;
                l->state = LANE_IDLE;
                break;
            }
            l->state = LANE_READ;
            if (l->err.code == 0) {
                lane_reads(l);
                return;
            }
            break;
        case LANE_READ:
            l->state = LANE_COPY;
            if (l->err.code == 0) { /* R1 */
                l->task = (struct zsd_task){ .run = copy_run,
                                             .done = copy_done,
                                             .bytes = r->core->disk->buffer_bytes };
                zsd_task_start(r->core, &l->task);
                return;
            }
            break;
        case LANE_COPY:
            lane_settle(l);
            zsd_buffer_put(r->core, l->buffer);
            l->buffer = NULL;
            l->state = LANE_BUFFER;
            zsd_defer(r->core, &l->work); /* after others that wait for a buffer */
            return;
        case LANE_IDLE:
            if (--r->lanes_busy == 0)
                read_over(r, l->read);
            return;
        }
    }
}

void zsd_reader_lanes_init(struct zsd_reader *r)
{
    for (unsigned i = 0; i < ZSD_READER_LANES; i++) {
        r->lanes[i].reader = r;
        r->lanes[i].work.run = lane_on_work;
        r->lanes[i].claim =
            (struct zsd_claim){ .bytes = r->core->disk->buffer_bytes, .work = &r->lanes[i].work };
        zb_list_init(&r->lanes[i].work.node);
        for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
            r->lanes[i].reads[p] =
                (struct zsd_row_read){ .core = r->core, .plane = p, .done = lane_on_read };
    }
}

/* ---- reads */

/* Starts all lanes on the first read, if there is one. */
static void read_begin(struct zsd_reader *r)
{
    if (zb_list_empty(&r->reads))
        return;
    r->core->in_progress++;
    r->lanes_busy = ZSD_READER_LANES;
    for (unsigned i = 0; i < ZSD_READER_LANES; i++) {
        r->lanes[i].read = zb_container_of(r->reads.next, struct zsd_read_op, node);
        r->lanes[i].state = LANE_BUFFER;
        zsd_defer(r->core, &r->lanes[i].work);
    }
}

static void read_end(struct zsd_read_op *read)
{
    zb_list_remove(&read->node);
    if (read->err.code != 0)
        zsd_reply_err(read->req, &read->err);
    else
        zsd_reply(read->req, NULL, -1);
    free(read);
}

void zsd_reader_reads_end(struct zsd_reader *r, const struct zb_err *why)
{
    zb_list_each(pos, &r->reads)
    {
        struct zsd_read_op *read = zb_container_of(pos, struct zsd_read_op, node);

        (void)zb_fail(&read->err, why->code, "%s", why->text);
        if (r->lanes_busy == 0 || pos != r->reads.next)
            read_end(read);
    }
}

/* The last lane of the read is idle. */
static void read_over(struct zsd_reader *r, struct zsd_read_op *read)
{
    r->core->in_progress--;
    read_end(read);
    if (r->state == READER_CLOSING)
        r->idle(r);
    else
        read_begin(r);
}

static int read_check(const struct zsd_reader *r, const Zp__ReaderRead *q, struct zb_err *err)
{
    const struct zsd_unit *unit;
    uint64_t bytes;

    if (r->core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it begins no new reads");
    if (!r->version)
        return zb_fail(err, r->why.code, "%s", r->why.text);
    if (q->unit >= r->saved->nunits)
        return zb_fail(err, -ENOENT, "job '%s' has no unit %u", r->saved->name, q->unit);
    unit = r->saved->units[q->unit];
    if (q->what < ZK_PARAM || q->what > ZK_EXP_AVG_SQ || !zk_page_has(&unit->layout, q->what))
        return zb_fail(err, -EINVAL, "unit '%s' has nothing of kind %u to read", unit->name,
                       q->what);
    if (q->count < 1 || !zb_range_inside(q->first, q->count, unit->elems))
        return zb_fail(err, -EINVAL, "%llu elements from %llu of unit '%s', which has %llu",
                       (unsigned long long)q->count, (unsigned long long)q->first, unit->name,
                       (unsigned long long)unit->elems);
    if (q->staging % 64 != 0 || !zb_mul_fits(q->count, read_elem_bytes(unit, q->what), &bytes) ||
        !zb_range_inside(q->staging, bytes, r->staging.bytes))
        return zb_fail(err, -EINVAL,
                       "%llu elements at %llu are not inside the staging of %llu bytes, or not at "
                       "a multiple of 64",
                       (unsigned long long)q->count, (unsigned long long)q->staging,
                       (unsigned long long)r->staging.bytes);
    return 0;
}

void zsd_reader_read_start(struct zsd_reader *r, struct zsd_req *req, const Zp__ReaderRead *q)
{
    struct zb_err err = { 0 };
    struct zsd_read_op *read = NULL;

    if (read_check(r, q, &err) == 0) {
        read = calloc(1, sizeof(*read));
        if (!read)
            (void)zb_fail(&err, -ENOMEM, "%llu elements of job '%s': %m",
                          (unsigned long long)q->count, r->saved->name);
    }
    if (!read) {
        zsd_reply_err(req, &err);
        return;
    }
    read->req = req;
    read->unit = q->unit;
    read->layout = r->saved->units[q->unit]->layout;
    read->what = q->what;
    read->next = q->first;
    read->end = q->first + q->count;
    read->out = r->staging.base + q->staging;
    read->out_bytes = read_elem_bytes(r->saved->units[q->unit], q->what);
    zb_list_push_back(&r->reads, &read->node);
    if (r->lanes_busy == 0)
        read_begin(r);
}
