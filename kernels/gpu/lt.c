/*
 * lt.c - matrix products by cuBLASLt.
 *
 * MODEL. cuBLASLt is column-major: what we call d [m, n] is its D [n, m], so its A is our b and its
 * B our a, and neither is copied. What is stored [rows, cols] with ld here is [cols, rows] with the
 * same ld there: a matrix that is not transposed for us is not for it.
 *
 *     ours    d [m, n] = op(a) [m, k]  op(b) [k, n]
 *     its     D [n, m] = op(B) [n, k]  op(A) [k, m]      B = b, A = a in its order of arguments
 *
 * PLANS. A shape with its dtypes, distances and alignments is a plan: descriptors, and the
 * algorithm that the heuristic puts first. Plans are made when first needed and kept; a model has a
 * few dozen. Only algorithms are asked for that write each sum once, or add up pieces in fp32 in
 * the workspace: not those that add up in place, in an order that we would have to trust. A batch
 * that the library has no way for is multiplied one by one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/gpu/lt_priv.h"
#include "kernels/lt.h"

#if defined(ZSHARD_CUBLASLT_HEADER)
#include <cublasLt.h>
_Static_assert(LT_SUCCESS == (int)CUBLAS_STATUS_SUCCESS, "");
_Static_assert(LT_R_32F == (int)CUDA_R_32F && LT_R_16BF == (int)CUDA_R_16BF &&
                   LT_R_16F == (int)CUDA_R_16F,
               "");
_Static_assert(LT_COMPUTE_32F == (int)CUBLAS_COMPUTE_32F, "");
_Static_assert(LT_OP_N == (int)CUBLAS_OP_N && LT_OP_T == (int)CUBLAS_OP_T, "");
_Static_assert(LT_DESC_TRANSA == (int)CUBLASLT_MATMUL_DESC_TRANSA, "");
_Static_assert(LT_DESC_TRANSB == (int)CUBLASLT_MATMUL_DESC_TRANSB, "");
_Static_assert(LT_DESC_EPILOGUE == (int)CUBLASLT_MATMUL_DESC_EPILOGUE, "");
_Static_assert(LT_DESC_BIAS_POINTER == (int)CUBLASLT_MATMUL_DESC_BIAS_POINTER, "");
_Static_assert(LT_EPILOGUE_BIAS == (int)CUBLASLT_EPILOGUE_BIAS, "");
_Static_assert(LT_LAYOUT_BATCH_COUNT == (int)CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, "");
_Static_assert(LT_LAYOUT_BATCH_OFFSET == (int)CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, "");
_Static_assert(LT_PREF_WORKSPACE == (int)CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, "");
_Static_assert(LT_PREF_REDUCTION == (int)CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, "");
_Static_assert(LT_PREF_ALIGN_A == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, "");
_Static_assert(LT_PREF_ALIGN_A + 3 == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, "");
_Static_assert(LT_REDUCTION_COMPUTE_TYPE == (int)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, "");
_Static_assert(sizeof(lt_algo) == sizeof(cublasLtMatmulAlgo_t), "");
_Static_assert(sizeof(lt_found) == sizeof(cublasLtMatmulHeuristicResult_t), "");
_Static_assert(offsetof(lt_found, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "");
#endif

#define ALIGN_MOST 256u

/* What an algorithm is chosen for. Compared as bytes. */
struct key {
    uint32_t m, n, k, batch;
    uint32_t dtype, d_dtype, flags;
    uint32_t align[4]; /* of a, b, d and what is added to it, and the bias */
    uint32_t zero;     /* no padding */
    uint64_t ld[3], step[3];
};

enum { FLAG_TA = 1, FLAG_TB = 2, FLAG_BIAS = 4, FLAG_BETA = 8 };

struct plan {
    struct plan *next;
    struct key key;
    void *desc, *a, *b, *d; /* a and b are ours */
    lt_algo algo;
    bool singly; /* there is no algorithm for the batch */
};

