/*
 * warp_sums_priv.h - sums of squares, and the ingestion of gradients, as what one warp does:
 * warp_priv.h has the model.
 */
#ifndef ZK_WARP_SUMS_PRIV_H
#define ZK_WARP_SUMS_PRIV_H

#include <math.h>

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

/* TILES. zk.h defines 16 running sums for a block, so an order in which its elements are added.
 * Four lanes of a warp share a block, and each has 4 of these sums: those of its quad in every row
 * of 16 elements. But memory is fast only if a warp reads and writes whole lines of one block. So a
 * warp takes SUM_ROWS rows of each of its blocks, one block after the other, a quad for each lane,
 * and puts what it has stored in a tile (shared memory). There each lane finds the quads that it
 * adds.
 */
struct lane_sums {
    double sum[4];
    uint32_t nonfinite; /* counted only if a sum is not finite: squares of finite floats have one */
};

#define SUM_ROWS       8u                     /* of a block in a tile: a quad for each lane */
#define SUM_TILE_BLOCK (4u * (SUM_ROWS + 1u)) /* quads; one row more, against bank conflicts */
#define SUM_TILE_QUADS (WARP_BLOCKS * SUM_TILE_BLOCK)

/* The dtype of what is summed. */
WARP_FN enum zb_dtype sums_dtype(const struct sums_kind *kind)
{
    return kind->ingest ? kind->grad : kind->from;
}

/* What is read of a quad. */
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

/* Takes in a quad of gradients, as zk_page_ingest() does; returns the resulting gradients, as they
 * are stored. */
WARP_FN struct raw quad_ingest(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
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
        taken.wide = quad_bits(x);
        quad_store32(a->grad, i, taken.wide);
        return taken;
    }
    if (kind->from != kind->grad)
        taken.half = quad_round(kind->grad, quad_canonical(x));
    quad_store16(a->grad, i, taken.half);
    return taken;
}

/* A quad of what is summed. */
WARP_FN struct raw sums_take(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                             const struct sums_raw *r)
{
    return kind->ingest ? quad_ingest(a, kind, i, r) : r->from;
}

WARP_FN void lane_add(enum zb_dtype dtype, struct raw taken, struct lane_sums *st)
{
    struct quad x = raw_values(dtype, taken);

    WARP_FOR (k, 4)
        st->sum[k] = elem_add_square(st->sum[k], x.x[k]);
}

/* ---- whole, aligned blocks, by tiles */

/* A lane's quads of SUM_ROWS rows of each block; element i is the one of the first block. */
WARP_FN void lane_read(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                       unsigned blocks, struct sums_raw *r)
{
    WARP_FOR (b, WARP_BLOCKS)
        if (b < blocks)
            r[b] = sums_read(a, kind, i + b * WARP_B, true);
}

WARP_FN void lane_take(const struct warp_sums *a, const struct sums_kind *kind, uint64_t i,
                       unsigned blocks, const struct sums_raw *r, void *tile, unsigned lane)
{
    WARP_FOR (b, WARP_BLOCKS) {
        uint64_t at = 4 * (b * SUM_TILE_BLOCK + lane);
        struct raw taken;

        if (b >= blocks)
            continue;
        taken = sums_take(a, kind, i + b * WARP_B, &r[b]);
        if (sums_dtype(kind) == ZB_F32)
            quad_store32(tile, at, taken.wide);
        else
            quad_store16(tile, at, taken.half);
    }
}

WARP_FN void lane_add_tile(enum zb_dtype dtype, const void *tile, unsigned lane,
                           struct lane_sums *st)
{
    WARP_FOR (row, SUM_ROWS)
        lane_add(
            dtype,
            raw_get(dtype, tile, 4 * (lane / 4 * SUM_TILE_BLOCK + row * 4 + lane % 4), 0, true),
            st);
}

