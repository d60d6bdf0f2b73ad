/*
 * alloc_fail.h - allocations that fail on request, for programs that link the library alloc_fail,
 * which wraps malloc, calloc and realloc. The settings belong to the calling thread.
 */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stdbool.h>

/** Which allocations are counted: by default all. */
extern bool (*alloc_counts)(void);

/** From here on, the nth allocation (1: the next one) and those after it fail, `times` in all.
 * times 0: none fails. */
void alloc_fail(unsigned nth, unsigned times);

/** Turns failures off. Returns whether an allocation has failed since alloc_fail(). */
bool alloc_failed(void);

#endif
