/*
 * size.h - sizes as people write them: 512M, 1.5G. Powers of 1024 throughout.
 */
#ifndef ZB_SIZE_H
#define ZB_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/**
 * Reads a decimal number with an optional unit: B, K, M, G, T or P, upper or lower case, then
 * optionally "iB" ("64MiB"). A fraction is rounded down to whole bytes.
 *
 * @return 0; -EINVAL not a size, -ERANGE above 2^63 - 1: *ret is unchanged, err has the text
 */
int zb_size_parse(const char *text, uint64_t *ret, struct zb_err *err);

/**
 * Reads sizes that are separated by commas, with blanks around them or not.
 *
 * @return their number, 1 to `max`; -EINVAL, -ERANGE: ret is undefined, err has the text
 */
int zb_sizes_parse(const char *text, uint64_t *ret, unsigned max, struct zb_err *err);

/** Writes them as zb_sizes_parse() reads them: "40G,512M,4097". One for all, if they are equal. False: the
 * text was cut to `size` bytes. */
bool zb_sizes_text(const uint64_t *sizes, unsigned n, char *text, size_t size);

struct zb_size_text {
    char s[24];
};

/** Formats a size without rounding, as zb_size_parse() reads it: "512M", "4097". */
struct zb_size_text zb_size_exact(uint64_t bytes);

/** "1.50 GiB", "12 B": for people; three significant digits, exact below 1 KiB. */
struct zb_size_text zb_size_text(uint64_t bytes);

#endif
