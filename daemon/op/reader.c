/*
 * op/reader.c - reading what is saved, by a client that is no rank of it: reader-open, -unit,
 * -read, -close.
 *
 * MODEL. A struct zsd_reader belongs to a connection, holds one version, and has staging of its
 * own, made and ended on a compute thread.
 *
 *     OPENING ---> OPEN ---> CLOSING     by reader-close, the end of the connection, the daemon's
 *
 * Its reads run one after the other. One read is cut at the bounds of pages; a few lanes work on
 * the pieces side by side:
 *
 *     BUFFER ---> PIECE ---> READ ---> COPY ---> BUFFER ...     until there are no more pieces
 *
 *     BUFFER  waits for a page buffer, in line with the jobs' pages
 *     PIECE   takes the next piece, or goes idle
 *     READ    waits for the planes that are wanted, read and verified (store/rowio.c)
 *     COPY    waits for the compute thread, which converts the piece into staging
 *
 * WHAT A READER HOLDS. While the saved job holds the version too, its places are promised. When
 * nobody but readers does (zsd_readers_orphaned), each is promised room for it if there is any;
 * else it lets go, so that the job finds its own: the reads that are left are answered -ESTALE.
 * Lanes only look at rows.
 *
 * INVARIANTS
 *     R1  A byte gets into staging only after the checksum of its page matched.
 *     R2  version->readers is the number of readers that hold it.
 *     R3  A reader is freed when no lane and no task of it runs; its saved job is held until then.
 */
#include "daemon/op/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/ops.h"
#include "daemon/op/requests.h"
#include "daemon/plan/replan.h"
#include "daemon/store/rowio.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define READERS_MAX  64u
#define LANES        4u   /* pieces of one read in progress */
#define TENSORS_PART 200u /* of one reply: below 64 KiB with the longest names and shapes */

enum reader_state { READER_OPENING, READER_OPEN, READER_CLOSING };
enum lane_state { LANE_IDLE, LANE_BUFFER, LANE_PIECE, LANE_READ, LANE_COPY };

struct lane {
    struct zsd_reader *reader;
    struct read *read;     /* that it works for; set by read_begin() */
    enum lane_state state; /* written by lane_run() and read_begin() only */
    struct zb_err err;
    struct zsd_work work;
    struct zsd_task task;
    struct zsd_claim claim; /* to the buffer: the house's */
    void *buffer;           /* a page buffer */
    void *scratch;          /* for a page that was cut larger than ours are */
    uint8_t *planes_at[ZSD_SAVED_PLANES];
    struct zsd_row *row; /* looked at, while there is a piece */
    uint64_t from, take; /* elements of its page */
    uint8_t *out;
    struct zsd_row_read reads[ZSD_SAVED_PLANES];
    unsigned reads_left;
};

struct read {
    struct zsd_req *req;
    uint32_t unit;
    struct zb_layout layout;
    enum zk_what what;
    uint64_t next, end; /* elements of the unit that no lane has taken yet */
    uint8_t *out;       /* of element `next` */
    uint32_t out_bytes; /* of an element */
    struct zb_err err;  /* the first failure */
    struct zb_list node;
};

struct zsd_reader {
    struct zsd_core *core;
    struct zsd_conn *conn; /* NULL: it is gone, or has closed */
    enum reader_state state;
    uint64_t id;
    struct zsd_saved *saved;     /* held */
    struct zsd_version *version; /* NULL: let go of, `why` */
    struct zb_err why;
    bool covered; /* promise is set */
    struct zb_needs promise;
    struct zsd_account nvme_held;
    struct zsd_arena staging;
    uint64_t booked; /* bytes of it in the host account */
    struct zsd_req *open_req;
    struct zb_err open_err;
    struct zsd_task task;
    struct zb_list reads; /* struct read: the first runs, while lanes_busy > 0 */
    struct lane lanes[LANES];
    unsigned lanes_busy;
    struct zb_list node; /* in core->ops->readers */
};

static void lane_run(struct lane *l);
static void read_over(struct zsd_reader *r, struct read *read);
static void read_end(struct read *read);

/* ---- what it holds */

/* Lets go of the version. */
static void reader_drop(struct zsd_reader *r)
{
    struct zsd_version *v = r->version;

    if (!v)
        return;
    r->version = NULL;
    v->readers--;
    zsd_version_unref(v);
    if (r->covered)
        zsd_nvme_unpromise(r->core, &r->nvme_held, &r->promise);
    r->covered = false;
}

