/*
 * near.h - the known word that a mistyped one probably means.
 */
#ifndef ZB_NEAR_H
#define ZB_NEAR_H

#include <stddef.h>

#define ZB_NEAR_MAX 64u /* bytes of a word; longer ones are near to nothing */

/** A search. Begin with zb_near(), then try each known word; `found` is the best so far. */
struct zb_near {
    const char *word;
    size_t len;
    const char *found; /* NULL: none */
    unsigned edits;    /* from the word to `found` */
};

/** A search for a word of `len` bytes. */
struct zb_near zb_near(const char *word, size_t len);

/**
 * Tries a known word. It is near if few edits make it from the searched one: at most one for each
 * three letters begun, and three. An edit inserts, removes or replaces a letter, or swaps two that
 * follow each other. A known word that begins with the searched one is near too. '-' and '_' are
 * equal. Among equally near words the first is kept.
 */
void zb_near_try(struct zb_near *n, const char *known);

#endif
