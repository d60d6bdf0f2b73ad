/*
 * test_works.c - compares works of a GPU, done by the kernels for GPUs on the processor, with the
 * reference in kernels/gpu/work.c: pages with reduced moments, segments of all kinds, gradients
 * that are set and added, arrays of every dtype at any position.
 */
#include "tests/ztest.h"

#include "kernels/cuda/cuda_priv.h"
#include "tests/unit/kernels/works.h"

static void same_bits_as_ref(void **state)
{
    struct works x = { .mem = aligned_alloc(64, WORKS_BYTES), .seed = 5 };
    unsigned char *other = aligned_alloc(64, WORKS_BYTES);
    size_t count, done = 0;
    const struct zk_ops *ref = zk_all(&count)[0];
    bool none = false;

    (void)state;
    assert_true(x.mem && other);
    for (int round = 0; round < 3; round++)
        for (size_t n = 0; works_nth(&x, n, &none); n++) {
            struct zk_gpu_work moved = works_moved(&x, other);

            if (none)
                continue;
            assert_int_equal(zk_gpu_work_check(&x.work, NULL), 0);
            memcpy(other, x.mem, WORKS_BYTES);
            assert_int_equal(zk_gpu_work_run(ref, &x.work), 0);
            zk_cuda_host_run(&moved);
            works_compare(&x, other, x.mem);
            done++;
        }
    print_message("%zu works\n", done);
    assert_true(done > 3 * (135 + 12 + 60));
    free(x.mem);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_ref),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
