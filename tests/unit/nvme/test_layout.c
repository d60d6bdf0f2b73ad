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
    .path = 7,
};

/* The block byte by byte, as in FORMAT.md. */
static void super_bytes(void **state)
{
    static const unsigned char head[48] = {
        0x89, 'Z',  'S', 'H', 'D', '\r', '\n', 0x1a, 1, 0, 0, 0,  0x03, 0x01,
        0x01, 0x23, 1,   2,   3,   4,    5,    6,    7, 8, 9, 10, 11,   12,
        13,   14,   15,  16,  0,   0,    6,    5,    4, 3, 2, 1,  7,    0,
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
    assert_int_equal(got.path, super.path);
}

/* Any bit of the block: in the magic, the block is foreign; elsewhere, it is damaged. */
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

/* A later version with a right checksum (at the same offset, over the same bytes) is named. */
static void super_of_the_future(void **state)
{
    unsigned char block[ZN_SUPER_BYTES];
    struct zb_err err = { 0 };
    struct zn_super got;
    static const unsigned char crc[4] = { 0x7f, 0x39, 0x74, 0x23 };

    (void)state;
    zn_super_encode(&super, block);
    block[8] = 9;
    memcpy(block + 12, crc, sizeof(crc));
    assert_int_equal(zn_super_decode(block, "/d/x", &got, &err), -EOPNOTSUPP);
    assert_string_equal(err.text, "'/d/x' has format version 9, and this program knows 1");
}

static const struct {
    const char *name;
    uint64_t length;   /* of the file; all zeros, */
    uint64_t mark_off; /* except for `mark` here */
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
        rc = zn_layout_read(zn_fd(fd), path, &got, &err);
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
    zn_super_init(&a, NULL);
    zn_super_init(&b, NULL);
    assert_memory_not_equal(a.uuid, b.uuid, sizeof(a.uuid));
    assert_int_equal(a.uuid[6] >> 4, 4);
    assert_int_equal(a.uuid[8] >> 6, 2);
    assert_int_equal(zn_layout_write(zn_fd(fd), path, &a, NULL), 0);
    assert_int_equal(zn_layout_read(zn_fd(fd), path, &got, NULL), 0);
    assert_memory_equal(&got, &a, sizeof(a));
    assert_int_equal(close(fd), 0);

    /* then every call that can fail */
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(zn_layout_write(zn_fd(fd), path, &a, &err), -EBADF);
    assert_non_null(strstr(err.text, "write the superblock of '"));
    assert_int_equal(close(fd), 0);
    err.code = 0;
    fd = open("/dev/null", O_RDWR | O_CLOEXEC); /* it can be written, but not flushed */
    assert_int_equal(zn_layout_write(zn_fd(fd), "null", &a, &err), -EINVAL);
    assert_string_equal(err.text, "flush the superblock of 'null': Invalid argument");
    assert_int_equal(close(fd), 0);
    err.code = 0;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(zn_layout_read(zn_fd(fd), "x", &got, &err), -EBADF);
    assert_string_equal(err.text, "read the beginning of 'x': Bad file descriptor");
    assert_int_equal(close(fd), 0);
    zn_test_dir_remove(dir);
}

static const struct zn_slot slot = {
    .sequence = UINT64_C(0x0102030405060708),
    .digest = UINT64_C(0xf1f2f3f4f5f6f7f8),
    .catalog = { 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36 },
};

/* A slot byte by byte, as in FORMAT.md, with the checksum of these bytes. */
static void slot_bytes(void **state)
{
    static const unsigned char head[64] = {
        0x89, 'Z', 'S', 'L', 'T', '\r', '\n', 0x1a, 1,    0,    0,    0,    0xd5, 0xf4, 0xb9, 0xbe,
        1,    2,   3,   4,   5,   6,    7,    8,    9,    10,   11,   12,   13,   14,   15,   16,
        21,   22,  23,  24,  25,  26,   27,   28,   29,   30,   31,   32,   33,   34,   35,   36,
        8,    7,   6,   5,   4,   3,    2,    1,    0xf8, 0xf7, 0xf6, 0xf5, 0xf4, 0xf3, 0xf2, 0xf1,
    };
    unsigned char block[ZN_SLOT_BYTES];
    struct zn_slot got;

    (void)state;
    memset(block, 0xee, sizeof(block));
    zn_slot_encode(&slot, super.uuid, block);
    assert_memory_equal(block, head, sizeof(head));
    for (size_t i = sizeof(head); i < sizeof(block); i++)
        assert_int_equal(block[i], 0);
    assert_int_equal(zn_slot_decode(block, super.uuid, &got), 0);
    assert_memory_equal(&got, &slot, sizeof(got));
    assert_int_equal(zn_slot_at(6), 4096);
    assert_int_equal(zn_slot_at(7), 8192);
}

static void slot_every_bit(void **state)
{
    unsigned char block[ZN_SLOT_BYTES];
    struct zn_slot got = { .sequence = 99 };
    uint8_t other[16];

    (void)state;
    zn_slot_encode(&slot, super.uuid, block);
    for (unsigned bit = 0; bit < ZN_SLOT_BYTES * 8; bit++) {
        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (zn_slot_decode(block, super.uuid, &got) != -EBADMSG || got.sequence != 99)
            fail_msg("bit %u", bit);
        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (unsigned bit = 0; bit < 128; bit++) { /* another file's */
        memcpy(other, super.uuid, sizeof(other));
        other[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(zn_slot_decode(block, other, &got), -EBADMSG);
    }
    memset(block, 0, sizeof(block));
    assert_int_equal(zn_slot_decode(block, super.uuid, &got), -ENODATA);
    assert_int_equal(got.sequence, 99);
}

/* The two places hold: a sequence, 0 for blank, BAD for damaged, or NEW for a later version. */
enum { BAD = 1000, NEW };

static const struct {
    const char *name;
    uint64_t at[ZN_SLOTS];
    int rc;
    uint64_t newest;
} newest_cases[] = {
    { "neither was written", { 0, 0 }, 0, 0 },
    { "the first commit", { 0, 1 }, 0, 1 },
    { "the second", { 2, 1 }, 0, 2 },
    { "the third", { 2, 3 }, 0, 3 },
    { "the newer one is damaged", { 2, BAD }, 0, 2 },
    { "the older one is damaged", { BAD, 3 }, 0, 3 },
    { "the first write was cut", { 0, BAD }, 0, 0 },
    { "both are damaged", { BAD, BAD }, -EBADMSG, 0 },
    { "each is in the other's place", { 3, 2 }, -EBADMSG, 0 },
    { "the newer one is not in its place", { 3, 1 }, 0, 1 },
    { "of a later version", { NEW, 3 }, -EOPNOTSUPP, 0 },
};

static void slot_put(uint64_t what, unsigned char *block)
{
    struct zn_slot s = slot;
    static const unsigned char crc[4] = { 0xa9, 0xcc, 0xcc, 0xbe };

    memset(block, 0, ZN_SLOT_BYTES);
    s.sequence = what == BAD ? 1 : what == NEW ? slot.sequence : what;
    if (what > 0)
        zn_slot_encode(&s, super.uuid, block);
    if (what == BAD)
        block[50] ^= 1;
    if (what == NEW) {
        block[8] = 9;
        memcpy(block + 12, crc, sizeof(crc));
    }
}

static void slot_newest(void **state)
{
    unsigned char blocks[ZN_SLOTS * ZN_SLOT_BYTES];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(newest_cases); i++) {
        struct zn_slot got = { .sequence = 99 };
        struct zb_err err = { 0 };
        int rc;

        for (unsigned k = 0; k < ZN_SLOTS; k++)
            slot_put(newest_cases[i].at[k], blocks + (size_t)k * ZN_SLOT_BYTES);
        rc = zn_slot_newest(blocks, super.uuid, "/d/x", &got, &err);
        if (rc != newest_cases[i].rc || err.code != rc ||
            got.sequence != (rc == 0 ? newest_cases[i].newest : 99))
            fail_msg("%s: %d, %llu", newest_cases[i].name, rc, (unsigned long long)got.sequence);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(super_bytes),         cmocka_unit_test(super_every_bit),
        cmocka_unit_test(super_of_the_future), cmocka_unit_test(layout_table),
        cmocka_unit_test(layout_write_read),   cmocka_unit_test(slot_bytes),
        cmocka_unit_test(slot_every_bit),      cmocka_unit_test(slot_newest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
