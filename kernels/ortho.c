#include "kernels/ortho.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/ref/elem_priv.h"

#define TILE 192u /* rows and columns of a tile of a product: a multiple of all of ref/matmul.c's */
#define TURN 64u  /* rows and columns of X in a tile that is copied or transposed */

/*
 * NORM and LOAD make X from the matrix, GRAM, POLY and APPLY are one iteration. If the last X is not in
 * `matrix`, or is its transpose, STORE puts it there. A transpose is never made in place: MOVE
 * first copies it to `other`.
 */
enum phase { NORM, LOAD, GRAM, POLY, APPLY, MOVE, STORE };

const struct zk_ortho_how zk_ortho_muon = {
    .a = 3.4445, .b = -4.7750, .c = 2.0315, .eps = ZK_ORTHO_EPS, .iterations = ZK_ORTHO_ITERATIONS
};

static size_t phase_tiles(const struct zk_ortho *o)
{
    switch ((enum phase)o->phase) {
    case NORM:
        return 1;
    case LOAD:
    case MOVE:
    case STORE:
        return zb_div_up(o->n, TURN);
    case GRAM:
    case POLY:
        return zb_div_up(o->n, TILE) * zb_div_up(o->n, TILE);
    case APPLY:
        break;
    }
    return zb_div_up(o->n, TILE) * zb_div_up(o->m, TILE);
}

size_t zk_ortho_begin(struct zk_ortho *o, const struct zk_ops *ops, const struct zk_ortho_how *how,
                      float *matrix, size_t rows, size_t cols, void *scratch)
{
    unsigned char *at = scratch;
    size_t n = rows < cols ? rows : cols;

    assert(n > 0);
    *o = (struct zk_ortho){ .ops = ops,
                            .how = *how,
                            .rows = rows,
                            .cols = cols,
                            .n = n,
                            .m = rows < cols ? cols : rows,
                            .matrix = matrix,
                            .other = scratch,
                            .phase = NORM };
    o->gram = (float *)(void *)(at + zb_matrix_bytes(rows * cols));
    o->poly = (float *)(void *)(at + zb_matrix_bytes(rows * cols) + zb_matrix_bytes(n * n));
    o->x = o->other;
    o->to = matrix;
    return phase_tiles(o);
}

static bool transposed(const struct zk_ortho *o)
{
    return o->rows > o->cols;
}

/* ---- tiles */

static void tile_norm(struct zk_ortho *o)
{
    struct zk_xsum sum = { 0 };
    uint64_t elems = (uint64_t)o->rows * o->cols, bad = 0;

    for (uint64_t at = 0; at < elems; at += ZB_BLOCK_ELEMS) {
        uint64_t before = bad;
        double squares =
            o->ops->sumsq(o->matrix + at, zb_min_u64(ZB_BLOCK_ELEMS, elems - at), &bad);

        if (bad == before)
            zk_xsum_add(&sum, squares);
    }
    o->norm = bad > 0 ? (double)NAN : sqrt(zk_xsum_value(&sum));
}

/* Rows [row, row + TURN) of an n x m matrix from another one, which is m x n if `turn`, times a
 * factor. */
static void tile_turn(const struct zk_ortho *o, float *to, const float *from, bool turn, size_t row,
                      float factor)
{
    size_t end = zb_min_u64(row + TURN, o->n);

    for (size_t col = 0; col < o->m; col += TURN)
        for (size_t r = row; r < end; r++)
            for (size_t c = col; c < zb_min_u64(col + TURN, o->m); c++) {
                float x = elem_mul(turn ? from[c * o->n + r] : from[r * o->m + c], factor);

                to[r * o->m + c] = o->how.bf16 ? elem_from_bf16(elem_to_bf16(x)) : x;
            }
}

/* Columns [row, row + TURN) of the matrix, which is m x n, from an n x m one. */
static void tile_turn_back(const struct zk_ortho *o, const float *from, size_t row)
{
    size_t end = zb_min_u64(row + TURN, o->n);

    for (size_t c = 0; c < o->m; c++)
        for (size_t r = row; r < end; r++)
            o->matrix[c * o->n + r] = from[r * o->m + c];
}

static void tile_load(const struct zk_ortho *o, size_t row)
{
    /* a norm of NaN gives NaN */
    double by = o->norm < o->how.eps ? o->how.eps : o->norm;

    tile_turn(o, o->x, o->matrix, transposed(o), row, (float)(1 / by));
}

/* A symmetric n x n product: tiles above the diagonal are mirrored, those below it are not
 * computed. */
