#include "base/near.h"

#include <stdbool.h>
#include <string.h>

#define EDITS_MAX    3u
#define PREFIX_LEAST 3u /* a shorter word is the beginning of too many */
#define PREFIX_EDITS 2u /* what a word that was cut counts as */

struct zb_near zb_near(const char *word, size_t len)
{
    return (struct zb_near){ .word = word, .len = len };
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static bool same(char a, char b)
{
    return a == b || (a == '-' && b == '_') || (a == '_' && b == '-');
}

static bool begins(const char *known, const char *word, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!same(known[i], word[i])) /* also at the end of known */
            return false;
    return true;
}

/** Edits from a[n] to b[m], both at most ZB_NEAR_MAX long. */
static unsigned edits(const char *a, size_t n, const char *b, size_t m)
{
    unsigned rows[3][ZB_NEAR_MAX + 1]; /* the last two rows of the table, and this one */

    for (size_t k = 0; k <= m; k++)
        rows[0][k] = (unsigned)k;
    for (size_t i = 1; i <= n; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];

        row[0] = (unsigned)i;
        for (size_t k = 1; k <= m; k++) {
            row[k] = above[k - 1] + !same(a[i - 1], b[k - 1]);
            row[k] = least(row[k], least(above[k], row[k - 1]) + 1);
            if (i > 1 && k > 1 && same(a[i - 1], b[k - 2]) && same(a[i - 2], b[k - 1]))
                row[k] = least(row[k], above2[k - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

void zb_near_try(struct zb_near *n, const char *known)
{
    size_t len = strlen(known);
    unsigned most = least((unsigned)(n->len + 2) / 3, EDITS_MAX), found;

    if (n->len == 0 || n->len > ZB_NEAR_MAX || len > ZB_NEAR_MAX)
        return;
    found = edits(n->word, n->len, known, len);
    if (n->len >= PREFIX_LEAST && begins(known, n->word, n->len))
        found = least(found, PREFIX_EDITS);
    else if (found > most || found >= n->len) /* nothing of the word would be left */
        return;
    if (n->found && n->edits <= found)
        return;
    n->found = known;
    n->edits = found;
}
