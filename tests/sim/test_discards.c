/*
 * Free space is discarded while jobs use the same drive. The simulated device puts other bytes where
 * something was discarded, and fails writes to a range without space: so each mistake shows.
 * test_cuts and test_faults do the same with power cuts and faults (ZSHARD_DISCARDS=1).
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <string.h>

#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/extents.h"
#include "daemon/disk/paths.h"

#define STREAMS (156u << 10) /* host memory in addition to the staging: state streams */
#define PAGE    4096u
#define SEED    9u
#define STEPS   6u

static struct zs_world w;
static struct zn_sim *sim;

static struct zsd_core *core(void)
{
    return w.core.daemon.core;
}

static struct zsd_discard *discard(void)
{
    return &core()->disk->lines[0].discard;
}

static void start(const char *what)
{
    struct zb_err err = { 0 };

    zs_context("%s", what);
    assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = SEED }, NULL), 0);
    zs_paths = 1;
    zs_discards = true;
    if (zs_start(&w, sim, SEED, PAGE, &err) < 0)
        zs_fail("start: %s", err.text);
}

static void stop(void)
{
    zs_stop(&w);
    zn_sim_free(sim);
}

/* Begins the next discard, and does not end it. */
static void begin(void)
{
    zsd_discards_tick(core(), UINT64_MAX);
    assert_true(discard()->runs);
}

static void end(void)
{
    for (unsigned i = 0; i < 1000 && discard()->runs; i++) {
        zn_kick(w.core.daemon.engine);
        (void)zn_reap(w.core.daemon.engine, 8);
    }
    assert_false(discard()->runs);
}

/* Everything that is free is discarded once; then what was given back. */
static void passes(void **state)
{
    uint64_t all, bytes;

    (void)state;
    start("passes over the map");
    all = zsd_map_free_bytes(core());
    assert_true(zsd_discards_wanted(core()));
    while (zsd_discards_wanted(core())) {
        zsd_discards_tick(core(), UINT64_MAX);
        assert_int_equal(zsd_map_free_bytes(core()),
                         all); /* also while a range is out of the map */
        end();
    }
    bytes = zn_stats(w.core.daemon.engine).discarded_bytes;
    assert_int_equal(bytes, all);
    assert_int_equal(discard()->discarded_bytes, all);
    assert_int_equal(zsd_map_take_at(core(), 5 * ZB_PAGE_ALIGN, 3 * ZB_PAGE_ALIGN), 0);
    assert_false(zsd_discards_wanted(core()));
    zsd_map_give(core(), 5 * ZB_PAGE_ALIGN, 3 * ZB_PAGE_ALIGN);
    while (zsd_discards_wanted(core())) {
        zsd_discards_tick(core(), UINT64_MAX);
        end();
    }
    assert_int_equal(discard()->discarded_bytes, all + 3 * ZB_PAGE_ALIGN);
    core()->daemon->config.discard = false;
    assert_int_equal(zsd_map_take_at(core(), 0, ZB_PAGE_ALIGN), 0);
    zsd_map_give(core(), 0, ZB_PAGE_ALIGN);
    assert_false(zsd_discards_wanted(core()));
    stop();
}

struct transfer {
    struct zsd_pio pio;
    bool over;
    int rc;
};

static void transfer_on_done(struct zsd_pio *pio, int rc)
{
    struct transfer *t = zb_container_of(pio, struct transfer, pio);

    t->over = true;
    t->rc = rc;
    pio->core->in_progress--;
}

static void transfer(struct transfer *t, enum zn_op op, void *page, uint64_t at)
{
    *t = (struct transfer){ .pio.io = { .op = op,
                                        .buf = page,
                                        .len_bytes = ZB_PAGE_ALIGN,
                                        .off_bytes = core()->daemon->engine_base + at },
                            .pio.done = transfer_on_done };
    core()->in_progress++;
    zsd_pio_start(core(), &t->pio);
}

/* D1: the last free range is lent, and what is written to it waits for the discard. */
static void lent(void **state)
{
    static _Alignas(4096) uint8_t page[ZB_PAGE_ALIGN], back[ZB_PAGE_ALIGN];
    struct zb_needs now = { 0 }, want = { 0 };
    uint64_t units, at;
    struct transfer write, read;

    (void)state;
    start("all places are promised while a range is discarded");
    begin();
    units = zsd_map_free_bytes(core()) / ZB_PAGE_ALIGN;
    assert_int_equal(zb_needs_add(&want, ZB_PAGE_ALIGN, units), 0);
    assert_int_equal(zsd_promise_set(core(), &now, &want, NULL), 0);
    assert_true(discard()->lent && discard()->runs);
    do
        at = zsd_extent_take(core(), ZB_PAGE_ALIGN);
    while (at / ZB_PAGE_ALIGN < discard()->first ||
           at / ZB_PAGE_ALIGN >= discard()->first + discard()->units);
    memset(page, 77, sizeof(page));
    transfer(&write, ZN_WRITE, page, at);
    assert_false(zb_list_empty(&discard()->waits));
    zs_settle(&w);
    assert_true(write.over && write.rc == 0 && !discard()->lent);
    transfer(&read, ZN_READ, back, at);
    zs_settle(&w);
    assert_memory_equal(back, page, sizeof(page));
    zb_needs_done(&want);
    zb_needs_done(&now);
    stop();
}

