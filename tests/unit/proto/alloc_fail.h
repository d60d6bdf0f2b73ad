/*
 * alloc_fail.h - the nth allocation of our own code fails. For programs that are linked with
 * --wrap=malloc, --wrap=calloc and --wrap=realloc; included by one file of each.
 */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

static _Thread_local unsigned alloc_left; /* allocations of this thread until one fails; 0: off */

/** The nth allocation of this thread from here on fails, and those behind it do not. */
static inline void alloc_fail_at(unsigned nth)
{
    alloc_left = nth;
}

/** Turns it off: did an allocation fail? */
static inline bool alloc_failed(void)
{
    bool failed = alloc_left == 0;

    alloc_left = 0;
    return failed;
}

static inline bool alloc_fails_now(void)
{
    return alloc_left > 0 && --alloc_left == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return alloc_fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return alloc_fails_now() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return alloc_fails_now() ? NULL : __real_realloc(p, bytes);
}

#endif
