/*
 * rowio.c - reads and verifies one page of a row: see rowio.h.
 *
 *     start ---> read ---> verify, on a compute thread ---> done      a failure skips to done
 *
 * The caller need not hold the row. A row without holders may lose its places during the read, and
 * other data may be written there. Then the checksums do not match, because they include the
 * identity and the generation of the page. The caller sees that the row has no holders (refs 0).
 *
 * If a read fails, and the page has moved meanwhile (drain.c), it is read at its new place: the old one
 * may have been written.
 */
#include "daemon/store/rowio.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/slots.h"

struct zsd_row_piece zsd_row_piece(const struct zsd_version *v, uint32_t unit, uint64_t elem,
                                   uint64_t most)
{
    uint32_t i = zsd_version_find(v, unit, elem);
    struct zsd_row_piece p = { .row = i < v->nrows ? v->rows[i] : NULL };

    assert(p.row);
    p.page = (uint32_t)((elem - p.row->first) / p.row->page_elems);
    p.from = (elem - p.row->first) % p.row->page_elems;
    p.take = zb_min_u64(zsd_row_page_elems(p.row, p.page) - p.from, most);
    return p;
}

void *zsd_row_room(const struct zsd_core *core, void *buffer, uint64_t bytes, void **ret_scratch)
{
    if (bytes <= core->disk->buffer_bytes)
        return buffer;
    *ret_scratch = aligned_alloc(ZB_PAGE_ALIGN, bytes);
    return *ret_scratch;
}

/* Names the page, for messages. */
struct read_where {
    char s[2 * ZP_NAME_MAX + 160];
};

static struct read_where read_where(const struct zsd_row_read *r)
{
    struct read_where w;

    (void)snprintf(w.s, sizeof(w.s), "job '%s' unit %u, shard from element %llu: page %u of its %s",
                   r->who, r->row->unit, (unsigned long long)r->row->first, r->page,
                   zsd_plane_text(zsd_plane_of(r->plane)));
    return w;
}

static const struct zsd_extent *read_extent(const struct zsd_row_read *r)
{
    return &r->row->planes[r->plane].extents[r->page];
}

static void read_over(struct zsd_row_read *r)
{
    r->core->in_progress--;
    if (r->err.code != 0 && r->row->refs > 0 && read_extent(r)->at != r->at) {
        zsd_row_read_start(r, r->who);
        return;
    }
    if (r->err.code == -EBADMSG)
        zsd_page_corrupt(r->core->daemon);
    r->done(r, r->err.code != 0 ? &r->err : NULL);
}

static void read_verify(struct zsd_task *task)
{
    struct zsd_row_read *r = zb_container_of(task, struct zsd_row_read, task);
    const struct zsd_row_plane *plane = &r->row->planes[r->plane];
    const struct zn_page_id id = zsd_row_page_id(r->row, r->plane, r->page);
    uint32_t bad = 0;

    if (zn_page_verify(&id, r->buf, zsd_row_page_bytes(r->row, r->plane, r->page), plane->crc_bytes,
                       plane->crcs + (size_t)r->page * plane->crcs_per_page, &bad) != 0)
        (void)zb_fail(&r->err, -EBADMSG, "%s on NVMe is corrupt (checksum %u differs)",
                      read_where(r).s, bad);
}

static void read_verified(struct zsd_task *task)
{
    struct zsd_row_read *r = zb_container_of(task, struct zsd_row_read, task);

    read_over(r);
}

static void read_on_io(struct zsd_pio *pio, int rc)
{
    struct zsd_row_read *r = zb_container_of(pio, struct zsd_row_read, pio);

    if (rc == 0) {
        zsd_task_start(r->core, &r->task);
        return;
    }
    (void)zb_fail(&r->err, rc, "%s on NVMe: %m", read_where(r).s);
    read_over(r);
}

void zsd_row_read_start(struct zsd_row_read *r, const char *who)
{
    assert(r->row->planes[r->plane].block_bytes > 0 && r->page < r->row->npages &&
           read_extent(r)->at != ZB_NO_PLACE);
    r->who = who;
    r->at = read_extent(r)->at;
    r->err = (struct zb_err){ 0 };
    r->task = (struct zsd_task){ .run = read_verify,
                                 .done = read_verified,
                                 .payer = r->payer,
                                 .bytes = zsd_row_page_bytes(r->row, r->plane, r->page) };
    r->pio.io = (struct zn_io){
        .op = ZN_READ,
        .buf = r->buf,
        .len_bytes = zsd_row_page_bytes(r->row, r->plane, r->page),
        .off_bytes = r->core->daemon->engine_base + r->at,
    };
    r->pio.payer = r->payer;
    r->pio.done = read_on_io;
    r->core->in_progress++;
    zsd_pio_start(r->core, &r->pio);
}
