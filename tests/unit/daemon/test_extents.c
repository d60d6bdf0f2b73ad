/* Places of pages on a data file of 8 MiB: promises, holders, recovery. */
#include "tests/unit/daemon/core_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UNIT  UINT64_C(4096)
#define HOST  (64u << 20)
#define SIZES 3u

static const uint64_t sizes[SIZES] = { UNIT, 3 * UNIT, 20 * UNIT };

static struct zb_needs need(uint64_t a, uint64_t b, uint64_t c)
{
    struct zb_needs p = { 0 };

    assert_int_equal(zb_needs_add(&p, sizes[2], c), 0);
    assert_int_equal(zb_needs_add(&p, sizes[0], a), 0);
    assert_int_equal(zb_needs_add(&p, sizes[1], b), 0);
    return p;
}

/* Sets a promise to these numbers of places of each size; returns the code. */
static int promise_err(struct zsd_core *core, struct zb_needs *now, uint64_t a, uint64_t b,
                       uint64_t c, struct zb_err *err)
{
    struct zb_needs want = need(a, b, c);
    int rc = zsd_promise_set(core, now, &want, err);

    if (rc == 0) {
        assert_int_equal(zb_needs_bytes(now), a * sizes[0] + b * sizes[1] + c * sizes[2]);
        assert_int_equal(now->n, want.n);
    }
    zb_needs_done(&want);
    return rc;
}

static int promise(struct zsd_core *core, struct zb_needs *now, uint64_t a, uint64_t b, uint64_t c)
{
    return promise_err(core, now, a, b, c, NULL);
}

static void no_promise(struct zsd_core *core, struct zb_needs *now)
{
    assert_int_equal(promise(core, now, 0, 0, 0), 0);
    zb_needs_done(now);
}

struct sum {
    uint64_t held; /* places with at least one holder */
    uint64_t held_bytes, free_bytes, promised_bytes;
};

/* Sums over all classes. */
static struct sum places_sum(const struct zsd_core *core)
{
    struct zsd_places_copy c;
    struct sum sum = { 0 };

    assert_int_equal(zsd_places_copy(core, &c), 0);
    for (uint32_t i = 0; i < c.nclasses; i++) {
        const struct zsd_class_copy *k = &c.classes[i];

        sum.held += k->total - k->nfree;
        sum.held_bytes += (k->total - k->nfree) * k->bytes;
        sum.free_bytes += k->nfree * k->bytes;
        sum.promised_bytes += k->promised * k->bytes;
    }
    assert_int_equal(sum.held, c.nplaces);
    zsd_places_copy_done(&c);
    return sum;
}

static bool sum_equal(struct sum a, struct sum b)
{
    return a.held == b.held && a.held_bytes == b.held_bytes && a.free_bytes == b.free_bytes &&
           a.promised_bytes == b.promised_bytes;
}

static void needs_are_sorted(void **state)
{
    struct zb_needs p = { 0 };
    uint64_t seed = 3, count[40] = { 0 };

    (void)state;
    for (int i = 0; i < 200; i++) {
        uint64_t k = ztest_random(&seed) % ZB_COUNT(count), n = ztest_random(&seed) % 3;

        assert_int_equal(zb_needs_add(&p, (k + 1) * UNIT, n), 0);
        count[k] += n;
    }
    for (uint32_t i = 0; i < p.n; i++) {
        assert_true(i == 0 || p.needs[i - 1].bytes < p.needs[i].bytes);
        assert_true(p.needs[i].count > 0);
        assert_int_equal(p.needs[i].count, count[p.needs[i].bytes / UNIT - 1]);
        count[p.needs[i].bytes / UNIT - 1] = 0;
    }
    for (size_t k = 0; k < ZB_COUNT(count); k++)
        assert_int_equal(count[k], 0);
    zb_needs_done(&p);
}

