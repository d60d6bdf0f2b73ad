#include "tests/ztest.h"

#include "base/util.h"

struct item {
    int value;
    struct zb_list node;
};

static void util_list(void **state)
{
    struct item items[4] = { { .value = 0 }, { .value = 1 }, { .value = 2 }, { .value = 3 } };
    struct zb_list list;
    int sum = 0;

    (void)state;
    zb_list_init(&list);
    assert_null(zb_list_pop_front(&list));
    for (int i = 0; i < 4; i++)
        zb_list_push_back(&list, &items[i].node);
    zb_list_each(pos, &list)
    {
        struct item *item = zb_container_of(pos, struct item, node);

        if (item->value == 2)
            zb_list_remove(pos); /* the current one may be removed */
        sum += item->value;
    }
    assert_int_equal(sum, 6);
    zb_list_remove(&items[2].node); /* again is harmless */
    assert_ptr_equal(zb_list_pop_front(&list), &items[0].node);
    assert_ptr_equal(zb_list_pop_front(&list), &items[1].node);
    assert_ptr_equal(zb_list_pop_front(&list), &items[3].node);
    assert_true(zb_list_empty(&list));
}

static void util_sizes(void **state)
{
    uint64_t r = 77;

    (void)state;
    assert_true(zb_mul_fits(3, 5, &r));
    assert_int_equal(r, 15);
    assert_false(zb_mul_fits(UINT64_MAX, 2, &r));
    assert_false(zb_add_fits(UINT64_MAX, 1, &r));
    assert_int_equal(r, 15);
    assert_true(zb_range_inside(4, 6, 10));
    assert_false(zb_range_inside(5, 6, 10));
    assert_false(zb_range_inside(UINT64_MAX, 2, 10));
    assert_false(zb_range_inside(11, 0, 10));
    assert_int_equal(zb_div_up(10, 4), 3);
    assert_int_equal(zb_round_up(8, 4), 8);
    assert_int_equal(zb_round_up(9, 4), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(util_list),
        cmocka_unit_test(util_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
