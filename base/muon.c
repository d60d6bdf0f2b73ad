#include "base/muon.h"

#include "base/place.h"
#include "base/size.h"
#include "base/util.h"

/* More room than the least is for at least so many pages in a span, and so much scratch memory, so that small matrices
 * keep a drive and all threads busy. */
#define SPAN_PAGES  8u
#define SMALL_BYTES (16 * ZB_MIB)

static uint64_t matrix_end(const struct zb_muon_matrix *m)
{
    return m->first + m->rows * m->cols;
}

/* Pages that have elements of a matrix: their number, and the elements where they begin and end. */
static uint64_t matrix_pages(const struct zb_muon_matrix *m, const struct zb_muon_slice *slices,
                             uint32_t nslices, uint32_t page_elems, uint64_t *ret_from,
                             uint64_t *ret_to)
{
    uint64_t n = 0;

    *ret_from = m->first;
    *ret_to = matrix_end(m);
    for (uint32_t i = 0; i < nslices; i++) {
        const struct zb_muon_slice *s = &slices[i];
        uint64_t from = zb_max_u64(m->first, s->first);
        uint64_t to = zb_min_u64(matrix_end(m), s->first + s->count);
        uint64_t page, last;

        if (from >= to)
            continue;
        page = (from - s->first) / page_elems;
        last = (to - 1 - s->first) / page_elems;
        n += last - page + 1;
        *ret_from = zb_min_u64(*ret_from, s->first + page * page_elems);
        *ret_to = zb_max_u64(*ret_to,
                             zb_min_u64(s->first + (last + 1) * page_elems, s->first + s->count));
    }
    return n;
}

void zb_muon_add(struct zb_muon_needs *n, const struct zb_layout *layout, uint32_t page_elems,
                 const struct zb_muon_matrix *matrices, uint32_t nmatrices,
                 const struct zb_muon_slice *slices, uint32_t nslices, uint64_t times)
{
    uint64_t largest = 0, page = 0, run = 0, from, to;
    uint32_t low = 0, high = 0;

    n->page_elems = page_elems;
    for (int p = 0; p < ZB_PLANES; p++)
        page += zb_layout_page(layout, p, page_elems);
    n->page_bytes = zb_max_u64(n->page_bytes, page);
    for (uint32_t i = 0; i < nslices; i++)
        n->pages += times * zb_pages(slices[i].count, page_elems);
    for (uint32_t i = 0; i < nmatrices; i++) {
        uint64_t bytes = zb_matrix_bytes(matrices[i].rows * matrices[i].cols);
        bool cpu = n->engine == ZB_MUON_CPU;
        uint64_t scratch = cpu ? zb_ortho_bytes(matrices[i].rows, matrices[i].cols) : 0;
        uint64_t gpu = cpu ? 0
                           : zb_ortho_gpu_bytes(matrices[i].rows, matrices[i].cols,
                                                n->engine == ZB_MUON_GPU_BF16);

        largest = zb_max_u64(largest, bytes);
        n->all_bytes += times * bytes;
        n->gpu_bytes = zb_max_u64(n->gpu_bytes, gpu);
        n->scratch_all += times * scratch;
        n->scratch_bytes = zb_max_u64(n->scratch_bytes, scratch);
    }
    for (uint32_t i = 0; i < nmatrices; i++) {
        n->slots = zb_max_u64(n->slots,
                              matrix_pages(&matrices[i], slices, nslices, page_elems, &from, &to));
        /* [low, high): those that share a page with it */
        for (; high < nmatrices && matrices[high].first < to; high++)
            run += zb_matrix_bytes(matrices[high].rows * matrices[high].cols);
        for (; matrix_end(&matrices[low]) <= from; low++)
            run -= zb_matrix_bytes(matrices[low].rows * matrices[low].cols);
        n->matrix_bytes = zb_max_u64(n->matrix_bytes, run + (high - low > 1 ? largest : 0));
    }
}

struct zb_muon_room zb_muon_room(const struct zb_muon_needs *n, unsigned spans, bool streams)
{
    uint64_t page = (uint64_t)n->page_elems * sizeof(float), pages = n->slots;
    struct zb_muon_room room = { .matrices_bytes = n->matrix_bytes,
                                 .scratch_bytes = n->scratch_bytes,
                                 .slot_bytes = n->page_bytes };

    if (spans > 1) {
        pages = zb_max_u64(spans * n->slots, spans * SPAN_PAGES);
        room.matrices_bytes =
            zb_max_u64(spans * n->matrix_bytes, n->matrix_bytes + spans * SPAN_PAGES * page);
        room.scratch_bytes = zb_max_u64(2 * n->scratch_bytes, SMALL_BYTES);
    }
    /* more than all of them is never used */
    pages = zb_min_u64(pages, n->pages);
    room.matrices_bytes = zb_min_u64(room.matrices_bytes, n->all_bytes);
    room.scratch_bytes = zb_min_u64(room.scratch_bytes, n->scratch_all);
    room.slots = streams ? (uint32_t)zb_min_u64(pages, UINT32_MAX) : 0;
    room.matrices_bytes = zb_round_up(room.matrices_bytes, ZB_PAGE_ALIGN);
    room.scratch_bytes = zb_round_up(room.scratch_bytes, ZB_PAGE_ALIGN);
    room.bytes = room.matrices_bytes + room.scratch_bytes + room.slots * room.slot_bytes;
    return room;
}