/* A place is free, held once, held more than once, and free again; no two places overlap. */
static void places_are_lent(void **state)
{
    struct zb_needs now = { 0 };
    struct world w;
    struct zsd_core *core;
    uint64_t at[6];

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    assert_int_equal(promise(core, &now, 3, 2, 1), 0);
    assert_int_equal(places_sum(core).promised_bytes, 29 * UNIT);
    assert_int_equal(places_sum(core).free_bytes, 29 * UNIT);
    for (unsigned i = 0; i < 6; i++)
        at[i] = zsd_extent_take(core, sizes[i < 3 ? 0 : i < 5 ? 1 : 2]);
    for (unsigned i = 0; i < 6; i++)
        for (unsigned k = 0; k < 6; k++)
            assert_true(i == k ||
                        at[i] + sizes[i < 3   ? 0
                                      : i < 5 ? 1
                                              : 2] <=
                            at[k] ||
                        at[k] < at[i]);
    zsd_extent_ref(core, at[4]);
    zsd_extent_ref(core, at[4]);
    assert_int_equal(zsd_extent_refs(core, at[4]), 3);
    assert_int_equal(zsd_extent_refs(core, at[3]), 1);
    zsd_extent_unref(core, at[4], sizes[1]);
    zsd_extent_unref(core, at[4], sizes[1]);
    assert_int_equal(zsd_extent_refs(core, at[4]), 1);
    assert_int_equal(places_sum(core).free_bytes, 0);
    assert_int_equal(places_sum(core).held, 6);
    zsd_extent_unref(core, at[4], sizes[1]);
    assert_int_equal(zsd_extent_refs(core, at[4]), 0);
    assert_int_equal(places_sum(core).free_bytes, 3 * UNIT);
    assert_int_equal(zsd_extent_take(core, sizes[1]), at[4]); /* the only free one */
    for (unsigned i = 0; i < 6; i++)
        zsd_extent_unref(core, at[i], sizes[i < 3 ? 0 : i < 5 ? 1 : 2]);
    no_promise(core, &now);
    world_close(&w);
}

/* A promise shrinks before its pages go: they return to the map when the last holder goes. */
static void a_promise_shrinks_first(void **state)
{
    struct zb_needs now = { 0 };
    struct world w;
    struct zsd_core *core;
    uint64_t at[4], all;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    all = zb_space_free_units(core->disk->extents);
    assert_int_equal(promise(core, &now, 0, 4, 0), 0);
    for (unsigned i = 0; i < 3; i++)
        at[i] = zsd_extent_take(core, sizes[1]);
    assert_int_equal(promise(core, &now, 0, 1, 0), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), all - 9); /* with the fourth */
    zsd_extent_unref(core, at[0], sizes[1]);
    assert_int_equal(zb_space_free_units(core->disk->extents), all - 6);
    /* a promise that grows again includes the held places beyond it */
    assert_int_equal(promise(core, &now, 0, 2, 0), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), all - 6);
    zsd_extent_unref(core, at[1], sizes[1]);
    zsd_extent_unref(core, at[2], sizes[1]);
    assert_int_equal(zb_space_free_units(core->disk->extents), all - 6);
    assert_int_equal(places_sum(core).free_bytes, 2 * sizes[1]);
    no_promise(core, &now);
    world_close(&w);
}

/* ---- a copy in parts */

#define LENT 600u

struct lent {
    uint64_t at[LENT];
    uint32_t holders[LENT];
};

/* Takes a place, adds a holder, or removes one. */
static void lent_changes(struct zsd_core *core, struct lent *l, uint64_t *seed)
{
    uint64_t i = ztest_random(seed) % LENT, bytes = sizes[i % 2];

    if (l->holders[i] == 0)
        l->at[i] = zsd_extent_take(core, bytes);
    else if (ztest_random(seed) % 3 == 0)
        zsd_extent_ref(core, l->at[i]);
    else {
        zsd_extent_unref(core, l->at[i], bytes);
        l->holders[i]--;
        return;
    }
    l->holders[i]++;
}

static void copies_equal(const struct zsd_places_copy *a, const struct zsd_places_copy *b)
{
    assert_int_equal(a->nplaces, b->nplaces);
    for (size_t i = 0; i < a->nplaces; i++)
        if (a->places[i].at != b->places[i].at || a->places[i].bytes != b->places[i].bytes ||
            a->places[i].holders != b->places[i].holders)
            fail_msg("place %zu", i);
    assert_int_equal(a->nclasses, b->nclasses);
    for (uint32_t i = 0; i < a->nclasses; i++)
        assert_true(a->classes[i].nfree == b->classes[i].nfree);
}