struct zk_lt {
    void *library, *handle;
    struct plan *plans;
#define LT_MEMBER(name, type, args) type(*name) args;
    LT_FUNCTIONS(LT_MEMBER)
};

static int lt_fail(const struct zk_lt *lt, int status, const char *what, struct zb_err *err)
{
    return status == LT_SUCCESS
               ? 0
               : zb_fail(err, -EIO, "cuBLASLt, %s: %s", what, lt->cublasLtGetStatusString(status));
}

/* ---- the library */

static void *library_load(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };
    const char *given = secure_getenv("ZSHARD_CUBLASLT");
    void *library = NULL;

    if (given && *given)
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < ZB_COUNT(names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static int library_open(struct zk_lt *lt, struct zb_err *err)
{
#define LT_ROW(name, type, args) { #name, &lt->name },
    const struct {
        const char *name;
        void *at;
    } rows[] = { LT_FUNCTIONS(LT_ROW) };

    lt->library = library_load();
    if (!lt->library)
        return zb_fail(err, -ENODEV, "no cuBLASLt: %s", dlerror());
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        void *f = dlsym(lt->library, rows[i].name);

        if (!f)
            return zb_fail(err, -ENODEV, "no cuBLASLt: it has no %s", rows[i].name);
        memcpy(rows[i].at, &f, sizeof(f));
    }
    return 0;
}

int zk_lt_open(struct zk_lt **ret, struct zb_err *err)
{
    struct zk_lt *lt = calloc(1, sizeof(*lt));
    int rc = lt ? library_open(lt, err) : zb_fail(err, -ENOMEM, "cuBLASLt: %m");

    if (rc == 0)
        rc = lt_fail(lt, lt->cublasLtCreate(&lt->handle), "a handle", err);
    if (rc == 0)
        *ret = lt;
    else
        zk_lt_close(lt);
    return rc;
}

static void plan_free(struct zk_lt *lt, struct plan *p)
{
    void *const layouts[] = { p->a, p->b, p->d };

    for (size_t i = 0; i < ZB_COUNT(layouts); i++)
        if (layouts[i])
            (void)lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    if (p->desc)
        (void)lt->cublasLtMatmulDescDestroy(p->desc);
    free(p);
}

void zk_lt_close(struct zk_lt *lt)
{
    if (!lt)
        return;
    while (lt->plans) {
        struct plan *p = lt->plans;

        lt->plans = p->next;
        plan_free(lt, p);
    }
    if (lt->handle)
        (void)lt->cublasLtDestroy(lt->handle);
    if (lt->library)
        (void)dlclose(lt->library);
    free(lt);
}

/* ---- plans */

static uint32_t align_of(const void *at)
{
    uintptr_t bits = (uintptr_t)at | ALIGN_MOST;

    return (uint32_t)(bits & -bits);
}

/* What beta multiplies: stored as d is. */
static const void *added(const struct zk_lt_product *mm)
{
    return mm->add ? mm->add : mm->d.at;
}

static struct key key_of(const struct zk_lt_product *mm)
{
    const struct zk_lt_mat *const mats[] = { &mm->a, &mm->b, &mm->d };
    struct key key;

    memset(&key, 0, sizeof(key));
    key.m = mm->m;
    key.n = mm->n;
    key.k = mm->k;
    key.batch = mm->batch;
    key.dtype = mm->dtype;
    key.d_dtype = mm->d_dtype;
    key.flags = (mm->a.t ? FLAG_TA : 0u) | (mm->b.t ? FLAG_TB : 0u) | (mm->bias ? FLAG_BIAS : 0u) |
                (mm->beta != 0.0f ? FLAG_BETA : 0u);
    for (size_t i = 0; i < ZB_COUNT(mats); i++) {
        key.align[i] = align_of(mats[i]->at);
        key.ld[i] = mats[i]->ld;
        key.step[i] = mm->batch > 1 ? mats[i]->step : 0;
    }
    key.align[2] = zb_min_u64(key.align[2], align_of(added(mm)));
    key.align[3] = mm->bias ? align_of(mm->bias) : 0;
    return key;
}

