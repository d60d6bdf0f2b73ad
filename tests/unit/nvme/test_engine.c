/*
 * One suite for every backend: all of them keep the promises of zn.h, with O_DIRECT and without, on
 * a disk, in memory and on the simulated device.
 */
#include "zn_test.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvme/engine_priv.h"
#include "nvme/sim/engine_fault.h"
#include "nvme/sim/sim_priv.h"

enum { SLOT = 65536, SLOTS = 96 };

#define DATA_BYTES ((uint64_t)SLOT * SLOTS)
#define FILE_BYTES (ZN_DATA_START + DATA_BYTES)

static const struct variant {
    const char *name, *io, *base; /* base NULL: on the disk, in $TMPDIR or /tmp */
    bool buffered;
    uint64_t rate_bytes; /* of the simulated device; 0: requests finish at once, in any order */
} variants[] = {
    { "uring, O_DIRECT", "uring", NULL, false, 0 },
    { "uring, buffered", "uring", NULL, true, 0 },
    { "uring, tmpfs", "uring", "/dev/shm", false, 0 },
    { "threads, O_DIRECT", "threads", NULL, false, 0 },
    { "threads, buffered", "threads", NULL, true, 0 },
    { "threads, tmpfs", "threads", "/dev/shm", false, 0 },
    { "sim", "sim", NULL, false, 0 },
    { "sim, fixed rate", "sim", NULL, false, UINT64_C(3000000000) },
};

static const struct variant *variant;
static char dir[256], path[300];
static struct zn_sim *sim; /* NULL: the file is a real one */

static void sim_open(void)
{
    struct zn_sim_options o = {
        .seed = 1, .batch = UINT_MAX, .rate_bytes = variant->rate_bytes, .latency_ns = 20000
    };

    assert_int_equal(zn_sim_new(&sim, &o, NULL), 0);
}

static struct zn_engine *engine_open(unsigned depth)
{
    struct zn_options o = { .path = path,
                            .size_bytes = FILE_BYTES,
                            .io = variant->io,
                            .depth = depth,
                            .buffered = variant->buffered };
    struct zb_err err = { 0 };
    struct zn_engine *e;

    if (sim ? zn_sim_engine(&e, sim, path, FILE_BYTES, depth, &err) : zn_open(&e, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static struct zn_engine *engine_open_faulty(const struct zn_fault_plan *plan)
{
    struct zn_engine *e = engine_open(0);

    assert_int_equal(zn_fault_install(e, plan), 0);
    return e;
}

static void fill(void *buf, size_t len_bytes, uint64_t seed)
{
    for (size_t i = 0; i < len_bytes; i += 8) {
        uint64_t v = ztest_random(&seed);

        memcpy((char *)buf + i, &v, 8);
    }
}

/* Bytes of the file as another process sees them. */
static void file_read(void *buf, size_t len_bytes, uint64_t off_bytes)
{
    int fd;

    if (sim) {
        assert_int_equal(zn_sim_peek(sim, path, off_bytes, buf, len_bytes), 0);
        return;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, buf, len_bytes, (off_t)off_bytes), len_bytes);
    assert_int_equal(close(fd), 0);
}

static void file_write(const void *buf, size_t len_bytes, uint64_t off_bytes)
{
    int fd;

    if (sim) {
        assert_int_equal(zn_sim_poke(sim, path, off_bytes, buf, len_bytes), 0);
        return;
    }
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, buf, len_bytes, (off_t)off_bytes), len_bytes);
    assert_int_equal(close(fd), 0);
}

static void file_cut(uint64_t size_bytes)
{
    struct sim_op op = { .kind = SIM_RESIZE, .off = size_bytes };

    if (sim)
        op.file = (unsigned)sim_file(sim, path);
    assert_int_equal(sim ? sim_do(sim, &op) : truncate(path, (off_t)size_bytes), 0);
}

static void file_remove(void)
{
    if (sim) {
        zn_sim_free(sim);
        sim_open();
    } else {
        assert_int_equal(unlink(path), 0);
    }
}

/* A request, and its result. */
struct request {
    struct zn_io io;
    int rc, runs;
    unsigned order; /* position of its completion among all */
    struct zn_engine *e;
};

static unsigned dones;

static void request_done(struct zn_io *io, int rc)
{
    struct request *r = zb_container_of(io, struct request, io);

    r->rc = rc;
    r->runs++;
    r->order = dones++;
}

static void request_set(struct request *r, enum zn_op op, void *buf, uint32_t len_bytes,
                        uint64_t off_bytes)
{
    *r = (struct request){ .io = { .op = op,
                                   .buf = buf,
                                   .len_bytes = len_bytes,
                                   .off_bytes = off_bytes,
                                   .done = request_done },
                           .rc = 77 };
}

