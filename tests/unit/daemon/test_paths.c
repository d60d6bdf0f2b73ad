/* Several data files: which one gets the next page, which one a transfer goes to, and what goes to
 * all. */
#include "tests/ztest.h"

#include "base/slots.h"
#include "daemon/core_life.h"
#include "daemon/disk/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvme/sim/engine_fault.h"

#define PATHS            3u
#define FILE_BYTES(path) (ZN_DATA_START + (UINT64_C(2) << 20) + (path)*UINT64_C(65536))
#define PAGE_BYTES       8192u

static struct zsd d;
static char dir[] = "/tmp/zshard-paths-XXXXXX";

static const char *file_name(unsigned path)
{
    static char name[64];

    (void)snprintf(name, sizeof(name), "%s/%u", dir, path);
    return name;
}

static void paths_up(unsigned depth)
{
    struct zb_err err = { 0 };

    memset(&d, 0, sizeof(d));
    d.config.host_bytes = 64u << 20;
    d.config.page_elems = 8192;
    d.config.ring_bytes = 1;
    d.engine_base = ZN_DATA_START;
    assert_int_equal(zk_select(NULL, &d.kernels, &err), 0);
    assert_int_equal(zsd_compute_new(&d.compute, 1, "", &err), 0);
    for (unsigned i = 0; i < PATHS; i++) {
        struct zn_options o = {
            .path = file_name(i), .size_bytes = FILE_BYTES(i), .depth = depth, .index = i
        };
        struct zn_engine **e = i == 0 ? &d.engine : &d.more[d.nmore++].engine;

        if (zn_open(e, &o, &err) != 0)
            fail_msg("%s", err.text);
    }
    if (zsd_core_new(&d, &err) != 0)
        fail_msg("%s", err.text);
}

static void paths_down(bool remove)
{
    zsd_core_free(&d);
    zsd_compute_free(d.compute);
    zsd_paths_close(&d);
    zn_close(d.engine);
    for (unsigned i = 0; i < PATHS && remove; i++)
        assert_int_equal(unlink(file_name(i)), 0);
}

/* ---- the map */

static void spread_by_rate(void **state)
{
    static const uint64_t rates[PATHS] = { 3000, 2000, 1000 };
    uint64_t at[2000], total;
    unsigned count[PATHS] = { 0 }, n = 0;

    (void)state;
    paths_up(0);
    for (unsigned i = 0; i < PATHS; i++)
        d.path_rates[i].mixed = rates[i];
    total = zsd_map_total_bytes(d.core);
    assert_int_equal(total, FILE_BYTES(0) + FILE_BYTES(1) + FILE_BYTES(2) - PATHS * ZN_DATA_START);
    assert_int_equal(d.core->tiers.nvme.budget, total);
    for (; (at[n] = zsd_map_take(d.core, PAGE_BYTES)) != ZB_NO_PLACE; n++) {
        assert_true(ZN_AT_PATH(at[n]) < PATHS);
        assert_true(ZN_AT_OFFSET(at[n]) + PAGE_BYTES <= zsd_path_bytes(d.core, ZN_AT_PATH(at[n])));
        count[ZN_AT_PATH(at[n])]++;
        if ((n + 1) % 6 == 0 && n < 300) { /* none is full yet */
            assert_int_equal(count[0], (n + 1) / 2);
            assert_int_equal(count[1], (n + 1) / 3);
        }
    }
    assert_int_equal(n, total / PAGE_BYTES); /* a full path is skipped */
    assert_int_equal(zsd_map_free_bytes(d.core), 0);
    for (unsigned i = 0; i < n; i++)
        zsd_map_give(d.core, at[i], PAGE_BYTES);
    assert_int_equal(zsd_map_free_bytes(d.core), total);
    paths_down(true);
}

/* Many ranges at once are those that would be taken singly, in the same order, also from a map with
 * gaps and when paths become full. */