static int type_of(enum zb_dtype dtype)
{
    return dtype == ZB_F32 ? LT_R_32F : dtype == ZB_BF16 ? LT_R_16BF : LT_R_16F;
}

/* Of a matrix that is stored [rows, cols] here. */
static int layout_new(struct zk_lt *lt, void **ret, const struct zk_lt_mat *mat, uint64_t rows,
                      uint64_t cols, enum zb_dtype dtype, uint32_t batch)
{
    int32_t count = (int32_t)batch;
    int64_t offset = (int64_t)mat->step;
    int status = lt->cublasLtMatrixLayoutCreate(ret, type_of(dtype), cols, rows, (int64_t)mat->ld);

    if (status == LT_SUCCESS && batch > 1)
        status = lt->cublasLtMatrixLayoutSetAttribute(*ret, LT_LAYOUT_BATCH_COUNT, &count,
                                                      sizeof(count));
    if (status == LT_SUCCESS && batch > 1)
        status = lt->cublasLtMatrixLayoutSetAttribute(*ret, LT_LAYOUT_BATCH_OFFSET, &offset,
                                                      sizeof(offset));
    return status;
}

static int plan_describe(struct zk_lt *lt, struct plan *p, const struct zk_lt_product *mm)
{
    int32_t op_a = mm->b.t ? LT_OP_T : LT_OP_N; /* its A is our b */
    int32_t op_b = mm->a.t ? LT_OP_T : LT_OP_N;
    uint32_t epilogue = LT_EPILOGUE_BIAS;
    int status = lt->cublasLtMatmulDescCreate(&p->desc, LT_COMPUTE_32F, LT_R_32F);

    if (status == LT_SUCCESS)
        status = lt->cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSA, &op_a, sizeof(op_a));
    if (status == LT_SUCCESS)
        status = lt->cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSB, &op_b, sizeof(op_b));
    if (status == LT_SUCCESS && mm->bias)
        status = lt->cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_EPILOGUE, &epilogue,
                                                    sizeof(epilogue));
    if (status == LT_SUCCESS && mm->bias) /* the heuristic looks at its alignment */
        status = lt->cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_BIAS_POINTER, &mm->bias,
                                                    sizeof(mm->bias));
    if (status == LT_SUCCESS)
        status = layout_new(lt, &p->a, &mm->a, mm->a.t ? mm->k : mm->m, mm->a.t ? mm->m : mm->k,
                            mm->dtype, mm->batch);
    if (status == LT_SUCCESS)
        status = layout_new(lt, &p->b, &mm->b, mm->b.t ? mm->n : mm->k, mm->b.t ? mm->k : mm->n,
                            mm->dtype, mm->batch);
    if (status == LT_SUCCESS)
        status = layout_new(lt, &p->d, &mm->d, mm->m, mm->n, mm->d_dtype, mm->batch);
    return status;
}

static int pref_fill(struct zk_lt *lt, void *pref, const struct key *key)
{
    const uint64_t workspace = ZB_LT_WORKSPACE_BYTES;
    const uint32_t reduction = LT_REDUCTION_COMPUTE_TYPE;
    const uint32_t aligns[] = { key->align[1], key->align[0], key->align[2], key->align[2] };
    int status = lt->cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_WORKSPACE, &workspace,
                                                          sizeof(workspace));

    if (status == LT_SUCCESS)
        status = lt->cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_REDUCTION, &reduction,
                                                          sizeof(reduction));
    for (int i = 0; i < 4 && status == LT_SUCCESS; i++) /* its A, B, C, D */
        status = lt->cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_ALIGN_A + i, &aligns[i],
                                                          sizeof(aligns[i]));
    return status;
}

