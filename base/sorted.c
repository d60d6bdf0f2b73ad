#include "base/sorted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

struct zb_sorted_pos zb_sorted_at(const struct zb_sorted *s, uint64_t key)
{
    struct zb_sorted_pos at = { 0 };
    const struct zb_sorted_chunk *c;

    zb_lower_bound(at.chunk, s->nchunks,
                   s->chunks[at.chunk]->items[s->chunks[at.chunk]->n - 1].key < key);
    if (at.chunk == s->nchunks)
        return at;
    c = s->chunks[at.chunk];
    zb_lower_bound(at.item, c->n, c->items[at.item].key < key);
    return at;
}

void *zb_sorted_get(const struct zb_sorted *s, struct zb_sorted_pos at)
{
    return at.chunk < s->nchunks ? s->chunks[at.chunk]->items[at.item].value : NULL;
}

void *zb_sorted_before(const struct zb_sorted *s, struct zb_sorted_pos at)
{
    const struct zb_sorted_chunk *c;

    if (at.item > 0)
        return s->chunks[at.chunk]->items[at.item - 1].value;
    if (at.chunk == 0)
        return NULL;
    c = s->chunks[at.chunk - 1];
    return c->items[c->n - 1].value;
}

struct zb_sorted_pos zb_sorted_next(const struct zb_sorted *s, struct zb_sorted_pos at)
{
    if (++at.item < s->chunks[at.chunk]->n)
        return at;
    return (struct zb_sorted_pos){ .chunk = at.chunk + 1 };
}

static int chunk_insert(struct zb_sorted *s, size_t at, struct zb_sorted_chunk **ret)
{
    struct zb_sorted_chunk *c;

    if (zb_grow(&s->chunks, &s->room, s->nchunks, 1) < 0)
        return -ENOMEM;
    c = malloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->n = 0;
    memmove(s->chunks + at + 1, s->chunks + at,
            (s->nchunks - at) * sizeof(struct zb_sorted_chunk *));
    s->chunks[at] = c;
    s->nchunks++;
    *ret = c;
    return 0;
}

/* Moves all items of a full chunk after the first `keep` to a new chunk. For keys that come in
 * ascending order only the last item moves, so that chunks stay full. */
static int chunk_split(struct zb_sorted *s, size_t at, uint32_t keep)
{
    struct zb_sorted_chunk *c = s->chunks[at], *upper;

    if (chunk_insert(s, at + 1, &upper) < 0)
        return -ENOMEM;
    upper->n = c->n - keep;
    memcpy(upper->items, c->items + keep, upper->n * sizeof(c->items[0]));
    c->n = keep;
    return 0;
}

int zb_sorted_put(struct zb_sorted *s, uint64_t key, void *value)
{
    struct zb_sorted_pos at = zb_sorted_at(s, key);
    struct zb_sorted_chunk *c;

    if (at.chunk < s->nchunks && s->chunks[at.chunk]->items[at.item].key == key)
        return -EEXIST;
    if (at.chunk == s->nchunks && s->nchunks > 0) { /* greater than all keys */
        at.chunk--;
        at.item = s->chunks[at.chunk]->n;
    }
    if (s->nchunks == 0 && chunk_insert(s, 0, &c) < 0)
        return -ENOMEM;
    if (s->chunks[at.chunk]->n == ZB_SORTED_CHUNK) {
        bool last = at.chunk + 1 == s->nchunks && at.item == ZB_SORTED_CHUNK;
        uint32_t keep = last ? ZB_SORTED_CHUNK - 1 : ZB_SORTED_CHUNK / 2;

        if (chunk_split(s, at.chunk, keep) < 0)
            return -ENOMEM;
        if (at.item > keep) {
            at.chunk++;
            at.item -= keep;
        }
    }
    c = s->chunks[at.chunk];
    memmove(c->items + at.item + 1, c->items + at.item, (c->n - at.item) * sizeof(c->items[0]));
    c->items[at.item] = (struct zb_sorted_item){ .key = key, .value = value };
    c->n++;
    s->n++;
    return 0;
}

void *zb_sorted_remove(struct zb_sorted *s, uint64_t key)
{
    struct zb_sorted_pos at = zb_sorted_at(s, key);
    struct zb_sorted_chunk *c;
    void *value;

    if (at.chunk == s->nchunks || s->chunks[at.chunk]->items[at.item].key != key)
        return NULL;
    c = s->chunks[at.chunk];
    value = c->items[at.item].value;
    c->n--;
    s->n--;
    memmove(c->items + at.item, c->items + at.item + 1, (c->n - at.item) * sizeof(c->items[0]));
    if (c->n > 0)
        return value;
    free(c);
    s->nchunks--;
    memmove(s->chunks + at.chunk, s->chunks + at.chunk + 1,
            (s->nchunks - at.chunk) * sizeof(struct zb_sorted_chunk *));
    return value;
}

void zb_sorted_done(struct zb_sorted *s)
{
    for (size_t i = 0; i < s->nchunks; i++)
        free(s->chunks[i]);
    free(s->chunks);
    *s = (struct zb_sorted){ 0 };
}
