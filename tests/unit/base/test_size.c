#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"

static const struct {
    const char *text;
    int rc;
    uint64_t bytes;
} cases[] = {
    { "0", 0, 0 },
    { "4096", 0, 4096 },
    { "4096B", 0, 4096 },
    { "512M", 0, 512 * ZB_MIB },
    { "512m", 0, 512 * ZB_MIB },
    { "1.5G", 0, 3 * ZB_GIB / 2 },
    { "64MiB", 0, 64 * ZB_MIB },
    { "0.0005K", 0, 0 },
    { "1.999999999999999999K", 0, 2047 },
    { "7P", 0, 7 * 1024 * 1024 * ZB_GIB },
    { "", -EINVAL, 77 },
    { "M", -EINVAL, 77 },
    { "-1", -EINVAL, 77 },
    { "+1", -EINVAL, 77 },
    { " 1", -EINVAL, 77 },
    { "1 M", -EINVAL, 77 },
    { "1.", -EINVAL, 77 },
    { "1.M", -EINVAL, 77 },
    { ".5M", -EINVAL, 77 },
    { "1MB", -EINVAL, 77 }, /* 10^6 or 2^20? ambiguous, so refused */
    { "1Mi", -EINVAL, 77 },
    { "1BiB", -EINVAL, 77 },
    { "1X", -EINVAL, 77 },
    { "0x10", -EINVAL, 77 },
    { "1e3", -EINVAL, 77 },
    { "9223372036854775807", 0, INT64_MAX },
    { "9223372036854775808", -ERANGE, 77 },
    { "8192P", -ERANGE, 77 },
    { "99999999999999999999999999999999999999999999999999G", -ERANGE, 77 },
};

static void size_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zb_err err = { 0 };
        uint64_t bytes = 77;
        int rc = zb_size_parse(cases[i].text, &bytes, &err);

        if (rc != cases[i].rc || bytes != cases[i].bytes || (rc != 0) != (err.text[0] != '\0'))
            fail_msg("'%s': got %d, %llu, '%s'", cases[i].text, rc, (unsigned long long)bytes,
                     err.text);
    }
}

static void lists_of_sizes(void **state)
{
    static const struct {
        const char *text;
        int rc;
        const char *again;
    } lists[] = {
        { "8M", 1, "8M" },
        { "0", 1, "0" },
        { "8M,4096K", 2, "8M,4M" },
        { " 1G , 1G ,1024M", 3, "1G" },
        { "4097,1.5G", 2, "4097,1536M" },
        { "1,2,3,4", 4, "1,2,3,4" },
        { "1,2,3,4,5", -EINVAL, NULL },
        { "", -EINVAL, NULL },
        { "8M,", -EINVAL, NULL },
        { ",8M", -EINVAL, NULL },
        { "8M 8M", -EINVAL, NULL },
        { "8M,x", -EINVAL, NULL },
        { "8192P,1", -ERANGE, NULL },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lists); i++) {
        struct zb_err err = { 0 };
        uint64_t sizes[4];
        char text[64];
        int rc = zb_sizes_parse(lists[i].text, sizes, ZB_COUNT(sizes), &err);

        if (rc != lists[i].rc || (rc < 0) != (err.text[0] != '\0'))
            fail_msg("'%s': got %d, '%s'", lists[i].text, rc, err.text);
        if (rc < 0)
            continue;
        assert_true(zb_sizes_text(sizes, (unsigned)rc, text, sizeof(text)));
        assert_string_equal(text, lists[i].again);
        assert_false(zb_sizes_text(sizes, (unsigned)rc, text, strlen(lists[i].again)));
    }
}

static void size_text(void **state)
{
    (void)state;
    assert_string_equal(zb_size_text(0).s, "0 B");
    assert_string_equal(zb_size_text(1023).s, "1023 B");
    assert_string_equal(zb_size_text(1536).s, "1.50 KiB");
    assert_string_equal(zb_size_text(20 * ZB_MIB).s, "20.0 MiB");
    assert_string_equal(zb_size_text(512 * ZB_GIB).s, "512 GiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_table),
        cmocka_unit_test(lists_of_sizes),
        cmocka_unit_test(size_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
