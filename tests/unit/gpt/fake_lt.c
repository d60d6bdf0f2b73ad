/*
 * fake_lt.c - a cuBLASLt on processor memory, written from its documentation: column-major, D =
 * alpha op(A) op(B) + beta C + bias (one for each row of D), descriptors with attributes whose
 * sizes must be right. It rejects whatever the real one rejects, and more: unknown attributes,
 * wrong sizes, invalid aliasing, an algorithm for another product, alignments smaller than
 * requested. It has no algorithm for batches of four.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/model/elem.h"
#include "kernels/gpu/lt_priv.h"

#define INVALID       7 /* CUBLAS_STATUS_INVALID_VALUE */
#define NOT_SUPPORTED 15
#define PUBLIC        __attribute__((visibility("default")))

struct desc {
    int compute, scale;
    int32_t op[2];
    uint32_t epilogue;
    const void *bias;
};

struct layout {
    int type;
    uint64_t rows, cols;
    int64_t ld, offset;
    int32_t count;
};

struct pref {
    uint64_t workspace;
    uint32_t reduction, align[4];
};

#define LT_DECLARE(name, type, args) PUBLIC type name args;
LT_FUNCTIONS(LT_DECLARE)

static int live; /* live handles, descriptors, layouts, preferences */

PUBLIC int fake_lt_live(void);
int fake_lt_live(void)
{
    return live;
}

static int made(void **ret, size_t bytes)
{
    *ret = calloc(1, bytes);
    live++;
    return *ret ? LT_SUCCESS : 3;
}

static int gone(void *p)
{
    live--;
    free(p);
    return LT_SUCCESS;
}

int cublasLtCreate(void **handle)
{
    return made(handle, 1);
}

int cublasLtDestroy(void *handle)
{
    return gone(handle);
}

const char *cublasLtGetStatusString(int status)
{
    return status == NOT_SUPPORTED ? "not supported, says the test" : "an error, says the test";
}

int cublasLtMatmulDescCreate(void **desc, int compute, int scale)
{
    int rc = made(desc, sizeof(struct desc));

    if (rc == LT_SUCCESS)
        *(struct desc *)*desc = (struct desc){ .compute = compute, .scale = scale, .epilogue = 1 };
    return rc;
}

int cublasLtMatmulDescDestroy(void *desc)
{
    return gone(desc);
}

static int take(void *to, size_t to_bytes, const void *from, size_t bytes)
{
    if (bytes != to_bytes)
        return INVALID;
    memcpy(to, from, bytes);
    return LT_SUCCESS;
}

int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes)
{
    struct desc *d = desc;

    switch (attribute) {
    case 3:
    case 4:
        return take(&d->op[attribute - 3], sizeof(d->op[0]), value, bytes);
    case 7:
        return take(&d->epilogue, sizeof(d->epilogue), value, bytes);
    case 8:
        return take(&d->bias, sizeof(d->bias), value, bytes);
    default:
        return INVALID;
    }
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    int rc = made(layout, sizeof(struct layout));

    if (rc == LT_SUCCESS)
        *(struct layout *)*layout = (struct layout){ type, rows, cols, ld, 0, 1 };
    return rc;
}

int cublasLtMatrixLayoutDestroy(void *layout)
{
    return gone(layout);
}

int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes)
{
    struct layout *l = layout;

    if (attribute == 5)
        return take(&l->count, sizeof(l->count), value, bytes);
    return attribute == 6 ? take(&l->offset, sizeof(l->offset), value, bytes) : INVALID;
}

int cublasLtMatmulPreferenceCreate(void **pref)
{
    int rc = made(pref, sizeof(struct pref));

    if (rc == LT_SUCCESS)
        *(struct pref *)*pref = (struct pref){ 0, 7, { 256, 256, 256, 256 } };
    return rc;
}

int cublasLtMatmulPreferenceDestroy(void *pref)
{
    return gone(pref);
}

int cublasLtMatmulPreferenceSetAttribute(void *pref, int attribute, const void *value, size_t bytes)
{
    struct pref *p = pref;

    if (attribute == 1)
        return take(&p->workspace, sizeof(p->workspace), value, bytes);
    if (attribute == 3)
        return take(&p->reduction, sizeof(p->reduction), value, bytes);
    return attribute >= 5 && attribute <= 8
               ? take(&p->align[attribute - 5], sizeof(p->align[0]), value, bytes)
               : INVALID;
}

