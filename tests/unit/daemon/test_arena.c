/* Arenas: complete, sealed, zero, on huge pages if the kernel provides them, and without them
 * too. */
#include "tests/ztest.h"

#include "daemon/os/arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/nvme/zn_test.h"

#define HUGE     (UINT64_C(2) << 20)
#define COLLAPSE 25 /* MADV_COLLAPSE */

/* KiB of huge pages that shared memory at this address is mapped with. */
static unsigned long huge_kib(const void *base)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    unsigned long from, kib = 0;
    bool here = false;
    char line[512];

    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%*x ", &from) == 1 && strchr(line, '-') && strchr(line, ' ') &&
            line[0] != ' ' && strchr(line, '-') < strchr(line, ' '))
            here = from == (unsigned long)(uintptr_t)base;
        else if (here && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
            break;
    }
    (void)fclose(f);
    return kib;
}

/* Whether the kernel provides a huge page of shared memory for a plain request. */
static bool huge_works(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC);
    char *p = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *at = p + (HUGE - (uintptr_t)p % HUGE) % HUGE;
    bool works;

    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(ftruncate(fd, (off_t)HUGE), 0);
    assert_ptr_equal(mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), at);
    at[0] = 1;
    works = madvise(at, HUGE, COLLAPSE) == 0;
    assert_int_equal(munmap(p, 2 * HUGE), 0);
    assert_int_equal(close(fd), 0);
    return works;
}

static bool all_zero(const uint8_t *p, uint64_t bytes)
{
    return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

static int arena_check(const void *arg)
{
    uint64_t bytes = *(const uint64_t *)arg;
    struct zb_err err = { 0 };
    struct zsd_arena a;
    struct stat st;
    void *mapped;

    if (zsd_arena_open(&a, "test", bytes, true, &err) != 0)
        return 1;
    if (fstat(a.fd, &st) != 0 || (uint64_t)st.st_size != bytes || a.bytes != bytes ||
        (uint64_t)st.st_blocks * 512 < bytes)
        return 2; /* all of its memory is there */
    if (bytes > 0 && ((uintptr_t)a.base % HUGE != 0 || !all_zero(a.base, bytes)))
        return 3;
    if (ftruncate(a.own_fd, (off_t)bytes + 4096) == 0 || errno != EPERM)
        return 4;
    if (bytes > 0) {
        a.base[bytes - 1] = 7;
        mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, a.fd, 0);
        if (mapped == MAP_FAILED || ((uint8_t *)mapped)[bytes - 1] != 7)
            return 5;
        if (mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0) != MAP_FAILED)
            return 6;
        zsd_arena_close(&a);
        if (!all_zero(mapped, bytes))
            return 7; /* freed at once, although it is mapped */
        (void)munmap(mapped, bytes);
    } else {
        zsd_arena_close(&a);
    }
    return a.fd == -1 && a.own_fd == -1 && !a.base ? 0 : 8;
}

static const uint64_t arena_sizes[] = { 0, 4096, HUGE - 4096, HUGE, 3 * HUGE + 4096 };

static void arena_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(arena_sizes); i++)
        assert_int_equal(arena_check(&arena_sizes[i]), 0);
}

static int child_without(const void *arg)
{
    const struct zn_test_refusal refusal = { __NR_madvise, EINVAL, COLLAPSE };

    return zn_test_refuse(&refusal, 1) < 0 ? 99 : arena_check(arg);
}

static void arena_without_huge_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(arena_sizes); i++)
        assert_int_equal(zn_test_child(child_without, &arena_sizes[i]), 0);
}

static void arena_is_huge(void **state)
{
    struct zsd_arena a;

    (void)state;
    if (!huge_works())
        ztest_skip("there are no huge pages");
    assert_int_equal(zsd_arena_open(&a, "test", 3 * HUGE + 4096, false, NULL), 0);
    memset(a.base, 1, a.bytes);
    assert_int_equal(huge_kib(a.base), 3 * HUGE / 1024);
    zsd_arena_close(&a);
}

static void private_memory(void **state)
{
    (void)state;
    for (size_t i = 1; i < ZB_COUNT(arena_sizes); i++) {
        uint8_t *p = zsd_private_new(arena_sizes[i]);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % HUGE, 0);
        assert_true(all_zero(p, arena_sizes[i]));
        memset(p, 1, arena_sizes[i]);
        zsd_private_free(p, arena_sizes[i]);
    }
    zsd_private_free(NULL, 4096);
    assert_null(zsd_private_new(UINT64_C(1) << 60));
}

/* Parts of the address range get memory, and give it back; neighbouring parts stay. */
static void parts_come_and_go(void **state)
{
    uint64_t part = 5 * UINT64_C(65536), all = 3 * part;
    uint8_t *p = zsd_private_reserve(all);

    (void)state;
    assert_non_null(p);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(zsd_private_make(p + i * part, part, i == 1), 0);
        assert_true(all_zero(p + i * part, part));
        memset(p + i * part, 1 + i, part);
    }
    for (int round = 0; round < 2; round++) {
        zsd_private_drop(p + part, part);
        assert_int_equal(zsd_private_make(p + part, part, round == 0), 0);
        assert_true(all_zero(p + part, part));
        memset(p + part, 9, part);
        assert_true(p[0] == 1 && p[part - 1] == 1 && p[2 * part] == 3 && p[all - 1] == 3);
    }
    zsd_private_drop(p, 0);
    assert_int_equal(zsd_private_make(p, 0, true), 0);
    zsd_private_free(p, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_and_go),        cmocka_unit_test(arena_table),
        cmocka_unit_test(arena_without_huge_pages), cmocka_unit_test(arena_is_huge),
        cmocka_unit_test(private_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
