/*
 * drain.c - moves saved pages off drained drives: see drain.h.
 *
 *     FIND ---> BUFFER ---> READ ---> WRITE ---> FIND ...     until there are DRAIN_MOVES, or no more
 *       ^                                          |
 *       +--------------- COMMIT <------------------+
 *
 * A row is not held meanwhile, only looked at (version.h): if its job drops it, its places are freed
 * as promised. So the change checks each row again when it begins. It writes copies of the rows with
 * the new places to the catalog, and then changes the rows themselves. The page keeps its identity
 * and its generation, so its checksums stay right.
 *
 * PROMISE. A page that moves has two places until its change is durable. The second one is promised
 * to the pass. If somebody holds the old place when the change is durable (a job that has been loaded
 * meanwhile), the job has one more place than it was promised; then the pass keeps its promise.
 */
#include "daemon/store/drain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/slots.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/store/change.h"
#include "daemon/store/record.h"
#include "daemon/store/rowio.h"
#include "daemon/store/store.h"

#define DRAIN_MOVES    64u /* pages of a change */
#define DRAIN_RESTARTS 64u /* of the walk in a pass, because the row that it was at has gone */
#define DRAIN_REST_NS  UINT64_C(5000000000)

struct move {
    struct zsd_row *row; /* looked at */
    enum zsd_saved_plane plane;
    uint32_t page;
    uint64_t from, to;
    bool valid;
};

struct zsd_drainer {
    struct zsd_core *core;
    enum { DRAIN_IDLE, DRAIN_FIND, DRAIN_BUFFER, DRAIN_BUSY } state;
    bool stop, full; /* the pass ends: on request; there is no room, or a change has failed */
    uint64_t rests_until_ns;
    struct zsd_work work;
    struct zsd_row *row; /* the walk; looked at, or NULL before the first one */
    enum zsd_saved_plane plane;
    uint32_t page;
    unsigned restarts;
    void *buffer, *scratch, *bytes;
    struct zsd_claim claim;
    struct zsd_row_read read;
    struct zsd_pio write;
    struct move moves[DRAIN_MOVES];
    unsigned nmoves;
    struct zsd_row *shadows[DRAIN_MOVES]; /* copies of rows, with new places */
    unsigned nshadows;
    struct zb_needs promise, stuck; /* stuck: kept after the pass */
    struct zsd_account held;
    struct zsd_change change;
    uint64_t pages, moved_bytes, failed; /* of this pass */
};

static void drain_run(struct zsd_drainer *d);

/* ---- promises */

/* Promises a second place for each page that moves, and for one more of so many bytes; 0: no more. */
static int drain_promise(struct zsd_drainer *d, uint32_t more_bytes, struct zb_err *err)
{
    const uint64_t planes[ZB_PLANES] = { 0 };
    struct zb_needs want = { 0 };
    int rc = zb_needs_sum(&want, &d->stuck, 1);

    for (unsigned i = 0; i < d->nmoves && rc == 0; i++) {
        const struct move *m = &d->moves[i];

        rc = zb_needs_add(&want, zsd_row_page_bytes(m->row, m->plane, m->page), 1);
    }
    if (rc == 0 && more_bytes > 0)
        rc = zb_needs_add(&want, more_bytes, 1);
    if (rc == 0)
        rc = zsd_nvme_promise(d->core, &d->held, &d->promise, &want, planes, err);
    zb_needs_done(&want);
    return rc;
}

int zsd_drain_promised(const struct zsd_core *core, struct zb_needs *promise,
                       struct zsd_account *held)
{
    const struct zsd_drainer *d = core->store->drain;

    for (int use = 0; d && use < ZSD_USES; use++)
        held->used[use] += d->held.used[use];
    return d ? zb_needs_sum(promise, &d->promise, 1) : 0;
}

/* ---- the change */

static uint64_t move_at(const struct move *m)
{
    return m->row->planes[m->plane].extents[m->page].at;
}

/* The copy of a row that will be written, made if there is none; NULL: no memory. */
static struct zsd_row *shadow_of(struct zsd_drainer *d, const struct zsd_row *row)
{
    struct zsd_row *s;
    bool whole = true;

