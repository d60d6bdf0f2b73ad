#include "tests/ztest.h"

#include "base/map.h"
#include "base/util.h"

/* Random puts and removes of a few keys, so that probes are long and wrap; compared with a plain
 * array. */
static void map_against_model(void **state)
{
    enum { KEYS = 97, ROUNDS = 200000 };
    static const uint64_t scales[] = { 1, 4096, UINT64_C(1) << 21, UINT64_C(1) << 56 };

    (void)state;
    for (size_t s = 0; s < ZB_COUNT(scales); s++) {
        struct zb_map m = { 0 };
        uint32_t model[KEYS] = { 0 }; /* 0: not in the map */
        uint64_t seed = s + 1;
        size_t n = 0;

        for (int round = 0; round < ROUNDS; round++) {
            uint64_t i = ztest_random(&seed) % KEYS, key = i * scales[s];

            if (ztest_random(&seed) % 2 == 0) {
                uint32_t value = 1 + (uint32_t)(ztest_random(&seed) % 1000);

                assert_int_equal(zb_map_put(&m, key, value), 0);
                n += model[i] == 0;
                model[i] = value;
            } else {
                assert_int_equal(zb_map_remove(&m, key), model[i] != 0);
                n -= model[i] != 0;
                model[i] = 0;
            }
            i = ztest_random(&seed) % KEYS;
            if (model[i] == 0)
                assert_null(zb_map_find(&m, i * scales[s]));
            else
                assert_int_equal(*zb_map_find(&m, i * scales[s]), model[i]);
            assert_int_equal(m.n, n);
        }
        for (uint64_t i = 0; i < KEYS; i++)
            assert_int_equal(zb_map_find(&m, i * scales[s]) != NULL, model[i] != 0);
        zb_map_done(&m);
    }
}

static void map_empty(void **state)
{
    struct zb_map m = { 0 };

    (void)state;
    assert_null(zb_map_find(&m, 0));
    assert_false(zb_map_remove(&m, 0));
    assert_int_equal(zb_map_put(&m, 7, 1), 0);
    assert_null(zb_map_find(&m, ZB_MAP_NO_KEY));
    assert_false(zb_map_remove(&m, ZB_MAP_NO_KEY));
    zb_map_done(&m);
    assert_int_equal(m.slots, 0);
}

/* A million places, as they are on a device: the memory used, and nothing moves after a reserve.
 * Then keys are replaced many times: the map neither grows nor slows down, as a map full of
 * tombstones would. */
static void map_of_places(void **state)
{
    enum { N = 1000000 };
    struct zb_map m = { 0 };
    const uint64_t *stored;
    size_t probes = 0;

    (void)state;
    assert_int_equal(zb_map_reserve(&m, N), 0);
    stored = m.stored;
    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(zb_map_put(&m, (i % 3) << 56 | i * 2621440, (uint32_t)i), 0);
    assert_ptr_equal(m.stored, stored);
    assert_true(m.slots * (sizeof(*m.stored) + sizeof(*m.values)) <= 32u * N);
    for (uint64_t i = 0; i < 4 * (uint64_t)N; i++) {
        uint64_t gone = (i % 3) << 56 | i * 2621440, j = i + N;

        assert_true(zb_map_remove(&m, gone));
        assert_int_equal(zb_map_put(&m, (j % 3) << 56 | j * 2621440, (uint32_t)j), 0);
    }
    assert_ptr_equal(m.stored, stored);
    for (uint64_t i = 4 * (uint64_t)N; i < 5 * (uint64_t)N; i++)
        assert_int_equal(*zb_map_find(&m, (i % 3) << 56 | i * 2621440), (uint32_t)i);
    for (size_t i = 0, run = 0; i < m.slots; i++) { /* free slots are spread: probes are short */
        run = zb_map_key(&m, i) == ZB_MAP_NO_KEY ? 0 : run + 1;
        probes = run > probes ? run : probes;
    }
    assert_true(probes < 1000);
    zb_map_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_against_model),
        cmocka_unit_test(map_empty),
        cmocka_unit_test(map_of_places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
