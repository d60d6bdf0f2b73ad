/*
 * test_cast_all.c - compares split, merge and the casts to bf16 and fp16, in every implementation,
 * with their definitions, for all 2^32 patterns. Takes minutes. In an emulator, only every
 * CAST_STEP-th pattern is tried (an odd number, so that every value of the low 16 bits occurs with
 * many of the high ones).
 */
#include "tests/ztest.h"

#include "tests/unit/kernels/cast_check.h"

#ifndef CAST_STEP
#define CAST_STEP 1
#endif

static void every_pattern(void **state)
{
    static uint32_t patterns[CAST_N];

    (void)state;
    for (uint64_t first = 0; first <= UINT32_MAX; first += (uint64_t)CAST_N * CAST_STEP) {
        for (size_t i = 0; i < CAST_N; i++)
            patterns[i] = (uint32_t)(first + i * CAST_STEP);
        cast_check(patterns, CAST_N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_pattern) };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