/* Sleeps until there has been no wake-up for a while: then all kicked requests have finished. */
static void settle(struct zn_engine *e)
{
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };

    assert_int_equal(poll(&p, 1, ZN_TEST_WAIT_MS), 1);
    (void)poll(NULL, 0, 200);
}

/*
 * Random reads and writes of random lengths, as many at a time as the engine accepts, in slots with
 * at most one request each; every byte read is compared with a model in memory.
 */
static struct {
    struct zn_engine *e;
    unsigned char *model, *bufs;
    struct request r[SLOTS];
    bool busy[SLOTS];
    unsigned left, wrong;
} stress;

static void stress_done(struct zn_io *io, int rc)
{
    struct request *r = zb_container_of(io, struct request, io);
    unsigned char *model = stress.model + (io->off_bytes - ZN_DATA_START);

    if (rc != 0)
        stress.wrong++;
    else if (io->op == ZN_WRITE)
        memcpy(model, io->buf, io->len_bytes);
    else if (io->op == ZN_READ && memcmp(model, io->buf, io->len_bytes) != 0)
        stress.wrong++;
    stress.busy[r - stress.r] = false;
}

static void stress_submit(unsigned slot, uint64_t *seed)
{
    uint32_t align = zn_info(stress.e)->align_bytes, units = SLOT / align;
    uint32_t first = (uint32_t)(ztest_random(seed) % units);
    uint32_t count = 1 + (uint32_t)(ztest_random(seed) % (units - first));
    struct zn_io *io = &stress.r[slot].io;
    unsigned dice = ztest_random(seed) % 64;

    *io = (struct zn_io){ .op = dice == 0  ? ZN_FLUSH
                                : dice % 2 ? ZN_READ
                                           : ZN_WRITE,
                          .buf = stress.bufs + (size_t)slot * SLOT,
                          .len_bytes = count * align,
                          .off_bytes = ZN_DATA_START + (uint64_t)slot * SLOT +
                                       (uint64_t)first * align,
                          .done = stress_done };
    fill(io->buf, io->len_bytes, ztest_random(seed));
    assert_int_equal(zn_submit(stress.e, io), 0);
    stress.busy[slot] = true;
    stress.left--;
}

static void stress_run(const struct zn_fault_plan *plan)
{
    uint64_t seed = 11;

    memset(&stress, 0, sizeof(stress));
    stress.e = engine_open(64);
    if (plan)
        assert_int_equal(zn_fault_install(stress.e, plan), 0);
    stress.model = zn_test_memory(DATA_BYTES);
    stress.bufs = zn_test_memory(DATA_BYTES);
    file_read(stress.model, DATA_BYTES, ZN_DATA_START);
    stress.left = 3000;
    while (stress.left > 0 || zn_stats(stress.e).inflight > 0) {
        while (stress.left > 0 && zn_stats(stress.e).inflight < 64) {
            unsigned slot = ztest_random(&seed) % SLOTS;

            if (!stress.busy[slot])
                stress_submit(slot, &seed);
        }
        zn_kick(stress.e);
        assert_true(zn_test_wait(stress.e));
        (void)zn_reap(stress.e, 1 + ztest_random(&seed) % 16);
    }
    assert_int_equal(stress.wrong, 0);
    assert_int_equal(zn_stats(stress.e).failed, 0);
    zn_close(stress.e);
    file_read(stress.bufs, DATA_BYTES, ZN_DATA_START);
    assert_memory_equal(stress.bufs, stress.model, DATA_BYTES);
    free(stress.model);
    free(stress.bufs);
}

static void engine_stress(void **state)
{
    (void)state;
    stress_run(NULL);
}

/* The same with every second transfer short, every seventh interrupted, and the order reversed. */
static void engine_stress_short(void **state)
{
    static const uint32_t cuts[] = { 0, 5000, 8192 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cuts); i++) {
        struct zn_fault_plan plan = {
            .short_every = 2, .short_bytes = cuts[i], .again_every = 7, .lifo = true
        };

        stress_run(&plan);
    }
}

/* In whatever order completions come, each belongs to its request. */
static void engine_out_of_order(void **state)
{
    enum { N = 16 };
    struct zn_fault_plan plan = { .lifo = true };
    struct zn_engine *e = engine_open_faulty(&plan);
    unsigned char *bufs = zn_test_memory((size_t)N * SLOT), *got = zn_test_memory(SLOT);
    struct request r[N];
    bool ascending = true;

    (void)state;
    dones = 0;
    for (unsigned i = 0; i < N; i++) {
        fill(bufs + (size_t)i * SLOT, SLOT, i + 1);
        request_set(&r[i], ZN_WRITE, bufs + (size_t)i * SLOT, SLOT,
                    ZN_DATA_START + (uint64_t)i * SLOT);
        assert_int_equal(zn_submit(e, &r[i].io), 0);
    }
    zn_kick(e);
    settle(e);
    zn_test_drain(e);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(r[i].rc, 0);
        assert_int_equal(r[i].runs, 1);
        ascending = ascending && r[i].order == i;
        file_read(got, SLOT, ZN_DATA_START + (uint64_t)i * SLOT);
        assert_memory_equal(got, bufs + (size_t)i * SLOT, SLOT);
    }
    assert_false(ascending);
    zn_close(e);
    free(bufs);
    free(got);
}

