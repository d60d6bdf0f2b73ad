/*
 * Discards on a real file and on a real block device (a loop device, if that is allowed).
 */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "nvme/zn.h"
#include "tests/unit/nvme/zn_test.h"

#define SIZE  (8 * ZB_MIB)
#define PIECE ((uint32_t)ZB_MIB)
#define AT    (2 * ZB_MIB) /* of three pieces, of which the middle one is discarded */

static char dir[200];

static uint64_t file_blocks(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* The first byte at or after `from` that is data (or hole). */
static uint64_t file_seek(const char *path, uint64_t from, int whence)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t at = lseek(fd, (off_t)from, whence);

    zb_close_fd(&fd);
    return at < 0 ? UINT64_MAX : (uint64_t)at;
}

static void expect_bytes(struct zn_engine *e, uint64_t at, unsigned char *buf, int byte)
{
    assert_int_equal(zn_test_io(e, ZN_READ, buf, PIECE, at), 0);
    for (uint32_t i = 0; i < PIECE; i++)
        assert_int_equal(buf[i], byte);
}

/* Writes three pieces, and discards the middle one. */
static void discard_middle(struct zn_engine *e, unsigned char *buf)
{
    memset(buf, 7, PIECE);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(zn_test_io(e, ZN_WRITE, buf, PIECE, AT + i * PIECE), 0);
    assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), 0);
    assert_int_equal(zn_test_io(e, ZN_DISCARD, NULL, PIECE, AT + PIECE), 0);
    assert_int_equal(zn_stats(e).discards, 1);
    assert_int_equal(zn_stats(e).discarded_bytes, PIECE);
    expect_bytes(e, AT, buf, 7);
    expect_bytes(e, AT + PIECE, buf, 0);
    expect_bytes(e, AT + 2 * PIECE, buf, 7);
}

static void of_a_file(void **state)
{
    static const char *const ios[] = { "uring", "threads" };
    unsigned char *buf = zn_test_memory(PIECE);
    char path[300];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    for (size_t i = 0; i < ZB_COUNT(ios); i++) {
        struct zn_options o = { .path = path, .size_bytes = SIZE, .io = ios[i] };
        struct zn_engine *e;
        uint64_t whole;

        if (zn_open(&e, &o, NULL) < 0)
            continue; /* no io_uring here */
        if (!zn_info(e)->discard) {
            print_message("%s\n", zn_info(e)->why_no_discard);
            zn_close(e);
            free(buf);
            ztest_skip("the file system has no holes");
        }
        whole = file_blocks(path);
        assert_true(whole >= SIZE);
        assert_true(zn_info(e)->device > 0);
        discard_middle(e, buf);
        assert_int_equal(file_seek(path, AT, SEEK_HOLE), AT + PIECE); /* freed, */
        assert_int_equal(file_seek(path, AT + PIECE, SEEK_DATA), AT + 2 * PIECE);
        assert_true(file_blocks(path) >= SIZE); /* and allocated again */
        assert_int_equal(zn_test_io(e, ZN_ALLOCATE, NULL, 3 * PIECE, AT), 0);
        expect_bytes(e, AT, buf, 7);
        memset(buf, 9, PIECE);
        assert_int_equal(zn_test_io(e, ZN_WRITE, buf, PIECE, AT + PIECE), 0);
        expect_bytes(e, AT + PIECE, buf, 9);
        zn_close(e);
        assert_int_equal(unlink(path), 0);
    }
    free(buf);
}

/* The space of a file that a daemon had lost is there again after the next start. */
static void a_start_allocates(void **state)
{
    struct zn_options o = { .size_bytes = SIZE };
    struct zn_engine *e;
    char path[300];
    int fd;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    o.path = path;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    zn_close(e);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT, PIECE) == 0)
        assert_true(file_blocks(path) < SIZE);
    zb_close_fd(&fd);
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    assert_true(file_blocks(path) >= SIZE || zn_info(e)->sparse);
    zn_close(e);
    assert_int_equal(unlink(path), 0);
}

static void at_done(struct zn_io *io, int rc)
{
    (void)io;
    (void)rc;
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *name;
        uint64_t at;
        uint32_t len;
    } rows[] = {
        { "an odd offset", ZN_DATA_START + 512, 4096 },
        { "an odd length", ZN_DATA_START, 512 },
        { "nothing", ZN_DATA_START, 0 },
        { "the superblock", 0, 4096 },
        { "behind the end", SIZE, 4096 },
    };
    struct zn_io one = { .op = ZN_DISCARD, .len_bytes = 4096, .off_bytes = AT, .done = at_done };
    struct zn_io two = one;
    struct zn_options o = { .size_bytes = SIZE };
    struct zn_engine *e;
    char path[300];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    o.path = path;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        if (zn_test_io(e, ZN_DISCARD, NULL, rows[i].len, rows[i].at) != -EINVAL)
            fail_msg("%s", rows[i].name);
    if (zn_info(e)->discard) {
        assert_int_equal(zn_submit(e, &one), 0);
        assert_int_equal(zn_submit(e, &two), -EBUSY);
        assert_int_equal(zn_stats(e).inflight, 0);
    }
    zn_close(e); /* waits for it */
    o.read_only = true;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    assert_false(zn_info(e)->discard);
    assert_true(strstr(zn_info(e)->why_no_discard, "read-only") != NULL);
    assert_int_equal(zn_test_io(e, ZN_DISCARD, NULL, 4096, AT), -EINVAL);
    zn_close(e);
    assert_int_equal(zn_absent_open(&e, 1, NULL), 0);
    assert_false(zn_info(e)->discard);
    zn_close(e);
    assert_int_equal(unlink(path), 0);
}

static void of_a_device(void **state)
{
    unsigned char *buf = zn_test_memory(PIECE);
    struct zn_options o = { .size_bytes = SIZE };
    char image[300], device[64];
    struct zn_engine *e;
    uint64_t whole;
    int fd;

    (void)state;
    (void)snprintf(image, sizeof(image), "%s/image", dir);
    fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(posix_fallocate(fd, 0, SIZE), 0);
    zb_close_fd(&fd);
    if (!zn_test_loop_up(image, device, sizeof(device), &fd)) {
        assert_int_equal(unlink(image), 0);
        free(buf);
        skip();
    }
    o.path = device;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    if (zn_info(e)->discard) {
        assert_true(zn_info(e)->told && zn_info(e)->discard_bytes >= 4096);
        whole = file_blocks(image);
        discard_middle(e, buf);
        assert_true(file_blocks(image) <= whole - PIECE / 2); /* the device freed it */
        assert_int_equal(file_seek(image, AT, SEEK_HOLE), AT + PIECE);
        assert_int_equal(zn_test_io(e, ZN_ALLOCATE, NULL, PIECE, AT + PIECE),
                         0); /* nothing to do */
    }
    print_message("a loop device: %s\n",
                  zn_info(e)->discard ? "discards" : zn_info(e)->why_no_discard);
    zn_close(e);
    zb_close_fd(&fd);
    free(buf);
    assert_int_equal(unlink(image), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_file),
        cmocka_unit_test(a_start_allocates),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(of_a_device),
    };
    int rc;

    if (zn_test_dir_make(dir, sizeof(dir), NULL) < 0)
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    zn_test_dir_remove(dir);
    return rc;
}
