/*
 * ztest.h - included first by every cmocka program.
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

/** The stride of a campaign through its cases: 1 runs all. `sparse` is used with a sanitizer
 * outside the nightly run: most cases use memory alike, and all of them run in the release
 * build. */
static inline unsigned ztest_stride(unsigned sparse)
{
    const char *text = getenv("ZSHARD_SANITIZE");

    return text && text[0] != 0 && !ztest_is_long() ? sparse : 1;
}

/** Where tests make their files: $TMPDIR if it is short enough for the names of sockets, or /tmp. */
static inline const char *ztest_folder(void)
{
    const char *text = getenv("TMPDIR");

    return text && text[0] == '/' && strlen(text) < 32 ? text : "/tmp";
}

#ifndef ZTEST_CROSS_CMOCKA_H
/** CMOCKA_TEST_FILTER='reader_*' runs only the cases that match. */
static void __attribute__((constructor)) ztest_filter(void)
{
    const char *pattern = getenv("CMOCKA_TEST_FILTER");

    if (pattern && pattern[0] != 0)
        cmocka_set_test_filter(pattern);
}
#endif

/** Skips the running test with a reason, which tests/report.py prints. */
#define ztest_skip(...) (print_message("skipped: " __VA_ARGS__), print_message("\n"), skip())

/** A small generator (splitmix64) for tests that draw values. The seed is written in the test. */
static inline uint64_t ztest_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/** Whether a test that runs on every device may go on when this one does not open: true for "cuda",
 * unless ZSHARD_GPU says that there is one (tests/gpu.sh). */
static inline bool ztest_device_optional(const char *name)
{
    const char *there = getenv("ZSHARD_GPU");

    return strncmp(name, "cuda", 4) == 0 && !(there && strcmp(there, "cuda") == 0);
}

#endif