/* Requests beyond the limit are refused, not queued, until a done has run. */
static void engine_depth(void **state)
{
    static const unsigned depths[] = { 1, 4, 33, ZN_DEPTH_MAX };
    unsigned char *buf = zn_test_memory(4096);
    struct request *r = calloc(ZN_DEPTH_MAX + 1, sizeof(*r));

    (void)state;
    fill(buf, 4096, 7);
    for (size_t d = 0; d < ZB_COUNT(depths); d++) {
        unsigned depth = depths[d];
        struct zn_engine *e = engine_open(depth);

        assert_int_equal(zn_info(e)->depth, depth);
        for (unsigned i = 0; i <= depth; i++)
            request_set(&r[i], ZN_WRITE, buf, 4096, ZN_DATA_START);
        for (unsigned i = 0; i < depth; i++)
            assert_int_equal(zn_submit(e, &r[i].io), 0);
        assert_int_equal(zn_submit(e, &r[depth].io), -EAGAIN);
        assert_int_equal(zn_stats(e).inflight, depth);
        zn_kick(e);
        assert_int_equal(zn_submit(e, &r[depth].io), -EAGAIN);
        do {
            assert_true(zn_test_wait(e));
        } while (zn_reap(e, 1) == 0);
        assert_int_equal(zn_submit(e, &r[depth].io), 0);
        assert_int_equal(zn_submit(e, &r[depth].io), -EAGAIN);
        zn_test_drain(e);
        for (unsigned i = 0; i <= depth; i++) {
            assert_int_equal(r[i].rc, 0);
            assert_int_equal(r[i].runs, 1);
        }
        zn_close(e);
    }
    free(r);
    free(buf);
}

/* If less than a unit of alignment is transferred, the request ends instead of looping. Without
 * O_DIRECT every byte is progress. */
static void engine_no_progress(void **state)
{
    struct zn_fault_plan plan = { .short_every = 1, .short_bytes = 100 };
    struct zn_engine *e = engine_open_faulty(&plan);
    unsigned char *buf = zn_test_memory(8192);

    (void)state;
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 8192, ZN_DATA_START),
                     zn_info(e)->direct ? -EIO : 0);
    assert_int_equal(zn_fault_seen(e), zn_info(e)->direct ? 1 : 82);
    assert_int_equal(zn_stats(e).short_transfers, zn_info(e)->direct ? 0 : 81);
    zn_close(e);
    free(buf);
}

/* The caller kicks its requests once; the engine kicks what it sends again. */
static void engine_tails_kick(void **state)
{
    struct zn_fault_plan plan = { .short_every = 2, .again_every = 3 };
    struct zn_engine *e = engine_open_faulty(&plan);
    unsigned char *bufs = zn_test_memory((size_t)8 * SLOT);
    struct request r[8];

    (void)state;
    for (unsigned i = 0; i < ZB_COUNT(r); i++) {
        request_set(&r[i], ZN_READ, bufs + (size_t)i * SLOT, SLOT,
                    ZN_DATA_START + (uint64_t)i * SLOT);
        assert_int_equal(zn_submit(e, &r[i].io), 0);
    }
    zn_kick(e);
    while (zn_stats(e).inflight > 0) {
        assert_true(zn_test_wait(e));
        (void)zn_reap(e, 64);
    }
    assert_true(zn_stats(e).short_transfers > 0);
    zn_close(e);
    free(bufs);
}

/* The file became shorter behind the engine's back. */
static void engine_past_end(void **state)
{
    struct zn_engine *e = engine_open(0);
    unsigned char *buf = zn_test_memory(SLOT);
    struct zn_stats s;

    (void)state;
    file_cut(ZN_DATA_START + 2 * SLOT);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, SLOT, ZN_DATA_START + SLOT), 0);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, SLOT, ZN_DATA_START + 2 * SLOT), -EIO);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, SLOT, ZN_DATA_START + 2 * SLOT - SLOT / 2), -EIO);
    s = zn_stats(e);
    assert_int_equal(s.reads, 1);
    assert_int_equal(s.failed, 2);
    assert_int_equal(s.short_transfers, 1);
    zn_close(e);
    free(buf);
    file_remove();
}

