/*
 * blas.c - matrix products on the processor, for the emulated device: 16-bit operands are converted
 * to fp32, and the fp32 result of BLAS is rounded once.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>

#include "examples/gpt/dev/matmul.h"
#include "examples/gpt/model/elem.h"

uint64_t gpt_mat_bytes(const struct zk_lt_mat *mat, uint64_t rows, uint64_t cols, uint32_t batch,
                       enum gpt_dtype_dev dtype)
{
    return ((batch - 1) * mat->step + (rows - 1) * mat->ld + cols) * gpt_dev_bytes(dtype);
}

static float widened(uint16_t x, enum gpt_dtype_dev dtype)
{
    return dtype == GPT_DEV_BF16 ? gpt_elem_of_bf16(x) : gpt_elem_of_fp16(x);
}

/* A matrix as fp32, rows next to each other; *made is to be freed. */
static const float *mat_f32(const struct zk_lt_mat *mat, enum gpt_dtype_dev dtype, uint64_t first,
                            uint64_t rows, uint64_t cols, float **made, int *ret_ld)
{
    const uint16_t *from = (const uint16_t *)mat->at + first;
    float *to = malloc(rows * cols * sizeof(*to));

    for (uint64_t r = 0; r < rows && to; r++)
        for (uint64_t c = 0; c < cols; c++)
            to[r * cols + c] = widened(from[r * mat->ld + c], dtype);
    *made = to;
    *ret_ld = (int)cols;
    return to;
}

static const float *mat_get(const struct zk_lt_mat *mat, enum gpt_dtype_dev dtype, uint64_t first,
                            uint64_t rows, uint64_t cols, float **made, int *ret_ld)
{
    *made = NULL;
    *ret_ld = (int)mat->ld;
    return dtype == GPT_DEV_F32 ? (const float *)mat->at + first
                                : mat_f32(mat, dtype, first, rows, cols, made, ret_ld);
}

/* Row-major d from its fp32 sums. */
static void rows_put(const struct gpt_matmul *mm, uint64_t first, const float *from)
{
    for (uint64_t r = 0; r < mm->m; r++)
        for (uint64_t c = 0; c < mm->n; c++)
            ((uint16_t *)(uintptr_t)mm->d.at)[first + r * mm->d.ld + c] =
                mm->d_dtype == GPT_DEV_BF16 ? gpt_elem_to_bf16(from[r * mm->n + c])
                                            : gpt_elem_to_fp16(from[r * mm->n + c]);
}

static float bias_at(const struct gpt_matmul *mm, uint64_t c)
{
    return mm->d_dtype == GPT_DEV_F32 ? ((const float *)mm->bias)[c]
                                      : widened(((const uint16_t *)mm->bias)[c], mm->d_dtype);
}

static int one(const struct gpt_matmul *mm, uint64_t i)
{
    uint64_t to = i * mm->d.step;
    float *made[3] = { NULL, NULL, NULL }, *d = NULL;
    int lda, ldb, ldd, rc = -ENOMEM;
    const float *a = mat_get(&mm->a, mm->dtype, i * mm->a.step, mm->a.t ? mm->k : mm->m,
                             mm->a.t ? mm->m : mm->k, &made[0], &lda);
    const float *b = mat_get(&mm->b, mm->dtype, i * mm->b.step, mm->b.t ? mm->n : mm->k,
                             mm->b.t ? mm->k : mm->n, &made[1], &ldb);

    d = (float *)(uintptr_t)mat_get(&mm->d, mm->d_dtype, to, mm->m, mm->n, &made[2], &ldd);
    if (a && b && d) {
        cblas_sgemm(CblasRowMajor, mm->a.t ? CblasTrans : CblasNoTrans,
                    mm->b.t ? CblasTrans : CblasNoTrans, (int)mm->m, (int)mm->n, (int)mm->k,
                    mm->alpha, a, lda, b, ldb, mm->beta, d, ldd);
        for (uint64_t r = 0; r < mm->m && mm->bias; r++)
            for (uint64_t c = 0; c < mm->n; c++)
                d[r * (uint64_t)ldd + c] += bias_at(mm, c);
        if (mm->d_dtype != GPT_DEV_F32)
            rows_put(mm, to, d);
        rc = 0;
    }
    for (int k = 0; k < 3; k++)
        free(made[k]);
    return rc;
}

int gpt_matmul_host(void *matmul)
{
    const struct gpt_matmul *mm = matmul;
    int rc = 0;

    for (uint64_t i = 0; i < mm->batch && rc == 0; i++)
        rc = one(mm, i);
    return rc;
}
