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
