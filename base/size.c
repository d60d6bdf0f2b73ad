#include "base/size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char units[] = "BKMGTP";

/* The unit's power of 1024, or -1: "", "B", "K", "KiB", "kib" ... */
static int size_unit(const char *s)
{
    const char *u;

    if (*s == '\0')
        return 0;
    u = strchr(units, toupper((unsigned char)*s));
    if (!u || *u == '\0')
        return -1;
    if (s[1] == '\0' || (u != units && tolower((unsigned char)s[1]) == 'i' &&
                         toupper((unsigned char)s[2]) == 'B' && s[3] == '\0'))
        return (int)(u - units);
    return -1;
}

int zb_size_parse(const char *text, uint64_t *ret, struct zb_err *err)
{
    const char *p = text;
    unsigned __int128 whole = 0, part = 0, part_of = 1, bytes;
    int unit;

    if (!isdigit((unsigned char)*p))
        goto invalid;
    for (; isdigit((unsigned char)*p); p++) {
        whole = whole * 10 + (unsigned)(*p - '0');
        if (whole > INT64_MAX)
            goto range;
    }
    if (*p == '.') {
        if (!isdigit((unsigned char)*++p))
            goto invalid;
        for (; isdigit((unsigned char)*p); p++)
            if (part_of < UINT64_C(1000000000000)) { /* further digits are less than a byte */
                part = part * 10 + (unsigned)(*p - '0');
                part_of *= 10;
            }
    }
    unit = size_unit(p);
    if (unit < 0)
        goto invalid;
    bytes = (whole << (10 * unit)) + ((part << (10 * unit)) / part_of);
    if (bytes > INT64_MAX)
        goto range;
    *ret = (uint64_t)bytes;
    return 0;
invalid:
    return zb_fail(err, -EINVAL,
                   "'%s' is not a size: write a number and B, K, M, G or T, as in 1.5G", text);
range:
    return zb_fail(err, -ERANGE, "'%s' is too large for a size", text);
}

struct zb_size_text zb_size_text(uint64_t bytes)
{
    struct zb_size_text t;
    double value = (double)bytes;
    int unit = 0;

    for (; value >= 1024 && units[unit + 1]; unit++)
        value /= 1024;
    if (unit == 0)
        (void)snprintf(t.s, sizeof(t.s), "%llu B", (unsigned long long)bytes);
    else
        (void)snprintf(t.s, sizeof(t.s), "%.*f %ciB",
                       value < 10    ? 2
                       : value < 100 ? 1
                                     : 0,
                       value, units[unit]);
    return t;
}