/* The sizes of an [m, k] by [k, n] product; 0: they do not match. */
static int sizes(const struct desc *d, const struct layout *a, const struct layout *b,
                 const struct layout *c, uint64_t size[3])
{
    size[0] = d->op[0] ? a->cols : a->rows;
    size[1] = d->op[1] ? b->rows : b->cols;
    size[2] = d->op[0] ? a->rows : a->cols;
    return size[2] == (d->op[1] ? b->cols : b->rows) && c->rows == size[0] && c->cols == size[1] &&
           a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows && c->ld >= (int64_t)c->rows &&
           a->count == b->count && a->count == c->count;
}

/* The algorithm records the request: alignments, and whether there is a bias. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                   void *pref, int wanted, lt_found *found, int *ret_found)
{
    const struct desc *de = desc;
    const struct layout *la = a, *lb = b, *ld = d;
    const struct pref *p = pref;
    uint64_t size[3];

    if (!handle || wanted < 1 || c != d || !sizes(de, la, lb, ld, size) || de->compute != 68 ||
        de->scale != 0 || (p->reduction & 1u) || p->workspace == 0)
        return INVALID;
    if (la->type != lb->type || (la->type == LT_R_32F && ld->type != LT_R_32F) ||
        (de->epilogue != 1 && ld->type != la->type) || ld->count == 4) {
        *ret_found = 0;
        return NOT_SUPPORTED;
    }
    for (int i = 0; i < 4; i++)
        found->algo.data[i] = p->align[i];
    found->algo.data[4] = size[0];
    found->algo.data[5] = size[1];
    found->algo.data[6] = size[2];
    found->state = LT_SUCCESS;
    *ret_found = 1;
    return LT_SUCCESS;
}

static float get(const void *x, int type, int64_t i)
{
    uint16_t half;

    if (type == LT_R_32F)
        return ((const float *)x)[i];
    half = ((const uint16_t *)x)[i];
    return type == LT_R_16BF ? gpt_elem_of_bf16(half) : gpt_elem_of_fp16(half);
}

static void put(void *x, int type, int64_t i, float v)
{
    if (type == LT_R_32F)
        ((float *)x)[i] = v;
    else
        ((uint16_t *)x)[i] = type == LT_R_16BF ? gpt_elem_to_bf16(v) : gpt_elem_to_fp16(v);
}

/* Element (row, col) of op(X), for matrix i. */
static float at(const void *x, const struct layout *l, int32_t op, int32_t i, uint64_t row,
                uint64_t col)
{
    return get(x, l->type,
               i * l->offset + (int64_t)(op ? row : col) * l->ld + (int64_t)(op ? col : row));
}

int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const lt_algo *algo, void *workspace,
                   size_t workspace_bytes, void *stream)
{
    const struct desc *de = desc;
    const struct layout *la = a_layout, *lb = b_layout, *ld = d_layout;
    const void *const arrays[] = { a, b, c, d };
    uint64_t size[3];

    if (!handle || !workspace || !workspace_bytes || stream != (void *)77 || c_layout != d_layout ||
        !sizes(de, la, lb, ld, size))
        return INVALID;
    if (algo->data[4] != size[0] || algo->data[5] != size[1] || algo->data[6] != size[2])
        return INVALID;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)arrays[i] % algo->data[i] != 0)
            return INVALID;
    for (int32_t i = 0; i < la->count; i++)
        for (uint64_t r = 0; r < size[0]; r++)
            for (uint64_t col = 0; col < size[1]; col++) {
                int64_t to = i * ld->offset + (int64_t)col * ld->ld + (int64_t)r;
                float sum = 0.0f, v;

                for (uint64_t k = 0; k < size[2]; k++)
                    sum += at(a, la, de->op[0], i, r, k) * at(b, lb, de->op[1], i, k, col);
                v = *(const float *)alpha * sum;
                if (*(const float *)beta != 0.0f)
                    v += *(const float *)beta * get(c, ld->type, to);
                if (de->epilogue == LT_EPILOGUE_BIAS)
                    v += get(de->bias, ld->type, (int64_t)r);
                put(d, ld->type, to, v);
            }
    return LT_SUCCESS;
}
