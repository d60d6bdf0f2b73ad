/*
 * warp_sums_priv.h - sums of squares, and the ingestion of gradients, as what one warp does:
 * warp_priv.h has the model.
 */
#ifndef ZK_WARP_SUMS_PRIV_H
#define ZK_WARP_SUMS_PRIV_H

#include "kernels/cuda/warp_priv.h"

/* The input of sums: an array, or the gradients of a page while they are set or added to. */
struct warp_sums {
    const void *from;
    void *grad; /* NULL: `from` itself is summed */
    struct zk_gpu_norm *norms;
    uint64_t n;
    bool vector; /* of `from`: pages are aligned */
};

/* Properties fixed for a launch; on a GPU, compile-time constants. */
struct sums_kind {
    enum zb_dtype from, grad;
    bool ingest, add;
};

/* Four lanes of a warp share a block, and each has 4 of the 16 lanes of zk.h's definition: those of
 * its quad in every row of 16 elements. */
struct lane_sums {
    double sum[4];
    uint32_t nonfinite;
};

#define SUM_ROWS 8u /* read at a time */

/* What is read of a row's quad. */
struct sums_raw {
    struct raw from;
    struct quad32 old; /* where it is added to */
};

WARP_FN struct sums_raw sums_read(const struct warp_sums *a, const struct sums_kind *kind,
                                  uint64_t i, bool whole)
{
    struct sums_raw r;

    memset(&r, 0, sizeof(r));
    r.from = raw_get(kind->from, a->from, i, a->n, whole);
    if (kind->add)
        r.old = quad_load32(a->grad, i);
    return r;
}

/* Takes in a quad of gradients, as zk_page_ingest() does; returns the resulting gradients. */
WARP_FN struct quad quad_ingest(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                                const struct sums_raw *r)
{
    struct raw taken = r->from;
    struct quad x = raw_values(kind->from, r->from);

    if (kind->grad == ZB_F32) {
        if (kind->add) {
            struct raw old;

            old.wide = r->old;
            memset(&old.half, 0, sizeof(old.half));
            x = quad_sum(raw_values(ZB_F32, old), x);
        } else if (kind->from != ZB_F32)
            x = quad_canonical(x);
        quad_store32(a->grad, i, quad_bits(x));
        return x;
    }
    if (kind->from != kind->grad)
        taken.half = quad_round(kind->grad, quad_canonical(x));
    quad_store16(a->grad, i, taken.half);
    return raw_values(kind->grad, taken);
}

WARP_FN void row_count(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                       const struct sums_raw *r, struct lane_sums *st)
{
    struct quad x = kind->ingest ? quad_ingest(a, kind, i, r) : raw_values(kind->from, r->from);

    WARP_FOR (k, 4) {
        st->nonfinite += (uint32_t)elem_is_nonfinite(elem_bits(x.x[k]));
        st->sum[k] = elem_add_square(st->sum[k], x.x[k]);
    }
}

/* The next rows are loaded while these are summed. */
WARP_FN void lane_rows(const struct warp_sums *a, const struct sums_kind *kind, uint64_t first,
                       bool whole, struct lane_sums *st)
{
    struct sums_raw r[SUM_ROWS], next[SUM_ROWS];
    unsigned row = 0;

    WARP_FOR (at, SUM_ROWS)
        r[at] = sums_read(a, kind, first + at * 16, whole);
    WARP_ONCE
    for (; row < WARP_B / 16 - SUM_ROWS; row += SUM_ROWS) {
        WARP_FOR (at, SUM_ROWS)
            next[at] = sums_read(a, kind, first + (row + SUM_ROWS + at) * 16, whole);
        WARP_FOR (at, SUM_ROWS)
            row_count(a, kind, first + (row + at) * 16, &r[at], st);
        WARP_FOR (at, SUM_ROWS)
            r[at] = next[at];
    }
    WARP_FOR (at, SUM_ROWS)
        row_count(a, kind, first + (row + at) * 16, &r[at], st);
}

/* Unaligned, or the last block of an array. */
WARP_RARE struct lane_sums lane_rows_rare(const struct warp_sums a, struct sums_kind kind,
                                          uint64_t first)
{
    struct lane_sums st;

    memset(&st, 0, sizeof(st));
    WARP_ONCE
    for (unsigned row = 0; row < WARP_B / 16; row++) {
        struct sums_raw r = sums_read(&a, &kind, first + row * 16, false);

        row_count(&a, &kind, first + row * 16, &r, &st);
    }
    return st;
}

WARP_FN void lane_sum(const struct warp_sums *a, const struct sums_kind *kind, uint64_t block,
                      unsigned quarter, struct lane_sums *st)
{
    uint64_t first = block * WARP_B + quarter * 4;

    memset(st, 0, sizeof(*st));
    if (first >= a->n)
        return;
    if (a->vector && (block + 1) * WARP_B <= a->n)
        lane_rows(a, kind, first, true, st);
    else
        *st = lane_rows_rare(*a, *kind, first);
}

/* Each quarter adds the value of the one `delta` after it; the result of the others is not used. */
WARP_FN void sums_down(struct lane_sums *st, unsigned delta)
{
#ifdef __CUDA_ARCH__
    WARP_FOR (k, 4)
        st->sum[k] += __shfl_down_sync(0xffffffffu, st->sum[k], delta, 4);
    st->nonfinite += __shfl_down_sync(0xffffffffu, st->nonfinite, delta, 4);
#else
    WARP_EACH (w) {
        if (w % 4 + delta >= 4)
            continue;
        WARP_FOR (k, 4)
            st[w].sum[k] += st[w + delta].sum[k];
        st[w].nonfinite += st[w + delta].nonfinite;
    }
#endif
}

/* WARP_BLOCKS blocks. All lanes come here, also those whose block is after the end. */
WARP_FN void warp_sums(const struct warp_sums *a, const struct sums_kind *kind, uint64_t chunk)
{
    struct lane_sums st[WARP_STATES];

    WARP_EACH (w)
        lane_sum(a, kind, chunk * WARP_BLOCKS + WARP_LANE(w) / 4, WARP_LANE(w) % 4, &st[w]);
    sums_down(st, 2); /* lane j += lane j + 8 */
    sums_down(st, 1); /* + 4; then + 2 and + 1: */
    WARP_EACH (w) {
        uint64_t block = chunk * WARP_BLOCKS + WARP_LANE(w) / 4;

        if (WARP_LANE(w) % 4 == 0 && block * WARP_B < a->n) {
            double sum = (st[w].sum[0] + st[w].sum[2]) + (st[w].sum[1] + st[w].sum[3]);

            a->norms[block].sum = st[w].nonfinite > 0 ? 0 : sum;
            a->norms[block].nonfinite = st[w].nonfinite;
        }
    }
}

#endif
