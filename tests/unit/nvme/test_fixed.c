/*
 * The device of a fixed rate: its contents, however its memory is lent and moved; its timing; its
 * refusals. tests/integ runs the real daemon on it.
 */
#include "zn_test.h"

#include <errno.h>
#include <stdlib.h>

#include "nvme/zn_fixed.h"

#define BLOCK      4096u
#define BLOCKS     256u
#define FILE_BYTES (ZN_DATA_START + (uint64_t)BLOCK * BLOCKS)
#define RATE       UINT64_C(200000000)

static struct zn_engine *fixed_open(uint64_t rate_bytes, uint64_t latency_ns)
{
    const struct zn_fixed_options o = {
        .size_bytes = FILE_BYTES, .rate_bytes = rate_bytes, .latency_ns = latency_ns, .depth = 64
    };
    struct zb_err err = { 0 };
    struct zn_engine *e;

    if (zn_fixed_open(&e, &o, &err) != 0)
        fail_msg("%s", err.text);
    return e;
}

struct request {
    struct zn_io io;
    int rc;
};

static void request_done(struct zn_io *io, int rc)
{
    zb_container_of(io, struct request, io)->rc = rc;
}

/* Returns where the bytes are at the end. */
static void *run(struct zn_engine *e, enum zn_op op, bool lend, void *buf, uint32_t blocks,
                 uint32_t at)
{
    struct request q = { .io = { .op = op,
                                 .lend = lend,
                                 .buf = buf,
                                 .len_bytes = blocks * BLOCK,
                                 .off_bytes = ZN_DATA_START + (uint64_t)at * BLOCK,
                                 .done = request_done },
                         .rc = 1 };

    assert_int_equal(zn_submit(e, &q.io), 0);
    zn_test_drain(e);
    assert_int_equal(q.rc, 0);
    return q.io.buf;
}

/* Every block begins with a number, which identifies its contents; `model` has it by block. */
static void stamp(void *bytes, uint32_t blocks, uint64_t *next, uint64_t *model, uint32_t at)
{
    for (uint32_t i = 0; i < blocks; i++) {
        uint64_t *words = (uint64_t *)(void *)((char *)bytes + (size_t)i * BLOCK);

        words[0] = words[BLOCK / 8 - 1] = model[at + i] = ++*next;
    }
}

#define ANYTHING UINT64_MAX

static void check(const void *bytes, uint32_t blocks, const uint64_t *model, uint32_t at)
{
    for (uint32_t i = 0; i < blocks; i++) {
        const uint64_t *words =
            (const uint64_t *)(const void *)((const char *)bytes + (size_t)i * BLOCK);

        if (model[at + i] != ANYTHING &&
            (words[0] != model[at + i] || words[BLOCK / 8 - 1] != model[at + i]))
            fail_msg("block %u holds %llu, not %llu", at + i, (unsigned long long)words[0],
                     (unsigned long long)model[at + i]);
    }
}

/* Extents of all sizes, anywhere: copies, loans, and loans that are changed and written elsewhere,
 * over existing data. */
static void fixed_holds(void **state)
{
    static uint64_t model[BLOCKS];
    struct zn_engine *e = fixed_open(UINT64_C(1) << 50, 0);
    unsigned char *buf = zn_test_memory((size_t)BLOCKS * BLOCK);
    uint64_t next = 0, seed = 7, lent = 0;

    (void)state;
    assert_true(zn_is_fixed(e));
    assert_string_equal(zn_info(e)->io, "fixed");
    for (unsigned round = 0; round < 4000; round++) {
        uint32_t n = 1 + (uint32_t)(ztest_random(&seed) % 16);
        uint32_t a = (uint32_t)(ztest_random(&seed) % (BLOCKS - n));
        uint32_t b = (uint32_t)(ztest_random(&seed) % (BLOCKS - n));
        void *at;

        switch (ztest_random(&seed) % 3) {
        case 0:
            stamp(buf, n, &next, model, a);
            assert_ptr_equal(run(e, ZN_WRITE, false, buf, n, a), buf);
            break;
        case 1:
            assert_ptr_equal(run(e, ZN_READ, false, buf, n, a), buf);
            check(buf, n, model, a);
            break;
        default:
            at = run(e, ZN_READ, true, buf, n, a);
            check(at, n, model, a);
            lent += at != buf;
            if (at != buf)
                for (uint32_t i = 0; i < n; i++)
                    model[a + i] = ANYTHING;
            stamp(at, n, &next, model, b);
            (void)run(e, ZN_WRITE, false, at, n, b);
        }
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        (void)run(e, ZN_READ, false, buf, 1, i);
        check(buf, 1, model, i);
    }
    print_message("%llu of about 1333 reads were lent\n", (unsigned long long)lent);
    assert_true(lent > 100 && lent < 1333); /* both ways were taken */
    zn_close(e);
    free(buf);
}