/* Whatever changes while the copy is made, and if the map grows: it has the state of its start. */
static void a_copy_in_parts(void **state)
{
    struct zb_needs now = { 0 };
    struct lent l = { { 0 }, { 0 } };
    struct world w;
    struct zsd_core *core;
    uint64_t seed = 11, changes = 0;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    assert_int_equal(promise(core, &now, LENT / 2, LENT / 2, 0), 0);
    for (unsigned round = 0; round < 200; round++) {
        struct zsd_places_copy then, copy;
        bool all = false;
        size_t slots;

        if (round == 100) /* fewer places, and a map with room for many more */
            for (uint32_t i = 50; i < LENT; i++)
                for (; l.holders[i] > 0; l.holders[i]--)
                    zsd_extent_unref(core, l.at[i], sizes[i % 2]);
        for (unsigned i = 0; i < 50; i++)
            lent_changes(core, &l, &seed);
        assert_int_equal(zsd_places_copy(core, &then), 0);
        assert_int_equal(zsd_places_copy_begin(core, &copy), 0);
        slots = copy.slots;
        while (!all) {
            uint64_t left = 1 + ztest_random(&seed) % 3;

            all = zsd_places_copy_part(core, &copy, &left);
            if (round == 150 && copy.slot > 100 && slots == copy.slots) /* the map grows */
                assert_int_equal(promise(core, &now, LENT / 2 + 500, LENT / 2, 0), 0);
            for (unsigned i = 0; i < round % 20; i++, changes++)
                lent_changes(core, &l, &seed);
        }
        assert_true(round != 150 || copy.slots > slots);
        assert_int_equal(zsd_places_copy_end(&copy), 0);
        lent_changes(core, &l, &seed); /* after the copy */
        assert_int_equal(zsd_places_copy_sort(&copy), 0);
        copies_equal(&copy, &then);
        if (round % 20 == 0)
            assert_int_equal(copy.changed.n, 0);
        zsd_places_copy_done(&copy);
        zsd_places_copy_done(&then);
    }
    assert_true(changes > 10000);
    for (uint32_t i = 0; i < LENT; i++)
        for (; l.holders[i] > 0; l.holders[i]--)
            zsd_extent_unref(core, l.at[i], sizes[i % 2]);
    no_promise(core, &now);
    world_close(&w);
}

/* Wherever the copy is when the map grows, it misses no place that moves to a copied part (K1). */
static void copied_while_it_grows(void **state)
{
    (void)state;
    for (uint64_t units = 1; units < 128; units += 4) {
        struct zsd_places_copy then, copy;
        uint64_t at[700], left = units;
        struct zb_needs now = { 0 };
        struct world w;

        world_open(&w, HOST, "threads", 1);
        assert_int_equal(promise(w.daemon.core, &now, 700, 0, 0), 0);
        for (size_t i = 0; i < ZB_COUNT(at); i++)
            at[i] = zsd_extent_take(w.daemon.core, sizes[0]);
        assert_int_equal(zsd_places_copy(w.daemon.core, &then), 0);
        assert_int_equal(zsd_places_copy_begin(w.daemon.core, &copy), 0);
        assert_false(zsd_places_copy_part(w.daemon.core, &copy, &left));
        assert_int_equal(promise(w.daemon.core, &now, 900, 0, 0), 0);
        assert_true(zsd_places_copy_part(w.daemon.core, &copy, &(uint64_t){ UINT64_MAX }));
        assert_int_equal(copy.slots, 2 * then.slots);
        assert_true(zsd_places_copy_end(&copy) == 0 && zsd_places_copy_sort(&copy) == 0);
        copies_equal(&copy, &then);
        zsd_places_copy_done(&copy);
        zsd_places_copy_done(&then);
        for (size_t i = 0; i < ZB_COUNT(at); i++)
            zsd_extent_unref(w.daemon.core, at[i], sizes[0]);
        no_promise(w.daemon.core, &now);
        world_close(&w);
    }
}

