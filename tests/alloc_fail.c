#include "tests/alloc_fail.h"

#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

static _Thread_local struct {
    bool on;
    unsigned nth, times, count;
} state;

static bool all(void)
{
    return true;
}

bool (*alloc_counts)(void) = all;

void alloc_fail(unsigned nth, unsigned times)
{
    state.on = times > 0;
    state.nth = nth;
    state.times = times;
    state.count = 0;
}

bool alloc_failed(void)
{
    state.on = false;
    return state.times > 0 && state.count >= state.nth;
}

static bool fails(void)
{
    return state.on && alloc_counts() && ++state.count >= state.nth &&
           state.count - state.nth < state.times;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return fails() ? NULL : __real_realloc(p, bytes);
}
