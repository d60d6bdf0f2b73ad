#include "tests/ztest.h"

#include "base/crc.h"

static void crc_known(void **state)
{
    unsigned char zeros[32] = { 0 };

    (void)state;
    assert_int_equal(zb_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(zb_crc32c(0, zeros, 32), 0x8a9136aa); /* RFC 3720, B.4 */
    assert_int_equal(zb_crc32c(0, "", 0), 0);
}

static void crc_continues(void **state)
{
    static const char text[] = "the quick brown fox jumps over the lazy dog, twice";

    (void)state;
    for (size_t cut = 0; cut < sizeof(text); cut++)
        assert_int_equal(zb_crc32c(zb_crc32c(0, text, cut), text + cut, sizeof(text) - cut),
                         zb_crc32c(0, text, sizeof(text)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_known),
        cmocka_unit_test(crc_continues),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
