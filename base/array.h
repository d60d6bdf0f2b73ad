/*
 * array.h - growing arrays, and binary search in sorted ones.
 */
#ifndef ZB_ARRAY_H
#define ZB_ARRAY_H

#include <stddef.h>

/**
 * Makes room for `more` elements after the first n of an array. The room at least doubles, so
 * appending one at a time is cheap. New elements are not initialized.
 *
 * @param array  address of the pointer, whatever its type: NULL, or from malloc()
 * @param room   elements allocated; 0 for NULL
 * @return 0, or -ENOMEM: array and room are unchanged
 */
#define zb_grow(array, room, n, more) zb_grow_bytes((array), (room), (n), (more), sizeof(**(array)))

/** zb_grow() for elements of `each` bytes, if the size is known only at run time. */
int zb_grow_bytes(void *array, size_t *room, size_t n, size_t more, size_t each);

/**
 * Sets the variable `at` to the first index below n for which `below`, an expression in which `at`
 * is the index, is false; or to n. `below` must be true for a prefix of the elements and false for
 * the rest:
 *
 *     zb_lower_bound(at, nrows, rows[at].id < id);
 */
#define zb_lower_bound(at, n, below)          \
    do {                                      \
        size_t low_ = 0, high_ = (n);         \
                                              \
        while (low_ < high_) {                \
            (at) = low_ + (high_ - low_) / 2; \
            if (below)                        \
                low_ = (at) + 1;              \
            else                              \
                high_ = (at);                 \
        }                                     \
        (at) = low_;                          \
    } while (0)

#endif
