/*
 * test_lt.c - how lt.c describes products to cuBLASLt: compared with BLAS, with a fake cuBLASLt
 * that works on the processor, by the documentation (fake_lt.c).
 */
#include "tests/ztest.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "examples/gpt/dev/matmul.h"
#include "examples/gpt/model/elem.h"

#define STREAM ((void *)77)
#define ELEMS  8192u

struct arrays {
    _Alignas(256) unsigned char a[ELEMS * 4], b[ELEMS * 4], d[ELEMS * 4], bias[ELEMS * 4];
};

static uint32_t random_state;

static float drawn(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) * 0x1p-23f - 1.0f;
}

static void fill(unsigned char *at, enum gpt_dtype_dev dtype)
{
    for (size_t i = 0; i < ELEMS; i++) {
        float v = drawn();
        uint16_t half = dtype == GPT_DEV_FP16 ? gpt_elem_to_fp16(v) : gpt_elem_to_bf16(v);

        if (dtype == GPT_DEV_F32)
            memcpy(at + i * 4, &v, 4);
        else
            memcpy(at + i * 2, &half, 2);
    }
}

static void arrays_fill(struct arrays *x, const struct gpt_matmul *mm)
{
    random_state = 5;
    fill(x->a, mm->dtype);
    fill(x->b, mm->dtype);
    fill(x->d, mm->d_dtype);
    fill(x->bias, mm->d_dtype);
}

static float value(const unsigned char *at, enum gpt_dtype_dev dtype, size_t i)
{
    uint16_t half;
    float v;

    memcpy(&v, at + i * 4, dtype == GPT_DEV_F32 ? 4 : 0);
    memcpy(&half, at + i * 2, 2);
    return dtype == GPT_DEV_F32    ? v
           : dtype == GPT_DEV_BF16 ? gpt_elem_of_bf16(half)
                                   : gpt_elem_of_fp16(half);
}

static const struct row {
    const char *name;
    uint32_t m, n, k, batch;
    struct zk_lt_mat a, b, d;
    bool bias;
    float alpha, beta;
    uint32_t skip; /* elements at the start of all arrays, for worse alignments */
} rows[] = {
    { "plain", 5, 7, 3, 1, { .ld = 3 }, { .ld = 7 }, { .ld = 7 }, false, 1, 0, 0 },
    { "bias", 5, 8, 4, 1, { .ld = 4 }, { .ld = 8 }, { .ld = 8 }, true, 1, 0, 0 },
    { "bias, skewed", 5, 8, 4, 1, { .ld = 4 }, { .ld = 8 }, { .ld = 8 }, true, 1, 0, 2 },
    { "skewed", 5, 8, 4, 1, { .ld = 4 }, { .ld = 8 }, { .ld = 8 }, false, 1, 0, 1 },
    { "added", 5, 8, 4, 1, { .ld = 4 }, { .ld = 8 }, { .ld = 8 }, false, 0.5f, 2, 0 },
    { "a^T", 6, 5, 9, 1, { .ld = 6, .t = true }, { .ld = 5 }, { .ld = 5 }, false, 1, 1, 0 },
    { "b^T", 6, 5, 9, 1, { .ld = 9 }, { .ld = 9, .t = true }, { .ld = 5 }, false, 1, 0, 0 },
    { "both^T",
      6,
      5,
      9,
      1,
      { .ld = 7, .t = true },
      { .ld = 11, .t = true },
      { .ld = 6 },
      false,
      1,
      0,
      0 },
    { "heads: q k^T",
      8,
      8,
      4,
      3,
      { .ld = 36, .step = 4 },
      { .ld = 36, .step = 4, .t = true },
      { .ld = 8, .step = 64 },
      false,
      0.5f,
      0,
      0 },
    { "heads, of which it takes but one at a time",
      8,
      4,
      8,
      4,
      { .ld = 8, .step = 64 },
      { .ld = 48, .step = 4 },
      { .ld = 16, .step = 4 },
      false,
      1,
      2,
      0 },
    { "heads: p v",
      8,
      4,
      8,
      3,
      { .ld = 8, .step = 64 },
      { .ld = 36, .step = 4 },
      { .ld = 12, .step = 4 },
      false,
      1,
      0,
      0 },
    { "heads: p^T dy",
      8,
      4,
      8,
      3,
      { .ld = 8, .step = 64, .t = true },
      { .ld = 12, .step = 4 },
      { .ld = 36, .step = 4 },
      false,
      1,
      0,
      0 },
};

static struct gpt_matmul product(const struct row *r, struct arrays *x, enum gpt_dtype_dev dtype,
                                 enum gpt_dtype_dev d_dtype)
{
    size_t e = gpt_dev_bytes(dtype), de = gpt_dev_bytes(d_dtype);
    struct gpt_matmul mm = { .a = r->a,
                             .b = r->b,
                             .d = r->d,
                             .bias = r->bias ? x->bias + r->skip * de : NULL,
                             .dtype = dtype,
                             .d_dtype = d_dtype,
                             .alpha = r->alpha,
                             .beta = r->beta,
                             .m = r->m,
                             .n = r->n,
                             .k = r->k,
                             .batch = r->batch };

    mm.a.at = x->a + r->skip * e;
    mm.b.at = x->b + r->skip * e;
    mm.d.at = x->d + r->skip * de;
    return mm;
}