static void engine_interrupted(void **state)
{
    static const struct {
        struct zn_fault_plan plan;
        int rc;
        unsigned seen;
    } cases[] = {
        { { .again_every = 2 }, 0, 1 }, /* then 2 is interrupted and 3 succeeds */
        { { .again_every = 1 }, -EINTR, 17 },
        { { .nth = 1, .nth_res = -EAGAIN }, 0, 2 },
        { { .nth = 1, .nth_on = true, .nth_res = -EAGAIN }, -EAGAIN, 17 },
        { { .nth = 1, .nth_res = 0 }, -EIO, 1 },
    };
    static const enum zn_op ops[] = { ZN_READ, ZN_WRITE };
    unsigned char *buf = zn_test_memory(4096);

    (void)state;
    fill(buf, 4096, 1);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        for (size_t o = 0; o < ZB_COUNT(ops); o++) {
            struct zn_engine *e = engine_open_faulty(&cases[i].plan);
            int rc = zn_test_io(e, ops[o], buf, 4096, ZN_DATA_START);

            if (rc != cases[i].rc || zn_fault_seen(e) != cases[i].seen)
                fail_msg("case %zu: %d after %u", i, rc, zn_fault_seen(e));
            zn_close(e);
        }
    }
    free(buf);
}

/* Some writes, a flush, and reading back; the nth transfer fails, for every n. */
static void engine_every_failure(void **state)
{
    enum { N = 5 };
    static const int failures[] = { -EIO, -ENOSPC, 0 };
    unsigned char *bufs = zn_test_memory((size_t)N * SLOT), *got = zn_test_memory((size_t)N * SLOT);

    (void)state;
    fill(bufs, (size_t)N * SLOT, 3);
    for (size_t f = 0; f < ZB_COUNT(failures); f++) {
        bool failed = true;
        unsigned nth = 1;

        for (; failed; nth++) {
            struct zn_fault_plan plan = { .nth = nth, .nth_res = failures[f], .short_every = 3 };
            struct zn_engine *e = engine_open_faulty(&plan);
            struct request r[2 * N + 1];
            unsigned bad = 0, flush_seen = 0;
            int want = failures[f] == 0 ? -EIO : failures[f];

            for (unsigned i = 0; i < N; i++)
                request_set(&r[i], ZN_WRITE, bufs + (size_t)i * SLOT, SLOT,
                            ZN_DATA_START + (uint64_t)i * SLOT);
            request_set(&r[N], ZN_FLUSH, NULL, 0, 0);
            for (unsigned i = 0; i < N; i++)
                request_set(&r[N + 1 + i], ZN_READ, got + (size_t)i * SLOT, SLOT,
                            ZN_DATA_START + (uint64_t)i * SLOT);
            for (unsigned i = 0; i < ZB_COUNT(r); i++) {
                assert_int_equal(zn_submit(e, &r[i].io), 0);
                if (i == N - 1) {
                    zn_test_drain(e);
                    flush_seen = zn_fault_seen(e) + 1;
                } else if (i == N) {
                    zn_test_drain(e);
                }
            }
            zn_test_drain(e);
            for (unsigned i = 0; i < ZB_COUNT(r); i++) {
                assert_int_equal(r[i].runs, 1);
                if (r[i].rc == 0)
                    continue;
                assert_int_equal(r[i].rc, want);
                bad++;
            }
            failed = zn_fault_seen(e) >= nth;
            if (bad != failed) /* except for a flush, whose success is 0 */
                assert_true(bad == 0 && failures[f] == 0 && flush_seen == nth);
            assert_int_equal(zn_stats(e).failed, bad);
            if (bad == 0)
                assert_memory_equal(got, bufs, (size_t)N * SLOT);
            zn_close(e);
        }
        assert_true(nth > 2 * N + 1 + N / 2);
    }
    free(bufs);
    free(got);
}

/* A dead device stays dead, and every request gets that error. */
static void engine_dead(void **state)
{
    struct zn_fault_plan plan = { .nth = 3, .nth_on = true, .nth_res = -EIO };
    struct zn_engine *e = engine_open_faulty(&plan);
    unsigned char *buf = zn_test_memory(4096);

    (void)state;
    for (int i = 1; i <= 6; i++)
        assert_int_equal(zn_test_io(e, ZN_READ, buf, 4096, ZN_DATA_START), i < 3 ? 0 : -EIO);
    assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), -EIO);
    plan = (struct zn_fault_plan){ 0 };
    assert_int_equal(zn_fault_install(e, &plan), 0); /* repaired */
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 4096, ZN_DATA_START), 0);
    zn_close(e);
    free(buf);
}