/* Room for the version beyond what its job is promised: 0, -ENOSPC, -ENOMEM. */
static int reader_cover(struct zsd_reader *r, struct zb_err *err)
{
    const uint64_t planes[ZB_PLANES] = { 0 };
    struct zb_needs want = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < r->version->nrows && rc == 0; i++)
        rc = zsd_row_needs(&want, r->version->rows[i], 1);
    rc = rc < 0 ? zb_fail(err, rc, "%m")
                : zsd_nvme_promise(r->core, &r->nvme_held, &r->promise, &want, planes, err);
    zb_needs_done(&want);
    if (rc < 0)
        zb_needs_done(&r->promise);
    r->covered = rc == 0;
    return rc;
}

static void reader_orphaned(struct zsd_reader *r)
{
    struct zb_err err = { 0 };

    /* a job that was destroyed keeps its promise until we let go of the struct */
    if (r->saved->gone) {
        r->covered = true;
        return;
    }
    if (reader_cover(r, &err) == 0)
        return;
    (void)zb_fail(&r->why, -ESTALE,
                  "iteration %llu of job '%s' was replaced by a newer one, and there is no room to "
                  "keep it for its reader (%s): read a snapshot",
                  (unsigned long long)r->version->iterations, r->saved->name, err.text);
    zb_log(ZB_LOG_WARN, "reader-lost", "job=\"%s\" why=\"%s\"", r->saved->name, r->why.text);
    reader_drop(r);
}

void zsd_readers_orphaned(struct zsd_version *v)
{
    struct zsd_core *core = v->core;

    /* the last one that lets go ends v: from here on only its address is compared */
    zb_list_each(pos, &core->ops->readers)
    {
        struct zsd_reader *r = zb_container_of(pos, struct zsd_reader, node);

        if (r->version == v && !r->covered)
            reader_orphaned(r);
    }
}

/* ---- opening and closing */

static void reader_free(struct zsd_reader *r)
{
    reader_drop(r);
    zsd_unbook(&r->core->tiers.host, NULL, ZSD_USE_STAGING, r->booked);
    zsd_host_settle(r->core);
    zsd_room_changed(r->core);
    zsd_saved_unhold(r->saved);
    zb_list_remove(&r->node);
    free(r);
}

static void close_run(struct zsd_task *task)
{
    zsd_arena_close(&zb_container_of(task, struct zsd_reader, task)->staging);
}

static void close_done(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);

    r->core->in_progress--;
    reader_free(r);
}

/* Goes when nothing of it runs any more (R3). */
static void reader_free_if_over(struct zsd_reader *r)
{
    if (r->state != READER_CLOSING || r->lanes_busy > 0)
        return;
    r->task = (struct zsd_task){ .run = close_run, .done = close_done, .slow = true };
    r->core->in_progress++;
    zsd_task_start(r->core, &r->task);
}

/* The connection, or the daemon, lets go of it. The read that runs ends by itself. */
static void reader_end(struct zsd_reader *r, const struct zb_err *why)
{
    bool opening = r->state == READER_OPENING;

    if (r->state == READER_CLOSING)
        return;
    r->conn->reader = NULL;
    r->conn = NULL;
    r->state = READER_CLOSING;
    r->why = *why;
    reader_drop(r);
    if (r->open_req)
        zsd_reply_err(r->open_req, why);
    r->open_req = NULL;
    zb_list_each(pos, &r->reads)
    {
        struct read *read = zb_container_of(pos, struct read, node);

        (void)zb_fail(&read->err, why->code, "%s", why->text);
        if (r->lanes_busy == 0 || pos != r->reads.next)
            read_end(read);
    }
    if (!opening) /* else open_done() */
        reader_free_if_over(r);
}

void zsd_reader_gone(struct zsd_conn *conn)
{
    struct zb_err why = { 0 };

    if (!conn->reader)
        return;
    (void)zb_fail(&why, -ECANCELED, "the reader of job '%s' hung up", conn->reader->saved->name);
    reader_end(conn->reader, &why);
}

