#include "tests/ztest.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/space.h"

/* Random takes and gives, compared with a plain array of owners: ranges never overlap, counts
 * agree, and a range that would fit is never refused. */
static void space_against_model(void **state)
{
    enum { UNITS = 517, HELD = 64, ROUNDS = 20000 };
    static unsigned char owner[UNITS];
    struct {
        uint64_t first, count;
    } held[HELD] = { 0 };
    uint64_t seed = 1, taken = 0;
    struct zb_space *s;

    (void)state;
    assert_int_equal(zb_space_new(&s, UNITS), 0);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned i = ztest_random(&seed) % HELD;

        if (held[i].count > 0) {
            zb_space_give(s, held[i].first, held[i].count);
            memset(owner + held[i].first, 0, held[i].count);
            taken -= held[i].count;
            held[i].count = 0;
        } else {
            uint64_t want = 1 + ztest_random(&seed) % 130, first = 9999, run = 0;
            bool fits = false;
            int rc = zb_space_take(s, want, &first);

            for (uint64_t u = 0; u < UNITS && !fits; u++) {
                run = owner[u] ? 0 : run + 1;
                fits = run == want;
            }
            assert_int_equal(rc, fits ? 0 : -ENOSPC);
            if (rc == 0) {
                for (uint64_t u = first; u < first + want; u++) {
                    assert_int_equal(owner[u], 0);
                    owner[u] = 1;
                }
                held[i].first = first;
                held[i].count = want;
                taken += want;
            } else {
                assert_int_equal(first, 9999);
            }
        }
        assert_int_equal(zb_space_free_units(s), UNITS - taken);
    }
    zb_space_free(s);
}

/* A space takes some ranges at once, its twin the same ones singly, among gaps of random sizes. */
static void space_some(void **state)
{
    enum { UNITS = 1000, ROUNDS = 4000, HELD = 300 };
    struct {
        uint64_t first, count;
    } held[HELD];
    struct zb_space *some, *single;
    uint64_t seed = 7, most_at_once = 0;
    unsigned n = 0;

    (void)state;
    assert_int_equal(zb_space_new(&some, UNITS), 0);
    assert_int_equal(zb_space_new(&single, UNITS), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t count = 1 + ztest_random(&seed) % 9, most = 1 + ztest_random(&seed) % 12;
        uint64_t first = 9999, at, took = zb_space_take_some(some, count, most, &first);

        assert_true(took <= most);
        if (took == 0)
            assert_int_equal(zb_space_take(single, count, &at), -ENOSPC);
        for (uint64_t i = 0; i < took; i++) {
            assert_int_equal(zb_space_take(single, count, &at), 0);
            assert_int_equal(at, first + i * count);
        }
        most_at_once = took > most_at_once ? took : most_at_once;
        if (took > 0) {
            held[n].first = first;
            held[n++].count = took * count;
        }
        while (n == HELD || (n > 0 && (took == 0 || ztest_random(&seed) % 2 == 0))) {
            unsigned i = ztest_random(&seed) % n;

            zb_space_give(some, held[i].first, held[i].count);
            zb_space_give(single, held[i].first, held[i].count);
            held[i] = held[--n];
            took = 1;
        }
        assert_int_equal(zb_space_free_units(some), zb_space_free_units(single));
    }
    assert_int_equal(most_at_once, 12);
    zb_space_free(some);
    zb_space_free(single);
}

static void space_whole(void **state)
{
    static const uint64_t sizes[] = { 1, 63, 64, 65, 128, 1000 };

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct zb_space *s;
        uint64_t first = 9;

        assert_int_equal(zb_space_new(&s, sizes[i]), 0);
        assert_int_equal(zb_space_take(s, sizes[i] + 1, &first), -ENOSPC);
        assert_int_equal(zb_space_take(s, sizes[i], &first), 0);
        assert_int_equal(first, 0);
        assert_int_equal(zb_space_free_units(s), 0);
        assert_int_equal(zb_space_take(s, 1, &first), -ENOSPC);
        zb_space_give(s, 0, sizes[i]);
        assert_int_equal(zb_space_free_units(s), sizes[i]);
        zb_space_free(s);
    }
    zb_space_free(NULL);
}