static void many_at_once(void **state)
{
    static const uint64_t rates[PATHS] = { 3000, 2000, 1000 };
    static uint64_t single[2000], many[2000];
    uint64_t total, n = 0, gap;

    (void)state;
    paths_up(0);
    for (unsigned i = 0; i < PATHS; i++)
        d.path_rates[i].mixed = rates[i];
    total = zsd_map_total_bytes(d.core);
    for (unsigned i = 0; i < 20; i++) /* too short for a page */
        assert_int_equal(zsd_map_take_at(d.core, ZN_AT(i % PATHS, (3 * i + 1) * 4096), 4096), 0);
    gap = zsd_map_free_bytes(d.core);
    while ((single[n] = zsd_map_take(d.core, PAGE_BYTES)) != ZB_NO_PLACE)
        n++;
    for (uint64_t i = 0; i < n; i++)
        zsd_map_give(d.core, single[i], PAGE_BYTES);
    assert_int_equal(zsd_map_free_bytes(d.core), gap);
    assert_int_equal(zsd_map_take_many(d.core, PAGE_BYTES, 2000, many), n);
    assert_true(n > 300 && n < 2000);
    assert_memory_equal(many, single, 300 * sizeof(*many)); /* until a path is full */
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(zsd_map_take_at(d.core, many[i], PAGE_BYTES), -EBUSY);
    zsd_map_give_many(d.core, PAGE_BYTES, n, many);
    assert_int_equal(zsd_map_free_bytes(d.core), gap);
    for (unsigned i = 0; i < 20; i++)
        zsd_map_give(d.core, ZN_AT(i % PATHS, (3 * i + 1) * 4096), 4096);
    assert_int_equal(zsd_map_free_bytes(d.core), total);
    assert_int_equal(zsd_map_take_many(d.core, PAGE_BYTES, 0, many), 0);
    paths_down(true);
}

static void places_by_name(void **state)
{
    uint64_t last, at = ZN_AT(1, 5 * PAGE_BYTES);

    (void)state;
    paths_up(0);
    last = zsd_path_bytes(d.core, 2) - PAGE_BYTES;
    assert_int_equal(zsd_map_take_at(d.core, at, PAGE_BYTES), 0);
    assert_int_equal(zsd_map_take_at(d.core, at + 4096, PAGE_BYTES), -EBUSY);
    assert_int_equal(zsd_map_take_at(d.core, ZN_AT(0, 5 * PAGE_BYTES), PAGE_BYTES), 0);
    assert_int_equal(zsd_map_take_at(d.core, ZN_AT(2, last), PAGE_BYTES), 0);
    assert_int_equal(zsd_map_take_at(d.core, ZN_AT(1, last), PAGE_BYTES), -ERANGE);
    assert_int_equal(zsd_map_take_at(d.core, ZN_AT(PATHS, 0), PAGE_BYTES), -ERANGE);
    assert_int_equal(zsd_map_take_at(d.core, ZB_NO_PLACE, PAGE_BYTES), -ERANGE);
    assert_int_equal(zsd_map_take_at(d.core, ZN_AT(1, 100), PAGE_BYTES), -ERANGE);
    paths_down(true);
}

static void measured(void **state)
{
    uint64_t total;
    struct zb_err err = { 0 };

    (void)state;
    paths_up(0);
    total = zsd_map_free_bytes(d.core);
    if (zsd_paths_measure(d.core, &err) < 0)
        fail_msg("%s", err.text);
    for (unsigned i = 0; i < PATHS; i++)
        assert_true(d.path_rates[i].read > 1000000 && d.path_rates[i].written > 1000000 &&
                    d.path_rates[i].mixed > 1000000);
    assert_int_equal(zsd_map_free_bytes(d.core), total);
    paths_down(true);
}

/* A path that cannot be measured cannot be used: the start fails. */
static void measured_in_vain(void **state)
{
    struct zn_fault_plan plan = { .nth = 1, .nth_on = true, .nth_res = -EIO };
    struct zb_err err = { 0 };

    (void)state;
    paths_up(0);
    assert_int_equal(zn_fault_install(d.more[0].engine, &plan), 0);
    assert_int_equal(zsd_paths_measure(d.core, &err), -EIO);
    assert_non_null(strstr(err.text, "data file number 2"));
    assert_int_equal(d.path_rates[1].mixed, 0);
    assert_int_equal(zsd_map_free_bytes(d.core), zsd_map_total_bytes(d.core));
    paths_down(true);
}

/* ---- transfers */

struct transfer {
    struct zsd_pio pio;
    int rc;
    unsigned order, runs;
};

static unsigned dones;

static void transfer_done(struct zsd_pio *pio, int rc)
{
    struct transfer *t = zb_container_of(pio, struct transfer, pio);

    t->rc = rc;
    t->runs++;
    t->order = dones++;
}

static void transfer_start(struct transfer *t, enum zn_op op, void *buf, uint64_t at, bool urgent)
{
    memset(t, 0, sizeof(*t));
    t->rc = 1;
    t->pio.io = (struct zn_io){ .op = op,
                                .buf = buf,
                                .len_bytes = PAGE_BYTES,
                                .off_bytes = d.engine_base + at,
                                .urgent = urgent };
    t->pio.done = transfer_done;
    zsd_pio_start(d.core, &t->pio);
    assert_int_equal(t->runs, 0);
}