int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held)
{
    int rc = 0;

    zb_list_each(pos, &core->ops->readers)
    {
        const struct zsd_reader *r = zb_container_of(pos, struct zsd_reader, node);

        for (uint32_t i = 0; i < r->promise.n && rc == 0; i++)
            rc = zb_needs_add(promise, r->promise.needs[i].bytes, r->promise.needs[i].count);
        for (int use = 0; use < ZSD_USES; use++)
            held->used[use] += r->nvme_held.used[use];
    }
    return rc;
}

void zsd_readers_end(struct zsd_core *core)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zb_list_each(pos, &core->ops->readers)
    {
        reader_end(zb_container_of(pos, struct zsd_reader, node), &why);
    }
}

static void open_run(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);

    (void)zsd_arena_open(&r->staging, "zshard-reader", r->booked, false, &r->open_err);
}

static void open_done(struct zsd_task *task)
{
    struct zsd_reader *r = zb_container_of(task, struct zsd_reader, task);
    Zp__ReaderOpenReply reply = ZP__READER_OPEN_REPLY__INIT;
    struct zsd_req *req = r->open_req;

    r->core->in_progress--;
    if (r->state == READER_OPENING && r->open_err.code != 0)
        reader_end(r, &r->open_err);
    if (r->state == READER_OPENING && !r->version) /* lost meanwhile */
        reader_end(r, &r->why);
    if (r->state == READER_CLOSING) {
        reader_free_if_over(r);
        return;
    }
    r->state = READER_OPEN;
    r->open_req = NULL;
    reply.reader = r->id;
    reply.optimizer = r->saved->optimizer;
    reply.moments = r->saved->moments;
    reply.iterations = r->version->iterations;
    reply.applied = r->version->applied;
    reply.units = r->saved->nunits;
    reply.groups = r->saved->groups;
    reply.world = r->version->world;
    reply.staging_bytes = r->staging.bytes;
    zsd_reply(req, &reply.base, r->staging.fd);
}

/* The version that is asked for, or NULL. */
static struct zsd_version *open_find(struct zsd_req *req, const Zp__ReaderOpen *q,
                                     struct zb_err *err)
{
    struct zsd_saved *saved = zsd_saved_by_name(req->daemon->core, q->job);
    struct zsd_snap *snap;

    if (!saved) {
        (void)zb_fail(err, -ENOENT, "there is no saved job '%s'", q->job);
        return NULL;
    }
    if (!zsd_may(req->conn, saved->uid)) {
        (void)zb_fail(err, -EPERM, "job '%s' belongs to user %u", q->job, (unsigned)saved->uid);
        return NULL;
    }
    if (q->snapshot[0] == '\0') {
        if (!saved->committed)
            (void)zb_fail(err, -ENOENT, "job '%s' has no commit yet", q->job);
        return saved->committed;
    }
    snap = zsd_snap_by_name(saved, q->snapshot);
    if (!snap)
        (void)zb_fail(err, -ENOENT, "job '%s' has no snapshot '%s'", q->job, q->snapshot);
    return snap ? snap->version : NULL;
}

/* What a reader may take of the host tier: nothing that somebody waits for. It may have what is kept
 * for ranks that have left a job; who comes back waits until the reader has closed (op/open.c). */
static uint64_t open_host_free(const struct zsd_core *core)
{
    uint64_t free_bytes = zsd_account_free(&core->tiers.host);

    return free_bytes - zb_min_u64(free_bytes, zsd_wanted(core, NULL));
}

static int open_check(const struct zsd_core *core, const struct zsd_conn *conn,
                      const Zp__ReaderOpen *q, struct zb_err *err)
{
    uint32_t n = 0;

    zb_list_each(pos, &core->ops->readers) n++;
    if (core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new readers");
    if (conn->reader)
        return zb_fail(err, -EBUSY, "this connection reads job '%s' already",
                       conn->reader->saved->name);
    if (n >= READERS_MAX)
        return zb_fail(err, -EBUSY, "there are %u readers already, which is the limit", n);
    if (q->staging_bytes < 1 || q->staging_bytes > INT64_MAX - ZB_PAGE_ALIGN)
        return zb_fail(err, -EINVAL, "staging of %llu bytes", (unsigned long long)q->staging_bytes);
    if (zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN) > open_host_free(core))
        return zb_fail(err, -ENOSPC,
                       "staging of %s for a reader does not fit: %s of host memory are free",
                       zb_size_text(q->staging_bytes).s, zb_size_text(open_host_free(core)).s);
    return 0;
}