/* Extents of equal size that alternate, like pages: no byte is copied. */
static void fixed_copies_nothing(void **state)
{
    enum { PAGE = 16, PAGES = BLOCKS / PAGE, SPARE = PAGES - 1 };
    static uint64_t model[BLOCKS];
    struct zn_engine *e = fixed_open(UINT64_C(1) << 50, 0);
    unsigned char *buf = zn_test_memory((size_t)PAGE * BLOCK);
    uint64_t next = 0, before = zn_fixed_copied(e);
    uint32_t spare = SPARE;

    (void)state;
    for (uint32_t i = 0; i < SPARE; i++) {
        stamp(buf, PAGE, &next, model, i * PAGE);
        (void)run(e, ZN_WRITE, false, buf, PAGE, i * PAGE);
    }
    assert_int_equal(zn_fixed_copied(e) - before, (uint64_t)SPARE * PAGE * BLOCK);
    before = zn_fixed_copied(e);
    for (unsigned round = 0, page = 0; round < 500; round++, page = (page * 7 + 3) % PAGES) {
        void *at;

        if (page == spare)
            continue;
        at = run(e, ZN_READ, true, buf, PAGE, page * PAGE);
        assert_ptr_not_equal(at, buf);
        check(at, PAGE, model, page * PAGE);
        stamp(at, PAGE, &next, model, spare * PAGE);
        (void)run(e, ZN_WRITE, false, at, PAGE, spare * PAGE);
        spare = page;
    }
    assert_int_equal(zn_fixed_copied(e), before);
    zn_close(e);
    free(buf);
}

static const struct {
    const char *name;
    uint64_t rate_bytes, latency_ns;
    uint32_t blocks, count, depth;
    double want_s;
} times[] = {
    { "by the rate", RATE, 0, 64, 80, 8, 80 * 64 * 4096.0 / RATE },
    { "by latency", RATE, 5000000, 1, 20, 1, 20 * 0.005 },
};

struct turn {
    struct zn_io io;
    struct zn_engine *e;
    uint32_t *left;
};

static void turn_done(struct zn_io *io, int rc)
{
    struct turn *t = zb_container_of(io, struct turn, io);

    assert_int_equal(rc, 0);
    io->op = io->op == ZN_READ ? ZN_WRITE : ZN_READ;
    if (*t->left > 0 && (*t->left)-- > 0)
        assert_int_equal(zn_submit(t->e, io), 0);
}

static double fixed_time(size_t c)
{
    struct zn_engine *e = fixed_open(times[c].rate_bytes, times[c].latency_ns);
    unsigned char *buf = zn_test_memory((size_t)times[c].blocks * BLOCK);
    uint32_t left = times[c].count - times[c].depth;
    uint64_t begin_ns = zb_now_ns();
    struct turn turns[8];
    double took_s;

    for (uint32_t i = 0; i < times[c].depth; i++) {
        turns[i] = (struct turn){ .io = { .op = ZN_READ,
                                          .lend = true,
                                          .buf = buf,
                                          .len_bytes = times[c].blocks * BLOCK,
                                          .off_bytes = ZN_DATA_START,
                                          .done = turn_done },
                                  .e = e,
                                  .left = &left };
        assert_int_equal(zn_submit(e, &turns[i].io), 0);
    }
    while (zn_stats(e).inflight > 0) {
        zn_kick(e);
        assert_true(zn_test_wait(e));
        (void)zn_reap(e, 64);
    }
    took_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    zn_close(e);
    free(buf);
    return took_s;
}

static void fixed_rate(void **state)
{
    (void)state;
    for (size_t c = 0; c < ZB_COUNT(times); c++) {
        double best = 0;

        /* Never faster; and not always late. A busy machine wakes a process late, so there are many
         * tries, spread over seconds. */
        for (int tries = 0; tries < 60 && (best == 0 || best > 1.4 * times[c].want_s); tries++) {
            double took_s = fixed_time(c);

            if (took_s < 0.999 * times[c].want_s)
                fail_msg("%s: %.4f s are less than %.4f", times[c].name, took_s, times[c].want_s);
            best = best == 0 || took_s < best ? took_s : best;
        }
        if (best > 1.4 * times[c].want_s)
            fail_msg("%s: %.4f s instead of %.4f", times[c].name, best, times[c].want_s);
    }
}

static void fixed_refuses(void **state)
{
    static const struct zn_fixed_options wrong[] = {
        { .size_bytes = FILE_BYTES },
        { .size_bytes = FILE_BYTES + 512, .rate_bytes = 1 },
        { .size_bytes = ZN_DATA_START, .rate_bytes = 1 },
        { .size_bytes = UINT64_C(1) << 50, .rate_bytes = 1 },
        { .size_bytes = FILE_BYTES, .rate_bytes = 1, .depth = ZN_DEPTH_MAX + 1 },
    };
    struct zn_engine *e = fixed_open(RATE, 0);
    struct request q = { .io = { .op = ZN_FLUSH, .done = request_done }, .rc = 1 };
    struct zn_slot slot = { .sequence = 1 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(wrong); i++) {
        struct zn_engine *none = NULL;
        struct zb_err err = { 0 };

        assert_int_equal(zn_fixed_open(&none, &wrong[i], &err), -EINVAL);
        assert_true(!none && err.text[0]);
    }
    /* Other requests than page transfers work as everywhere; closing waits. */
    assert_int_equal(zn_submit(e, &q.io), 0);
    zn_test_drain(e);
    assert_int_equal(q.rc, 0);
    q = (struct request){ .io = { .op = ZN_SLOT, .buf = &slot, .done = request_done }, .rc = 1 };
    assert_int_equal(zn_submit(e, &q.io), 0);
    zn_close(e);
    assert_int_equal(q.rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_holds),
        cmocka_unit_test(fixed_copies_nothing),
        cmocka_unit_test(fixed_rate),
        cmocka_unit_test(fixed_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
