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

/* Reads the word of `len` bytes. */
static int word_parse(const char *word, size_t len, uint64_t *ret, struct zb_err *err)
{
    char text[64];

    while (len > 0 && isblank((unsigned char)*word)) {
        word++;
        len--;
    }
    while (len > 0 && isblank((unsigned char)word[len - 1]))
        len--;
    (void)snprintf(text, sizeof(text), "%.*s", (int)(len < sizeof(text) ? len : sizeof(text)),
                   word);
    return zb_size_parse(text, ret, err);
}

int zb_sizes_parse(const char *text, uint64_t *ret, unsigned max, struct zb_err *err)
{
    unsigned n = 0;
    size_t len;

    for (const char *p = text;; p += len + 1) {
        int rc;

        if (n == max)
            return zb_fail(err, -EINVAL, "'%s': at most %u sizes", text, max);
        len = strcspn(p, ",");
        rc = word_parse(p, len, &ret[n++], err);
        if (rc < 0)
            return rc;
        if (p[len] == '\0')
            return (int)n;
    }
}

bool zb_sizes_text(const uint64_t *sizes, unsigned n, char *text, size_t size)
{
    unsigned same = 0;
    size_t used = 0;

    while (same < n && sizes[same] == sizes[0])
        same++;
    if (same == n && n > 1)
        n = 1;
    for (unsigned i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "," : "",
                                 zb_size_exact(sizes[i]).s);
    return used < size;
}

struct zb_size_text zb_size_exact(uint64_t bytes)
{
    struct zb_size_text t;
    int unit = 0;

    for (; bytes > 0 && bytes % 1024 == 0 && units[unit + 1]; unit++)
        bytes /= 1024;
    (void)snprintf(t.s, sizeof(t.s), "%llu%.*s", (unsigned long long)bytes, unit > 0, &units[unit]);
    return t;
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