static void products_are_blas(void **state)
{
    static const enum gpt_dtype_dev dtypes[][2] = { { GPT_DEV_F32, GPT_DEV_F32 },
                                                    { GPT_DEV_BF16, GPT_DEV_BF16 },
                                                    { GPT_DEV_BF16, GPT_DEV_F32 },
                                                    { GPT_DEV_FP16, GPT_DEV_FP16 },
                                                    { GPT_DEV_FP16, GPT_DEV_F32 } };
    struct arrays *want = aligned_alloc(256, sizeof(*want));
    struct arrays *got = aligned_alloc(256, sizeof(*got));
    struct zk_lt *lt = NULL;
    struct zb_err err = { 0 };
    char workspace[8];

    (void)state;
    assert_true(want && got);
    if (zk_lt_open(&lt, &err) != 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ZB_COUNT(rows) * ZB_COUNT(dtypes); i++) {
        const struct row *r = &rows[i / ZB_COUNT(dtypes)];
        enum gpt_dtype_dev dtype = dtypes[i % ZB_COUNT(dtypes)][0];
        enum gpt_dtype_dev d_dtype = dtypes[i % ZB_COUNT(dtypes)][1];
        struct gpt_matmul host = product(r, want, dtype, d_dtype);
        struct gpt_matmul dev = product(r, got, dtype, d_dtype);
        struct zk_lt_product lt_product;

        if (r->bias && dtype != d_dtype)
            continue;
        for (int again = 0; again < 2; again++) { /* the second time with the kept plan */
            bool apart = again && r->beta != 0 && r->batch == 1; /* adds what is elsewhere */

            arrays_fill(want, &host);
            arrays_fill(got, &dev);
            assert_int_equal(gpt_matmul_host(&host), 0);
            lt_product = gpt_matmul_lt(&dev);
            if (apart) {
                memcpy(got->bias, got->d, sizeof(got->d));
                memset(got->d, 0xff, sizeof(got->d));
                lt_product.add = got->bias + r->skip * gpt_dev_bytes(d_dtype);
            }
            if (zk_lt_matmul(lt, &lt_product, workspace, STREAM, &err) != 0)
                fail_msg("%s: %s", r->name, err.text);
            for (size_t k = 0; k < (apart ? r->m * r->n : ELEMS); k++) {
                double a = (double)value(want->d, d_dtype, k);
                double b = (double)value(got->d, d_dtype, k);

                if (!(fabs(a - b) <= (d_dtype == GPT_DEV_F32 ? 1e-5 : 0x1p-7) * (fabs(a) + 0.1)))
                    fail_msg("%s, dtypes %d %d: element %zu is %g, not %g", r->name, (int)dtype,
                             (int)d_dtype, k, b, a);
            }
        }
    }
    zk_lt_close(lt);
    free(want);
    free(got);
}

/* The library does not support a bias of a dtype other than its product's. */
static void what_there_is_not_is_said(void **state)
{
    struct arrays *x = aligned_alloc(256, sizeof(*x));
    struct zk_lt_product mm;
    struct gpt_matmul of;
    struct zk_lt *lt = NULL;
    struct zb_err err = { 0 };
    char workspace[8];

    (void)state;
    assert_non_null(x);
    of = product(&rows[1], x, GPT_DEV_BF16, GPT_DEV_F32);
    mm = gpt_matmul_lt(&of);
    assert_int_equal(zk_lt_open(&lt, &err), 0);
    assert_int_equal(zk_lt_matmul(lt, &mm, workspace, STREAM, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "[5, 4] by [4, 8]"));
    assert_non_null(strstr(err.text, "not supported, says the test"));
    err = (struct zb_err){ 0 };
    of = product(&rows[1], x, GPT_DEV_F32, GPT_DEV_F32);
    mm = gpt_matmul_lt(&of);
    assert_int_equal(zk_lt_matmul(lt, &mm, workspace, (void *)1, &err), -EIO); /* its own error */
    zk_lt_close(lt);
    free(x);
}

static void nothing_is_left(void **state)
{
    void *library = dlopen(getenv("ZSHARD_CUBLASLT"), RTLD_NOW);
    int (*live)(void) = NULL;
    void *f = library ? dlsym(library, "fake_lt_live") : NULL;

    (void)state;
    assert_non_null(f);
    memcpy(&live, &f, sizeof(f));
    products_are_blas(NULL);
    what_there_is_not_is_said(NULL);
    assert_int_equal(live(), 0);
    assert_int_equal(dlclose(library), 0);
}

static void no_library_is_said(void **state)
{
    static const struct {
        const char *path, *says;
    } cases[] = { { "/nowhere/libcublasLt.so", "no cuBLASLt: /nowhere" },
                  { "libm.so.6", "it has no cublasLtCreate" } };
    char before[512];

    (void)state;
    (void)snprintf(before, sizeof(before), "%s", getenv("ZSHARD_CUBLASLT"));
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zk_lt *lt = NULL;
        struct zb_err err = { 0 };

        assert_int_equal(setenv("ZSHARD_CUBLASLT", cases[i].path, 1), 0);
        assert_int_equal(zk_lt_open(&lt, &err), -ENODEV);
        if (lt || !strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].path, err.text);
    }
    assert_int_equal(setenv("ZSHARD_CUBLASLT", before, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_blas),
        cmocka_unit_test(what_there_is_not_is_said),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(no_library_is_said),
    };

    if (setenv("ZSHARD_CUBLASLT", FAKE_LT, 1) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