/* No room: too few bytes, or enough of them but in pieces. Nothing is changed then. */
static void no_room(void **state)
{
    struct zb_needs now = { 0 }, other = { 0 };
    struct sum before;
    struct world w;
    struct zsd_core *core;
    struct zb_err err = { 0 };
    uint64_t all;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    all = zb_space_free_units(core->disk->extents);
    assert_int_equal(promise(core, &other, 5, 0, 1), 0);
    before = places_sum(core);
    assert_int_equal(promise_err(core, &now, all - 24, 0, 0, &err), -ENOSPC);
    assert_non_null(
        strstr(err.text, "the smallest nvme_bytes that would work is 8392704")); /* + 4096 */
    assert_int_equal(now.n, 0);
    assert_true(sum_equal(before, places_sum(core)));
    assert_int_equal(zb_space_free_units(core->disk->extents), all - 25);
    assert_int_equal(promise(core, &now, all - 25, 0, 0), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), 0);

    /* all bytes in places of one unit, every second one free */
    assert_int_equal(promise(core, &other, 0, 0, 0), 0);
    assert_int_equal(promise(core, &now, all, 0, 0), 0);
    for (uint64_t i = 0; i < all; i++)
        assert_true(zsd_extent_take(core, UNIT) < all * UNIT);
    assert_int_equal(promise(core, &now, 0, 0, 0), 0);
    for (uint64_t i = 0; i < all; i += 2)
        zsd_extent_unref(core, i * UNIT, UNIT);
    assert_int_equal(zb_space_free_units(core->disk->extents), all / 2);
    before = places_sum(core);
    err = (struct zb_err){ 0 };
    /* the small ones would fit, but none is taken */
    assert_int_equal(promise_err(core, &now, 10, 1, 0, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "in pieces"));
    assert_true(sum_equal(before, places_sum(core)));
    assert_int_equal(zb_space_free_units(core->disk->extents), all / 2);
    for (uint64_t i = 1; i < all; i += 2)
        zsd_extent_unref(core, i * UNIT, UNIT);
    no_promise(core, &now);
    no_promise(core, &other);
    world_close(&w);
}

/* Bytes that one size gives up are used by another, in one change; undone when it fails. */
static void sizes_exchange(void **state)
{
    struct zb_needs now = { 0 };
    struct sum before;
    struct world w;
    struct zsd_core *core;
    uint64_t all, held, again;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    all = zb_space_free_units(core->disk->extents);
    assert_int_equal(promise(core, &now, all % 20, 0, all / 20), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), 0);
    held = zsd_extent_take(core, sizes[2]);
    assert_int_equal(promise(core, &now, all % 20 + 20, 0, all / 20 - 1), 0);
    before = places_sum(core);
    /* there are enough bytes, but pieces of 20 units have no room for 7 * 3 */
    assert_int_equal(promise(core, &now, all % 20 + 20, 7, all / 20 - 2), -ENOSPC);
    assert_true(sum_equal(before, places_sum(core)));
    assert_int_equal(promise(core, &now, all % 20 + 19, 7, all / 20 - 2), -ENOSPC);
    assert_true(sum_equal(before, places_sum(core)));
    assert_int_equal(zsd_extent_refs(core, held), 1);
    /* every free place of it is still there, and none twice */
    for (uint64_t i = 1; i < all / 20 - 1; i++) {
        again = zsd_extent_take(core, sizes[2]);
        assert_int_equal(zsd_extent_refs(core, again), 1);
    }
    assert_int_equal(places_sum(core).held, all / 20 - 1);
    for (uint64_t at = 0; at < all * UNIT; at += UNIT)
        if (zsd_extent_refs(core, at) > 0)
            zsd_extent_unref(core, at, sizes[2]);
    no_promise(core, &now);
    world_close(&w);
}