/* The first `blocks` blocks of a chunk. The next rows are loaded while these are summed. */
WARP_FN void warp_rows(const struct warp_sums *a, const struct sums_kind *kind, uint64_t first,
                       unsigned blocks, void *tile, struct lane_sums *st)
{
    const unsigned elems = SUM_ROWS * 16;
    struct sums_raw r[WARP_STATES][WARP_BLOCKS], next[WARP_STATES][WARP_BLOCKS];

    WARP_EACH (w)
        lane_read(a, kind, first + WARP_LANE(w) * 4, blocks, next[w]);
    WARP_ONCE
    for (unsigned at = 0; at < WARP_B; at += elems) {
        uint64_t i = first + at;

        WARP_EACH (w) {
            WARP_FOR (b, WARP_BLOCKS)
                r[w][b] = next[w][b];
            if (at + elems < WARP_B)
                lane_read(a, kind, i + elems + WARP_LANE(w) * 4, blocks, next[w]);
            lane_take(a, kind, i + WARP_LANE(w) * 4, blocks, r[w], tile, WARP_LANE(w));
        }
        warp_meet();
        WARP_EACH (w)
            if (WARP_LANE(w) / 4 < blocks)
                lane_add_tile(sums_dtype(kind), tile, WARP_LANE(w), &st[w]);
        warp_meet();
    }
}

/* ---- unaligned blocks, and the last one of an array */

WARP_RARE struct lane_sums lane_rows_rare(const struct warp_sums a, struct sums_kind kind,
                                          uint64_t first)
{
    struct lane_sums st;

    memset(&st, 0, sizeof(st));
    WARP_ONCE
    for (unsigned row = 0; row < WARP_B / 16; row++) {
        struct sums_raw r = sums_read(&a, &kind, first + row * 16, false);

        lane_add(sums_dtype(&kind), sums_take(&a, &kind, first + row * 16, &r), &st);
    }
    return st;
}

/* The infinities and NaNs among a lane's elements, as they were stored. */
WARP_RARE uint32_t lane_nonfinite(const void *array, enum zb_dtype dtype, uint64_t first,
                                  uint64_t n)
{
    uint32_t count = 0;

    WARP_ONCE
    for (unsigned row = 0; row < WARP_B / 16; row++) {
        struct quad x = raw_values(dtype, raw_get(dtype, array, first + row * 16, n, false));

        WARP_FOR (k, 4)
            count += (uint32_t)elem_is_nonfinite(elem_bits(x.x[k]));
    }
    return count;
}

/* ---- both */

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

/* WARP_BLOCKS blocks. All lanes come here, also those whose block is after the end. `tile` has room
 * for SUM_TILE_QUADS quads of sums_dtype(). */
WARP_FN void warp_sums(const struct warp_sums *a, const struct sums_kind *kind, uint64_t chunk,
                       void *tile)
{
    struct lane_sums st[WARP_STATES];
    uint64_t begin = chunk * WARP_BLOCKS, whole = a->vector ? a->n / WARP_B : 0;
    unsigned blocks = whole < begin                 ? 0
                      : whole - begin > WARP_BLOCKS ? WARP_BLOCKS
                                                    : (unsigned)(whole - begin);

    memset(st, 0, sizeof(st));
    if (blocks > 0)
        warp_rows(a, kind, begin * WARP_B, blocks, tile, st);
    WARP_EACH (w) {
        uint64_t first = (begin + WARP_LANE(w) / 4) * WARP_B + WARP_LANE(w) % 4 * 4;

        if (WARP_LANE(w) / 4 >= blocks && first < a->n)
            st[w] = lane_rows_rare(*a, *kind, first);
        if (!isfinite((st[w].sum[0] + st[w].sum[1]) + (st[w].sum[2] + st[w].sum[3])))
            st[w].nonfinite =
                lane_nonfinite(kind->ingest ? a->grad : a->from, sums_dtype(kind), first, a->n);
    }
    sums_down(st, 2); /* lane j += lane j + 8 */
    sums_down(st, 1); /* + 4; then + 2 and + 1: */
    WARP_EACH (w) {
        uint64_t block = begin + WARP_LANE(w) / 4;

        if (WARP_LANE(w) % 4 == 0 && block * WARP_B < a->n) {
            double sum = (st[w].sum[0] + st[w].sum[2]) + (st[w].sum[1] + st[w].sum[3]);

            a->norms[block].sum = st[w].nonfinite > 0 ? 0 : sum;
            a->norms[block].nonfinite = st[w].nonfinite;
        }
    }
}

#endif