static const struct {
    const char *name;
    enum zn_op op;
    uint32_t buf_add; /* offset from an aligned address */
    bool null;
    uint64_t off_bytes;
    uint32_t len_bytes;
    int rc;
} submit_cases[] = {
    { "the first bytes", ZN_READ, 0, false, ZN_DATA_START, 4096, 0 },
    { "the last bytes", ZN_WRITE, 0, false, FILE_BYTES - 4096, 4096, 0 },
    { "no length", ZN_READ, 0, false, ZN_DATA_START, 0, -EINVAL },
    { "too long", ZN_READ, 0, false, ZN_DATA_START, ZN_IO_BYTES_MAX + 4096, -EINVAL },
    { "longer than the file", ZN_READ, 0, false, ZN_DATA_START, ZN_IO_BYTES_MAX, -EINVAL },
    { "the superblock", ZN_WRITE, 0, false, 0, 4096, -EINVAL },
    { "into the data from before", ZN_READ, 0, false, ZN_DATA_START - 4096, 8192, -EINVAL },
    { "over the end", ZN_READ, 0, false, FILE_BYTES - 4096, 8192, -EINVAL },
    { "at the end", ZN_READ, 0, false, FILE_BYTES, 4096, -EINVAL },
    { "an offset that wraps", ZN_READ, 0, false, UINT64_MAX - 4095, 8192, -EINVAL },
    { "an odd offset", ZN_READ, 0, false, ZN_DATA_START + 256, 4096, -EINVAL },
    { "an odd length", ZN_READ, 0, false, ZN_DATA_START, 4096 + 256, -EINVAL },
    { "an odd address", ZN_READ, 256, false, ZN_DATA_START, 4096, -EINVAL },
    { "no memory", ZN_WRITE, 0, true, ZN_DATA_START, 4096, -EINVAL },
    { "a slot of nothing", ZN_SLOT, 0, true, 0, 0, -EINVAL },
    { "no such operation", (enum zn_op)6, 0, false, ZN_DATA_START, 4096, -EINVAL },
    { "a flush, which has none of these", ZN_FLUSH, 1, true, 1, 1, 0 },
};

static void engine_submit_table(void **state)
{
    struct zn_engine *e = engine_open(0);
    unsigned char *buf = zn_test_memory(16384);
    struct request r;

    (void)state;
    fill(buf, 16384, 2);
    for (size_t i = 0; i < ZB_COUNT(submit_cases); i++) {
        int rc = zn_test_io(e, submit_cases[i].op,
                            submit_cases[i].null ? NULL : buf + submit_cases[i].buf_add,
                            submit_cases[i].len_bytes, submit_cases[i].off_bytes);

        if (rc != submit_cases[i].rc || zn_stats(e).inflight != 0)
            fail_msg("%s: %d", submit_cases[i].name, rc);
    }
    request_set(&r, ZN_READ, buf, 4096, ZN_DATA_START);
    r.io.done = NULL;
    assert_int_equal(zn_submit(e, &r.io), -EINVAL);
    zn_close(e);
    free(buf);
}

static void engine_stats(void **state)
{
    struct zn_fault_plan plan = { .nth = 8, .nth_res = -EIO };
    struct zn_engine *e = engine_open(0);
    unsigned char *buf = zn_test_memory(SLOT);
    struct zn_stats s = zn_stats(e);

    (void)state;
    assert_int_equal(s.reads + s.read_bytes + s.writes + s.written_bytes + s.flushes + s.failed +
                         s.short_transfers + s.inflight,
                     0); /* it does not include the trial request */
    fill(buf, SLOT, 4);
    assert_int_equal(zn_fault_install(e, &plan), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(zn_test_io(e, ZN_WRITE, buf, 12288, ZN_DATA_START), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(zn_test_io(e, ZN_READ, buf, 8192, ZN_DATA_START), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), 0);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 4096, ZN_DATA_START), -EIO);
    plan = (struct zn_fault_plan){ .short_every = 1, .short_bytes = 4096 };
    assert_int_equal(zn_fault_install(e, &plan), 0);
    assert_int_equal(zn_test_io(e, ZN_WRITE, buf, 16384, ZN_DATA_START), 0);
    s = zn_stats(e);
    assert_int_equal(s.writes, 4);
    assert_int_equal(s.written_bytes, 3 * 12288 + 16384);
    assert_int_equal(s.reads, 2);
    assert_int_equal(s.read_bytes, 2 * 8192);
    assert_int_equal(s.flushes, 2);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.short_transfers, 3);
    assert_int_equal(s.inflight, 0);
    zn_close(e);
    free(buf);
}

static struct zn_slot slot_of(uint64_t sequence)
{
    return (struct zn_slot){ .sequence = sequence,
                             .digest = sequence * 0x9e3779b97f4a7c15,
                             .catalog = { 7, 7, (uint8_t)sequence } };
}

