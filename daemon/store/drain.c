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
 * SHARED. A page is read and written once, and one change points all rows that share it (sharers.h)
 * to the new place. It moves only if nothing but these rows holds it.
 *
 * PROMISE. A page that moves has two places until its change is durable. The second one is promised
 * to the pass. If somebody holds the old place when the change is durable (a job that has been loaded
 * meanwhile), the job has one more place than it was promised; then the pass keeps its promise. It
 * does, too, if nobody knows whether the change is durable, because both places stay taken.
 */
#include "daemon/store/drain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/slots.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/store/change.h"
#include "daemon/store/record.h"
#include "daemon/store/rowio.h"
#include "daemon/store/rows.h"
#include "daemon/store/sharers.h"
#include "daemon/store/store.h"

#define DRAIN_MOVES   64u   /* pages of a change */
#define DRAIN_ROWS    1024u /* and rows that may be written for them, about */
#define DRAIN_REST_NS UINT64_C(5000000000)

struct move {
    struct zsd_row *row; /* looked at */
    enum zsd_saved_plane plane;
    uint32_t page;
    uint64_t from, to;
    bool valid; /* the running change has it */
};

/* A row that the running change points to the new place of a page. */
struct patch {
    struct zsd_row *row; /* looked at */
    unsigned move;
};

struct zsd_drainer {
    struct zsd_core *core;
    enum { DRAIN_IDLE, DRAIN_FIND, DRAIN_BUFFER, DRAIN_BUSY } state;
    bool stop, full; /* the pass ends: on request; there is no room, or a change has failed */
    uint64_t rests_until_ns;
    struct zsd_work work;
    struct zsd_row_walk walk;
    struct zsd_row *row; /* that it is at; looked at, or NULL */
    enum zsd_saved_plane plane;
    uint32_t page;
    void *buffer, *scratch, *bytes;
    struct zsd_claim claim;
    struct zsd_row_read read;
    struct zsd_pio write;
    struct move moves[DRAIN_MOVES];
    unsigned nmoves;
    size_t nrows;               /* that share pages with those of the moves, about */
    struct zsd_sharers sharers; /* of the row that the walk, or the change, is at */
    /* of the change that runs */
    unsigned nbegun; /* moves */
    struct patch *patches;
    size_t npatches, nsettled, patches_room;
    struct zsd_row **shadows; /* copies of rows, with new places */
    size_t nshadows, shadows_room;
    struct zb_map shadow_at;        /* index in shadows, by id */
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

static void shadow_free(struct zsd_row *s)
{
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        free(s->planes[p].extents);
    free(s);
}

/* A copy of a row for the catalog; NULL: no memory. */
static struct zsd_row *shadow_new(const struct zsd_row *row)
{
    struct zsd_row *s = malloc(sizeof(*s));
    bool whole = true;

    if (!s)
        return NULL;
    *s = *row; /* the checksums are shared: they do not change */
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        size_t bytes = row->npages * sizeof(struct zsd_extent);

        s->planes[p].extents = row->planes[p].extents ? malloc(bytes) : NULL;
        if (s->planes[p].extents)
            memcpy(s->planes[p].extents, row->planes[p].extents, bytes);
        whole = whole && (s->planes[p].extents || !row->planes[p].extents);
    }
    if (!whole)
        shadow_free(s);
    return whole ? s : NULL;
}

/* The copy of a row that will be written, made if there is none; NULL: no memory. */
static struct zsd_row *shadow_of(struct zsd_drainer *d, const struct zsd_row *row)
{
    const uint32_t *at = zb_map_find(&d->shadow_at, row->id);
    struct zsd_row *s;

    if (at)
        return d->shadows[*at];
    if (zb_grow(&d->shadows, &d->shadows_room, d->nshadows, 1) < 0)
        return NULL;
    s = shadow_new(row);
    if (s && zb_map_put(&d->shadow_at, row->id, (uint32_t)d->nshadows) < 0) {
        shadow_free(s);
        return NULL;
    }
    if (s)
        d->shadows[d->nshadows++] = s;
    zsd_turn_count(d->core, row->npages);
    return s;
}

