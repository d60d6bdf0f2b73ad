/*
 * Features of the kernel: registered memory, restrictions of the ring, needless wake-ups; and
 * urgent requests, which both engines put first.
 */
#include "zn_test.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nvme/engine_priv.h"

#define PAGE       ((uint32_t)65536)
#define PIECE      (UINT64_C(32) << 20) /* as in engine_uring.c */
#define FILE_BYTES (ZN_DATA_START + 64 * PAGE)

static char dir[256], path[300];

static int engine_try_open(struct zn_engine **ret, const char *io, unsigned threads)
{
    struct zn_options o = { .path = path, .size_bytes = FILE_BYTES, .io = io, .threads = threads };

    return zn_open(ret, &o, NULL);
}

/* An io_uring engine; without one the test is skipped. */
static struct zn_engine *uring_open(void)
{
    struct zn_engine *e;

    if (engine_try_open(&e, "uring", 0) < 0)
        ztest_skip("there is no io_uring");
    return e;
}

static char *memory_map(uint64_t len_bytes)
{
    char *p = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

/* Writes from one address, reads to another, compares; returns how many of the two were registered.
 */
static unsigned round_trip(struct zn_engine *e, char *from, char *to, uint64_t seed)
{
    uint64_t before = zn_stats(e).registered;

    for (size_t i = 0; i < PAGE; i += 8) {
        uint64_t v = ztest_random(&seed);

        memcpy(from + i, &v, 8);
    }
    assert_int_equal(zn_test_io(e, ZN_WRITE, from, PAGE, ZN_DATA_START + PAGE), 0);
    assert_int_equal(zn_test_io(e, ZN_READ, to, PAGE, ZN_DATA_START + PAGE), 0);
    assert_memory_equal(from, to, PAGE);
    return (unsigned)(zn_stats(e).registered - before);
}

/* Requests use registered memory, all of it, and nothing else; and not after it was
 * unregistered. */
static void memory_table(void **state)
{
    static const struct {
        const char *name;
        uint64_t from; /* in the region; to: one page further */
        unsigned registered;
    } cases[] = {
        { "the first page", 0, 2 },
        { "the end of the first piece", PIECE - 2 * PAGE, 2 },
        { "the last page of a piece, and the first of the next", PIECE - PAGE, 2 },
        { "across two pieces, and behind it", PIECE - PAGE / 2, 1 },
        { "before it, and across two pieces", PIECE - PAGE - PAGE / 2, 1 },
        { "the last page, and one behind the region", PIECE + 3 * PAGE, 1 },
        { "across the end, and behind it", PIECE + 3 * PAGE + PAGE / 2, 0 },
        { "far from it", PIECE + 6 * PAGE, 0 },
    };
    const uint64_t region = PIECE + 4 * PAGE;
    struct zn_engine *e = uring_open();
    char *map = memory_map(2 * PIECE);

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        char *from = map + cases[i].from;
        unsigned n;

        assert_int_equal(round_trip(e, from, from + PAGE, i), 0);
        assert_int_equal(zn_register(e, map, region), 0);
        n = round_trip(e, from, from + PAGE, i + 100);
        if (n != cases[i].registered)
            fail_msg("%s: %u transfers", cases[i].name, n);
        assert_int_equal(round_trip(e, from, from + PAGE, i + 200), n);
        assert_string_equal(zn_info(e)->why_unregistered, "");
        zn_unregister(e, map + 4096);
        zn_unregister(e, NULL);
        assert_int_equal(round_trip(e, from, from + PAGE, i + 300), n);
        zn_unregister(e, map);
        zn_unregister(e, map);
        assert_int_equal(round_trip(e, from, from + PAGE, i + 400), 0);
    }
    assert_int_equal(munmap(map, 2 * PIECE), 0);
    zn_close(e);
}

/* Memory of this process that the kernel has pinned. */
static unsigned long pinned_kib(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    unsigned long kib = 0;
    char line[256];

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "VmPin: %lu", &kib) == 1)
            break;
    (void)fclose(f);
    return kib;
}

/* Other memory at the same addresses: the kernel's knowledge of the old memory must not be used. */
static void memory_again(void **state)
{
    struct zn_engine *e = uring_open();
    char *map = memory_map(4 * PAGE);

    (void)state;
    assert_int_equal(pinned_kib(), 0);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(zn_register(e, map, 2 * PAGE), 0);
        assert_int_equal(zn_register(e, map + 2 * PAGE, 2 * PAGE), 0);
        assert_int_equal(round_trip(e, map, map + 3 * PAGE, i), 2);
        assert_int_equal(pinned_kib(), 4 * PAGE / 1024);
        zn_unregister(e, map);
        assert_int_equal(round_trip(e, map + 2 * PAGE, map + PAGE, i + 100), 1);
        zn_unregister(e, map + 2 * PAGE);
        assert_int_equal(pinned_kib(), 0);
        assert_ptr_equal(mmap(map, 4 * PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                         map);
    }
    assert_int_equal(zn_register(e, map, 4 * PAGE), 0);
    assert_int_equal(round_trip(e, map, map + PAGE, 7), 2);
    zn_close(e); /* registered memory is released with the engine */
    assert_int_equal(munmap(map, 4 * PAGE), 0);
}

