/*
 * test_gpu_ortho.c - matrices orthogonalized on a GPU (kernels/gpu_ortho.h), on every device that opens.
 *
 * On the emulated device the bits are those of kernels/ortho.h. On CUDA the result is compared with
 * the iteration in double, and repeated: the same bits again.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/gpu_ortho.h"
#include "tests/unit/kernels/ortho_double.h"

static const struct shape {
    size_t rows, cols;
    bool large; /* for a GPU only: the reference takes seconds */
} shapes[] = {
    { 1, 1, false },     { 1, 7, false },    { 7, 1, false },    { 2, 2, false },
    { 31, 33, false },   { 33, 31, false },  { 64, 192, false }, { 192, 64, false },
    { 195, 200, false }, { 13, 260, false }, { 5000, 3, false }, { 257, 509, true },
    { 509, 257, true },  { 384, 384, true }, { 512, 768, true }, { 768, 512, true },
};

static const char *const devices[] = { "emulated", "cuda" };

struct fixture {
    const char *name;
    struct zk_gpu *gpu;
    struct zk_gpu_ortho *ortho;
    struct zb_err err;
};

static uint64_t most_bytes(void)
{
    uint64_t most = 0;

    for (size_t i = 0; i < ZB_COUNT(shapes); i++)
        most = zb_max_u64(most, zb_ortho_gpu_bytes(shapes[i].rows, shapes[i].cols, true));
    return most;
}

/* false: there is no such GPU here; a message says so. */
static bool fixture_open(struct fixture *x, const char *name)
{
    int rc;

    *x = (struct fixture){ .name = name };
    rc = zk_gpu_open(name, 0, &x->gpu, &x->err);
    if (rc == 0)
        rc = zk_gpu_ortho_open(x->gpu, most_bytes(), 0, &x->ortho, &x->err);
    if (rc == -ENODEV && ztest_device_optional(name)) {
        print_message("%s is skipped: %s\n", name, x->err.text);
        zk_gpu_close(x->gpu);
        return false;
    }
    if (rc != 0)
        fail_msg("%s: %s", name, x->err.text);
    return true;
}

static void fixture_close(struct fixture *x)
{
    zk_gpu_ortho_close(x->ortho);
    zk_gpu_close(x->gpu);
}

static bool emulated(const struct fixture *x)
{
    return strcmp(zk_gpu_info(x->gpu)->backend, "emulated") == 0;
}

static float *ortho(struct fixture *x, const struct zk_ortho_how *how, const float *matrix,
                    const struct shape *s)
{
    float *got = floats(s->rows * s->cols);

    memcpy(got, matrix, s->rows * s->cols * sizeof(*got));
    if (zk_gpu_ortho(x->ortho, how, got, s->rows, s->cols, &x->err) != 0)
        fail_msg("%s: %zu x %zu: %s", x->name, s->rows, s->cols, x->err.text);
    return got;
}

static float *ortho_cpu(const struct zk_ortho_how *how, const float *matrix, const struct shape *s)
{
    float *got = floats(s->rows * s->cols);
    void *scratch = floats(zb_ortho_bytes(s->rows, s->cols) / sizeof(float));
    const struct zk_ops *ops;

    assert_int_equal(zk_select(NULL, &ops, NULL), 0);
    memcpy(got, matrix, s->rows * s->cols * sizeof(*got));
    zk_ortho(ops, how, got, s->rows, s->cols, scratch);
    free(scratch);
    return got;
}

static void check_double(const struct fixture *x, const float *got, const float *matrix,
                         const struct shape *s)
{
    size_t n = s->rows * s->cols;
    double *want = doubles(n), worst = 0;

    reference(matrix, s->rows, s->cols, want);
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)got[i] - want[i]));
    if (!(worst <= 1e-4 * rms(want, n)))
        fail_msg("%s: %zu x %zu: %g off, and the rms is %g", x->name, s->rows, s->cols, worst,
                 rms(want, n));
    free(want);
}

/* Full rank in fp32: on the emulated device the bits of ortho.h, on any near the iteration in double. */
static void as_on_the_processor(void **state)
{
    static const double sizes[] = { 1, 1e-5, 1e15 };
    struct fixture x;

    (void)state;
    for (size_t d = 0; d < ZB_COUNT(devices); d++) {
        if (!fixture_open(&x, devices[d]))
            continue;
        for (size_t i = 0; i < ZB_COUNT(shapes); i++) {
            const struct shape *s = &shapes[i];
            float *matrix, *got, *want;

            if (emulated(&x) && s->large)
                continue;
            matrix = floats(s->rows * s->cols);
            draw(matrix, s->rows * s->cols, sizes[i % 3]);
            got = ortho(&x, &zk_ortho_muon, matrix, s);
            check_double(&x, got, matrix, s);
            want = ortho_cpu(&zk_ortho_muon, matrix, s);
            if (emulated(&x) && memcmp(got, want, s->rows * s->cols * sizeof(*got)) != 0)
                fail_msg("%zu x %zu differs from the processor's", s->rows, s->cols);
            free(got);
            free(want);
            free(matrix);
        }
        fixture_close(&x);
    }
}

/* With bf16 every value is one. On the emulated device the bits are those of ortho.h, elsewhere near them: a
 * sum in another order may be rounded to the next bf16. */