static void slot_expect(struct zn_engine *e, uint64_t sequence)
{
    struct zn_slot want = sequence > 0 ? slot_of(sequence) : (struct zn_slot){ 0 }, got;

    memset(&got, 0xee, sizeof(got));
    assert_int_equal(zn_newest_slot(e, &got, NULL), 0);
    assert_memory_equal(&got, &want, sizeof(got));
}

/* Slots are found again when the file is opened, each at its place, whatever the offset. */
static void engine_slots(void **state)
{
    struct zn_engine *e = engine_open(0);
    unsigned char *block = zn_test_memory(4096);
    uint8_t uuid[16];

    (void)state;
    memcpy(uuid, e->file.super.uuid, sizeof(uuid));
    slot_expect(e, 0);
    for (uint64_t sequence = 1; sequence < 6; sequence++) {
        struct zn_slot slot = slot_of(sequence), was = slot_of(sequence - 1), got;

        slot_expect(e, sequence - 1);
        assert_int_equal(zn_test_io(e, ZN_SLOT, &slot, 77, 3), 0);
        slot_expect(e, sequence - 1); /* as it was when the file was opened */
        assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), 0);
        assert_int_equal(zn_stats(e).writes, 1);
        assert_int_equal(zn_stats(e).written_bytes, ZN_SLOT_BYTES);
        zn_close(e);
        file_read(block, 4096, 4096 + 4096 * (sequence % 2));
        assert_int_equal(zn_slot_decode(block, uuid, &got), 0);
        assert_memory_equal(&got, &slot, sizeof(got));
        file_read(block, 4096, 4096 + 4096 * ((sequence + 1) % 2));
        assert_int_equal(zn_slot_decode(block, uuid, &got), sequence > 1 ? 0 : -ENODATA);
        assert_true(sequence == 1 || memcmp(&got, &was, sizeof(got)) == 0);
        e = engine_open(0);
        assert_memory_equal(e->file.super.uuid, uuid, sizeof(uuid));
    }
    slot_expect(e, 5);
    zn_close(e);
    free(block);
    file_remove();
}

struct slot_chain {
    struct zn_io io;
    struct zn_engine *e;
    struct zn_slot slot;
    int rcs, submit_rc;
};

static void slot_chain_done(struct zn_io *io, int rc)
{
    struct slot_chain *c = zb_container_of(io, struct slot_chain, io);

    c->rcs += rc;
    c->slot.sequence++;
    if (c->slot.sequence < 5)
        c->submit_rc = zn_submit(c->e, io);
}

/* One at a time, and the next one from inside its done; buf may change once it is submitted. */
static void engine_slots_one_at_a_time(void **state)
{
    struct zn_engine *e = engine_open(0);
    struct zn_slot slot = slot_of(1), zero = { 0 };
    struct slot_chain c = { .e = e, .slot = slot };
    struct request r;

    (void)state;
    request_set(&r, ZN_SLOT, &zero, 0, 0);
    assert_int_equal(zn_submit(e, &r.io), -EINVAL); /* sequence 0 means "never" */
    request_set(&r, ZN_SLOT, &slot, 0, 0);
    c.io = (struct zn_io){ .op = ZN_SLOT, .buf = &c.slot, .done = slot_chain_done };
    assert_int_equal(zn_submit(e, &c.io), 0);
    c.slot = slot_of(2);
    c.slot.sequence = 1; /* the done increments it */
    assert_int_equal(zn_submit(e, &r.io), -EBUSY);
    assert_int_equal(zn_stats(e).inflight, 1);
    zn_test_drain(e);
    assert_int_equal(c.rcs + c.submit_rc, 0);
    assert_int_equal(zn_stats(e).writes, 4);
    slot = slot_of(9);
    assert_int_equal(zn_submit(e, &r.io), 0);
    zn_close(e); /* waits for it */
    assert_int_equal(r.runs, 1);
    assert_int_equal(r.rc, 0);
    e = engine_open(0);
    slot_expect(e, 9);
    zn_close(e);
    file_remove();
}

/* Interrupted and short writes of a slot are completed; one that fails reports that, and ends. */
static void engine_slots_fail(void **state)
{
    static const struct zn_fault_plan plans[] = {
        { .again_every = 2 },
        { .short_every = 2, .short_bytes = 512 },
        { .nth = 1, .nth_res = -EIO },
        { .nth = 1, .nth_res = 0 },
    };
    struct zn_engine *e = engine_open(0);
    struct zn_slot slot = slot_of(1);

    (void)state;
    assert_int_equal(zn_test_io(e, ZN_SLOT, &slot, 0, 0), 0);
    for (size_t i = 0; i < ZB_COUNT(plans); i++) {
        int want = plans[i].nth > 0 ? -EIO : 0;

        assert_int_equal(zn_fault_install(e, &plans[i]), 0);
        slot = slot_of(2 + i);
        assert_int_equal(zn_test_io(e, ZN_SLOT, &slot, 0, 0), want);
        slot = slot_of(3 + i);
        assert_int_equal(zn_test_io(e, ZN_SLOT, &slot, 0, 0), 0);
    }
    zn_close(e);
    e = engine_open(0);
    slot_expect(e, 6);
    zn_close(e);
    file_remove();
}