struct waiting {
    struct zn_io io;
    int rc;
};

static void waiting_done(struct zn_io *io, int rc)
{
    zb_container_of(io, struct waiting, io)->rc = rc;
}

/* A region is unregistered while its requests wait for zn_kick(): they still arrive, and so do
 * those of another region. */
static void memory_taken_back(void **state)
{
    enum { REGIONS = 2, EACH = 3, N = REGIONS * EACH };
    struct zn_engine *e = uring_open();
    char *map = memory_map((uint64_t)N * PAGE), *other = memory_map((uint64_t)N * PAGE);
    static const enum zn_op ops[] = { ZN_WRITE, ZN_READ };

    (void)state;
    for (size_t i = 0; i < (size_t)N * PAGE; i++)
        map[i] = (char)(i * 7 + i / PAGE);
    for (unsigned round = 0; round < ZB_COUNT(ops); round++) {
        char *mem = ops[round] == ZN_WRITE ? map : other;
        uint64_t before = zn_stats(e).registered;
        struct waiting all[N];

        for (unsigned r = 0; r < REGIONS; r++)
            assert_int_equal(zn_register(e, mem + (size_t)r * EACH * PAGE, EACH * PAGE), 0);
        for (unsigned i = 0; i < N; i++) {
            all[i] = (struct waiting){ .io = { .op = ops[round],
                                               .buf = mem + (size_t)i * PAGE,
                                               .len_bytes = PAGE,
                                               .off_bytes = ZN_DATA_START + (uint64_t)i * PAGE,
                                               .done = waiting_done },
                                       .rc = 1 };
            assert_int_equal(zn_submit(e, &all[i].io), 0);
        }
        assert_int_equal(zn_stats(e).registered - before, N);
        zn_unregister(e, mem);
        zn_test_drain(e);
        zn_unregister(e, mem + (size_t)EACH * PAGE);
        for (unsigned i = 0; i < N; i++)
            if (all[i].rc != 0)
                fail_msg("request %u of round %u: %d", i, round, all[i].rc);
    }
    assert_memory_equal(map, other, (size_t)N * PAGE);
    assert_int_equal(munmap(map, (size_t)N * PAGE), 0);
    assert_int_equal(munmap(other, (size_t)N * PAGE), 0);
    zn_close(e);
}

/* Many regions, registered and unregistered in any order. */
static void memory_many(void **state)
{
    enum { N = 200 };
    struct zn_engine *e = uring_open();
    char *map = memory_map((uint64_t)N * PAGE), *other = memory_map(PAGE);
    bool in[N] = { false };
    uint64_t seed = 5;

    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        unsigned at = (unsigned)(ztest_random(&seed) % N);

        if (in[at])
            zn_unregister(e, map + (size_t)at * PAGE);
        else
            assert_int_equal(zn_register(e, map + (size_t)at * PAGE, PAGE), 0);
        in[at] = !in[at];
        at = (unsigned)(ztest_random(&seed) % N);
        if (i % 8 == 0)
            assert_int_equal(round_trip(e, map + (size_t)at * PAGE, other, i), in[at]);
    }
    zn_close(e);
    assert_int_equal(munmap(map, (uint64_t)N * PAGE), 0);
    assert_int_equal(munmap(other, PAGE), 0);
}

/* Without CAP_IPC_LOCK, and with little RLIMIT_MEMLOCK. */
static int child_limited(const void *arg)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct caps[2] = { 0 };
    struct rlimit limit = { .rlim_cur = 1 << 20, .rlim_max = 1 << 20 };
    char *map = memory_map(2 * PIECE);
    struct zn_engine *e;

    (void)arg;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || syscall(SYS_capget, &head, caps) < 0)
        return 2;
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &head, caps) < 0)
        return 2;
    if (engine_try_open(&e, "uring", 0) < 0)
        return 77;
    if (zn_register(e, map, PAGE) != 0 || zn_register(e, map + PIECE, PIECE) != 0)
        return 3;
    if (zn_test_io(e, ZN_WRITE, map, PAGE, ZN_DATA_START) != 0 || zn_stats(e).registered != 1 ||
        zn_info(e)->why_unregistered[0] != '\0')
        return 4;
    if (zn_test_io(e, ZN_WRITE, map + PIECE, PAGE, ZN_DATA_START) != 0 ||
        zn_stats(e).registered != 1)
        return 5;
    if (!strstr(zn_info(e)->why_unregistered, "register 32.0 MiB of memory: Cannot allocate") ||
        !strstr(zn_info(e)->why_unregistered, "RLIMIT_MEMLOCK")) {
        (void)fprintf(stderr, "%s\n", zn_info(e)->why_unregistered);
        return 6;
    }
    /* registered memory stays registered */
    if (zn_test_io(e, ZN_WRITE, map, PAGE, ZN_DATA_START) != 0 || zn_stats(e).registered != 2)
        return 7;
    zn_close(e);
    return 0;
}