static void transfers_settle(unsigned until)
{
    for (unsigned i = 0; i < 120000 && dones < until; i++) {
        zsd_core_turn(&d);
        for (unsigned p = 0; p < PATHS; p++)
            (void)zn_reap(zsd_path_engine(&d, p), 64);
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(dones, until);
}

static void each_to_its_file(void **state)
{
    char *bufs = NULL, got[PAGE_BYTES];
    struct transfer t[PATHS];

    (void)state;
    paths_up(0);
    assert_int_equal(posix_memalign((void **)&bufs, 4096, PATHS * PAGE_BYTES), 0);
    dones = 0;
    for (unsigned i = 0; i < PATHS; i++) {
        memset(bufs + i * PAGE_BYTES, 'a' + (int)i, PAGE_BYTES);
        transfer_start(&t[i], ZN_WRITE, bufs + i * PAGE_BYTES, ZN_AT(i, 3 * PAGE_BYTES), false);
    }
    transfers_settle(PATHS);
    for (unsigned i = 0; i < PATHS; i++) {
        int fd = open(file_name(i), O_RDONLY | O_CLOEXEC);

        assert_int_equal(t[i].rc, 0);
        assert_int_equal(pread(fd, got, PAGE_BYTES, (off_t)ZN_DATA_START + 3 * PAGE_BYTES),
                         PAGE_BYTES);
        assert_memory_equal(got, bufs + i * PAGE_BYTES, PAGE_BYTES);
        assert_int_equal(close(fd), 0);
    }
    free(bufs);
    paths_down(true);
}

/* A flush and a commit slot go to every file, in order, up to the first that fails. */
static void some_to_all(void **state)
{
    const struct zn_fault_plan fault = { .nth = 1, .nth_res = -EIO };
    struct zn_slot slot = { .sequence = 5, .digest = 6 }, slots[ZN_PATHS_MAX];
    struct transfer t;
    unsigned n = 0;

    (void)state;
    paths_up(0);
    dones = 0;
    transfer_start(&t, ZN_SLOT, &slot, 0, false);
    transfers_settle(1);
    assert_int_equal(t.rc, 0);
    transfer_start(&t, ZN_FLUSH, NULL, 0, false);
    transfers_settle(2);
    assert_int_equal(t.rc, 0);
    for (unsigned i = 0; i < PATHS; i++)
        assert_int_equal(zn_stats(zsd_path_engine(&d, i)).flushes, 1);
    assert_int_equal(zn_fault_install(zsd_path_engine(&d, 1), &fault), 0);
    transfer_start(&t, ZN_FLUSH, NULL, 0, false);
    transfers_settle(3);
    assert_int_equal(t.rc, -EIO);
    assert_int_equal(zn_stats(zsd_path_engine(&d, 0)).flushes, 2);
    assert_int_equal(zn_stats(zsd_path_engine(&d, 2)).flushes, 1);
    paths_down(false);

    paths_up(0);
    assert_int_equal(zsd_paths_slots(&d, slots, &n, NULL), 0);
    assert_int_equal(n, PATHS);
    for (unsigned i = 0; i < PATHS; i++)
        assert_int_equal(slots[i].sequence, 5);
    paths_down(false);
    assert_int_equal(unlink(file_name(1)), 0); /* a new file, which never had a slot */
    paths_up(0);
    assert_int_equal(zsd_paths_slots(&d, slots, &n, NULL), 0);
    assert_int_equal(n, PATHS - 1);
    assert_int_equal(slots[1].sequence, 5);
    paths_down(true);
}

/* With one request at a time: a transfer that a fetch waits for goes before earlier ones. */
static void urgent_first(void **state)
{
    enum { N = 8 };
    static const unsigned order[N] = { 0, 3, 4, 5, 1, 6, 2, 7 };
    struct transfer t[N];
    void *buf = NULL;

    (void)state;
    paths_up(1);
    assert_int_equal(posix_memalign(&buf, 4096, PAGE_BYTES), 0);
    dones = 0;
    for (unsigned i = 0; i < N; i++)
        transfer_start(&t[i], i == 4 || i == 6 ? ZN_READ : ZN_WRITE, buf, ZN_AT(2, 0),
                       i == 4 || i == 6);
    transfers_settle(N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(t[i].rc, 0);
        assert_int_equal(t[i].order, order[i]);
    }
    free(buf);
    paths_down(true);
}

static int dir_make(void **state)
{
    (void)state;
    zb_log_set_level(ZB_LOG_ERROR);
    return mkdtemp(dir) ? 0 : -1;
}

static int dir_remove(void **state)
{
    (void)state;
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_by_rate),   cmocka_unit_test(many_at_once),
        cmocka_unit_test(places_by_name),   cmocka_unit_test(measured),
        cmocka_unit_test(measured_in_vain), cmocka_unit_test(each_to_its_file),
        cmocka_unit_test(some_to_all),      cmocka_unit_test(urgent_first),
    };

    return cmocka_run_group_tests(tests, dir_make, dir_remove);
}