    for (unsigned i = 0; i < d->nshadows; i++)
        if (d->shadows[i]->id == row->id)
            return d->shadows[i];
    s = malloc(sizeof(*s));
    if (!s)
        return NULL;
    *s = *row; /* the checksums are shared: they do not change */
    d->shadows[d->nshadows++] = s;
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        size_t bytes = row->npages * sizeof(struct zsd_extent);

        s->planes[p].extents = row->planes[p].extents ? malloc(bytes) : NULL;
        if (s->planes[p].extents)
            memcpy(s->planes[p].extents, row->planes[p].extents, bytes);
        whole = whole && (s->planes[p].extents || !row->planes[p].extents);
    }
    return whole ? s : NULL;
}

static int change_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);
    bool any = false;

    for (unsigned i = 0; i < d->nmoves; i++) {
        struct move *m = &d->moves[i];
        struct zsd_row *s;

        m->valid = m->row->kept > 0 && m->row->refs > 0 && move_at(m) == m->from &&
                   zsd_extent_refs(d->core, m->from) == 1;
        if (!m->valid)
            continue;
        s = shadow_of(d, m->row);
        if (!s)
            return zb_fail(err, -ENOMEM, "rows with their new places: %m");
        m->valid = s->planes[m->plane].extents[m->page].at == m->from; /* else it moves already */
        if (m->valid)
            s->planes[m->plane].extents[m->page].at = m->to;
        any = any || m->valid;
    }
    return any ? 0 : zb_fail(err, -EAGAIN, "nothing is left to move");
}

static int change_fill(struct zsd_change *c, struct zb_err *err)
{
    const struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);
    int rc = 0;

    for (unsigned i = 0; i < d->nshadows && rc == 0; i++)
        rc = zsd_record_put_row(c->txn, d->shadows[i]);
    return rc < 0 ? zb_fail(err, rc, "rows with their new places: %m") : 0;
}

/* Points a row to its new place, or gives that back. If the catalog may have it, it stays taken. */
static void move_settle(struct zsd_drainer *d, struct move *m, bool failed, bool doubt)
{
    uint32_t bytes = zsd_row_page_bytes(m->row, m->plane, m->page);

    if (m->valid && !failed) {
        if (zsd_extent_refs(d->core, m->from) > 1 && zb_needs_add(&d->stuck, bytes, 1) < 0)
            d->stop = true; /* then the promise is kept whole: see change_settle() */
        m->row->planes[m->plane].extents[m->page].at = m->to;
        zsd_extent_unref(d->core, m->from, bytes);
        d->pages++;
        d->moved_bytes += bytes;
    } else if (!m->valid || !doubt) {
        zsd_extent_unref(d->core, m->to, bytes);
    }
    zsd_row_look_away(m->row);
}

static bool change_settle(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);

    for (unsigned i = 0; i < d->nmoves; i++)
        move_settle(d, &d->moves[i], err != NULL, c->doubt);
    zsd_turn_count(d->core, d->nmoves);
    d->nmoves = 0;
    if (!d->stop)
        (void)drain_promise(d, 0, NULL); /* it shrinks: fails only for lack of memory */
    for (unsigned i = 0; i < d->nshadows; i++) {
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            free(d->shadows[i]->planes[p].extents);
        free(d->shadows[i]);
    }
    d->nshadows = 0;
    return true;
}

static void change_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);

    d->full = d->full || (err && err->code != -EAGAIN);
    d->state = DRAIN_FIND;
    drain_run(d);
}

static void drain_commit(struct zsd_drainer *d)
{
    d->state = DRAIN_BUSY;
    d->change = (struct zsd_change){ .sync = true,
                                     .begin = change_begin,
                                     .fill = change_fill,
                                     .settle = change_settle,
                                     .done = change_done };
    zsd_change_start(d->core, &d->change);
}

/* ---- one page */

/* Gives the buffer back, and goes on to the next page. */
static void drain_next(struct zsd_drainer *d)
{
    free(d->scratch);
    d->scratch = NULL;
    zsd_buffer_put(d->core, d->buffer);
    d->buffer = NULL;
    d->page++;
    d->state = DRAIN_FIND;
    zsd_defer(d->core, &d->work);
}

