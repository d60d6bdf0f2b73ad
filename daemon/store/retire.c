/*
 * retire.c - moves pages off a data file: see retire.h.
 *
 *     find the next page ---> read, verify ---> write to a new place ---+
 *          ^        |                                                   |
 *          +--------|---------------------------------------------------+
 *                   +---> change: flush, the rows with their new places ---> next rows
 *
 * One page at a time: what it waits for is mostly the drive. The page keeps its identity and its
 * generation, so its checksums stay right. The old places stay held, so they are never lent again.
 */
#include "daemon/store/retire.h"

#include <errno.h>
#include <stdlib.h>

#include "base/slots.h"
#include "daemon/disk/paths.h"
#include "daemon/store/record.h"

static void retire_next(struct zsd_retire *r);

static void retire_on_write(struct zsd_pio *pio, int rc)
{
    struct zsd_retire *r = zb_container_of(pio, struct zsd_retire, write);
    struct zsd_row *row = r->read.row;

    r->core->in_progress--;
    if (rc < 0) {
        (void)zb_fail(&r->err, rc, "a page could not be written to its new place: %m");
        return;
    }
    row->planes[r->plane].extents[r->page].at = r->place;
    r->pages++;
    r->bytes += zsd_row_page_bytes(row, r->plane, r->page);
    r->touched = true;
    r->page++;
    retire_next(r);
}

static void retire_on_read(struct zsd_row_read *read, const struct zb_err *err)
{
    struct zsd_retire *r = zb_container_of(read, struct zsd_retire, read);
    uint32_t bytes = zsd_row_page_bytes(read->row, read->plane, read->page);

    if (err) {
        r->err = *err;
        return;
    }
    r->place = zsd_extent_take(r->core, bytes);
    r->write.io = (struct zn_io){ .op = ZN_WRITE,
                                  .buf = r->buf,
                                  .len_bytes = bytes,
                                  .off_bytes = r->core->daemon->engine_base + r->place };
    r->write.done = retire_on_write;
    r->core->in_progress++;
    zsd_pio_start(r->core, &r->write);
}

/* ---- the change */

static int change_begin(struct zsd_change *c, struct zb_err *err)
{
    (void)c;
    (void)err;
    return 0;
}

static int change_fill(struct zsd_change *c, struct zb_err *err)
{
    const struct zsd_retire *r = zb_container_of(c, struct zsd_retire, change);
    int rc = 0;

    for (unsigned i = 0; i < r->nrows && rc == 0; i++)
        rc = zsd_record_put_row(c->txn, r->rows[i]);
    return rc < 0 ? zb_fail(err, rc, "rows with their new places: %m") : 0;
}

static void change_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_retire *r = zb_container_of(c, struct zsd_retire, change);

    if (err) {
        r->err = *err;
        return;
    }
    r->nrows = 0;
    retire_next(r);
}

static void retire_commit(struct zsd_retire *r)
{
    r->change = (struct zsd_change){
        .sync = true, .begin = change_begin, .fill = change_fill, .done = change_done
    };
    zsd_change_start(r->core, &r->change);
}

/* ---- the walk */

static bool retire_moves(const struct zsd_retire *r, uint64_t at, uint32_t bytes)
{
    return ZN_AT_PATH(at) == r->path && ZN_AT_OFFSET(at) + bytes > r->stay_bytes;
}

/* Goes on to the next page of the row that is on the file; false: there is none. */
static bool retire_page(struct zsd_retire *r, struct zsd_row *row)
{
    for (; r->plane < ZSD_SAVED_PLANES; r->plane++, r->page = 0) {
        const struct zsd_row_plane *p = &row->planes[r->plane];

        for (; p->block_bytes > 0 && r->page < row->npages; r->page++)
            if (retire_moves(r, p->extents[r->page].at, zsd_row_page_bytes(row, r->plane, r->page)))
                return true;
    }
    return false;
}

static void retire_next(struct zsd_retire *r)
{
    struct zb_list *end = &r->core->store->rows;

    for (; r->at != end && r->nrows < ZSD_RETIRE_ROWS; r->at = r->at->next) {
        struct zsd_row *row = zb_container_of(r->at, struct zsd_row, node);

        if (retire_page(r, row)) {
            r->read = (struct zsd_row_read){ .core = r->core,
                                             .row = row,
                                             .plane = r->plane,
                                             .page = r->page,
                                             .buf = r->buf,
                                             .done = retire_on_read };
            zsd_row_read_start(&r->read, "(saved)");
            return;
        }
        if (r->touched)
            r->rows[r->nrows++] = row;
        r->touched = false;
        r->plane = 0;
        r->page = 0;
    }
    if (r->nrows > 0)
        retire_commit(r);
}

/* Promises room for all rows as they are, and for the pages that move. *ret_longest: of a page. */
static int retire_promise(struct zsd_retire *r, uint32_t *ret_longest, struct zb_err *err)
{
    struct zb_needs want = { 0 };
    uint64_t bytes = 0;
    int rc = 0;

    zb_list_each(pos, &r->core->store->rows)
    {
        const struct zsd_row *row = zb_container_of(pos, struct zsd_row, node);

        rc = rc == 0 ? zsd_row_needs(&want, row, 1) : rc;
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            for (uint32_t i = 0; row->planes[p].block_bytes > 0 && i < row->npages; i++) {
                uint32_t len = zsd_row_page_bytes(row, p, i);

                if (!retire_moves(r, row->planes[p].extents[i].at, len))
                    continue;
                bytes += len;
                *ret_longest = (uint32_t)zb_max_u64(*ret_longest, len);
                rc = rc == 0 ? zb_needs_add(&want, len, 1) : rc;
            }
    }
    if (rc < 0)
        (void)zb_fail(err, rc, "places of pages: %m");
    else if (bytes > zsd_map_free_bytes(r->core))
        rc = zb_fail(err, -ENOSPC,
                     "data file number %u has %s of saved pages%s, and %s %s free: "
                     "destroy what is not needed, or add a drive",
                     r->path + 1, zb_size_text(bytes).s,
                     r->stay_bytes > 0 ? " beyond its new size" : "",
                     r->stay_bytes > 0 ? "what remains has" : "the other data files have",
                     zb_size_text(zsd_map_free_bytes(r->core)).s);
    else
        rc = zsd_promise_set(r->core, &r->promise, &want, err);
    zb_needs_done(&want);
    return rc;
}

int zsd_retire_start(struct zsd_retire *r, struct zb_err *err)
{
    uint32_t longest = ZB_PAGE_ALIGN;
    int rc = retire_promise(r, &longest, err);

    if (rc < 0)
        return rc;
    r->buf = aligned_alloc(ZB_PAGE_ALIGN, longest);
    if (!r->buf)
        return zb_fail(err, -ENOMEM, "a page: %m");
    r->at = r->core->store->rows.next;
    retire_next(r);
    return 0;
}

void zsd_retire_done(struct zsd_retire *r)
{
    const struct zb_needs none = { 0 };

    (void)zsd_promise_set(r->core, &r->promise, &none, NULL); /* it shrinks: never fails */
    zb_needs_done(&r->promise);
    free(r->buf);
}