static void lane_on_work(struct zsd_work *work)
{
    lane_run(zb_container_of(work, struct lane, work));
}

static void lane_on_read(struct zsd_row_read *read, const struct zb_err *err);

ZSD_REQUEST(zsd_reader_open, ReaderOpen)
{
    struct zsd_core *core = req->daemon->core;
    struct zb_err err = { 0 };
    struct zsd_version *v = NULL;
    struct zsd_reader *r = NULL;

    if (open_check(core, req->conn, q, &err) == 0)
        v = open_find(req, q, &err);
    if (v) {
        r = calloc(1, sizeof(*r));
        if (!r)
            (void)zb_fail(&err, -ENOMEM, "a reader of job '%s': %m", q->job);
    }
    if (!r) {
        zsd_reply_err(req, &err);
        return;
    }
    r->core = core;
    r->conn = req->conn;
    r->conn->reader = r;
    r->id = ++core->ops->next_reader;
    r->saved = v->saved;
    zsd_saved_hold(r->saved);
    r->version = zsd_version_ref(v);
    v->readers++;
    v->orphaned = zsd_readers_orphaned;
    r->staging = ZSD_ARENA_NONE;
    r->booked = zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN);
    zsd_book(&core->tiers.host, NULL, ZSD_USE_STAGING, r->booked);
    r->open_req = req;
    zb_list_init(&r->reads);
    for (unsigned i = 0; i < LANES; i++) {
        r->lanes[i].reader = r;
        r->lanes[i].work.run = lane_on_work;
        r->lanes[i].claim =
            (struct zsd_claim){ .bytes = core->disk->buffer_bytes, .work = &r->lanes[i].work };
        zb_list_init(&r->lanes[i].work.node);
        for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
            r->lanes[i].reads[p] =
                (struct zsd_row_read){ .core = core, .plane = p, .done = lane_on_read };
    }
    zb_list_push_back(&core->ops->readers, &r->node);
    r->task = (struct zsd_task){ .run = open_run, .done = open_done, .slow = true };
    core->in_progress++;
    zsd_task_start(core, &r->task);
}

/* The reader of this connection, open, by its id: else req is answered. */
static struct zsd_reader *reader_of(struct zsd_req *req, uint64_t id)
{
    struct zsd_reader *r = req->conn->reader;

    if (!r || r->id != id || r->state != READER_OPEN) {
        zsd_refuse(req, -ENOENT, "this connection has no open reader %llu", (unsigned long long)id);
        return NULL;
    }
    return r;
}

ZSD_REQUEST(zsd_reader_close, ReaderRef)
{
    struct zsd_reader *r = reader_of(req, q->reader);
    struct zb_err why = { 0 };

    if (!r)
        return;
    (void)zb_fail(&why, -ECANCELED, "the reader of job '%s' was closed", r->saved->name);
    reader_end(r, &why);
    zsd_reply(req, NULL, -1);
}

/* ---- the manifest */

ZSD_REQUEST(zsd_reader_unit, ReaderUnit)
{
    struct zsd_reader *r = reader_of(req, q->reader);
    Zp__ReaderUnitReply reply = ZP__READER_UNIT_REPLY__INIT;
    Zp__Tensor rows[TENSORS_PART], *list[TENSORS_PART];
    const struct zsd_unit *unit;

    if (!r)
        return;
    if (q->unit >= r->saved->nunits) {
        zsd_refuse(req, -ENOENT, "job '%s' has no unit %u", r->saved->name, q->unit);
        return;
    }
    unit = r->saved->units[q->unit];
    if (q->cursor > unit->ntensors) {
        zsd_refuse(req, -EINVAL, "unit '%s' has %u tensors, and none from %u on", unit->name,
                   unit->ntensors, q->cursor);
        return;
    }
    reply.name = zp_str(unit->name);
    reply.elems = unit->elems;
    reply.dtype = unit->layout.dtype;
    reply.grad_dtype = unit->layout.grad_dtype;
    reply.frozen = unit->layout.frozen;
    reply.quantized = unit->layout.quantized;
    for (uint32_t i = q->cursor; i < unit->ntensors && reply.n_tensors < TENSORS_PART; i++) {
        const struct zsd_tensor *t = &unit->tensors[i];
        Zp__Tensor *row = &rows[reply.n_tensors];

        zp__tensor__init(row);
        row->name = zp_str(t->name);
        row->first = t->first;
        row->n_dims = t->ndims;
        row->dims = (uint64_t *)(uintptr_t)t->dims;
        row->group = t->group;
        list[reply.n_tensors++] = row;
    }
    reply.tensors = list;
    if (q->cursor + reply.n_tensors < unit->ntensors)
        reply.cursor = q->cursor + (uint32_t)reply.n_tensors;
    zsd_reply(req, &reply.base, -1);
}

