/*
 * Values by ascending keys: compared with a plain sorted array; and the work that one insertion
 * causes.
 */
#include "tests/ztest.h"

#include <errno.h>

#include "base/sorted.h"

/* The same keys in order, and the value before each. */
static void same(const struct zb_sorted *s, const uint64_t *keys, size_t n)
{
    struct zb_sorted_pos at = zb_sorted_at(s, 0);
    const uint64_t *before = NULL;

    assert_int_equal(s->n, n);
    for (size_t i = 0; i < n; i++) {
        const uint64_t *value = zb_sorted_get(s, at);

        assert_ptr_equal(value, &keys[i]);
        assert_ptr_equal(zb_sorted_before(s, at), before);
        before = value;
        at = zb_sorted_next(s, at);
    }
    assert_null(zb_sorted_get(s, at));
    assert_ptr_equal(zb_sorted_before(s, at), before);
    for (size_t i = 0; i < s->nchunks; i++)
        assert_in_range(s->chunks[i]->n, 1, ZB_SORTED_CHUNK);
}

enum order { ASCENDING, DESCENDING, DRAWN };

#define KEYS 5000u

static void orders(void **state)
{
    uint64_t *keys = calloc(KEYS, sizeof(*keys)), seed = 7;
    uint32_t *order = calloc(KEYS, sizeof(*order));

    (void)state;
    assert_true(keys && order);
    for (uint32_t i = 0; i < KEYS; i++)
        keys[i] = 10u + 3u * i;
    for (int o = ASCENDING; o <= DRAWN; o++) {
        struct zb_sorted s = { 0 };

        for (uint32_t i = 0; i < KEYS; i++)
            order[i] = o == DESCENDING ? KEYS - 1 - i : i;
        for (uint32_t i = KEYS; o == DRAWN && i-- > 1;) {
            uint32_t k = (uint32_t)(ztest_random(&seed) % (i + 1)), swap = order[i];

            order[i] = order[k];
            order[k] = swap;
        }
        same(&s, keys, 0);
        for (uint32_t i = 0; i < KEYS; i++)
            assert_int_equal(zb_sorted_put(&s, keys[order[i]], &keys[order[i]]), 0);
        same(&s, keys, KEYS);
        if (o != DRAWN) /* nothing is wasted */
            assert_true(s.nchunks <= KEYS / (ZB_SORTED_CHUNK / 2) + 1);
        assert_int_equal(zb_sorted_put(&s, keys[17], &keys[17]), -EEXIST);
        for (uint32_t i = 0; i < KEYS; i++) {
            assert_ptr_equal(zb_sorted_get(&s, zb_sorted_at(&s, keys[i])), &keys[i]);
            assert_ptr_equal(zb_sorted_get(&s, zb_sorted_at(&s, keys[i] - 1)), &keys[i]);
            assert_null(zb_sorted_remove(&s, keys[i] + 1));
        }
        for (uint32_t i = KEYS; i-- > KEYS / 2;) /* removed again, the newest first */
            assert_ptr_equal(zb_sorted_remove(&s, keys[order[i]]), &keys[order[i]]);
        assert_int_equal(s.n, KEYS / 2);
        for (uint32_t i = 0; i < KEYS / 2; i++)
            assert_ptr_equal(zb_sorted_remove(&s, keys[order[i]]), &keys[order[i]]);
        same(&s, keys, 0);
        assert_int_equal(s.nchunks, 0);
        zb_sorted_done(&s);
    }
    free(keys);
    free(order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