/* The row will have the page at its new place. 0 or -ENOMEM. */
static int move_patch(struct zsd_drainer *d, unsigned move, struct zsd_row *row)
{
    const struct move *m = &d->moves[move];
    struct zsd_row *s = shadow_of(d, row);

    if (!s || zb_grow(&d->patches, &d->patches_room, d->npatches, 1) < 0)
        return -ENOMEM;
    s->planes[m->plane].extents[m->page].at = m->to;
    zsd_row_look(row);
    d->patches[d->npatches++] = (struct patch){ row, move };
    return 0;
}

/* Decides whether the page moves: all of its holders are rows of the catalog, which move with it. 0
 * or -ENOMEM. */
static int move_begin(struct zsd_drainer *d, unsigned move)
{
    struct move *m = &d->moves[move];
    uint32_t refs = zsd_extent_refs(d->core, m->from);
    const struct zsd_row *s;
    int rc = 0;

    if (m->row->kept == 0 || m->row->refs == 0 || move_at(m) != m->from)
        return 0;
    s = shadow_of(d, m->row);
    if (!s)
        return -ENOMEM;
    if (s->planes[m->plane].extents[m->page].at != m->from)
        return 0; /* it moves already */
    if (refs > 1 && d->sharers.of != m->row)
        rc = zsd_sharers_find(d->core->store, m->row, &d->sharers);
    if (rc < 0 ||
        (refs > 1 && zsd_sharers_holders(&d->sharers, m->plane, m->page, m->from) != refs))
        return rc;
    m->valid = true;
    if (refs == 1)
        return move_patch(d, move, m->row);
    for (size_t i = 0; i < d->sharers.n && rc == 0; i++)
        if (zsd_row_page_is_at(d->sharers.rows[i], m->plane, m->page, m->from))
            rc = move_patch(d, move, d->sharers.rows[i]);
    return rc;
}

static int change_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);

    zsd_sharers_forget(&d->sharers); /* of another turn */
    for (; d->nbegun < d->nmoves; d->nbegun++) {
        if (zsd_turn_left(d->core) == 0)
            return 1;
        zsd_turn_count(d->core, 1);
        if (move_begin(d, d->nbegun) < 0)
            return zb_fail(err, -ENOMEM, "rows with their new places: %m");
    }
    zsd_sharers_forget(&d->sharers);
    return d->npatches > 0 ? 0 : zb_fail(err, -EAGAIN, "nothing is left to move");
}

static int change_fill(struct zsd_change *c, struct zb_err *err)
{
    const struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);
    int rc = 0;

    for (size_t i = 0; i < d->nshadows && rc == 0; i++)
        rc = zsd_record_put_row(c->txn, d->shadows[i]);
    return rc < 0 ? zb_fail(err, rc, "rows with their new places: %m") : 0;
}

/* Points a row to the new place of a page. */
static void patch_settle(struct zsd_drainer *d, const struct patch *p, bool failed)
{
    const struct move *m = &d->moves[p->move];

    if (!failed) {
        p->row->planes[m->plane].extents[m->page].at = m->to;
        zsd_extent_ref(d->core, m->to);
        zsd_extent_unref(d->core, m->from, zsd_row_page_bytes(p->row, m->plane, m->page));
    }
    zsd_row_look_away(p->row);
}

/* Gives up the hold of the pass on the new place. If the catalog may have it, it stays taken. Of two
 * places that stay taken, the pass keeps its promise for one. */