/* The rows of a catalog, at the start. */
static void places_are_adopted(void **state)
{
    static const struct {
        const char *name;
        uint64_t at, bytes;
        int rc;
        const char *says;
    } rows[] = {
        { "the first place", 0, 3 * UNIT, 0, NULL },
        { "again", 0, 3 * UNIT, 0, NULL },
        { "again, another size", 0, UNIT, -EBADMSG, "another one has 12288" },
        { "into another", 2 * UNIT, UNIT, -EBADMSG, "overlaps" },
        { "over the end of another", 2 * UNIT, 3 * UNIT, -EBADMSG, "overlaps" },
        { "behind it", 3 * UNIT, UNIT, 0, NULL },
        { "the last place", 2031 * UNIT, UNIT, 0, NULL },
        { "over the end", 2029 * UNIT, 20 * UNIT, -EBADMSG, "outside" },
        { "outside", 2032 * UNIT, UNIT, -EBADMSG, "outside" },
        { "far outside", UINT64_MAX - UNIT + 1, UNIT, -EBADMSG, "outside" },
        { "no place at all", UINT64_MAX, UNIT, -EBADMSG, "outside" },
        { "not at a unit", 100 * UNIT + 512, UNIT, -EBADMSG, "outside" },
        { "empty", 100 * UNIT, 0, -EBADMSG, "no page" },
        { "an odd size", 100 * UNIT, UNIT + 1, -EBADMSG, "no page" },
        { "far too long", 100 * UNIT, 4096 * UNIT, -EBADMSG, "no page" },
        { "overflows", 100 * UNIT, UINT64_MAX - UNIT + 1, -EBADMSG, "no page" },
    };
    struct zb_needs now = { 0 };
    struct world w;
    struct zsd_core *core;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct sum before = places_sum(core);
        struct zb_err err = { 0 };
        int rc = zsd_extent_adopt(core, rows[i].at, rows[i].bytes, &err);

        if (rc != rows[i].rc || (rows[i].says && !strstr(err.text, rows[i].says)) ||
            (rc != 0 && !sum_equal(before, places_sum(core))))
            fail_msg("%s: %d, %s", rows[i].name, rc, err.text);
    }
    assert_int_equal(places_sum(core).held, 3);
    assert_int_equal(zsd_extent_refs(core, 0), 2);
    /* the following promise includes them */
    assert_int_equal(promise(core, &now, 2, 1, 0), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), 2032 - 5);
    assert_int_equal(promise(core, &now, 3, 1, 0), 0);
    assert_int_equal(zb_space_free_units(core->disk->extents), 2032 - 6);
    assert_int_equal(zsd_extent_take(core, UNIT),
                     4 * UNIT); /* found by the map's next-fit; not a place in use */
    zsd_extent_unref(core, 4 * UNIT, UNIT);
    zsd_extent_unref(core, 0, 3 * UNIT);
    zsd_extent_unref(core, 0, 3 * UNIT);
    zsd_extent_unref(core, 3 * UNIT, UNIT);
    zsd_extent_unref(core, 2031 * UNIT, UNIT);
    no_promise(core, &now);
    world_close(&w);
}

static void without_a_data_file(void **state)
{
    struct zb_needs now = { 0 };
    struct world w;
    struct zb_err err = { 0 };

    (void)state;
    world_open(&w, HOST, NULL, 1);
    assert_int_equal(promise(w.daemon.core, &now, 0, 0, 0), 0);
    assert_int_equal(promise(w.daemon.core, &now, 1, 0, 0), -ENOSPC);
    assert_int_equal(zsd_extent_adopt(w.daemon.core, 0, UNIT, &err), -EBADMSG);
    assert_int_equal(places_sum(w.daemon.core).held, 0);
    zb_needs_done(&now);
    world_close(&w);
}

/* Jobs promise, take, share and release in any order, each inside its promise: there is always a
 * place, and at the end every byte is free. */