static void space_at(void **state)
{
    static const struct {
        uint64_t first, count;
        int rc;
    } rows[] = { /* 60 to 130 are taken */
                 { 0, 60, 0 },        { 0, 61, -EBUSY },          { 130, 1, 0 },
                 { 129, 1, -EBUSY },  { 50, 100, -EBUSY },        { 199, 1, 0 },
                 { 199, 2, -ERANGE }, { 200, 1, -ERANGE },        { 0, 0, -ERANGE },
                 { 61, 8, -EBUSY },   { UINT64_MAX, 2, -ERANGE }, { 2, UINT64_MAX, -ERANGE }
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct zb_space *s;
        uint64_t before;

        assert_int_equal(zb_space_new(&s, 200), 0);
        assert_int_equal(zb_space_take_at(s, 60, 70), 0);
        before = zb_space_free_units(s);
        if (zb_space_take_at(s, rows[i].first, rows[i].count) != rows[i].rc)
            fail_msg("row %zu", i);
        assert_int_equal(before - zb_space_free_units(s), rows[i].rc == 0 ? rows[i].count : 0);
        if (rows[i].rc == 0)
            zb_space_give(s, rows[i].first, rows[i].count);
        zb_space_give(s, 60, 70);
        assert_int_equal(zb_space_free_units(s), 200);
        zb_space_free(s);
    }
}

/* The rest is taken, and what was taken or free before it stays so. */
static void space_rest(void **state)
{
    (void)state;
    for (uint64_t from = 0; from <= 300; from += 7) {
        struct zb_space *s;
        uint64_t n = 0, first;

        assert_int_equal(zb_space_new(&s, 300), 0);
        assert_int_equal(zb_space_take_at(s, 60, 10), 0);
        assert_int_equal(zb_space_take_at(s, 290, 10), 0);
        zb_space_take_rest(s, from);
        while (zb_space_take(s, 1, &first) == 0) {
            assert_true(first < from && (first < 60 || first >= 70));
            n++;
        }
        assert_int_equal(n, from <= 60 ? from : from < 70 ? 60 : from < 290 ? from - 10 : 280);
        assert_int_equal(zb_space_free_units(s), 0);
        zb_space_free(s);
    }
}

/* The stale units against an array: each is taken at most once between two uses, none is missed, and
 * the rest of the map is left alone. */
static void space_stale(void **state)
{
    enum { UNITS = 700, ROUNDS = 300 };
    static const struct zb_stale wants[] = {
        { .align = 1, .phase = 0, .least = 1, .most = 8, .words = 2 },
        { .align = 4, .phase = 1, .least = 4, .most = 16, .words = 1 },
        { .align = 1, .phase = 16, .least = 5, .most = 300, .words = 100 },
        { .align = 64, .phase = 63, .least = 64, .most = 64, .words = 3 },
    };
    uint64_t seed = 11;

    (void)state;
    for (size_t k = 0; k < sizeof(wants) / sizeof(wants[0]); k++) {
        const struct zb_stale *want = &wants[k];
        char units[UNITS]; /* s: stale, c: clean, t: taken */
        struct zb_space *s;

        assert_int_equal(zb_space_new(&s, UNITS), 0);
        assert_int_equal(zb_space_track(s), 0);
        memset(units, 's', sizeof(units));
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t at = 0, first = 0, n, run = 0;

            while (at < UNITS) {
                n = zb_space_take_stale(s, want, &at, &first);
                assert_true(at <= UNITS);
                if (n == 0)
                    continue;
                assert_true(n >= want->least && n <= want->most);
                assert_true((first + want->phase) % want->align == 0 && n % want->align == 0);
                for (uint64_t i = first; i < first + n; i++)
                    assert_int_equal(units[i], 's');
                zb_space_give_clean(s, first, n);
                memset(units + first, 'c', n);
            }
            for (uint64_t i = 0; i < UNITS; i++) { /* what is left is too short */
                run = units[i] == 's' ? run + 1 : 0;
                assert_true(run < want->least + 2 * want->align);
            }
            for (int i = 0; i < 20; i++) {
                uint64_t from = ztest_random(&seed) % UNITS;
                uint64_t count = 1 + ztest_random(&seed) % (UNITS - from) % 100;

                if (zb_space_take_at(s, from, count) == 0)
                    memset(units + from, 't', count);
            }
            for (uint64_t i = 0; i < UNITS; i++)
                if (units[i] == 't' && ztest_random(&seed) % 32 > 0) {
                    zb_space_give(s, i, 1);
                    units[i] = 's';
                }
            n = 0;
            for (uint64_t i = 0; i < UNITS; i++)
                n += units[i] != 't';
            assert_int_equal(zb_space_free_units(s), n);
        }
        zb_space_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(space_against_model), cmocka_unit_test(space_some),
        cmocka_unit_test(space_whole),         cmocka_unit_test(space_at),
        cmocka_unit_test(space_rest),          cmocka_unit_test(space_stale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