/* What the engine does with damaged slots: one good slot is enough, and it reports if there is
 * none. */
static void engine_slots_damaged(void **state)
{
    struct zn_engine *e = engine_open(0);
    struct zb_err err = { 0 };
    struct zn_slot slot;

    (void)state;
    for (uint64_t sequence = 1; sequence < 4; sequence++) {
        slot = slot_of(sequence);
        assert_int_equal(zn_test_io(e, ZN_SLOT, &slot, 0, 0), 0);
    }
    zn_close(e);
    for (uint64_t sequence = 3; sequence > 1; sequence--) {
        e = engine_open(0);
        slot_expect(e, sequence);
        zn_close(e);
        file_write("?", 1, zn_slot_at(sequence) + 700);
    }
    e = engine_open(0);
    assert_int_equal(zn_newest_slot(e, &slot, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "both commit slots of '"));
    zn_close(e);
    file_remove();
}

/* Closing waits: every done runs, with its true result, whether kicked or reaped or not. */
static void engine_close_in_flight(void **state)
{
    enum { N = 32 };
    unsigned char *bufs = zn_test_memory((size_t)N * SLOT), *got = zn_test_memory(SLOT);

    (void)state;
    for (int round = 0; round < 3; round++) {
        struct zn_engine *e = engine_open(0);
        struct request r[N];

        for (unsigned i = 0; i < N; i++) {
            fill(bufs + (size_t)i * SLOT, SLOT, 100 * (unsigned)round + i);
            request_set(&r[i], ZN_WRITE, bufs + (size_t)i * SLOT, SLOT,
                        ZN_DATA_START + (uint64_t)i * SLOT);
            assert_int_equal(zn_submit(e, &r[i].io), 0);
            if (round > 0 && i == N / 2)
                zn_kick(e);
        }
        if (round == 2)
            assert_true(zn_test_wait(e)); /* the wake-up is consumed, and nothing is reaped */
        zn_close(e);
        for (unsigned i = 0; i < N; i++) {
            assert_int_equal(r[i].rc, 0);
            assert_int_equal(r[i].runs, 1);
            file_read(got, SLOT, ZN_DATA_START + (uint64_t)i * SLOT);
            assert_memory_equal(got, bufs + (size_t)i * SLOT, SLOT);
        }
    }
    zn_close(NULL);
    free(bufs);
    free(got);
}

static void resubmit_done(struct zn_io *io, int rc)
{
    struct request *r = zb_container_of(io, struct request, io);

    request_done(io, rc);
    r->rc = zn_submit(r->e, io);
}

/* A close ends, even if each done tries to submit something new. */
static void engine_close_refuses(void **state)
{
    struct zn_engine *e = engine_open(0);
    unsigned char *buf = zn_test_memory(4096);
    struct request r;

    (void)state;
    request_set(&r, ZN_READ, buf, 4096, ZN_DATA_START);
    r.io.done = resubmit_done;
    r.e = e;
    assert_int_equal(zn_submit(e, &r.io), 0);
    zn_close(e);
    assert_int_equal(r.runs, 1);
    assert_int_equal(r.rc, -ESHUTDOWN);
    free(buf);
}

static struct {
    struct zn_engine *e;
    unsigned char *buf;
    unsigned left, runs;
} chain;

/* Frees its request and submits another one, from inside done. */
static void chain_done(struct zn_io *io, int rc)
{
    assert_int_equal(rc, 0);
    free(io);
    chain.runs++;
    if (chain.left > 0) {
        struct zn_io *next = malloc(sizeof(*next));

        *next = (struct zn_io){ .op = chain.left-- % 3 == 0 ? ZN_FLUSH : ZN_WRITE,
                                .buf = chain.buf,
                                .len_bytes = 4096,
                                .off_bytes = ZN_DATA_START,
                                .done = chain_done };
        assert_int_equal(zn_submit(chain.e, next), 0);
    }
}