static void move_settle(struct zsd_drainer *d, struct move *m, bool failed, bool doubt)
{
    uint32_t bytes = zsd_row_page_bytes(m->row, m->plane, m->page);
    bool doubted = m->valid && failed && doubt;
    bool both = doubted || (m->valid && !failed && zsd_extent_refs(d->core, m->from) > 0);

    if (both && zb_needs_add(&d->stuck, bytes, 1) < 0)
        d->stop = true; /* then the promise is kept whole: see change_settle() */
    if (m->valid && !failed) {
        d->pages++;
        d->moved_bytes += bytes;
    }
    if (!doubted)
        zsd_extent_unref(d->core, m->to, bytes);
    zsd_row_look_away(m->row);
}

static bool change_settle(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_drainer *d = zb_container_of(c, struct zsd_drainer, change);

    for (; d->nsettled < d->npatches; d->nsettled++) {
        if (zsd_turn_left(d->core) == 0)
            return false;
        zsd_turn_count(d->core, 2); /* places whose holders change */
        patch_settle(d, &d->patches[d->nsettled], err != NULL);
    }
    for (unsigned i = 0; i < d->nmoves; i++)
        move_settle(d, &d->moves[i], err != NULL, c->doubt);
    zsd_turn_count(d->core, d->nmoves);
    d->nmoves = d->nbegun = d->nrows = 0;
    d->npatches = d->nsettled = 0;
    if (!d->stop)
        (void)drain_promise(d, 0, NULL); /* it shrinks: fails only for lack of memory */
    while (d->nshadows > 0)
        shadow_free(d->shadows[--d->nshadows]);
    zb_map_done(&d->shadow_at);
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
        if (d->nmoves == 0 || d->moves[d->nmoves - 1].row != d->row)
            d->nrows += d->sharers.of == d->row ? d->sharers.n : 1;
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

/* Whether only rows of the catalog hold that place, and it does not move already. What was found of
 * the rows may be out of date; the change looks again. */
static bool page_shared_moves(struct zsd_drainer *d, uint64_t at)
{
    for (unsigned i = 0; i < d->nmoves; i++)
        if (d->moves[i].from == at)
            return false;
    if (d->sharers.of != d->row && zsd_sharers_find(d->core->store, d->row, &d->sharers) < 0)
        return false;
    return zsd_sharers_holders(&d->sharers, d->plane, d->page, at) == zsd_extent_refs(d->core, at);
}

static bool page_moves(struct zsd_drainer *d)
{
    const struct zsd_row *r = d->row;
    uint64_t at = r->planes[d->plane].extents[d->page].at;

    return r->kept > 0 && r->refs > 0 && at != ZB_NO_PLACE &&
           zsd_path_drained(d->core, ZN_AT_PATH(at)) &&
           (zsd_extent_refs(d->core, at) == 1 || page_shared_moves(d, at));
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

static void walk_leave(struct zsd_drainer *d)
{
    if (d->row)
        zsd_row_look_away(d->row);
    d->row = NULL;
    zsd_sharers_forget(&d->sharers);
}

/* Advances to the next row. False: there is none. */
static bool walk_row(struct zsd_drainer *d)
{
    struct zsd_row *row;

    walk_leave(d);
    row = zsd_row_walk_next(&d->walk);
    if (row && row->refs > 0) {
        zsd_row_look(row);
        d->row = row;
    }
    d->plane = 0;
    d->page = 0;
    return row != NULL;
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
        if (zsd_turn_left(d->core) == 0)
            return FOUND_LATER;
        zsd_turn_count(d->core, 1);
        if (!walk_row(d))
            return FOUND_NONE;
    }
}

static void drain_over(struct zsd_drainer *d)
{
    walk_leave(d);
    zsd_row_walk_end(&d->walk);
    if (!d->stop) /* what was for a page that could not be written */
        (void)drain_promise(d, 0, NULL);
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
    } else if (d->nmoves > 0 &&
               (found == FOUND_NONE || d->nmoves == DRAIN_MOVES || d->nrows >= DRAIN_ROWS)) {
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
    zsd_row_walk_begin(core->store, &d->walk);
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
    zsd_sharers_done(&d->sharers);
    free(d->patches);
    free(d->shadows);
    free(d);
    core->store->drain = NULL;
}
