#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/util.h"

struct item {
    uint64_t key;
    char more[9];
};

/* Appends one or several items at a time: nothing is lost, there is always room, and memory rarely
 * moves. */
static void grows(void **state)
{
    struct item *items = NULL;
    size_t n = 0, room = 0, moves = 0;
    uint64_t seed = 1;

    (void)state;
    while (n < 100000) {
        size_t more = ztest_random(&seed) % 8 == 0 ? ztest_random(&seed) % 1000 : 1, was = room;

        assert_int_equal(zb_grow(&items, &room, n, more), 0);
        assert_true(n + more <= room && (room == was || room >= 2 * was));
        moves += room != was;
        for (size_t i = 0; i < more; i++, n++)
            items[n] = (struct item){ .key = 7 * n };
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(items[i].key, 7 * i);
    assert_in_range(moves, 5, 20);
    free(items);
}

static void grows_by_nothing(void **state)
{
    struct item *items = NULL;
    size_t room = 0;

    (void)state;
    assert_int_equal(zb_grow(&items, &room, 0, 0), 0);
    assert_true(!items && room == 0);
    assert_int_equal(zb_grow(&items, &room, 0, 3), 0);
    assert_non_null(items);
    assert_int_equal(room, 16);
    assert_int_equal(zb_grow(&items, &room, 10, 6), 0);
    assert_int_equal(room, 16);
    free(items);
}

/* Impossible sizes leave the array unchanged. */
static void grows_too_far(void **state)
{
    static const struct {
        size_t n, more;
    } cases[] = {
        { 3, SIZE_MAX }, { SIZE_MAX, 1 }, { 3, SIZE_MAX / sizeof(struct item) }, { 0, SIZE_MAX - 1 }
    };
    struct item *items = NULL, *was;
    size_t room = 0;

    (void)state;
    assert_int_equal(zb_grow(&items, &room, 0, 3), 0);
    was = items;
    items[2].key = 5;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        assert_int_equal(zb_grow(&items, &room, cases[i].n, cases[i].more), -ENOMEM);
        assert_true(items == was && room == 16 && items[2].key == 5);
    }
    free(items);
}

/* Arrays of every length; every key that is in it, and the keys between them. */
static void lower_bounds(void **state)
{
    struct item items[40];

    (void)state;
    for (size_t n = 0; n <= ZB_COUNT(items); n++) {
        for (size_t i = 0; i < n; i++)
            items[i].key = 2 * i + i / 5; /* no two are the same */
        for (uint64_t key = 0; key < 100; key++) {
            size_t want = 0;
            uint32_t at = 77; /* any type works */

            while (want < n && items[want].key < key)
                want++;
            zb_lower_bound(at, n, items[at].key < key);
            assert_int_equal(at, want);
        }
    }
}

/* Among equal keys, the first one. */
static void lower_bound_of_equals(void **state)
{
    static const int values[] = { 1, 2, 2, 2, 3, 3, 9 };
    size_t at;

    (void)state;
    zb_lower_bound(at, ZB_COUNT(values), values[at] < 2);
    assert_int_equal(at, 1);
    zb_lower_bound(at, ZB_COUNT(values), values[at] <= 2); /* ... or the first after them */
    assert_int_equal(at, 4);
    zb_lower_bound(at, ZB_COUNT(values), values[at] < 10);
    assert_int_equal(at, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),
        cmocka_unit_test(grows_by_nothing),
        cmocka_unit_test(grows_too_far),
        cmocka_unit_test(lower_bounds),
        cmocka_unit_test(lower_bound_of_equals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
