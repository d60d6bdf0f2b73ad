/*
 * size.h - sizes as people write them: 512M, 1.5G. Powers of 1024 throughout.
 */
#ifndef ZB_SIZE_H
#define ZB_SIZE_H

#include <stdint.h>

#include "base/err.h"

/**
 * Reads a decimal number with an optional unit: B, K, M, G, T or P, upper or lower case, then
 * optionally "iB" ("64MiB"). A fraction is rounded down to whole bytes.
 *
 * @return 0; -EINVAL not a size, -ERANGE above 2^63 - 1: *ret is unchanged, err has the text
 */
int zb_size_parse(const char *text, uint64_t *ret, struct zb_err *err);

struct zb_size_text {
    char s[24];
};

/** "1.50 GiB", "12 B": for people; three significant digits, exact below 1 KiB. */
struct zb_size_text zb_size_text(uint64_t bytes);

#endif