static void drain_on_write(struct zsd_pio *pio, int rc)
{
    struct zsd_drainer *d = zb_container_of(pio, struct zsd_drainer, write);
    struct move *m = &d->moves[d->nmoves];

    if (rc == 0 && d->row->refs > 0) {
        zsd_row_look(d->row);
        d->nmoves++;
    } else {
        zsd_extent_unref(d->core, m->to, zsd_row_page_bytes(d->row, d->plane, d->page));
        d->failed += rc < 0;
    }
    drain_next(d);
}

static void drain_on_read(struct zsd_row_read *read, const struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(read, struct zsd_drainer, read);
    struct move *m = &d->moves[d->nmoves];
    uint32_t bytes = zsd_row_page_bytes(d->row, d->plane, d->page);

    *m = (struct move){ .row = d->row, .plane = d->plane, .page = d->page, .to = ZB_NO_PLACE };
    if (d->row->refs > 0 && err)
        d->failed++;
    if (err || d->row->refs == 0) {
        drain_next(d);
        return;
    }
    m->from = move_at(m);
    if (drain_promise(d, bytes, NULL) == 0)
        m->to = zsd_extent_take(d->core, bytes);
    if (m->to != ZB_NO_PLACE && zsd_path_drained(d->core, ZN_AT_PATH(m->to))) {
        zsd_extent_unref(d->core, m->to, bytes);
        m->to = ZB_NO_PLACE;
    }
    if (m->to == ZB_NO_PLACE) {
        d->full = true;
        drain_next(d);
        return;
    }
    d->write.io = (struct zn_io){ .op = ZN_WRITE,
                                  .buf = d->bytes,
                                  .len_bytes = bytes,
                                  .off_bytes = d->core->daemon->engine_base + m->to };
    d->write.done = drain_on_write;
    zsd_pio_start(d->core, &d->write);
}

static bool page_moves(const struct zsd_drainer *d)
{
    const struct zsd_row *r = d->row;
    const struct zsd_extent *e = &r->planes[d->plane].extents[d->page];

    return r->kept > 0 && r->refs > 0 && e->at != ZB_NO_PLACE &&
           zsd_path_drained(d->core, ZN_AT_PATH(e->at)) && zsd_extent_refs(d->core, e->at) == 1;
}

/* Has the buffer: reads the page, if it is still there. */
static void drain_buffered(struct zsd_drainer *d)
{
    uint32_t bytes = zsd_row_page_bytes(d->row, d->plane, d->page);

    d->bytes = page_moves(d) ? zsd_row_room(d->core, d->buffer, bytes, &d->scratch) : NULL;
    if (!d->bytes) {
        drain_next(d);
        return;
    }
    d->state = DRAIN_BUSY;
    d->read = (struct zsd_row_read){ .core = d->core,
                                     .row = d->row,
                                     .plane = d->plane,
                                     .page = d->page,
                                     .buf = d->bytes,
                                     .done = drain_on_read };
    zsd_row_read_start(&d->read, "(saved)");
}

/* ---- the walk */

/* Goes on to the next row that has holders. False: there is none. */
static bool walk_row(struct zsd_drainer *d)
{
    struct zb_list *rows = &d->core->store->rows, *at = rows->next;

    if (d->row && !d->row->gone)
        at = d->row->node.next;
    else if (d->row && ++d->restarts > DRAIN_RESTARTS)
        at = rows;
    if (d->row)
        zsd_row_look_away(d->row);
    d->row = NULL;
    for (; at != rows && !d->row; at = at->next)
        if (zb_container_of(at, struct zsd_row, node)->refs > 0)
            d->row = zb_container_of(at, struct zsd_row, node);
    if (d->row)
        zsd_row_look(d->row);
    d->plane = 0;
    d->page = 0;
    return d->row != NULL;
}

enum drain_found { FOUND_PAGE, FOUND_LATER, FOUND_NONE };

