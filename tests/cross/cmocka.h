/*
 * cmocka.h - the part of cmocka that the tests of the kernels use, for cross builds, where cmocka
 * is not available for the target. The first failure ends the program.
 */
#ifndef ZTEST_CROSS_CMOCKA_H
#define ZTEST_CROSS_CMOCKA_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f) \
    {                       \
#f, f               \
    }
#define cmocka_run_group_tests(tests, setup, teardown) \
    cross_run(tests, sizeof(tests) / sizeof((tests)[0]))

static inline int cross_run(const struct CMUnitTest *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;

        (void)fprintf(stderr, "[ RUN      ] %s\n", tests[i].name);
        tests[i].run(&state);
    }
    (void)fprintf(stderr, "[  PASSED  ] %zu test(s).\n", n);
    return 0;
}

static inline __attribute__((format(printf, 1, 2))) void print_message(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
}

static inline __attribute__((noreturn, format(printf, 3, 4))) void cross_fail(const char *file,
                                                                              int line,
                                                                              const char *fmt, ...)
{
    va_list args;

    (void)fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(EXIT_FAILURE);
}

#define fail_msg(...) cross_fail(__FILE__, __LINE__, __VA_ARGS__)
#define cross_assert(condition, text) \
    ((condition) ? (void)0 : cross_fail(__FILE__, __LINE__, "%s", text))

#define assert_true(x)               cross_assert(x, #x)
#define assert_false(x)              cross_assert(!(x), "not " #x)
#define assert_null(x)               cross_assert((x) == NULL, #x " is NULL")
#define assert_non_null(x)           cross_assert((x) != NULL, #x " is not NULL")
#define assert_ptr_equal(a, b)       cross_assert((const void *)(a) == (const void *)(b), #a " is " #b)
#define assert_int_equal(a, b)       cross_assert((uintmax_t)(a) == (uintmax_t)(b), #a " is " #b)
#define assert_string_equal(a, b)    cross_assert(strcmp(a, b) == 0, #a " is " #b)
#define assert_memory_equal(a, b, n) cross_assert(memcmp(a, b, n) == 0, #a " is " #b)

#endif
