/*
 * The page of NVMe SMART as bytes, and the files of sysfs in a folder of the test.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/device.h"
#include "tests/folder.h"

struct put {
    unsigned at;
    uint8_t byte;
};

static const struct {
    const char *name;
    struct put puts[20];
    int rc;
    struct zb_smart smart;
} pages[] = {
    { "a drive in its third year",
      { { 1, 0x35 },
        { 2, 0x01 },
        { 3, 100 },
        { 4, 10 },
        { 5, 17 },
        { 32, 0x39 },
        { 33, 0x30 }, /* 12345 units read */
        { 48, 0x15 },
        { 49, 0xcd },
        { 50, 0x5b },
        { 51, 0x07 }, /* 123456789 written */
        { 112, 1 } },
      0,
      { 0, 17, 100, 10, 12345u * UINT64_C(512000), 123456789u * UINT64_C(512000) } },
    { "worn out, with warnings",
      { { 0, 0x05 }, { 3, 2 }, { 4, 10 }, { 5, 255 } },
      0,
      { 5, 255, 2, 10, 0, 0 } },
    { "the largest count that fits",
      /* UINT64_MAX / 512000 = 36028797018963 = 0x20c49ba5e353 */
      { { 5, 1 },
        { 48, 0x53 },
        { 49, 0xe3 },
        { 50, 0xa5 },
        { 51, 0x9b },
        { 52, 0xc4 },
        { 53, 0x20 } },
      0,
      { 0, 1, 0, 0, 0, UINT64_C(36028797018963) * 512000 } },
    { "one more",
      { { 5, 1 },
        { 48, 0x54 },
        { 49, 0xe3 },
        { 50, 0xa5 },
        { 51, 0x9b },
        { 52, 0xc4 },
        { 53, 0x20 } },
      0,
      { 0, 1, 0, 0, 0, UINT64_MAX } },
    { "more than 64 bits", { { 5, 1 }, { 32, 1 }, { 47, 1 } }, 0, { 0, 1, 0, 0, UINT64_MAX, 0 } },
    { "zeros", { { 0, 0 } }, -EBADMSG, { 0 } },
};

static void smart(void **state)
{
    uint8_t page[ZB_SMART_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        struct zb_smart got = { .warning = 77 }, none = { .warning = 77 };
        const struct zb_smart *want = pages[i].rc == 0 ? &pages[i].smart : &none;

        memset(page, 0, sizeof(page));
        for (size_t k = 0; k < 20; k++)
            page[pages[i].puts[k].at] |= pages[i].puts[k].byte;
        if (zb_smart_parse(page, &got) != pages[i].rc || got.warning != want->warning ||
            got.percentage_used != want->percentage_used || got.spare != want->spare ||
            got.spare_least != want->spare_least || got.read_bytes != want->read_bytes ||
            got.written_bytes != want->written_bytes)
            fail_msg("%s: read %llu, written %llu, used %u", pages[i].name,
                     (unsigned long long)got.read_bytes, (unsigned long long)got.written_bytes,
                     got.percentage_used);
    }
    memset(page, 0xff, sizeof(page));
    assert_int_equal(zb_smart_parse(page, &(struct zb_smart){ 0 }), -EBADMSG);
}

static const struct {
    const char *device, *text;
    int rc;
    uint64_t written, discarded;
} stats[] = {
    { "8:0", "  10 0 80 5  20 0 4096 9 0 3 4  7 0 2048 1  3 2\n", 0, 4096 * 512, 2048 * 512 },
    { "259:3", "10 0 80 5 20 0 16 9 0 3 4\n", 0, 16 * 512, 0 }, /* before Linux 4.18 */
    { "8:1", "", -EBADMSG, 0, 0 },
    { "8:2", "1 2 3\n", -EBADMSG, 0, 0 },
    { "8:3", NULL, -ENOENT, 0, 0 },
    { "", NULL, -EINVAL, 0, 0 },
    { "sda", NULL, -EINVAL, 0, 0 },
};

static void use(void **state)
{
    char dir[] = "/tmp/zshard-device-XXXXXX", path[200];

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/dev", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/dev/block", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof(stats) / sizeof(stats[0]); i++) {
        struct zb_device_use got = { 1, 1 };

        (void)snprintf(path, sizeof(path), "%s/dev/block/%s", dir, stats[i].device);
        if (stats[i].text) {
            FILE *file;

            assert_int_equal(mkdir(path, 0700), 0);
            (void)snprintf(path, sizeof(path), "%s/dev/block/%s/stat", dir, stats[i].device);
            file = fopen(path, "w");
            assert_non_null(file);
            assert_true(fputs(stats[i].text, file) >= 0);
            assert_int_equal(fclose(file), 0);
        }
        if (zb_device_use(stats[i].device, dir, &got) != stats[i].rc ||
            (stats[i].rc == 0 &&
             (got.written_bytes != stats[i].written || got.discarded_bytes != stats[i].discarded)))
            fail_msg("'%s'", stats[i].device);
    }
    assert_int_equal(folder_remove(dir), 0);
    assert_int_equal(zb_smart_read("", &(struct zb_smart){ 0 }), -EINVAL);
    assert_int_equal(zb_smart_read("0:0", &(struct zb_smart){ 0 }), -ENODEV);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(smart), cmocka_unit_test(use) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