static void jobs_in_any_order(void **state)
{
    enum { JOBS = 5, HELD = 40, ROUNDS = 20000 };
    struct {
        struct zb_needs now;
        uint64_t at[SIZES][HELD], n[SIZES], may[SIZES];
    } *jobs = calloc(JOBS, sizeof(*jobs)), *j;
    uint64_t seed = 11, refused = 0, shared = 0;
    struct world w;
    struct zsd_core *core;

    (void)state;
    assert_non_null(jobs);
    world_open(&w, HOST, "threads", 1);
    core = w.daemon.core;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned k = ztest_random(&seed) % SIZES;

        j = &jobs[ztest_random(&seed) % JOBS];
        switch (ztest_random(&seed) % 4) {
        case 0: { /* another promise; never less than it holds */
            uint64_t may[SIZES];
            struct sum before = places_sum(core);
            uint64_t left = zb_space_free_units(core->disk->extents);
            int rc;

            for (unsigned s = 0; s < SIZES; s++)
                may[s] = j->n[s] + ztest_random(&seed) % (HELD + 1 - j->n[s]);
            rc = promise(core, &j->now, may[0], may[1], may[2]);
            if (rc == 0) {
                memcpy(j->may, may, sizeof(may));
            } else {
                assert_int_equal(rc, -ENOSPC);
                assert_true(sum_equal(before, places_sum(core)));
                assert_int_equal(zb_space_free_units(core->disk->extents), left);
                refused++;
            }
            break;
        }
        case 1: /* a page */
            if (j->n[k] < j->may[k])
                j->at[k][j->n[k]++] = zsd_extent_take(core, sizes[k]);
            break;
        case 2: { /* another job's page */
            const void *o = &jobs[ztest_random(&seed) % JOBS];
            const typeof(*j) *from = o;

            if (j->n[k] < j->may[k] && from->n[k] > 0) {
                uint64_t at = from->at[k][ztest_random(&seed) % from->n[k]];

                zsd_extent_ref(core, at);
                j->at[k][j->n[k]++] = at;
                shared++;
            }
            break;
        }
        default:
            for (uint64_t n = ztest_random(&seed) % 4; n > 0 && j->n[k] > 0; n--)
                zsd_extent_unref(core, j->at[k][--j->n[k]], sizes[k]);
            break;
        }
    }
    assert_true(refused > 50 && shared > 500);
    for (j = jobs; j < jobs + JOBS; j++) {
        for (unsigned k = 0; k < SIZES; k++)
            while (j->n[k] > 0)
                zsd_extent_unref(core, j->at[k][--j->n[k]], sizes[k]);
        no_promise(core, &j->now);
    }
    free(jobs);
    world_close(&w);
}

/* Every allocation fails once: nothing is changed, and the next attempt works. */
static void memory_runs_out(void **state)
{
    struct world w;
    struct zsd_core *core;
    unsigned nth = 1;

    (void)state;
    for (bool failed = true; failed; nth++) {
        struct zb_needs now = { 0 }, want = need(20, 5, 1);
        struct zb_err err = { 0 };
        int rc, adopted;

        world_open(&w, HOST, "threads", 1);
        core = w.daemon.core;
        alloc_fail(nth, 1);
        core_entered(true);
        rc = zsd_promise_set(core, &now, &want, &err);
        adopted = zsd_extent_adopt(core, 1000 * UNIT, 7 * UNIT, &err);
        core_entered(false);
        failed = alloc_failed();
        alloc_fail(0, 0);
        assert_true(failed ? (rc == -ENOMEM) != (adopted == -ENOMEM) : rc == 0 && adopted == 0);
        if (rc < 0) {
            assert_int_equal(now.n, 0);
            assert_int_equal(places_sum(core).promised_bytes, 0);
            assert_int_equal(places_sum(core).free_bytes, 0);
            assert_int_equal(promise(core, &now, 20, 5, 1), 0);
        }
        if (adopted < 0)
            assert_int_equal(zsd_extent_adopt(core, 1000 * UNIT, 7 * UNIT, NULL), 0);
        zsd_extent_unref(core, 1000 * UNIT, 7 * UNIT);
        alloc_fail(1, 1000); /* a promise that shrinks allocates nothing */
        core_entered(true);
        assert_int_equal(zb_needs_bytes(&now), zb_needs_bytes(&want));
        want.n = 1;
        want.needs[0].count = 19;
        assert_int_equal(zsd_promise_set(core, &now, &want, NULL), 0);
        want.n = 0;
        assert_int_equal(zsd_promise_set(core, &now, &want, NULL), 0);
        core_entered(false);
        assert_false(alloc_failed());
        alloc_fail(0, 0);
        zb_needs_done(&now);
        zb_needs_done(&want);
        world_close(&w);
    }
    assert_true(nth > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needs_are_sorted),        cmocka_unit_test(places_are_lent),
        cmocka_unit_test(a_promise_shrinks_first), cmocka_unit_test(a_copy_in_parts),
        cmocka_unit_test(copied_while_it_grows),   cmocka_unit_test(no_room),
        cmocka_unit_test(sizes_exchange),          cmocka_unit_test(places_are_adopted),
        cmocka_unit_test(without_a_data_file),     cmocka_unit_test(jobs_in_any_order),
        cmocka_unit_test(memory_runs_out)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
