/*
 * test_cast_all.c - all 2^32 patterns: split, merge and the casts to bf16 and fp16, in every
 * implementation, against their definitions. Minutes.
 */
#include "tests/ztest.h"

#include "tests/unit/kernels/cast_check.h"

static void every_pattern(void **state)
{
    static uint32_t patterns[CAST_N];

    (void)state;
    for (uint64_t first = 0; first <= UINT32_MAX; first += CAST_N) {
        for (size_t i = 0; i < CAST_N; i++)
            patterns[i] = (uint32_t)(first + i);
        cast_check(patterns, CAST_N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_pattern) };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