/* D2: a range without space is not lent, and comes back when it has some. */
static void holed(void **state)
{
    struct zb_needs now = { 0 }, want = { 0 };
    uint64_t units;

    (void)state;
    start("others take the space");
    units = zsd_map_free_bytes(core()) / ZB_PAGE_ALIGN;
    assert_int_equal(zn_sim_fault(sim, ZN_FAULT_ENOSPC, zn_sim_ops(sim), true), 0);
    begin();
    end();
    assert_true(discard()->holed && zsd_discards_wanted(core()));
    assert_int_equal(zn_sim_holes(sim), zsd_discard_holed_bytes(core(), 0));
    assert_true(zn_sim_holes(sim) > 0);
    assert_int_equal(zb_needs_add(&want, ZB_PAGE_ALIGN, units), 0);
    assert_int_equal(zsd_promise_set(core(), &now, &want, NULL), -ENOSPC);
    begin(); /* again, in vain */
    end();
    assert_true(discard()->holed);
    core()->daemon->config.discard = false; /* it is allocated again nevertheless, */
    assert_true(zsd_discards_wanted(core()));
    zn_sim_faults_clear(sim);
    begin();
    end();
    assert_false(discard()->holed);
    assert_int_equal(zn_sim_holes(sim), 0);
    assert_false(zsd_discards_wanted(core()));
    assert_int_equal(zsd_promise_set(core(), &now, &want, NULL), 0);
    zb_needs_done(&want);
    zb_needs_done(&now);
    stop();
}

/* The range was lent when its space was lost: what was written there meanwhile stays. */
static void holed_and_lent(void **state)
{
    static _Alignas(4096) uint8_t page[ZB_PAGE_ALIGN], back[ZB_PAGE_ALIGN];
    struct transfer write, read;
    uint64_t units, at;

    (void)state;
    start("a range is lent, and has no space");
    begin();
    units = discard()->units;
    while (!discard()->lent)
        assert_true(zsd_map_take(core(), ZB_PAGE_ALIGN) != ZB_NO_PLACE);
    assert_int_equal(zn_sim_fault(sim, ZN_FAULT_ENOSPC, zn_sim_ops(sim), false), 0);
    end();
    assert_true(discard()->holed && discard()->lent);
    at = (discard()->first + units - 1) * ZB_PAGE_ALIGN;
    memset(page, 78, sizeof(page));
    transfer(&write, ZN_WRITE, page, at);
    while (!write.over) {
        zn_kick(w.core.daemon.engine);
        (void)zn_reap(w.core.daemon.engine, 8);
    }
    assert_int_equal(write.rc, -ENOSPC); /* reported, as of any drive that is full */
    begin();
    end();
    assert_false(discard()->holed);
    transfer(&write, ZN_WRITE, page, at);
    zs_settle(&w);
    assert_int_equal(write.rc, 0);
    transfer(&read, ZN_READ, back, at);
    zs_settle(&w);
    assert_memory_equal(back, page, sizeof(page));
    stop();
}

/* A job steps while all that is free gets other bytes: its bits are those of the oracle. */
static void beside_steps(void **state)
{
    struct zs_open open = { .job = "s", .world = 1, .host_bytes = STREAMS, .unkept = true };
    struct zs_state *now = zs_state_first(), *before;

    (void)state;
    start("steps");
    if (zs_open(&w, &open) < 0 || zs_write(&w, 1) < 0)
        zs_fail("open: %s", answers[0].text);
    for (uint64_t step = 1; step <= STEPS; step++) {
        zs_context("step %llu", (unsigned long long)step);
        if (zs_push(&w, 1, step, step) < 0 || zs_step(&w, 1, step) < 0)
            zs_fail("%s", answers[0].text);
        before = now;
        now = zs_state_next(before, step);
        zs_state_unref(before);
        if (zs_read_all(&w, 1, now) < 0)
            zs_fail("read: %s", answers[0].text);
    }
    assert_true(discard()->discarded_bytes > 0);
    zs_state_unref(now);
    stop();
}

/* A failure ends the discards of the drive, and is no failure of a transfer. */
static void refused(void **state)
{
    uint64_t all;

    (void)state;
    start("a discard fails");
    all = zsd_map_free_bytes(core());
    assert_int_equal(zn_sim_fault(sim, ZN_FAULT_EIO, zn_sim_ops(sim), false), 0);
    begin();
    end();
    assert_true(discard()->refused);
    assert_false(zsd_discards_wanted(core()));
    assert_int_equal(zsd_map_free_bytes(core()), all);
    assert_int_equal(zn_stats(w.core.daemon.engine).failed, 0);
    assert_int_equal(discard()->discarded_bytes, 0);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes),         cmocka_unit_test(lent),         cmocka_unit_test(holed),
        cmocka_unit_test(holed_and_lent), cmocka_unit_test(beside_steps), cmocka_unit_test(refused),
    };

    zs_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