static int plan_choose(struct zk_lt *lt, struct plan *p, struct zb_err *err)
{
    const struct key *key = &p->key;
    lt_found found;
    void *pref = NULL;
    int n = 0, status;

    memset(&found, 0, sizeof(found));
    status = lt->cublasLtMatmulPreferenceCreate(&pref);
    if (status == LT_SUCCESS)
        status = pref_fill(lt, pref, key);
    if (status == LT_SUCCESS)
        status = lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, p->desc, p->b, p->a, p->d, p->d,
                                                    pref, 1, &found, &n);
    if (pref)
        (void)lt->cublasLtMatmulPreferenceDestroy(pref);
    if (status == LT_SUCCESS)
        status = n > 0 ? found.state : LT_SUCCESS;
    if (status != LT_SUCCESS || n == 0)
        return zb_fail(err, -ENOTSUP,
                       "cuBLASLt has no way to multiply [%u, %u] by [%u, %u] %u times (dtypes %u "
                       "and %u, alignments %u, %u, %u): %s",
                       key->m, key->k, key->k, key->n, key->batch, key->dtype, key->d_dtype,
                       key->align[0], key->align[1], key->align[2],
                       status ? lt->cublasLtGetStatusString(status) : "nothing found");
    p->algo = found.algo;
    return 0;
}

static int plan_get(struct zk_lt *lt, const struct zk_lt_product *mm, struct plan **ret,
                    struct zb_err *err)
{
    struct key key = key_of(mm);
    struct zb_err why = { 0 };
    struct plan *p;
    int rc;

    for (p = lt->plans; p; p = p->next)
        if (memcmp(&p->key, &key, sizeof(key)) == 0) {
            *ret = p;
            return 0;
        }
    p = calloc(1, sizeof(*p));
    if (!p)
        return zb_fail(err, -ENOMEM, "cuBLASLt: %m");
    p->key = key;
    rc = lt_fail(lt, plan_describe(lt, p, mm), "a description", err);
    if (rc == 0)
        rc = plan_choose(lt, p, &why);
    p->singly = rc == -ENOTSUP && mm->batch > 1;
    if (rc < 0 && !p->singly) {
        plan_free(lt, p);
        return why.code ? zb_fail(err, rc, "%s", why.text) : rc;
    }
    p->next = lt->plans;
    lt->plans = p;
    *ret = p;
    return 0;
}

static const void *mat_of(const struct zk_lt_mat *mat, uint32_t i, enum zb_dtype dtype)
{
    return (const char *)mat->at + i * mat->step * zb_dtype_bytes(dtype);
}

static int matmul_singly(struct zk_lt *lt, const struct zk_lt_product *mm, void *workspace,
                         void *stream, struct zb_err *err)
{
    struct zk_lt_product one = *mm;
    int rc = 0;

    one.batch = 1;
    for (uint32_t i = 0; i < mm->batch && rc == 0; i++) {
        one.a.at = mat_of(&mm->a, i, mm->dtype);
        one.b.at = mat_of(&mm->b, i, mm->dtype);
        one.d.at = mat_of(&mm->d, i, mm->d_dtype);
        one.add = mm->add ? (const char *)mm->add + i * mm->d.step * zb_dtype_bytes(mm->d_dtype)
                          : NULL;
        rc = zk_lt_matmul(lt, &one, workspace, stream, err);
    }
    return rc;
}

int zk_lt_matmul(struct zk_lt *lt, const struct zk_lt_product *mm, void *workspace, void *stream,
                 struct zb_err *err)
{
    struct plan *p = NULL;
    void *d = (void *)(uintptr_t)mm->d.at;
    int status = LT_SUCCESS, rc = plan_get(lt, mm, &p, err);

    if (rc < 0)
        return rc;
    if (p->singly)
        return matmul_singly(lt, mm, workspace, stream, err);
    if (mm->bias)
        status = lt->cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_BIAS_POINTER, &mm->bias,
                                                    sizeof(mm->bias));
    if (status == LT_SUCCESS)
        status = lt->cublasLtMatmul(lt->handle, p->desc, &mm->alpha, mm->b.at, p->b, mm->a.at, p->a,
                                    &mm->beta, added(mm), p->d, d, p->d, &p->algo, workspace,
                                    ZB_LT_WORKSPACE_BYTES, stream);
    return lt_fail(lt, status, "a product", err);
}
