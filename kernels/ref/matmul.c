/*
 * matmul.c - a tile of a matrix product of fp32, for the orthogonalization of matrices (ortho.c).
 *
 * ORDER. zk.h says in which order an element's terms are added. It does not depend on the tile, on
 * the vectors of the processor, or on who computes the other elements. So vectors run over columns:
 * each element has a lane of its own.
 *
 * SPEED. A panel of VECTORS * LANES columns of b, ZK_MATMUL_CHUNK long, is copied to the stack. It fits
 * the first-level cache, and is used for all rows of the tile, ROWS at a time. The sums of ROWS rows
 * and a panel's columns are in registers.
 */
#include <string.h>

#include "kernels/cpu/fma_priv.h"
#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

/* By the registers of the processor: ROWS * VECTORS sums, a panel's row, and a factor. */
#define VECTORS 2
#define ROWS    (FMA_REGISTERS == 32 ? 12 : 6)
#define PANEL   (VECTORS * FMA_LANES)

/* Copies rows [k, k + n) of b, columns [col, col + cols), to a panel. What is beyond is 0. */
static void panel_fill(const struct zk_matmul *m, size_t k, size_t n, size_t col, size_t cols,
                       float *restrict panel)
{
    if (cols < PANEL)
        memset(panel, 0, n * PANEL * sizeof(*panel));
    if (m->b_transposed) {
        for (size_t j = 0; j < cols; j++)
            for (size_t i = 0; i < n; i++)
                panel[i * PANEL + j] = m->b[(col + j) * m->k + k + i];
        return;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(panel + i * PANEL, m->b + (k + i) * m->cols + col, cols * sizeof(*panel));
}

/* The sums of one chunk for `rows` rows, a constant. */
static inline __attribute__((always_inline)) void rows_sum(const struct zk_matmul *m, size_t row,
                                                           const int rows, size_t k, size_t n,
                                                           const float *restrict panel,
                                                           float *restrict sums)
{
    const float *a = m->a + row * m->k + k;
    fma_vector sum[ROWS][VECTORS];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = (fma_vector){ 0 };
    for (size_t i = 0; i < n; i++) {
        fma_vector b[VECTORS];

        memcpy(b, panel + i * PANEL, sizeof(b));
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = fma_by(a[(size_t)r * m->k + i], b[v], sum[r][v]);
    }
    memcpy(sums, sum, (size_t)rows * sizeof(sum[0]));
}

/* Adds the sums of a chunk to those of the chunks before it, which are in `out`. */
static void rows_add(const struct zk_matmul *m, size_t row, size_t rows, size_t col, size_t cols,
                     bool first, const float *restrict sums)
{
    for (size_t r = 0; r < rows; r++) {
        float *restrict out = m->out + (row + r) * m->cols + col;
        const float *restrict sum = sums + r * PANEL;

        for (size_t j = 0; j < cols; j++)
            out[j] = first ? sum[j] : elem_add(out[j], sum[j]);
    }
}

static void panel_multiply(const struct zk_matmul *m, size_t row, size_t rows, size_t col,
                           size_t cols, size_t k, size_t n, const float *panel)
{
    float sums[ROWS * PANEL];
    size_t r = 0;

    for (; r + ROWS <= rows; r += ROWS) {
        rows_sum(m, row + r, ROWS, k, n, panel, sums);
        rows_add(m, row + r, ROWS, col, cols, k == 0, sums);
    }
    for (; r < rows; r++) {
        rows_sum(m, row + r, 1, k, n, panel, sums);
        rows_add(m, row + r, 1, col, cols, k == 0, sums);
    }
}

/* out = fma(beta, add, alpha * out) */
static void tile_finish(const struct zk_matmul *m, size_t row, size_t rows, size_t col, size_t cols)
{
    for (size_t r = row; r < row + rows; r++) {
        float *restrict out = m->out + r * m->cols + col;
        const float *restrict add = m->add ? m->add + r * m->cols + col : NULL;

        for (size_t j = 0; j < cols && add; j++)
            out[j] = elem_fma(m->beta, add[j], elem_mul(m->alpha, out[j]));
        for (size_t j = 0; j < cols && !add; j++)
            out[j] = elem_mul(m->alpha, out[j]);
        for (size_t j = 0; j < cols && m->bf16; j++)
            out[j] = elem_from_bf16(elem_to_bf16(out[j]));
    }
}

void ZK_NAME(matmul)(const struct zk_matmul *m, size_t row, size_t rows, size_t col, size_t cols)
{
    float panel[ZK_MATMUL_CHUNK * PANEL] __attribute__((aligned(64)));

    for (size_t at = 0; at < cols; at += PANEL) {
        size_t width = cols - at < PANEL ? cols - at : PANEL;

        for (size_t k = 0; k < m->k; k += ZK_MATMUL_CHUNK) {
            size_t n = m->k - k < ZK_MATMUL_CHUNK ? m->k - k : ZK_MATMUL_CHUNK;

            panel_fill(m, k, n, col + at, width, panel);
            panel_multiply(m, row, rows, col + at, width, k, n, panel);
        }
    }
    tile_finish(m, row, rows, col, cols);
}