static void tile_symmetric(const struct zk_ortho *o, const struct zk_matmul *m, size_t tile)
{
    size_t across = zb_div_up(o->n, TILE), row = tile / across * TILE, col = tile % across * TILE;
    size_t rows = zb_min_u64(TILE, o->n - row), cols = zb_min_u64(TILE, o->n - col);

    if (col < row)
        return;
    o->ops->matmul(m, row, rows, col, cols);
    for (size_t c = col; c < col + cols && col > row; c++)
        for (size_t r = row; r < row + rows; r++)
            m->out[c * o->n + r] = m->out[r * o->n + c];
}

static void tile_gram(const struct zk_ortho *o, size_t tile)
{
    const struct zk_matmul m = { .a = o->x,
                                 .b = o->x,
                                 .b_transposed = true,
                                 .out = o->gram,
                                 .k = o->m,
                                 .cols = o->n,
                                 .alpha = 1,
                                 .bf16 = o->how.bf16 };

    tile_symmetric(o, &m, tile);
}

static void tile_poly(const struct zk_ortho *o, size_t tile)
{
    const struct zk_matmul m = { .a = o->gram,
                                 .b = o->gram,
                                 .add = o->gram,
                                 .out = o->poly,
                                 .k = o->n,
                                 .cols = o->n,
                                 .alpha = (float)o->how.c,
                                 .beta = (float)o->how.b,
                                 .bf16 = o->how.bf16 };

    tile_symmetric(o, &m, tile);
}

static void tile_apply(const struct zk_ortho *o, size_t tile)
{
    size_t across = zb_div_up(o->m, TILE), row = tile / across * TILE, col = tile % across * TILE;
    const struct zk_matmul m = { .a = o->poly,
                                 .b = o->x,
                                 .add = o->x,
                                 .out = o->to,
                                 .k = o->n,
                                 .cols = o->m,
                                 .alpha = 1,
                                 .beta = (float)o->how.a,
                                 .bf16 = o->how.bf16 };

    o->ops->matmul(&m, row, zb_min_u64(TILE, o->n - row), col, zb_min_u64(TILE, o->m - col));
}

static void tile_move(const struct zk_ortho *o, size_t row)
{
    size_t end = zb_min_u64(row + TURN, o->n);

    memcpy(o->other + row * o->m, o->matrix + row * o->m, (end - row) * o->m * sizeof(float));
}

static void tile_store(const struct zk_ortho *o, size_t row)
{
    if (transposed(o))
        tile_turn_back(o, o->other, row);
    else
        memcpy(o->matrix + row * o->m, o->other + row * o->m,
               (zb_min_u64(row + TURN, o->n) - row) * o->m * sizeof(float));
}

void zk_ortho_tile(struct zk_ortho *o, size_t tile)
{
    switch ((enum phase)o->phase) {
    case NORM:
        tile_norm(o);
        break;
    case LOAD:
        tile_load(o, tile * TURN);
        break;
    case GRAM:
        tile_gram(o, tile);
        break;
    case POLY:
        tile_poly(o, tile);
        break;
    case APPLY:
        tile_apply(o, tile);
        break;
    case MOVE:
        tile_move(o, tile * TURN);
        break;
    case STORE:
        tile_store(o, tile * TURN);
        break;
    }
}

/* ---- phases */

/* The phase after the last iteration, or after MOVE. */
static size_t phase_last(struct zk_ortho *o)
{
    if (o->x == o->matrix && !transposed(o))
        return 0;
    o->phase = o->x == o->matrix ? MOVE : STORE;
    return phase_tiles(o);
}

size_t zk_ortho_next(struct zk_ortho *o)
{
    float *x = o->x;

    switch ((enum phase)o->phase) {
    case STORE:
        return 0;
    case MOVE:
        o->x = o->other;
        return phase_last(o);
    case APPLY:
        o->x = o->to;
        o->to = x;
        o->iteration++;
        break;
    case NORM:
    case GRAM:
    case POLY:
        o->phase++;
        return phase_tiles(o);
    case LOAD:
        break;
    }
    if (o->iteration == o->how.iterations)
        return phase_last(o);
    o->phase = GRAM;
    return phase_tiles(o);
}

void zk_ortho(const struct zk_ops *ops, const struct zk_ortho_how *how, float *matrix, size_t rows,
              size_t cols, void *scratch)
{
    struct zk_ortho o;

    for (size_t n = zk_ortho_begin(&o, ops, how, matrix, rows, cols, scratch); n > 0;
         n = zk_ortho_next(&o))
        for (size_t tile = 0; tile < n; tile++)
            zk_ortho_tile(&o, tile);
}