static void memory_limited(void **state)
{
    int rc = zn_test_child(child_limited, NULL);

    (void)state;
    if (rc == 77)
        ztest_skip("there is no io_uring without privileges");
    assert_int_equal(rc, 0);
}

static void threads_have_no_use(void **state)
{
    struct zn_engine *e;
    char block[8];

    (void)state;
    assert_int_equal(engine_try_open(&e, "threads", 0), 0);
    assert_int_equal(zn_register(e, block, sizeof(block)), -EOPNOTSUPP);
    zn_unregister(e, block);
    zn_close(e);
}

/* ---- what the ring refuses */

static int ring_result(struct io_uring *ring, struct io_uring_sqe *sqe)
{
    struct io_uring_cqe *cqe = NULL;
    int res;

    io_uring_sqe_set_data(sqe, NULL);
    if (io_uring_submit_and_wait(ring, 1) != 1 || io_uring_wait_cqe(ring, &cqe) != 0)
        fail_msg("the ring does not answer");
    res = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return res;
}

static void ring_restricted(void **state)
{
    struct zn_engine *e = uring_open();
    struct io_uring *ring = e->impl; /* its first member */
    struct io_uring_sqe *sqe;
    char block[8];
    int fd = 0;

    (void)state;
    if (strstr(zn_info(e)->why, "restrictions")) { /* the kernel does not support them */
        zn_close(e);
        ztest_skip("the kernel has no restrictions of io_uring");
    }
    sqe = io_uring_get_sqe(ring);
    io_uring_prep_nop(sqe);
    sqe->flags = IOSQE_FIXED_FILE;
    assert_int_equal(ring_result(ring, sqe), -EACCES);
    sqe = io_uring_get_sqe(ring);
    io_uring_prep_openat(sqe, AT_FDCWD, path, O_RDONLY, 0);
    assert_int_equal(ring_result(ring, sqe), -EACCES);
    sqe = io_uring_get_sqe(ring); /* the file by its descriptor: refused, like another file */
    io_uring_prep_read(sqe, e->file.fd, block, sizeof(block), 0);
    assert_int_equal(ring_result(ring, sqe), -EACCES);
    assert_int_equal(io_uring_register_files_update(ring, 0, &fd, 1), -EACCES);
    assert_int_equal(io_uring_unregister_eventfd(ring), -EACCES);
    zn_close(e);
}

/* ---- wake-ups */

/* When everything has been reaped, the wake-up is quiet: the next poll does not return without
 * reason. */
static void wake_quiet(void **state)
{
    enum { N = 16 };
    struct zn_engine *e = uring_open();
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };
    char *map = memory_map(PAGE);

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(zn_test_io(e, ZN_READ, map, PAGE, ZN_DATA_START), 0);
        assert_int_equal(poll(&p, 1, 0), 0);
    }
    zn_close(e);
    assert_int_equal(munmap(map, PAGE), 0);
}

/* ---- urgent */

struct waiter {
    struct zn_io io;
    unsigned order;
};

static unsigned dones;

static void waiter_done(struct zn_io *io, int rc)
{
    assert_int_equal(rc, 0);
    zb_container_of(io, struct waiter, io)->order = dones++;
}

/* One thread, and a queue: urgent requests come first, each kind in order of arrival. */
static void urgent_first(void **state)
{
    enum { N = 24 };
    char *map = memory_map((uint64_t)N * PAGE);
    struct waiter w[N];
    struct zn_engine *e;
    unsigned expected = 0;

    (void)state;
    assert_int_equal(engine_try_open(&e, "threads", 1), 0);
    dones = 0;
    for (unsigned i = 0; i < N; i++) {
        w[i] = (struct waiter){ .io = { .op = i % 2 ? ZN_WRITE : ZN_READ,
                                        .buf = map + (size_t)i * PAGE,
                                        .len_bytes = PAGE,
                                        .off_bytes = ZN_DATA_START + (uint64_t)i * PAGE,
                                        .urgent = i % 3 == 2,
                                        .done = waiter_done } };
        assert_int_equal(zn_submit(e, &w[i].io), 0);
    }
    zn_kick(e);
    zn_test_drain(e);
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < N; i++)
            if (w[i].io.urgent == (pass == 0))
                assert_int_equal(w[i].order, expected++);
    zn_close(e);
    assert_int_equal(munmap(map, (uint64_t)N * PAGE), 0);
}

static int dir_make(void **state)
{
    (void)state;
    if (zn_test_dir_make(dir, sizeof(dir), NULL) < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    return 0;
}

static int dir_remove(void **state)
{
    (void)state;
    zn_test_dir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_table),        cmocka_unit_test(memory_again),
        cmocka_unit_test(memory_taken_back),   cmocka_unit_test(memory_many),
        cmocka_unit_test(memory_limited),      cmocka_unit_test(ring_restricted),
        cmocka_unit_test(threads_have_no_use), cmocka_unit_test(wake_quiet),
        cmocka_unit_test(urgent_first),
    };

    return cmocka_run_group_tests(tests, dir_make, dir_remove);
}