static void in_bf16(void **state)
{
    struct zk_ortho_how how = zk_ortho_muon;
    struct fixture x;

    (void)state;
    how.bf16 = true;
    for (size_t d = 0; d < ZB_COUNT(devices); d++) {
        if (!fixture_open(&x, devices[d]))
            continue;
        for (size_t i = 0; i < ZB_COUNT(shapes); i++) {
            const struct shape *s = &shapes[i];
            size_t n = s->rows * s->cols;
            float *matrix, *got, *want;
            double off = 0, all = 0;

            if (s->large)
                continue;
            matrix = floats(n);
            draw(matrix, n, 1);
            got = ortho(&x, &how, matrix, s);
            want = ortho_cpu(&how, matrix, s);
            for (size_t k = 0; k < n; k++) {
                uint32_t bits;

                memcpy(&bits, &got[k], sizeof(bits));
                assert_int_equal(bits & 0xffff, 0);
                off += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
                all += (double)want[k] * (double)want[k];
            }
            if (emulated(&x) ? off > 0 : !(sqrt(off) <= 0.05 * sqrt(all)))
                fail_msg("%s: %zu x %zu in bf16: %g off of %g", x.name, s->rows, s->cols, sqrt(off),
                         sqrt(all));
            free(got);
            free(want);
            free(matrix);
        }
        fixture_close(&x);
    }
}

/* Again, by the same object and by another, with other matrices in between. */
static void the_same_again(void **state)
{
    struct zk_ortho_how how = zk_ortho_muon;
    struct fixture x, y;

    (void)state;
    for (size_t d = 0; d < ZB_COUNT(devices); d++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            how.bf16 = bf16 != 0;
            if (!fixture_open(&x, devices[d]))
                continue;
            assert_true(fixture_open(&y, devices[d]));
            for (size_t i = 0; i < ZB_COUNT(shapes); i++) {
                const struct shape *s = &shapes[i], *between = &shapes[i > 0 ? i - 1 : 0];
                size_t n = s->rows * s->cols;
                float *matrix = floats(zb_max_u64(n, between->rows * between->cols)), *got[3];

                if (!(emulated(&x) && s->large)) {
                    draw(matrix, n, 1);
                    got[0] = ortho(&x, &how, matrix, s);
                    got[2] = ortho(&y, &how, matrix, s);
                    draw(matrix, between->rows * between->cols, 1);
                    free(ortho(&x, &how, matrix, between));
                    draw(matrix, n, 1);
                    got[1] = ortho(&x, &how, matrix, s);
                    assert_memory_equal(got[0], got[1], n * sizeof(float));
                    assert_memory_equal(got[0], got[2], n * sizeof(float));
                    for (int k = 0; k < 3; k++)
                        free(got[k]);
                }
                free(matrix);
            }
            fixture_close(&x);
            fixture_close(&y);
        }
}

/* Zeros stay zeros; what is below eps is not made larger than eps allows; one infinity spoils its matrix. */
static void at_the_ends(void **state)
{
    static const struct shape s = { 9, 5, false };
    float matrix[9 * 5] = { 0 }, *got;
    struct fixture x;

    (void)state;
    for (size_t d = 0; d < ZB_COUNT(devices); d++) {
        if (!fixture_open(&x, devices[d]))
            continue;
        memset(matrix, 0, sizeof(matrix));
        got = ortho(&x, &zk_ortho_muon, matrix, &s);
        for (size_t i = 0; i < ZB_COUNT(matrix); i++)
            assert_true(got[i] == 0);
        free(got);
        matrix[7] = 1e-20f;
        got = ortho(&x, &zk_ortho_muon, matrix, &s);
        for (size_t i = 0; i < ZB_COUNT(matrix); i++)
            assert_true(i == 7 ? got[i] > 0 && got[i] < 1e-10f : got[i] == 0);
        free(got);
        matrix[8] = (float)INFINITY;
        got = ortho(&x, &zk_ortho_muon, matrix, &s);
        for (size_t i = 0; i < ZB_COUNT(matrix); i++)
            assert_true(isnan(got[i]));
        free(got);
        fixture_close(&x);
    }
}

/* The device fails at each of its works: the error is the device's, nothing hangs, all is freed. */
static void each_work_fails(void **state)
{
    static const struct shape s = { 24, 40, false };
    struct zk_ortho_how how = zk_ortho_muon;
    bool over = false;
    unsigned works = 0;

    (void)state;
    how.bf16 = true;
    while (!over) {
        struct fixture x = { 0 };
        char name[64];
        float *matrix = floats(s.rows * s.cols);
        int rc;

        (void)snprintf(name, sizeof(name), "emulated:64M:0:%u", ++works);
        assert_int_equal(zk_gpu_open(name, 0, &x.gpu, &x.err), 0);
        draw(matrix, s.rows * s.cols, 1);
        rc =
            zk_gpu_ortho_open(x.gpu, zb_ortho_gpu_bytes(s.rows, s.cols, true), 0, &x.ortho, &x.err);
        if (rc < 0)
            assert_int_equal(rc, -ENOSPC);
        else
            rc = zk_gpu_ortho(x.ortho, &how, matrix, s.rows, s.cols, &x.err);
        over = rc == 0;
        assert_true(over || rc == -ENOSPC || rc == -EIO);
        assert_true(over == (x.err.code == 0));
        fixture_close(&x);
        free(matrix);
    }
    assert_true(works > 40);
}

static void no_room(void **state)
{
    struct fixture x = { 0 };

    (void)state;
    assert_int_equal(zk_gpu_open("emulated:32M", 0, &x.gpu, &x.err), 0);
    assert_int_equal(
        zk_gpu_ortho_open(x.gpu, zb_ortho_gpu_bytes(24, 40, false), 0, &x.ortho, &x.err), -ENOSPC);
    assert_null(x.ortho);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_on_the_processor), cmocka_unit_test(in_bf16),
        cmocka_unit_test(the_same_again),      cmocka_unit_test(at_the_ends),
        cmocka_unit_test(each_work_fails),     cmocka_unit_test(no_room),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
