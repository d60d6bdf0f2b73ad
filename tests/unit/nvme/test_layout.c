#include "zn_test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvme/layout.h"

static const struct zn_super super = {
    .uuid = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 },
    .size_bytes = UINT64_C(0x0102030405060000),
};

/* The block as FORMAT.md has it, byte by byte. */
static void super_bytes(void **state)
{
    static const unsigned char head[40] = {
        0x89, 'Z',  'S', 'H', 'D', '\r', '\n', 0x1a, 1, 0, 0, 0,  0x04, 0xe5,
        0xba, 0xfe, 1,   2,   3,   4,    5,    6,    7, 8, 9, 10, 11,   12,
        13,   14,   15,  16,  0,   0,    6,    5,    4, 3, 2, 1,
    };
    unsigned char block[ZN_SUPER_BYTES];
    struct zn_super got;

    (void)state;
    memset(block, 0xee, sizeof(block));
    zn_super_encode(&super, block);
    assert_memory_equal(block, head, sizeof(head));
    for (size_t i = sizeof(head); i < sizeof(block); i++)
        assert_int_equal(block[i], 0);
    assert_int_equal(zn_super_decode(block, "x", &got, NULL), 0);
    assert_memory_equal(got.uuid, super.uuid, sizeof(got.uuid));
    assert_int_equal(got.size_bytes, super.size_bytes);
}

/* Any bit of the block: in the magic it is not ours, elsewhere it is damaged. */
static void super_every_bit(void **state)
{
    unsigned char block[ZN_SUPER_BYTES];
    struct zn_super got = { .size_bytes = 99 };

    (void)state;
    zn_super_encode(&super, block);
    for (unsigned bit = 0; bit < ZN_SUPER_BYTES * 8; bit++) {
        int want = bit < 64 ? -EMEDIUMTYPE : -EBADMSG;
        int rc;

        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
        rc = zn_super_decode(block, "x", &got, NULL);
        if (rc != want || got.size_bytes != 99)
            fail_msg("bit %u: %d", bit, rc);
        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

/* A later version with a right checksum (at the same place, of the same bytes) is named. */
static void super_of_the_future(void **state)
{
    unsigned char block[ZN_SUPER_BYTES];
    struct zb_err err = { 0 };
    struct zn_super got;
    static const unsigned char crc[4] = { 0x78, 0xdd, 0xcf, 0xfe };

    (void)state;
    zn_super_encode(&super, block);
    block[8] = 9;
    memcpy(block + 12, crc, sizeof(crc));
    assert_int_equal(zn_super_decode(block, "/d/x", &got, &err), -EOPNOTSUPP);
    assert_string_equal(err.text, "'/d/x' has format version 9, and this program knows 1");
}

static const struct {
    const char *name;
    uint64_t length;   /* of the file, zeros ... */
    uint64_t mark_off; /* ... but for `mark`, here */
    const char *mark;  /* NULL: none; "super": our superblock */
    int rc;
} layout_cases[] = {
    { "empty", 0, 0, NULL, -ENODATA },
    { "a few zeros", 100, 0, NULL, -ENODATA },
    { "zeros", ZN_BLANK_BYTES + 4096, 0, NULL, -ENODATA },
    { "ours", 8192, 0, "super", 0 },
    { "ours, in the wrong place", 65536, 4096, "super", -EMEDIUMTYPE },
    { "ours, in the second chunk", 131072, 65536, "super", -EMEDIUMTYPE },
    { "ours, cut short", 40, 0, "super", -EMEDIUMTYPE },
    { "text", 12, 0, "hello, world", -EMEDIUMTYPE },
    { "a file system of ext", 1 << 20, 1024 + 56, "\x53\xef", -EMEDIUMTYPE },
    { "a file system of btrfs", 1 << 20, 65536 + 64, "_BHRfS_M", -EMEDIUMTYPE },
    { "a boot sector", 1 << 20, 510, "\x55\xaa", -EMEDIUMTYPE },
    { "a member of RAID", 1 << 20, 4096, "\xfc\x4e\x2b\xa9", -EMEDIUMTYPE },
    { "the last byte that we look at", 2 << 20, ZN_BLANK_BYTES - 1, "x", -EMEDIUMTYPE },
    { "the first that we do not", 2 << 20, ZN_BLANK_BYTES, "x", -ENODATA },
};

static void layout_table(void **state)
{
    char dir[256], path[300];

    (void)state;
    assert_int_equal(zn_test_dir_make(dir, sizeof(dir), NULL), 0);
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    for (size_t i = 0; i < ZB_COUNT(layout_cases); i++) {
        unsigned char block[ZN_SUPER_BYTES];
        const char *mark = layout_cases[i].mark;
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        struct zn_super got = { .size_bytes = 99 };
        struct zb_err err = { 0 };
        int rc;

        assert_true(fd >= 0);
        if (mark && strcmp(mark, "super") == 0) {
            zn_super_encode(&super, block);
            assert_int_equal(pwrite(fd, block, sizeof(block), (off_t)layout_cases[i].mark_off),
                             sizeof(block));
        } else if (mark) {
            assert_int_equal(pwrite(fd, mark, strlen(mark), (off_t)layout_cases[i].mark_off),
                             strlen(mark));
        }
        assert_int_equal(ftruncate(fd, (off_t)layout_cases[i].length), 0);
        rc = zn_layout_read(fd, path, &got, &err);
        if (rc != layout_cases[i].rc || (rc < 0 && got.size_bytes != 99) ||
            (err.code != 0) != (rc < 0 && rc != -ENODATA))
            fail_msg("%s: %d '%s'", layout_cases[i].name, rc, err.text);
        assert_int_equal(close(fd), 0);
    }
    zn_test_dir_remove(dir);
}

static void layout_write_read(void **state)
{
    char dir[256], path[300];
    struct zn_super a = { .size_bytes = 1 << 20 }, b = { .size_bytes = 1 << 20 }, got;
    struct zb_err err = { 0 };
    int fd;

    (void)state;
    assert_int_equal(zn_test_dir_make(dir, sizeof(dir), NULL), 0);
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    zn_super_init(&a);
    zn_super_init(&b);
    assert_memory_not_equal(a.uuid, b.uuid, sizeof(a.uuid));
    assert_int_equal(a.uuid[6] >> 4, 4);
    assert_int_equal(a.uuid[8] >> 6, 2);
    assert_int_equal(zn_layout_write(fd, path, &a, NULL), 0);
    assert_int_equal(zn_layout_read(fd, path, &got, NULL), 0);
    assert_memory_equal(&got, &a, sizeof(a));
    assert_int_equal(close(fd), 0);

    /* and every call that can fail */
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(zn_layout_write(fd, path, &a, &err), -EBADF);
    assert_non_null(strstr(err.text, "write the superblock of '"));
    assert_int_equal(close(fd), 0);
    err.code = 0;
    fd = open("/dev/null", O_RDWR | O_CLOEXEC); /* writes, and does not flush */
    assert_int_equal(zn_layout_write(fd, "null", &a, &err), -EINVAL);
    assert_string_equal(err.text, "flush the superblock of 'null': Invalid argument");
    assert_int_equal(close(fd), 0);
    err.code = 0;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(zn_layout_read(fd, "x", &got, &err), -EBADF);
    assert_string_equal(err.text, "read the beginning of 'x': Bad file descriptor");
    assert_int_equal(close(fd), 0);
    zn_test_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(super_bytes),         cmocka_unit_test(super_every_bit),
        cmocka_unit_test(super_of_the_future), cmocka_unit_test(layout_table),
        cmocka_unit_test(layout_write_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