static void engine_done_submits(void **state)
{
    (void)state;
    chain.e = engine_open(2);
    chain.buf = zn_test_memory(4096);
    fill(chain.buf, 4096, 6);
    chain.left = 500;
    chain.runs = 0;
    for (int i = 0; i < 2; i++) {
        struct zn_io *io = malloc(sizeof(*io));

        *io = (struct zn_io){ .op = ZN_FLUSH, .done = chain_done };
        assert_int_equal(zn_submit(chain.e, io), 0);
    }
    zn_test_drain(chain.e);
    assert_int_equal(chain.runs, 502);
    zn_close(chain.e);
    free(chain.buf);
}

/* Reaps no more than requested, and what is left is announced again. */
static void engine_reap_limit(void **state)
{
    enum { N = 10 };
    struct zn_engine *e = engine_open(0);
    unsigned char *buf = zn_test_memory(4096);
    struct request r[N];

    (void)state;
    fill(buf, 4096, 8);
    for (unsigned i = 0; i < N; i++) {
        request_set(&r[i], ZN_WRITE, buf, 4096, ZN_DATA_START);
        assert_int_equal(zn_submit(e, &r[i].io), 0);
    }
    assert_int_equal(zn_reap(e, N), 0); /* nothing was kicked */
    zn_kick(e);
    settle(e);
    for (unsigned left = N; left > 0;) {
        unsigned n = (unsigned)zb_min_u64(left, 3);

        assert_true(zn_test_wait(e));
        assert_int_equal(zn_reap(e, 3), n);
        left -= n;
        assert_int_equal(zn_stats(e).inflight, left);
    }
    assert_int_equal(zn_reap(e, 3), 0);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(r[i].runs, 1);
    zn_kick(e); /* there is nothing to hand over */
    zn_close(e);
    free(buf);
}

static void engine_info(void **state)
{
    struct zn_engine *e = engine_open(0);
    const struct zn_info *info = zn_info(e);

    (void)state;
    assert_string_equal(info->io, variant->io);
    if (!strstr(info->why, "built with liburing <")) /* a mode of the ring that it is too old for */
        assert_string_equal(info->why, "");
    assert_int_equal(info->depth, ZN_DEPTH_DEFAULT);
    assert_int_equal(info->size_bytes, FILE_BYTES);
    assert_false(info->sparse);
    assert_true(info->align_bytes >= 1 && info->align_bytes <= 4096);
    assert_int_equal(info->direct, info->why_buffered[0] == '\0');
    if (variant->buffered)
        assert_string_equal(info->why_buffered, "buffered I/O was asked for");
    else if (variant->base)
        assert_string_equal(info->why_buffered, "tmpfs keeps files in memory");
    else if (!info->direct)
        print_message("note: no O_DIRECT in %s: %s\n", dir, info->why_buffered);
    zn_close(e);
}

/* Whether it runs here; err has the reason if not. */
static void suite_probe(struct zb_err *err)
{
    struct zn_options o = { .path = path, .size_bytes = FILE_BYTES, .io = variant->io };
    struct zn_engine *e = NULL;

    (void)zn_open(&e, &o, err);
    zn_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_info),
        cmocka_unit_test(engine_stress),
        cmocka_unit_test(engine_stress_short),
        cmocka_unit_test(engine_out_of_order),
        cmocka_unit_test(engine_depth),
        cmocka_unit_test(engine_no_progress),
        cmocka_unit_test(engine_tails_kick),
        cmocka_unit_test(engine_past_end),
        cmocka_unit_test(engine_interrupted),
        cmocka_unit_test(engine_every_failure),
        cmocka_unit_test(engine_dead),
        cmocka_unit_test(engine_submit_table),
        cmocka_unit_test(engine_stats),
        cmocka_unit_test(engine_close_in_flight),
        cmocka_unit_test(engine_close_refuses),
        cmocka_unit_test(engine_done_submits),
        cmocka_unit_test(engine_reap_limit),
        cmocka_unit_test(engine_slots),
        cmocka_unit_test(engine_slots_one_at_a_time),
        cmocka_unit_test(engine_slots_fail),
        cmocka_unit_test(engine_slots_damaged),
    };
    int failed = 0;

    for (size_t i = 0; i < ZB_COUNT(variants); i++) {
        struct zb_err err = { 0 };

        variant = &variants[i];
        if (zn_test_dir_make(dir, sizeof(dir), variant->base) < 0) {
            (void)printf("%s: skipped, no folder there\n", variant->name);
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/data", dir);
        if (strcmp(variant->io, "sim") == 0)
            sim_open();
        else
            suite_probe(&err);
        if (err.code != 0 && strcmp(variant->io, "uring") == 0)
            (void)printf("%s: skipped: %s\n", variant->name, err.text);
        else
            failed += cmocka_run_group_tests_name(variant->name, tests, NULL, NULL);
        zn_sim_free(sim);
        sim = NULL;
        zn_test_dir_remove(dir);
    }
    return failed;
}
