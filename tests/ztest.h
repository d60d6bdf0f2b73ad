/*
 * ztest.h - what every cmocka program includes first.
 */
#ifndef ZTEST_H
#define ZTEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/** Whether this is the nightly run, in which campaigns leave nothing out (tests/run.sh). */
static inline bool ztest_is_long(void)
{
    const char *text = getenv("ZSHARD_LONG");

    return text && text[0] != 0;
}

/** How far apart the cases of a campaign are that it runs: 1 is all of them, and `sparse` is for a
 * sanitizer outside the nightly run. Most cases use memory alike, and all run in the release build. */
static inline unsigned ztest_stride(unsigned sparse)
{
    const char *text = getenv("ZSHARD_SANITIZE");

    return text && text[0] != 0 && !ztest_is_long() ? sparse : 1;
}

#ifndef ZTEST_CROSS_CMOCKA_H
/** CMOCKA_TEST_FILTER='reader_*' runs the cases of that name alone. */
static void __attribute__((constructor)) ztest_filter(void)
{
    const char *pattern = getenv("CMOCKA_TEST_FILTER");

    if (pattern && pattern[0] != 0)
        cmocka_set_test_filter(pattern);
}
#endif

/** Skips the running test, and says why: tests/report.py prints the reason. */
#define ztest_skip(...) (print_message("skipped: " __VA_ARGS__), print_message("\n"), skip())

/** A small generator (splitmix64) for tests that draw values: the seed stands in the test. */
static inline uint64_t ztest_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/** Whether a test that runs on every device goes on without this one where it does not open:
 * "cuda", unless ZSHARD_GPU says that it is there (tests/gpu.sh). */
static inline bool ztest_device_optional(const char *name)
{
    const char *there = getenv("ZSHARD_GPU");

    return strncmp(name, "cuda", 4) == 0 && !(there && strcmp(there, "cuda") == 0);
}

#endif