/* ---- lanes */

static uint32_t read_elem_bytes(const struct zsd_unit *unit, enum zk_what what)
{
    return what == ZK_PARAM ? (uint32_t)zb_dtype_bytes(unit->layout.dtype)
                            : (uint32_t)sizeof(float);
}

/* Which planes of the layout hold it. */
static bool read_wants(const struct read *read, enum zsd_saved_plane plane)
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

/* Compute thread: elements [from, from + take) of the page, as they are wanted. */
static void copy_run(struct zsd_task *task)
{
    struct lane *l = zb_container_of(task, struct lane, task);
    const struct read *read = l->read;
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
    lane_run(zb_container_of(task, struct lane, task));
}

static void lane_on_read(struct zsd_row_read *rr, const struct zb_err *err)
{
    struct lane *l = zb_container_of(rr - rr->plane, struct lane, reads[0]);

    if (err)
        (void)zb_fail(&l->err, err->code, "%s", err->text);
    if (--l->reads_left == 0)
        lane_run(l);
}

/* Takes the next piece; false: there is none for this lane. */
static bool lane_piece(struct lane *l)
{
    struct zsd_reader *r = l->reader;
    struct read *read = l->read;
    struct zsd_row_piece piece;
    uint64_t n = 0;

    if (!r->version)
        (void)zb_fail(&read->err, r->why.code, "%s", r->why.text);
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

/* Starts the reads of the planes that are wanted. */
static void lane_reads(struct lane *l)
{
    const struct read *read = l->read;

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

/* What is left of a piece. A row that died under the read is no damage: the reader lost it. */
static void lane_settle(struct lane *l)
{
    struct read *read = l->read;

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

static void lane_run(struct lane *l)
{
    struct zsd_reader *r = l->reader;

    for (;;) {
        switch (l->state) {
        case LANE_BUFFER:
            l->buffer = zsd_buffer_get(r->core, &l->claim);
            if (!l->buffer)
                return; /* in line: lane_on_work() resumes */
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
            zsd_defer(r->core, &l->work); /* behind whoever waits for the buffer */
            return;
        case LANE_IDLE:
            if (--r->lanes_busy == 0)
                read_over(r, l->read);
            return;
        }
    }
}

/* ---- reads */

/* The lanes go to work for the first read, if there is one. */
static void read_begin(struct zsd_reader *r)
{
    if (zb_list_empty(&r->reads))
        return;
    r->core->in_progress++;
    r->lanes_busy = LANES;
    for (unsigned i = 0; i < LANES; i++) {
        r->lanes[i].read = zb_container_of(r->reads.next, struct read, node);
        r->lanes[i].state = LANE_BUFFER;
        zsd_defer(r->core, &r->lanes[i].work);
    }
}

static void read_end(struct read *read)
{
    zb_list_remove(&read->node);
    if (read->err.code != 0)
        zsd_reply_err(read->req, &read->err);
    else
        zsd_reply(read->req, NULL, -1);
    free(read);
}

/* Its last lane is idle. */
static void read_over(struct zsd_reader *r, struct read *read)
{
    r->core->in_progress--;
    read_end(read);
    if (r->state == READER_CLOSING)
        reader_free_if_over(r);
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
    for (uint64_t at = q->first; at < q->first + q->count;) {
        uint32_t i = zsd_version_find(r->version, q->unit, at);

        if (i == r->version->nrows)
            return zb_fail(err, -ENOENT, "element %llu of unit '%s' of job '%s' was in no shard",
                           (unsigned long long)at, unit->name, r->saved->name);
        at = r->version->rows[i]->first + r->version->rows[i]->count;
    }
    return 0;
}

ZSD_REQUEST(zsd_reader_read, ReaderRead)
{
    struct zsd_reader *r = reader_of(req, q->reader);
    struct zb_err err = { 0 };
    struct read *read = NULL;

    if (!r)
        return;
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
