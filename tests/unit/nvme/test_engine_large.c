/*
 * One request of the largest size: every backend transfers all of it, even if the kernel splits it.
 */
#include "zn_test.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

static void engine_largest_request(void **state)
{
    static const char *const engines[] = { "uring", "threads" };
    const uint64_t size = ZN_DATA_START + ZN_IO_BYTES_MAX;
    uint64_t *buf = mmap(NULL, ZN_IO_BYTES_MAX, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const size_t last = ZN_IO_BYTES_MAX / sizeof(*buf) - 1;
    char dir[256], path[300];
    struct statvfs vfs;

    (void)state;
    assert_ptr_not_equal(buf, MAP_FAILED);
    assert_int_equal(zn_test_dir_make(dir, sizeof(dir), NULL), 0);
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    if (statvfs(dir, &vfs) < 0 || (uint64_t)vfs.f_bavail * vfs.f_frsize < 2 * size) {
        zn_test_dir_remove(dir);
        ztest_skip("no room for %llu bytes in %s", (unsigned long long)size, dir);
    }
    for (size_t i = 0; i < ZB_COUNT(engines); i++) {
        struct zn_options o = { .path = path, .size_bytes = size, .io = engines[i] };
        struct zb_err err = { 0 };
        struct zn_engine *e;

        if (zn_open(&e, &o, &err) < 0) {
            print_message("%s: skipped: %s\n", engines[i], err.text);
            continue;
        }
        buf[0] = 11 + i;
        buf[last] = 22 + i;
        assert_int_equal(zn_test_io(e, ZN_WRITE, buf, ZN_IO_BYTES_MAX, ZN_DATA_START), 0);
        buf[0] = buf[last / 2] = buf[last] = 99;
        assert_int_equal(zn_test_io(e, ZN_READ, buf, ZN_IO_BYTES_MAX, ZN_DATA_START), 0);
        assert_int_equal(buf[0], 11 + i);
        assert_int_equal(buf[last / 2], 0);
        assert_int_equal(buf[last], 22 + i);
        assert_int_equal(zn_stats(e).written_bytes, ZN_IO_BYTES_MAX);
        zn_close(e);
    }
    (void)munmap(buf, ZN_IO_BYTES_MAX);
    zn_test_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_largest_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