static enum drain_found walk_find(struct zsd_drainer *d)
{
    for (;;) {
        const struct zsd_row *r = d->row;

        for (; r && r->kept > 0 && d->plane < ZSD_SAVED_PLANES; d->plane++, d->page = 0)
            for (; r->planes[d->plane].block_bytes > 0 && d->page < r->npages; d->page++) {
                if (page_moves(d))
                    return FOUND_PAGE;
                if (zsd_turn_left(d->core) == 0)
                    return FOUND_LATER;
                zsd_turn_count(d->core, 1);
            }
        if (!walk_row(d))
            return FOUND_NONE;
    }
}

static void drain_over(struct zsd_drainer *d)
{
    if (d->row)
        zsd_row_look_away(d->row);
    d->row = NULL;
    if (d->pages + d->failed > 0)
        zb_log(d->failed > 0 ? ZB_LOG_WARN : ZB_LOG_INFO, "drive-moved",
               "pages=%llu bytes=%llu failed=%llu", (unsigned long long)d->pages,
               (unsigned long long)d->moved_bytes, (unsigned long long)d->failed);
    d->core->daemon->stats.drained_pages += d->pages;
    d->core->daemon->stats.drained_bytes += d->moved_bytes;
    d->rests_until_ns = zb_now_ns() + DRAIN_REST_NS;
    d->state = DRAIN_IDLE;
    d->core->in_progress--;
}

static void drain_run(struct zsd_drainer *d)
{
    enum drain_found found;

    if (d->state == DRAIN_BUFFER) {
        d->buffer = zsd_buffer_get(d->core, &d->claim);
        if (d->buffer)
            drain_buffered(d);
        return;
    }
    if (d->state != DRAIN_FIND)
        return;
    found = d->stop || d->full || d->core->draining ? FOUND_NONE : walk_find(d);
    if (found == FOUND_LATER) {
        zsd_defer(d->core, &d->work);
    } else if (d->nmoves > 0 && (found == FOUND_NONE || d->nmoves == DRAIN_MOVES)) {
        drain_commit(d);
    } else if (found == FOUND_NONE) {
        drain_over(d);
    } else {
        d->state = DRAIN_BUFFER;
        zsd_defer(d->core, &d->work);
    }
}

static void drain_on_work(struct zsd_work *work)
{
    drain_run(zb_container_of(work, struct zsd_drainer, work));
}

/* ---- start and end */

bool zsd_drain_wanted(const struct zsd_core *core)
{
    if (!core->store || core->store->poisoned.code != 0 || core->draining)
        return false;
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        if (zsd_path_drained(core, i) && core->disk->lines[i].drive.held_bytes > 0)
            return true;
    return false;
}

void zsd_drain_start(struct zsd_core *core)
{
    struct zsd_drainer *d = core->store ? core->store->drain : NULL;

    if (!zsd_drain_wanted(core) || (d && (d->state != DRAIN_IDLE || d->stop)))
        return;
    if (!d) {
        d = core->store->drain = calloc(1, sizeof(*d));
        if (!d)
            return;
        d->core = core;
        d->work.run = drain_on_work;
        zb_list_init(&d->work.node);
    }
    d->claim = (struct zsd_claim){ .bytes = core->disk->buffer_bytes, .work = &d->work };
    d->full = false;
    d->restarts = 0;
    d->pages = d->moved_bytes = d->failed = 0;
    d->state = DRAIN_FIND;
    core->in_progress++;
    zsd_defer(core, &d->work);
}

void zsd_drain_tick(struct zsd_core *core, uint64_t now_ns)
{
    const struct zsd_drainer *d = core->store ? core->store->drain : NULL;

    if (!d || now_ns >= d->rests_until_ns)
        zsd_drain_start(core);
}

void zsd_drain_end(struct zsd_core *core)
{
    if (core->store && core->store->drain)
        core->store->drain->stop = true;
}

void zsd_drain_free(struct zsd_core *core)
{
    struct zsd_drainer *d = core->store ? core->store->drain : NULL;

    if (!d)
        return;
    assert(d->state == DRAIN_IDLE);
    zsd_nvme_unpromise(core, &d->held, &d->promise);
    zb_needs_done(&d->stuck);
    free(d);
    core->store->drain = NULL;
}
