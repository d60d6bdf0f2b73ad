/*
 * alloc_fail.h - allocations that fail on request, for programs that link the library alloc_fail: it
 * wraps malloc, calloc and realloc. What is asked for holds for the thread that asks.
 */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stdbool.h>

/** Which allocations are counted: all, unless a test says otherwise. */
extern bool (*alloc_counts)(void);

/** From here on, the nth allocation fails (1: the next), and those after it, `times` in all. times
 *  0: none does. */
void alloc_fail(unsigned nth, unsigned times);

/** Turns it off: whether one has failed since alloc_fail(). */
bool alloc_failed(void);

#endif
