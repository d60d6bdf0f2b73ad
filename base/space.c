#include "base/space.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/util.h"

struct zb_space {
    uint64_t units;
    uint64_t free_units;
    uint64_t next;   /* where the next search begins */
    uint64_t *taken; /* one bit per unit; bits past the end are set */
    uint64_t *clean; /* the same, of units that are not stale; NULL: not tracked */
};

int zb_space_new(struct zb_space **ret, uint64_t units)
{
    struct zb_space *s = calloc(1, sizeof(*s));
    uint64_t words = zb_div_up(units, 64);

    assert(units <= UINT64_C(1) << 40);
    if (s)
        s->taken = calloc(zb_max_u64(words, 1), sizeof(*s->taken));
    if (!s || !s->taken) {
        free(s);
        return -ENOMEM;
    }
    s->units = s->free_units = units;
    if (units % 64 != 0)
        s->taken[words - 1] = ~UINT64_C(0) << (units % 64);
    *ret = s;
    return 0;
}

void zb_space_free(struct zb_space *s)
{
    if (s) {
        free(s->taken);
        free(s->clean);
    }
    free(s);
}

static bool space_get(const struct zb_space *s, uint64_t i)
{
    return s->taken[i / 64] >> (i % 64) & 1;
}

/* The first unit at or after i, and before end, whose bit equals `taken`; else end. */
static uint64_t space_find(const struct zb_space *s, uint64_t i, uint64_t end, bool taken)
{
    while (i < end) {
        uint64_t word = taken ? s->taken[i / 64] : ~s->taken[i / 64];

        word &= ~UINT64_C(0) << (i % 64);
        if (word != 0)
            return zb_min_u64(end, i / 64 * 64 + (uint64_t)__builtin_ctzll(word));
        i = (i / 64 + 1) * 64;
    }
    return end;
}

static void space_mark(uint64_t *bits, uint64_t first, uint64_t count, bool set)
{
    for (uint64_t i = first, end = first + count; i < end;) {
        uint64_t in_word = zb_min_u64(end - i, 64 - i % 64);
        uint64_t mask = (in_word == 64 ? ~UINT64_C(0) : (UINT64_C(1) << in_word) - 1) << (i % 64);

        if (set)
            bits[i / 64] |= mask;
        else
            bits[i / 64] &= ~mask;
        i += in_word;
    }
}

/* The first gap of `count` units that begins in [from, to). */
static bool space_gap(const struct zb_space *s, uint64_t from, uint64_t to, uint64_t count,
                      uint64_t *ret)
{
    while (from < to) {
        uint64_t first = space_find(s, from, s->units, false);
        uint64_t end = space_find(s, first, zb_min_u64(s->units, first + count), true);

        if (first >= to)
            return false;
        if (end - first >= count) {
            *ret = first;
            return true;
        }
        if (end == s->units)
            return false;
        from = end;
    }
    return false;
}

uint64_t zb_space_take_some(struct zb_space *s, uint64_t count, uint64_t most, uint64_t *ret_first)
{
    uint64_t first, all;

    assert(count >= 1 && most >= 1);
    if (count > s->free_units)
        return 0;
    if (!space_gap(s, s->next, s->units, count, &first) && !space_gap(s, 0, s->next, count, &first))
        return 0;
    most = zb_min_u64(most, (s->units - first) / count);
    most = (space_find(s, first, first + most * count, true) - first) / count;
    all = most * count;
    space_mark(s->taken, first, all, true);
    s->free_units -= all;
    s->next = first + all == s->units ? 0 : first + all;
    *ret_first = first;
    return most;
}

void zb_space_take_rest(struct zb_space *s, uint64_t first)
{
    while ((first = space_find(s, first, s->units, false)) < s->units) {
        uint64_t end = space_find(s, first, s->units, true);

        space_mark(s->taken, first, end - first, true);
        s->free_units -= end - first;
        first = end;
    }
}

int zb_space_take(struct zb_space *s, uint64_t count, uint64_t *ret_first)
{
    return zb_space_take_some(s, count, 1, ret_first) == 1 ? 0 : -ENOSPC;
}

int zb_space_take_at(struct zb_space *s, uint64_t first, uint64_t count)
{
    if (count < 1 || !zb_range_inside(first, count, s->units))
        return -ERANGE;
    if (space_find(s, first, first + count, true) != first + count)
        return -EBUSY;
    space_mark(s->taken, first, count, true);
    s->free_units -= count;
    return 0;
}

static void space_give(struct zb_space *s, uint64_t first, uint64_t count, bool clean)
{
    assert(count >= 1 && zb_range_inside(first, count, s->units));
    assert(space_find(s, first, first + count, false) == first + count);
    space_mark(s->taken, first, count, false);
    if (s->clean)
        space_mark(s->clean, first, count, clean);
    s->free_units += count;
    assert(!space_get(s, first));
}

void zb_space_give(struct zb_space *s, uint64_t first, uint64_t count)
{
    space_give(s, first, count, false);
}

void zb_space_give_clean(struct zb_space *s, uint64_t first, uint64_t count)
{
    space_give(s, first, count, true);
}

/* ---- stale units */

int zb_space_track(struct zb_space *s)
{
    if (!s->clean)
        s->clean = calloc(zb_max_u64(zb_div_up(s->units, 64), 1), sizeof(*s->clean));
    return s->clean ? 0 : -ENOMEM;
}

/* The first unit in [i, end) that is stale and free, or the first that is not; else end. */
static uint64_t stale_find(const struct zb_space *s, uint64_t i, uint64_t end, bool stale)
{
    while (i < end) {
        uint64_t word = ~(s->taken[i / 64] | s->clean[i / 64]);

        word = (stale ? word : ~word) & ~UINT64_C(0) << (i % 64);
        if (word != 0)
            return zb_min_u64(end, i / 64 * 64 + (uint64_t)__builtin_ctzll(word));
        i = (i / 64 + 1) * 64;
    }
    return end;
}

uint64_t zb_space_take_stale(struct zb_space *s, const struct zb_stale *want, uint64_t *at,
                             uint64_t *ret_first)
{
    uint64_t stop = zb_min_u64(s->units, *at + 64 * want->words);

    while (*at < stop) {
        uint64_t first = stale_find(s, *at, stop, true);
        uint64_t end =
            stale_find(s, first, zb_min_u64(s->units, first + want->align + want->most), false);
        uint64_t from = zb_round_up(first + want->phase, want->align) - want->phase;
        uint64_t to = zb_min_u64((end + want->phase) / want->align * want->align,
                                 from + want->most + want->phase);

        if (first == stop) {
            *at = stop;
            break;
        }
        *at = end;
        if (to < from + want->least + want->phase)
            continue;
        to -= want->phase;
        *at = to;
        space_mark(s->taken, from, to - from, true);
        s->free_units -= to - from;
        *ret_first = from;
        return to - from;
    }
    return 0;
}

uint64_t zb_space_free_units(const struct zb_space *s)
{
    return s->free_units;
}

uint64_t zb_space_total_units(const struct zb_space *s)
{
    return s->units;
}
