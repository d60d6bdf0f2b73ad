/*
 * Page writes wait while a change of the catalog is flushed, but not for ever; reads do not wait.
 */
#include "tests/unit/daemon/saved_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>

#include "nvme/sim/engine_fault.h"

#define TURNS 50

/* One transfer of a page of no job. */
struct transfer {
    struct zsd_pio pio;
    unsigned done;
};

static void transfer_on_done(struct zsd_pio *pio, int rc)
{
    assert_int_equal(rc, 0);
    pio->core->in_progress--;
    zb_container_of(pio, struct transfer, pio)->done++;
}

static void transfer_start(struct world *w, struct transfer *t, enum zn_op op, void *buf,
                           uint64_t at)
{
    *t = (struct transfer){ 0 };
    t->pio.done = transfer_on_done;
    t->pio.io = (struct zn_io){
        .op = op, .buf = buf, .len_bytes = ZB_PAGE_ALIGN, .off_bytes = ZN_DATA_START + at
    };
    w->daemon.core->in_progress++;
    zsd_pio_start(w->daemon.core, &t->pio);
}

static void transfer_ends(struct world *w, const struct transfer *t)
{
    world_settle(w);
    assert_int_equal(t->done, 1);
}

static void turns(struct world *w)
{
    for (int i = 0; i < TURNS; i++)
        world_turn(w);
}

static void writes_wait_reads_do_not(void **state)
{
    uint8_t *buf = aligned_alloc(ZB_PAGE_ALIGN, 3 * ZB_PAGE_ALIGN);
    struct transfer before, read, write;
    struct zsd_core *core;
    struct world w;

    (void)state;
    assert_non_null(buf);
    world_open(&w, SAVED_HOST, "threads", 1);
    core = w.daemon.core;
    zsd_hold_end(core); /* there is none */
    for (int round = 0; round < 2; round++) {
        transfer_start(&w, &before, ZN_WRITE, buf, 0);
        zsd_hold_begin(core);
        zsd_hold_begin(core); /* counts once */
        transfer_start(&w, &write, ZN_WRITE, buf + ZB_PAGE_ALIGN, ZB_PAGE_ALIGN);
        transfer_start(&w, &read, ZN_READ, buf + (size_t)2 * ZB_PAGE_ALIGN, 0);
        while (before.done + read.done < 2)
            world_turn(&w);
        turns(&w);
        assert_int_equal(write.done, 0);
        if (round == 0)
            zsd_hold_end(core);
        else
            world_expire(&w);
        transfer_ends(&w, &write);
        assert_int_equal(w.daemon.stats.write_holds, round + 1);
        assert_true(w.daemon.stats.write_hold_us > 0);

        assert_true(core->disk->hold.rests_until_ns > core->disk->hold.since_ns);
        core->disk->hold.rests_until_ns = UINT64_MAX;
        zsd_hold_begin(core); /* too early */
        assert_int_equal(w.daemon.stats.write_holds, round + 1);
        transfer_start(&w, &write, ZN_WRITE, buf, 0);
        transfer_ends(&w, &write);
        core->disk->hold.rests_until_ns = 0;
    }
    free(buf);
    world_close(&w);
}

/* A hold lasts until the snapshot is durable, also when that fails. */
static void a_snapshot_holds(void **state)
{
    Zp__SnapshotTake q = ZP__SNAPSHOT_TAKE__INIT;
    uint8_t *buf = aligned_alloc(ZB_PAGE_ALIGN, ZB_PAGE_ALIGN);
    char job[] = "j";

    (void)state;
    assert_non_null(buf);
    q.job = job;
    for (unsigned nth = 0; nth < 3; nth++) { /* 1: the slot; 2: its flush */
        struct zn_fault_plan plan = { .nth = nth, .nth_res = -EIO };
        struct transfer write;
        struct saved_world s;
        uint64_t at;

        saved_open(&s, SAVED_HOST, ZB_BF16, 1);
        at = zsd_map_take(s.w.daemon.core, ZB_PAGE_ALIGN);
        assert_true(at != ZB_NO_PLACE);
        assert_int_equal(zn_fault_install(s.w.daemon.engine, &plan), 0);
        assert_int_equal(s.w.daemon.stats.write_holds,
                         0); /* a commit has no hold: it writes pages */
        ask(&s.w, 0, zsd_snapshot, &q);
        while (!s.w.daemon.core->disk->hold.on) {
            assert_int_equal(answers[0].rc, NONE);
            world_turn(&s.w);
        }
        transfer_start(&s.w, &write, ZN_WRITE, buf, at);
        while (answers[0].rc == NONE) {
            assert_int_equal(write.done, 0);
            world_turn(&s.w);
        }
        assert_int_equal(answer(&s.w, 0), nth > 0 ? -EIO : 0);
        assert_false(s.w.daemon.core->disk->hold.on);
        transfer_ends(&s.w, &write);
        zsd_map_give(s.w.daemon.core, at, ZB_PAGE_ALIGN);
        if (nth == 0)
            saved_close(&s);
        else
            saved_kill(&s);
    }
    free(buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_wait_reads_do_not),
        cmocka_unit_test(a_snapshot_holds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
